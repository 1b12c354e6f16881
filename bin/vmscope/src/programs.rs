//! Subcommands that are programs of their own: `vmscope lab ...` becomes `vmscope-lab lab ...`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// A subcommand, the program that has it, and what it does.
struct External {
    name: &'static str,
    program: &'static str,
    about: &'static str,
}

const EXTERNALS: [External; 8] = [
    External {
        name: "ask",
        program: "vmscope-ask",
        about: "Put a question to a recording, a trace or a server",
    },
    External {
        name: "mcp",
        program: "vmscope-ask",
        about: "Let an assistant put these questions, by the Model Context Protocol",
    },
    External {
        name: "layout",
        program: "vmscope-layout",
        about: "Plan and move VMs' memory and vCPUs on NUMA nodes",
    },
    External {
        name: "migrate",
        program: "vmscope-layout",
        about: "Live-migrate a VM to NUMA nodes that its destination has prepared",
    },
    External {
        name: "lab",
        program: "vmscope-lab",
        about: "Measure how many VMs a host takes, and what helps",
    },
    External {
        name: "bench",
        program: "vmscope-lab",
        about: "Measure what virtualisation adds to the cost of single instructions",
    },
    External {
        name: "testbed",
        program: "vmscope-lab",
        about: "Run commands on a virtual KVM host with guests, on any machine",
    },
    External {
        name: "demo",
        program: "vmscope-lab",
        about: "Try vmscope on a virtual KVM host, on any machine",
    },
];

/// Becomes the program of the subcommand, if it has one of its own. `None`: it is this program's.
pub(crate) fn become_program(mut words: impl Iterator<Item = OsString>) -> Option<anyhow::Error> {
    let (external, help) = match words.next()? {
        word if word == "help" => (find(&words.next()?)?, Some("--help")),
        word => (find(&word)?, None),
    };
    let path = match cli::find_program(external.program) {
        Ok(path) => path,
        Err(error) => return Some(error),
    };
    let error = Command::new(&path).arg(external.name).args(words).args(help).exec();
    Some(anyhow::Error::from(error).context(format!("failed to run {}", path.display())))
}

fn find(word: &OsString) -> Option<&'static External> {
    EXTERNALS.iter().find(|external| word == external.name)
}

/// With the other programs' subcommands by name, for manuals and completions.
pub(crate) fn add_externals(command: clap::Command) -> clap::Command {
    let stub = |external: &External| clap::Command::new(external.name).about(external.about);
    command.subcommands(EXTERNALS.iter().map(stub))
}
