//! The host as a source of events.

use model::{HostNs, Machine, MachineId, Pid, Tid, TraceEvent, TraceTask};
use tracer::{Filter, Options, SLOT_BYTES, Symbols, Tracer, TracerError, fault_estimate};

use super::file_names::Mounts;
use super::plan::{Scope, TracePlan};
use super::source::{Source, SourceError, SourceTables, missing_calls};
use super::startup_tasks::StartupTasks;
use super::user_stacks::{NamedStacks, Programs};
use super::vcpus::{IOCTL, Vcpus};
use crate::CollectError;
use crate::Roots;

/// Different kernel stacks that are kept, and user stacks. Builds and data bases have some thousand.
const STACKS: u32 = 1 << 14;
/// The same of kernel stacks where the recorder may go on for days: none is forgotten.
const FLIGHT_STACKS: u32 = 1 << 16;

/// Files that events can name: 18 MB. Trees of sources have some ten thousand.
const FILES: u32 = 1 << 15;

/// The host: its probes, its tasks, its functions' names.
#[derive(Debug)]
pub(super) struct Host {
    tracer: Tracer,
    row: Machine,
    slots: u64,
    symbols: Symbols,
    tasks: Tasks,
    scope: Scope,
    roots: Roots,
    vcpus: Vcpus,
    /// Until the end, where user stacks are traced.
    programs: Option<Programs>,
    user_stacks: NamedStacks,
    stopped: bool,
}

/// The tasks of the begin, in the making.
#[derive(Debug, Default)]
struct Tasks {
    begin: HostNs,
    /// The second reading's end.
    read: HostNs,
    startup: StartupTasks,
}

impl Host {
    /// Loads the probes. `command` is the held command's task, `vcpus` are the threads that run VMs' CPUs.
    pub(super) fn load(
        plan: &TracePlan,
        scope: &Scope,
        command: Option<Tid>,
        vcpus: Vec<(Pid, Tid)>,
    ) -> Result<Self, CollectError> {
        let unreadable = |what| move |source| CollectError::Host { what, source };
        let cpus = host::machine::online_cpus(&plan.roots.sys);
        let cpus = cpus.map_err(unreadable("the list of CPUs"))?;
        let slots = plan.ring_bytes / SLOT_BYTES as u64;
        let mut tracer = Tracer::load(&Options {
            cpus: cpus.clone(),
            slots_per_cpu: u32::try_from(slots).unwrap_or(u32::MAX),
            stacks: if plan.flight.is_some() { FLIGHT_STACKS } else { STACKS },
            user_stacks: if plan.user_stacks { STACKS } else { 0 },
            files: if plan.files { FILES } else { 0 },
            filter: filter(scope)?,
            // The recorder's own work is part of what the CPUs did: shown under its name, not as unknown. A look's
            // few calls are seen by the next look, so they don't feed on themselves.
            exclude: None,
        })?;
        match (scope, command) {
            (Scope::Command, Some(task)) => tracer.follow(Pid(task.0))?,
            (Scope::Tree(pid), _) => tracer.follow(Pid(*pid))?,
            _ => {}
        }
        let symbols = Symbols::read(&plan.roots.proc).unwrap_or_default();
        let mut row = Machine {
            name: "host".to_owned(),
            kernel: host::machine::kernel_release(&plan.roots.proc),
            cpus,
            fault_estimate_ns: fault_estimate(),
            path: "here".to_owned(),
            ..Machine::default()
        };
        if symbols.is_empty() {
            let reason =
                "the kernel hides its functions' addresses: set sysctl kernel.kptr_restrict to 1";
            row.missing.push(("stack names".to_owned(), reason.to_owned()));
        }
        let programs = plan.user_stacks.then(|| Programs::follow(&row.cpus, &plan.roots.proc));
        let programs = programs.and_then(|programs| {
            let missing = |reason| row.missing.push(("user stack names".to_owned(), reason));
            programs.map_err(missing).ok()
        });
        Ok(Self {
            tracer,
            row,
            slots,
            symbols,
            tasks: Tasks::default(),
            scope: scope.clone(),
            roots: plan.roots.clone(),
            vcpus: Vcpus::new(vcpus),
            programs,
            user_stacks: NamedStacks::default(),
            stopped: false,
        })
    }

    fn read_tasks(&self) -> Result<Vec<TraceTask>, SourceError> {
        let proc = &self.roots.proc;
        host::tasks::snapshot(proc, MachineId::HOST)
            .map_err(|source| SourceError::Tasks { path: proc.clone(), source })
    }
}

impl Source for Host {
    fn machine(&self) -> Machine {
        let mut row = self.row.clone();
        row.missing.extend_from_slice(self.tracer.missing());
        let unseen = if self.stopped { self.tracer.unseen_programs() } else { 0 };
        row.missing.extend(missing_calls(unseen));
        let stackless = self.tracer.user_stacks().lost();
        if 0 < stackless {
            let reason = format!("{stackless} sleeps have none: there are too many different ones");
            row.missing.push(("user stacks".to_owned(), reason));
        }
        row.lost = self.tracer.lost();
        row
    }

    fn ring_slots(&self) -> u64 {
        self.slots
    }

    fn start(&mut self) -> Result<HostNs, SourceError> {
        let before = self.read_tasks()?;
        let begin = self.tracer.start()?;
        let startup = StartupTasks::new(before, self.read_tasks()?);
        self.tasks = Tasks { begin, read: probes::now(), startup };
        self.vcpus.begin(&self.roots.proc);
        Ok(begin)
    }

    fn drain(&mut self, cpu: u32, events: &mut Vec<TraceEvent>) -> Result<f64, SourceError> {
        let fill = self.tracer.fill(cpu);
        self.tracer.drain(cpu, events)?;
        let Tasks { begin, read, startup } = &mut self.tasks;
        let early = events.iter().take_while(|event| event.time < *read);
        early.filter(|event| *begin <= event.time).for_each(|event| startup.add(event));
        if let Some(programs) = &mut self.programs {
            programs.look(self.tracer.user_stacks().processes());
        }
        Ok(fill)
    }

    fn stop(&mut self) -> HostNs {
        self.stopped = true;
        self.tracer.stop()
    }

    fn notes(&self) -> Vec<String> {
        self.user_stacks.notes.clone()
    }

    fn tables(&mut self) -> SourceTables {
        let mut tasks = self.tasks.startup.at_begin();
        if !self.stopped {
            self.vcpus.look(&self.roots.proc);
        }
        for task in &mut tasks {
            let runs_guest = self.vcpus.ran().contains(&task.tid).then_some(IOCTL);
            let in_call = task.in_call.or(runs_guest);
            task.in_call = in_call.filter(|_| traces_calls_of(&self.scope, task));
        }
        let stacks = self.tracer.stacks().unwrap_or_default();
        let named = stacks.into_iter().map(|(id, addresses)| (id, self.symbols.stack(&addresses)));
        let mut stacks: Vec<_> = named.collect();
        // Reading programs' files would disturb what is traced.
        if let Some(programs) = self.programs.take_if(|_| self.stopped) {
            let stacks_of_programs: Vec<_> = self.tracer.user_stacks().all().collect();
            self.user_stacks = programs.name(&stacks_of_programs, &self.roots.proc);
        }
        stacks.extend(self.user_stacks.rows.iter().cloned());
        let mounts = Mounts::read(&self.roots.proc);
        let files = self.tracer.files().all().map(|file| mounts.row(MachineId::HOST, &file));
        let disks = host::disks::names(&self.roots.proc);
        SourceTables { tasks, stacks, disks, files: files.collect() }
    }
}

/// Whether the trace surely has the system calls of a task that was there before.
fn traces_calls_of(scope: &Scope, task: &TraceTask) -> bool {
    match scope {
        Scope::Everything => true,
        Scope::Process(pid) | Scope::Tree(pid) => task.pid == Pid(*pid),
        Scope::Command | Scope::Cgroup(_) => false,
    }
}

fn filter(scope: &Scope) -> Result<Filter, TracerError> {
    Ok(match scope {
        Scope::Everything => Filter::None,
        Scope::Command | Scope::Tree(_) => Filter::Tree,
        Scope::Process(pid) => Filter::ProcessAndRivals(Pid(*pid)),
        Scope::Cgroup(folder) => Filter::cgroup(folder)?,
    })
}
