//! Moves of memory in an order in which each has room.

use crate::topology::{HugePage, NodeBytes};

/// A part of a VM's memory goes from one node to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The VM's place in the load.
    pub vm: usize,
    /// The node it leaves, by its place in the topology.
    pub from: usize,
    /// The node it goes to.
    pub to: usize,
    pub bytes: u64,
    /// What the memory is made of.
    pub page: HugePage,
    /// The cell of the guest whose memory it is; `None`: any of the VM's.
    pub cell: Option<usize>,
}

/// Rounds over all moves at most: where nodes are full, memory goes round in as many pieces as free memory allows.
const MAX_ROUNDS: usize = 64;
/// A round that moves less is the last.
const MIN_PROGRESS: u64 = 2 << 20;

/// Moves that turn `before` into `after`, memory by node of each VM, made of `pages`. What has no room even piece by piece is
/// left out.
pub(crate) fn order(
    before: &[Vec<u64>],
    after: &[Vec<u64>],
    pages: &[HugePage],
    free: &NodeBytes,
) -> Vec<Move> {
    let mut left = pairs(before, after, pages);
    let mut free = free.clone();
    let mut ordered: Vec<Move> = Vec::new();
    for _ in 0..MAX_ROUNDS {
        let mut progress = 0_u64;
        for step in &mut left {
            let bytes = step.bytes.min(whole_pages(free.on(step.page, step.to), step.page));
            if bytes == 0 {
                continue;
            }
            step.bytes -= bytes;
            let part = Move { bytes, ..*step };
            free.carry_out(&part);
            progress += bytes;
            push(&mut ordered, part);
        }
        left.retain(|step| 0 < step.bytes);
        if left.is_empty() || progress < MIN_PROGRESS {
            break;
        }
    }
    ordered
}

/// What each VM has too much of on one node goes to where it has too little.
pub(crate) fn pairs(before: &[Vec<u64>], after: &[Vec<u64>], pages: &[HugePage]) -> Vec<Move> {
    let mut moves = Vec::new();
    for (vm, ((before, after), page)) in before.iter().zip(after).zip(pages).enumerate() {
        let excess = |a: &[u64], b: &[u64]| -> Vec<u64> {
            a.iter().zip(b).map(|(a, b)| a.saturating_sub(*b)).collect()
        };
        let (mut too_much, mut too_little) = (excess(before, after), excess(after, before));
        for (from, too_much) in too_much.iter_mut().enumerate() {
            for (to, too_little) in too_little.iter_mut().enumerate() {
                let bytes = (*too_much).min(*too_little);
                if 0 < bytes {
                    *too_much -= bytes;
                    *too_little -= bytes;
                    moves.push(Move { vm, from, to, bytes, page: *page, cell: None });
                }
            }
        }
    }
    moves
}

/// The bytes of whole pages among these.
fn whole_pages(bytes: u64, page: HugePage) -> u64 {
    bytes - page.map_or(0, |page| bytes % page.max(1))
}

/// A move like the one before is one with it.
fn push(ordered: &mut Vec<Move>, step: Move) {
    match ordered.last_mut() {
        Some(last) if (last.vm, last.from, last.to) == (step.vm, step.from, step.to) => {
            last.bytes += step.bytes;
        }
        _ => ordered.push(step),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn check(
        before: &[&[u64]],
        after: &[&[u64]],
        free: &[u64],
        expected: &[(usize, usize, usize, u64)],
    ) {
        const G: u64 = 1 << 30;
        let scaled = |rows: &[&[u64]]| -> Vec<Vec<u64>> {
            rows.iter().map(|row| row.iter().map(|n| n * G).collect()).collect()
        };
        let free: Vec<u64> = free.iter().map(|n| n * G).collect();
        let pages = vec![None; before.len()];
        let moves = order(&scaled(before), &scaled(after), &pages, &free.into());
        let found: Vec<_> =
            moves.iter().map(|step| (step.vm, step.from, step.to, step.bytes / G)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn each_move_has_room() {
        check(&[&[4, 0]], &[&[0, 4]], &[0, 4], &[(0, 0, 1, 4)]);
        // The second must go first.
        check(
            &[&[4, 0, 0], &[0, 4, 0]],
            &[&[0, 4, 0], &[0, 0, 4]],
            &[0, 0, 4],
            &[(1, 1, 2, 4), (0, 0, 1, 4)],
        );
        // An exchange through 2 GiB of free memory.
        check(
            &[&[4, 0], &[0, 4]],
            &[&[0, 4], &[4, 0]],
            &[0, 2],
            &[(0, 0, 1, 2), (1, 1, 0, 2), (0, 0, 1, 2), (1, 1, 0, 2)],
        );
        // Without any it is impossible.
        check(&[&[4, 0], &[0, 4]], &[&[0, 4], &[4, 0]], &[0, 0], &[]);
        check(&[&[2, 2]], &[&[2, 2]], &[9, 9], &[]);
    }

    #[test]
    fn huge_pages_have_room_of_their_own() {
        const PAGE: u64 = 2 << 20;
        let ordered = |pages: [HugePage; 2], usual: u64, huge: u64| {
            let mut free = NodeBytes::from(vec![0, usual]);
            free.add_on(Some(PAGE), 1, huge);
            let before = [vec![4 * PAGE, 0], vec![4 * PAGE, 0]];
            let after = [vec![0, 4 * PAGE], vec![0, 4 * PAGE]];
            let moves = order(&before, &after, &pages, &free);
            moves.iter().map(|step| (step.vm, step.bytes / PAGE)).collect::<Vec<_>>()
        };
        let (usual, huge) = (None, Some(PAGE));
        assert_eq!(ordered([usual, huge], 4 * PAGE, 0), [(0, 4)]);
        assert_eq!(ordered([usual, huge], 0, 4 * PAGE + 4096), [(1, 4)]);
        assert_eq!(ordered([huge, huge], 64 * PAGE, 6 * PAGE), [(0, 4), (1, 2)]);
        assert_eq!(ordered([huge, Some(1 << 30)], 64 * PAGE, 8 * PAGE), [(0, 4)]);
    }
}
