//! S0.8: what a sample costs; S0.11: with storing and sending.

use std::path::Path;

use anyhow::Context;

use super::Outcome;
use crate::overhead::{
    COMPARED, Collector, Configuration, MAX_ABOVE_FLOOR, Measured, PERIODS, Period, RECORDED,
    RECORDED_S, RIVAL, WINDOWS, find, measure,
};
use acceptance::vmscope;

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
    let measured = measure(&vmscope()?, &all)?;
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
        pass: above <= MAX_ABOVE_FLOOR && above < above_of_perf,
    })
}

/// S0.11: an agent's windows are stored and sent while a guest wants the only CPU, all the time. A recording's tables and
/// names are made while it does, too, and of optimised programs: what users have.
pub(super) fn stored_and_sent(_: &Path) -> anyhow::Result<Vec<Outcome>> {
    /// Of what `vmscope record` takes.
    const MORE: f64 = 1.1;
    /// Of a CPU.
    const PER_CENT: f64 = 1.0;
    let all = [
        (COMPARED, PERIODS[1]),
        (Collector::Finished(RECORDED_S), RECORDED),
        (Collector::Agent(30), WINDOWS),
    ]
    .map(|(collector, period)| Configuration { collector, period, again: false });
    let debug = vmscope()?;
    let folder = debug.parent().and_then(Path::parent).context("no folder of programs")?;
    let measured = measure(&folder.join("release/vmscope"), &all)?;
    let of = |configuration: &Configuration| {
        let Configuration { collector, period, .. } = *configuration;
        let found =
            find(&measured, collector, period.ns).context("a collector was not measured")?;
        anyhow::Ok((found.per_cent(), found.instructions))
    };
    let [sampled, recorded, sent] = &all;
    let ((_, sampled), (recorded_share, recorded), (share, sent)) =
        (of(sampled)?, of(recorded)?, of(sent)?);
    Ok(vec![Outcome {
        mark: "S0.11",
        what: "cost with windows of 30 s stored and sent, 1 ms".to_owned(),
        original: "1 %",
        ours: format!(
            "{share:.3} %: {sent:.0} instructions per sample; vmscope record, stored: {recorded_share:.3} %, {recorded:.0}; \
             while it samples: {sampled:.0}"
        ),
        limit: "1 %; 1.1 x record",
        pass: share <= PER_CENT && sent <= MORE * recorded,
    }])
}
