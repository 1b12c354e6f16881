//! How call stacks end.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a call stack has no further frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StackEnd {
    /// It is whole: the first function of a process, a thread or a kernel thread.
    Start,
    /// The kernel's part is whole: it was entered from user mode.
    UserMode,
    /// The next frame lies beyond the bytes that were copied.
    Cut,
    /// The next frame would not be above this one, or not on the stack at all.
    Astray,
    /// The return address is in no executable mapping.
    Outside,
    /// The file has unwind tables, but none for this address, or one that makes no sense.
    NoRule,
    /// The file has no unwind tables, or they are not in memory.
    NoTables,
    /// The tables need a register that was not recorded.
    NoRegister,
    /// It has more frames than are kept.
    TooDeep,
    /// The tables of this guest took more work than they may.
    TooMuchWork,
    /// The process is not known.
    NoProcess,
    /// What reads the guest's memory did not answer in time.
    Late,
    /// The guest has more different stacks than are kept.
    NoRoom,
}

impl StackEnd {
    /// All of them: a recording's spool has their places here, plus one.
    pub const ALL: [Self; 13] = [
        Self::Start,
        Self::UserMode,
        Self::Cut,
        Self::Astray,
        Self::Outside,
        Self::NoRule,
        Self::NoTables,
        Self::NoRegister,
        Self::TooDeep,
        Self::TooMuchWork,
        Self::NoProcess,
        Self::Late,
        Self::NoRoom,
    ];

    /// Its word in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::UserMode => "user_mode",
            Self::Cut => "cut",
            Self::Astray => "astray",
            Self::Outside => "outside",
            Self::NoRule => "no_rule",
            Self::NoTables => "no_tables",
            Self::NoRegister => "no_register",
            Self::TooDeep => "too_deep",
            Self::TooMuchWork => "too_much_work",
            Self::NoProcess => "no_process",
            Self::Late => "late",
            Self::NoRoom => "no_room",
        }
    }

    /// The one with this word.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.name() == name)
    }

    /// Whether no frame is missing.
    #[must_use]
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Start | Self::UserMode)
    }
}

impl fmt::Display for StackEnd {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Start => "whole, to the first function",
            Self::UserMode => "whole, to the entry from user mode",
            Self::Cut => "more of the stack than was copied",
            Self::Astray => "a frame that is not on the stack",
            Self::Outside => "a return address outside of code",
            Self::NoRule => "code without an unwind rule",
            Self::NoTables => "a file whose unwind tables are missing or not in memory",
            Self::NoRegister => "a register that was not recorded",
            Self::TooDeep => "too many frames",
            Self::TooMuchWork => "unwind tables that take too long",
            Self::NoProcess => "an unknown process",
            Self::Late => "a reader of the guest's memory that did not answer in time",
            Self::NoRoom => "more different stacks than are kept",
        })
    }
}
