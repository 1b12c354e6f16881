//! `vmscope agent`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agent::{Config, EnrollError, Enrollment, RunError, Windows};
use anyhow::Context;
use clap::{Parser, Subcommand};

use super::record::check_pid_namespace;
use cli::Usage;

const HELP: &str = "Keys of the configuration file (TOML; each may be left out):
  server            server that receives the windows: \"https://HOST[:PORT]\" [none]
  state             folder of the agent's files [\"/var/lib/vmscope\"]
  window_s          length of a window, seconds: 10 to 600 [60]
  period_us         time between samples of a CPU, microseconds: 100 to 100000 [1000]
  offcpu_source     source of the times at which vCPUs lost their CPU [\"samples\"], or \"switches\"
  exits             count VM exits [false]
  call_graph        record call stacks of host and guests [false]
  guest_timeout_s   time limit of a guest's answer, seconds: 1 to 600 [10]
  spool_bytes       limit of unsent windows, bytes; the oldest are removed first [4294967296]
  pending_windows   limit of unfinished windows: 1 to 100 [3]
  max_cpu_percent   limit of the agent's CPU time, % of one CPU; beyond it, the period doubles [1.0]
  metrics           loopback address of /metrics: \"127.0.0.1:9188\" [none]

Signals: SIGHUP reloads the configuration; SIGTERM finishes the current window and exits.

Examples:
  vmscope agent enroll --server https://fleet:8443 --token T --fingerprint 3f2a...
  vmscope agent --check /etc/vmscope/agent.toml
  vmscope agent";

const ENROLL_EXAMPLE: &str = "Example:
  vmscope agent enroll --server https://fleet:8443 --token T --fingerprint 3f2a...";

/// Record continuously, and send the recordings to a server.
///
/// Samples the host and its guests in windows without gaps between them. Each window is a recording, which is kept in a
/// spool on disk and sent to a server. Needs root.
#[derive(Debug, Parser)]
#[command(after_help = HELP, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Configuration file
    #[arg(short, long, value_name = "FILE", default_value = "/etc/vmscope/agent.toml")]
    config: PathBuf,
    /// Check this configuration file and exit: 0 if it is valid, else 2
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Allow windows from 1 s on, for tests
    #[arg(long, hide = true)]
    short_windows: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Enroll(EnrollArgs),
}

/// Enrol this host in a server's fleet; needed once.
///
/// Fetches the server's certificate authority, checks its fingerprint, and exchanges the enrolment token for this
/// host's own token. The state folder keeps both.
#[derive(Debug, clap::Args)]
#[command(after_help = ENROLL_EXAMPLE)]
struct EnrollArgs {
    /// Address: https://HOST[:PORT]
    #[arg(long, value_name = "URL")]
    server: String,
    /// Enrolment token, or - to read it from standard input
    #[arg(long, value_name = "TOKEN")]
    token: String,
    /// SHA-256 fingerprint of the server's certificate authority, as the server prints it
    #[arg(long, value_name = "HEX")]
    fingerprint: String,
    /// This host's name in the fleet [default: the machine's name]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// The agent's state folder, as in its configuration
    #[arg(long, value_name = "DIR", default_value = "/var/lib/vmscope")]
    state: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let windows = if args.short_windows { Windows::Short } else { Windows::Usual };
    match (&args.command, &args.check) {
        (Some(Command::Enroll(args)), _) => enroll(args),
        (None, Some(file)) => check(file, windows),
        (None, None) => {
            check_pid_namespace()?;
            cli::log_to_stderr("vmscope agent");
            match agent::run(&args.config, windows, env!("CARGO_PKG_VERSION")) {
                Ok(()) => Ok(ExitCode::SUCCESS),
                Err(RunError::Config(error)) => Err(cli::usage(error)),
                Err(error) => Err(error.into()),
            }
        }
    }
}

fn check(file: &Path, windows: Windows) -> anyhow::Result<ExitCode> {
    Config::read(file, windows).map_err(cli::usage)?;
    say!("{} is valid", file.display());
    Ok(ExitCode::SUCCESS)
}

fn enroll(args: &EnrollArgs) -> anyhow::Result<ExitCode> {
    let host = match &args.host {
        Some(host) => host.clone(),
        None => host::machine::hostname(Path::new("/proc")),
    };
    let enrollment = Enrollment {
        server: args.server.clone(),
        token: token(&args.token)?,
        fingerprint: args.fingerprint.clone(),
        host,
        state: args.state.clone(),
    };
    match agent::enroll(&enrollment) {
        Ok(()) => {
            say!(
                "{} is enrolled; next: server = \"{}\" in the agent's configuration",
                enrollment.host,
                args.server
            );
            Ok(ExitCode::SUCCESS)
        }
        Err(error @ (EnrollError::Server(_) | EnrollError::Host(_) | EnrollError::Fingerprint)) => {
            Err(Usage(error.to_string()).into())
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) fn token(argument: &str) -> anyhow::Result<String> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().take(4096).read_to_string(&mut text).context("failed to read the token")?;
    Ok(text.trim().to_owned())
}
