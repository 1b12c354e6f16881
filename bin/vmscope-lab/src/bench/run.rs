//! `vmscope bench run`.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use microbench::lines::{Heard, Log, NoResults};
use microbench::{Condition, Results};
use testbed::{Accelerator, Bare, BareEnd, KvmVerdict, Listen, Patience};

use super::{file, image, read};
use cli::{Usage, duration_in_seconds, print, write_file};

const SCENARIO: &str = include_str!("../../../../scenarios/bench.toml");
const DETERMINISTIC: &str = include_str!("../../../../scenarios/bench-deterministic.toml");
/// What the run in the virtual host leaves.
const RESULT: &str = "bench.json";
/// A machine that hangs more often is not worth more time.
const MAX_STARTS: usize = 8;
/// The image takes no longer command line.
const MAX_COMMAND_LINE: usize = 1000;
/// How long this machine's KVM may take to show that it works.
const KVM_TRIAL: Duration = Duration::from_secs(5);

const EXAMPLE: &str = "Examples:
  vmscope bench run -o tcg.json                      the short plan in QEMU's emulation
  vmscope bench run --target testbed-kvm -o kvm.json  the same as a KVM guest of the virtual host
  vmscope bench run --ops add,cpuid --cond long.cpl0,long.cpl3
  vmscope bench run --target image                    the image, and how to boot it";

/// Boot the benchmark image on a machine and time its operations.
///
/// An operation that hangs is recorded as hung; the machine then starts again without it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// The machine to measure
    #[arg(long, alias = "on", value_enum, default_value = "tcg")]
    target: Target,
    /// The plan; `vmscope bench list` prints all [default: short]
    #[arg(long, value_name = "NAME", value_parser = word)]
    plan: Option<String>,
    /// Only these operations or groups, or prefixes with `*`
    #[arg(long, value_name = "OP,...", value_parser = word)]
    ops: Option<String>,
    /// Use these conditions instead of the plan's
    #[arg(long, value_name = "COND,...", value_parser = word)]
    cond: Option<String>,
    /// Skip these operations, everywhere (OP) or under one condition (OP@COND)
    #[arg(long, value_name = "OP,...", value_parser = word)]
    skip: Option<String>,
    /// Repetitions of each timing [default: the plan's]
    #[arg(long, value_name = "N")]
    reps: Option<u32>,
    /// Result file to write [default: bench-tcg.json, bench-kvm.json, bench-testbed-kvm.json]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The image [default: beside this program, or where `make boot` builds it]
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// CPUs of the machine [default: 2; 1 with --deterministic]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: Option<u32>,
    /// Memory of the machine
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..=65536))]
    memory: u32,
    /// Emulation only: derive time from the instruction count, so that runs are identical
    #[arg(long)]
    deterministic: bool,
    /// Write the image's output to this file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Time limit of the whole run, in seconds (or with a unit: 20m)
    #[arg(long, default_value = "15m", value_name = "TIME", value_parser = duration_in_seconds)]
    timeout: Duration,
    /// A machine without output for this long counts as hung [default: 30s; 120s with testbed-kvm or --deterministic]
    #[arg(long, alias = "silence", value_name = "TIME", value_parser = duration_in_seconds)]
    idle_timeout: Option<Duration>,
    /// Show progress even though this is no terminal: it is joined to one.
    #[arg(long, hide = true)]
    progress: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Target {
    /// In QEMU's emulation
    Tcg,
    /// As a guest of this machine's KVM, if that really runs guests
    Kvm,
    /// As a guest of the virtual host's KVM, on any machine
    TestbedKvm,
    /// None: print the image's path and how to boot it
    Image,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Tcg => "tcg",
            Self::Kvm => "kvm",
            Self::TestbedKvm => "testbed-kvm",
            Self::Image => "image",
        }
    }
}

impl Args {
    fn idle_timeout(&self) -> Duration {
        let is_slow = self.deterministic || self.target == Target::TestbedKvm;
        self.idle_timeout.unwrap_or(Duration::from_secs(if is_slow { 120 } else { 30 }))
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let image = image::find(args.image.as_deref())?;
    if args.target == Target::Image {
        print(&image::how_to_boot(&image)).context("failed to write to standard output")?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.deterministic && (args.target == Target::Kvm || args.cpus.is_some_and(|cpus| cpus != 1))
    {
        let text =
            "--deterministic is for one emulated CPU: use --target tcg or testbed-kvm, --cpus 1";
        return Err(Usage(text.to_owned()).into());
    }
    let default = || PathBuf::from(format!("bench-{}.json", args.target.name()));
    let output = args.output.clone().unwrap_or_else(default);
    if output.is_dir() {
        return Err(Usage(format!("{} is a folder: name a file with -o", output.display())).into());
    }
    let results = match args.target {
        Target::TestbedKvm => in_testbed(args, &image)?,
        _ => here(args, &image)?,
    };
    file::write(&output, &results, args.target.name())?;
    if !testbed::is_inside() {
        say!(part: "{}", read::said(&results));
        say!("wrote {}", output.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// A word of the image's command line.
fn word(text: &str) -> Result<String, String> {
    let fits = text.chars().all(|c| c.is_ascii_graphic() && c != '=');
    if fits && !text.is_empty() {
        Ok(text.to_owned())
    } else {
        Err("names and commas only".to_owned())
    }
}

// ---- here ----

fn here(args: &Args, image: &Path) -> anyhow::Result<Results> {
    let accelerator = match args.target {
        Target::Kvm => {
            refuse_useless_kvm()?;
            Accelerator::Kvm
        }
        _ if args.deterministic => Accelerator::Deterministic,
        _ => Accelerator::Emulation,
    };
    let mut session = Session {
        machine: Bare {
            image: image.to_owned(),
            command_line: String::new(),
            accelerator,
            cpus: args.cpus.unwrap_or(if args.deterministic { 1 } else { 2 }),
            memory_mib: args.memory,
        },
        log: Log::default(),
        raw: Vec::new(),
        progress: Progress::new(args.progress),
        start: Instant::now(),
    };
    let result = session.run(args);
    session.progress.clear();
    if let Some(path) = &args.log {
        write_file(path, |file| file.write_all(&session.raw))
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    result?;
    match session.log.results() {
        Err(refused @ NoResults::Refused { .. }) => Err(Usage(refused.to_string()).into()),
        other => Ok(other?),
    }
}

fn refuse_useless_kvm() -> anyhow::Result<()> {
    if testbed::is_inside() {
        return Ok(());
    }
    let why = match testbed::probe_kvm(KVM_TRIAL) {
        KvmVerdict::Works => return Ok(()),
        KvmVerdict::Unusable(reason) => reason,
        KvmVerdict::Absent => "there is no /dev/kvm".to_owned(),
    };
    bail!("this machine's KVM does not run guests ({why}): use --target testbed-kvm")
}

/// Starts of one machine until it comes to the plan's end.
struct Session {
    machine: Bare,
    log: Log,
    raw: Vec<u8>,
    progress: Progress,
    start: Instant,
}

impl Session {
    fn run(&mut self, args: &Args) -> anyhow::Result<()> {
        let mut hung: Vec<String> = Vec::new();
        while self.log.starts() < MAX_STARTS {
            self.machine.command_line = command_line(args, &hung);
            if MAX_COMMAND_LINE < self.machine.command_line.len() {
                self.log.note("too many operations hung: the rest was not tried");
                return Ok(());
            }
            let starts = self.log.starts();
            let end = self.boot(args)?;
            if self.log.starts() == starts {
                bail!(
                    "the image {} before its first line: run again with --log FILE to keep its output",
                    short(end)
                );
            }
            if self.log.has_ended() {
                return Ok(());
            }
            let why = reason(end, args.idle_timeout());
            let Some((operation, condition)) = self.pending() else {
                self.log.note(&format!("{why}, between two operations"));
                return Ok(());
            };
            self.log.hang(&why);
            if end == BareEnd::TimeLimit {
                self.log.note("the time limit was reached: raise it with --timeout");
                return Ok(());
            }
            hung.push(format!("{operation}@{condition}"));
        }
        self.log.note(&format!("{MAX_STARTS} operations hung: the rest was not tried"));
        Ok(())
    }

    fn pending(&self) -> Option<(String, Condition)> {
        self.log.pending().map(|(operation, condition)| (operation.to_owned(), condition))
    }

    fn boot(&mut self, args: &Args) -> anyhow::Result<BareEnd> {
        let left = args.timeout.saturating_sub(self.start.elapsed());
        let patience = Patience { whole: left, silence: args.idle_timeout() };
        let (log, raw, progress) = (&mut self.log, &mut self.raw, &mut self.progress);
        let end = testbed::boot_bare(&self.machine, patience, &mut |line| {
            raw.extend_from_slice(line);
            for heard in log.push(line) {
                progress.on(&heard);
            }
            if log.has_ended() { Listen::Enough } else { Listen::On }
        })?;
        Ok(end)
    }
}

fn command_line(args: &Args, hung: &[String]) -> String {
    let skip = args.skip.iter().chain(hung).map(String::as_str).collect::<Vec<_>>().join(",");
    let reps = args.reps.map(|reps| reps.to_string());
    let words = [
        ("plan", args.plan.as_deref()),
        ("ops", args.ops.as_deref()),
        ("cond", args.cond.as_deref()),
        ("reps", reps.as_deref()),
        ("skip", (!skip.is_empty()).then_some(skip.as_str())),
        ("end", Some("poweroff")),
        ("qr", Some("off")),
    ];
    let words = words.iter().filter_map(|(key, value)| value.map(|value| format!("{key}={value}")));
    words.collect::<Vec<_>>().join(" ")
}

fn short(end: BareEnd) -> &'static str {
    match end {
        BareEnd::Ended | BareEnd::Left => "ended",
        BareEnd::Silent => "said nothing",
        BareEnd::TimeLimit => "reached the time limit",
    }
}

fn reason(end: BareEnd, silence: Duration) -> String {
    match end {
        BareEnd::Ended | BareEnd::Left => "the machine ended".to_owned(),
        BareEnd::Silent => format!("no output for {} s", silence.as_secs()),
        BareEnd::TimeLimit => "the time limit was reached".to_owned(),
    }
}

// ---- in the virtual host ----

fn in_testbed(args: &Args, image: &Path) -> anyhow::Result<Results> {
    let folder = tempfile::tempdir().context("failed to create a temporary folder")?;
    let scenario = folder.path().join("bench.toml");
    let text = if args.deterministic { DETERMINISTIC } else { SCENARIO };
    std::fs::write(&scenario, text)
        .with_context(|| format!("failed to write {}", scenario.display()))?;
    let out = folder.path().join("out");
    let code = testbed::run(&testbed::Run {
        scenario,
        command: inner_command(args, image),
        out: Some(out.clone()),
        timeout: args.timeout,
        host: testbed::HostChoice::Virtual,
        vmscope: cli::find_program("vmscope")?,
        narrates: false,
    })?;
    match code {
        0 => {}
        // It has said what.
        2 => {
            return Err(
                Usage("the virtual host's vmscope refused the command line".to_owned()).into()
            );
        }
        code => bail!("the benchmark failed on the virtual host, with exit code {code}"),
    }
    if let Some(path) = &args.log {
        let kept = std::fs::File::open(out.join("serial.log"));
        write_file(path, |file| std::io::copy(&mut kept?, file).map(drop))
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    file::read(&out.join(RESULT))
}

/// The same run, on the virtual host's own KVM.
fn inner_command(args: &Args, image: &Path) -> Vec<String> {
    let mut words =
        ["vmscope", "bench", "run", "--target", "kvm", "-o", RESULT].map(str::to_owned).to_vec();
    let mut option = |name: &str, value: Option<String>| {
        words.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
    };
    option("--image", Some(image.display().to_string()));
    option("--plan", args.plan.clone());
    option("--ops", args.ops.clone());
    option("--cond", args.cond.clone());
    option("--skip", args.skip.clone());
    option("--reps", args.reps.map(|reps| reps.to_string()));
    let cpus = args.cpus.or(args.deterministic.then_some(1));
    option("--cpus", cpus.map(|cpus| cpus.to_string()));
    option("--memory", Some(args.memory.to_string()));
    option("--timeout", Some(args.timeout.as_secs_f64().to_string()));
    option("--idle-timeout", Some(args.idle_timeout().as_secs_f64().to_string()));
    option("--log", args.log.as_ref().map(|_| "serial.log".to_owned()));
    if args.progress || std::io::stderr().is_terminal() {
        words.push("--progress".to_owned());
    }
    words
}

// ---- progress ----

/// One line, for people only.
struct Progress {
    shown: bool,
    /// An operation begins more than once.
    begun: BTreeSet<(String, Condition)>,
    planned: Option<u32>,
}

impl Progress {
    fn new(wanted: bool) -> Self {
        let shown = wanted || std::io::stderr().is_terminal();
        Self { shown, begun: BTreeSet::new(), planned: None }
    }

    fn on(&mut self, heard: &Heard) {
        match heard {
            Heard::Started(planned) => {
                self.begun.clear();
                self.planned = *planned;
            }
            Heard::Began(operation, condition) => {
                let planned = self.planned.map(|n| format!("/{n}")).unwrap_or_default();
                self.begun.insert((operation.clone(), *condition));
                let n = self.begun.len();
                self.show(&format!("{n}{planned}  {operation} at {condition}"));
            }
            Heard::Outcome | Heard::Refused | Heard::Ended => {}
        }
    }

    fn clear(&self) {
        self.show("");
    }

    fn show(&self, text: &str) {
        if self.shown {
            // Back to the line's start, and away with what stands there.
            say!(part: "\r\x1b[K{text}");
            let _ = std::io::stderr().flush();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &[&str]) -> Args {
        Line::try_parse_from([&["run"], line].concat()).unwrap().args
    }

    #[test]
    fn the_image_gets_the_plan() {
        let check = |line: &[&str], hung: &[&str], expected: &str| {
            let hung: Vec<String> = hung.iter().map(|&word| word.to_owned()).collect();
            assert_eq!(command_line(&args(line), &hung), expected);
        };
        check(&[], &[], "end=poweroff qr=off");
        check(
            &["--plan", "full", "--ops", "add,cpuid", "--reps", "5"],
            &["hlt@long.cpl0"],
            "plan=full ops=add,cpuid reps=5 skip=hlt@long.cpl0 end=poweroff qr=off",
        );
        check(
            &["--skip", "vmcall", "--cond", "long.cpl0"],
            &["hlt@long.cpl0", "mwait@flat.cpl0"],
            "cond=long.cpl0 skip=vmcall,hlt@long.cpl0,mwait@flat.cpl0 end=poweroff qr=off",
        );
    }

    #[test]
    fn words_stay_words() {
        for bad in ["a b", "", "a\nb", "plan=x"] {
            assert!(word(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_virtual_host_runs_the_same() {
        let words = inner_command(&args(&["--plan", "io", "--deterministic"]), Path::new("/i.elf"));
        let line = words.join(" ");
        assert!(
            line.starts_with(
                "vmscope bench run --target kvm -o bench.json --image /i.elf --plan io"
            )
        );
        assert!(line.contains("--cpus 1") && !line.contains("--deterministic"), "{line}");
    }
}
