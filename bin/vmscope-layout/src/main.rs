//! `vmscope-layout`: NUMA layout and migrations, which `vmscope layout` and `vmscope migrate` start.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[macro_use]
extern crate cli;

mod layout;
mod migrate;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Put VMs' memory and vCPUs on the right NUMA nodes, also of VMs that are being migrated.
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
