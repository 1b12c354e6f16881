//! What is measured: each collector at each period.

use std::path::Path;

/// What runs beside the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collector {
    /// Nothing.
    Alone,
    /// An empty BPF program on the same event: the floor under any sampler.
    Floor,
    /// `vmscope record` with these options.
    Vmscope(&'static str),
    /// `vmscope record --call-graph` where the guest's stack has so many frames.
    Stacks(u32),
    /// `perf record` with these options.
    Perf(&'static str),
    /// `vmscope record` of so many seconds, and what it does afterwards: names, tables. The work goes on meanwhile.
    Finished(u32),
    /// `vmscope agent`, which sends windows of so many seconds to a server outside.
    Agent(u32),
}

/// The collectors that are compared, the floor first.
pub const COLLECTORS: [Collector; 8] = [
    Collector::Floor,
    COMPARED,
    Collector::Vmscope("--edges switches"),
    RIVAL,
    Collector::Stacks(OWN_FRAMES),
    Collector::Stacks(16),
    Collector::Stacks(64),
    Collector::Perf("-g"),
];

/// Of the work's stack: the fewest.
const OWN_FRAMES: u32 = 7;

/// The one that must be cheaper than its rival and near the floor.
pub const COMPARED: Collector = Collector::Vmscope("--edges samples");
/// The one it must beat.
pub const RIVAL: Collector = Collector::Perf("");

/// The work at one period: enough samples for a figure, and no more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Period {
    /// Between samples of a CPU.
    pub ns: u32,
    /// The size of one piece of work; 50 units are about a second.
    pub units: u32,
    pub pieces: u32,
    /// So many of them warm up, and are left out.
    pub warm_up: u32,
    /// What the original published at this period, per cent.
    pub original: f64,
}

/// A collector's rounds and its questions to guests, up to 16 s apart, must be in the time measured in their true share.
/// A guest without news is queried after 8 s: by then, and 4 s later once more, it has reported that the work has
/// begun, which is no cost of sampling. High rates are touchy (see docs/overhead.md), and their samples outweigh the
/// questions.
pub const PERIODS: [Period; 3] = [
    Period { ns: 2_500_000, units: 50, pieces: 27, warm_up: 11, original: 0.133 },
    Period { ns: 1_000_000, units: 50, pieces: 27, warm_up: 11, original: 0.302 },
    Period { ns: 100_000, units: 25, pieces: 14, warm_up: 10, original: 3.084 },
];

/// Four whole windows of 30 s at 1 ms, after two in which all names are new.
pub const WINDOWS: Period =
    Period { ns: 1_000_000, units: 50, pieces: 203, warm_up: 85, original: 1.0 };
/// A recording of `RECORDED_S`, and the time that it takes to finish it, at least.
pub const RECORDED: Period =
    Period { ns: 1_000_000, units: 50, pieces: 135, warm_up: 0, original: 1.0 };
/// As many samples as in the windows.
pub const RECORDED_S: u32 = 125;
/// From the start of the collector to that of the work.
pub(super) const HEAD_START_S: u32 = 5;

/// The work without a collector.
pub(super) const ALONE: Period = Period { ns: 0, units: 50, pieces: 10, warm_up: 5, original: 0.0 };

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Configuration {
    pub collector: Collector,
    pub period: Period,
    /// The second time, which says how well figures repeat.
    pub again: bool,
}

impl Collector {
    /// As people read it.
    pub fn name(self) -> String {
        match self {
            Self::Alone => "alone".to_owned(),
            Self::Floor => "empty BPF program".to_owned(),
            Self::Vmscope(options) => format!("vmscope record {options}"),
            Self::Stacks(frames) => {
                format!("vmscope record --edges samples --call-graph, {frames} frames")
            }
            Self::Perf(options) => {
                format!("perf record -a -e cpu-clock {options}").trim_end().to_owned()
            }
            Self::Finished(seconds) => format!("vmscope record, {seconds} s finished"),
            Self::Agent(seconds) => format!("vmscope agent, windows of {seconds} s"),
        }
    }

    /// Whether its own count of samples is on its output.
    pub fn counts_samples(self) -> bool {
        matches!(self, Self::Vmscope(_) | Self::Stacks(_) | Self::Perf(_))
    }
}

impl Configuration {
    /// The collector and its period.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} at {} ms", self.label(), self.period_ms())
    }

    /// Its name among those of the same period.
    pub fn label(&self) -> String {
        format!("{}{}", self.collector.name(), if self.again { " (again)" } else { "" })
    }

    /// The sampling period in ms.
    #[must_use]
    pub fn period_ms(&self) -> f64 {
        f64::from(self.period.ns) / 1e6
    }

    /// The words that go before the command during which it collects. `number` makes file names.
    fn prefix(&self, floor: &Path, number: usize) -> String {
        let ns = self.period.ns;
        let record = |options: &str| {
            format!("vmscope record -o /run/{number} --period {}us {options} --", ns / 1000)
        };
        match self.collector {
            Collector::Alone => String::new(),
            Collector::Floor => format!("{} {ns}", floor.display()),
            Collector::Vmscope(options) => record(options),
            Collector::Stacks(_) => record("--edges samples --call-graph"),
            // The period in ns; the file lies in memory.
            Collector::Perf(options) => {
                format!("perf record -a -e cpu-clock -c {ns} {options} -o /run/{number}.data --")
            }
            Collector::Finished(seconds) => {
                let record = format!("vmscope record -o /run/{number} --period {}us", ns / 1000);
                format!(
                    "sh -c '{record} --edges samples --duration {seconds} & \"$@\"; wait $!' sh"
                )
            }
            Collector::Agent(seconds) => format!("sh /run/agent {number} {seconds} {}", ns / 1000),
        }
    }

    /// The shell line that carries it out. The work begins after the collector's first look at its rings, at most 4 s after
    /// its start: that loads code and allocates buffers once, however long it goes on.
    pub(super) fn line(&self, floor: &Path, number: usize) -> String {
        let Period { units, pieces, .. } = self.period;
        let frames = match self.collector {
            Collector::Stacks(frames) => frames.saturating_sub(OWN_FRAMES),
            _ => 0,
        };
        let work = format!(
            "sleep {HEAD_START_S}; vmscope testbed exec work -- fixed {units} 0 {pieces} {frames}"
        );
        format!("{} sh -c '{work}'", self.prefix(floor, number))
    }
}

/// Everything, in order; `alone` is measured at every boot besides.
pub fn all() -> Vec<Configuration> {
    let with = |period: Period| {
        COLLECTORS.map(|collector| Configuration { collector, period, again: false })
    };
    let again = Configuration { collector: COMPARED, period: PERIODS[1], again: true };
    PERIODS.into_iter().flat_map(with).chain([again]).collect()
}
