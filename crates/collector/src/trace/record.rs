//! From begin to end.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use api::guest::TraceScope;
use host::vms::VmProcess;
use model::{HostNs, Machine, MachineId, Note, Pid, Tid, TraceFilter, TraceTables, TracedCommand};
use probes::FoundVm;
use recording::trace::{TraceHeader, TraceWriter};
use tracer::SLOT_BYTES;

use super::checkpoints::Checkpoints;
use super::command::HeldCommand;
use super::disk_space::disk_space;
use super::flight::HeldEvents;
use super::guest::{GuestPlan, NamedVm, PreparedGuest, all_vms, find_vm, vcpu_threads};
use super::host::Host;
use super::machine::TracedMachine;
use super::plan::{Scope, TracePlan, Traced};
use super::realtime::RealtimePriority;
use super::snapshots::{Snapshot, Snapshots};
use super::source::{Source, SourceError};
use crate::CollectError;
use crate::beside::ConcurrentSampler;
use crate::plan::{Control, Next, Progress};
use crate::running::{Ended, Running, still_runs};

/// Interval at which tables are stored: a trace stays readable when its recorder is killed.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(5);
/// The first time soon after the tasks of the begin are known.
const FIRST_CHECKPOINT: Duration = Duration::from_millis(200);
const SHOW_EVERY: Duration = Duration::from_secs(2);
/// Time between two readings of the disk's free space.
const DISK_SPACE_EVERY: Duration = Duration::from_secs(1);

/// Traces until `control` says so or the command ends.
///
/// # Errors
/// When tracing can't begin; nothing lies under the trace's name then. When the trace can't be written: what was traced
/// by then stays readable under its partial name.
pub fn trace(plan: &TracePlan, control: &mut dyn Control) -> Result<Traced, CollectError> {
    trace_beside(plan, &mut ConcurrentSampler::Nothing, control)
}

/// Traces, and samples beside it: samples begin after the trace and end before it.
pub(crate) fn trace_beside(
    plan: &TracePlan,
    beside: &mut ConcurrentSampler,
    control: &mut dyn Control,
) -> Result<Traced, CollectError> {
    let vms = find_vms(plan)?;
    let held = if vms.is_empty() { hold(&plan.command)? } else { None };
    let scope = host_scope(plan, &vms);
    let others = others(&plan.roots.proc, &vms);
    let host = Host::load(plan, &scope, held.as_ref().map(|held| held.task), vcpus(&vms, &others))?;
    let mut sources: Vec<Box<dyn Source>> = vec![Box::new(host)];
    sources.extend(begin_guests(plan, &vms)?);
    let mut recorder = Recorder::create(plan, sources)?;
    recorder.others = others;
    let mut command = match recorder.begin(held, beside) {
        Ok(command) => command,
        Err(error) => {
            recorder.checkpoints.end()?.discard()?;
            return Err(error);
        }
    };
    let ran = recorder.run(command.as_mut(), beside, control);
    let sampled = beside.end();
    // All machines' traces end together, however long it takes to end each.
    let end = probes::now();
    recorder.machines.iter_mut().for_each(TracedMachine::ask_to_stop);
    recorder.machines.iter_mut().for_each(|machine| machine.stop(end));
    recorder.ended = command.map(|command| command.finish(&plan.roots.proc));
    if matches!(ran, Err(CollectError::Discarded)) {
        recorder.checkpoints.end()?.discard()?;
        return Err(CollectError::Discarded);
    }
    ran?;
    sampled?;
    recorder.finish(control)
}

fn hold(words: &[String]) -> Result<Option<HeldCommand>, CollectError> {
    let Some((program, arguments)) = words.split_first() else { return Ok(None) };
    let held = HeldCommand::hold(program, arguments);
    held.map(Some).map_err(|source| CollectError::Command { program: program.clone(), source })
}

/// VMs as the user called them, as they were found, and as their processes describe them.
type Vms<'a> = Vec<(&'a str, FoundVm, VmProcess)>;

fn find_vms(plan: &TracePlan) -> Result<Vms<'_>, CollectError> {
    if 1 < plan.vms.len() && !plan.command.is_empty() {
        return Err(CollectError::CommandInGuests);
    }
    let find = |vm: &'_ String| -> Result<_, CollectError> {
        let failed = |reason| CollectError::Vm { vm: vm.clone(), reason };
        let (found, process, _) = find_vm(&plan.roots.proc, vm).map_err(failed)?;
        Ok((found, process))
    };
    plan.vms
        .iter()
        .map(|vm| find(vm).map(|(found, process)| (vm.as_str(), found, process)))
        .collect()
}

/// The host's other VMs, which are not traced but have CPUs of it. Without their names they are processes.
fn others(proc: &Path, vms: &Vms<'_>) -> Vec<Machine> {
    let all = all_vms(proc).unwrap_or_default();
    let is_traced = |vm: &FoundVm| vms.iter().any(|(_, traced, _)| traced.pid == vm.pid);
    let row = |(vm, _, name): NamedVm| Machine {
        name,
        vm_process: Some(vm.pid),
        vcpu_threads: vcpu_threads(&vm, &[]),
        ..Machine::default()
    };
    all.into_iter().filter(|(vm, ..)| !is_traced(vm)).map(row).collect()
}

/// The threads that run VMs' CPUs.
fn vcpus(vms: &Vms<'_>, others: &[Machine]) -> Vec<(Pid, Tid)> {
    let traced = vms.iter().map(|(_, vm, _)| (vm.pid, vcpu_threads(vm, &[])));
    let others = others.iter().filter_map(|row| Some((row.vm_process?, row.vcpu_threads.clone())));
    let all = traced.chain(others);
    let threads = all.flat_map(|(pid, threads)| threads.into_iter().map(move |tid| (pid, tid)));
    threads.filter(|(_, tid)| *tid != Tid(0)).collect()
}

/// With a VM: of the host what its process does. With several: everything.
fn host_scope(plan: &TracePlan, vms: &Vms<'_>) -> Scope {
    match &vms[..] {
        [] => plan.scope.clone(),
        [(_, vm, _)] => Scope::Process(vm.pid.0),
        _ => Scope::Everything,
    }
}

fn begin_guests<'a>(plan: &TracePlan, vms: &Vms<'a>) -> Result<Vec<Box<dyn Source>>, CollectError> {
    let scope = match plan.scope {
        Scope::Command => TraceScope::Command,
        Scope::Tree(pid) => TraceScope::Tree { pid },
        _ => TraceScope::Everything,
    };
    let failed = |name: &str, reason| CollectError::Vm { vm: name.to_owned(), reason };
    let ask = |(machine, (name, vm, process)): (u32, &(&'a str, FoundVm, VmProcess))| {
        let guest = GuestPlan {
            machine: MachineId(machine),
            slots_per_cpu: u32::try_from(plan.ring_bytes / SLOT_BYTES as u64).unwrap_or(u32::MAX),
            guests: vms.len(),
            scope,
            path: plan.guest_path,
            command: plan.command.clone(),
        };
        let requested = PreparedGuest::ask(vm, process, &guest, &plan.roots);
        requested.map(|requested| (*name, requested)).map_err(|error| failed(name, error.into()))
    };
    // It takes each its time: they are all queried before the first is waited for.
    let requested: Vec<_> = (1..).zip(vms).map(ask).collect::<Result<_, _>>()?;
    let begin = |(name, requested): (&str, PreparedGuest)| {
        let guest = requested.begin().map_err(|error| failed(name, error.into()))?;
        Ok(Box::new(guest) as Box<dyn Source>)
    };
    requested.into_iter().map(begin).collect()
}

struct Recorder<'a> {
    plan: &'a TracePlan,
    checkpoints: Checkpoints,
    header: TraceHeader,
    machines: Vec<TracedMachine>,
    /// VMs that are not traced.
    others: Vec<Machine>,
    command: Option<TracedCommand>,
    ended: Option<Ended>,
    /// Problems during the trace.
    unplanned: Vec<String>,
    snapshots: Snapshots,
}

impl<'a> Recorder<'a> {
    /// `sources`: the host first.
    fn create(plan: &'a TracePlan, sources: Vec<Box<dyn Source>>) -> Result<Self, CollectError> {
        let header = TraceHeader {
            vmscope_version: plan.vmscope_version.clone(),
            hostname: host::machine::hostname(&plan.roots.proc),
            filters: filters(plan),
            ..TraceHeader::default()
        };
        let rows = sources.iter().map(|source| source.machine()).collect();
        let tables = TraceTables { machines: rows, ..TraceTables::default() };
        let checkpoints = Checkpoints::new(TraceWriter::create(&plan.output, &header, &tables)?);
        let ids = (0..).map(MachineId);
        let machines = ids.zip(sources).map(|(id, source)| TracedMachine::new(id, source));
        let machines = machines.collect();
        let (others, unplanned) = (Vec::new(), Vec::new());
        let (command, ended, snapshots) = (None, None, Snapshots::default());
        Ok(Self {
            plan,
            checkpoints,
            header,
            machines,
            others,
            command,
            ended,
            unplanned,
            snapshots,
        })
    }

    /// Attaches all probes, then lets the command go.
    fn begin(
        &mut self,
        held: Option<HeldCommand>,
        beside: &mut ConcurrentSampler,
    ) -> Result<Option<Running>, CollectError> {
        for machine in &mut self.machines {
            match self.plan.flight {
                Some(flight) => machine.hold(flight),
                None => machine.open_spools(self.checkpoints.writer())?,
            }
        }
        // The host comes last: its trace then lies within those of its guests.
        for machine in self.machines.iter_mut().rev() {
            machine
                .start()
                .map_err(|reason| CollectError::Machine { machine: machine.row().name, reason })?;
        }
        (self.header.begin, self.header.begin_unix_ns) = (probes::now(), probes::unix_now_ns());
        beside.attach()?;
        let Some(held) = held else { return self.run_in_guest().map(|()| None) };
        self.command = Some(TracedCommand {
            machine: MachineId::HOST,
            task: held.task,
            words: self.plan.command.clone(),
            before: false,
            exit_code: None,
        });
        let program = || self.plan.command[0].clone();
        let child = held
            .release()
            .map_err(|source| CollectError::Command { program: program(), source })?;
        Ok(Some(Running::new(child)))
    }

    /// Lets the command go that waits in a guest.
    fn run_in_guest(&mut self) -> Result<(), CollectError> {
        for machine in &mut self.machines {
            let failed = |reason: SourceError| CollectError::Command {
                program: self.plan.command[0].clone(),
                source: std::io::Error::other(reason),
            };
            if let Some(task) = machine.run_command().map_err(failed)? {
                self.command = Some(TracedCommand {
                    machine: machine.id(),
                    task,
                    words: self.plan.command.clone(),
                    before: false,
                    exit_code: None,
                });
            }
        }
        Ok(())
    }

    /// Stores events until the end.
    fn run(
        &mut self,
        mut command: Option<&mut Running>,
        beside: &mut ConcurrentSampler,
        control: &mut dyn Control,
    ) -> Result<(), CollectError> {
        let priority = RealtimePriority::begin();
        if let Err(error) = &priority {
            self.note(&format!("the recorder ran as an ordinary task: {error}"));
        }
        let host = self.machines[0].row();
        control.show(&Progress::Tracing { cpus: host.cpus.len(), missing: host.missing });
        let begin = Instant::now();
        let (mut checkpoint, mut shown) = (begin + FIRST_CHECKPOINT, begin + SHOW_EVERY);
        let mut measured = begin;
        loop {
            let sleep = self.look()?;
            beside.poll_if_due(control)?;
            if command.as_mut().is_some_and(|command| command.has_ended())
                || self.machines.iter().any(|machine| machine.source().command_ended())
            {
                return Ok(());
            }
            match (control.next(), &command) {
                (Next::GoOn(at_most), command) => {
                    let end = command.as_ref().and_then(|command| command.end());
                    control.wait(sleep.min(at_most), end.as_slice());
                }
                (Next::End(signal), Some(command)) => {
                    signal.into_iter().for_each(|signal| command.signal(signal));
                }
                (Next::End(_), None) | (Next::Finish, _) => return Ok(()),
                (Next::Discard, _) => return Err(CollectError::Discarded),
            }
            let now = Instant::now();
            if measured + DISK_SPACE_EVERY <= now {
                if let Some(why) = self.lacks_disk_space() {
                    self.unplanned.push(why);
                    return Ok(());
                }
                measured = now;
            }
            if self.snapshots.begins(control.wants_snapshot()) {
                self.store_snapshot()?;
            }
            if let Some(line) = self.snapshots.line() {
                control.show(&Progress::Written(line));
            }
            // What is held in memory is lost with the recorder.
            let stores = self.plan.flight.is_none() && !self.checkpoints.is_under_way();
            if checkpoint <= now && stores {
                let tables = self.tables();
                self.header.end = probes::now();
                self.checkpoints.store(self.header.clone(), tables)?;
                checkpoint = Instant::now() + CHECKPOINT_EVERY;
            }
            if shown <= now {
                control.show(&self.so_far());
                shown = now + SHOW_EVERY;
            }
        }
    }

    /// Stores what has come in; the shortest sleep until the next look.
    fn look(&mut self) -> Result<Duration, recording::Error> {
        let mut sleep = Duration::MAX;
        for machine in &mut self.machines {
            sleep = sleep.min(machine.look()?);
        }
        Ok(sleep)
    }

    /// Why the trace can't go on, if its file system lacks space for more.
    fn lacks_disk_space(&self) -> Option<String> {
        let events: u64 = self.machines.iter().map(TracedMachine::events).sum();
        let space = disk_space(self.checkpoints.writer().partial_path())?;
        // Those in memory go to files first.
        let to_write = if self.plan.flight.is_some() { events.saturating_mul(2) } else { events };
        space.lack(self.plan.min_free, to_write)
    }

    /// Has what is held written beside the rings: to make it durable takes a busy disk seconds.
    fn store_snapshot(&mut self) -> Result<(), recording::Error> {
        let end = probes::now();
        self.look()?;
        if let Some(why) = self.lacks_disk_space() {
            self.snapshots.refuse(&why);
            return Ok(());
        }
        let held = self.held(end);
        let mut tables = self.tables();
        tables.machines.iter_mut().for_each(|row| row.end = row.end.min(end));
        let mut header = TraceHeader { end, ..self.header.clone() };
        begin_with(&mut header, &tables);
        header.notes.extend(self.held_notes(header.begin, end));
        self.snapshots.write(&self.plan.output, Snapshot { header, tables, held, end });
        Ok(())
    }

    /// What is in memory of a trace that ends at `end`.
    fn held(&mut self, end: HostNs) -> Vec<(MachineId, HeldEvents)> {
        let held = |machine: &mut TracedMachine| Some((machine.id(), machine.held(end)?.clone()));
        self.machines.iter_mut().filter_map(held).collect()
    }

    /// For how long events are in memory of a trace from `begin` to `end`.
    fn held_notes(&mut self, begin: HostNs, end: HostNs) -> Vec<Note> {
        let note = |machine: &mut TracedMachine| {
            let began = machine.began();
            let text = machine.held(end)?.note(began, begin, end);
            Some(Note { subject: machine.row().name, text })
        };
        self.machines.iter_mut().filter_map(note).collect()
    }

    fn so_far(&self) -> Progress {
        let events = self.machines.iter().map(TracedMachine::events).sum();
        let lost =
            self.machines.iter().fold(0, |sum: u64, machine| sum.saturating_add(machine.lost()));
        Progress::SoFar { events, lost }
    }

    fn finish(mut self, control: &mut dyn Control) -> Result<Traced, CollectError> {
        for machine in &mut self.machines {
            machine.last_looks()?;
        }
        control.show(&Progress::Finishing("writing the trace"));
        let command = match self.ended.take() {
            Some(Ended::Itself(status)) => Some(status),
            Some(Ended::WithRecording(left)) => {
                self.unplanned.extend(still_runs(&left));
                None
            }
            None => None,
        };
        let unplanned = std::mem::take(&mut self.unplanned);
        unplanned.iter().for_each(|text| self.note(text));
        let command = command.or_else(|| self.command_in_guest(control));
        if let Some(row) = &mut self.command {
            row.exit_code = command.and_then(exit_code);
        }
        let held = self.held(HostNs(u64::MAX));
        let tables = self.tables();
        self.note_machines();
        self.header.end = tables.machines.iter().map(|row| row.end).max().unwrap_or(HostNs(0));
        begin_with(&mut self.header, &tables);
        let notes = self.held_notes(self.header.begin, self.header.end);
        self.header.notes.extend(notes);
        for (machine, held) in held {
            held.write(machine, self.checkpoints.writer(), self.header.end)?;
        }
        if let Some(line) = self.snapshots.end() {
            control.show(&Progress::Written(line));
        }
        let summary = self.checkpoints.end()?.finish(&self.header, &tables)?;
        Ok(Traced { header: self.header, tables, summary, command, unplanned })
    }

    /// How a guest's command ended; shows what it wrote.
    fn command_in_guest(&self, control: &mut dyn Control) -> Option<ExitStatus> {
        let ran_in = self.command.as_ref()?.machine;
        let machine = self.machines.iter().find(|machine| machine.id() == ran_in)?;
        if let Some(output) = machine.source().output() {
            control.show(&Progress::Output(output));
        }
        machine.source().exit_code().map(|code| ExitStatus::from_raw((code & 0xff) << 8))
    }

    /// Notes on each machine, once its tables are complete.
    fn note_machines(&mut self) {
        for machine in &self.machines {
            let subject = machine.source().machine().name;
            let note = |text| Note { subject: subject.clone(), text };
            self.header.notes.extend(machine.source().notes().into_iter().map(note));
        }
    }

    /// All that is known by now.
    fn tables(&mut self) -> TraceTables {
        let mut tables = TraceTables { command: self.command.clone(), ..TraceTables::default() };
        for machine in &mut self.machines {
            machine.add_to(&mut tables);
        }
        if let Some(command) = &mut tables.command {
            let machine = &self.machines[command.machine.index()];
            command.before = machine.has_begun_program(command.task);
        }
        let host = &tables.machines[MachineId::HOST.index()];
        let (begin, end) = (host.begin, host.end);
        let others = self.others.iter().cloned();
        tables.machines.extend(others.map(|row| Machine { begin, end, ..row }));
        tables
    }

    fn note(&mut self, text: &str) {
        self.header.notes.push(Note { subject: "host".to_owned(), text: text.to_owned() });
    }
}

/// The trace begins when the first machine's does.
fn begin_with(header: &mut TraceHeader, tables: &TraceTables) {
    let begin = tables.machines.iter().map(|row| row.begin).min().unwrap_or(header.begin);
    // Both say the same instant.
    let (earlier_ns, later_ns) = (header.begin.since(begin), begin.since(header.begin));
    header.begin_unix_ns = header.begin_unix_ns.saturating_sub(earlier_ns) + later_ns;
    header.begin = begin;
}

/// As shells have it: 128 and the signal's number for a command that a signal ended.
fn exit_code(status: ExitStatus) -> Option<i32> {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
}

/// What the plan limits the trace to.
fn filters(plan: &TracePlan) -> Vec<TraceFilter> {
    let vms = plan.vms.iter().cloned().map(TraceFilter::Vm);
    vms.chain(scope_filter(&plan.scope)).collect()
}

fn scope_filter(scope: &Scope) -> Option<TraceFilter> {
    match scope {
        Scope::Everything => None,
        Scope::Command => Some(TraceFilter::Command),
        Scope::Tree(pid) | Scope::Process(pid) => Some(TraceFilter::Tree(Pid(*pid))),
        Scope::Cgroup(path) => Some(TraceFilter::Cgroup(path.display().to_string())),
    }
}
