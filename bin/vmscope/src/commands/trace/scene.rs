//! A trace as `report`, `compare` and `export` look at it: one machine on its time axis.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use analysis::{Width, clean};
use anyhow::Context;
use model::{Machine, MachineId, Tid};
use recording::trace::Trace;
use trace_analysis::critical_path::Scope;
use trace_analysis::findings::Findings;
use trace_analysis::timeline::{Builder, Survey, Task, TaskId, Timeline};

use super::super::Usage;
use super::doubt;
use super::patience::Patience;

/// What to look at.
#[derive(Debug, clap::Args)]
pub(crate) struct Source {
    /// The trace
    pub(crate) dir: PathBuf,
    /// Which machine's [default: where the command ran, else the host if it was traced, else the first VM]
    #[arg(long, value_name = "NAME")]
    pub(crate) machine: Option<String>,
}

/// An open trace, and one machine of it.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) trace: Trace,
    pub(super) timeline: Timeline,
    pub(super) events: u64,
    /// Of a VM whose host was traced, too.
    pub(super) host: Option<Timeline>,
}

impl Scene {
    /// # Errors
    /// A usage error when it has no such machine; or it can't be read.
    pub(super) fn open(dir: &Path, machine: Option<&str>) -> anyhow::Result<Self> {
        let trace = Trace::open(dir)?;
        let machine = choose(&trace, machine)?;
        let has_host = machine != MachineId::HOST
            && trace
                .tables
                .machines
                .get(machine.index())
                .is_some_and(|it| !it.vcpu_threads.is_empty());
        let machines = has_host.then_some(MachineId::HOST).into_iter().chain([machine]);
        let (mut timelines, events) = on_time_axis(&trace, machines)?;
        let timeline = timelines.pop().context("a machine has a timeline")?;
        let host = timelines.pop();
        Ok(Self { trace, timeline, events, host })
    }

    /// Every machine that was traced, each on its time axis.
    ///
    /// # Errors
    /// When the events can't be read.
    pub(super) fn timelines(&self) -> anyhow::Result<Cow<'_, [Timeline]>> {
        if self.traced().count() < 2 {
            return Ok(Cow::Borrowed(std::slice::from_ref(&self.timeline)));
        }
        let rows = (0..).map(MachineId).zip(&self.trace.tables.machines);
        let traced = rows.filter(|(_, row)| !row.cpus.is_empty()).map(|(machine, _)| machine);
        Ok(Cow::Owned(on_time_axis(&self.trace, traced)?.0))
    }

    /// The machine's row.
    pub(super) fn machine(&self) -> &Machine {
        &self.trace.tables.machines[self.timeline.machine.index()]
    }

    /// The machines that were traced.
    pub(super) fn traced(&self) -> impl Iterator<Item = &Machine> {
        self.trace.tables.machines.iter().filter(|row| !row.cpus.is_empty())
    }

    /// What was found out about it.
    pub(super) fn findings(&self) -> Findings<'_> {
        Findings::new(&self.trace.tables, &self.timeline, self.host.as_ref())
    }

    /// What the command took, when it ran on this machine.
    pub(super) fn command(&self) -> Option<Scope> {
        Scope::command(&self.trace.tables, &self.timeline)
    }

    pub(super) fn wall_ns(&self) -> u64 {
        self.timeline.end.since(self.timeline.begin)
    }

    pub(super) fn task(&self, id: TaskId) -> &Task {
        &self.timeline.tasks[id.index()]
    }

    /// What was run, how it ended, how long it took: or where, when that was another machine.
    fn command_line(&self) -> String {
        let Some(command) = &self.trace.tables.command else { return String::new() };
        let words = command.words.join(" ").replace(['\n', '\r', '\t'], " ");
        let words = shortened(&clean(&words), 60);
        let Some(scope) = self.command() else {
            let machine = self.trace.tables.machines.get(command.machine.index());
            let machine = machine.map_or("another machine".into(), |row| clean(&row.name));
            return format!("Command: {words}, on {machine}\n");
        };
        let ended = match command.exit_code {
            Some(code) => format!("exit code {code}"),
            None => "not ended by itself".to_owned(),
        };
        let took = length(scope.end.since(scope.begin));
        format!("Command: {words} (pid {}), {ended}, {took}\n", command.task)
    }

    /// The root of the tasks that the trace was limited to; where VMs were traced, it is a task of theirs.
    pub(super) fn tree(&self) -> Option<Tid> {
        let filters = &self.trace.header.filters;
        let of_vms = filters.iter().any(|filter| filter.starts_with("--vm "));
        if of_vms && self.timeline.machine == MachineId::HOST {
            return None;
        }
        filters.iter().find_map(|filter| filter.strip_prefix("--tree ")?.parse().ok().map(Tid))
    }

    /// The lines above every text, however long.
    pub(super) fn heading(&self) -> String {
        let (header, machine) = (&self.trace.header, self.machine());
        let (name, kernel) = (clean(&machine.name), clean(&machine.kernel));
        let of = match self.timeline.machine {
            MachineId::HOST => format!("Host: {}", clean(&header.hostname)),
            _ => format!("VM: {name}"),
        };
        let cpus = counted(machine.cpus.len() as u64, "CPU");
        let wall = length(self.wall_ns());
        let events = grouped(self.events);
        let mut out = format!("{of} (Linux {kernel}), {cpus}; traced {wall}, {events} events\n");
        out += &self.command_line();
        let others: Vec<_> = self.traced().filter(|row| row.name != machine.name).collect();
        if !others.is_empty() {
            let names: Vec<_> = others.iter().map(|row| clean(&row.name).into_owned()).collect();
            out += &format!("Also traced: {} (--machine NAME)\n", names.join(", "));
        }
        if !header.filters.is_empty() {
            let filters = clean(&header.filters.join(" ")).into_owned();
            out += &format!("Filter: {filters}: machine-wide figures lack what it left out\n");
        }
        for line in doubt::lines(self) {
            out += &format!("{}\n", clean(&line));
        }
        out
    }
}

/// These machines on their time axes, and how many events there are of the last one. The trace is read twice rather than
/// held: events take more room than what is made from them.
fn on_time_axis(
    trace: &Trace,
    machines: impl Iterator<Item = MachineId>,
) -> anyhow::Result<(Vec<Timeline>, u64)> {
    let patience = Patience::begin("reading the trace", 2 * trace.known_events().unwrap_or(0));
    let machines: Vec<_> = machines.collect();
    let mut surveys: Vec<_> = machines.iter().map(|it| survey(trace, *it)).collect();
    let mut events = 0;
    trace.for_each_batch(&mut |batch| {
        let of_last = batch.iter().filter(|event| Some(&event.machine) == machines.last());
        events += of_last.count() as u64;
        surveys.iter_mut().for_each(|survey| survey.see(batch));
        patience.advance(batch.len());
    })?;
    let mut builders: Vec<_> = surveys.into_iter().map(Survey::builder).collect();
    trace.for_each_batch(&mut |batch| {
        builders.iter_mut().for_each(|builder| builder.see(batch));
        patience.advance(batch.len());
    })?;
    Ok((builders.into_iter().map(Builder::finish).collect(), events))
}

fn survey(trace: &Trace, machine: MachineId) -> Survey<'_> {
    let mut survey = Survey::new(&trace.tables, machine);
    if trace.header.leaves_out_switches(machine) {
        survey.switches_left_out();
    }
    survey
}

fn choose(trace: &Trace, name: Option<&str>) -> Result<MachineId, Usage> {
    let rows = &trace.tables.machines;
    let mut traced = (0..).map(MachineId).zip(rows).filter(|(_, row)| !row.cpus.is_empty());
    let command = trace.tables.command.as_ref().map(|command| command.machine);
    let Some(name) = name else {
        let first =
            command.filter(|id| rows.get(id.index()).is_some_and(|row| !row.cpus.is_empty()));
        let found = first.or_else(|| traced.next().map(|(id, _)| id));
        return found.ok_or_else(|| Usage("this trace has no machine that was traced".to_owned()));
    };
    let names: Vec<_> = traced.clone().map(|(_, row)| clean(&row.name).into_owned()).collect();
    let found = traced.find(|(_, row)| row.name == name).map(|(id, _)| id);
    let none = || format!("no machine {} in this trace: it has {}", clean(name), names.join(", "));
    found.ok_or_else(|| Usage(none()))
}

/// Lines no longer than the terminal's, broken between words but not before a `%`; those that go on are indented.
pub(super) fn wrapped(text: &str, width: Width) -> String {
    let columns = width.columns().unwrap_or(usize::MAX);
    text.lines().map(|line| broken(line, columns)).collect()
}

/// The same two columns to the right.
pub(super) fn indented(text: &str, width: Width) -> String {
    let columns = width.columns().map_or(usize::MAX, |columns| columns - 2);
    let lines: String = text.lines().map(|line| broken(line, columns)).collect();
    lines.lines().map(|line| format!("  {line}\n")).collect()
}

fn broken(text: &str, columns: usize) -> String {
    let mut out = String::new();
    let mut line = String::new();
    let text = text.replace(" %", "\u{a0}%");
    for word in text.split(' ') {
        if !line.is_empty() && columns < line.chars().count() + 1 + word.chars().count() {
            out += &format!("{line}\n");
            line = format!("  {word}");
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    (out + &line + "\n").replace('\u{a0}', " ")
}

/// `1 CPU`, `2 CPUs`, `3 processes`, `4 switches`.
pub(super) fn counted(n: u64, what: &str) -> String {
    let ending = if what.ends_with(['s', 'h']) { "es" } else { "s" };
    if n == 1 { format!("1 {what}") } else { format!("{} {what}{ending}", grouped(n)) }
}

/// `1,234,567`.
pub(super) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if 0 < at && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// What a table's times are in: seconds, or milliseconds where all of them would be small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    S,
    Ms,
}

impl Scale {
    /// For times of which none is longer than this.
    pub(super) fn of(longest_ns: u64) -> Self {
        if longest_ns < 10_000_000_000 { Self::Ms } else { Self::S }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::S => "s",
            Self::Ms => "ms",
        }
    }

    /// Three decimals.
    pub(super) fn show(self, ns: u64) -> String {
        let per = match self {
            Self::S => 1e9,
            Self::Ms => 1e6,
        };
        format!("{:.3}", ns as f64 / per)
    }
}

/// Seconds with milliseconds.
pub(super) fn seconds(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e9)
}

/// How long something took: in seconds, or in milliseconds below one.
pub(super) fn length(ns: u64) -> String {
    if ns < 1_000_000_000 {
        format!("{:.2} ms", ns as f64 / 1e6)
    } else {
        format!("{} s", seconds(ns))
    }
}

/// Of a whole, with one decimal; `-` of nothing.
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1}", 100.0 * part as f64 / whole as f64) }
}

/// At most so many characters, the last of them an ellipsis when there are more.
pub(super) fn shortened(text: &str, chars: usize) -> String {
    if text.chars().count() <= chars {
        return text.to_owned();
    }
    text.chars().take(chars - 1).chain(['…']).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn long_lines_are_broken_between_words() {
        let check = |text: &str, columns, expected| {
            assert_eq!(broken(text, columns), expected);
        };
        check("", 8, "\n");
        check("a b", 8, "a b\n");
        check("xxxx yyyy b", 8, "xxxx\n  yyyy b\n");
        check("xxxx 5 %", 6, "xxxx\n  5 %\n");
        assert_eq!(wrapped("a b\n\nc", Width::Columns(80)), "a b\n\nc\n");
        assert_eq!(wrapped(&"word ".repeat(99), Width::Unlimited).lines().count(), 1);
    }

    #[test]
    fn numbers() {
        let check = |n, expected| assert_eq!(grouped(n), expected);
        check(0, "0");
        check(999, "999");
        check(1000, "1,000");
        check(1_234_567, "1,234,567");
        assert_eq!(counted(1, "CPU"), "1 CPU");
        assert_eq!(counted(2000, "event"), "2,000 events");
        assert_eq!(counted(2, "process"), "2 processes");
        assert_eq!((percent(1, 3), percent(1, 0)), ("33.3".to_owned(), "-".to_owned()));
        let scaled = |ns| (Scale::of(ns).show(ns), Scale::of(ns).unit());
        assert_eq!(scaled(1_234_567), ("1.235".to_owned(), "ms"));
        assert_eq!(scaled(12_345_678_901), ("12.346".to_owned(), "s"));
        assert_eq!(length(873_456), "0.87 ms");
        assert_eq!(length(1_000_000_000), "1.000 s");
        assert_eq!(shortened("abcdef", 4), "abc…");
        assert_eq!(shortened("abcd", 4), "abcd");
    }
}
