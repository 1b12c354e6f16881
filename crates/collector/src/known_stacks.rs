//! Guests' stacks that were unwound before. A stack with the same first addresses, stack pointers and words is the same:
//! neither its bytes are copied nor is it unwound again.

use std::collections::{BTreeMap, HashMap};

use api::guest::{StackBasis, StackRegisters};
use model::{StackId, VcpuId};

use crate::guest_stacks::Origin;

/// Then a stack is unwound again: its process may have other mappings by now.
const KNOWN_NS: u64 = 8_000_000_000;
/// Bytes of the known stacks of a vCPU.
const MAX_OF_VCPU: usize = 4 << 20;
/// Most stacks that begin alike.
const MAX_ALIKE: usize = 4;

/// The known stacks of all vCPUs' samples, with their rows.
#[derive(Debug, Default)]
pub(crate) struct KnownStacks {
    of_vcpus: BTreeMap<VcpuId, OfVcpu>,
}

#[derive(Debug, Default)]
struct OfVcpu {
    by_key: HashMap<Key, Vec<Known>>,
    /// Added since it was empty.
    bytes: usize,
}

/// Where a stack begins: a process by its id and page tables, first address and stack pointer in its kernel and in user mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    pid: u32,
    cr3: u64,
    is_kernel: bool,
    kernel: Option<(u64, Option<u64>)>,
    user: Option<(u64, Option<u64>)>,
}

#[derive(Debug)]
struct Known {
    /// Return addresses of the host's part.
    host: Box<[u64]>,
    /// Frame pointers that matter, in the guest's kernel and in user mode.
    frame_pointers: [Option<u64>; 2],
    /// Addresses and values.
    words: Box<[(u64, u64)]>,
    since_ns: u64,
    id: StackId,
}

impl KnownStacks {
    /// The row of a stack. `host`: return addresses of its host part; `copied`: addresses and bytes of its guest part.
    pub(crate) fn find<'a>(
        &self,
        origin: &Origin,
        host: impl Iterator<Item = u64> + Clone,
        copied: impl Iterator<Item = (u64, &'a [u8])> + Clone,
    ) -> Option<StackId> {
        let alike = self.of_vcpus.get(&origin.vcpu)?.by_key.get(&key(origin))?;
        let frame_pointers = frame_pointers(origin);
        let is_same = |known: &&Known| {
            let needed = known.frame_pointers.iter().zip(frame_pointers);
            origin.time_ns.saturating_sub(known.since_ns) < KNOWN_NS
                && needed.into_iter().all(|(needed, is)| needed.is_none() || *needed == is)
                && host.clone().eq(known.host.iter().copied())
                && has_words(&copied, &known.words)
        };
        alike.iter().find(is_same).map(|known| known.id)
    }

    /// Keeps the row of a stack whose parts in the guest's kernel and in user mode follow from these.
    pub(crate) fn add(
        &mut self,
        origin: &Origin,
        host: Box<[u64]>,
        bases: [Option<StackBasis>; 2],
        id: StackId,
    ) {
        let of_vcpu = self.of_vcpus.entry(origin.vcpu).or_default();
        let mut needed = frame_pointers(origin);
        for (needed, basis) in needed.iter_mut().zip(&bases) {
            needed.take_if(|_| basis.as_ref().is_none_or(|basis| !basis.needs_bp));
        }
        let words: Box<[_]> = bases.into_iter().flatten().flat_map(|basis| basis.words).collect();
        let bytes =
            size_of::<Key>() + size_of::<Known>() + size_of_val(&*words) + size_of_val(&*host);
        if MAX_OF_VCPU < of_vcpu.bytes + bytes {
            *of_vcpu = OfVcpu::default();
        }
        of_vcpu.bytes += bytes;
        let alike = of_vcpu.by_key.entry(key(origin)).or_default();
        if MAX_ALIKE <= alike.len() {
            alike.remove(0);
        }
        let since_ns = origin.time_ns;
        alike.push(Known { host, frame_pointers: needed, words, since_ns, id });
    }
}

fn key(origin: &Origin) -> Key {
    let start = |registers: Option<StackRegisters>| registers.map(|it| (it.ip, it.sp));
    let Origin { pid, cr3, is_kernel, kernel, user, .. } = *origin;
    Key { pid, cr3, is_kernel, kernel: start(kernel), user: start(user) }
}

fn frame_pointers(origin: &Origin) -> [Option<u64>; 2] {
    [origin.kernel, origin.user].map(|registers| registers.map(|it| it.bp))
}

/// Whether these words were copied with these values. A word in two pieces counts as another one.
fn has_words<'a>(
    copied: &(impl Iterator<Item = (u64, &'a [u8])> + Clone),
    words: &[(u64, u64)],
) -> bool {
    words.iter().all(|(at, value)| {
        let word = |(start, bytes): (u64, &[u8])| {
            let offset = usize::try_from(at.wrapping_sub(start)).ok()?;
            bytes.get(offset..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
        };
        copied.clone().find_map(word) == Some(*value)
    })
}

#[cfg(test)]
mod test {
    use model::Pid;

    use super::*;

    const VCPU: VcpuId = VcpuId(3);
    const SP: u64 = 0x7ffc_0000_1000;

    fn origin() -> Origin {
        let user = StackRegisters { ip: 0x40_1000, sp: Some(SP), bp: 7, callee_saved: None };
        Origin {
            vcpu: VCPU,
            time_ns: 1_000,
            vmm: Pid(2),
            pid: 10,
            tid: 11,
            cr3: 0x5000,
            is_kernel: false,
            kernel: None,
            user: Some(user),
        }
    }

    fn words() -> Vec<u64> {
        (0..128).map(|n| 0x40_2000 + n).collect()
    }

    /// Copied in two pieces.
    fn find(known: &KnownStacks, origin: Origin, words: &[u64]) -> Option<StackId> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (first, second) = bytes.split_at(512);
        let copied = [(SP, first), (SP + 512, second)];
        known.find(&origin, [1, 2].into_iter(), copied.into_iter())
    }

    #[test]
    fn a_stack_is_known_by_what_it_follows_from() {
        let with = |needs_bp: bool| {
            let words = vec![(SP + 8, 0x40_2001), (SP + 8 * 100, 0x40_2000 + 100)];
            let mut known = KnownStacks::default();
            let basis = StackBasis { words, needs_bp };
            known.add(&origin(), [1, 2].into(), [None, Some(basis)], StackId(5));
            known
        };
        let known = with(false);
        assert_eq!(find(&known, origin(), &words()), Some(StackId(5)));
        let mut other = words();
        other[50] = 0;
        assert_eq!(find(&known, origin(), &other), Some(StackId(5)), "no frame follows from it");
        other[100] = 0;
        assert_eq!(find(&known, origin(), &other), None);
        assert_eq!(find(&known, origin(), &words()[..100]), None, "it was not copied");
        let none = std::iter::empty;
        assert_eq!(known.find(&origin(), [1].into_iter(), none()), None, "the host's differs");
        let user = origin().user.map(|user| StackRegisters { bp: 8, ..user });
        let other_bp = Origin { user, ..origin() };
        assert_eq!(find(&known, other_bp, &words()), Some(StackId(5)));
        assert_eq!(find(&with(true), other_bp, &words()), None);
        for other in [
            Origin { vcpu: VcpuId(4), ..origin() },
            Origin { pid: 12, ..origin() },
            Origin { cr3: 0x6000, ..origin() },
            Origin { time_ns: 1_000 + KNOWN_NS, ..origin() },
            Origin { user: None, ..origin() },
        ] {
            assert_eq!(find(&known, other, &words()), None, "{other:?}");
        }
    }

    #[test]
    fn what_a_guest_can_fill_is_bounded() {
        let mut known = KnownStacks::default();
        let basis = || Some(StackBasis { words: Vec::new(), needs_bp: false });
        for n in 0..100_000 {
            let user = origin().user.map(|user| StackRegisters { ip: n, ..user });
            known.add(&Origin { user, ..origin() }, [].into(), [None, basis()], StackId(1));
            known.add(&origin(), [n].into(), [None, basis()], StackId(2));
        }
        let of_vcpu = &known.of_vcpus[&VCPU];
        let stacks: Vec<&Known> = of_vcpu.by_key.values().flatten().collect();
        let bytes: usize = stacks.iter().map(|it| size_of_val(*it) + size_of_val(&*it.host)).sum();
        assert!(bytes <= of_vcpu.bytes && of_vcpu.bytes <= MAX_OF_VCPU, "{bytes}");
        assert!(of_vcpu.by_key.values().all(|alike| alike.len() <= MAX_ALIKE));
    }
}
