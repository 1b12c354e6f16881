//! `vmscope-layout`: NUMA layout and migrations, which `vmscope layout` and `vmscope migrate` start.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[macro_use]
extern crate cli;

#[cfg(test)]
#[path = "../../../tests/help.rs"]
mod help;
mod layout;
mod migrate;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Plan and move VMs' memory and vCPUs on NUMA nodes, also during live migration.
#[derive(Debug, Parser)]
#[command(name = "vmscope", bin_name = "vmscope", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Layout(layout::Args),
    Migrate(migrate::Args),
    /// Write man pages into a folder
    #[command(hide = true)]
    Manuals {
        /// The folder
        dir: std::path::PathBuf,
    },
}

fn main() -> ExitCode {
    cli::run_command(run, cli::exit_code)
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Layout(args) => layout::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Manuals { dir } => {
            cli::write_subcommand_pages(&Cli::command(), &dir).map(|()| ExitCode::SUCCESS)
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_help_is_in_the_docs() {
        help::check("vmscope-layout", Cli::command());
    }
}
