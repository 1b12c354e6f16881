//! The sampling phase.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use api::guest::SERIAL_PORT_NAME;
use host::processes::ProcessLog;
use host::sideband::{EventKind, Sideband};
use model::{
    CpuId, ExitCount, Header, HostNs, Note, OffCpuSource, Pid, Switch, Tables, Tid, Trigger,
    VcpuId, Vendor,
};
use probes::{Drained, ProbeError, STACK_FIELD, Sampler, SamplingEvents};
use recording::{Spool, StackSpool, SwitchSpool, Writer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::guests::GuestWorkers;
use crate::lock::Lock;
use crate::plan::{Collected, Control, Next, Plan, Progress, Sampling};
use crate::stacks::StackTable;
use crate::switches::seen;
use crate::throttling::ThrottlingLog;
use crate::tracers::{TracerLinks, Tracers};
use crate::vm_table::VmTable;
use crate::{CollectError, finish};

/// Samples of a CPU between two looks at the rings: a look costs as much as hundreds of samples.
const DRAIN_SAMPLES: u32 = 2500;
/// Bounds of the time between two looks: VMs are found and ends are seen then.
const DRAIN_AT_LEAST_EVERY: Duration = Duration::from_secs(4);
const DRAIN_AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// Where switches come in at any rate, or quotas are to be told by when they held back.
const DRAIN_OFTEN: Duration = Duration::from_millis(200);

/// A ring has room for the samples of so many looks, so that nothing is lost if we are late.
const RING_DRAINS: u32 = 3;

/// Records of processes' doings per CPU between two drains.
const SIDEBAND_RING_BYTES: usize = 512 << 10;

/// Processes' doings younger than this wait for the next turn: another CPU's ring may hold their causes.
const SETTLING_NS: u64 = 50_000_000;

/// After a look for an unknown vCPU that found nothing new.
const LOOK_AGAIN_NS: u64 = 2_000_000_000;

/// Where Linux keeps what we read.
pub(crate) const PROC: &str = "/proc";
pub(crate) const SYS: &str = "/sys";
const CGROUPS: &str = "/sys/fs/cgroup";
pub(crate) const LOCK: &str = "/run/vmscope-record.lock";

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
    pub(crate) throttling: ThrottlingLog,
    pub(crate) exits: Vec<ExitCount>,
}

struct Spools {
    samples: Vec<Spool>,
    stacks: StackSpool,
    switches: SwitchSpool,
}

struct Collection<'a> {
    plan: &'a Plan,
    sampler: Sampler,
    sideband: Sideband,
    cpus: Vec<u32>,
    spools: Spools,
    tracers: Tracers,
    /// Events that are not in the spool yet.
    switches: Vec<Switch>,
    kvm: bool,
    /// Samples of unknown vCPUs up to the last look for them.
    unknown_vcpus: u64,
    /// Not before this time the vCPUs are looked for again.
    next_look: HostNs,
    /// Samples later than this are left out, and counted by CPU.
    until: HostNs,
    late: HashMap<u32, u64>,
    state: Sampled,
}

impl<'a> Collection<'a> {
    fn begin(plan: &'a Plan, control: &dyn Control) -> Result<Self, CollectError> {
        let host = |what| move |source| CollectError::Host { what, source };
        let cpus = host::machine::online_cpus(Path::new(SYS)).map_err(host("the list of CPUs"))?;
        let vendor = host::machine::vendor(Path::new(PROC));
        let sampler = Sampler::load(sampler_options(&plan.sampling, &cpus, vendor))?;
        let mut header = header(&plan.sampling, &plan.vmscope_version, &cpus, vendor);
        header.off_cpu_source = plan.off_cpu_source;
        let tracers = Tracers::load(plan, &sampler, &mut header)?;
        let sideband = Sideband::open(&cpus, SIDEBAND_RING_BYTES)
            .map_err(|error| CollectError::Sideband(error.to_string()))?;
        let processes = ProcessLog::scan(Path::new(PROC)).map_err(host("/proc"))?;
        let writer = Writer::create(&plan.output, &header)?;
        let spools = match open_spools(&writer, &cpus) {
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
            throttling: ThrottlingLog::default(),
            exits: Vec::new(),
        };
        let mut collection = Self {
            plan,
            sampler,
            sideband,
            cpus,
            spools,
            tracers,
            switches: Vec::new(),
            kvm: Path::new(SYS).join("module/kvm").exists(),
            unknown_vcpus: 0,
            next_look: HostNs(0),
            until: HostNs(u64::MAX),
            late: HashMap::new(),
            state,
        };
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
        self.discover_vcpus(None)?;
        self.state.guests.wait_first_try(self.plan.limits.time, &|| control.interrupted());
        if control.interrupted() {
            return Err(CollectError::Interrupted);
        }
        Ok(self.checkpoint()?)
    }

    fn sample(mut self, control: &mut dyn Control) -> Result<Sampled, CollectError> {
        let attached = match self.attach() {
            Ok(attached) => attached,
            Err(error) => return Err(discard(self.state.writer, error.into())),
        };
        let vms = self.state.vms.vms.iter().map(|vm| vm.name.clone()).collect();
        control.show(&Progress::Sampling { cpus: self.cpus.len(), vms });
        loop {
            match control.next() {
                Next::GoOn(at_most) => {
                    let wake: Vec<_> = self.sideband.half_full().collect();
                    control.wait(self.drain_interval().min(at_most), &wake);
                }
                Next::Finish => break,
                Next::Discard => {
                    return Err(discard(self.state.writer, CollectError::Discarded));
                }
            }
            let settled = probes::now().0.saturating_sub(SETTLING_NS);
            self.turn(HostNs(settled), control)?;
        }
        self.see_all_vcpus()?;
        self.state.header.end = probes::now();
        // CPU after CPU: what some are still sampled for meanwhile is left out.
        drop(attached);
        self.until = self.state.header.end;
        self.turn(HostNs(u64::MAX), control)?;
        self.state.exits = self.tracers.exits(self.state.vms.vcpus.len());
        self.count();
        self.note_new_cpus();
        Ok(self.state)
    }

    /// Begins to sample. Switches come first, so that none is missed that a sample or a look at a vCPU tells of.
    fn attach(&mut self) -> Result<(SamplingEvents, TracerLinks), ProbeError> {
        let links = self.tracers.start(&mut self.state.header)?;
        self.switches.clear();
        self.see_all_vcpus()?;
        self.read_throttling(probes::now());
        self.state.header.start = probes::now();
        self.state.header.start_unix_ns = probes::unix_now_ns();
        Ok((self.sampler.start()?, links))
    }

    fn read_throttling(&mut self, now: HostNs) {
        let Sampled { throttling, vms, .. } = &mut self.state;
        throttling.read(Path::new(PROC), Path::new(CGROUPS), vms, now);
    }

    fn drain_interval(&self) -> Duration {
        let often = self.tracers.trace_switches() || self.state.throttling.has_quotas();
        if often { DRAIN_OFTEN } else { drain_interval(&self.plan.sampling) }
    }

    /// Takes what has come in since the last turn; of processes' doings only those before `settled`.
    fn turn(&mut self, settled: HostNs, control: &mut dyn Control) -> Result<(), CollectError> {
        self.drain_samples()?;
        self.drain_switches()?;
        self.drain_sideband(settled, control);
        let now = probes::now();
        self.read_throttling(now);
        let unknown = self.cpus.iter().map(|cpu| self.sampler.counters(*cpu).unknown_vcpus).sum();
        if self.unknown_vcpus < unknown && self.next_look <= now {
            self.unknown_vcpus = unknown;
            let names = self.discover_vcpus(Some(now))?;
            if names.is_empty() {
                self.next_look = HostNs(now.0 + LOOK_AGAIN_NS);
            } else {
                self.checkpoint()?;
            }
            names.into_iter().for_each(|name| control.show(&Progress::VmFound(name)));
        }
        Ok(())
    }

    fn drain_samples(&mut self) -> Result<(), CollectError> {
        let (stacks, until, late) = (&mut self.state.stacks, self.until, &mut self.late);
        for (cpu, spool) in self.cpus.iter().zip(&mut self.spools.samples) {
            self.sampler.drain(*cpu, |drained| {
                let taken = taken_until(drained.records, until);
                let n_late = (drained.records.len() - taken.len()) / recording::RECORD_SIZE;
                *late.entry(*cpu).or_default() += n_late as u64;
                append(spool, stacks, taken, &drained)
            })?;
        }
        // A writer killed just here leaves samples whose stack has no row; the reader counts them.
        let fresh = stacks.take_fresh();
        if !fresh.is_empty() {
            self.spools.stacks.append(&fresh)?;
        }
        Ok(())
    }

    fn drain_switches(&mut self) -> Result<(), CollectError> {
        for cpu in &self.cpus {
            self.tracers.drain_switches(*cpu, &mut self.switches);
        }
        if !self.switches.is_empty() {
            self.spools.switches.append(&self.switches)?;
            self.switches.clear();
        }
        Ok(())
    }

    /// A recording whose writer is killed knows its VMs.
    fn checkpoint(&self) -> Result<(), recording::Error> {
        let VmTable { vms, vcpus, .. } = &self.state.vms;
        let tables = Tables { vms: vms.clone(), vcpus: vcpus.clone(), ..Tables::default() };
        self.state.writer.checkpoint(&self.state.header, &tables)
    }

    /// Brings the process log up to date, and forgets vCPU threads and VMs that ended.
    fn drain_sideband(&mut self, settled: HostNs, control: &mut dyn Control) {
        let Sampled { processes, vms, .. } = &mut self.state;
        self.sideband.drain_before(settled.0, &mut |event| {
            if event.kind == EventKind::Exit {
                if vms.thread_ended(Tid(event.tid)) {
                    self.sampler.forget(Tid(event.tid));
                }
                if event.pid == event.tid {
                    let ended = vms.process_ended(Pid(event.pid), HostNs(event.time_ns));
                    ended.into_iter().for_each(|name| control.show(&Progress::VmEnded(name)));
                }
            }
            processes.apply(event);
        });
    }

    /// The names of VMs not seen before. `started` is `None` before sampling begins.
    fn discover_vcpus(&mut self, started: Option<HostNs>) -> Result<Vec<String>, ProbeError> {
        if !self.kvm {
            return Ok(Vec::new());
        }
        let found = self.sampler.find_vcpus()?;
        let describe = |pid: Pid| host::vms::describe(Path::new(PROC), pid.0, SERIAL_PORT_NAME);
        let changes = self.state.vms.update(found, started, describe);
        for (tid, vcpu, row) in &changes.watch {
            self.sampler.watch(*tid, vcpu, row.0)?;
        }
        let fresh: Vec<VcpuId> = changes.watch.into_iter().map(|(_, _, row)| row).collect();
        self.snapshot_vcpus(|row| fresh.contains(&row))?;
        let mut names = Vec::new();
        for (vm, process) in changes.vms {
            let name = self.state.vms.vms[vm.index()].name.clone();
            if !self.plan.guest_maps.iter().any(|(with_file, _)| *with_file == name) {
                self.state.guests.ask(vm, &process, &self.plan.limits);
            }
            self.state.throttling.look_soon();
            names.push(name);
        }
        Ok(names)
    }

    fn see_all_vcpus(&mut self) -> Result<(), ProbeError> {
        self.snapshot_vcpus(|_| true)
    }

    /// Notes what vCPUs do now. Who is watched was entered before, so no switch after this is missed.
    fn snapshot_vcpus(&mut self, wanted: impl Fn(VcpuId) -> bool) -> Result<(), ProbeError> {
        if self.kvm {
            let seen = seen(&self.state.vms, &self.sampler.find_vcpus()?);
            self.switches.extend(seen.into_iter().filter(|switch| wanted(switch.vcpu)));
        }
        Ok(())
    }

    /// Everything that was lost, by name.
    fn count(&mut self) {
        let header = &mut self.state.header;
        let expected = header.end.since(header.start) / self.plan.sampling.period_ns.max(1);
        let mut add = |name: String, n: u64| {
            header.counters.insert(name, n);
        };
        for cpu in &self.cpus {
            let counters = self.sampler.counters(*cpu);
            add(format!("samples_dropped_cpu{cpu}"), counters.dropped);
            // A halted CPU counts no cycles: only the timer's interrupts are expected at all times.
            if self.plan.sampling.trigger == Trigger::CpuClock {
                let late = self.late.get(cpu).copied().unwrap_or(0);
                let taken = counters.written + counters.dropped - late;
                add(format!("samples_missed_cpu{cpu}"), expected.saturating_sub(taken));
            }
            add(format!("vcpu_read_errors_cpu{cpu}"), counters.read_errors);
            if let Some(dropped) = self.tracers.switches_dropped(*cpu) {
                add(format!("switches_dropped_cpu{cpu}"), dropped);
            }
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

fn open_spools(writer: &Writer, cpus: &[u32]) -> Result<Spools, recording::Error> {
    let samples = cpus.iter().map(|cpu| writer.spool(CpuId(*cpu))).collect::<Result<_, _>>()?;
    Ok(Spools { samples, stacks: writer.stack_spool()?, switches: writer.switch_spool()? })
}

/// The records, which are in time order, up to `until`.
fn taken_until(records: &[u8], until: HostNs) -> &[u8] {
    let (each, _) = records.as_chunks::<{ recording::RECORD_SIZE }>();
    let is_in_time = |record: &[u8; recording::RECORD_SIZE]| recording::time_of(record) <= until;
    match each.last() {
        Some(last) if !is_in_time(last) => each[..each.partition_point(is_in_time)].as_flattened(),
        _ => records,
    }
}

fn append(
    spool: &mut Spool,
    stacks: &mut StackTable,
    records: &[u8],
    drained: &Drained<'_>,
) -> Result<(), recording::Error> {
    if drained.stack(0).is_none() {
        return spool.append(records);
    }
    let mut records = records.to_vec();
    for (i, record) in records.chunks_exact_mut(recording::RECORD_SIZE).enumerate() {
        let id = drained.stack(i).and_then(|stack| stacks.intern(&stack));
        if let Some(id) = id {
            record[STACK_FIELD].copy_from_slice(&id.0.to_le_bytes());
        }
    }
    spool.append(&records)
}

/// How often the rings are looked at when nothing wants more.
fn drain_interval(sampling: &Sampling) -> Duration {
    if sampling.call_graph {
        // A sample has ten times the bytes.
        return DRAIN_AT_MOST_EVERY;
    }
    let interval = Duration::from_nanos(sampling.period_ns) * DRAIN_SAMPLES;
    interval.clamp(DRAIN_AT_MOST_EVERY, DRAIN_AT_LEAST_EVERY)
}

pub(crate) fn sampler_options(
    sampling: &Sampling,
    cpus: &[u32],
    vendor: Vendor,
) -> probes::Options {
    let room = drain_interval(sampling) * RING_DRAINS;
    let slots = room.as_nanos() / u128::from(sampling.period_ns.max(1));
    probes::Options {
        cpus: cpus.to_vec(),
        trigger: sampling.trigger,
        period: sampling.trigger_period,
        slots: u32::try_from(slots.clamp(256, 1 << 17)).expect("clamped"),
        call_graph: sampling.call_graph,
        vendor,
    }
}

/// What is known of a collection when it begins.
pub(crate) fn header(
    sampling: &Sampling,
    vmscope_version: &str,
    cpus: &[u32],
    vendor: Vendor,
) -> Header {
    let now = probes::now();
    Header {
        vmscope_version: vmscope_version.to_owned(),
        hostname: host::machine::hostname(Path::new(PROC)),
        kernel: host::machine::kernel_release(Path::new(PROC)),
        vendor,
        trigger: sampling.trigger,
        period_ns: sampling.period_ns,
        off_cpu_source: OffCpuSource::Samples,
        cpus: cpus.to_vec(),
        start: now,
        end: now,
        start_unix_ns: probes::unix_now_ns(),
        complete: false,
        counters: std::collections::BTreeMap::new(),
        notes: Vec::new(),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn samples_after_the_end_are_cut_off() {
        let records: Vec<u8> = [3_u64, 5, 5, 8]
            .iter()
            .flat_map(|time| {
                let mut record = [0; recording::RECORD_SIZE];
                record[..8].copy_from_slice(&time.to_le_bytes());
                record
            })
            .collect();
        for (until, expected) in [(u64::MAX, 4), (8, 4), (7, 3), (5, 3), (4, 1), (2, 0)] {
            let taken = taken_until(&records, HostNs(until));
            assert_eq!(taken.len() / recording::RECORD_SIZE, expected, "until {until}");
        }
        assert!(taken_until(&[], HostNs(0)).is_empty());
    }
}
