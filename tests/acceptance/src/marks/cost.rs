//! S0.8: what a sample costs; S0.11: with storing and sending.

use std::path::Path;

use anyhow::Context;

use super::Outcome;
use crate::overhead::{
    COMPARED, Collector, Configuration, MOST_ABOVE_FLOOR, Measured, PERIODS, Period, RIVAL,
    WINDOWS, find, measure,
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

/// S0.11: an agent's windows are stored and sent while a guest wants the only CPU, all the time.
pub(super) fn stored_and_sent(_: &Path) -> anyhow::Result<Vec<Outcome>> {
    /// Of what `vmscope record` takes.
    const MORE: f64 = 1.1;
    /// Of a CPU.
    const PER_CENT: f64 = 1.0;
    let agent = Collector::Agent(30);
    let all = [COMPARED, agent].map(|collector| Configuration {
        collector,
        period: WINDOWS,
        again: false,
    });
    let measured = measure(&all)?;
    let of =
        |collector| find(&measured, collector, WINDOWS.ns).context("a collector was not measured");
    let (recorded, sent) = (of(COMPARED)?, of(agent)?);
    Ok(vec![Outcome {
        mark: "S0.11",
        what: "cost with windows of 30 s stored and sent, 1 ms".to_owned(),
        original: "1 %",
        ours: format!(
            "{:.3} %: {:.0} instructions per sample; vmscope record {:.3} %: {:.0}",
            sent.per_cent(),
            sent.instructions,
            recorded.per_cent(),
            recorded.instructions
        ),
        limit: "1 %; 1.1 x record",
        pass: sent.per_cent() <= PER_CENT && sent.instructions <= MORE * recorded.instructions,
    }])
}
