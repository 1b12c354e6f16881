//! A lane in columns of equal width, for text.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::exact::exact;
use super::{Activity, Lane, Subject, View};

/// What a lane did longest in a column, and for how many ns. `None`: it was not there.
pub type Cell = Option<(Activity, u64)>;

/// A lane's columns: exactly as many as the view has.
#[must_use]
pub fn cells(subject: Subject<'_>, lane: &Lane, view: &View) -> Vec<Cell> {
    let mut cells = Vec::with_capacity(view.columns);
    let mut sums: BTreeMap<Activity, u64> = BTreeMap::new();
    let range = lane.life.start.max(view.range.start)..lane.life.end.min(view.range.end);
    exact(subject, lane.of, range, |mut it| {
        while it.begin < it.end {
            // Columns before this stretch are finished.
            while view.edge(cells.len() + 1) <= it.begin.0 {
                cells.push(longest(&mut sums));
            }
            let end = it.end.0.min(view.edge(cells.len() + 1));
            *sums.entry(it.activity).or_default() += end - it.begin.0;
            it.begin.0 = end;
        }
    });
    cells.push(longest(&mut sums));
    cells.resize(view.columns, None);
    cells
}

fn longest(sums: &mut BTreeMap<Activity, u64>) -> Cell {
    std::mem::take(sums).into_iter().max_by_key(|&(activity, ns)| (ns, Reverse(activity)))
}

impl View {
    /// Where a column begins; the end for the one behind the last.
    fn edge(&self, column: usize) -> u64 {
        let length = u128::from(self.range.end.since(self.range.start));
        let columns = self.columns.max(1) as u128;
        let offset = length * (column as u128).min(columns) / columns;
        self.range.start.0 + u64::try_from(offset).unwrap_or(u64::MAX)
    }
}
