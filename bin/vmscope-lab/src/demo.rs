//! `vmscope demo`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context;

use cli::Usage;
use cli::duration_in_seconds;

const SCENARIO: &str = include_str!("../../../scenarios/demo.toml");
const RECORDING: &str = "recording";

const EXAMPLE: &str = "Examples:
  vmscope demo -o demo                 record, report, write demo/flamegraph.html
  vmscope report demo/recording --view guest --vm db
                                       more about what was recorded";

/// Try vmscope on a virtual KVM host, on any machine.
///
/// Boots the virtual host and three guests, records them for 20 s, prints the report and writes a flame graph. The
/// first run downloads a kernel.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// Folder for the recording and the flame graph; must not exist
    #[arg(short, long, value_name = "DIR", default_value = "vmscope-demo")]
    output: PathBuf,
    /// How long to record, in seconds (or with a unit: 2m): 1s to 10m
    #[arg(short, long, value_name = "TIME", default_value = "20", value_parser = duration)]
    duration: Duration,
    /// Time limit of the whole demonstration, in seconds (or with a unit: 20m)
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = duration_in_seconds)]
    timeout: Duration,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let folder = &args.output;
    let shown = folder.display();
    if folder.exists() {
        return Err(Usage(format!("{shown} exists already: choose another name with -o")).into());
    }
    std::fs::create_dir_all(folder).with_context(|| format!("failed to create {shown}"))?;
    let vmscope = cli::find_program("vmscope")?;
    let scenario = folder.join("demo.toml");
    std::fs::write(&scenario, SCENARIO).with_context(|| format!("failed to write to {shown}"))?;
    let code = testbed::run(&testbed::Run {
        scenario,
        command: record_command(args.duration),
        out: Some(folder.clone()),
        timeout: args.timeout,
        host: testbed::HostChoice::Auto,
        vmscope: vmscope.clone(),
        narrates: true,
    })?;
    if code != 0 {
        anyhow::bail!("recording on the virtual host failed with exit code {code}");
    }
    show(&vmscope, &folder.join(RECORDING), &folder.join("flamegraph.html"))
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = duration_in_seconds(text)?;
    if (Duration::from_secs(1)..=Duration::from_secs(600)).contains(&duration) {
        return Ok(duration);
    }
    Err("the duration lies between 1s and 10m".to_owned())
}

fn record_command(duration: Duration) -> Vec<String> {
    let seconds = duration.as_secs_f64().to_string();
    let line = ["vmscope", "record", "-o", RECORDING, "--call-graph", "on", "--duration", &seconds];
    line.map(str::to_owned).to_vec()
}

/// Prints the report and writes the flame graph, as a user would do next.
fn show(vmscope: &Path, recording: &Path, page: &Path) -> anyhow::Result<ExitCode> {
    let run = |line: &mut Command| -> anyhow::Result<()> {
        let status =
            line.status().with_context(|| format!("failed to run {}", vmscope.display()))?;
        anyhow::ensure!(status.success(), "{line:?} failed: {status}");
        Ok(())
    };
    run(Command::new(vmscope).arg("report").arg(recording).args(["--limit", "25"]))?;
    let export = ["--format", "html", "-o"];
    run(Command::new(vmscope).arg("export").arg(recording).args(export).arg(page))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn durations_reach_record_as_they_were_meant() {
        let check = |text, expected: Option<&str>| {
            let line = duration(text).ok().map(record_command);
            assert_eq!(line.as_ref().and_then(|line| line.last()).map(String::as_str), expected);
        };
        check("20", Some("20"));
        check("2m", Some("120"));
        check("1500ms", Some("1.5"));
        check("500ms", None);
        check("11m", None);
    }
}
