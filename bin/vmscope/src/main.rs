//! `vmscope`: profiles a KVM host and every guest on it, from the host alone.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[macro_use]
mod say;
mod commands;
mod manuals;
mod usage;

use clap::{Parser, Subcommand};

/// Profile a KVM host and all its guests from the host alone.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, after_help = EXAMPLE)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLE: &str = "Examples:
  vmscope doctor                           check whether this host can be recorded
  vmscope record -o day1 --duration 20     sample this host and its guests for 20 s
  vmscope report day1                      print who used the CPUs, by function
  vmscope export day1 --format html        write flamegraph.html, for any browser";

#[derive(Debug, Subcommand)]
enum Command {
    Record(commands::record::Args),
    Report(commands::report::Args),
    Steal(commands::steal::Args),
    Explain(commands::explain::Args),
    Exits(commands::exits::Args),
    Correct(commands::correct::Args),
    Export(commands::export::Args),
    Top(commands::top::Args),
    Doctor(commands::doctor::Args),
    Demo(commands::demo::Args),
    Testbed(commands::testbed::Args),
    Bench(commands::bench::Args),
    Trace(commands::trace::Args),
    /// Write man pages and shell completions into a folder
    #[command(hide = true)]
    Manuals {
        /// The folder
        dir: std::path::PathBuf,
    },
    Agent(commands::agent::Args),
    Query(commands::query::Args),
    Replay(commands::replay::Args),
    Capacity(commands::capacity::Args),
    Layout(commands::layout::Args),
    Lab(commands::lab::Args),
    Migrate(commands::migrate::Args),
}

fn main() -> std::process::ExitCode {
    if let Some(code) = symbols::serve().or_else(collector::trace::serve) {
        return code;
    }
    let cli: Cli = match usage::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let result = match cli.command {
        Command::Record(args) => commands::record::run(&args),
        Command::Report(args) => commands::report::run(&args),
        Command::Steal(args) => commands::steal::run(&args),
        Command::Explain(args) => commands::explain::run(&args),
        Command::Exits(args) => commands::exits::run(&args),
        Command::Correct(args) => commands::correct::run(&args),
        Command::Export(args) => commands::export::run(&args),
        Command::Top(args) => commands::top::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Demo(args) => commands::demo::run(&args),
        Command::Testbed(args) => commands::testbed::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Trace(args) => commands::trace::run(&args),
        Command::Manuals { dir } => {
            manuals::write::<Cli>(&dir).map(|()| std::process::ExitCode::SUCCESS)
        }
        Command::Agent(args) => commands::agent::run(&args),
        Command::Query(args) => commands::query::run(&args),
        Command::Replay(args) => commands::replay::run(&args),
        Command::Capacity(args) => commands::capacity::run(&args),
        Command::Layout(args) => commands::layout::run(&args),
        Command::Lab(args) => commands::lab::run(&args),
        Command::Migrate(args) => commands::migrate::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            // The message may contain names that a guest chose.
            say!("vmscope: {}", view::clean(&commands::message(&error)));
            commands::exit_code(&error)
        }
    }
}
