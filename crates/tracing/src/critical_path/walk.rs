//! The walk back through the wake-ups.

use super::{CriticalPath, Doing, PathSegment, Scope, Via};
use crate::timeline::Timeline;

/// The critical path of a scope.
#[must_use]
pub fn critical_path(timeline: &Timeline, scope: Scope) -> CriticalPath {
    let _ = timeline;
    let Scope { task, begin, end, .. } = scope;
    let unknown = PathSegment { begin, end, task, via: Via::Itself, doing: Doing::Unknown };
    CriticalPath { scope, segments: if begin < end { vec![unknown] } else { Vec::new() } }
}
