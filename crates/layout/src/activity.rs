//! What VMs did before and after they were moved, and what that gained.

use crate::load::{Sample, counted_remote};

/// What a VM did for a while.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Activity {
    pub seconds: f64,
    /// CPU time of the guest, summed over vCPUs, in seconds.
    pub guest_s: f64,
    /// What was counted of it meanwhile; empty where nothing counts.
    pub samples: Vec<Sample>,
}

impl Activity {
    /// How many CPUs its guest kept busy.
    #[must_use]
    pub fn cpus(&self) -> Option<f64> {
        (0.0 < self.seconds).then(|| self.guest_s / self.seconds)
    }

    /// Instructions in a second of guest time: a guest that waits less for memory has more. `None`: nothing counts them.
    #[must_use]
    pub fn instructions_per_guest_s(&self) -> Option<f64> {
        let all: Option<f64> = self.samples.iter().map(|sample| sample.instructions).sum();
        let counted_s: f64 = self.samples.iter().map(|sample| sample.seconds).sum();
        let guest_s = self.cpus()? * counted_s;
        all.filter(|all| 0.0 < *all && 0.0 < guest_s).map(|all| all / guest_s)
    }

    /// The part of its accesses that went to other nodes; `None`: nothing counts them.
    #[must_use]
    pub fn remote(&self) -> Option<f64> {
        counted_remote(&self.samples)
    }

    /// How much faster its guest ran afterwards, if it did the same kind of work: 0.5 is half as fast again.
    #[must_use]
    pub fn gain(&self, after: &Self) -> Option<f64> {
        Some(after.instructions_per_guest_s()? / self.instructions_per_guest_s()? - 1.0)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn activity(guest_s: f64, counted: &[(f64, Option<f64>, Option<f64>)]) -> Activity {
        let sample = |(seconds, instructions, remote): &(f64, Option<f64>, Option<f64>)| Sample {
            seconds: *seconds,
            misses: 1.0,
            instructions: *instructions,
            remote: *remote,
        };
        Activity { seconds: 2.0, guest_s, samples: counted.iter().map(sample).collect() }
    }

    #[test]
    fn gains() {
        let check = |before: &Activity, after: &Activity, expected| {
            assert_eq!(before.gain(after), expected, "{before:?} {after:?}");
        };
        let one = activity(1.0, &[(1.0, Some(10.0), None), (1.0, Some(30.0), None)]);
        check(&one, &activity(1.0, &[(2.0, Some(60.0), None)]), Some(0.5));
        // It slept more: what counts is guest time.
        check(&one, &activity(0.5, &[(2.0, Some(20.0), None)]), Some(0.0));
        // One of the two seconds was counted.
        check(&one, &activity(1.0, &[(1.0, Some(20.0), None)]), Some(0.0));
        for nothing in [
            activity(1.0, &[]),
            activity(1.0, &[(1.0, None, None)]),
            activity(1.0, &[(1.0, Some(0.0), None)]),
            activity(0.0, &[(2.0, Some(9.0), None)]),
            Activity::default(),
        ] {
            check(&one, &nothing, None);
            check(&nothing, &one, None);
        }
    }

    #[test]
    fn what_is_known_without_instructions() {
        let vm = activity(3.0, &[(1.0, None, Some(0.2)), (1.0, None, Some(0.4))]);
        assert_eq!(
            (vm.cpus(), vm.remote().map(|part| (part * 1e3).round())),
            (Some(1.5), Some(300.0))
        );
        assert_eq!((Activity::default().cpus(), Activity::default().remote()), (None, None));
    }
}
