//! `vmscope`: profiles a KVM host and every guest on it, from the host alone.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[macro_use]
extern crate cli;

mod commands;
#[cfg(test)]
#[path = "../../../tests/help.rs"]
mod help;
mod programs;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Profile a KVM host and all its guests from the host alone.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, help_template = HELP, after_help = EXAMPLE)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Subcommands in groups, most used first.
const HELP: &str = "{about}

{usage-heading} {usage}

Record and look:
  record    Sample this host and its guests into a folder
  report    Print who used the CPUs, by function
  steal     Print how much time each vCPU lost, and who took it
  explain   Say why a VM is slow, and what helps
  top       Show live who uses the CPUs, as top does
  exits     Print why guests exited to KVM
  correct   Print run times corrected for stolen time
  meter     Print CPU time to charge for, without what was stolen
  export    Write a recording for other tools, or as a page
  ask       Put a question to a recording, a trace or a server
  mcp       Let an assistant put these questions (Model Context Protocol)
  trace     Trace a command, and show what it waited for
  ci        Say whether a change made a job slower
  doctor    Check whether this host can be recorded

Fleet:
  agent     Record continuously, and send the recordings to a server
  query     Query a server
  replay    Send recordings to a server as a fleet would
  capacity  Measure how many hosts a server takes

Hosts and placement:
  layout    Plan and move VMs' memory and vCPUs on NUMA nodes
  migrate   Live-migrate a VM to NUMA nodes that its destination has prepared

Laboratory:
  lab       Measure how many VMs a host takes, and what helps
  bench     Measure what virtualisation adds to the cost of single instructions
  testbed   Run commands on a virtual KVM host with guests, on any machine
  demo      Try vmscope on a virtual KVM host, on any machine

Options:
{options}{after-help}";

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
    Meter(commands::meter::Args),
    Export(commands::export::Args),
    Top(commands::top::Args),
    Ci(commands::ci::Args),
    Doctor(commands::doctor::Args),
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
}

fn main() -> ExitCode {
    if let Some(code) = symbols::serve().or_else(collector::serve_child) {
        return code;
    }
    if let Some(error) = programs::become_program(std::env::args_os().skip(1)) {
        cli::print_error(&error);
        return commands::exit_code(&error);
    }
    cli::run_command(run, commands::exit_code)
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Record(args) => commands::record::run(&args),
        Command::Report(args) => commands::report::run(&args),
        Command::Steal(args) => commands::steal::run(&args),
        Command::Explain(args) => commands::explain::run(&args),
        Command::Exits(args) => commands::exits::run(&args),
        Command::Correct(args) => commands::correct::run(&args),
        Command::Meter(args) => commands::meter::run(&args),
        Command::Export(args) => commands::export::run(&args),
        Command::Top(args) => commands::top::run(&args),
        Command::Ci(args) => commands::ci::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Trace(args) => commands::trace::run(&args),
        Command::Agent(args) => commands::agent::run(&args),
        Command::Query(args) => commands::query::run(&args),
        Command::Replay(args) => commands::replay::run(&args),
        Command::Capacity(args) => commands::capacity::run(&args),
        Command::Manuals { dir } => {
            cli::write_pages(&Cli::command(), &dir)?;
            cli::write_completions(&programs::add_externals(Cli::command()), &dir)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_help_is_in_the_docs() {
        help::check("vmscope", Cli::command());
    }

    #[test]
    fn the_help_lists_each_subcommand_once() {
        let program = programs::add_externals(Cli::command());
        let shown = program.get_subcommands().filter(|command| !command.is_hide_set());
        let mut expected: Vec<&str> = shown.map(clap::Command::get_name).collect();
        let rows = HELP.lines().filter_map(|line| line.strip_prefix("  "));
        let mut listed: Vec<&str> = rows.filter_map(|row| row.split("  ").next()).collect();
        expected.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, expected);
    }
}
