//! A lane in pieces no finer than can be seen.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use model::HostNs;

use super::exact::{Exact, exact};
use super::{Activity, Lane, Piece, Subject, View};
use crate::timeline::TaskId;

/// A lane's pieces in a view: at most `2 * columns + 1`.
#[must_use]
pub fn pieces(subject: Subject<'_>, lane: &Lane, view: &View) -> Vec<Piece> {
    let range = lane.life.start.max(view.range.start)..lane.life.end.min(view.range.end);
    let mut folding = Folding::new(view.resolution_ns());
    exact(subject, lane.of, range, |it| folding.add(it));
    folding.finish()
}

/// Pieces of stretches that touch: neighbours become one until it is as long as the resolution.
#[must_use]
pub fn fold(
    stretches: impl Iterator<Item = (Range<HostNs>, Activity)>,
    resolution_ns: u64,
) -> Vec<Piece> {
    let mut folding = Folding::new(resolution_ns);
    for (range, activity) in stretches {
        folding.add(Exact { begin: range.start, end: range.end, activity, task: None });
    }
    folding.finish()
}

/// Makes one piece of neighbours that are too short to be seen.
pub(super) struct Folding {
    resolution_ns: u64,
    pieces: Vec<Piece>,
    /// The piece in the making, shorter than the resolution.
    begin: HostNs,
    end: HostNs,
    segments: u64,
    shares: BTreeMap<Activity, u64>,
    tasks: BTreeMap<Option<TaskId>, u64>,
}

impl Folding {
    pub(super) fn new(resolution_ns: u64) -> Self {
        let (begin, end) = (HostNs(0), HostNs(0));
        let (shares, tasks) = (BTreeMap::new(), BTreeMap::new());
        Self { resolution_ns, pieces: Vec::new(), begin, end, segments: 0, shares, tasks }
    }

    pub(super) fn add(&mut self, exact: Exact) {
        let ns = exact.end.since(exact.begin);
        if self.resolution_ns <= ns {
            self.flush();
        }
        if self.segments == 0 {
            self.begin = exact.begin;
        }
        self.end = exact.end;
        self.segments += 1;
        *self.shares.entry(exact.activity).or_default() += ns;
        *self.tasks.entry(exact.task).or_default() += ns;
        if self.resolution_ns <= self.end.since(self.begin) {
            self.flush();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    pub(super) fn finish(mut self) -> Vec<Piece> {
        self.flush();
        self.pieces
    }

    fn flush(&mut self) {
        let segments = std::mem::take(&mut self.segments);
        if segments == 0 {
            return;
        }
        let mut shares: Vec<_> = std::mem::take(&mut self.shares).into_iter().collect();
        let tasks = std::mem::take(&mut self.tasks);
        shares.sort_by_key(|&(_, ns)| Reverse(ns));
        let task = tasks
            .into_iter()
            .max_by_key(|&(task, ns)| (ns, Reverse(task)))
            .and_then(|(task, _)| task);
        self.pieces.push(Piece { begin: self.begin, end: self.end, segments, shares, task });
    }
}

impl View {
    /// How long a column is, rounded up; at least 1 ns.
    pub(super) fn resolution_ns(&self) -> u64 {
        let columns = u64::try_from(self.columns.max(1)).unwrap_or(u64::MAX);
        self.range.end.since(self.range.start).div_ceil(columns).max(1)
    }
}
