//! A guest's rings, wherever they are read from.

use super::super::plan::GuestPath;
use super::ask::Wanted;
use super::cpus::numbers;
use api::guest::{TraceLost, TraceSlots, TraceStarted};
use model::{HostNs, LostEvents, TraceEvent};
use probes::FoundVm;
use tracer::outside::{Claim, GuestRings, MemoryError, ProcessMemory, Region, SentRings};
use tracer::{Consumer, KINDS, RingError, RingId, RingMemory, lost_events};

use crate::GuestError;

/// The rings of a guest and their readers.
#[derive(Debug)]
pub(super) struct Rings {
    memory: Memory,
    slots_per_ring: usize,
    /// By ring.
    consumers: Vec<Consumer>,
    /// By ring: losses before the trace began, by kind.
    lost_before: Vec<[u64; KINDS]>,
    /// As they were last read: the guest may be gone.
    lost: Vec<LostEvents>,
}

#[derive(Debug)]
enum Memory {
    Outside(GuestRings),
    Sent(SentRings),
}

impl Rings {
    /// Rings read from outside; or copies of rings that the guest has to send, and why, unless that was wanted.
    ///
    /// # Errors
    /// When neither is possible.
    pub(super) fn open(
        wanted: &Wanted,
        vm: &FoundVm,
        process: Result<ProcessMemory, MemoryError>,
        started: &TraceStarted,
    ) -> Result<(Self, Result<(), Option<GuestError>>), GuestError> {
        let machine = wanted.machine;
        let (rings, slots_per_ring) = (started.rings as usize, started.slots_per_ring as usize);
        check_rings(rings, vm)?;
        let (memory, path) = match outside(wanted, vm, process, started) {
            Ok(memory) => (Memory::Outside(memory), Ok(())),
            // Whoever runs a VM chooses its channel: it may be another VM's.
            Err(Some(reason)) if started.command.is_some() => {
                return Err(GuestError::CommandRefused(Box::new(reason)));
            }
            Err(reason) => {
                let copies = SentRings::new(rings, slots_per_ring);
                (Memory::Sent(copies?), Err(reason))
            }
        };
        let consumer = |cpu| Consumer::new(RingId { machine, cpu }, slots_per_ring);
        let consumers = (0..started.rings).map(consumer).collect();
        let lost_before = lost_before(&started.lost, rings);
        let rings = Self { memory, slots_per_ring, consumers, lost_before, lost: Vec::new() };
        Ok((rings, path))
    }

    /// Appends what has come in on a ring, at the guest's times: at most so many slots. Says how full it was, from 0 to 1;
    /// 1 where more was left.
    pub(super) fn drain(
        &mut self,
        ring: usize,
        at_most: usize,
        base_ns: u64,
        events: &mut Vec<TraceEvent>,
    ) -> Result<f64, GuestError> {
        let consumer = &mut self.consumers[ring];
        let used = match &mut self.memory {
            Memory::Outside(memory) => drain(consumer, memory, ring, at_most, base_ns, events),
            Memory::Sent(memory) => drain(consumer, memory, ring, at_most, base_ns, events),
        }?;
        Ok(if at_most as u64 <= used { 1.0 } else { share(used, self.slots_per_ring) })
    }

    /// The memory is still where it was.
    pub(super) fn check_regions(&mut self, vm: &FoundVm) -> Result<(), GuestError> {
        let Memory::Outside(memory) = &self.memory else { return Ok(()) };
        memory.check_regions(&regions(vm))?;
        self.read_lost();
        Ok(())
    }

    /// Takes slots that the guest sent.
    pub(super) fn put(&mut self, slots: Vec<TraceSlots>) -> Result<(), GuestError> {
        let Memory::Sent(memory) = &mut self.memory else {
            return Err(GuestError::NotAsked);
        };
        for TraceSlots { ring, bytes } in slots {
            memory.put(ring as usize, &bytes)?;
        }
        Ok(())
    }

    /// The guest's own counters at the end: where its memory can't be read, there are no others.
    pub(super) fn set_lost(&mut self, lost: &[TraceLost]) -> Result<(), GuestError> {
        if let Memory::Sent(memory) = &mut self.memory {
            for TraceLost { ring, counts } in lost {
                memory.set_lost(*ring as usize, counts)?;
            }
        }
        self.read_lost();
        Ok(())
    }

    /// Reads how much was lost so far; without an answer it stays as it was.
    pub(super) fn read_lost(&mut self) {
        let rings = self.consumers.len();
        let of = |ring: usize| {
            let lost = match &self.memory {
                Memory::Outside(memory) => memory.lost(ring).ok(),
                Memory::Sent(memory) => memory.lost(ring).ok(),
            };
            let before = &self.lost_before[ring];
            let since = |lost: [u64; KINDS]| {
                std::array::from_fn(|kind| lost[kind].saturating_sub(before[kind]))
            };
            lost.map(|lost| lost_events(u32::try_from(ring).unwrap_or(u32::MAX), &since(lost)))
        };
        if let Some(lost) = (0..rings).map(of).collect::<Option<Vec<_>>>() {
            self.lost = lost.concat();
        }
    }

    /// Events lost, as last read.
    pub(super) fn lost(&self) -> Vec<LostEvents> {
        self.lost.clone()
    }
}

/// By ring.
fn lost_before(rows: &[TraceLost], rings: usize) -> Vec<[u64; KINDS]> {
    let mut before = vec![[0; KINDS]; rings];
    for TraceLost { ring, counts } in rows {
        if let Some(before) = before.get_mut(*ring as usize) {
            before.iter_mut().zip(counts).for_each(|(to, from)| *to = *from);
        }
    }
    before
}

/// Slots that were used.
fn drain<M: RingMemory>(
    consumer: &mut Consumer,
    memory: &mut M,
    ring: usize,
    at_most: usize,
    base_ns: u64,
    events: &mut Vec<TraceEvent>,
) -> Result<u64, GuestError>
where
    GuestError: From<M::Error> + From<RingError<M::Error>>,
{
    let (head, tail) = memory.counters(ring)?;
    let clock = |since_ns: u64| HostNs(base_ns.saturating_add(since_ns));
    consumer.drain_some(memory, at_most, clock, events)?;
    Ok(head.wrapping_sub(tail))
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn share(used: u64, slots: usize) -> f64 {
    (used as f64 / slots as f64).min(1.0)
}

fn check_rings(rings: usize, vm: &FoundVm) -> Result<(), GuestError> {
    let most = numbers(vm);
    if most < rings { Err(GuestError::Cpus { claimed: rings, most }) } else { Ok(()) }
}

/// Rings in the VM's memory, when it can be read; an error without a reason: they are not wanted.
fn outside(
    wanted: &Wanted,
    vm: &FoundVm,
    process: Result<ProcessMemory, MemoryError>,
    started: &TraceStarted,
) -> Result<GuestRings, Option<GuestError>> {
    let rings = || {
        let process = process.map_err(GuestError::from);
        process.and_then(|process| read_outside(vm, process, started, wanted.mark)).map_err(Some)
    };
    match wanted.path {
        GuestPath::Memory => rings(),
        GuestPath::Link if started.command.is_some() => rings().and(Err(None)),
        GuestPath::Link => Err(None),
    }
}

fn read_outside(
    vm: &FoundVm,
    process: ProcessMemory,
    started: &TraceStarted,
    mark: u64,
) -> Result<GuestRings, GuestError> {
    if let Some(problem) = &started.pages_problem {
        return Err(GuestError::NoPages(problem.clone()));
    }
    if vm.vcpus.iter().any(|vcpu| vcpu.protected) {
        return Err(GuestError::Encrypted);
    }
    let claim = Claim {
        slots_per_ring: started.slots_per_ring as usize,
        rings: started.rings as usize,
        heads: started.head_pages.clone(),
        slots: started.slot_pages.clone(),
    };
    let rings = GuestRings::new(process, claim, &regions(vm))?;
    rings.check_mark(mark)?;
    Ok(rings)
}

/// The memory that the guest can write: nothing else of its VM's process is ever touched.
fn regions(vm: &FoundVm) -> Vec<Region> {
    let writable = vm.slots.iter().filter(|slot| !slot.read_only);
    writable
        .map(|slot| Region {
            first_page: slot.first_page,
            pages: slot.pages,
            address: slot.address,
        })
        .collect()
}
