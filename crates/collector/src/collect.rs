//! The sampling phase.

use std::path::{Path, PathBuf};
use std::time::Duration;

use api::guest::SERIAL_PORT_NAME;
use guest::Limits;
use host::processes::ProcessLog;
use host::sideband::{EventKind, Sideband};
use model::{CpuId, Header, HostNs, Note, Pid, Tables, Tid, Trigger, Vendor};
use probes::{Drained, FoundVcpu, ProbeError, STACK_FIELD, Sampler};
use recording::{Spool, StackSpool, Writer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::guests::GuestWorkers;
use crate::lock::Lock;
use crate::stacks::StackTable;
use crate::vm_table::VmTable;
use crate::{CollectError, finish};

/// What the collector is to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Go on, and ask again after this time at the latest.
    GoOn(Duration),
    /// End sampling and finish the recording.
    Finish,
    /// End at once and leave nothing.
    Discard,
}

/// Between two looks at the rings. A ring holds seconds of samples, so nothing is lost if we are late.
const DRAIN_EVERY: Duration = Duration::from_millis(200);

/// Seconds of samples that a ring has room for.
const RING_SECONDS: u64 = 4;

/// Records of processes' doings per CPU between two drains.
const SIDEBAND_RING_BYTES: usize = 512 << 10;

/// Processes' doings younger than this wait for the next turn: another CPU's ring may hold their causes.
const SETTLING_NS: u64 = 50_000_000;

/// After a look for an unknown vCPU that found nothing new.
const LOOK_AGAIN_NS: u64 = 2_000_000_000;

/// Where Linux keeps what we read.
const PROC: &str = "/proc";
const SYS: &str = "/sys";
const LOCK: &str = "/run/vmscope-record.lock";

/// What to record.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The recording's folder, which must not exist yet.
    pub output: PathBuf,
    /// What makes the sampling interrupts.
    pub trigger: Trigger,
    /// Nominal time between samples of a CPU, ns.
    pub period_ns: u64,
    /// Trigger's own period: ns for cpu-clock, cycles for the cycle counter.
    pub trigger_period: u64,
    /// Host call stacks.
    pub call_graph: bool,
    /// Snapshots of guests without a channel: (VM's name, file).
    pub guest_maps: Vec<(String, PathBuf)>,
    /// How long and how much a guest may answer.
    pub limits: Limits,
    /// Where guests' symbols are kept by build id.
    pub symbol_store: PathBuf,
    /// Version to write into the recording.
    pub vmscope_version: String,
}

/// What the user may want to see while it goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Sampling has begun on this many CPUs; these VMs run.
    Sampling {
        /// CPUs.
        cpus: usize,
        /// VMs' names.
        vms: Vec<String>,
    },
    /// A VM was found in mid-recording.
    VmFound(String),
    /// A VM's process has ended.
    VmEnded(String),
    /// Sampling has ended, this is being done now.
    Finishing(&'static str),
}

/// Whoever wants the recording: says when it ends, and may show how it goes on.
pub trait Control {
    /// Whether it is to end at once; asked while guests are waited for before sampling begins.
    fn interrupted(&self) -> bool;
    /// What to do next; asked several times a second, first when sampling has begun.
    fn next(&mut self) -> Next;
    /// Something happened.
    fn show(&mut self, progress: &Progress);
}

/// What was recorded.
#[derive(Debug, Clone)]
pub struct Collected {
    /// The finished recording's header.
    pub header: Header,
    /// Sizes.
    pub summary: recording::Summary,
}

/// Records until `control` says so.
///
/// # Errors
/// When sampling can't begin or the recording can't be written; then nothing lies under its name.
pub fn collect(plan: &Plan, control: &mut dyn Control) -> Result<Collected, CollectError> {
    let _lock = Lock::take(Path::new(LOCK))?;
    allow_many_files();
    let collection = Collection::begin(plan, control)?;
    let sampled = collection.sample(control)?;
    finish::finish(sampled, plan, Path::new(PROC), control)
}

/// Each CPU takes four descriptors: a large host needs more than the usual soft limit.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // If it is refused, opening the files will say so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// What the sampling phase leaves behind.
#[derive(Debug)]
pub(crate) struct Sampled {
    pub(crate) writer: Writer,
    pub(crate) header: Header,
    pub(crate) vms: VmTable,
    pub(crate) stacks: StackTable,
    pub(crate) processes: ProcessLog,
    pub(crate) guests: GuestWorkers,
}

struct Collection<'a> {
    plan: &'a Plan,
    sampler: Sampler,
    sideband: Sideband,
    cpus: Vec<u32>,
    spools: Vec<Spool>,
    stack_spool: StackSpool,
    kvm: bool,
    /// Not before this time the vCPUs are looked for again.
    next_look: HostNs,
    state: Sampled,
}

impl<'a> Collection<'a> {
    fn begin(plan: &'a Plan, control: &dyn Control) -> Result<Self, CollectError> {
        let host = |what| move |source| CollectError::Host { what, source };
        let cpus = host::machine::online_cpus(Path::new(SYS)).map_err(host("the list of CPUs"))?;
        let vendor = host::machine::vendor(Path::new(PROC));
        let sampler = Sampler::load(sampler_options(plan, &cpus, vendor))?;
        let sideband = Sideband::open(&cpus, SIDEBAND_RING_BYTES)
            .map_err(|error| CollectError::Sideband(error.to_string()))?;
        let processes = ProcessLog::scan(Path::new(PROC)).map_err(host("/proc"))?;
        let header = first_header(plan, &cpus, vendor);
        let writer = Writer::create(&plan.output, &header)?;
        let (stack_spool, spools) = match open_spools(&writer, &cpus) {
            Ok(spools) => spools,
            Err(error) => return Err(discard(writer, error.into())),
        };
        let state = Sampled {
            writer,
            header,
            vms: VmTable::default(),
            stacks: StackTable::default(),
            processes,
            guests: GuestWorkers::new(),
        };
        let kvm = Path::new(SYS).join("module/kvm").exists();
        let next_look = HostNs(0);
        let mut collection =
            Self { plan, sampler, sideband, cpus, spools, stack_spool, kvm, next_look, state };
        match collection.meet_vms(control) {
            Ok(()) => Ok(collection),
            Err(error) => Err(discard(collection.state.writer, error)),
        }
    }

    /// Finds the VMs that run, and lets their guests begin their logs.
    fn meet_vms(&mut self, control: &dyn Control) -> Result<(), CollectError> {
        if self.kvm && !self.sampler.knows_vcpus() {
            let text = "this kernel does not tell KVM's types: guests show as VMs only; see vmscope doctor";
            self.state
                .header
                .notes
                .push(Note { subject: "host".to_owned(), text: text.to_owned() });
        }
        self.look_for_vcpus(None)?;
        self.state.guests.wait_first_try(self.plan.limits.time, &|| control.interrupted());
        if control.interrupted() {
            return Err(CollectError::Interrupted);
        }
        Ok(self.checkpoint()?)
    }

    fn sample(mut self, control: &mut dyn Control) -> Result<Sampled, CollectError> {
        self.state.header.start = probes::now();
        self.state.header.start_unix_ns = probes::unix_now_ns();
        let events = match self.sampler.start() {
            Ok(events) => events,
            Err(error) => return Err(discard(self.state.writer, error.into())),
        };
        let vms = self.state.vms.vms.iter().map(|vm| vm.name.clone()).collect();
        control.show(&Progress::Sampling { cpus: self.cpus.len(), vms });
        loop {
            match control.next() {
                Next::GoOn(at_most) => std::thread::sleep(DRAIN_EVERY.min(at_most)),
                Next::Finish => break,
                Next::Discard => {
                    return Err(discard(self.state.writer, CollectError::Discarded));
                }
            }
            let settled = probes::now().0.saturating_sub(SETTLING_NS);
            self.turn(HostNs(settled), control)?;
        }
        drop(events);
        self.state.header.end = probes::now();
        self.turn(HostNs(u64::MAX), control)?;
        self.count();
        self.note_new_cpus();
        Ok(self.state)
    }

    /// Takes what has come in since the last turn; of processes' doings only those before `settled`.
    fn turn(&mut self, settled: HostNs, control: &mut dyn Control) -> Result<(), CollectError> {
        let unknown_vcpu = self.drain_samples()?;
        self.drain_sideband(settled, control)?;
        let now = probes::now();
        if unknown_vcpu && self.next_look <= now {
            let names = self.look_for_vcpus(Some(now))?;
            if names.is_empty() {
                self.next_look = HostNs(now.0 + LOOK_AGAIN_NS);
            } else {
                self.checkpoint()?;
            }
            names.into_iter().for_each(|name| control.show(&Progress::VmFound(name)));
        }
        Ok(())
    }

    /// Moves the samples to the spools; whether one was of a vCPU not known yet.
    fn drain_samples(&mut self) -> Result<bool, CollectError> {
        let mut unknown = false;
        let stacks = &mut self.state.stacks;
        for (cpu, spool) in self.cpus.iter().zip(&mut self.spools) {
            self.sampler.drain(*cpu, |drained| {
                unknown |= drained.has_unknown_vcpu();
                append(spool, stacks, &drained)
            })?;
        }
        // A writer killed just here leaves samples whose stack has no row; the reader counts them.
        let fresh = stacks.take_fresh();
        if !fresh.is_empty() {
            self.stack_spool.append(&fresh)?;
        }
        Ok(unknown)
    }

    /// A recording whose writer is killed knows its VMs.
    fn checkpoint(&self) -> Result<(), recording::Error> {
        let VmTable { vms, vcpus, .. } = &self.state.vms;
        let tables = Tables { vms: vms.clone(), vcpus: vcpus.clone(), ..Tables::default() };
        self.state.writer.checkpoint(&self.state.header, &tables)
    }

    /// Brings the process log up to date, and forgets vCPU threads and VMs that ended.
    fn drain_sideband(
        &mut self,
        settled: HostNs,
        control: &mut dyn Control,
    ) -> Result<(), ProbeError> {
        let Sampled { processes, vms, .. } = &mut self.state;
        let mut gone = Vec::new();
        self.sideband.drain_before(settled.0, &mut |event| {
            if event.kind == EventKind::Exit {
                gone.extend(vms.thread_ended(Tid(event.tid)).then_some(Tid(event.tid)));
                if event.pid == event.tid {
                    let ended = vms.process_ended(Pid(event.pid), HostNs(event.time_ns));
                    ended.into_iter().for_each(|name| control.show(&Progress::VmEnded(name)));
                }
            }
            processes.apply(event);
        });
        gone.into_iter().try_for_each(|tid| self.sampler.forget(tid))
    }

    /// The names of VMs not seen before. `started` is `None` before sampling begins.
    fn look_for_vcpus(&mut self, started: Option<HostNs>) -> Result<Vec<String>, ProbeError> {
        if !self.kvm {
            return Ok(Vec::new());
        }
        let found: Vec<FoundVcpu> = self.sampler.find_vcpus()?;
        let describe = |pid: Pid| host::vms::describe(Path::new(PROC), pid.0, SERIAL_PORT_NAME);
        let changes = self.state.vms.update(found, started, describe);
        for (tid, vcpu, row) in &changes.watch {
            self.sampler.watch(*tid, vcpu, row.0)?;
        }
        let mut names = Vec::new();
        for (vm, process) in changes.vms {
            let name = self.state.vms.vms[vm.index()].name.clone();
            if !self.plan.guest_maps.iter().any(|(with_file, _)| *with_file == name) {
                self.state.guests.ask(vm, &process, &self.plan.limits);
            }
            names.push(name);
        }
        Ok(names)
    }

    /// Everything that was lost, by name.
    fn count(&mut self) {
        let header = &mut self.state.header;
        let expected = header.end.since(header.start) / self.plan.period_ns.max(1);
        let mut add = |name: String, n: u64| {
            header.counters.insert(name, n);
        };
        for cpu in &self.cpus {
            let counters = self.sampler.counters(*cpu);
            add(format!("samples_dropped_cpu{cpu}"), counters.dropped);
            // A halted CPU counts no cycles: only the timer's interrupts are expected at all times.
            if self.plan.trigger == Trigger::CpuClock {
                let taken = counters.written + counters.dropped;
                add(format!("samples_missed_cpu{cpu}"), expected.saturating_sub(taken));
            }
            add(format!("vcpu_read_errors_cpu{cpu}"), counters.read_errors);
        }
        add("process_events_lost".to_owned(), self.sideband.lost());
        add("stacks_truncated".to_owned(), self.state.stacks.truncated());
    }

    fn note_new_cpus(&mut self) {
        let now = host::machine::online_cpus(Path::new(SYS)).unwrap_or_default();
        let new: Vec<_> =
            now.iter().filter(|cpu| !self.cpus.contains(cpu)).map(u32::to_string).collect();
        if !new.is_empty() {
            let text =
                format!("came online while recording and were not sampled: CPU {}", new.join(", "));
            self.state.header.notes.push(Note { subject: "host".to_owned(), text });
        }
    }
}

/// Removes what was written so far; the error that made it useless goes on.
fn discard(writer: Writer, error: CollectError) -> CollectError {
    match writer.discard() {
        Ok(()) => error,
        Err(error) => error.into(),
    }
}

fn open_spools(
    writer: &Writer,
    cpus: &[u32],
) -> Result<(StackSpool, Vec<Spool>), recording::Error> {
    let spools = cpus.iter().map(|cpu| writer.spool(CpuId(*cpu))).collect::<Result<_, _>>()?;
    Ok((writer.stack_spool()?, spools))
}

fn append(
    spool: &mut Spool,
    stacks: &mut StackTable,
    drained: &Drained<'_>,
) -> Result<(), recording::Error> {
    if drained.stack(0).is_none() {
        return spool.append(drained.records);
    }
    let mut records = drained.records.to_vec();
    for (i, record) in records.chunks_exact_mut(recording::RECORD_SIZE).enumerate() {
        let id = drained.stack(i).and_then(|stack| stacks.intern(&stack));
        if let Some(id) = id {
            record[STACK_FIELD].copy_from_slice(&id.0.to_le_bytes());
        }
    }
    spool.append(&records)
}

fn sampler_options(plan: &Plan, cpus: &[u32], vendor: Vendor) -> probes::Options {
    let seconds = if plan.call_graph { RING_SECONDS / 2 } else { RING_SECONDS };
    let slots = seconds * 1_000_000_000 / plan.period_ns.max(1);
    probes::Options {
        cpus: cpus.to_vec(),
        trigger: plan.trigger,
        period: plan.trigger_period,
        slots: u32::try_from(slots.clamp(256, 1 << 17)).expect("clamped"),
        call_graph: plan.call_graph,
        vendor,
    }
}

fn first_header(plan: &Plan, cpus: &[u32], vendor: Vendor) -> Header {
    let now = probes::now();
    Header {
        vmscope_version: plan.vmscope_version.clone(),
        hostname: host::machine::hostname(Path::new(PROC)),
        kernel: host::machine::kernel_release(Path::new(PROC)),
        vendor,
        trigger: plan.trigger,
        period_ns: plan.period_ns,
        edges: model::Edges::Samples,
        cpus: cpus.to_vec(),
        start: now,
        end: now,
        start_unix_ns: probes::unix_now_ns(),
        complete: false,
        counters: std::collections::BTreeMap::new(),
        notes: Vec::<Note>::new(),
    }
}
