//! What can go wrong with a testbed, each with what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why a testbed could not do its task.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The scenario file is wrong.
    #[error("{}{}: {problem}", path.display(), line_suffix(*line))]
    Scenario {
        path: PathBuf,
        /// The line, when known.
        line: Option<usize>,
        /// What is wrong, naming the key.
        problem: String,
    },
    /// Neither the command line nor the scenario names a command.
    #[error("no command to run: give one after `--` or as `command` under [host] in {}", path.display())]
    NoCommand {
        /// The scenario.
        path: PathBuf,
    },
    /// What the command writes can't go there.
    #[error("{} is not a folder: choose another with -o", .0.display())]
    NoFolder(PathBuf),
    /// There is no testbed around this process.
    #[error("not in a testbed: run it inside vmscope testbed run")]
    Outside,
    /// The scenario has one host only.
    #[error("the scenario has no second host: add [peer]")]
    NoPeer,
    /// There is no host of this name.
    #[error("the other host is called {other}, not {name}")]
    OtherHost { name: String, other: String },
    /// A file or folder could not be used.
    #[error("failed to {action} {}", path.display())]
    Io {
        /// Verb.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// A program is missing.
    #[error("{program} is not installed: run `apt-get install {package}`")]
    Missing {
        program: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A program failed.
    #[error("`{command}` failed: {output}")]
    Command {
        command: String,
        /// Its last words.
        output: String,
    },
    #[error("no kernel package for {wanted}: run `apt-get update`, or name another `kernel`")]
    NoKernel { wanted: String },
    /// No package lists of Debian.
    #[error("no Debian release among the package lists: run `apt-get update`")]
    NoDebian,
    /// A kernel lacks a module.
    #[error("kernel {release} has no module {module}")]
    NoModule {
        /// The kernel.
        release: String,
        module: String,
    },
    /// A guest failed.
    #[error("guest {guest}: {problem}")]
    Guest { guest: String, problem: String },
    /// The run failed inside the virtual host.
    #[error("{problem}")]
    Inside { problem: String },
    /// The virtual host failed.
    #[error("the virtual host {problem}")]
    Host {
        /// What happened, and its console's last lines.
        problem: String,
    },
    /// A machine without an operating system failed.
    #[error("QEMU {problem}")]
    Bare { problem: String },
    /// The time limit was reached.
    #[error("the time limit of {seconds} s was reached while {stage}: raise it with --timeout")]
    TimeLimit { seconds: u64, stage: String },
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Makes an `Io` error out of a system error.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// Whether the user's request was wrong, not its execution.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Scenario { .. } | Self::NoCommand { .. } | Self::NoFolder(_))
    }
}

fn line_suffix(line: Option<usize>) -> String {
    line.map(|line| format!(":{line}")).unwrap_or_default()
}
