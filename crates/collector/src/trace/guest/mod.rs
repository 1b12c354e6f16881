//! A guest as a source of events, taken from outside: its rings lie in its memory, which its VM's process holds.
//!
//! Events get the host's time when the clocks' next reading is in, so that they always lie between two readings: until
//! then, two seconds at most, they are kept here.
//!
//! Nothing that a guest does or says ends more than its own trace.

mod ask;
mod clock_warnings;
mod cpus;
#[doc(hidden)]
pub mod drawn;
mod find;
mod rate_limit;
mod read_rings;
mod ring_child;
mod rings;
mod worker;

use std::mem;
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Instant;

use api::guest::{MAX_TRACE_BYTES, TraceStarted, TraceStopped, TraceTaskRow};
use model::{
    HostNs, Machine, MachineId, Pid, Tid, TraceEvent, TraceEventKind, TraceStack, TraceTask,
};
use sandbox::Sandbox;
use tracer::outside::GuestClock;
use tracer::{Executions, SLOT_BYTES};

pub(super) use ask::{GuestPlan, PreparedGuest};
pub(super) use cpus::vcpu_threads;
pub(crate) use find::{NamedVm, all_vms, find_vm};
pub use find::{VmError, vm_process};
pub use ring_child::RingReader;

use self::ask::{ANSWER_TIME, MAX_MESSAGES, Wanted};
use self::clock_warnings::ClockWarnings;
use self::rate_limit::RateLimit;
use self::rings::Rings;
use self::worker::{Begun, Clocks, Command, Message};
use super::source::{Source, SourceError, SourceTables, missing_calls};
use super::startup_tasks::StartupTasks;
use crate::GuestError;

/// Events that wait for the clocks' next reading: 256 MiB. Beyond them the clocks are taken to run on as before.
const MAX_WAITING: usize = 1 << 22;
/// So many slots of a ring at least, however many rings there are.
const MIN_SLOTS: usize = 64;

/// A guest whose probes are attached.
#[derive(Debug)]
pub(super) struct Guest {
    row: Machine,
    /// From before the order to begin until after its answer.
    requested: Range<HostNs>,
    started: TraceStarted,
    stopped: Option<TraceStopped>,
    rings: Rings,
    clock: Clock,
    queue: Queue,
    worker: Worker,
    startup_tasks: StartupTasks,
    command: CommandSeen,
    /// Of traced tasks, where not everybody is traced.
    executions: Option<Executions>,
    /// Why its trace ended before the others'.
    failed: Option<GuestError>,
}

/// The guest's clock, and what is known of how right it is.
#[derive(Debug)]
struct Clock {
    guest: GuestClock,
    warnings: ClockWarnings,
}

/// Events with the guest's time, until the host's is known.
#[derive(Debug)]
struct Queue {
    /// By ring.
    events: Vec<Vec<TraceEvent>>,
    /// Of each ring.
    slots_per_look: usize,
    rate_limit: RateLimit,
}

/// The thread that talks to the guest.
#[derive(Debug)]
struct Worker {
    commands: Sender<Command>,
    messages: Receiver<Message>,
    /// No query to the guest follows.
    left: bool,
}

#[derive(Debug, Default)]
struct CommandSeen {
    ended: bool,
    exit_code: Option<i32>,
}

impl Guest {
    fn new(
        name: String,
        wanted: &Wanted,
        Begun { requested, mut started, vm, process, clocks }: Begun,
        (commands, messages): (Sender<Command>, Receiver<Message>),
        child: Sandbox<RingReader>,
    ) -> Result<Self, GuestError> {
        let (rings, path) = Rings::open(wanted, &vm, process, &started, child)?;
        let mut row = Machine {
            name,
            kernel: started.kernel_release.clone(),
            cpus: started.cpus.clone(),
            missing: started.missing.clone(),
            fault_estimate_ns: started.fault_estimate_ns,
            vm_process: Some(vm.pid),
            vcpu_threads: vcpu_threads(&vm, &started.apic_ids),
            path: "guest memory".to_owned(),
            ..Machine::default()
        };
        if let Err(reason) = path {
            wanted.link.clone_into(&mut row.path);
            if let Some(reason) = reason {
                row.missing.push(("guest memory".to_owned(), reason.to_string()));
            }
            // It ends only after us.
            let _ = commands.send(Command::Send);
        }
        let rings_len = started.rings as usize;
        let mut warnings = ClockWarnings::default();
        warnings.extend(clocks.warning);
        let guest = GuestClock::new(clocks.sample);
        let queue = Queue {
            events: vec![Vec::new(); rings_len],
            slots_per_look: wanted.slots_per_look / rings_len.max(1),
            rate_limit: RateLimit::for_rings(started.rings, probes::now()),
        };
        let [before, after] = [&mut started.before, &mut started.after]
            .map(|rows| mem::take(rows).into_iter().map(|row| task(wanted.machine, row)).collect());
        let startup_tasks = StartupTasks::new(before, after);
        Ok(Self {
            row,
            rings,
            clock: Clock { guest, warnings },
            queue,
            worker: Worker { commands, messages, left: false },
            startup_tasks,
            command: CommandSeen::default(),
            executions: wanted.is_filtered.then(Executions::default),
            failed: None,
            requested,
            started,
            stopped: None,
        })
    }

    /// Takes in what the worker has to say.
    fn on_message(&mut self, message: Message) {
        match message {
            Message::Looked(vm, clocks, exit_code) => {
                self.take_clocks(clocks);
                self.command.ended |= exit_code.is_some();
                self.command.exit_code = self.command.exit_code.or(exit_code);
                if self.failed.is_none()
                    && let Err(reason) = self.rings.check_regions(&vm, &mut self.queue.events)
                {
                    self.fail(reason);
                }
            }
            Message::Slots(slots) => {
                if let Err(reason) = self.rings.put(slots).and_then(|()| self.check_waiting()) {
                    self.fail(reason);
                }
                // Each answer may fill the rings' copies.
                self.take_all(self.started.slots_per_ring as usize);
            }
            Message::Stopped(stopped, clocks) => {
                self.take_clocks(clocks);
                if self.failed.is_none()
                    && let Err(reason) = self.rings.set_lost(&stopped.lost, &mut self.queue.events)
                {
                    self.fail(reason);
                }
                self.command.exit_code = self.command.exit_code.or(stopped.exit_code);
                for row in &stopped.missing {
                    if !self.row.missing.contains(row) {
                        self.row.missing.push(row.clone());
                    }
                }
                self.stopped = Some(*stopped);
            }
            Message::Failed(reason) => self.leave(reason),
            Message::Started(_) => {}
        }
    }

    /// What finds no room here now waits with the worker.
    fn take_messages(&mut self) {
        while self.waiting() < MAX_WAITING
            && let Ok(message) = self.worker.messages.try_recv()
        {
            self.on_message(message);
        }
    }

    /// While nothing can be stored any more, what waits here, in the worker's messages and in the rings is the last.
    fn check_waiting(&self) -> Result<(), GuestError> {
        let in_rings = self.queue.events.len() * self.started.slots_per_ring as usize;
        let in_messages = (MAX_MESSAGES + 1) * (MAX_TRACE_BYTES / SLOT_BYTES);
        if MAX_WAITING + in_messages + in_rings < self.waiting() {
            return Err(GuestError::TooManyAtEnd);
        }
        Ok(())
    }

    /// Events.
    fn waiting(&self) -> usize {
        self.queue.events.iter().map(Vec::len).sum()
    }

    fn take_all(&mut self, at_most: usize) {
        for ring in 0..self.queue.events.len() {
            self.take(ring, at_most);
        }
    }

    fn take_clocks(&mut self, clocks: Clocks) {
        self.clock.warnings.extend(clocks.warning);
        if let Err(error) = self.clock.guest.push(clocks.sample) {
            self.fail(error.into());
        }
    }

    /// Takes at most this many slots from a ring. Returns how full the ring was, from 0 to 1. Nothing after the trace's
    /// end.
    fn take(&mut self, ring: usize, at_most: usize) -> f64 {
        if self.failed.is_some() {
            return 0.0;
        }
        let (before, is_last) = (self.waiting(), self.stopped.is_some());
        let drained = self.rings.drain(ring, at_most, is_last, &mut self.queue.events);
        let came = (self.waiting() - before) as u64;
        match drained.and_then(|fill| self.queue.rate_limit.add(probes::now(), came).map(|()| fill))
        {
            Ok(fill) => fill,
            Err(reason) => {
                self.fail(reason);
                0.0
            }
        }
    }

    /// Slots to take out of a ring in one look. At the end all of them: its probes write no more.
    fn room(&self, ring: usize) -> usize {
        if self.stopped.is_some() {
            return self.started.slots_per_ring as usize;
        }
        let left = self.most_waiting().saturating_sub(self.queue.events[ring].len());
        left.min(self.queue.slots_per_look).max(MIN_SLOTS)
    }

    /// Events of a ring.
    fn most_waiting(&self) -> usize {
        MAX_WAITING / self.queue.events.len().max(1)
    }

    /// Its trace ends here: what its probes find no room for from now on is not lost, and they need not go on.
    fn fail(&mut self, reason: GuestError) {
        if self.failed.is_none() {
            self.failed = Some(reason);
            self.row.end = probes::now();
            // What can't be read stays as it was read last.
            let _ = self.rings.read_lost(&mut self.queue.events);
            self.ask_to_stop();
        }
    }

    fn leave(&mut self, reason: GuestError) {
        self.worker.left = true;
        self.fail(reason);
    }

    /// Moves those events to `events` whose time on the host's clock is known; all of them when no more is to come.
    fn settle(&mut self, ring: usize, events: &mut Vec<TraceEvent>) {
        let is_last = self.failed.is_some() || self.stopped.is_some();
        let most = self.most_waiting();
        let waiting = &mut self.queue.events[ring];
        let known = if is_last || most <= waiting.len() {
            waiting.len()
        } else {
            let last = self.clock.guest.last().guest_ns;
            waiting.partition_point(|event| event.time.0 <= last)
        };
        let (clock, now) = (&self.clock.guest, probes::now());
        let on_host = |mut event: TraceEvent| {
            event.time = clock.host(event.time.0).min(now);
            event
        };
        let first = events.len();
        events.extend(waiting.drain(..known).map(on_host));
        if 4 * (waiting.len() + MIN_SLOTS) < waiting.capacity() {
            waiting.shrink_to(waiting.capacity() / 2);
        }
        let begin = self.begin();
        let read_ns = self.while_preparing(self.started.after_ns);
        for event in &events[first..] {
            if begin <= event.time && event.time < read_ns {
                self.startup_tasks.add(event);
            }
            if let Some(executions) = &mut self.executions {
                executions.see(event);
            }
            let is_end = |task: Tid| self.started.command == Some(task.0);
            self.command.ended |=
                matches!(event.kind, TraceEventKind::Exit { task } if is_end(task));
        }
    }

    fn begin(&self) -> HostNs {
        self.while_preparing(self.started.begin_ns)
    }

    /// The guest's clock during the order to begin.
    fn while_preparing(&self, guest_ns: u64) -> HostNs {
        self.clock.guest.host(guest_ns).clamp(self.requested.start, self.requested.end)
    }
}

fn task(machine: MachineId, row: TraceTaskRow) -> TraceTask {
    let TraceTaskRow { tid, pid, parent, name, kernel, asleep_in } = row;
    let (tid, pid, parent) = (Tid(tid), Pid(pid), Pid(parent));
    TraceTask { machine, tid, pid, parent, name, kernel, asleep_in, in_call: None }
}

impl Source for Guest {
    fn machine(&self) -> Machine {
        let mut row = self.row.clone();
        row.clock_error_ns = Some(self.clock.guest.error_ns());
        let unseen = self.executions.as_ref().filter(|_| self.stopped.is_some());
        row.missing.extend(unseen.and_then(|executions| missing_calls(executions.unseen())));
        row.lost = self.rings.lost();
        row.ended_early = self.failed.as_ref().map(GuestError::to_string);
        row
    }

    fn ring_slots(&self) -> u64 {
        u64::from(self.started.slots_per_ring)
    }

    fn start(&mut self) -> Result<HostNs, SourceError> {
        Ok(self.begin())
    }

    fn drain(&mut self, cpu: u32, events: &mut Vec<TraceEvent>) -> Result<f64, SourceError> {
        self.take_messages();
        let ring = cpu as usize;
        let fill = self.take(ring, self.room(ring));
        self.settle(ring, events);
        Ok(fill)
    }

    fn ask_to_stop(&mut self) {
        // No receiver is left where the guest is gone.
        let _ = self.worker.commands.send(Command::Stop);
    }

    /// If a guest's rings become unreadable, its names still serve the events that were read.
    fn stop(&mut self) -> HostNs {
        let deadline = Instant::now() + 2 * ANSWER_TIME;
        while self.stopped.is_none() && !self.worker.left {
            // Its probes go on until it hears of the end.
            self.take_all(MIN_SLOTS.max(self.queue.slots_per_look));
            let time = deadline.saturating_duration_since(Instant::now());
            match self.worker.messages.recv_timeout(time) {
                Ok(message) => self.on_message(message),
                Err(RecvTimeoutError::Timeout) => self.leave(GuestError::NoAnswer),
                Err(RecvTimeoutError::Disconnected) => self.leave(GuestError::WorkerEnded),
            }
        }
        match &self.stopped {
            Some(stopped) if self.failed.is_none() => {
                self.clock.guest.host(stopped.end_ns).max(self.begin())
            }
            _ => self.row.end,
        }
    }

    fn tables(&mut self) -> SourceTables {
        let mut tables =
            SourceTables { tasks: self.startup_tasks.at_begin(), ..SourceTables::default() };
        if let Some(stopped) = &self.stopped {
            let name = |row: &u32| stopped.functions[*row as usize].clone();
            let names = |rows: &[u32]| rows.iter().map(name).collect();
            let stacks = stopped.stacks.iter();
            tables.stacks =
                stacks.map(|stack| (TraceStack(stack.id), names(&stack.functions))).collect();
            tables.disks.clone_from(&stopped.disks);
        }
        tables
    }

    fn run_command(&mut self) -> Result<Option<Tid>, SourceError> {
        let Some(task) = self.started.command else { return Ok(None) };
        self.worker.commands.send(Command::Run).map_err(|_| GuestError::WorkerEnded)?;
        Ok(Some(Tid(task)))
    }

    fn command_ended(&self) -> bool {
        self.command.ended || (self.started.command.is_some() && self.failed.is_some())
    }

    fn exit_code(&self) -> Option<i32> {
        self.command.exit_code
    }

    fn output(&self) -> Option<String> {
        self.stopped.as_ref().map(guest::printable_output).filter(|text| !text.is_empty())
    }

    #[expect(clippy::cast_precision_loss, reason = "figures to show")]
    fn notes(&self) -> Vec<String> {
        let us = |ns: u64| ns as f64 / 1000.0;
        let mut notes = vec![format!(
            "its clock was read {} times: off by {:.3} us at most ({:.3} us in reading it, {:.3} us as it bent in \
             between), {:.3} ppm faster than the host's",
            self.clock.guest.samples(),
            us(self.clock.guest.error_ns()),
            us(self.clock.guest.error_ns() - self.clock.guest.max_residual_ns()),
            us(self.clock.guest.max_residual_ns()),
            self.clock.guest.drift_ppm(),
        )];
        notes.extend(self.clock.warnings.note());
        if let Some(stopped) = &self.stopped {
            let traced_ns = stopped.end_ns.saturating_sub(self.started.begin_ns).max(1);
            notes.push(format!(
                "vmscope-guest used {:.3} ms of CPU time in it while {:.3} s were traced",
                stopped.own_cpu_ns as f64 / 1e6,
                traced_ns as f64 / 1e9,
            ));
        }
        notes
    }
}

#[cfg(test)]
mod test;
