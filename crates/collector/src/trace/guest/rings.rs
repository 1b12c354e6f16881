//! A guest's rings, wherever they are read from.

use super::super::plan::GuestPath;
use super::ask::Wanted;
use super::cpus::numbers;
use super::read_rings::ReadRings;
use super::ring_child::RingReader;
use api::guest::{TraceLost, TraceSlots, TraceStarted};
use model::{HostNs, LostEvents, TraceEvent};
use probes::FoundVm;
use sandbox::Sandbox;
use tracer::outside::{Claim, MemoryError, ProcessMemory, Region, SentRings, TakenSlots};
use tracer::{Consumer, KINDS, RingError, RingId, RingMemory, lost_events};

use crate::GuestError;

/// The rings of a guest and their readers.
#[derive(Debug)]
pub(super) struct Rings {
    memory: Memory,
    slots_per_ring: usize,
    /// By ring.
    consumers: Vec<Consumer>,
    /// What the programs' times count from, on the guest's clock.
    base_ns: u64,
    /// By ring: losses before the trace began, by kind.
    lost_before: Vec<[u64; KINDS]>,
    /// As they were last read: the guest may be gone.
    lost: Vec<LostEvents>,
}

#[derive(Debug)]
enum Memory {
    Outside(Box<ReadRings>),
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
        child: Sandbox<RingReader>,
    ) -> Result<(Self, Result<(), Option<GuestError>>), GuestError> {
        let machine = wanted.machine;
        let (rings, slots_per_ring) = (started.rings as usize, started.slots_per_ring as usize);
        check_rings(rings, vm)?;
        let (memory, path) = match outside(wanted, vm, process, started, child) {
            Ok(memory) => (Memory::Outside(Box::new(memory)), Ok(())),
            // The user that runs a VM chooses its channel: it may be another VM's.
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
        let base_ns = started.base_ns;
        let lost = Vec::new();
        let rings = Self { memory, slots_per_ring, consumers, base_ns, lost_before, lost };
        Ok((rings, path))
    }

    /// Appends what has come in on a ring, at the guest's times: at most so many slots. Says how full it was, from 0 to 1;
    /// 1 where more was left. Memory that is slow holds nothing up, unless `is_last`: what it has comes with a later
    /// look, be that at another ring.
    pub(super) fn drain(
        &mut self,
        ring: usize,
        at_most: usize,
        is_last: bool,
        events: &mut [Vec<TraceEvent>],
    ) -> Result<f64, GuestError> {
        let Self { memory, consumers, base_ns, .. } = self;
        let used = match memory {
            Memory::Outside(memory) => {
                memory.drain(ring, at_most, is_last, &mut sink(consumers, *base_ns, events))
            }
            Memory::Sent(memory) => {
                drain(&mut consumers[ring], memory, ring, at_most, *base_ns, &mut events[ring])
            }
        }?;
        Ok(if at_most as u64 <= used { 1.0 } else { share(used, self.slots_per_ring) })
    }

    /// The memory is still where it was.
    pub(super) fn check_regions(
        &mut self,
        vm: &FoundVm,
        events: &mut [Vec<TraceEvent>],
    ) -> Result<(), GuestError> {
        let Memory::Outside(memory) = &self.memory else { return Ok(()) };
        memory.check_regions(&regions(vm))?;
        self.read_lost(events)
    }

    /// Takes slots that the guest sent.
    pub(super) fn put(&mut self, slots: Vec<TraceSlots>) -> Result<(), GuestError> {
        let Memory::Sent(memory) = &mut self.memory else {
            return Err(GuestError::Unrequested);
        };
        for TraceSlots { ring, bytes } in slots {
            memory.put(ring as usize, &bytes)?;
        }
        Ok(())
    }

    /// The guest's own counters at the end: where its memory can't be read, there are no others.
    pub(super) fn set_lost(
        &mut self,
        lost: &[TraceLost],
        events: &mut [Vec<TraceEvent>],
    ) -> Result<(), GuestError> {
        if let Memory::Sent(memory) = &mut self.memory {
            for TraceLost { ring, counts } in lost {
                memory.set_lost(*ring as usize, counts)?;
            }
        }
        self.read_lost(events)
    }

    /// Reads how much was lost so far. Earlier requests come first, to `events`.
    pub(super) fn read_lost(&mut self, events: &mut [Vec<TraceEvent>]) -> Result<(), GuestError> {
        let Self { memory, consumers, base_ns, .. } = self;
        let lost: Vec<[u64; KINDS]> = match memory {
            Memory::Outside(memory) => {
                memory.lost(&mut sink(consumers, *base_ns, events))?.to_vec()
            }
            Memory::Sent(memory) => {
                (0..consumers.len()).map(|ring| memory.lost(ring)).collect::<Result<_, _>>()?
            }
        };
        let rows = (0_u32..).zip(lost).zip(&self.lost_before).map(|((ring, lost), before)| {
            lost_events(ring, &std::array::from_fn(|kind| lost[kind].saturating_sub(before[kind])))
        });
        self.lost = rows.flatten().collect();
        Ok(())
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

/// Appends what a child took out of a ring to its events.
fn sink<'a>(
    consumers: &'a mut [Consumer],
    base_ns: u64,
    events: &'a mut [Vec<TraceEvent>],
) -> impl FnMut(usize, &mut TakenSlots) -> Result<(), GuestError> + 'a {
    move |ring, slots| {
        let (consumer, events) = (&mut consumers[ring], &mut events[ring]);
        drain(consumer, slots, ring, usize::MAX, base_ns, events).map(drop)
    }
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
    child: Sandbox<RingReader>,
) -> Result<ReadRings, Option<GuestError>> {
    let rings = || {
        let process = process.map_err(GuestError::from);
        let read = |process| read_outside(vm, process, started, wanted.mark, child);
        process.and_then(read).map_err(Some)
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
    child: Sandbox<RingReader>,
) -> Result<ReadRings, GuestError> {
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
    ReadRings::open(child, process, claim, &regions(vm), mark)
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
