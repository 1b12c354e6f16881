//! `vmscope lab load`.

use std::io::{Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use consolidate::{LoadJob, Pace};
use lab::{Arrivals, Choose};

use cli::Format;
use cli::Usage;
use cli::duration_in_seconds;
use cli::print;
use cli::stop_on_signals;

const EXAMPLE: &str = "Examples:
  vmscope lab load http://10.0.0.5/page --rate 50
  vmscope lab load http://10.0.0.5/ http://10.0.0.6/ --rate 200 --duration 60 --format json
  vmscope lab load http://10.0.0.5/ --clients 8 --think 500ms";

/// Bytes of a job at most.
const MAX_JOB_BYTES: u64 = 1 << 20;

/// Send HTTP requests at a rate (open loop), and measure turnarounds.
///
/// A turnaround begins when its request is due, so that a stalled server shows in all requests that wait for it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Target URLs: http://HOST[:PORT][/PATH], all with the same path
    #[arg(value_name = "URL", required_unless_present = "job")]
    urls: Vec<String>,
    /// Requests per second to all targets together, at random times
    #[arg(long, value_name = "N", default_value_t = 10.0, conflicts_with = "clients")]
    rate: f64,
    /// Send requests at constant intervals
    #[arg(long, conflicts_with = "clients")]
    constant: bool,
    /// Number of closed-loop clients (instead of --rate)
    #[arg(long, value_name = "N")]
    clients: Option<u32>,
    /// Mean think time of a client
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = duration_in_seconds, requires = "clients")]
    think: Duration,
    /// Round robin instead of random targets
    #[arg(long)]
    round_robin: bool,
    /// Time before requests are counted
    #[arg(long, value_name = "TIME", default_value = "2", value_parser = duration_in_seconds)]
    warm_up: Duration,
    /// Time in which requests are counted
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = duration_in_seconds)]
    duration: Duration,
    /// Time after which a request has failed
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = duration_in_seconds)]
    timeout: Duration,
    /// Maximum number of connections per target; further requests wait
    #[arg(long, value_name = "N", default_value_t = 16)]
    connections: usize,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Take a job from standard input, and say on standard output how it goes on
    #[arg(long, hide = true)]
    job: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.job {
        return serve();
    }
    let job = args.job()?;
    let seconds = (args.warm_up + args.duration).as_secs_f64();
    say!("sending requests for {seconds} s");
    let stop = stop_on_signals()?;
    let load =
        consolidate::generate_until(&job, &stop, |_| ()).context("failed to send requests")?;
    let is_interrupted = load.length_ns < job.measure_ns;
    if is_interrupted {
        say!("interrupted after {:.1} s that count", load.length_ns as f64 / 1e9);
    }
    let report = lab::report::load(&load);
    print(&args.format.render(&report)).context("failed to write to standard output")?;
    let turnarounds = &load.turnarounds;
    if !turnarounds.is_empty() && turnarounds.n_answered() == 0 {
        let reasons = turnarounds.failed().iter().map(|(why, n)| format!("{n} {why}"));
        anyhow::bail!("no request was answered: {}", reasons.collect::<Vec<_>>().join(", "));
    }
    Ok(if is_interrupted { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn serve() -> anyhow::Result<ExitCode> {
    let mut job = String::new();
    let input = std::io::stdin().take(MAX_JOB_BYTES);
    { input }.read_to_string(&mut job).context("failed to read a job from standard input")?;
    consolidate::serve(&job, |line| {
        let mut out = std::io::stdout();
        // The reader has ended if it can't be written, and with it this process.
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    })?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn job(&self) -> anyhow::Result<LoadJob> {
        let mut targets = Vec::new();
        let mut paths = Vec::new();
        for url in &self.urls {
            let (address, path) = parse(url)?;
            targets.push(address);
            paths.push(path);
        }
        if paths.iter().any(|path| *path != paths[0]) {
            return Err(Usage("all URLs must have the same path".to_owned()).into());
        }
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let arrivals = if self.constant { Arrivals::Constant } else { Arrivals::Poisson };
        let pace = match self.clients {
            Some(clients) => Pace::Closed { clients, think_ns: ns(self.think) },
            None => Pace::Open { rate: self.rate, arrivals },
        };
        let job = LoadJob {
            targets,
            path: paths.swap_remove(0),
            pace,
            choose: if self.round_robin { Choose::RoundRobin } else { Choose::Random },
            warm_up_ns: ns(self.warm_up),
            measure_ns: ns(self.duration),
            timeout_ns: ns(self.timeout),
            connections: self.connections,
            seed: self.seed,
        };
        Ok(job.check().map_err(Usage)?)
    }
}

/// `http://10.0.0.5:8080/page` as an address and a path.
fn parse(url: &str) -> anyhow::Result<(SocketAddr, String)> {
    let wrong = || Usage(format!("`{url}` is not a URL: write http://10.0.0.5:8080/page"));
    let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
    let (host, path) = rest.find(['/', '?']).map_or((rest, "/"), |at| rest.split_at(at));
    let path = if path.starts_with('?') { format!("/{path}") } else { path.to_owned() };
    // An address of version 6 has colons, in brackets.
    let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
    let host = if has_port { host.to_owned() } else { format!("{host}:80") };
    let mut addresses = host.to_socket_addrs().with_context(|| format!("failed to find {host}"))?;
    Ok((addresses.next().ok_or_else(wrong)?, path))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn urls() {
        let check = |url: &str, expected: Option<(&str, &str)>| {
            let found = parse(url).ok().map(|(address, path)| (address.to_string(), path));
            assert_eq!(found, expected.map(|(a, p)| (a.to_owned(), p.to_owned())), "{url}");
        };
        check("http://127.0.0.1:8080/page?n=1", Some(("127.0.0.1:8080", "/page?n=1")));
        check("http://127.0.0.1", Some(("127.0.0.1:80", "/")));
        check("http://127.0.0.1?n=1", Some(("127.0.0.1:80", "/?n=1")));
        check("http://[::1]/page", Some(("[::1]:80", "/page")));
        check("http://[::1]:8080", Some(("[::1]:8080", "/")));
        check("https://127.0.0.1/", None);
        check("127.0.0.1/", None);
    }
}
