//! Sampling under way: attached once, it hands out windows one after another.
//!
//! ```text
//!  load --> find_vms --> attach --> poll, poll, ... --> cut --> poll, poll, ... --> cut ... --> poll, ... end
//!  |        guests       |<------- first window ------->|<------- second window -->|           last -->|
//!  |        begin logs   the kernel's rings fill from here on ...                                      detached
//! ```
//!
//! Neighbouring windows share their edge: a record from before a cut belongs to the window before it, every other to the one
//! after it, whenever the ring that holds it is read.
//!
//! Design constraints: nothing that a busy host does ends a session. A vCPU table without room, a look for vCPUs that fails,
//! a ring that was full: they are counted, and noted where the user should know. Only a sink that can't store ends it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use api::guest::SERIAL_PORT_NAME;
use host::processes::ProcessLog;
use host::sideband::EventKind;
use host::vms::VmProcess;
use model::{
    ExitCount, Header, HostNs, Note, Pid, Switch, SwitchEvent, Throttling, Tid, Trigger, VcpuId,
    Vendor, Vm, VmId,
};
use probes::{Drained, FoundVcpu, RingCounters, VcpuSnapshot};
use recording::RECORD_SIZE;

use crate::CollectError;
use crate::guests::GuestWorkers;
use crate::lock::Lock;
use crate::plan::{GuestQuestions, ProcessEvents, Progress, Sampling, SessionPlan};
use crate::sink::Sink;
use crate::sources::{Kernel, Sources};
use crate::throttling::ThrottlingLog;
use crate::vm_table::VmTable;

/// Samples of a CPU between two looks at the rings: a look costs as much as hundreds of samples.
const POLL_SAMPLES: u32 = 2500;
/// Bounds of the time between two looks: VMs are found and ends are seen then.
const POLL_AT_LEAST_EVERY: Duration = Duration::from_secs(4);
const POLL_AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// Where switches come in at any rate, or quotas are to be told by when they held back.
const POLL_OFTEN: Duration = Duration::from_millis(200);

/// A ring has room for the samples of so many looks, so that nothing is lost if we are late.
const RING_POLLS: u32 = 3;

/// Processes' events younger than this wait for the next look: another CPU's ring may hold their causes.
const SETTLING_NS: u64 = 50_000_000;

/// After a look for an unknown vCPU that found nothing new.
const LOOK_AGAIN_NS: u64 = 2_000_000_000;

/// Sampling under way.
#[derive(Debug)]
pub(crate) struct Session {
    plan: SessionPlan,
    sources: Box<dyn Sources>,
    _lock: Lock,
    header: Header,
    kvm: bool,
    vms: VmTable,
    /// How the guests of the VMs that run can be reached.
    reachable: HashMap<VmId, VmProcess>,
    processes: ProcessLog,
    guests: GuestWorkers,
    throttling: ThrottlingLog,
    looks: Looks,
    window: WindowState,
}

/// Looks for vCPUs.
#[derive(Debug, Default)]
struct Looks {
    /// Samples of unknown vCPUs up to the last look.
    unknown_vcpus: u64,
    /// Not before this time they are looked for again.
    next: HostNs,
    failed: u64,
    /// Threads for which the table had no room.
    not_watched: BTreeSet<Tid>,
}

/// What belongs to the window under way.
#[derive(Debug, Default)]
struct WindowState {
    /// Not handed to the sink yet.
    switches: Vec<Switch>,
    /// Taken from the rings by the last cut, which they come after.
    carried: Vec<Carried>,
    /// Records handed to the sink, by CPU.
    n_samples: BTreeMap<u32, u64>,
    /// At its begin.
    before: KernelCounters,
    exits_before: BTreeMap<(VcpuId, u32), u64>,
}

/// What the kernel has counted since the session began.
#[derive(Debug, Default)]
struct KernelCounters {
    samples: BTreeMap<u32, RingCounters>,
    switches_dropped: BTreeMap<u32, u64>,
    processes_lost: Option<u64>,
}

/// Records of one CPU that wait for the next window.
#[derive(Debug)]
struct Carried {
    cpu_idx: usize,
    records: Vec<u8>,
    stacks: Option<Vec<u8>>,
}

/// What becomes of records from after a window's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// They are the next window's.
    Carry,
    /// CPUs stop one after the other: what some are still sampled for meanwhile is left out.
    Drop,
}

/// A window that is over.
#[derive(Debug)]
pub(crate) struct WindowEnd {
    /// Its bounds are `start` and `end`; its counters are the window's, its notes the session's so far.
    pub(crate) header: Header,
    pub(crate) throttling: Vec<Throttling>,
    pub(crate) exits: Vec<ExitCount>,
}

/// What a session knows at its end besides the last window.
#[derive(Debug)]
pub(crate) struct SessionEnd {
    pub(crate) vms: VmTable,
    pub(crate) processes: ProcessLog,
    pub(crate) guests: GuestWorkers,
}

impl Session {
    /// Loads everything; nothing is attached yet.
    ///
    /// # Errors
    /// When another session runs, or the kernel refuses; the error says what to do.
    pub(crate) fn load(plan: SessionPlan) -> Result<Self, CollectError> {
        let lock = Lock::samples(&plan.roots.locks)?;
        let mut header = header(&plan)?;
        let options = sampler_options(&plan.sampling, &header.cpus, header.vendor);
        let kernel = Kernel::load(&plan, options, &mut header)?;
        Self::with_sources(plan, Box::new(kernel), header, lock)
    }

    fn with_sources(
        plan: SessionPlan,
        sources: Box<dyn Sources>,
        header: Header,
        lock: Lock,
    ) -> Result<Self, CollectError> {
        // Processes' events are collected already, so that nothing falls in between.
        let processes = match plan.process_events {
            ProcessEvents::Followed => ProcessLog::scan(&plan.roots.proc)
                .map_err(|source| CollectError::Host { what: "/proc", source })?,
            ProcessEvents::Ignored => ProcessLog::default(),
        };
        Ok(Self {
            kvm: plan.roots.sys.join("module/kvm").exists(),
            plan,
            sources,
            _lock: lock,
            header,
            vms: VmTable::default(),
            reachable: HashMap::new(),
            processes,
            guests: GuestWorkers::new(),
            throttling: ThrottlingLog::default(),
            looks: Looks::default(),
            window: WindowState::default(),
        })
    }

    /// Finds the VMs that run, and lets their guests begin their logs: waits until each has or can't, or `interrupted`.
    ///
    /// # Errors
    /// When it was interrupted.
    pub(crate) fn find_vms(&mut self, interrupted: &dyn Fn() -> bool) -> Result<(), CollectError> {
        if self.kvm && !self.sources.knows_vcpus() {
            let text = "this kernel does not tell KVM's types: guests show as VMs only; see vmscope doctor";
            self.note(text.to_owned());
        }
        self.look_for_vcpus(None);
        if let GuestQuestions::Asked { limits, .. } = &self.plan.guests {
            self.guests.wait_first_try(limits.time, interrupted);
        }
        if interrupted() { Err(CollectError::Interrupted) } else { Ok(()) }
    }

    /// Begins to sample, and with it the first window. Switches come first, so that none is missed that a sample or a look at
    /// a vCPU tells of.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn attach(&mut self) -> Result<(), CollectError> {
        self.sources.start_tracers(&mut self.header.notes)?;
        self.snapshot_vcpus();
        self.read_throttling();
        self.begin_window(self.sources.now());
        Ok(self.sources.start_sampling()?)
    }

    /// The session's facts, and the window's begin.
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    pub(crate) fn vms(&self) -> &VmTable {
        &self.vms
    }

    /// How the guests of the VMs that run can be reached.
    pub(crate) fn reachable(&self) -> &HashMap<VmId, VmProcess> {
        &self.reachable
    }

    /// Readable when it is time for a look before `poll_interval` is over.
    pub(crate) fn wake(&self) -> Vec<BorrowedFd<'_>> {
        self.sources.wake()
    }

    /// How often the rings are to be looked at.
    pub(crate) fn poll_interval(&self) -> Duration {
        let often = self.sources.traces_switches() || self.throttling.has_quotas();
        if often { POLL_OFTEN } else { poll_interval(&self.plan.sampling) }
    }

    /// Moves what has come in since the last look to `sink`. Returns what the user may want to know.
    ///
    /// # Errors
    /// When the sink can't store it.
    pub(crate) fn poll(&mut self, sink: &mut dyn Sink) -> Result<Vec<Progress>, CollectError> {
        let settled = HostNs(self.sources.now().0.saturating_sub(SETTLING_NS));
        self.drain(sink, HostNs(u64::MAX), After::Carry)?;
        let mut news = self.drain_processes(settled);
        self.read_throttling();
        news.extend(self.look_for_unknown().into_iter().map(Progress::VmFound));
        Ok(news)
    }

    /// Ends the window, and begins the next one at the same instant.
    ///
    /// # Errors
    /// When the sink can't store what came in.
    pub(crate) fn cut(&mut self, sink: &mut dyn Sink) -> Result<WindowEnd, CollectError> {
        let now = self.sources.now();
        self.drain_processes(HostNs(now.0.saturating_sub(SETTLING_NS)));
        let edge = self.look_for_vcpus(Some(now));
        self.window.switches.extend_from_slice(&edge.vcpus);
        self.read_throttling();
        self.header.end = self.sources.now();
        self.drain(sink, self.header.end, After::Carry)?;
        let end = self.window_end();
        self.begin_window(self.header.end);
        self.window.switches.extend(edge.vcpus);
        self.throttling.restate(self.header.start);
        Ok(end)
    }

    /// Ends the last window and everything else.
    ///
    /// # Errors
    /// When the sink can't store what came in.
    pub(crate) fn end(
        mut self,
        sink: &mut dyn Sink,
    ) -> Result<(WindowEnd, SessionEnd), CollectError> {
        self.snapshot_vcpus();
        self.header.end = self.sources.now();
        self.sources.stop();
        self.drain(sink, self.header.end, After::Drop)?;
        self.drain_processes(HostNs(u64::MAX));
        self.read_throttling();
        self.look_for_unknown();
        self.note_new_cpus();
        let end = self.window_end();
        let Self { vms, processes, guests, .. } = self;
        Ok((end, SessionEnd { vms, processes, guests }))
    }

    fn begin_window(&mut self, start: HostNs) {
        self.header.start = start;
        self.header.end = start;
        self.header.start_unix_ns = probes::unix_now_ns();
        self.window.n_samples.clear();
    }

    fn kernel_counters(&self) -> KernelCounters {
        let (sources, cpus) = (&self.sources, &self.header.cpus);
        let dropped = |cpu: &u32| Some((*cpu, sources.switches_dropped(*cpu)?));
        KernelCounters {
            samples: cpus.iter().map(|cpu| (*cpu, sources.counters(*cpu))).collect(),
            switches_dropped: cpus.iter().filter_map(dropped).collect(),
            processes_lost: sources.processes_lost(),
        }
    }

    fn drain(
        &mut self,
        sink: &mut dyn Sink,
        until: HostNs,
        after: After,
    ) -> Result<(), CollectError> {
        let (window, cpus) = (&mut self.window, &self.header.cpus);
        let mut store = |cpu_idx: usize, drained: &Drained<'_>| {
            let n = (drained.records.len() / RECORD_SIZE) as u64;
            *window.n_samples.entry(cpus[cpu_idx]).or_default() += n;
            sink.samples(cpu_idx, drained)
        };
        for Carried { cpu_idx, records, stacks } in std::mem::take(&mut window.carried) {
            store(cpu_idx, &Drained::new(&records, stacks.as_deref()))?;
        }
        for (cpu_idx, cpu) in cpus.iter().enumerate() {
            self.sources.drain_samples(*cpu, &mut |drained| {
                let (taken, later) = drained.split_at(n_until(drained.records, until));
                if !later.records.is_empty() && after == After::Carry {
                    let stacks = later.stacks().map(<[u8]>::to_vec);
                    let records = later.records.to_vec();
                    window.carried.push(Carried { cpu_idx, records, stacks });
                }
                if taken.records.is_empty() { Ok(()) } else { store(cpu_idx, &taken) }
            })?;
            self.sources.drain_switches(*cpu, &mut window.switches);
        }
        let is_later = |switch: &mut Switch| after == After::Carry && until < switch.time;
        let later: Vec<Switch> = window.switches.extract_if(.., is_later).collect();
        if !window.switches.is_empty() {
            sink.switches(&window.switches)?;
        }
        window.switches = later;
        Ok(sink.polled()?)
    }

    /// Brings the process log up to date, and forgets vCPU threads and VMs that ended.
    fn drain_processes(&mut self, before: HostNs) -> Vec<Progress> {
        let Self { sources, processes, vms, reachable, looks, .. } = self;
        let (mut news, mut ended_threads) = (Vec::new(), Vec::new());
        sources.drain_processes(before, &mut |event| {
            if event.kind == EventKind::Exit {
                if vms.thread_ended(Tid(event.tid)) {
                    ended_threads.push(Tid(event.tid));
                }
                if event.pid == event.tid {
                    let ended = vms.process_ended(Pid(event.pid), HostNs(event.time_ns));
                    news.extend(ended.into_iter().map(Progress::VmEnded));
                }
            }
            processes.apply(event);
        });
        for tid in ended_threads {
            sources.forget(tid);
            looks.not_watched.remove(&tid);
        }
        reachable.retain(|vm, _| vms.vms[vm.index()].ended.is_none());
        news
    }

    fn read_throttling(&mut self) {
        let (roots, now) = (&self.plan.roots, self.sources.now());
        self.throttling.read(&roots.proc, &roots.cgroups, &self.vms, now);
    }

    /// Looks for vCPUs when samples hit some that are not known; the names of VMs not seen before.
    fn look_for_unknown(&mut self) -> Vec<String> {
        let now = self.sources.now();
        let cpus = self.header.cpus.iter();
        let unknown = cpus.map(|cpu| self.sources.counters(*cpu).unknown_vcpus).sum();
        if unknown <= self.looks.unknown_vcpus || now < self.looks.next {
            return Vec::new();
        }
        self.looks.unknown_vcpus = unknown;
        let edge = self.look_for_vcpus(Some(now));
        if edge.new_vms.is_empty() {
            self.looks.next = HostNs(now.0 + LOOK_AGAIN_NS);
        }
        let new = |switch: &Switch| edge.new_vcpus.contains(&switch.vcpu);
        self.window.switches.extend(edge.vcpus.into_iter().filter(new));
        edge.new_vms
    }

    /// Brings the table of VMs up to date. `started` is `None` before sampling begins.
    fn look_for_vcpus(&mut self, started: Option<HostNs>) -> Look {
        let found = self.find_vcpus();
        let Some(found) = found else { return Look::default() };
        if self.plan.process_events == ProcessEvents::Ignored {
            self.forget_absent(&found);
        }
        let roots = &self.plan.roots;
        let describe = |pid: Pid| host::vms::describe(&roots.proc, pid.0, SERIAL_PORT_NAME);
        let changes = self.vms.update(found.clone(), started, describe);
        let mut look = Look::default();
        for (tid, vcpu, row) in &changes.watch {
            look.new_vcpus.insert(*row);
            self.watch(*tid, vcpu, *row);
        }
        for (vm, process) in changes.vms {
            let name = self.vms.vms[vm.index()].name.clone();
            if let GuestQuestions::Asked { limits, with_map } = &self.plan.guests
                && !with_map.contains(&name)
            {
                self.guests.ask(vm, &process, limits);
            }
            self.reachable.insert(vm, process);
            self.throttling.look_soon();
            look.new_vms.push(name);
        }
        look.vcpus = snapshot(&self.vms, &found);
        look
    }

    /// Notes what vCPUs do now. Who is watched was entered before, so no switch after this is missed.
    fn snapshot_vcpus(&mut self) {
        if let Some(found) = self.find_vcpus() {
            self.window.switches.extend(snapshot(&self.vms, &found));
        }
    }

    /// `None`: there are none, or the look failed, which is counted.
    fn find_vcpus(&mut self) -> Option<Vec<FoundVcpu>> {
        if !self.kvm {
            return None;
        }
        match self.sources.find_vcpus() {
            Ok(found) => Some(found),
            Err(error) => {
                self.looks.failed += 1;
                if self.looks.failed == 1 {
                    self.note(format!("{error}: VMs may be missing, vCPUs be unknown for a while"));
                }
                None
            }
        }
    }

    /// A vCPU for which there is no room shows as unknown; it is tried again at the next look.
    fn watch(&mut self, tid: Tid, vcpu: &FoundVcpu, row: VcpuId) {
        let Err(error) = self.sources.watch(tid, vcpu, row) else {
            self.looks.not_watched.remove(&tid);
            return;
        };
        self.vms.thread_ended(tid);
        if self.looks.not_watched.is_empty() {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            let cause = cause.unwrap_or_default();
            self.note(format!(
                "{error}{cause}: the time of some vCPUs shows as unknown (vcpus_not_watched)"
            ));
        }
        self.looks.not_watched.insert(tid);
    }

    /// Forgets VMs that a look did not meet any more.
    fn forget_absent(&mut self, found: &[FoundVcpu]) {
        let running: BTreeSet<Pid> = found.iter().map(|vcpu| vcpu.pid).collect();
        let is_gone = |vm: &&Vm| vm.ended.is_none() && !running.contains(&vm.pid);
        let gone: Vec<Pid> = self.vms.vms.iter().filter(is_gone).map(|vm| vm.pid).collect();
        for pid in gone {
            let vcpus = self.vms.vcpus.iter().filter(|v| self.vms.vms[v.vm.index()].pid == pid);
            let tids: Vec<Tid> = vcpus.map(|vcpu| vcpu.tid).collect();
            self.vms.process_ended(pid, self.sources.now());
            for tid in tids {
                self.vms.thread_ended(tid);
                self.sources.forget(tid);
                self.looks.not_watched.remove(&tid);
            }
        }
        let vms = &self.vms.vms;
        self.reachable.retain(|vm, _| vms[vm.index()].ended.is_none());
    }

    fn window_end(&mut self) -> WindowEnd {
        let now = self.kernel_counters();
        let mut header = self.header.clone();
        header.counters = self.counters(&now);
        self.window.before = now;
        WindowEnd { header, throttling: self.throttling.take_readings(), exits: self.exits() }
    }

    /// Everything that was lost in the window, by name.
    fn counters(&self, now: &KernelCounters) -> BTreeMap<String, u64> {
        let (header, before) = (&self.header, &self.window.before);
        let expected = header.end.since(header.start) / self.plan.sampling.period_ns.max(1);
        let mut counters = BTreeMap::new();
        let mut add = |name: String, n: u64| {
            counters.insert(name, n);
        };
        for (cpu, now) in &now.samples {
            let before = before.samples.get(cpu).copied().unwrap_or_default();
            let dropped = now.dropped - before.dropped;
            add(format!("samples_dropped_cpu{cpu}"), dropped);
            // A halted CPU counts no cycles: only the timer's interrupts are expected at all times.
            if self.plan.sampling.trigger == Trigger::CpuClock {
                let came = self.window.n_samples.get(cpu).copied().unwrap_or(0) + dropped;
                add(format!("samples_missed_cpu{cpu}"), expected.saturating_sub(came));
            }
            add(format!("vcpu_read_errors_cpu{cpu}"), now.read_errors - before.read_errors);
        }
        for (cpu, dropped) in &now.switches_dropped {
            let before = before.switches_dropped.get(cpu).copied().unwrap_or(0);
            add(format!("switches_dropped_cpu{cpu}"), dropped - before);
        }
        if let Some(lost) = now.processes_lost {
            add("process_events_lost".to_owned(), lost - before.processes_lost.unwrap_or(0));
        }
        let looks = [
            ("vcpu_looks_failed", self.looks.failed),
            ("vcpus_not_watched", self.looks.not_watched.len() as u64),
        ];
        for (name, n) in looks.into_iter().filter(|(_, n)| 0 < *n) {
            add(name.to_owned(), n);
        }
        counters
    }

    /// The window's exits.
    fn exits(&mut self) -> Vec<ExitCount> {
        let so_far = self.sources.exits(self.vms.vcpus.len());
        let mut exits = so_far.clone();
        for exit in &mut exits {
            let before = self.window.exits_before.get(&(exit.vcpu, exit.reason));
            exit.count -= before.copied().unwrap_or(0).min(exit.count);
        }
        exits.retain(|exit| 0 < exit.count);
        self.window.exits_before =
            so_far.into_iter().map(|exit| ((exit.vcpu, exit.reason), exit.count)).collect();
        exits
    }

    fn note_new_cpus(&mut self) {
        let now = host::machine::online_cpus(&self.plan.roots.sys).unwrap_or_default();
        let is_new = |cpu: &&u32| !self.header.cpus.contains(cpu);
        let new: Vec<_> = now.iter().filter(is_new).map(u32::to_string).collect();
        if !new.is_empty() {
            let new = new.join(", ");
            self.note(format!("came online while recording and were not sampled: CPU {new}"));
        }
    }

    fn note(&mut self, text: String) {
        self.header.notes.push(Note { subject: "host".to_owned(), text });
    }
}

/// What a look for vCPUs met.
#[derive(Debug, Default)]
struct Look {
    /// What each vCPU that has a row did.
    vcpus: Vec<Switch>,
    new_vcpus: BTreeSet<VcpuId>,
    /// Names.
    new_vms: Vec<String>,
}

/// What the finder saw of each vCPU that has a row.
fn snapshot(vms: &VmTable, found: &[FoundVcpu]) -> Vec<Switch> {
    let event = |vcpu: &FoundVcpu| {
        let VcpuSnapshot { time, cpu, off_cpu, exit_reason, waits } = vcpu.seen;
        let event = SwitchEvent::Seen { off_cpu, exit_reason, waits };
        Some(Switch { time, cpu, vcpu: vms.row_of(vcpu)?, event })
    };
    found.iter().filter_map(event).collect()
}

/// How many of the records, which are in time order, are not after `until`.
fn n_until(records: &[u8], until: HostNs) -> usize {
    let (each, _) = records.as_chunks::<RECORD_SIZE>();
    let is_in_time = |record: &[u8; RECORD_SIZE]| recording::time_of(record) <= until;
    match each.last() {
        Some(last) if !is_in_time(last) => each.partition_point(is_in_time),
        _ => each.len(),
    }
}

/// How often the rings are looked at when nothing wants more.
fn poll_interval(sampling: &Sampling) -> Duration {
    if sampling.call_graph {
        // A sample has ten times the bytes.
        return POLL_AT_MOST_EVERY;
    }
    let interval = Duration::from_nanos(sampling.period_ns) * POLL_SAMPLES;
    interval.clamp(POLL_AT_MOST_EVERY, POLL_AT_LEAST_EVERY)
}

fn sampler_options(sampling: &Sampling, cpus: &[u32], vendor: Vendor) -> probes::Options {
    let room = poll_interval(sampling) * RING_POLLS;
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

/// What is known of a session when it begins.
fn header(plan: &SessionPlan) -> Result<Header, CollectError> {
    let roots = &plan.roots;
    let cpus = host::machine::online_cpus(&roots.sys)
        .map_err(|source| CollectError::Host { what: "the list of CPUs", source })?;
    let now = probes::now();
    Ok(Header {
        vmscope_version: plan.vmscope_version.clone(),
        hostname: host::machine::hostname(&roots.proc),
        kernel: host::machine::kernel_release(&roots.proc),
        vendor: host::machine::vendor(&roots.proc),
        trigger: plan.sampling.trigger,
        period_ns: plan.sampling.period_ns,
        off_cpu_source: plan.off_cpu_source,
        cpus,
        start: now,
        end: now,
        start_unix_ns: probes::unix_now_ns(),
        complete: false,
        counters: BTreeMap::new(),
        notes: Vec::new(),
    })
}

#[cfg(test)]
mod test;
