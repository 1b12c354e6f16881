//! The command inside a guest: answers the host, or writes a snapshot file.

#![allow(clippy::exit, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(test)]
#[path = "../../../tests/help.rs"]
mod help;

use std::io::{IsTerminal, Write, stdout};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use cli::say;
use guest::inside::{Commands, HELD, HostProcesses, become_command};

/// Send the names of this guest's processes and functions to vmscope on the host.
#[derive(Parser)]
#[command(
    name = "vmscope-guest",
    version,
    after_help = "\
Examples:
  vmscope-guest serve                       answer the host whenever it asks (as a service)
  vmscope-guest serve --allow-commands      also run commands for `vmscope trace record --vm NAME -- COMMAND`
  vmscope-guest snapshot > vm1.guestmap     write this guest's map to a file, for
                                            `vmscope record --guest-map vm1=vm1.guestmap` on the host

Both need root: they read the kernel's memory (/proc/kcore) and all processes' mappings.

Exit codes: 0 done, 1 failed, 2 wrong usage."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const SERVE_EXAMPLE: &str = "\
Example, as a systemd service:
  [Service]
  ExecStart=/usr/local/sbin/vmscope-guest serve
  [Install]
  WantedBy=multi-user.target";

const SNAPSHOT_EXAMPLE: &str = "\
Example:
  guest# vmscope-guest snapshot > vm1.guestmap
  host#  vmscope record --guest-map vm1=vm1.guestmap -o day1 --duration 20";

#[derive(Subcommand)]
enum Command {
    /// Answer the host on vsock and on the virtio-serial port org.vmscope.guest.0
    #[command(after_help = SERVE_EXAMPLE)]
    Serve {
        /// Allow the host to run commands as root: `vmscope trace record --vm NAME -- COMMAND`
        #[arg(long)]
        allow_commands: bool,
        /// Answer every process that the VMM connects: for VMMs with a vsock device of their own (Firecracker, cloud-hypervisor)
        #[arg(long)]
        trust_vmm: bool,
    },
    /// Write this guest's processes, mappings and symbols to standard output
    #[command(after_help = SNAPSHOT_EXAMPLE)]
    Snapshot,
    /// Wait for a byte on standard input, then become the command
    #[command(name = HELD, hide = true)]
    Held {
        /// The command.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Write man pages and shell completions into a folder
    #[cfg(feature = "manuals")]
    #[command(hide = true)]
    Manuals {
        /// The folder
        dir: std::path::PathBuf,
    },
}

fn main() -> ExitCode {
    let arguments: Arguments = match cli::parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let done = match arguments.command {
        Command::Serve { allow_commands, trust_vmm } => {
            let commands = if allow_commands { Commands::Allowed } else { Commands::Refused };
            let processes = if trust_vmm { HostProcesses::OfTheVmm } else { HostProcesses::Root };
            guest::inside::serve(commands, processes, &mut |channel| say!("listening on {channel}"))
                .context("failed to serve")
        }
        Command::Snapshot => snapshot(),
        Command::Held { words } => {
            let error = become_command(&words);
            Err(error).with_context(|| format!("failed to run {}", words.join(" ")))
        }
        #[cfg(feature = "manuals")]
        Command::Manuals { dir } => {
            let program = <Arguments as clap::CommandFactory>::command();
            cli::write_pages(&program, &dir).and_then(|()| cli::write_completions(&program, &dir))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say!("vmscope-guest: {}", model::error_chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn snapshot() -> Result<()> {
    let output = stdout();
    if output.is_terminal() {
        bail!(
            "a snapshot is not for a terminal: write it to a file (vmscope-guest snapshot > FILE)"
        );
    }
    let mut output = std::io::BufWriter::new(output.lock());
    let problems =
        guest::inside::write_snapshot(&mut output).context("failed to write the snapshot")?;
    output.flush().context("failed to write the snapshot")?;
    for problem in problems {
        say!("vmscope-guest: {problem}");
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_help_is_in_the_docs() {
        help::check("vmscope-guest", Arguments::command());
    }
}
