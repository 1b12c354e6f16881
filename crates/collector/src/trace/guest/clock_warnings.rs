//! Readings of a guest's clock that its counter could not be used for.

use std::collections::BTreeMap;

use tracer::outside::ClockError;

/// Why a counter could not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClockWarning {
    /// It contradicts the host's.
    #[error(transparent)]
    Counter(#[from] ClockError),
    /// Before or after the guest's reading: unknown.
    #[error("KVM changed its counter while it was read")]
    Changed,
    /// The guest's CPU is none of the VM's.
    #[error("it has no vCPU {0}")]
    NoVcpu(u32),
}

/// By kind: how often, and the worst.
#[derive(Debug, Default)]
pub(super) struct ClockWarnings(BTreeMap<u8, (u64, ClockWarning)>);

impl ClockWarning {
    /// Its kind, and how bad it is among those.
    fn rank(self) -> (u8, u64) {
        match self {
            Self::Counter(ClockError::Outside { off_ns }) => (0, off_ns),
            Self::Counter(ClockError::Backwards) => (1, 0),
            Self::Counter(ClockError::Scale) => (2, 0),
            Self::Changed => (3, 0),
            Self::NoVcpu(_) => (4, 0),
        }
    }
}

impl ClockWarnings {
    pub(super) fn extend(&mut self, warnings: impl IntoIterator<Item = ClockWarning>) {
        for warning in warnings {
            let (kind, badness) = warning.rank();
            let (count, worst) = self.0.entry(kind).or_insert((0, warning));
            *count += 1;
            if worst.rank().1 < badness {
                *worst = warning;
            }
        }
    }

    /// All of them in a sentence, if there are any.
    pub(super) fn note(&self) -> Option<String> {
        let kind = |(count, worst): &(u64, ClockWarning)| match count {
            1 => worst.to_string(),
            _ => format!("{worst} (the worst of {count})"),
        };
        let kinds: Vec<String> = self.0.values().map(kind).collect();
        let reported = kinds.join("; ");
        (!kinds.is_empty()).then(|| {
            format!(
                "its clock was read by the link's delay at times, not by its counter: {reported}"
            )
        })
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn warnings_are_reported_by_kind() {
        let mut warnings = ClockWarnings::default();
        assert_eq!(warnings.note(), None);
        for off_ns in [7, 900, 30] {
            warnings.extend([ClockWarning::Counter(ClockError::Outside { off_ns })]);
        }
        warnings.extend((0..1000).map(ClockWarning::NoVcpu));
        warnings.extend([ClockWarning::Changed]);
        assert_eq!(
            warnings.note().as_deref(),
            Some(
                "its clock was read by the link's delay at times, not by its counter: its time-stamp counter is not the \
                 host's with KVM's offset: off by 900 ns (the worst of 3); KVM changed its counter while it was read; \
                 it has no vCPU 0 (the worst of 1000)"
            )
        );
    }
}
