//! How a treatment goes on beyond the steps that were measured: a small queueing model.
//!
//! The CPUs are one queue with `c` servers. With N VMs they are busy for
//!
//! ```text
//!  U(N) = a + b N      CPUs; a: what does not depend on the number of VMs (requests, the host), b: a VM more
//!  r(N) = U(N) / c     a part of 1; at 1 the host is full
//! ```
//!
//! by the utilisation law, and a turnaround is the time that it takes alone, stretched by waiting for a CPU:
//!
//! ```text
//!  T(N) = s (1 + k W(N)),     W = C(c, c r) / (c (1 - r))
//! ```
//!
//! where C is Erlang's waiting probability (M/M/c; for c = 1, W = r / (1 - r), so that with k = 1 it is 1 / (1 - r), as in
//! M/G/1 with processor sharing). `k` is how much of the waiting a request meets: above 1 when it needs a CPU several times
//! in a row, below 1 when the scheduler prefers it. Both: L. Kleinrock, Queueing Systems, volume 1, chapter 3, and volume 2,
//! chapter 4. `a` and `b` come from the CPU time that was measured, `s` and `k` from the turnarounds, all by least squares.

use crate::statistics::line;

/// What was measured at a number of VMs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub vms: u32,
    /// CPUs that were busy on average.
    pub busy_cpus: f64,
    /// Turnaround, ms: the mean, or a percentile.
    pub turnaround_ms: f64,
}

/// A model of a treatment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    /// CPUs of the host.
    pub cpus: u32,
    /// CPUs busy without any VM.
    pub base_cpus: f64,
    /// CPUs busy for a VM more.
    pub cpus_per_vm: f64,
    /// Turnaround alone, ms.
    pub alone_ms: f64,
    /// How much of the waiting a request meets.
    pub factor: f64,
}

/// What a model says of a number of VMs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Predicted {
    /// Turnaround, ms.
    Ms(f64),
    /// The host is full: there is more work than its CPUs can do, and turnarounds grow as long as it lasts.
    Full,
}

impl Model {
    /// Fits a model to steps. `None`: less than three of them, or none at which the host was not full.
    #[must_use]
    pub fn fit(cpus: u32, points: &[Point]) -> Option<Self> {
        if points.len() < 3 || cpus == 0 {
            return None;
        }
        let busy: Vec<(f64, f64)> =
            points.iter().map(|point| (f64::from(point.vms), point.busy_cpus)).collect();
        let (base_cpus, cpus_per_vm) = line(&busy)?;
        let empty = Self { cpus, base_cpus, cpus_per_vm, alone_ms: 0.0, factor: 0.0 };
        let waits: Vec<(f64, f64)> = points
            .iter()
            .filter_map(|point| Some((empty.waiting(point.vms)?, point.turnaround_ms)))
            .collect();
        if waits.len() < 2 {
            return None;
        }
        // T = s + s k W is a line over W.
        let mean = waits.iter().map(|(_, ms)| ms).sum::<f64>() / waits.len() as f64;
        let (alone_ms, slope) = line(&waits).filter(|(s, _)| 0.0 < *s).unwrap_or((mean, 0.0));
        let slope = slope.max(0.0);
        let alone_ms = if slope == 0.0 { mean } else { alone_ms };
        Some(Self { alone_ms, factor: slope / alone_ms, ..empty })
    }

    /// The turnaround with this many VMs.
    #[must_use]
    pub fn predict(&self, vms: u32) -> Predicted {
        match self.waiting(vms) {
            Some(waiting) => Predicted::Ms(self.alone_ms * (1.0 + self.factor * waiting)),
            None => Predicted::Full,
        }
    }

    /// The part of the CPUs' time that is used with so many VMs; 1 and more: full.
    #[must_use]
    pub fn utilisation(&self, vms: u32) -> f64 {
        let busy = self.base_cpus + self.cpus_per_vm * f64::from(vms);
        (busy / f64::from(self.cpus)).max(0.0)
    }

    /// The most VMs that leave the host any CPU time. `None`: no number of VMs fills it.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative; casts saturate"
    )]
    pub fn most_vms(&self) -> Option<u32> {
        let left = f64::from(self.cpus) - self.base_cpus;
        (0.0 < self.cpus_per_vm)
            .then(|| (left / self.cpus_per_vm).max(0.0).ceil() as u32)
            .map(|full| full.saturating_sub(1))
    }

    /// The most VMs, up to `limit`, whose turnaround is no longer than this.
    #[must_use]
    pub fn most_within(&self, ms: f64, limit: u32) -> u32 {
        let keeps = |vms: u32| matches!(self.predict(vms), Predicted::Ms(t) if t <= ms);
        // It only grows: half of the range at a time.
        let (mut good, mut bad) = (0, limit.saturating_add(1));
        while 1 < bad - good {
            let middle = good + (bad - good) / 2;
            if keeps(middle) { good = middle } else { bad = middle }
        }
        good
    }

    /// Waiting in units of the service time; `None`: full.
    fn waiting(&self, vms: u32) -> Option<f64> {
        let r = self.utilisation(vms);
        if 1.0 <= r {
            return None;
        }
        let c = f64::from(self.cpus);
        Some(erlang_c(self.cpus, c * r) / (c * (1.0 - r)))
    }
}

/// The probability that all `c` servers are busy when `a` would be on average (Erlang's second formula), by the recursion of
/// his first one, which stays exact for large `c`.
fn erlang_c(c: u32, a: f64) -> f64 {
    let blocked = (1..=c).fold(1.0, |b, n| a * b / (f64::from(n) + a * b));
    let r = a / f64::from(c);
    blocked / (1.0 - r * (1.0 - blocked))
}

#[cfg(test)]
mod test {
    use super::*;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6 * expected.abs().max(1.0), "{found} {expected}");
    }

    #[test]
    fn erlangs_formula() {
        near(erlang_c(1, 0.5), 0.5);
        // From tables: c = 2, a = 1: 1/3; c = 10, a = 5: 0.036105.
        near(erlang_c(2, 1.0), 1.0 / 3.0);
        assert!((erlang_c(10, 5.0) - 0.036_105).abs() < 1e-6);
        near(erlang_c(3, 0.0), 0.0);
    }

    /// What an M/M/c queue with these VMs would show.
    fn measured(
        cpus: u32,
        base: f64,
        per_vm: f64,
        alone: f64,
        factor: f64,
        vms: &[u32],
    ) -> Vec<Point> {
        let model = Model { cpus, base_cpus: base, cpus_per_vm: per_vm, alone_ms: alone, factor };
        let point = |vms: &u32| {
            let Predicted::Ms(turnaround_ms) = model.predict(*vms) else { panic!("full") };
            let busy_cpus = model.utilisation(*vms) * f64::from(cpus);
            Point { vms: *vms, busy_cpus, turnaround_ms }
        };
        vms.iter().map(point).collect()
    }

    #[test]
    fn a_model_finds_what_made_its_points() {
        for cpus in [1, 2, 16] {
            let per_vm = 0.02 * f64::from(cpus);
            let points = measured(cpus, 0.1, per_vm, 20.0, 1.5, &[1, 2, 4, 8, 16]);
            let model = Model::fit(cpus, &points).unwrap();
            near(model.base_cpus, 0.1);
            near(model.cpus_per_vm, per_vm);
            near(model.alone_ms, 20.0);
            near(model.factor, 1.5);
            let [beyond] = measured(cpus, 0.1, per_vm, 20.0, 1.5, &[32])[..] else { panic!() };
            let Predicted::Ms(found) = model.predict(32) else { panic!("full") };
            near(found, beyond.turnaround_ms);
            assert_eq!(model.predict(60), Predicted::Full);
        }
    }

    #[test]
    fn the_most_vms() {
        let model =
            Model { cpus: 2, base_cpus: 0.5, cpus_per_vm: 0.05, alone_ms: 10.0, factor: 1.0 };
        assert_eq!(model.most_vms(), Some(29));
        assert_eq!(model.predict(30), Predicted::Full);
        let most = model.most_within(20.0, 1000);
        assert!(matches!(model.predict(most), Predicted::Ms(ms) if ms <= 20.0));
        assert!(!matches!(model.predict(most + 1), Predicted::Ms(ms) if ms <= 20.0));
        assert_eq!(model.most_within(1.0, 1000), 0);
        assert_eq!(model.most_within(1e9, 7), 7);
    }

    #[test]
    fn too_little_was_measured() {
        let points = measured(2, 0.1, 0.02, 20.0, 1.0, &[1, 2]);
        assert_eq!(Model::fit(2, &points), None);
        assert_eq!(Model::fit(0, &[points[0]; 3]), None);
        assert_eq!(Model::fit(2, &[points[0]; 3]), None);
    }
}
