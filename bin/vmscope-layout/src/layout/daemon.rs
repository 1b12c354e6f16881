//! `vmscope layout daemon` and `vmscope layout template`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use migration::{Config, Identity, Template};
use probes::VmFinder;

use super::CONFIG;
use cli::Usage;
use cli::print;
use cli::stop_on_signals;

const DAEMON_EXAMPLE: &str = "Examples:
  vmscope layout daemon --fingerprint            for the peers files of the other hosts
  echo 'kvm2 10.0.0.2:9277 3f2a...' >>/etc/vmscope/peers
  vmscope layout daemon";

const TEMPLATE_EXAMPLE: &str = "Example:
  vmscope layout template web >web.toml          review it, then add it there";

/// Prepare NUMA nodes for VMs that arrive, and send counters of VMs that leave.
///
/// Measures VMs' memory accesses, serves `vmscope migrate`, and accepts the daemons of other hosts, which the peers
/// file lists with their certificates' fingerprints. Needs root.
#[derive(Debug, clap::Args)]
#[command(after_help = DAEMON_EXAMPLE)]
pub(super) struct DaemonArgs {
    /// Configuration file
    #[arg(short, long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
    /// Check this configuration file and exit: 0 if it is valid, else 2
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Print this host's fingerprint and exit; creates its key if it has none
    #[arg(long, conflicts_with = "check")]
    fingerprint: bool,
}

/// Print a running VM's QEMU command line as configuration for a migration's destination.
///
/// The command line has a placeholder for the VM's memory. Adapt paths and interfaces to the destination.
#[derive(Debug, clap::Args)]
#[command(after_help = TEMPLATE_EXAMPLE)]
pub(super) struct TemplateArgs {
    /// The VM's name
    vm: String,
}

pub(super) fn daemon(args: &DaemonArgs) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.check {
        Config::read(file).map_err(cli::usage)?;
        say!("{} is valid", file.display());
        return Ok(ExitCode::SUCCESS);
    }
    let config = Config::read(&args.config).map_err(cli::usage)?;
    if args.fingerprint {
        let identity = Identity::open(&config.state)?;
        print(&format!("{}\n", identity.fingerprint))
            .context("failed to write to standard output")?;
        return Ok(ExitCode::SUCCESS);
    }
    let stop = stop_on_signals()?;
    cli::log_to_stderr("vmscope layout");
    match migration::serve(&args.config, &stop) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(migration::DaemonError::Config(error)) => Err(cli::usage(error)),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn template(args: &TemplateArgs) -> anyhow::Result<ExitCode> {
    let proc = Path::new(super::plan::PROC);
    let found = VmFinder::load()?.find(None)?;
    let mut processes = numa::processes(proc, &found).into_iter().flatten();
    let process = processes.find(|process| process.name == args.vm);
    let process = process.ok_or_else(|| Usage(format!("no VM {} runs on this host", args.vm)))?;
    let words = host::vms::command_line(proc, process.pid.0);
    let (template, notes) = Template::from_command_line(&words).map_err(anyhow::Error::msg)?;
    let quoted = |word: &String| format!("    {},\n", serde_json::Value::from(word.as_str()));
    let command: String = template.words().iter().map(quoted).collect();
    let name = serde_json::Value::from(args.vm.as_str());
    let text = format!("[[incoming]]\nvm = {name}\ncommand = [\n{command}]\n");
    print(&text).context("failed to write to standard output")?;
    for note in notes {
        say!("vmscope: {}", table::clean(&note));
    }
    Ok(ExitCode::SUCCESS)
}
