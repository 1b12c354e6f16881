//! Identifiers. Host process and thread ids are those of the host's initial PID namespace.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        id! { $(#[$doc])* $name(u32) }

        impl $name {
            /// The row this id names.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }

            /// The id of row `index`.
            ///
            /// # Panics
            /// If the table has more than `u32::MAX` rows, which every table's writer prevents.
            #[must_use]
            pub fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).expect("tables are bounded below u32::MAX rows"))
            }
        }
    };
}

id! {
    /// A process id (the kernel's tgid). In a guest's tables: the guest's own numbering.
    Pid(u32)
}
id! {
    /// A thread id (the kernel's pid). In a guest's tables: the guest's own numbering.
    Tid(u32)
}
id! {
    /// A physical CPU of the host, as the kernel numbers it.
    CpuId(u32)
}
index! {
    /// Row of `Tables::vms`.
    VmId
}
index! {
    /// Row of `Tables::vcpus`: one vCPU of one VM.
    VcpuId
}
index! {
    /// Row of `Tables::images`: one program image, or a kernel.
    ImageId
}
index! {
    /// Row of `Tables::modules`: one file (or kernel, kernel module, vDSO) that holds code.
    ModuleId
}
index! {
    /// Row of `Tables::stacks`.
    StackId
}

/// Which boot of a host: the kernel's boot id (`/proc/sys/kernel/random/boot_id`), written as 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId(pub [u8; 16]);

/// Text that is no boot id: not 32 hexadecimal digits in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoBootId;

impl std::str::FromStr for BootId {
    type Err = NoBootId;

    fn from_str(text: &str) -> Result<Self, NoBootId> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.bytes().all(is_digit) {
            return Err(NoBootId);
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| NoBootId)?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl std::fmt::Display for BootId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}
