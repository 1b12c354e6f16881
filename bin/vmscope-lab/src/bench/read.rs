//! `vmscope bench read`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use microbench::{Results, json, lines, qr, report};

use super::{counted, file};
use cli::Usage;
use cli::print;
use cli::width;

const EXAMPLE: &str = "Examples:
  vmscope bench read serial.log -o real.json     the log of a serial port
  vmscope bench read codes.txt -o real.json      the texts of photographed QR codes, a line each
  vmscope bench read real.json                   print a result file";

/// Convert a serial log or the texts of QR codes into a result file, or print a result file.
///
/// Damaged and missing lines are reported; firmware output between them is ignored. QR codes may come in any order,
/// and more than once.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// A serial log, the texts of QR codes, or a result file
    file: PathBuf,
    /// Result file to write [default: none, print the results]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let bytes = file::read_bytes(&args.file)?;
    let shown = || format!("failed to read {}", args.file.display());
    let (results, source) = understand(&bytes).with_context(shown)?;
    match (&args.output, source) {
        (Some(_), Source::Results) => {
            let text = format!("{} is a result file already: leave out -o", args.file.display());
            return Err(Usage(text).into());
        }
        (Some(output), Source::Machine(source)) => {
            file::write(output, &results, source)?;
            say!(part: "{}", said(&results));
            say!("wrote {}", output.display());
        }
        (None, _) => print(&(said(&results) + "\n" + &report::results(&results).text(width())))
            .context("failed to write to standard output")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Where results are from.
enum Source {
    /// Said by a machine: on this way.
    Machine(&'static str),
    /// Read before now.
    Results,
}

fn understand(bytes: &[u8]) -> anyhow::Result<(Results, Source)> {
    if json::is_result_file(bytes) {
        return Ok((json::parse_result_file(bytes)?, Source::Results));
    }
    if qr::is_in(bytes) {
        return Ok((qr::parse(bytes)?, Source::Machine("qr")));
    }
    Ok((lines::parse(bytes)?, Source::Machine("serial")))
}

/// What the results are, and what the reader should know of them.
pub(super) fn said(results: &Results) -> String {
    let machine = &results.machine;
    let unknown =
        |text: &str| if text.is_empty() { "(unknown)".to_owned() } else { text.to_owned() };
    let mut text = format!("{}", table::clean(&unknown(&machine.brand)));
    if let Some(hypervisor) = &machine.hypervisor {
        text += &format!(", under {}", table::clean(hypervisor));
    }
    if let Some(hz) = machine.tsc.hz {
        text += &format!(", TSC {:.3} MHz", hz / 1e6);
    }
    text += &format!("; plan {}: ", table::clean(&unknown(&machine.plan)));
    let counts = results.count();
    let each = counts.iter().map(|(status, n)| format!("{n} {status}"));
    text += &format!(
        "{} ({})\n",
        counted(results.measurements.len(), "result"),
        each.collect::<Vec<_>>().join(", ")
    );
    for note in results.notes.all() {
        text += &format!("note: {}\n", table::clean(&note));
    }
    text
}
