//! Rings in a VM's memory, read by a child process.
//!
//! ```text
//!   recorder                                     child
//!    | -- Take: what came in on ring 3? ----------> |  reads the VM's memory
//!    | <------------------------------ its slots -- |
//!    | -- Free: these may be written again -------> |  (no wait for the answer)
//!    | -- Take: ring 4? --------------------------> |  waits for a page that never comes
//!    |  a moment later: looks at other machines' rings, and for the answer at the next look
//!    |  `MAX_TIME` later: the guest's trace ends, and the child is left to its fate
//! ```

use std::time::Duration;

use api::rings::{RingAnswer, RingFailure, RingHead, RingQuestion};
use rustix::io::Errno;
use sandbox::Sandbox;
use tracer::KINDS;
use tracer::outside::{
    Addresses, Claim, HeadWords, MemoryError, ProcessMemory, Region, TakenSlots, lost, mark,
};

use super::ring_child::RingReader;
use crate::GuestError;
use crate::trace::realtime::prefer;

/// For one answer of the child. Memory may have to come back from a disk.
const MAX_TIME: Duration = Duration::from_secs(10);
/// Other machines' rings have room for what comes while this guest is waited for.
const MOMENT: Duration = Duration::from_millis(100);
/// Slots of one answer.
const MAX_TAKEN: usize = 1 << 17;

/// Takes slots of a ring.
pub(super) type Sink<'a> = &'a mut dyn FnMut(usize, &mut TakenSlots) -> Result<(), GuestError>;

/// The rings of a guest.
#[derive(Debug)]
pub(super) struct ReadRings {
    child: Sandbox<RingReader>,
    memory: ProcessMemory,
    claim: Claim,
    addresses: Addresses,
    /// By ring: the first position that was not taken yet.
    tails: Vec<u64>,
    job: Option<Job>,
    /// The child was waited for already while it was at that.
    is_slow: bool,
    /// The child or the memory has failed: neither is used again.
    is_broken: bool,
    /// By ring, as last read: losses by kind.
    lost: Vec<[u64; KINDS]>,
}

/// What the child is at.
#[derive(Debug, Clone, Copy)]
enum Job {
    Heads,
    Take { ring: usize },
    Free,
}

/// What came of a look at a ring.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    /// Slots that lay in it.
    used: u64,
    taken: u64,
}

impl ReadRings {
    /// The rings that a guest says to have, in the memory of its VM, if they all carry `wanted_mark`.
    ///
    /// # Errors
    /// When they don't, or can't be read.
    pub(super) fn open(
        child: Sandbox<RingReader>,
        memory: ProcessMemory,
        claim: Claim,
        regions: &[Region],
        wanted_mark: u64,
    ) -> Result<Self, GuestError> {
        let addresses = claim.locate(regions)?;
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let question = RingQuestion::Open {
            rings: number(claim.rings),
            slots_per_ring: number(claim.slots_per_ring),
            heads: addresses.heads.clone(),
            slots: addresses.slots.clone(),
        };
        let child = child.with_max_time(MAX_TIME);
        let (tails, lost) = (vec![0; claim.rings], vec![[0; KINDS]; claim.rings]);
        let (job, is_slow, is_broken) = (None, false, false);
        let mut rings =
            Self { child, memory, claim, addresses, tails, job, is_slow, is_broken, lost };
        let answer = rings.child.ask(&question, &[rings.memory.file()])?;
        let heads = heads(answer, rings.claim.rings)?;
        if heads.iter().any(|head| mark(head) != wanted_mark) {
            return Err(MemoryError::Unreadable.into());
        }
        if let Some(child) = rings.child.child() {
            // As the recorder is; where that is not allowed it goes on as it is.
            let _ = prefer(child);
        }
        Ok(rings)
    }

    /// Hands what has come in on a ring to `sink`: at most so many slots. Says how many lay there; none, if the child is still
    /// at something: `sink` has that another time. Waits a moment, or (`is_last`) as long as an answer may take.
    pub(super) fn drain(
        &mut self,
        ring: usize,
        at_most: usize,
        is_last: bool,
        sink: Sink<'_>,
    ) -> Result<u64, GuestError> {
        let (mut left, mut used) = (at_most, 0);
        while self.settle(is_last, &mut *sink)?.is_some() {
            let wanted = left.min(MAX_TAKEN);
            let question = RingQuestion::Take {
                ring: u32::try_from(ring).unwrap_or(u32::MAX),
                from: self.tails[ring],
                at_most: u32::try_from(wanted).unwrap_or(u32::MAX),
            };
            self.begin(Job::Take { ring }, &question)?;
            let Some(look) = self.settle(is_last, &mut *sink)? else { break };
            used = look.used.max(used);
            left = left.saturating_sub(usize::try_from(look.taken).unwrap_or(usize::MAX));
            if look.taken < wanted as u64 || left == 0 {
                break;
            }
        }
        Ok(used)
    }

    /// Looks again whether the memory still is where it was: memory may be taken out of a running VM.
    pub(super) fn check_regions(&self, regions: &[Region]) -> Result<(), GuestError> {
        match self.claim.locate(regions) {
            Ok(addresses) if addresses == self.addresses => Ok(()),
            _ => Err(MemoryError::Moved.into()),
        }
    }

    /// Losses by ring and kind; as last read, if the child is still at something.
    pub(super) fn lost(&mut self, sink: Sink<'_>) -> Result<&[[u64; KINDS]], GuestError> {
        if !self.is_broken && self.settle(false, &mut *sink)?.is_some() {
            self.begin(Job::Heads, &RingQuestion::Heads)?;
            self.settle(false, sink)?;
        }
        Ok(&self.lost)
    }

    fn begin(&mut self, job: Job, question: &RingQuestion) -> Result<(), GuestError> {
        let begun = self.child.begin(question, &[self.memory.file()]);
        self.is_broken = begun.is_err();
        self.job = Some(job);
        Ok(begun?)
    }

    /// Takes the answer that the child owes; `None`: it still does. Only the first time that is waited for, or at the end.
    fn settle(&mut self, is_last: bool, sink: Sink<'_>) -> Result<Option<Look>, GuestError> {
        let Some(job) = self.job else { return Ok(Some(Look::default())) };
        let wait = match (is_last, self.is_slow) {
            (true, _) => MAX_TIME,
            (false, false) => MOMENT,
            (false, true) => Duration::ZERO,
        };
        self.is_slow = !self.child.is_answered(wait);
        if self.is_slow {
            return Ok(None);
        }
        self.job = None;
        let answer = self.child.finish();
        self.is_broken = matches!(answer, Err(_) | Ok(RingAnswer::Failed(_)));
        match (job, answer?) {
            (Job::Take { ring }, RingAnswer::Taken { head, slots }) => {
                self.took(ring, head, &slots, sink).map(Some)
            }
            (Job::Heads, answer) => {
                self.lost = heads(answer, self.claim.rings)?.iter().map(lost).collect();
                Ok(Some(Look::default()))
            }
            (Job::Free, RingAnswer::Freed) => Ok(Some(Look::default())),
            (_, answer) => Err(failed(answer)),
        }
    }

    fn took(
        &mut self,
        ring: usize,
        head: u64,
        slots: &[u8],
        sink: Sink<'_>,
    ) -> Result<Look, GuestError> {
        let from = self.tails[ring];
        let mut slots = TakenSlots::new(self.claim.slots_per_ring, from, head, slots);
        let result = sink(ring, &mut slots);
        let to = slots.tail();
        let taken = to.wrapping_sub(from);
        self.tails[ring] = to;
        result?;
        if 0 < taken {
            let ring = u32::try_from(ring).unwrap_or(u32::MAX);
            self.begin(Job::Free, &RingQuestion::Free { ring, to })?;
        }
        Ok(Look { used: head.wrapping_sub(from), taken })
    }
}

fn heads(answer: RingAnswer, rings: usize) -> Result<Vec<HeadWords>, GuestError> {
    let RingAnswer::Heads(heads) = answer else { return Err(failed(answer)) };
    let words = |head: RingHead| HeadWords::try_from(head.words).ok();
    let heads: Option<Vec<HeadWords>> = heads.into_iter().map(words).collect();
    heads.filter(|heads| heads.len() == rings).ok_or_else(|| MemoryError::Unreadable.into())
}

fn failed(answer: RingAnswer) -> GuestError {
    let RingAnswer::Failed(failure) = answer else { return MemoryError::Unreadable.into() };
    let error = match failure {
        RingFailure::Gone => MemoryError::Gone,
        RingFailure::Moved => MemoryError::Moved,
        RingFailure::Other(errno) => MemoryError::Other(Errno::from_raw_os_error(errno)),
    };
    error.into()
}
