//! What the JSON of several commands has in common. Names are cleaned: they may come from guests.

use std::collections::BTreeMap;

use analysis::steal::{Stolen, Thief, VmmTime};
use api::steal as json;
use model::Vendor;

use super::{Scene, cleaned};

pub(crate) fn recording(scene: &Scene) -> json::Recording {
    let header = &scene.recording.header;
    let vendor = match header.vendor {
        Vendor::Amd => "amd",
        Vendor::Intel => "intel",
        Vendor::Other => "other",
    };
    json::Recording {
        hostname: cleaned(&header.hostname),
        kernel: cleaned(&header.kernel),
        vendor: vendor.to_owned(),
        period_ns: header.period_ns,
        duration_ns: header.end.since(header.start),
        edges: scene.edges_name().to_owned(),
        complete: header.complete,
        notes: scene.notes().iter().map(|note| cleaned(note)).collect(),
    }
}

/// Most time first.
pub(crate) fn thieves(
    scene: &Scene,
    thieves: &BTreeMap<Thief, u64>,
    wall_ns: u64,
) -> Vec<json::Thief> {
    let names = scene.thief_names();
    let mut rows: Vec<_> = thieves.iter().collect();
    rows.sort_by_key(|(_, ns)| std::cmp::Reverse(**ns));
    let row = |(thief, ns): (&Thief, &u64)| json::Thief {
        kind: thief.kind().to_owned(),
        name: cleaned(&names.name(*thief)),
        vm: names.vm(*thief).map(|vm| cleaned(&scene.vm_row(vm).name)),
        ns: *ns,
        share: share(*ns, wall_ns),
    };
    rows.into_iter().map(row).collect()
}

/// Most time first.
pub(crate) fn reasons(
    scene: &Scene,
    reasons: &BTreeMap<Option<u32>, VmmTime>,
    wall_ns: u64,
) -> Vec<json::Reason> {
    let mut rows: Vec<_> = reasons.iter().collect();
    rows.sort_by_key(|(_, time)| std::cmp::Reverse(time.total_ns()));
    let row = |(reason, time): (&Option<u32>, &VmmTime)| json::Reason {
        reason: *reason,
        name: scene.reason(*reason),
        ns: time.total_ns(),
        waiting_ns: time.waiting_ns,
        share: share(time.total_ns(), wall_ns),
    };
    rows.into_iter().map(row).collect()
}

pub(crate) fn stolen(stolen: &Stolen) -> json::Stolen {
    json::Stolen {
        outside_ns: stolen.outside_ns,
        vmm_ns: stolen.vmm_ns,
        throttled_ns: stolen.throttled_ns,
    }
}

/// A part as a fraction, to six decimals.
fn share(part: u64, all: u64) -> f64 {
    (part as f64 / all.max(1) as f64 * 1e6).round() / 1e6
}
