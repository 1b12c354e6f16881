//! A drawn guest, for tests and fuzzing: its memory is a piece of a process's, its `vmscope-guest` the caller.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use api::guest::{TraceSlots, TraceStarted, TraceStopped};
use model::{HostNs, MachineId, Pid, Tid, TraceEvent};
use probes::{FoundVm, MemorySlot, VcpuClock};
use sandbox::Sandbox;
use tracer::outside::{ClockSample, ProcessMemory};

use super::ask::Wanted;
use super::worker::{Begun, Clocks, Command, Message};
use super::{Guest, RingReader};
use crate::GuestError;
use crate::trace::plan::GuestPath;
use crate::trace::source::Source;

/// Two rings of this many slots: a page of slots each, behind a page of heads of so many bytes.
pub const SLOTS: usize = 256;
/// Bytes of a ring's head.
pub const RING_BYTES: usize = 512;
/// What is at byte 8 of each head.
pub const MARK: u64 = 0x1234;
/// Guest times count from here, and the host's clock is ahead by the second value.
pub(super) const BASE_NS: u64 = 10_000;
pub(super) const AHEAD_NS: u64 = 1_000_000;

/// A traced guest of two CPUs.
#[derive(Debug)]
pub struct DrawnGuest {
    guest: Guest,
    tell: SyncSender<Message>,
    /// No request has an effect.
    _commands: Receiver<Command>,
}

impl DrawnGuest {
    /// Its memory is three pages of a process; `sent`: it sends its slots all the same. `child` reads its rings.
    ///
    /// # Errors
    /// When it can't be traced.
    pub fn new(
        (process, address): (Pid, u64),
        is_sent: bool,
        child: Sandbox<RingReader>,
    ) -> Result<Self, GuestError> {
        let ((commands, taken), (tell, messages)) = (channel(), sync_channel(100));
        let path = if is_sent { GuestPath::Link } else { GuestPath::Memory };
        let wanted = Wanted { path, ..wanted(MARK) };
        let command = (!is_sent).then_some(50);
        let begun = begun(TraceStarted { command, ..started() }, vm(process, address));
        let guest = Guest::new("a".to_owned(), &wanted, begun, (commands, messages), child)?;
        Ok(Self { guest, tell, _commands: taken })
    }

    /// The recorder looks at a ring: what is stored of it now.
    pub fn drain(&mut self, ring: u32) -> Vec<TraceEvent> {
        let mut events = Vec::new();
        let fill = self.guest.drain(ring, &mut events);
        debug_assert!(fill.is_ok(), "a guest ends its own trace: {fill:?}");
        events
    }

    /// The guest was queried for its clock, and says this; its memory is where it was.
    pub fn look(
        &self,
        (process, address): (Pid, u64),
        sample: ClockSample,
        exit_code: Option<i32>,
    ) {
        let clocks = Clocks { sample, warning: None };
        self.say(Message::Looked(Box::new(vm(process, address)), clocks, exit_code));
    }

    /// The guest sends slots.
    pub fn send(&self, slots: Vec<TraceSlots>) {
        self.say(Message::Slots(slots));
    }

    /// The guest has detached its probes. Its row, tasks and stacks are fetched as at the end of a trace.
    pub fn stop(&mut self, stopped: TraceStopped, sample: ClockSample) {
        // What was said before is heard first, so that there is room.
        self.drain(0);
        self.say(Message::Stopped(Box::new(stopped), Clocks { sample, warning: None }));
        self.guest.stop();
        let _ =
            (self.guest.machine(), self.guest.tables(), self.guest.notes(), self.guest.output());
    }

    /// Why its trace ended before the others'.
    #[must_use]
    pub fn ended_early(&self) -> Option<String> {
        self.guest.machine().ended_early
    }

    /// What finds no room is not said.
    fn say(&self, message: Message) {
        let _ = self.tell.try_send(message);
    }
}

pub(super) fn started() -> TraceStarted {
    TraceStarted {
        cpus: vec![0, 1],
        base_ns: BASE_NS,
        begin_ns: BASE_NS,
        after_ns: BASE_NS,
        slots_per_ring: 256,
        rings: 2,
        head_pages: vec![7],
        slot_pages: vec![8, 9],
        command: Some(50),
        ..TraceStarted::default()
    }
}

pub(super) fn wanted(mark: u64) -> Wanted {
    let (machine, path, link) = (MachineId(1), GuestPath::Memory, "vsock");
    Wanted { machine, mark, path, link, slots_per_look: 2 * SLOTS, is_filtered: true }
}

pub(super) fn vm(process: Pid, address: u64) -> FoundVm {
    let slot = MemorySlot { first_page: 7, pages: 3, address, read_only: false };
    let vcpu = |number| VcpuClock {
        number,
        tid: Some(Tid(99 + number)),
        tsc_offset: 0,
        tsc_ratio: 1 << 32,
        protected: false,
    };
    let vcpus = vec![vcpu(0), vcpu(1)];
    FoundVm { pid: process, kvm: 1, slots: vec![slot], more_slots: false, vcpus }
}

/// It was queried 100 ns before it began, and had answered 100 ns later.
pub(super) fn begun(started: TraceStarted, vm: FoundVm) -> Begun {
    let began = BASE_NS + AHEAD_NS;
    let requested = HostNs(began - 100)..HostNs(began + 100);
    let process = ProcessMemory::open(Path::new("/proc"), vm.pid);
    Begun { requested, started, vm, process, clocks: clocks(BASE_NS) }
}

pub(super) fn clocks(guest_ns: u64) -> Clocks {
    let sample = ClockSample { guest_ns, host: HostNs(guest_ns + AHEAD_NS), error_ns: 3 };
    Clocks { sample, warning: None }
}
