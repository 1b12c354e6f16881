//! `vmscope-server`: the fleet's server.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(test)]
#[path = "../../../tests/help.rs"]
mod help;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use chrono::{DateTime, Utc};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use cli::say;
use server::{Config, HostName, Role, Scope, StoredWindow};

/// Receive, store and analyse windows of `vmscope agent`, and answer queries.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLE, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Serve,
}

const EXAMPLE: &str = "Examples:
  vmscope-server --config /etc/vmscope/server.toml          serve
  vmscope-server --check /etc/vmscope/server.toml           check a configuration
  vmscope-server token --role admin --name me               make a token
  vmscope-server analyze kvm1/0123456789abcdef0123456789abcdef/00000000001234567890 --store /srv/vmscope

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.";

#[derive(Debug, Args)]
struct Serve {
    /// Configuration file [default: none, each setting has its default]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check this configuration file and exit: 0 if it is valid, else 2
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    check: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a token and print it
    #[command(
        after_help = "Example:\n  vmscope-server token --role admin --name me --config /etc/vmscope/server.toml"
    )]
    Token {
        /// Role of the token
        #[arg(long, value_enum)]
        role: RoleName,
        /// Name of the token in lists, such as its owner
        #[arg(long)]
        name: String,
        /// Days until the token expires [default: never]
        #[arg(long)]
        days: Option<u32>,
        #[command(flatten)]
        place: Place,
    },
    /// Analyse stored windows that have no results
    #[command(
        after_help = "Example:\n  vmscope-server analyze kvm1/0123456789abcdef0123456789abcdef/00000000001234567890 --store /srv/vmscope"
    )]
    Analyze {
        /// Windows, as HOST/BOOT/START or the names of their objects
        #[arg(required = true)]
        windows: Vec<StoredWindow>,
        #[command(flatten)]
        place: Place,
    },
    /// List the objects of windows without results
    #[command(after_help = "Example:\n  vmscope-server left --store /srv/vmscope")]
    Left {
        #[command(flatten)]
        place: Place,
    },
    /// List the objects that hold a result table's rows, each row once
    #[command(
        after_help = "Example:\n  vmscope-server objects vcpu_time --from 2026-01-31T00:00:00Z --store s3://bucket/fleet"
    )]
    Objects {
        /// Result table, such as vcpu_time
        table: String,
        /// First day (UTC, RFC 3339); the day before is included
        #[arg(long)]
        from: Option<DateTime<Utc>>,
        /// Last day (UTC, RFC 3339)
        #[arg(long)]
        to: Option<DateTime<Utc>>,
        /// Only windows of this host
        #[arg(long)]
        host: Option<HostName>,
        #[command(flatten)]
        place: Place,
    },
    /// Print the OpenAPI description of the HTTP API
    #[command(after_help = "Example:\n  vmscope-server openapi >openapi.json")]
    Openapi,
    /// Write man pages and shell completions into a folder
    #[command(hide = true)]
    Manuals {
        /// The folder
        dir: PathBuf,
    },
}

#[derive(Debug, Args)]
struct Place {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Object store, a folder or s3://BUCKET/PREFIX [default: the configured one]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
}

impl Place {
    fn config(self) -> Result<Config> {
        let config = config(self.config)?;
        Ok(match self.store {
            Some(store) => Config { store, ..config },
            None => config,
        })
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RoleName {
    /// Enrol hosts
    Agent,
    /// Query results, download windows
    Read,
    /// All of these; make and delete tokens, delete hosts
    Admin,
}

/// An error in what the user requested (exit code 2), as opposed to a failure (exit code 1).
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

fn config(file: Option<PathBuf>) -> Result<Config> {
    file.map_or_else(|| Ok(Config::default()), |file| read(&file))
}

fn read(file: &Path) -> Result<Config> {
    Config::read(file).map_err(|error| Usage(format!("{error:#}")).into())
}

fn write_manuals(program: &clap::Command, dir: &Path) -> Result<()> {
    cli::write_pages(program, dir)?;
    cli::write_completions(program, dir)
}

fn main() -> ExitCode {
    if let Some(code) = server::serve_child() {
        return code;
    }
    let cli: Cli = match cli::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    cli::log_to_stderr("vmscope-server");
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = model::error_chain(error.as_ref());
            say!("{}vmscope-server: {}", cli::error_priority(), model::replace_unsafe(&text));
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}

#[expect(clippy::print_stdout, reason = "a subcommand's output")]
fn run(cli: Cli) -> Result<()> {
    match (cli.command, cli.serve.check) {
        (None, Some(file)) => {
            read(&file)?;
            println!("{} is valid", file.display());
            Ok(())
        }
        (None, None) => server::run(config(cli.serve.config)?),
        (Some(Command::Token { role, name, days, place }), _) => {
            let role = match role {
                RoleName::Agent => Role::Agent,
                RoleName::Read => Role::Read,
                RoleName::Admin => Role::Admin,
            };
            println!("{}", server::make_token(&place.config()?, role, &name, days)?);
            Ok(())
        }
        (Some(Command::Analyze { windows, place }), _) => {
            server::analyze(place.config()?, &windows, &mut |line| println!("{line}"))
        }
        (Some(Command::Left { place }), _) => {
            server::left(place.config()?)?.iter().for_each(|name| println!("{name}"));
            Ok(())
        }
        (Some(Command::Objects { table, from, to, host, place }), _) => {
            let scope = Scope { from, to, host: host.map(|host| host.to_string()) };
            let (names, lacks) = server::objects(place.config()?, &table, &scope)?;
            names.iter().for_each(|name| println!("{name}"));
            lacks.iter().for_each(|reason| say!("vmscope-server: {reason}"));
            Ok(())
        }
        (Some(Command::Manuals { dir }), _) => write_manuals(&Cli::command(), &dir),
        (Some(Command::Openapi), _) => {
            println!("{}", server::description());
            Ok(())
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_help_is_in_the_docs() {
        help::check("vmscope-server", Cli::command());
    }
}
