//! Host call stacks, each different one once.

use std::collections::HashMap;

use model::{HostVirt, Stack, StackId};
use probes::RawStack;

/// The rows of the recording's `stacks` table so far.
#[derive(Debug, Default)]
pub(crate) struct StackTable {
    ids: HashMap<Stack, StackId>,
    fresh: Vec<Stack>,
    truncated: u64,
}

impl StackTable {
    /// The stack's row; `None` when it is empty.
    pub(crate) fn intern(&mut self, raw: &RawStack<'_>) -> Option<StackId> {
        let stack = Stack {
            kernel: raw.kernel().map(HostVirt).collect(),
            user: raw.user().map(HostVirt).collect(),
        };
        if stack.kernel.is_empty() && stack.user.is_empty() {
            return None;
        }
        self.truncated += u64::from(raw.truncated());
        if let Some(id) = self.ids.get(&stack) {
            return Some(*id);
        }
        let id = StackId::from_index(self.ids.len());
        self.fresh.push(stack.clone());
        self.ids.insert(stack, id);
        Some(id)
    }

    /// The rows that are new since the last call.
    pub(crate) fn take_fresh(&mut self) -> Vec<Stack> {
        std::mem::take(&mut self.fresh)
    }

    /// Stacks that lack their outermost frames.
    pub(crate) fn truncated(&self) -> u64 {
        self.truncated
    }

    /// The rows, in order of their ids.
    pub(crate) fn into_rows(self) -> Vec<Stack> {
        let mut rows: Vec<_> = self.ids.into_iter().collect();
        rows.sort_unstable_by_key(|(_, id)| *id);
        rows.into_iter().map(|(stack, _)| stack).collect()
    }
}
