//! `vmscope capacity`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agent::report::Capacity;
use agent::{Replay, Replayed, User};
use anyhow::{Context, bail};
use clap::Parser;

use super::query::user;
use super::replay::{To, send};
use cli::Format;
use cli::print;
use cli::stop_on_signals;

const EXAMPLE: &str = "Examples:
  vmscope query login --server https://fleet:8443 --token - --fingerprint 3f2a...
  vmscope capacity day1 --server https://fleet:8443 --token - --fingerprint 3f2a... --hosts 20";

/// Windows that are sent one at a time, for t0 and t2.
const ONE_AT_A_TIME: u32 = 5;
/// The server analyses nothing for so long: something is wrong.
const PATIENCE: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Measure how many hosts a server can serve.
///
/// Sends some windows one at a time, then a window of each host as fast as possible, and waits until all are analysed:
/// t0 is the time to transfer a window, t1 its length, t2 the time to analyse it. Needs a login with the role read
/// (vmscope query login), and an idle server. The windows stay on the server until they expire.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    to: To,
    /// Folder with the server's address and token, as `query login` wrote it [default: $XDG_CONFIG_HOME/vmscope/server]
    #[arg(long, value_name = "DIR")]
    login: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let reader = user(args.login.as_ref())?;
    if reader.url().trim_end_matches('/') != args.to.server.trim_end_matches('/') {
        bail!("the login is for {}: log in to {} first", reader.url(), args.to.server);
    }
    let before = Analyses::from_user(&reader)?;
    if before.left != 0.0 {
        bail!("the server has {} windows to analyse: try again later", before.left);
    }
    let own = tempfile::tempdir().context("failed to create a temporary folder")?;
    let all = args.to.replay(own.path().to_owned())?;
    let alone = Replay {
        name: format!("{}-alone", all.name),
        hosts: args.to.hosts.min(ONE_AT_A_TIME),
        connections: 1,
        token: all.token.clone(),
        server: all.server.clone(),
        fingerprint: all.fingerprint.clone(),
        folder: all.folder.clone(),
        templates: all.templates.clone(),
        acknowledged: None,
        ..all
    };
    let stop = stop_on_signals()?;
    let transfers = send_all(&alone, &stop)?;
    let calm = wait_for(&reader, &before, alone.hosts.into(), &stop)?;
    let mut began = Instant::now();
    // Enrolling is not part of it.
    let sent = {
        let sent = send_all(&all, &stop)?;
        began = began.max(Instant::now().checked_sub(sent.took).unwrap_or(began));
        sent
    };
    wait_for(&reader, &calm, sent.accepted as f64, &stop)?;
    let took = began.elapsed();
    let lengths = (0..all.hosts).map(|host| all.length_ns(host as usize, 0));
    let t1_ns = lengths.sum::<u64>() / u64::from(all.hosts.max(1));
    let report = agent::report::capacity(&Capacity {
        t0_ns: Some(ns(transfers.transfer(0.5))),
        t1_ns,
        t2_ns: ns(Duration::from_secs_f64(calm.mean_since(&before))),
        all: Some((sent.accepted, ns(took))),
        windows: u64::from(alone.hosts) + sent.accepted,
    });
    print(&args.format.render(&report)).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// All windows are to be taken: those that are refused are not analysed.
fn send_all(replay: &Replay, stop: &AtomicBool) -> anyhow::Result<Replayed> {
    let sent = send(replay, stop)?;
    if let Some((reason, n)) = sent.reasons.first_key_value() {
        bail!("the server refused {n} windows: {reason}");
    }
    Ok(sent)
}

/// Waits until so many more windows are analysed.
fn wait_for(
    reader: &User,
    before: &Analyses,
    windows: f64,
    stop: &AtomicBool,
) -> anyhow::Result<Analyses> {
    let (mut changed, mut done) = (Instant::now(), before.done);
    loop {
        let now = Analyses::from_user(reader)?;
        if before.failed < now.failed {
            bail!("the server failed to analyse {} windows", now.failed - before.failed);
        }
        if before.done + windows <= now.done {
            return Ok(now);
        }
        if done < now.done {
            (changed, done) = (Instant::now(), now.done);
        }
        if PATIENCE < changed.elapsed() || stop.load(Ordering::Relaxed) {
            bail!("the server analysed only {} of {windows} windows", now.done - before.done);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What the server's /metrics say of analyses.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Analyses {
    done: f64,
    failed: f64,
    left: f64,
    seconds: f64,
}

impl Analyses {
    fn from_user(reader: &User) -> anyhow::Result<Self> {
        let text = reader.get("/metrics", &[])?;
        Self::parse(&text).context("the server's /metrics lack vmscope_server_analysis_seconds")
    }

    fn parse(text: &str) -> Option<Self> {
        let value = |name: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            value.trim().parse().ok().filter(|value: &f64| value.is_finite())
        };
        Some(Self {
            done: value("vmscope_server_analysis_seconds_count")?,
            failed: value("vmscope_server_analyses_failed_total")?,
            left: value("vmscope_server_analyses_left")?,
            seconds: value("vmscope_server_analysis_seconds_sum")?,
        })
    }

    /// Seconds of an analysis since then.
    fn mean_since(&self, before: &Self) -> f64 {
        let done = self.done - before.done;
        if 0.0 < done { ((self.seconds - before.seconds) / done).max(0.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn analyses_are_read_from_the_metrics() {
        let text = "# TYPE vmscope_server_analysis_seconds histogram\n\
                    vmscope_server_analysis_seconds_sum 3.5\n\
                    vmscope_server_analysis_seconds_count 7\n\
                    vmscope_server_analyses_failed_total 1\n\
                    vmscope_server_analyses_left 2\n";
        let found = Analyses::parse(text).unwrap();
        assert_eq!(found, Analyses { done: 7.0, failed: 1.0, left: 2.0, seconds: 3.5 });
        let before = Analyses { done: 0.0, failed: 0.0, left: 0.0, seconds: 0.0 };
        assert!((found.mean_since(&before) - 0.5).abs() < 1e-9);
        assert!(before.mean_since(&before).abs() < 1e-9);
        assert_eq!(Analyses::parse("vmscope_server_analyses_left NaN\n"), None);
    }
}
