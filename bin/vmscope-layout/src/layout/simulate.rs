//! `vmscope layout simulate`.

use std::path::PathBuf;
use std::process::ExitCode;

use layout::{Options, POLICIES};

use super::file::{read, wrong};
use cli::ReportOutput;

const EXAMPLE: &str = "Examples:
  vmscope layout simulate scenarios/layout/opteron-6348.toml scenarios/layout/case-2-dino.toml --policy dino
  vmscope layout simulate host.toml vms.toml --format html -o migration.html
  vmscope layout simulate host.toml --random 1000      policies over random loads";

/// Random loads at most.
const MAX_RANDOM: u64 = 1_000_000;

/// Simulate a migration with the kernel's layout, re-optimised afterwards, and planned ahead.
///
/// Speeds come from a memory model (docs/layout.md).
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// NUMA nodes of the host, a TOML file
    topology: PathBuf,
    /// VMs of the host and VMs that arrive, a TOML file
    #[arg(required_unless_present = "random")]
    loads: Option<PathBuf>,
    /// Only these policies [default: all]
    #[arg(long, value_name = "POLICY,...", value_delimiter = ',', value_parser = super::policy)]
    policy: Vec<String>,
    /// Also compare the policies over N random loads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_RANDOM))]
    random: Option<u64>,
    /// Random seed
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: ReportOutput,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let topology = layout::read_topology(&read(&args.topology)?)
        .map_err(|error| wrong(&args.topology, &error))?;
    let options = Options::default();
    let loads = args.loads.as_deref();
    let text = loads.map(read).transpose()?.unwrap_or_default();
    let case = layout::read_case(&text, &topology)
        .map_err(|error| wrong(loads.unwrap_or(&args.topology), &error))?;
    let mut policies: Vec<&str> = args.policy.iter().map(String::as_str).collect();
    if policies.is_empty() {
        policies.extend(POLICIES);
    }
    let simulate = |policy: &&str| layout::simulate(&case, policy, &options);
    let simulations: Vec<_> = match loads {
        Some(_) => policies.iter().filter_map(simulate).collect(),
        None => Vec::new(),
    };
    let rankings = match args.random {
        Some(cases) => layout::rank_policies(&topology, cases, args.seed, &options),
        None => Vec::new(),
    };
    let report = || layout::report::simulation(&case, &simulations, &rankings);
    args.output.write(report, |page| export::layout::html(&case, &simulations, &rankings, page))?;
    Ok(ExitCode::SUCCESS)
}
