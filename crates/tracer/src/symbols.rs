//! The kernel's functions by address.

use std::io::{self, BufRead};

/// The functions of `/proc/kallsyms`.
#[derive(Debug, Default)]
pub struct Symbols {
    /// `(address, begin and end of its name in names)`, ascending by address.
    functions: Vec<(u64, (u32, u32))>,
    names: String,
}

impl Symbols {
    /// Reads the text of `/proc/kallsyms`. Empty where the kernel hides addresses (`kernel.kptr_restrict`).
    ///
    /// # Errors
    /// If it can't be read.
    pub fn from_reader(_text: impl BufRead) -> io::Result<Self> {
        Ok(Self { functions: Vec::new(), names: String::new() })
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// The function that `address` lies in.
    #[must_use]
    pub fn name(&self, _address: u64) -> Option<&str> {
        self.names.get(0..0)
    }

    /// The functions of a stack, innermost first, without those that serve tracing itself. What has no name is written as
    /// an address.
    #[must_use]
    pub fn stack(&self, addresses: &[u64]) -> Vec<String> {
        addresses.iter().map(|address| format!("{address:#x}")).collect()
    }
}
