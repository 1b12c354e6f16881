//! `vmscope query`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use agent::report::{QueryAnswer, findings_listing, query_answer};
use agent::{EnrollError, User};
use anyhow::Context;
use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use table::Report;

use super::agent::token;
use cli::Format;
use cli::Usage;
use cli::duration_in_seconds;
use cli::print;

const EXAMPLE: &str = "Examples:
  vmscope query login --server https://fleet:8443 --token - --fingerprint 3f2a...
  vmscope query list                                   the ready-made queries
  vmscope query run hosts-by-steal                     over the last hour
  vmscope query run thieves --host kvm1 --vm db --from 2026-01-31T12:00:00Z --to 2026-01-31T13:00:00Z
  vmscope query sql \"SELECT vm, sum(ns) FROM vcpu_time WHERE state = 'halt' GROUP BY vm\"
  vmscope query findings --vm db                       open findings of a VM, with their causes
  vmscope query acknowledge 0123456789abcdef --note \"moving db\"
  vmscope query silence --vm db --kind steal-outside --for 2h
  vmscope query windows --host kvm1
  vmscope query download kvm1/0123456789abcdef0123456789abcdef/00000000001234567890 -o there
  vmscope report there";

/// Query a server about its hosts and their guests.
///
/// docs/fleet.md describes the server, docs/formats.md the columns of its tables.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    /// Folder for the server's address and the token [default: $XDG_CONFIG_HOME/vmscope/server]
    #[arg(long, global = true, value_name = "DIR")]
    login: Option<PathBuf>,
    /// Output format
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Log in to a server: check its fingerprint, keep its address and the token
    #[command(
        after_help = "Example:\n  vmscope query login --server https://fleet:8443 --token T --fingerprint 3f2a..."
    )]
    Login {
        /// Address: https://HOST[:PORT]
        #[arg(long, value_name = "URL")]
        server: String,
        /// Token with the role read or admin, or - to read it from standard input
        #[arg(long, value_name = "TOKEN")]
        token: String,
        /// SHA-256 fingerprint of the server's certificate authority, as the server prints it
        #[arg(long, value_name = "HEX")]
        fingerprint: String,
    },
    /// List the ready-made queries
    #[command(after_help = "Example:\n  vmscope query list")]
    List,
    /// Run a ready-made query
    #[command(
        after_help = "Example:\n  vmscope query run thieves --host kvm1 --vm db --from 2026-01-31T12:00:00Z --to 2026-01-31T13:00:00Z"
    )]
    Run {
        /// Query's name, from `vmscope query list`
        name: String,
        #[command(flatten)]
        parameters: Parameters,
    },
    /// Run one SELECT on the result tables
    ///
    /// --from, --to and --host select the windows to read: those of these days, UTC, and of the day before. They filter
    /// no rows: the SELECT does (slice >= '2026-01-31T12:00:00Z').
    #[command(
        after_help = "Example:\n  vmscope query sql \"SELECT vm, sum(ns) FROM vcpu_time WHERE state = 'halt' GROUP BY vm\""
    )]
    Sql {
        /// The SELECT
        sql: String,
        /// Read only windows of this host
        #[arg(long, value_name = "NAME")]
        host: Option<String>,
        /// Read only windows from this day on, such as 2026-01-31T12:00:00Z, or 3h ago
        #[arg(long, value_name = "TIME", value_parser = instant)]
        from: Option<String>,
        /// Read only windows up to this day
        #[arg(long, value_name = "TIME", value_parser = instant)]
        to: Option<String>,
    },
    /// List open findings with cause and advice
    #[command(after_help = "Example:\n  vmscope query findings --vm db")]
    Findings {
        /// Only findings of this host
        #[arg(long, value_name = "NAME")]
        host: Option<String>,
        /// Only findings of this VM
        #[arg(long, value_name = "NAME")]
        vm: Option<String>,
        /// Include findings that are over
        #[arg(long)]
        all: bool,
    },
    /// Acknowledge a finding; needs a token with the role admin
    #[command(
        after_help = "Example:\n  vmscope query acknowledge 0123456789abcdef --note \"moving db\""
    )]
    Acknowledge {
        /// Finding's id, from `vmscope query findings`
        finding: String,
        /// Note for others
        #[arg(long, value_name = "TEXT", default_value = "")]
        note: String,
        /// Withdraw the acknowledgement
        #[arg(long, conflicts_with = "note")]
        undo: bool,
    },
    /// Send messages again that a webhook refused; needs a token with the role admin
    #[command(after_help = "Example:\n  vmscope query resend 0123456789abcdef")]
    Resend {
        /// Finding's id, from `vmscope query findings`
        finding: String,
    },
    /// Silence notifications; needs a token with the role admin
    #[command(
        after_help = "Example:\n  vmscope query silence --vm db --kind steal-outside --for 2h"
    )]
    Silence {
        /// Only this finding
        #[arg(long, value_name = "ID")]
        finding: Option<String>,
        /// Only findings of this host
        #[arg(long, value_name = "NAME")]
        host: Option<String>,
        /// Only findings of this VM
        #[arg(long, value_name = "NAME")]
        vm: Option<String>,
        /// Only findings of this kind, such as steal-outside
        #[arg(long)]
        kind: Option<String>,
        /// Duration, such as 30m or 12h
        #[arg(long = "for", value_name = "TIME", value_parser = duration_in_seconds)]
        time: Duration,
        /// Note for others
        #[arg(long, value_name = "TEXT", default_value = "")]
        note: String,
    },
    /// List silences
    #[command(after_help = "Example:\n  vmscope query silences")]
    Silences,
    /// End a silence; needs a token with the role admin
    #[command(after_help = "Example:\n  vmscope query unsilence 0123456789abcdef")]
    Unsilence {
        /// Silence's id, from `vmscope query silences`
        silence: String,
    },
    /// List stored windows
    #[command(after_help = "Example:\n  vmscope query windows --host kvm1 --from 2026-01-31")]
    Windows {
        /// Only windows of this host
        #[arg(long, value_name = "NAME")]
        host: Option<String>,
        /// First day, UTC: YYYY-MM-DD
        #[arg(long, value_name = "DAY")]
        from: Option<String>,
        /// Last day, UTC: YYYY-MM-DD
        #[arg(long, value_name = "DAY")]
        to: Option<String>,
    },
    /// Download a window as a recording
    #[command(
        after_help = "Examples:\n  vmscope query download kvm1/0123456789abcdef0123456789abcdef/00000000001234567890 -o there\n  vmscope report there"
    )]
    Download {
        /// HOST/BOOT/START, from `vmscope query windows`
        window: String,
        /// The recording's folder, which must not exist yet
        #[arg(short, long, value_name = "DIR")]
        output: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct Parameters {
    /// Host [default: all hosts]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// VM [default: all VMs]
    #[arg(long, value_name = "NAME")]
    vm: Option<String>,
    /// Function, for `function-over-time`
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// Start, such as 2026-01-31T12:00:00Z, or 3h for 3 hours ago [default: an hour before --to]
    #[arg(long, value_name = "TIME", value_parser = instant)]
    from: Option<String>,
    /// End [default: now]
    #[arg(long, value_name = "TIME", value_parser = instant)]
    to: Option<String>,
    /// Other side of `compare` [default: the same host]
    #[arg(long, value_name = "NAME")]
    other_host: Option<String>,
    /// Other side of `compare` [default: the same VM]
    #[arg(long, value_name = "NAME")]
    other_vm: Option<String>,
    /// Other side of `compare` [default: the same time]
    #[arg(long, value_name = "TIME", value_parser = instant)]
    other_from: Option<String>,
    /// Other side of `compare` [default: the same time]
    #[arg(long, value_name = "TIME", value_parser = instant)]
    other_to: Option<String>,
}

/// A time as servers take it. A length, such as `3h`, is so long ago.
fn instant(text: &str) -> Result<String, String> {
    if text.contains(['-', ':']) {
        return Ok(text.to_owned());
    }
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Ok(table::utc(now.saturating_sub(duration_in_seconds(text)?).as_secs()))
}

impl Parameters {
    fn pairs(&self) -> Vec<(&'static str, &str)> {
        given([
            ("host", &self.host),
            ("vm", &self.vm),
            ("function", &self.function),
            ("from", &self.from),
            ("to", &self.to),
            ("other_host", &self.other_host),
            ("other_vm", &self.other_vm),
            ("other_from", &self.other_from),
            ("other_to", &self.other_to),
        ])
    }
}

/// Those that have a value.
fn given<'a, const N: usize>(
    parameters: [(&'static str, &'a Option<String>); N],
) -> Vec<(&'static str, &'a str)> {
    parameters.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))).collect()
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let user = || user(args.login.as_ref());
    let requested =
        |path: &str, parameters: &[(&str, &str)]| user()?.get(path, parameters).map_err(usage);
    let report = match &args.command {
        Command::Login { server, token: text, fingerprint } => {
            let folder = folder(args.login.as_ref())?;
            agent::login(server, fingerprint, &token(text)?, &folder).map_err(usage)?;
            say!("logged in to {server}; next: vmscope query list");
            return Ok(ExitCode::SUCCESS);
        }
        Command::Download { window, output } => {
            let window = window.parse().map_err(|error| Usage(format!("{error}")))?;
            user()?.download(&window, output).map_err(usage)?;
            say!("next: vmscope report {}", output.display());
            return Ok(ExitCode::SUCCESS);
        }
        Command::List => {
            rows(&requested("/v1/tables", &[])?, None, &["name", "parameters", "purpose"])?
        }
        Command::Findings { host, vm, all } => {
            let state = (!all).then(|| "open".to_owned());
            let of = given([("host", host), ("vm", vm), ("state", &state)]);
            findings_listing(parsed(&requested("/v1/findings", &of)?)?)
        }
        Command::Acknowledge { finding, undo, .. } if *undo => {
            user()?.delete(&format!("/v1/findings/{}/acknowledge", id(finding)?)).map_err(usage)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Acknowledge { finding, note, .. } => {
            let path = format!("/v1/findings/{}/acknowledge", id(finding)?);
            let entry = user()?.post(&path, &json!({ "note": note }).to_string()).map_err(usage)?;
            rows(&format!("[{entry}]"), None, &["by", "unix_s", "note"])?
        }
        Command::Resend { finding } => {
            let path = format!("/v1/findings/{}/resend", id(finding)?);
            let entry = user()?.post(&path, "{}").map_err(usage)?;
            rows(&format!("[{entry}]"), None, &["messages"])?
        }
        Command::Silence { finding, host, vm, kind, time, note } => {
            let minutes = time.as_secs().div_ceil(60);
            let requested = json!({
                "finding": finding, "host": host, "vm": vm, "kind": kind,
                "minutes": minutes, "note": note,
            });
            let entry = user()?.post("/v1/silences", &requested.to_string()).map_err(usage)?;
            rows(&format!("[{entry}]"), None, &SILENCE)?
        }
        Command::Silences => rows(&requested("/v1/silences", &[])?, None, &SILENCE)?,
        Command::Unsilence { silence } => {
            user()?.delete(&format!("/v1/silences/{}", id(silence)?)).map_err(usage)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Windows { host, from, to } => {
            let of = given([("host", host), ("from", from), ("to", to)]);
            rows(&requested("/v1/windows", &of)?, Some("windows"), &["day", "bytes", "window"])?
        }
        Command::Run { name, parameters } => {
            if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
                return Err(Usage(format!("{name}: no such query: see vmscope query list")).into());
            }
            answer(&requested(&format!("/v1/tables/{name}"), &parameters.pairs())?)?
        }
        Command::Sql { sql, host, from, to } => {
            let question = json!({ "sql": sql, "host": host, "from": from, "to": to });
            answer(&user()?.post("/v1/sql", &question.to_string()).map_err(usage)?)?
        }
    };
    if args.format == Format::Csv {
        // CSV has no place for what makes an answer partial.
        report.notes.iter().for_each(|note| say!("vmscope: {}", table::clean(note)));
    }
    print(&args.format.render(&report)).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// What is shown of a silence.
const SILENCE: [&str; 8] = ["id", "finding", "host", "vm", "kind", "until_unix_s", "by", "note"];

/// A finding's or a silence's id, as a part of a path.
fn id(text: &str) -> Result<&str, Usage> {
    let is_id = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_id { Ok(text) } else { Err(Usage(format!("{text}: an id has 16 hexadecimal digits"))) }
}

/// The user of the login that `vmscope query login` keeps.
pub(super) fn user(login: Option<&PathBuf>) -> anyhow::Result<User> {
    let folder = folder(login)?;
    User::open(&folder)?.with_context(|| {
        format!("no login is kept in {}: use `vmscope query login` first", folder.display())
    })
}

fn folder(login: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
    agent::login_folder(login.map(PathBuf::as_path))
        .context("neither XDG_CONFIG_HOME nor HOME is set: give --login")
}

/// What was queried can't be answered: an error of the user, as are options.
pub(super) fn usage(error: EnrollError) -> anyhow::Error {
    match error {
        EnrollError::Server(_)
        | EnrollError::Host(_)
        | EnrollError::Fingerprint
        | EnrollError::Refused { status: 400 | 404, .. } => Usage(error.to_string()).into(),
        error => error.into(),
    }
}

/// A table whose columns the server says.
fn answer(text: &str) -> anyhow::Result<Report> {
    let json = parsed(text)?;
    let names = json["columns"].as_array().into_iter().flatten();
    let columns: Vec<String> =
        names.map(|column| column["name"].as_str().unwrap_or_default().to_owned()).collect();
    let rows: Vec<Vec<Value>> =
        serde_json::from_value(json["rows"].clone()).context("the server's answer has no rows")?;
    let windows = Some(json["windows"].as_u64().unwrap_or(0));
    let partial = partial(&json);
    Ok(query_answer(&QueryAnswer { columns: &columns, rows: &rows, partial: &partial, windows }))
}

/// A list of objects, under `member` or the whole answer.
fn rows(text: &str, member: Option<&str>, columns: &[&str]) -> anyhow::Result<Report> {
    let json = parsed(text)?;
    let list = member.map_or(&json, |member| &json[member]);
    let list = list.as_array().context("the server's answer is not a list")?;
    let cell = |row: &Value, column: &str| match &row[column] {
        Value::Array(words) => {
            words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ").into()
        }
        value => value.clone(),
    };
    let rows: Vec<Vec<Value>> =
        list.iter().map(|row| columns.iter().map(|column| cell(row, column)).collect()).collect();
    let columns: Vec<String> = columns.iter().map(|&column| column.to_owned()).collect();
    let partial = partial(&json);
    let answer = QueryAnswer { columns: &columns, rows: &rows, partial: &partial, windows: None };
    Ok(query_answer(&answer))
}

fn parsed(text: &str) -> anyhow::Result<Value> {
    serde_json::from_str(text).context("the server's answer is not JSON")
}

/// Why an answer is not all: a text, or a list of them.
fn partial(json: &Value) -> Vec<String> {
    match &json["partial"] {
        Value::String(reason) => vec![reason.clone()],
        Value::Array(reasons) => {
            reasons.iter().filter_map(|reason| Some(reason.as_str()?.to_owned())).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn times_are_instants_or_lengths() {
        let same = "2026-01-31T12:00:00Z";
        assert_eq!(instant(same), Ok(same.to_owned()));
        let (now, before) = (instant("0").unwrap(), instant("2h").unwrap());
        assert!(before < now && now.ends_with('Z'), "{before} {now}");
        assert!(instant("yesterday").is_err());
    }
}
