//! Loading the programs, starting and stopping a trace.

use std::collections::BTreeSet;
use std::path::Path;

use aya::maps::StackTraceMap;
use aya::{Btf, Ebpf, EbpfError, EbpfLoader};
use bpf::Mapped;
use model::{HostNs, LostEvents, MachineId, Pid, TraceEvent, TraceStack};

use crate::by_task::{EventTypes, Executions, TaskEvents};
use crate::clock::now_ns;
use crate::family::{Followed, threads};
use crate::files::{FILE_BYTES, StoredFiles};
use crate::local::LocalRings;
use crate::probes::{
    CALLS_OF_ALL, Links, Missing, OF_FILES, attach, attach_by_task, error_chain, load,
    load_by_task, missed,
};
use crate::ring::Consumer;
use crate::slots::{KINDS, RING_BYTES, RingId, SLOT_BYTES, lost_events};
use crate::user_stacks::{USER_STACK_BYTES, UserStacks};
use crate::{RingError, RingMemory, TracerError};

/// A ring smaller than this would be full at once.
const MIN_SLOTS: u32 = 1024;
/// Between the check for room and the reservation an interrupt may come, and find the same room: each of those that can lie
/// on top of each other takes at most 3 slots more than there are.
const MARGIN: u64 = 64;
/// 4 GiB of slots: the map's index has 32 bits, and so many slots are a mistake.
const MAX_SLOTS: u64 = 1 << 28;
/// Rows for user stacks at most: 18 MB.
const MAX_USER_STACKS: u32 = 1 << 16;
/// Rows for files at most: 37 MB. Events have 20 bits for a row and one.
const MAX_FILES: u32 = 1 << 16;
/// Words of the map of followed threads: one bit for each of 2^22 thread ids.
const FOLLOWED_WORDS: u32 = 1 << 16;
/// Scans the traced tasks until all have events, at most this often.
const MAX_LOOKS: u32 = 8;

/// What to trace, and with how much memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// CPUs that are online. Should another one come to life, its events are counted as lost.
    pub cpus: Vec<u32>,
    /// Slots of 16 bytes per CPU, rounded up to a power of two, at least 1024.
    pub slots_per_cpu: u32,
    /// How many different kernel stacks can be kept; 0 for none.
    pub stacks: u32,
    /// The same of programs' stacks, by frame pointers; rounded up to a power of two.
    pub user_stacks: u32,
    /// Files that can be named; rounded up to a power of two. 0: events do not say of which file they are.
    pub files: u32,
    pub filter: Filter,
    /// A process whose system calls, page faults and waits for locks are left out: the recorder itself. Its switches stay.
    pub exclude: Option<Pid>,
}

/// Tasks whose switches, wake-ups, system calls, page faults and lock waits are kept. A switch or a wake-up is kept
/// when one of its tasks is traced. Tasks' begins, names and ends, interrupts and requests to disks are always kept:
/// they say what traced tasks waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    None,
    /// Those given to `Tracer::follow`, and all tasks they make from then on.
    Tree,
    /// One process's (a VM's).
    Process(Pid),
    /// One process's (a VM's), and of everybody else only switches and wake-ups: who has the CPUs that it waits for.
    ProcessAndRivals(Pid),
    /// A control group's and those below it, in the unified hierarchy.
    Cgroup {
        /// Its id: the inode number of its folder.
        id: u64,
        /// How many folders it lies below the root of the hierarchy; the root is 0.
        level: u32,
    },
}

/// Where the rings lie, for a reader outside of this kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Slots of each CPU's ring.
    pub slots_per_cpu: usize,
    /// Rings with slots: the highest online CPU's number and one. Ring n is CPU n's.
    pub rings: usize,
    /// Address and bytes of the mapping of `struct trace_ring`s (whole pages).
    pub heads: (usize, usize),
    /// Address and bytes of the mapping of slots (whole pages).
    pub slots: (usize, usize),
}

/// The loaded programs and their rings. They leave the kernel when this is dropped.
#[derive(Debug)]
pub struct Tracer {
    bpf: Ebpf,
    links: Links,
    /// How system calls of single tasks are seen, where that can be.
    event_types: Option<EventTypes>,
    task_events: Option<TaskEvents>,
    executions: Executions,
    rings: LocalRings,
    user_stacks: UserStacks,
    files: StoredFiles,
    filter: Filter,
    followed: Option<Followed>,
    /// By the CPU's number.
    consumers: Vec<Consumer>,
    missing: Vec<Missing>,
    base_ns: u64,
    /// Losses before the trace began, of all CPUs there can be: those that come late have a ring without room.
    lost_before: Vec<[u64; KINDS]>,
    /// Events outside of it came while only some programs were attached.
    begin: HostNs,
    end: HostNs,
}

impl Tracer {
    /// Loads the programs; nothing is traced yet.
    ///
    /// # Errors
    /// When the kernel refuses them all, or the options make no sense; the error says what to do.
    pub fn load(options: &Options) -> Result<Self, TracerError> {
        let sizes = Sizes::new(options)?;
        let base_ns = now_ns();
        let btf = Btf::from_sys_fs().map_err(|_| TracerError::NoBtf)?;
        let event_types = event_types(options.filter);
        let mut bpf =
            load_object(&btf, config(options, &sizes, base_ns, event_types), options, &sizes)?;
        let mut missing = Vec::new();
        load(&mut bpf, &btf, |name| 0 < options.files || name != OF_FILES, &mut missing);
        if event_types.is_some() {
            load_by_task(&mut bpf, &btf);
        }
        if bpf.programs().all(|(_, program)| program.fd().is_err()) {
            return Err(no_probe(missing));
        }
        let followed = match options.filter {
            Filter::Tree => {
                Some(Followed::new(map(&bpf, "followed", FOLLOWED_WORDS as usize * 8)?))
            }
            _ => None,
        };
        let slots_per_cpu = 1 << sizes.slots_shift;
        let rings = LocalRings {
            heads: map(&bpf, "rings", sizes.possible_cpus * RING_BYTES)?,
            slots: map(&bpf, "slots", sizes.slots as usize * SLOT_BYTES)?,
            slots_per_cpu,
        };
        let user_stacks = UserStacks {
            rows: map(&bpf, "user_stacks", sizes.user_stacks as usize * USER_STACK_BYTES)?,
            lost: map(&bpf, "user_stacks_lost", 8)?,
            base_ns,
        };
        let files = StoredFiles(map(&bpf, "files", sizes.files as usize * FILE_BYTES)?);
        // The rings of others have no reader: all of their events are lost, and counted.
        options.cpus.iter().for_each(|&cpu| rings.give_room(cpu as usize, MARGIN));
        let consumer = |cpu| Consumer::new(RingId { machine: MachineId::HOST, cpu }, slots_per_cpu);
        Ok(Self {
            bpf,
            links: Links::default(),
            event_types,
            task_events: None,
            executions: Executions::default(),
            rings,
            user_stacks,
            files,
            filter: options.filter,
            followed,
            consumers: (0..sizes.cpus).map(consumer).collect(),
            missing,
            base_ns,
            lost_before: vec![[0; KINDS]; sizes.possible_cpus],
            begin: HostNs(0),
            end: HostNs(u64::MAX),
        })
    }

    /// Attaches the programs. Returns when the trace begins: when all of them were.
    ///
    /// # Errors
    /// When none could be.
    pub fn start(&mut self) -> Result<HostNs, TracerError> {
        let is_of_all = |name: &str| CALLS_OF_ALL.contains(&name);
        self.links = attach(&mut self.bpf, |name| !is_of_all(name), &mut self.missing);
        self.task_events = self.attach_by_task();
        if self.task_events.is_none() {
            self.links.extend(attach(&mut self.bpf, is_of_all, &mut self.missing));
        }
        if self.links.is_empty() {
            return Err(no_probe(std::mem::take(&mut self.missing)));
        }
        self.traced_tasks();
        for (cpu, before) in self.lost_before.iter_mut().enumerate() {
            let Ok(lost) = self.rings.lost(cpu);
            *before = lost;
        }
        self.begin = HostNs(now_ns());
        Ok(self.begin)
    }

    /// Sees system calls of the traced tasks only, if that can be.
    fn attach_by_task(&mut self) -> Option<TaskEvents> {
        let types = self.event_types?;
        let links = attach_by_task(&mut self.bpf)?;
        let mut events = TaskEvents::default();
        for _ in 0..MAX_LOOKS {
            if !events.add(types, self.traced_tasks()).ok()? {
                break;
            }
        }
        self.links.extend(links);
        Some(events)
    }

    /// The threads that are traced now, which from now on include those that were made before the programs were attached.
    fn traced_tasks(&self) -> BTreeSet<u32> {
        match (&self.followed, self.filter) {
            (Some(followed), _) => followed.add_missed(),
            (None, Filter::Process(pid) | Filter::ProcessAndRivals(pid)) => {
                threads(Path::new("/proc"), pid.0).unwrap_or_default()
            }
            _ => BTreeSet::new(),
        }
    }

    /// With `Filter::Tree`: traces the threads of this process and of its descendants, and all that they make from now on.
    ///
    /// # Errors
    /// If another filter was requested, or `/proc` can't be read.
    pub fn follow(&mut self, process: Pid) -> Result<(), TracerError> {
        let Some(followed) = &mut self.followed else {
            return Err(TracerError::Options("only Filter::Tree follows processes".to_owned()));
        };
        followed.add(process).map_err(|source| TracerError::Follow { process, source })
    }

    /// Appends the events of `cpu` that came since the last call, in time order.
    ///
    /// # Errors
    /// If the ring holds what no probe writes, which would be a fault of ours.
    pub fn drain(
        &mut self,
        cpu: u32,
        events: &mut Vec<TraceEvent>,
    ) -> Result<(), RingError<std::convert::Infallible>> {
        let Some(consumer) = self.consumers.get_mut(cpu as usize) else { return Ok(()) };
        let first = events.len();
        let base_ns = self.base_ns;
        let clock = |time| HostNs(base_ns.saturating_add(time));
        let result = consumer.drain(&mut self.rings, clock, events);
        let is_early = |event: &TraceEvent| event.time < self.begin;
        let is_late = |event: &TraceEvent| self.end < event.time;
        if events[first..].first().is_some_and(is_early) {
            let early = events[first..].partition_point(is_early);
            events.drain(first..first + early);
        }
        if events[first..].last().is_some_and(is_late) {
            let kept = events[first..].partition_point(|event| !is_late(event));
            events.truncate(first + kept);
        }
        if self.task_events.is_some() {
            events[first..].iter().for_each(|event| self.executions.see(event));
        }
        self.add_late_tasks(&events[first..]);
        result
    }

    /// Gives events to tasks whose parents had none when they began to make them.
    fn add_late_tasks(&mut self, events: &[TraceEvent]) {
        let (Some(types), Some(mut task_events)) = (self.event_types, self.task_events.take())
        else {
            return;
        };
        if !self.links.is_empty()
            && task_events.lacks_some(events)
            && let Err(error) = task_events.add(types, self.traced_tasks())
        {
            let reason = format!("those of tasks that were being made at the begin: {error}");
            self.missing.push(("system calls".to_owned(), reason));
        }
        self.task_events = Some(task_events);
    }

    /// How full the ring of `cpu` is, from 0 to 1.
    #[must_use]
    pub fn fill(&self, cpu: u32) -> f64 {
        if self.consumers.len() <= cpu as usize {
            return 0.0;
        }
        let Ok((head, tail)) = self.rings.counters(cpu as usize);
        head.wrapping_sub(tail) as f64 / self.rings.slots_per_cpu as f64
    }

    /// Detaches the programs. Returns when the trace ends: before the first of them was. What is left in the rings can
    /// still be drained.
    pub fn stop(&mut self) -> HostNs {
        if !self.links.is_empty() {
            self.end = HostNs(now_ns());
            self.links = Links::default();
            // Drained events are still looked at.
            self.task_events.iter_mut().for_each(|events| *events = TaskEvents::default());
            self.missing.extend(missed(&self.bpf));
        }
        self.end
    }

    /// Probes that could not be used, and why. After `stop` also those that missed events because they were interrupted
    /// by themselves.
    #[must_use]
    pub fn missing(&self) -> &[(String, String)] {
        &self.missing
    }

    /// Programs that traced tasks began and whose system calls are missing, with those of all that they began: they run with
    /// other rights (setuid, setgid), and this kernel's calls are seen by task.
    #[must_use]
    pub fn unseen_programs(&self) -> u64 {
        self.executions.unseen()
    }

    /// Events that found no room, by CPU and kind.
    #[must_use]
    pub fn lost(&self) -> Vec<LostEvents> {
        let lost_of = |(cpu, before): (usize, &[u64; KINDS])| {
            let Ok(lost) = self.rings.lost(cpu);
            let since = std::array::from_fn(|kind| lost[kind].wrapping_sub(before[kind]));
            lost_events(u32::try_from(cpu).unwrap_or(u32::MAX), &since)
        };
        self.lost_before.iter().enumerate().flat_map(lost_of).collect()
    }

    /// What a ring's head counts as lost before the trace began, by kind: for who reads it from outside of this machine.
    #[must_use]
    pub fn lost_before(&self, ring: usize) -> [u64; KINDS] {
        self.lost_before.get(ring).copied().unwrap_or([0; KINDS])
    }

    /// The kernel stacks that events name: addresses, innermost first. Ask after `stop`.
    ///
    /// # Errors
    /// If the map can't be read.
    pub fn stacks(&self) -> Result<Vec<(TraceStack, Vec<u64>)>, TracerError> {
        let failed = |error: aya::maps::MapError| TracerError::Load(error_chain(&error));
        let map = self.bpf.map("stacks").ok_or(TracerError::NoMap("stacks"))?;
        let stacks = StackTraceMap::try_from(map).map_err(failed)?;
        let row = |found: Result<(u32, aya::maps::stack_trace::StackTrace), _>| {
            let (id, stack) = found.map_err(failed)?;
            Ok((TraceStack(id), stack.frames().iter().map(|frame| frame.ip).collect()))
        };
        stacks.iter().map(row).collect()
    }

    /// The stacks of programs that events name.
    #[must_use]
    pub fn user_stacks(&self) -> &UserStacks {
        &self.user_stacks
    }

    /// The files that events name.
    #[must_use]
    pub fn files(&self) -> &StoredFiles {
        &self.files
    }

    /// `CLOCK_MONOTONIC` that the programs' times begin at, ns.
    #[must_use]
    pub fn base_ns(&self) -> u64 {
        self.base_ns
    }

    /// The rings themselves, for who carries them out of this machine in place of `drain`.
    pub fn rings(&mut self) -> &mut LocalRings {
        &mut self.rings
    }

    /// Where the rings lie in this process's memory.
    #[must_use]
    pub fn layout(&self) -> Layout {
        let mapping = |mapped: &Mapped| (mapped.address(), mapped.bytes());
        Layout {
            slots_per_cpu: self.rings.slots_per_cpu,
            rings: self.consumers.len(),
            heads: mapping(&self.rings.heads),
            slots: mapping(&self.rings.slots),
        }
    }
}

/// How many of what.
struct Sizes {
    /// The highest online CPU's number and one.
    cpus: u32,
    possible_cpus: usize,
    slots_shift: u32,
    /// Of all CPUs.
    slots: u32,
    /// Rows for user stacks.
    user_stacks: u32,
    /// Rows for files.
    files: u32,
}

impl Sizes {
    fn new(options: &Options) -> Result<Self, TracerError> {
        let mistake = |text: String| Err(TracerError::Options(text));
        let Some(&last) = options.cpus.iter().max() else {
            return mistake("no CPU to trace".to_owned());
        };
        let slots_per_cpu = options.slots_per_cpu.max(MIN_SLOTS).checked_next_power_of_two();
        let slots = u64::from(slots_per_cpu.unwrap_or(u32::MAX)) * (u64::from(last) + 1);
        if MAX_SLOTS < slots {
            let mib = (slots * SLOT_BYTES as u64) >> 20;
            return mistake(format!("the rings would take {mib} MiB: ask for less than 4096 MiB"));
        }
        let cpus = last + 1;
        let possible = aya::util::nr_cpus().unwrap_or(0).max(cpus as usize);
        Ok(Self {
            cpus,
            possible_cpus: possible,
            slots_shift: slots_per_cpu.unwrap_or(MIN_SLOTS).trailing_zeros(),
            slots: u32::try_from(slots).unwrap_or(u32::MAX),
            user_stacks: options.user_stacks.clamp(1, MAX_USER_STACKS).next_power_of_two(),
            files: options.files.clamp(1, MAX_FILES).next_power_of_two(),
        })
    }
}

/// The constants of bpf/trace_ring.bpf.h.
type Config = [u64; 12];

/// In the header's order.
fn config(
    options: &Options,
    sizes: &Sizes,
    base_ns: u64,
    event_types: Option<EventTypes>,
) -> Config {
    let (filter, id, level) = match options.filter {
        Filter::None => (0, 0, 0),
        Filter::Tree => (1, 0, 0),
        Filter::Process(pid) => (2, u64::from(pid.0), 0),
        Filter::ProcessAndRivals(pid) => (4, u64::from(pid.0), 0),
        Filter::Cgroup { id, level } => (3, id, u64::from(level)),
    };
    let exclude = options.exclude.map_or(0, |pid| u64::from(pid.0));
    let stacks = u64::from(0 < options.stacks);
    let user_stacks_mask = u64::from(sizes.user_stacks) - 1;
    let shift = u64::from(sizes.slots_shift);
    let (enter, exit) = event_types.map_or((0, 0), |types| (types.enter, types.exit));
    let slots_mask = (1 << shift) - 1;
    let files_mask = u64::from(sizes.files) - 1;
    let limits = [stacks, user_stacks_mask, enter, exit, files_mask];
    let mut config = [base_ns, shift, slots_mask, filter, id, level, exclude, 0, 0, 0, 0, 0];
    config[7..].copy_from_slice(&limits);
    config
}

/// By which trace events system calls of single tasks are seen: not if everybody's are, or a control group's.
fn event_types(filter: Filter) -> Option<EventTypes> {
    match filter {
        Filter::Tree | Filter::Process(_) | Filter::ProcessAndRivals(_) => EventTypes::read(),
        Filter::None | Filter::Cgroup { .. } => None,
    }
}

fn load_object(
    btf: &Btf,
    config: Config,
    options: &Options,
    sizes: &Sizes,
) -> Result<Ebpf, TracerError> {
    let possible = u32::try_from(sizes.possible_cpus).unwrap_or(u32::MAX);
    let followed = if options.filter == Filter::Tree { FOLLOWED_WORDS } else { 1 };
    EbpfLoader::new()
        .btf(Some(btf))
        .override_global("config", &config, true)
        .map_max_entries("rings", possible)
        .map_max_entries("slots", sizes.slots)
        .map_max_entries("stacks", options.stacks.max(1))
        .map_max_entries("user_stacks", sizes.user_stacks)
        .map_max_entries("files", sizes.files)
        .map_max_entries("followed", followed)
        .load(bpf::TRACER)
        .map_err(|error| refused(&error))
}

fn refused(error: &EbpfError) -> TracerError {
    if is_denied(error) { TracerError::Privilege } else { TracerError::Load(error_chain(error)) }
}

fn is_denied(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return io.kind() == std::io::ErrorKind::PermissionDenied;
        }
        cause = error.source();
    }
    false
}

fn no_probe(missing: Vec<Missing>) -> TracerError {
    let (probe, reason) = missing.into_iter().next().unwrap_or_default();
    TracerError::NoProbe { probe, reason }
}

/// The memory of an array map.
fn map(bpf: &Ebpf, name: &'static str, bytes: usize) -> Result<Mapped, TracerError> {
    use std::os::fd::AsFd;

    let Some(aya::maps::Map::Array(map)) = bpf.map(name) else {
        return Err(TracerError::NoMap(name));
    };
    Mapped::new(map.fd().as_fd(), bytes).map_err(|source| TracerError::Map { map: name, source })
}
