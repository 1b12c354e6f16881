//! S0.8: what a sample costs.

use std::path::Path;

use anyhow::Context;

use super::Outcome;
use crate::overhead::{
    COMPARED, Collector, Configuration, MOST_ABOVE_FLOOR, Measured, PERIODS, Period, RIVAL, find,
    measure,
};

/// Vmscope, perf and an empty program, at the three periods of the original.
pub(super) fn per_sample(_: &Path) -> anyhow::Result<Vec<Outcome>> {
    let at = |period: Period| {
        [Collector::Floor, COMPARED, RIVAL].map(|collector| Configuration {
            collector,
            period,
            again: false,
        })
    };
    let all: Vec<Configuration> = PERIODS.into_iter().flat_map(at).collect();
    let measured = measure(&all)?;
    PERIODS.into_iter().map(|period| outcome(&measured, period)).collect()
}

fn outcome(measured: &[Measured], period: Period) -> anyhow::Result<Outcome> {
    let of = |collector| {
        let found = find(measured, collector, period.ns).context("a collector was not measured")?;
        let above = found.above_floor(measured).context("there is no floor")?;
        anyhow::Ok((found, above))
    };
    let (ours, above) = of(COMPARED)?;
    let (_, above_of_perf) = of(RIVAL)?;
    let [what, original] = match period.ns {
        100_000 => ["cost of sampling at 0.1 ms", "3.084 %"],
        1_000_000 => ["cost of sampling at 1 ms", "0.302 %"],
        _ => ["cost of sampling at 2.5 ms", "0.133 %"],
    };
    Ok(Outcome {
        mark: "S0.8",
        what: what.to_owned(),
        original,
        ours: format!(
            "{:.3} %: {:.0} instructions, {above:.0} above an empty program (perf record {above_of_perf:.0})",
            ours.per_cent(),
            ours.instructions
        ),
        limit: "600 above; < perf",
        pass: above <= MOST_ABOVE_FLOOR && above < above_of_perf,
    })
}
