//! The tree as the data of `flame.js`.

use analysis::flow::{Flow, FrameKind};
use serde_json::{Value, json};
use table::clean;

use analysis::flow::tree::Tree;

/// Style class and name of each kind of frame, in the order of the legend.
pub(super) const KINDS: [(FrameKind, &str); 7] = [
    (FrameKind::GuestUser, "guest-user"),
    (FrameKind::GuestKernel, "guest-kernel"),
    (FrameKind::HostUser, "host-user"),
    (FrameKind::HostKernel, "host-kernel"),
    (FrameKind::Idle, "idle"),
    (FrameKind::Vm, "vm"),
    (FrameKind::Process, "process"),
];

/// The place of `kind` in `KINDS`.
pub(super) fn kind_index(kind: FrameKind) -> usize {
    match kind {
        FrameKind::GuestUser => 0,
        FrameKind::GuestKernel => 1,
        FrameKind::HostUser => 2,
        FrameKind::HostKernel => 3,
        FrameKind::Idle => 4,
        FrameKind::Vm => 5,
        FrameKind::Process => 6,
    }
}

/// Labels and nodes: see `flame.js`.
pub(super) fn data(flow: &Flow, tree: &Tree<'_>) -> Value {
    let modules: Vec<_> = flow.modules.iter().map(|module| clean(&module.path)).collect();
    let labels: Vec<Value> = tree
        .labels
        .iter()
        .map(|label| json!([clean(label.name), kind_index(label.kind), label.module]))
        .collect();
    json!({
        "kinds": KINDS.map(|(_, class)| class),
        "modules": modules,
        "labels": labels,
        "nodes": {
            "label": tree.nodes.iter().map(|node| index_or_minus_one(node.label)).collect::<Value>(),
            "depth": tree.nodes.iter().map(|node| node.depth).collect::<Value>(),
            "total": tree.nodes.iter().map(|node| node.total).collect::<Value>(),
        },
    })
}

fn index_or_minus_one(index: Option<usize>) -> Value {
    index.map_or_else(|| json!(-1), |index| json!(index))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn each_kind_finds_its_class() {
        for (index, (kind, _)) in KINDS.into_iter().enumerate() {
            assert_eq!(kind_index(kind), index);
        }
    }
}
