//! `vmscope lab capture`.

use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use consolidate::capture::{Capture, Captured, Interface, InterfaceError, Options};

use cli::{Usage, create_file, stop_on_signals};

const EXAMPLE: &str = "Examples:
  vmscope lab capture tap-web tap-db -o taps.pcapng --duration 20
  vmscope lab split taps.pcapng";

/// Capture packets of VMs' taps into one file, by one clock.
///
/// Needs root. Ctrl-C stops the capture. Packets dropped by the kernel are counted in the file and reported.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Network interfaces [default: all taps]
    #[arg(value_name = "INTERFACE")]
    interfaces: Vec<String>,
    /// The pcapng file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Duration, in seconds [default: until Ctrl-C]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    duration: Option<u64>,
    /// Bytes of each packet to keep; queries and heads of requests must fit [default: all]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(64..=i64::from(Options::WHOLE)))]
    snaplen: Option<u32>,
    /// Ring buffer per interface, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=1024))]
    ring: u32,
    /// File size at which the capture stops, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    size: u32,
}

/// Time between progress lines.
const EVERY: Duration = Duration::from_secs(10);

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let interfaces = interfaces(&args.interfaces)?;
    let options = Options {
        snapshot_length: args.snaplen.unwrap_or(Options::WHOLE),
        ring_bytes: args.ring as usize * (1 << 20),
        most_bytes: u64::from(args.size) << 20,
    };
    let stop = stop_on_signals()?;
    let name = args.output.display();
    let file = create_file(&args.output).with_context(|| format!("failed to create {name}"))?;
    let capture = Capture::open(&interfaces, options)?;
    let names: Vec<&str> = interfaces.iter().map(|interface| &*interface.name).collect();
    say!(
        "capturing {}{}",
        names.join(", "),
        args.duration.map_or(String::new(), |s| format!(" for {s} s"))
    );
    let (began, mut said) = (Instant::now(), Instant::now());
    let limit = args.duration.map(Duration::from_secs);
    let captured = capture.run(BufWriter::new(file), |so_far| {
        if EVERY <= said.elapsed() {
            said = Instant::now();
            say!("{} s: {}", began.elapsed().as_secs(), figures(so_far));
        }
        stop.load(Ordering::Relaxed) || limit.is_some_and(|limit| limit <= began.elapsed())
    })?;
    say!("wrote {name}: {}", figures(&captured));
    if captured.is_full {
        say!("stopped at {} MiB: give --size for more", args.size);
    }
    if 0 < captured.dropped {
        say!("{} packets were dropped: give a larger --ring, or --snaplen", captured.dropped);
    }
    Ok(ExitCode::SUCCESS)
}

fn figures(captured: &Captured) -> String {
    format!("{} packets, {} KiB", captured.packets, captured.bytes >> 10)
}

fn interfaces(names: &[String]) -> anyhow::Result<Vec<Interface>> {
    let sys = Path::new("/sys");
    let found: Result<Vec<_>, InterfaceError> = match names {
        [] => Ok(consolidate::capture::taps(sys)),
        names => names.iter().map(|name| consolidate::capture::named(sys, name)).collect(),
    };
    let found = found.map_err(|error| Usage(error.to_string()))?;
    if found.is_empty() {
        return Err(Usage("this host has no taps: name network interfaces".to_owned()).into());
    }
    Ok(found)
}
