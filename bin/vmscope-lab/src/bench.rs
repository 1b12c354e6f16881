//! `vmscope bench`.

mod compare;
mod file;
mod image;
mod list;
mod read;
mod run;

use std::process::ExitCode;

use clap::Subcommand;

/// Measure what virtualisation adds to the cost of single instructions, without an operating system.
///
/// docs/bench.md explains verdicts and files, docs/boot.md the image that measures.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLE: &str = "Examples:
  vmscope bench run -o tcg.json                     here, in QEMU's emulation
  vmscope bench run --target testbed-kvm -o kvm.json
                                                    as a KVM guest, on any machine
  vmscope bench compare tcg.json kvm.json           what virtualisation costs
  vmscope bench run --target image                  the image for real machines
  vmscope bench read serial.log -o real.json        the results of a real machine";

#[derive(Debug, Subcommand)]
enum Action {
    Run(run::Args),
    Read(read::Args),
    Compare(compare::Args),
    List(list::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.action {
        Action::Run(args) => run::run(args),
        Action::Read(args) => read::run(args),
        Action::Compare(args) => compare::run(args),
        Action::List(args) => list::run(args),
    }
}

/// `1 result`, `2 results`.
fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
