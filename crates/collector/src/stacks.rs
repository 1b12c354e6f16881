//! Call stacks, each different one once.

use std::collections::{BTreeMap, HashMap};

use model::{GuestStack, Stack, StackEnd, StackId, VcpuId};

/// Bytes that readers of the recording need for all stacks at most, and for one: without and with its addresses.
const MAX_BYTES: usize = 512 << 20;
const ROW_BYTES: usize = 192;
const ADDRESS_BYTES: usize = 20;
/// The same for the stacks of one vCPU's guest, which may all be different: others keep theirs.
const MAX_BYTES_OF_VCPU: usize = 32 << 20;

/// The rows of the recording's `stacks` table so far.
#[derive(Debug, Default)]
pub(crate) struct StackTable {
    ids: HashMap<Stack, StackId>,
    fresh: Vec<Stack>,
    truncated: u64,
    bytes: usize,
    left_out: u64,
    /// Of `bytes`, those of stacks that a vCPU's samples had first.
    of_vcpus: BTreeMap<VcpuId, usize>,
}

impl StackTable {
    /// The row of the stack of a vCPU's sample. A guest without room for its part has the host's part alone.
    pub(crate) fn intern_of(&mut self, vcpu: VcpuId, stack: Stack) -> Option<StackId> {
        if self.ids.contains_key(&stack) {
            return self.intern(stack);
        }
        let bytes = bytes(&stack);
        let of_vcpu = self.of_vcpus.entry(vcpu).or_default();
        if MAX_BYTES_OF_VCPU < *of_vcpu + bytes {
            let end = |end: Option<StackEnd>| end.map(|_| StackEnd::NoRoom);
            let kernel_end = end(stack.guest.kernel_end);
            // One end stands for both.
            let user_end = end(stack.guest.user_end).filter(|_| kernel_end.is_none());
            let guest = GuestStack { kernel_end, user_end, ..GuestStack::default() };
            return self.intern(Stack { guest, ..stack });
        }
        *of_vcpu += bytes;
        self.intern(stack)
    }

    /// The stack's row; `None` when it is empty, or there is no room for it.
    pub(crate) fn intern(&mut self, stack: Stack) -> Option<StackId> {
        if stack == Stack::default() {
            return None;
        }
        if let Some(id) = self.ids.get(&stack) {
            return Some(*id);
        }
        let bytes = bytes(&stack);
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

fn bytes(stack: &Stack) -> usize {
    let of_guest = stack.guest.kernel.len() + stack.guest.user.len();
    ROW_BYTES + ADDRESS_BYTES * (stack.kernel.len() + stack.user.len() + of_guest)
}

#[cfg(test)]
mod test {
    use model::GuestVirt;

    use super::*;

    #[test]
    fn a_guest_whose_stacks_are_all_different_leaves_room_for_others() {
        let stack = |n: u64| Stack {
            guest: GuestStack {
                user: (0..127).map(|frame| GuestVirt(n << 8 | frame)).collect(),
                user_end: Some(StackEnd::Start),
                ..GuestStack::default()
            },
            ..Stack::default()
        };
        let mut table = StackTable::default();
        let many = u64::try_from(MAX_BYTES_OF_VCPU / bytes(&stack(0))).unwrap();
        let ids: Vec<_> = (0..many + 2).map(|n| table.intern_of(VcpuId(1), stack(n))).collect();
        assert_eq!(ids[0], Some(StackId(0)));
        assert_eq!(ids[ids.len() - 1], ids[ids.len() - 2], "the rest is one row");
        assert_eq!(table.intern_of(VcpuId(1), stack(0)), Some(StackId(0)), "what is known stays");
        let of_other = table.intern_of(VcpuId(2), stack(many + 2)).unwrap();
        let rows = table.into_rows();
        assert_eq!(rows[of_other.index()], stack(many + 2));
        assert_eq!(
            rows[ids.last().unwrap().unwrap().index()].guest.user_end,
            Some(StackEnd::NoRoom)
        );
    }
}
