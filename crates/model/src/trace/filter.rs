//! What a trace was limited to.

use std::fmt::{self, Display, Formatter};

use crate::Pid;

/// One limit of a trace. `Display` has it as an option of `trace record`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceFilter {
    /// This VM is traced; other filters are then of tasks in it.
    Vm(String),
    /// The command and the tasks that it starts.
    Command,
    /// This process and the tasks that it starts.
    Tree(Pid),
    /// The tasks of this control group and of the groups in it.
    Cgroup(String),
    /// One that an older vmscope wrote in words that are not known.
    Other(String),
}

impl Display for TraceFilter {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vm(name) => write!(out, "--vm {name}"),
            Self::Command => out.write_str("--only-command"),
            Self::Tree(pid) => write!(out, "--tree {pid}"),
            Self::Cgroup(path) => write!(out, "--cgroup {path}"),
            Self::Other(words) => out.write_str(words),
        }
    }
}
