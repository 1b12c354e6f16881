//! `vmscope-ask`: questions and their bounded answers, which `vmscope ask` and `vmscope mcp` start.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(test)]
#[path = "../../../tests/help.rs"]
mod help;
mod mcp;
mod opened;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use ask::{Arguments, AskError, Question};
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use cli::{Usage, print, width};

use crate::opened::Opened;

/// Put questions to a recording, a trace or a server.
#[derive(Debug, Parser)]
#[command(name = "vmscope", bin_name = "vmscope", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ask(Box<Ask>),
    Mcp(Mcp),
    /// Write man pages into a folder
    #[command(hide = true)]
    Manuals {
        /// The folder
        dir: PathBuf,
    },
}

const ASK_EXAMPLE: &str = "Examples:
  vmscope ask what-is-wrong day1                which VMs lose CPU time, and to what
  vmscope ask why-slow day1 --vm web --from 12 --to 14.5
  vmscope ask who-took-cpu day1 --vm web --format json
  vmscope ask compare day1 --vm web --from 60 --to 90 --other-from 0 --other-to 60
  vmscope ask job-waits seq                     of a trace
  vmscope ask what-is-wrong                     of the server of `vmscope query login`
  vmscope ask why-slow --host kvm1 --vm web --from 2h";

/// Put a question to a recording, a trace or a server.
///
/// An answer has at most 4,000 tokens, as `vmscope mcp` gives it to an assistant: figures with their units, what is
/// missing from the data, and which question to put next. docs/ask.md has an example of each question.
#[derive(Debug, clap::Args)]
#[command(after_help = ASK_EXAMPLE)]
struct Ask {
    /// The question
    #[arg(value_parser = questions())]
    question: String,
    #[command(flatten)]
    subject: Subject,
    /// Host
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// VM
    #[arg(long, value_name = "NAME")]
    vm: Option<String>,
    /// First instant: a time such as 2026-01-31T12:00:00Z; seconds since a recording began; 2h ago at a server
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// End of the time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// First instant of the other time, for `compare`
    #[arg(long, value_name = "TIME")]
    other_from: Option<String>,
    /// End of the other time, for `compare`
    #[arg(long, value_name = "TIME")]
    other_to: Option<String>,
    /// The change, for `what-changed`
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// A row's id, for `details`
    #[arg(long)]
    id: Option<String>,
    /// Process of a trace, for `job-waits`
    #[arg(long, value_name = "NAME|PID")]
    process: Option<String>,
    /// Show call paths, for `hot-functions`
    #[arg(long)]
    paths: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

const MCP_EXAMPLE: &str = "Examples, as an assistant's configuration has them:
  vmscope mcp day1                    questions about a recording
  vmscope mcp seq                     about a trace
  vmscope mcp                         about the fleet of `vmscope query login`
  vmscope mcp --login /etc/vmscope/reader";

/// Let an assistant put questions, by the Model Context Protocol on standard input and output.
///
/// It reads only. Each tool is a question of `vmscope ask`, with the same answers. docs/ask.md says what assistants get.
#[derive(Debug, clap::Args)]
#[command(after_help = MCP_EXAMPLE)]
struct Mcp {
    #[command(flatten)]
    subject: Subject,
}

/// What questions are about.
#[derive(Debug, clap::Args)]
struct Subject {
    /// Folder of a recording or a trace [default: the server of `vmscope query login`]
    #[arg(value_name = "RECORDING|TRACE")]
    folder: Option<PathBuf>,
    /// Folder with the server's address and token, as `query login` wrote it [default: $XDG_CONFIG_HOME/vmscope/server]
    #[arg(long, value_name = "DIR", conflicts_with = "folder")]
    login: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables
    Text,
    /// The object that assistants get
    Json,
}

/// The questions' names.
fn questions() -> PossibleValuesParser {
    let value = |question: &Question| PossibleValue::new(question.name()).help(question.about());
    Question::ALL.iter().map(value).collect::<Vec<_>>().into()
}

fn main() -> ExitCode {
    cli::run_command(run, cli::exit_code)
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Ask(args) => answer(*args),
        Command::Mcp(args) => {
            mcp::serve(open(&args.subject)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Manuals { dir } => {
            cli::write_subcommand_pages(&Cli::command(), &dir).map(|()| ExitCode::SUCCESS)
        }
    }
}

fn answer(args: Ask) -> anyhow::Result<ExitCode> {
    let question = Question::find(&args.question).map_err(error)?;
    let Ask { host, vm, from, to, other_from, other_to, since, id, process, paths, .. } = args;
    let arguments =
        Arguments { host, vm, from, to, other_from, other_to, since, id, process, paths };
    question.check(&arguments).map_err(error)?;
    let answer = open(&args.subject)?.answer(question, &arguments).map_err(error)?;
    let text = match args.format {
        Format::Text => answer.report().text(width()),
        Format::Json => table::pretty(&answer.json()),
    };
    print(&text).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn open(subject: &Subject) -> anyhow::Result<Opened> {
    match &subject.folder {
        Some(folder) => Opened::folder(folder).map_err(error),
        None => Opened::server(subject.login.as_deref()),
    }
}

fn error(error: AskError) -> anyhow::Error {
    match error {
        AskError::Arguments(text) => Usage(text).into(),
        AskError::Source(text) => anyhow::Error::msg(text),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_help_is_in_the_docs() {
        help::check("vmscope-ask", Cli::command());
    }
}
