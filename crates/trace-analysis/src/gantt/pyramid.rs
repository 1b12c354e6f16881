//! The same lanes at several resolutions, for drawings that are zoomed.

use std::ops::Range;

use model::HostNs;

use super::exact::exact;
use super::pieces::Folding;
use super::{Lane, Piece, Subject, View};

/// How wide the coarsest level is, unless that has too many pieces.
const COLUMNS: usize = 512;
/// How much finer each level is than the one before.
const STEP: usize = 4;

/// Levels from coarse to fine. A drawing takes the first whose resolution is below a pixel, or the last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pyramid {
    /// The levels; at least one.
    pub levels: Vec<Level>,
    /// Whether every piece of the last one is exact.
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

/// Levels of these lanes, each four times as fine as the one before, from 512 columns on, until one is exact or the next
/// had more than `max_pieces` pieces. The first has fewer columns if it must, and at least one.
#[must_use]
pub fn pyramid(
    subject: Subject<'_>,
    lanes: &[Lane],
    range: &Range<HostNs>,
    max_pieces: usize,
) -> Pyramid {
    let at = |columns, room| {
        let view = View { range: range.clone(), columns };
        level(subject, lanes, view.resolution_ns(), room)
    };
    let (mut columns, mut first) = (COLUMNS, at(COLUMNS, max_pieces));
    while first.is_none() {
        columns = columns.div_ceil(STEP);
        first = at(columns, if columns == 1 { usize::MAX } else { max_pieces });
    }
    let mut levels: Vec<Level> = first.into_iter().collect();
    while !levels.last().is_some_and(Level::is_exact) {
        columns = columns.saturating_mul(STEP);
        let Some(finer) = at(columns, max_pieces) else { return Pyramid { levels, exact: false } };
        levels.push(finer);
    }
    Pyramid { levels, exact: true }
}

/// One level, unless it has more pieces than there is room for.
fn level(subject: Subject<'_>, lanes: &[Lane], resolution_ns: u64, room: usize) -> Option<Level> {
    let mut level = Level { resolution_ns, pieces: Vec::with_capacity(lanes.len()) };
    let mut used = 0;
    for lane in lanes {
        let mut folding = Folding::new(resolution_ns);
        exact(subject, lane.of, lane.life.clone(), |it| {
            if used + folding.len() <= room {
                folding.add(it);
            }
        });
        let pieces = folding.finish();
        used += pieces.len();
        if room < used {
            return None;
        }
        level.pieces.push(pieces);
    }
    Some(level)
}

impl Level {
    fn is_exact(&self) -> bool {
        self.pieces.iter().flatten().all(|piece| piece.segments == 1)
    }
}
