//! A lane in columns of equal width, for text.

use super::{Doing, Lane, View};
use crate::timeline::Timeline;

/// What a lane did in a column: the longest, and for how many ns. `None`: it was not there.
pub type Cell = Option<(Doing, u64)>;

/// A lane's columns: exactly as many as the view has.
#[must_use]
pub fn cells(timeline: &Timeline, lane: &Lane, view: &View) -> Vec<Cell> {
    let _ = (timeline, lane);
    vec![None; view.columns]
}
