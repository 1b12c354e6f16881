//! From times to instructions per sample.

use anyhow::bail;
use serde_json::{Value, json};

use crate::configuration::{ALONE, COMPARED, Collector, Configuration, RIVAL};

/// The deterministic host runs one instruction in 2 ns.
const NS_PER_INSTRUCTION: f64 = 2.0;
/// What the cheapest way to record may cost above the floor.
const MOST_ABOVE_FLOOR: f64 = 600.0;
/// How much a figure may grow, as a share of the checked-in one.
const TOLERANCE: f64 = 0.05;

/// What came of the work once.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Work {
    /// Seconds that each piece took, by the guest's clock.
    pub(crate) pieces: Vec<f64>,
    /// Samples that the collector said it took.
    pub(crate) collected: u64,
}

/// The cost of one configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measured {
    pub(crate) configuration: Configuration,
    /// All that is run because of a sample: exit, interrupt, program, and the consumer's share.
    pub(crate) instructions: f64,
    /// Half of what lies between the quartiles of the pieces, in instructions per sample.
    pub(crate) spread: f64,
}

impl Measured {
    /// The cost, from the median piece of work: a collector's own rounds fall into every piece, but now and
    /// then something else of the host falls into one.
    pub(crate) fn new(
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
        let alone_ns =
            quantile(&alone.pieces, 0.5) * 1e9 / f64::from(ALONE.units) * f64::from(period.units);
        let instructions = |quarter: f64| {
            let took_ns = quantile(&work.pieces, quarter) * 1e9;
            let samples = took_ns / f64::from(period.ns);
            (took_ns - alone_ns) / samples / NS_PER_INSTRUCTION
        };
        Ok(Self {
            configuration,
            instructions: instructions(0.5),
            spread: (instructions(0.75) - instructions(0.25)) / 2.0,
        })
    }

    /// Of the CPU's time, if it runs one instruction per ns.
    pub(crate) fn per_cent(&self) -> f64 {
        100.0 * self.instructions / f64::from(self.configuration.period.ns)
    }

    /// What is left when the empty program's cost is taken off.
    pub(crate) fn above_floor(&self, all: &[Self]) -> Option<f64> {
        let floor = find(all, Collector::Floor, self.configuration.period.ns)?;
        Some(self.instructions - floor.instructions)
    }

    pub(crate) fn json(&self, all: &[Self]) -> Value {
        json!({
            "collector": self.configuration.collector.name(),
            "period_ms": self.configuration.period_ms(),
            "instructions_per_sample": self.instructions.round(),
            "above_floor": self.above_floor(all).map(f64::round),
            "spread": self.spread.round(),
            "per_cent": (self.per_cent() * 1000.0).round() / 1000.0,
            "original_per_cent": self.configuration.period.original,
        })
    }
}

/// What must hold whatever was measured before; one line for each that does not.
pub(crate) fn broken_promises(all: &[Measured]) -> Vec<String> {
    let ours = all.iter().filter(|m| m.configuration.collector == COMPARED);
    ours.flat_map(|ours| {
        let name = ours.configuration.name();
        let rival = find(all, RIVAL, ours.configuration.period.ns);
        let dearer = rival.filter(|rival| rival.instructions <= ours.instructions);
        let high = ours.above_floor(all).filter(|above| MOST_ABOVE_FLOOR < *above);
        [
            dearer.map(|rival| {
                format!(
                    "{name}: {:.0}, not below perf's {:.0}",
                    ours.instructions, rival.instructions
                )
            }),
            high.map(|above| {
                format!("{name}: {above:.0} above the floor, {MOST_ABOVE_FLOOR} allowed")
            }),
        ]
    })
    .flatten()
    .collect()
}

/// The rows of vmscope that cost more than `before` (our own JSON of another day) allows.
pub(crate) fn regressions(all: &[Measured], before: &Value) -> Vec<String> {
    let rows = before["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let ours = all.iter().filter(|m| matches!(m.configuration.collector, Collector::Vmscope(_)));
    ours.filter_map(|m| {
        let name = m.configuration.collector.name();
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

fn find(all: &[Measured], collector: Collector, period_ns: u32) -> Option<&Measured> {
    all.iter()
        .find(|m| m.configuration.collector == collector && m.configuration.period.ns == period_ns)
}

/// With straight lines between the values.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let place = share * last as f64;
    let below = (0..=last).rev().find(|i| *i as f64 <= place).unwrap_or(0);
    let value = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
    let above = value((below + 1).min(last));
    value(below) + (above - value(below)) * (place - below as f64)
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::configuration::PERIODS;

    /// One millisecond, one second of work in pieces.
    fn measured(collector: Collector, instructions: f64) -> Measured {
        let configuration = Configuration { collector, period: PERIODS[1] };
        // 1 s alone, and 1000 samples' cost more in x s: x = 1 + 1000 x * cost * 2 ns.
        let piece = 1.0 / (1.0 - 1000.0 * instructions * 2e-9);
        let work = Work { pieces: vec![piece; 5], collected: 10_000 };
        let alone = Work { pieces: vec![1.0; 7], collected: 0 };
        Measured::new(configuration, &work, &alone).unwrap()
    }

    #[test]
    fn instructions_come_out_of_times() {
        let m = measured(COMPARED, 2500.0);
        assert!((m.instructions - 2500.0).abs() < 1e-6, "{m:?}");
        assert!((m.per_cent() - 0.25).abs() < 1e-9 && m.spread.abs() < 1e-9, "{m:?}");
        let floor = measured(Collector::Floor, 2000.0);
        assert_eq!(m.above_floor(&[floor, m.clone()]).map(f64::round), Some(500.0));
        assert_eq!(m.above_floor(std::slice::from_ref(&m)), None);
    }

    #[test]
    fn a_collector_that_took_too_few_samples_is_no_figure() {
        let configuration = Configuration { collector: COMPARED, period: PERIODS[1] };
        let work = Work { pieces: vec![1.0; 5], collected: 4_999 };
        let alone = Work { pieces: vec![1.0; 7], collected: 0 };
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

    #[test]
    fn quantiles() {
        let check = |share, expected| {
            assert_eq!(quantile(&[4.0, 1.0, 2.0, 3.0, 5.0], share), expected);
        };
        check(0.0, 1.0);
        check(0.25, 2.0);
        check(0.5, 3.0);
        check(0.6, 3.4);
        check(1.0, 5.0);
    }
}
