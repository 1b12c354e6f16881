//! Tracing this guest for its host: the probes write into rings, which the host reads from outside.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use api::guest::{
    MAX_OUTPUT_BYTES, MAX_TRACE_BYTES, MAX_TRACE_ROWS, TraceClock, TraceLost, TraceOptions,
    TraceScope, TraceSeen, TraceSlots, TraceStackRow, TraceStarted, TraceStopped, TraceTaskRow,
};
use model::{MachineId, Pid, TraceTask};
use rustix::time::{ClockId, clock_gettime};
use tracer::guest::pages_of;
use tracer::{
    ClockPair, Filter, KINDS, Options, RingMemory, SLOT_BYTES, Slot, Symbols, Tracer, TracerError,
    error_chain, generation,
};

use super::command::TracedCommand;

const PROC: &str = "/proc";
const SYS: &str = "/sys";
/// Readings of the clocks; the tightest counts.
const CLOCK_READINGS: u32 = 200;
/// Slots copied at once.
const CHUNK: usize = 4096;

/// Whether the host may have commands run here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commands {
    Allowed,
    Refused,
}

/// Why this guest can't be traced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    #[error(
        "it does not run commands for the host: start it as `vmscope-guest serve --allow-commands`"
    )]
    CommandRefused,
    #[error("failed to read the list of CPUs: {0}")]
    Cpus(io::Error),
    #[error("failed to start the command: {0}")]
    Command(io::Error),
    #[error("no process {0} in the guest")]
    NoProcess(u32),
    #[error("{}", error_chain(.0))]
    Probes(#[from] TracerError),
    #[error("failed to read {PROC}: {0}")]
    Tasks(io::Error),
}

/// A trace under way. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Trace {
    tracer: Tracer,
    command: Option<TracedCommand>,
    /// By ring: what the host was sent so far, where it asks for it.
    sent: Vec<u64>,
    /// CPU time of this process when it had begun the trace.
    cpu_ns: u64,
}

impl Trace {
    /// Loads and attaches the probes; the command waits.
    pub(crate) fn start(
        options: &TraceOptions,
        commands: Commands,
    ) -> Result<(Self, TraceStarted), TraceError> {
        if !options.command.is_empty() && commands == Commands::Refused {
            return Err(TraceError::CommandRefused);
        }
        let cpus = host::machine::online_cpus(Path::new(SYS)).map_err(TraceError::Cpus)?;
        let command = hold(&options.command)?;
        let task = command.as_ref().map(TracedCommand::task);
        let followed = followed(options.scope, task, Path::new(PROC))?;
        let mut tracer = load(options, followed, cpus.clone())?;
        let layout = tracer.layout();
        tracer::guest::mark(&tracer.rings().heads, layout.rings, options.mark);
        let mut started = TraceStarted {
            kernel_release: host::machine::kernel_release(Path::new(PROC)),
            cpus,
            apic_ids: host::machine::apic_ids(Path::new(PROC)),
            base_ns: tracer.base_ns(),
            slots_per_ring: u32::try_from(layout.slots_per_cpu).unwrap_or(0),
            rings: u32::try_from(layout.rings).unwrap_or(0),
            fault_estimate_ns: tracer::fault_estimate(),
            command: task,
            ..TraceStarted::default()
        };
        let pages = |(address, bytes)| pages_of(Path::new(PROC), address, bytes);
        match pages(layout.heads).and_then(|heads| Ok((heads, pages(layout.slots)?))) {
            Ok(pages) => (started.head_pages, started.slot_pages) = pages,
            Err(error) => started.pages_problem = Some(error.to_string()),
        }
        started.before = all_tasks()?;
        started.begin_ns = tracer.start()?.0;
        started.lost = (0..layout.rings).map(|ring| lost(ring, tracer.lost_before(ring))).collect();
        started.after = all_tasks()?;
        started.after_ns = super::now_ns();
        started.missing = tracer.missing().to_vec();
        started.clock = clock();
        let cpu_ns = own_cpu_ns();
        Ok((Self { tracer, command, sent: vec![0; layout.rings], cpu_ns }, started))
    }

    /// Lets the command go.
    pub(crate) fn run(&mut self) -> Result<TraceSeen, TraceError> {
        if let Some(command) = &mut self.command {
            command.release().map_err(TraceError::Command)?;
        }
        Ok(self.look())
    }

    pub(crate) fn look(&mut self) -> TraceSeen {
        let exit_code = self.command.as_ref().and_then(TracedCommand::exit_code);
        TraceSeen { clock: clock(), exit_code }
    }

    /// What the programs have written since the last time, as much as one answer holds, and frees its room.
    pub(crate) fn drain(&mut self) -> Vec<TraceSlots> {
        let mut room = MAX_TRACE_BYTES / SLOT_BYTES;
        let slots_per_ring = self.tracer.layout().slots_per_cpu;
        let rings = self.tracer.rings();
        let mut answer = Vec::new();
        for (ring, sent) in self.sent.iter_mut().enumerate() {
            let bytes = take(rings, ring, slots_per_ring, sent, &mut room);
            if !bytes.is_empty() {
                answer.push(TraceSlots { ring: u32::try_from(ring).unwrap_or(u32::MAX), bytes });
            }
        }
        answer
    }

    /// Detaches the probes. The rings stay until the trace is dropped: the host has not read all of them.
    pub(crate) fn stop(&mut self) -> TraceStopped {
        let own_cpu_ns = own_cpu_ns().saturating_sub(self.cpu_ns);
        let end_ns = self.tracer.stop().0;
        let mut stopped = TraceStopped {
            end_ns,
            clock: clock(),
            missing: self.tracer.missing().to_vec(),
            lost: self.lost(),
            disks: host::disks::names(Path::new(PROC)),
            own_cpu_ns,
            ..TraceStopped::default()
        };
        self.name_stacks(&mut stopped);
        if let Some(command) = &mut self.command {
            stopped.exit_code = command.exit_code();
            stopped.output = command.output(MAX_OUTPUT_BYTES).unwrap_or_default();
        }
        stopped
    }

    fn lost(&mut self) -> Vec<TraceLost> {
        let rings = self.tracer.rings();
        (0..self.sent.len())
            .map(|ring| {
                let Ok(counts) = rings.lost(ring);
                lost(ring, counts)
            })
            .collect()
    }

    fn name_stacks(&self, stopped: &mut TraceStopped) {
        let symbols = match Symbols::read(Path::new(PROC)) {
            Ok(symbols) => symbols,
            Err(error) => {
                stopped.missing.push(("stack names".into(), error.to_string()));
                Symbols::default()
            }
        };
        let stacks = match self.tracer.stacks() {
            Ok(stacks) => stacks,
            Err(error) => return stopped.missing.push(("stacks".into(), error.to_string())),
        };
        let mut rows: HashMap<String, u32> = HashMap::new();
        for (id, addresses) in stacks.into_iter().take(MAX_TRACE_ROWS) {
            let names = symbols.stack(&addresses);
            let mut row_of = |name: String| {
                *rows.entry(name).or_insert_with_key(|name| {
                    stopped.functions.push(name.clone());
                    u32::try_from(stopped.functions.len() - 1).unwrap_or(u32::MAX)
                })
            };
            let functions = names.into_iter().map(&mut row_of).collect();
            stopped.stacks.push(TraceStackRow { id: id.0, functions });
        }
    }
}

fn lost(ring: usize, counts: [u64; KINDS]) -> TraceLost {
    TraceLost { ring: u32::try_from(ring).unwrap_or(u32::MAX), counts: counts.to_vec() }
}

fn hold(words: &[String]) -> Result<Option<TracedCommand>, TraceError> {
    if words.is_empty() {
        return Ok(None);
    }
    TracedCommand::hold(words).map(Some).map_err(TraceError::Command)
}

/// The process to follow, if not everybody is traced.
fn followed(
    scope: TraceScope,
    command: Option<u32>,
    proc: &Path,
) -> Result<Option<u32>, TraceError> {
    match scope {
        TraceScope::Everything => Ok(None),
        TraceScope::Command => Ok(command),
        TraceScope::Tree { pid } if proc.join(pid.to_string()).exists() => Ok(Some(pid)),
        TraceScope::Tree { pid } => Err(TraceError::NoProcess(pid)),
    }
}

/// `followed`: a process.
fn load(
    options: &TraceOptions,
    followed: Option<u32>,
    cpus: Vec<u32>,
) -> Result<Tracer, TraceError> {
    let filter = match options.scope {
        TraceScope::Everything => Filter::None,
        TraceScope::Command | TraceScope::Tree { .. } => Filter::Tree,
    };
    let mut tracer = Tracer::load(&Options {
        cpus,
        slots_per_cpu: options.slots_per_cpu,
        stacks: options.stacks,
        // They could not be named here.
        user_stacks: 0,
        files: 0,
        filter,
        exclude: Some(Pid(std::process::id())),
    })?;
    if filter == Filter::None {
        return Ok(tracer);
    }
    if let Some(pid) = followed {
        tracer.follow(Pid(pid))?;
    }
    Ok(tracer)
}

/// The written slots of a ring that were not taken yet, at most `room`: up to the first that is still being written.
fn take<M: RingMemory<Error = std::convert::Infallible>>(
    rings: &mut M,
    ring: usize,
    slots_per_ring: usize,
    sent: &mut u64,
    room: &mut usize,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chunk = vec![Slot::default(); CHUNK];
    loop {
        let Ok((head, _)) = rings.counters(ring);
        let ready = usize::try_from(head.wrapping_sub(*sent)).unwrap_or(usize::MAX);
        let first = usize::try_from(*sent % slots_per_ring as u64).unwrap_or(0);
        let n = ready.min(slots_per_ring - first).min(CHUNK).min(*room);
        let Ok(()) = rings.read_slots(ring, first, &mut chunk[..n]);
        let expected = generation(*sent, slots_per_ring);
        let written = chunk[..n].iter().take_while(|slot| slot.generation() == expected);
        let before = bytes.len();
        for slot in written {
            bytes.extend(slot.tag.to_le_bytes());
            bytes.extend(slot.payload.to_le_bytes());
        }
        let taken = (bytes.len() - before) / SLOT_BYTES;
        if taken == 0 {
            return bytes;
        }
        *sent += taken as u64;
        *room -= taken;
        let Ok(()) = rings.set_tail(ring, *sent);
    }
}

fn all_tasks() -> Result<Vec<TraceTaskRow>, TraceError> {
    let tasks =
        host::tasks::snapshot(Path::new(PROC), MachineId::HOST).map_err(TraceError::Tasks)?;
    let row = |task: TraceTask| TraceTaskRow {
        tid: task.tid.0,
        pid: task.pid.0,
        parent: task.parent.0,
        name: task.name,
        kernel: task.kernel,
        asleep_in: task.asleep_in,
    };
    Ok(tasks.into_iter().take(MAX_TRACE_ROWS).map(row).collect())
}

fn clock() -> TraceClock {
    let ClockPair { tsc, ns, width, cpu } = ClockPair::tightest(CLOCK_READINGS);
    TraceClock { cpu, tsc, ns, width }
}

/// CPU time of all threads of this process.
fn own_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_process_to_follow_must_be_there() {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir(proc.path().join("7")).unwrap();
        let check = |scope, expected: Result<Option<u32>, &str>| {
            let found = followed(scope, Some(5), proc.path()).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned));
        };
        check(TraceScope::Everything, Ok(None));
        check(TraceScope::Command, Ok(Some(5)));
        check(TraceScope::Tree { pid: 7 }, Ok(Some(7)));
        check(TraceScope::Tree { pid: 777 }, Err("no process 777 in the guest"));
    }
}
