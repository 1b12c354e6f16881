//! From times to instructions per sample.

use acceptance::figures::Figures;
use anyhow::bail;
use serde_json::{Value, json};

use super::configuration::{
    ALONE, COLLECTORS, COMPARED, Collector, Configuration, HEAD_START_S, PERIODS, Period, RIVAL,
};

/// The deterministic host runs one instruction in 2 ns.
const NS_PER_INSTRUCTION: f64 = 2.0;
/// What the cheapest way to record may cost above the floor.
pub const MAX_ABOVE_FLOOR: f64 = 600.0;
/// How much a figure may grow, as a share of the checked-in one.
const TOLERANCE: f64 = 0.05;

/// What came of the work once.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Work {
    /// Seconds that each piece took, by the guest's clock.
    pub(super) pieces: Vec<f64>,
    /// Samples that the collector said it took.
    pub(super) collected: u64,
}

/// The cost of one configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    pub configuration: Configuration,
    /// All that is run because of a sample: exit, interrupt, program, the consumer's share, and what else the collector does
    /// while the work goes on.
    pub instructions: f64,
}

impl Work {
    /// Of a piece of work. The first ones are left out: guest and collector touch their memory for the first time in them,
    /// and the guest tells that the work has begun. A mean, because a collector's rounds are rarer than pieces and belong
    /// to all of them.
    fn mean_ns(&self, period: Period) -> f64 {
        let pieces = self.pieces.get(period.warm_up as usize..).unwrap_or_default();
        1e9 * pieces.iter().sum::<f64>() / pieces.len() as f64
    }
}

impl Measured {
    /// # Errors
    /// If `work` is not all of it, or the collector did not collect all the time.
    pub(super) fn new(
        configuration: Configuration,
        work: &Work,
        alone: &Work,
    ) -> anyhow::Result<Self> {
        let name = configuration.name();
        let period = configuration.period;
        if work.pieces.len() != period.pieces as usize
            || alone.pieces.len() != ALONE.pieces as usize
        {
            bail!("{name}: pieces of work are missing");
        }
        let expected = work.pieces.iter().sum::<f64>() * 1e9 / f64::from(period.ns);
        if configuration.collector.counts_samples() && (work.collected as f64) < expected {
            bail!("{name}: {} samples collected, the work alone had {expected:.0}", work.collected);
        }
        let took_ns = work.mean_ns(period);
        let alone_ns = alone.mean_ns(ALONE) / f64::from(ALONE.units) * f64::from(period.units);
        let sampled = match configuration.collector {
            Collector::Finished(seconds) => {
                let of_work = 1e9 * f64::from(seconds.saturating_sub(HEAD_START_S));
                of_work / work.pieces.iter().map(|s| s * 1e9).sum::<f64>()
            }
            _ => 1.0,
        };
        let samples = sampled * took_ns / f64::from(period.ns);
        let instructions = (took_ns - alone_ns) / samples / NS_PER_INSTRUCTION;
        Ok(Self { configuration, instructions })
    }

    /// Of the CPU's time, if it runs one instruction per ns.
    pub fn per_cent(&self) -> f64 {
        100.0 * self.instructions / f64::from(self.configuration.period.ns)
    }

    /// What is left when the empty program's cost is taken off.
    pub fn above_floor(&self, all: &[Self]) -> Option<f64> {
        let floor = find(all, Collector::Floor, self.configuration.period.ns)?;
        Some(self.instructions - floor.instructions)
    }

    /// Its row, as scripts read it.
    #[must_use]
    pub fn json(&self, all: &[Self]) -> Value {
        json!({
            "collector": self.configuration.label(),
            "period_ms": self.configuration.period_ms(),
            "instructions_per_sample": self.instructions.round(),
            "above_floor": self.above_floor(all).map(f64::round),
            "per_cent": (self.per_cent() * 1000.0).round() / 1000.0,
            "original_per_cent": self.configuration.period.original,
        })
    }
}

/// A row for each collector and a column for each period, in the form of docs/figures.
#[must_use]
pub fn table(all: &[Measured]) -> Figures {
    let cells = |collector: Collector, value: &dyn Fn(&Measured) -> Option<String>| {
        let of_period = |period: &Period| find(all, collector, period.ns).and_then(value);
        PERIODS.iter().map(|period| of_period(period).unwrap_or_default()).collect::<Vec<_>>()
    };
    let row = |title: String, cells: Vec<String>| [vec![title], cells].concat();
    let mut rows = Vec::new();
    for collector in COLLECTORS {
        let instructions = cells(collector, &|m| Some(format!("{:.0}", m.instructions)));
        rows.push(row(format!("`{}`", collector.name()), instructions));
        if [COMPARED, RIVAL].contains(&collector) {
            let above = cells(collector, &|m| Some(format!("{:.0}", m.above_floor(all)?)));
            rows.push(row("... above an empty BPF program".to_owned(), above));
        }
    }
    let per_cent = cells(COMPARED, &|m| Some(format!("{:.3}", m.per_cent())));
    let title = format!("`{}`, per cent of a CPU at 1 instruction per ns", COMPARED.name());
    rows.push(row(title, per_cent));
    let original = PERIODS.map(|period| period.original.to_string());
    rows.push(row("... original".to_owned(), original.to_vec()));
    let periods = PERIODS.map(|period| format!("{} ms", f64::from(period.ns) / 1e6));
    Figures {
        command: "make overhead".to_owned(),
        conditions: "deterministic host".to_owned(),
        columns: row("period".to_owned(), periods.to_vec()),
        rows,
        ..Figures::default()
    }
}

/// What must hold whatever was measured before; one line for each that does not.
pub fn broken_promises(all: &[Measured]) -> Vec<String> {
    let ours =
        all.iter().filter(|m| m.configuration.collector == COMPARED && !m.configuration.again);
    ours.flat_map(|ours| {
        let name = ours.configuration.name();
        let rival = find(all, RIVAL, ours.configuration.period.ns);
        let dearer = rival.filter(|rival| rival.instructions <= ours.instructions);
        let high = ours.above_floor(all).filter(|above| MAX_ABOVE_FLOOR < *above);
        [
            dearer.map(|rival| {
                format!(
                    "{name}: {:.0}, not below perf's {:.0}",
                    ours.instructions, rival.instructions
                )
            }),
            high.map(|above| {
                format!("{name}: {above:.0} above the floor, {MAX_ABOVE_FLOOR} allowed")
            }),
        ]
    })
    .flatten()
    .collect()
}

/// How far apart the same configuration came out when it was measured twice.
pub fn spread(all: &[Measured]) -> Option<f64> {
    let again = all.iter().find(|m| m.configuration.again)?;
    let Configuration { collector, period, .. } = again.configuration;
    let first = find(all, collector, period.ns)?;
    Some((first.instructions - again.instructions).abs())
}

/// The rows of vmscope that cost more than `before` (our own JSON of another day) allows.
pub fn regressions(all: &[Measured], before: &Value) -> Vec<String> {
    let rows = before["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let ours = all.iter().filter(|m| {
        matches!(m.configuration.collector, Collector::Vmscope(_) | Collector::Stacks(_))
    });
    ours.filter_map(|m| {
        let name = m.configuration.label();
        let same = |row: &&Value| {
            row["collector"] == *name && row["period_ms"] == m.configuration.period_ms()
        };
        let before = rows.iter().find(same)?["instructions_per_sample"].as_f64()?;
        let grown = before * (1.0 + TOLERANCE) < m.instructions;
        grown.then(|| {
            format!(
                "{}: {:.0} instructions per sample, {before:.0} before",
                m.configuration.name(),
                m.instructions
            )
        })
    })
    .collect()
}

/// What a collector's first measurement at a period came to.
#[must_use]
pub fn find(all: &[Measured], collector: Collector, period_ns: u32) -> Option<&Measured> {
    all.iter().find(|m| {
        let c = &m.configuration;
        c.collector == collector && c.period.ns == period_ns && !c.again
    })
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::overhead::PERIODS;

    /// Those that warm up, and the others.
    fn pieces(period: Period, first: f64, others: f64) -> Vec<f64> {
        let left = period.pieces - period.warm_up;
        [vec![first; period.warm_up as usize], vec![others; left as usize]].concat()
    }

    /// One millisecond, one second of work in pieces.
    fn measured(collector: Collector, instructions: f64) -> Measured {
        let configuration = Configuration { collector, period: PERIODS[1], again: false };
        // 1 s alone, and 1000 samples' cost more in x s: x = 1 + 1000 x * cost * 2 ns.
        let piece = 1.0 / (1.0 - 1000.0 * instructions * 2e-9);
        let work = Work { pieces: pieces(PERIODS[1], 9.0, piece), collected: 200_000 };
        let alone = Work { pieces: pieces(ALONE, 8.0, 1.0), collected: 0 };
        Measured::new(configuration, &work, &alone).expect("all pieces are there")
    }

    #[test]
    fn instructions_come_out_of_times() {
        let m = measured(COMPARED, 2500.0);
        assert!((m.instructions - 2500.0).abs() < 1e-6, "{m:?}");
        assert!((m.per_cent() - 0.25).abs() < 1e-9, "{m:?}");
        let floor = measured(Collector::Floor, 2000.0);
        assert_eq!(m.above_floor(&[floor, m.clone()]).map(f64::round), Some(500.0));
        assert_eq!(m.above_floor(std::slice::from_ref(&m)), None);
        let mut again = measured(COMPARED, 2510.0);
        again.configuration.again = true;
        assert_eq!(spread(&[again, m]).map(f64::round), Some(10.0));
    }

    #[test]
    fn the_table_has_a_row_for_each_collector() {
        let all = [measured(Collector::Floor, 2000.0), measured(COMPARED, 2500.0)];
        let figures = table(&all);
        assert_eq!(figures.columns, ["period", "2.5 ms", "1 ms", "0.1 ms"]);
        assert_eq!(figures.rows.len(), COLLECTORS.len() + 4);
        let name = format!("`{}`", COMPARED.name());
        assert_eq!(figures.rows[1], [name.as_str(), "", "2500", ""]);
        assert_eq!(figures.rows[2], ["... above an empty BPF program", "", "500", ""]);
    }

    #[test]
    fn a_collector_that_took_too_few_samples_is_no_figure() {
        let configuration = Configuration { collector: COMPARED, period: PERIODS[1], again: false };
        let work = Work { pieces: pieces(PERIODS[1], 1.0, 1.0), collected: 26_999 };
        let alone = Work { pieces: pieces(ALONE, 1.0, 1.0), collected: 0 };
        assert!(Measured::new(configuration, &work, &alone).is_err());
    }

    #[test]
    fn promises_and_regressions() {
        let floor = measured(Collector::Floor, 2000.0);
        let perf = measured(RIVAL, 2900.0);
        let check = |ours: f64, before: f64, broken: usize, grown: usize| {
            let all = [floor.clone(), perf.clone(), measured(COMPARED, ours)];
            let row = json!({"collector": COMPARED.name(), "period_ms": 1.0, "instructions_per_sample": before});
            let regressions = regressions(&all, &json!({ "rows": [row] }));
            assert_eq!((broken_promises(&all).len(), regressions.len()), (broken, grown), "{ours}");
        };
        check(2500.0, 2500.0, 0, 0);
        check(2590.0, 2500.0, 0, 0);
        check(2590.0, 2400.0, 0, 1);
        check(2700.0, 2700.0, 1, 0);
        check(2950.0, 2000.0, 2, 1);
    }
}
