//! What counts as a change of each measure.

use crate::Measure;

/// What counts as a change of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rule {
    /// 1: a rise; -1: a fall.
    pub(crate) sign: f32,
    /// Least effect of a sudden change.
    pub(crate) sudden: f32,
    /// Least effect of a slow change.
    pub(crate) slow: f32,
    /// Least score of a slow change, in standard errors.
    pub(crate) score: f64,
    /// Least scale: what is smaller is noise.
    pub(crate) floor: f32,
    /// Beyond this, three values are a change before anything was learned: normal is 0.
    pub(crate) at_first: Option<f32>,
    /// The owner's own business: a level is normal if it was there yesterday at this time, or has lasted a day.
    pub(crate) is_own: bool,
}

/// Least score of slow changes of code.
const OWN: f64 = 6.0;

/// Of a host's or a VM's series.
pub(crate) fn rule(measure: &Measure) -> Rule {
    let share = |sudden: f32, slow: f32| Rule {
        sign: 1.0,
        sudden,
        slow,
        // Stolen time comes in outliers, which make steps.
        score: 8.0,
        floor: sudden / 8.0,
        at_first: None,
        is_own: false,
    };
    match measure {
        Measure::SamplesMissing => Rule { at_first: Some(0.1), ..share(0.05, 0.02) },
        Measure::Throttled => Rule { at_first: Some(0.1), ..share(0.02, 0.01) },
        Measure::StealOutside => Rule { at_first: Some(0.15), ..share(0.03, 0.015) },
        Measure::Exits(_) => Rule { floor: 0.1, ..share(1.0, 0.7) },
        Measure::StealVmm | Measure::HaltPolling => share(0.05, 0.02),
        Measure::Function(_) => {
            Rule { is_own: true, score: OWN, floor: 0.002, ..share(0.03, 0.01) }
        }
        Measure::Process(_) => Rule { is_own: true, score: OWN, ..share(0.05, 0.02) },
        Measure::Useful => Rule { sign: -1.0, ..share(0.06, 0.03) },
        // These have rules of their own.
        Measure::Windows | Measure::Demand => share(f32::MAX, f32::MAX),
    }
}

/// Of a function's deviation, averaged over the VMs in which it runs.
pub(crate) const POOLED: Rule = Rule {
    sign: 1.0,
    sudden: 0.01,
    slow: 0.001,
    score: OWN,
    floor: 0.0002,
    at_first: None,
    is_own: true,
};

/// VM exits per second and vCPU, as they are compared: 1 more is twice as many, and below 1000/s differences hardly count.
pub(crate) fn exits_value(per_s: f32) -> f32 {
    (1.0 + per_s / 1000.0).log2()
}

/// The other way round.
pub(crate) fn exits_per_s(value: f64) -> f64 {
    (value.exp2() - 1.0) * 1000.0
}
