//! `vmscope bench list`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use microbench::catalogue::{self, Group};
use microbench::json::{List, VERSION};
use microbench::lines::{Log, NoResults};
use microbench::report;
use testbed::{Accelerator, Bare, Listen, Patience};

use super::image;
use cli::print;
use cli::width;

/// The image starts in a second or two.
const PATIENCE: Patience =
    Patience { whole: Duration::from_secs(60), silence: Duration::from_secs(60) };
/// An unknown name: the image answers with the list of known ones.
const NOTHING: &str = "?";

const EXAMPLE: &str = "Example:
  vmscope bench list --format json";

/// List the operations, conditions and plans of the benchmark image.
///
/// Boots the image in emulation, which prints them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// The image [default: beside this program, or where `make boot` builds it]
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables
    Text,
    /// One object, see docs/bench.md
    Json,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let image = image::find(args.image.as_deref())?;
    let is_group = |name: &String| Group::ALL.iter().any(|group| group.name() == name);
    let names = choices(&image, "ops")?;
    let operations = names.iter().filter(|name| !is_group(name));
    let list = List {
        version: VERSION,
        operations: operations.map(|name| catalogue::find_or_unknown(name)).collect(),
        conditions: choices(&image, "cond")?,
        plans: choices(&image, "plan")?,
    };
    let out = match args.format {
        Format::Json => serde_json::to_string_pretty(&list)? + "\n",
        Format::Text => report::list(&list).text(width()),
    };
    print(&out).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// What could be said for a key of the image's command line.
fn choices(image: &Path, key: &str) -> anyhow::Result<Vec<String>> {
    let machine = Bare {
        image: image.to_owned(),
        command_line: format!("{key}={NOTHING} end=poweroff qr=off"),
        accelerator: Accelerator::Emulation,
        cpus: 1,
        memory_mib: 64,
    };
    let mut log = Log::default();
    testbed::boot_bare(&machine, PATIENCE, &mut |line| {
        log.push(line);
        if log.has_ended() { Listen::Enough } else { Listen::On }
    })?;
    match log.results() {
        Err(NoResults::Refused { choices, .. }) if !choices.is_empty() => Ok(choices),
        Err(other) => bail!("{} does not list its operations: {other}", image.display()),
        Ok(_) => bail!("{} does not list its operations", image.display()),
    }
}
