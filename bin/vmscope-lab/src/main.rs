//! `vmscope-lab`: the instruments beside the profiler, which `vmscope lab`, `bench`, `testbed` and `demo` start.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[macro_use]
extern crate cli;

mod bench;
mod demo;
#[cfg(test)]
#[path = "../../../tests/help.rs"]
mod help;
mod lab;
mod testbed;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Measure hosts and virtualisation: laboratory, micro-benchmark, and a virtual KVM host.
#[derive(Debug, Parser)]
#[command(name = "vmscope", bin_name = "vmscope", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Lab(lab::Args),
    Bench(bench::Args),
    Testbed(testbed::Args),
    Demo(demo::Args),
    /// Write man pages into a folder
    #[command(hide = true)]
    Manuals {
        /// The folder
        dir: std::path::PathBuf,
    },
}

fn main() -> ExitCode {
    if let Some(code) = symbols::serve().or_else(collector::serve_child) {
        return code;
    }
    cli::run_command(run, cli::exit_code)
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Lab(args) => lab::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Testbed(args) => testbed::run(&args),
        Command::Demo(args) => demo::run(&args),
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
        help::check("vmscope-lab", Cli::command());
    }
}
