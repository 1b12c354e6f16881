//! `vmscope migrate`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use api::layout::{DaemonEvent, MigrateOrder, Order};
use migration::{Config, Ordered};

use super::layout::migration_policy;
use cli::Format;
use cli::Usage;
use cli::print;
use cli::stop_on_signals;

const EXAMPLE: &str = "Examples:
  vmscope migrate web --to kvm2
  vmscope migrate web --to kvm2 --policy none                   kernel's layout, to compare
  vmscope migrate web --to kvm2 --uri tcp:10.0.0.2:4444         a QEMU already waits there
  vmscope migrate --watch                                       migrations that libvirt starts";

/// Live-migrate a VM; the destination's layout daemon prepares NUMA placement first.
///
/// The VM's counters go ahead. The destination plans for all its VMs, moves those that it has, and binds the new VM's
/// memory and vCPUs to NUMA nodes before it arrives. If that fails, the VM is migrated with the kernel's layout, and a
/// note says so. `vmscope layout daemon` must run on both hosts. Needs root. Exit code 1: the VM still runs on the
/// source.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// The VM's name
    #[arg(required_unless_present = "watch", conflicts_with = "watch")]
    vm: Option<String>,
    /// Destination, by its name in the peers file; with --watch, the only destination to prepare
    #[arg(long, value_name = "HOST", required_unless_present = "watch")]
    to: Option<String>,
    /// Policy: simple, dino, asymsched, or none [default: the destination's]
    #[arg(long, value_parser = migration_policy)]
    policy: Option<String>,
    /// Address at which a QEMU already waits with -incoming
    #[arg(long, value_name = "URI", conflicts_with = "watch")]
    uri: Option<String>,
    /// Prepare destinations of migrations that other programs start, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// The layout daemon's configuration
    #[arg(long, value_name = "FILE", default_value = super::layout::CONFIG)]
    config: PathBuf,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = match args.config.exists() {
        true => Config::read(&args.config).map_err(cli::usage)?,
        false => Config::default(),
    };
    let order = match (&args.vm, &args.to) {
        (Some(vm), Some(to)) => Order::Migrate(MigrateOrder {
            vm: vm.clone(),
            to: to.clone(),
            policy: args.policy.clone(),
            uri: args.uri.clone(),
        }),
        _ => Order::Watch { policy: args.policy.clone(), to: args.to.clone() },
    };
    let stop = stop_on_signals()?;
    let mut ordered = Ordered::new(&config.socket, &order)?;
    if args.watch { watch(args, &mut ordered, &stop) } else { migrate(args, &mut ordered, &stop) }
}

fn migrate(args: &Args, ordered: &mut Ordered, stop: &AtomicBool) -> anyhow::Result<ExitCode> {
    let mut is_cancelled = false;
    loop {
        if stop.load(Ordering::Relaxed) && !is_cancelled {
            say!("vmscope: cancelling");
            ordered.cancel()?;
            is_cancelled = true;
        }
        match ordered.poll()? {
            None => {}
            Some(DaemonEvent::Progress { text }) => say!("{}", table::clean(&text)),
            Some(DaemonEvent::Failed { reason, is_usage: true }) => {
                return Err(Usage(reason).into());
            }
            Some(DaemonEvent::Failed { reason, .. }) => anyhow::bail!(reason),
            Some(DaemonEvent::Migrated(migrated)) => {
                let moved = migrated.moved;
                print(&args.format.render(&migration::report(&migrated)))
                    .context("failed to write to standard output")?;
                return Ok(ExitCode::from(u8::from(!moved)));
            }
        }
    }
}

/// Reports come as migrations end: in JSON one a line.
fn watch(args: &Args, ordered: &mut Ordered, stop: &AtomicBool) -> anyhow::Result<ExitCode> {
    while !stop.load(Ordering::Relaxed) {
        match ordered.poll()? {
            None => {}
            Some(DaemonEvent::Progress { text }) => say!("{}", table::clean(&text)),
            Some(DaemonEvent::Failed { reason, .. }) => return Err(Usage(reason).into()),
            Some(DaemonEvent::Migrated(migrated)) => {
                let report = migration::report(&migrated);
                let text = match args.format {
                    Format::Json => format!("{}\n", report.json),
                    format => format!("{}\n", format.render(&report)),
                };
                print(&text).context("failed to write to standard output")?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
