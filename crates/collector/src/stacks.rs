//! Call stacks, each different one once.

use std::collections::HashMap;

use model::{Stack, StackId};

/// Bytes that readers of the recording need for all stacks at most, and for one: without and with its addresses.
const MAX_BYTES: usize = 512 << 20;
const ROW_BYTES: usize = 192;
const ADDRESS_BYTES: usize = 20;

/// The rows of the recording's `stacks` table so far.
#[derive(Debug, Default)]
pub(crate) struct StackTable {
    ids: HashMap<Stack, StackId>,
    fresh: Vec<Stack>,
    truncated: u64,
    bytes: usize,
    left_out: u64,
}

impl StackTable {
    /// The stack's row; `None` when it is empty, or there is no room for it.
    pub(crate) fn intern(&mut self, stack: Stack) -> Option<StackId> {
        if stack == Stack::default() {
            return None;
        }
        if let Some(id) = self.ids.get(&stack) {
            return Some(*id);
        }
        let of_guest = stack.guest.kernel.len() + stack.guest.user.len();
        let n_addresses = stack.kernel.len() + stack.user.len() + of_guest;
        let bytes = ROW_BYTES + ADDRESS_BYTES * n_addresses;
        if MAX_BYTES < self.bytes + bytes {
            self.left_out += 1;
            return None;
        }
        self.bytes += bytes;
        let id = StackId::from_index(self.ids.len());
        self.fresh.push(stack.clone());
        self.ids.insert(stack, id);
        Some(id)
    }

    /// The rows that are new since the last call.
    pub(crate) fn take_fresh(&mut self) -> Vec<Stack> {
        std::mem::take(&mut self.fresh)
    }

    /// A host stack lacks its outermost frames.
    pub(crate) fn count_truncated(&mut self) {
        self.truncated += 1;
    }

    /// Host stacks that lack their outermost frames.
    pub(crate) fn truncated(&self) -> u64 {
        self.truncated
    }

    /// Samples whose stack had no room.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// The rows, in order of their ids.
    pub(crate) fn into_rows(self) -> Vec<Stack> {
        let mut rows: Vec<_> = self.ids.into_iter().collect();
        rows.sort_unstable_by_key(|(_, id)| *id);
        rows.into_iter().map(|(stack, _)| stack).collect()
    }
}
