//! `vmscope replay`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use agent::{Replay, Replayed};
use anyhow::Context;
use clap::Parser;
use recording::window::Template;

use super::agent::token;
use super::query::usage;
use cli::Format;
use cli::print;
use cli::{Usage, stop_on_signals};

const EXAMPLE: &str = "Examples:
  vmscope-server token --role agent --name replay | \\
      vmscope replay day1 --server https://fleet:8443 --token - --fingerprint 3f2a... --hosts 100 --rounds 3
  vmscope replay day1 day2 ... --hosts 200 --seconds 600 --rate 3.3   200 hosts, a window a minute each";

/// Send recordings to a server as windows of many hosts.
///
/// A load test: enrols the hosts, and replaces the host's name, the boot id and the wall-clock time in each window. The
/// hosts stay on the server until they are deleted, the windows until they expire.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    to: To,
    /// Number of windows per host [default: 1 without --seconds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rounds: Option<u64>,
    /// Duration, in seconds
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seconds: Option<u64>,
    /// Maximum rate, in windows per second of all hosts together [default: no limit]
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Number of windows sent at the same time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    connections: u64,
    /// Folder for the hosts' tokens, to continue a killed run with the same hosts and windows; needs --name
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// File that lists acknowledged windows; listed ones are not sent again, new ones are appended
    #[arg(long, value_name = "FILE")]
    acknowledged: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// What is sent, where, as whom.
#[derive(Debug, clap::Args)]
pub(crate) struct To {
    /// Folders of recordings, sent in turn
    #[arg(required = true, value_name = "RECORDING")]
    recordings: Vec<PathBuf>,
    /// Address: https://HOST[:PORT]
    #[arg(long, value_name = "URL")]
    pub(super) server: String,
    /// Token with the role agent, or - to read it from standard input
    #[arg(long, value_name = "TOKEN")]
    token: String,
    /// SHA-256 fingerprint of the server's certificate authority, as the server prints it
    #[arg(long, value_name = "HEX")]
    pub(super) fingerprint: String,
    /// Number of hosts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=9999))]
    pub(super) hosts: u32,
    /// Prefix of the hosts' names, which end in a number [default: replay and a random number]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

impl To {
    /// One window of each host, with a folder of the run's own.
    pub(super) fn replay(&self, folder: PathBuf) -> anyhow::Result<Replay> {
        let packed = tempfile::tempdir().context("failed to create a temporary folder")?;
        let template = |recording: &PathBuf| {
            let template = Template::new(recording, &packed.path().join("window"));
            template.with_context(|| format!("failed to pack {}", recording.display()))
        };
        let templates = self.recordings.iter().map(template).collect::<anyhow::Result<_>>()?;
        let unique = || format!("replay-{:08x}", std::process::id() ^ now_s());
        Ok(Replay {
            server: self.server.clone(),
            token: token(&self.token)?,
            fingerprint: self.fingerprint.clone(),
            name: self.name.clone().unwrap_or_else(unique),
            hosts: self.hosts,
            rounds: Some(1),
            limit: None,
            rate: None,
            connections: 8,
            folder,
            templates,
            acknowledged: None,
        })
    }
}

/// Differs from run to run.
fn now_s() -> u32 {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u32::try_from(now.as_secs() & 0xffff_ffff).unwrap_or_default().rotate_left(16)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.state.is_some() && args.to.name.is_none() {
        return Err(Usage("--state needs --name: give both".to_owned()).into());
    }
    if args.rate.is_some_and(|rate| !(0.001..=1e6).contains(&rate)) {
        return Err(Usage("--rate lies between 0.001 and 1000000".to_owned()).into());
    }
    let own = tempfile::tempdir().context("failed to create a temporary folder")?;
    let folder = args.state.clone().unwrap_or_else(|| own.path().join("state"));
    let replay = Replay {
        rounds: args.rounds.or(args.seconds.is_none().then_some(1)),
        limit: args.seconds.map(Duration::from_secs),
        rate: args.rate,
        connections: usize::try_from(args.connections).unwrap_or(1),
        acknowledged: args.acknowledged.clone(),
        ..args.to.replay(folder)?
    };
    let stop = stop_on_signals()?;
    let replayed = send(&replay, &stop)?;
    let report = agent::report::replay(replay.hosts, &replayed);
    print(&args.format.render(&report)).context("failed to write to standard output")?;
    Ok(if replayed.refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Sends, and says how it goes.
pub(super) fn send(replay: &Replay, stop: &AtomicBool) -> anyhow::Result<Replayed> {
    let is_terminal = std::io::stderr().is_terminal();
    let sent = replay.run(stop, |so_far| {
        let Replayed { accepted, known, put_off, unanswered, took, .. } = so_far;
        if took.is_zero() {
            say!("{} hosts are enrolled", replay.hosts);
        } else if is_terminal {
            say!(
                "{:.0} s: {} windows stored, {known} were there already, {put_off} put off, {unanswered} unanswered",
                took.as_secs_f64(),
                accepted,
            );
        }
    });
    sent.map_err(usage)
}
