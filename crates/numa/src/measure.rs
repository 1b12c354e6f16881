//! What VMs do for a while, to compare it with what they do later.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use layout::Activity;
use model::Pid;

use crate::count::{Watched, count};
use crate::read::{VmProcess, guest_s};

/// Between two looks whether to stop.
const STEP: Duration = Duration::from_millis(100);

/// Measures VMs for this many seconds, or until `stop` returns true. A VM that ends meanwhile is left out.
pub fn measure(
    watched: &Watched,
    seconds: u32,
    stop: &dyn Fn() -> bool,
) -> BTreeMap<Pid, Activity> {
    let Watched { proc, vms, .. } = *watched;
    let guests = || -> Vec<Option<f64>> { vms.iter().map(|vm| guest_s(proc, vm).ok()).collect() };
    let (began, before) = (Instant::now(), guests());
    let mut counted = count(watched, seconds, stop);
    // Where nothing counts, `count` returns at once.
    let wanted = Duration::from_secs(seconds.into());
    while began.elapsed() < wanted && !stop() {
        std::thread::sleep(STEP.min(wanted.saturating_sub(began.elapsed())));
    }
    let (seconds, after) = (began.elapsed().as_secs_f64(), guests());
    let activity = |((vm, before), after): ((&VmProcess, Option<f64>), Option<f64>)| {
        let guest_s = (after? - before?).max(0.0);
        let samples = counted.samples.remove(&vm.pid).unwrap_or_default().1;
        Some((vm.pid, Activity { seconds, guest_s, samples }))
    };
    vms.iter().zip(before).zip(after).filter_map(activity).collect()
}
