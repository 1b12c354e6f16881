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
//! A session that goes on for days forgets at each window's begin what ended before it: `next_window`.
//!
//! Design constraints: nothing that a busy host does ends a session. A vCPU table without room, a look for vCPUs that fails,
//! a ring that was full: they are counted, and noted where the user should know. Only a sink that can't store ends it.

mod vcpus;
mod window;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use host::processes::{ProcessImage, ProcessLog};
use host::sideband::EventKind;
use host::vms::VmProcess;
use model::{Header, HostNs, Note, Pid, Tid, Vendor, VmId};

use self::vcpus::ScanState;
pub(crate) use self::window::WindowEnd;
use self::window::{LateRecords, WindowState};
use crate::guests::{GuestWorkers, Log, Pending};
use crate::plan::{GuestQuestions, ProcessEvents, Progress, Sampling, SessionPlan};
use crate::resets::Resets;
use crate::sink::{Sink, UntilError};
use crate::sources::{Kernel, Sources};
use crate::throttling::{Reading, ThrottlingLog};
use crate::vm_table::VmTable;
use crate::{CollectError, Roots};

/// Samples of a CPU between two looks at the rings: a look costs as much as hundreds of samples.
const POLL_SAMPLES: u32 = 4000;
/// Bounds of the time between two looks: VMs are found and ends are seen then.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(4);
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Where switches come in at any rate, or quotas' periods are to be distinguished.
const POLL_OFTEN: Duration = Duration::from_millis(200);

/// With call graphs a sample has ten times the bytes, and guests' stacks wait to be unwound. The rings hold the samples of this
/// time, which is longer than unwinding may take.
const STACKS_POLL: Duration = Duration::from_millis(250);
const STACKS_ROOM: Duration = Duration::from_secs(2);

/// A ring holds the samples of this many polls, so that nothing is lost if we are late.
const RING_POLLS: u32 = 3;

/// Processes' events younger than this wait for the next look: another CPU's ring may hold their causes.
const SETTLING_NS: u64 = 50_000_000;

/// Attached probes, and the state of the window that is being recorded.
#[derive(Debug)]
pub(crate) struct Session {
    plan: SessionPlan,
    sources: Box<dyn Sources>,
    header: Header,
    kvm: bool,
    vms: VmTable,
    /// How the guests of the VMs that run can be reached.
    reachable: HashMap<VmId, VmProcess>,
    processes: ProcessLog,
    guests: GuestWorkers,
    throttling: ThrottlingLog,
    looks: ScanState,
    window: WindowState,
    resets: Resets,
    /// Processes' events from before have been applied.
    settled: HostNs,
    /// Notes of the session as a whole: those that were there when it began to sample.
    n_notes: usize,
}

/// The last window, and the session's other results.
#[derive(Debug)]
pub(crate) struct SessionEnd {
    pub(crate) window: WindowEnd,
    pub(crate) processes: ProcessLog,
    pub(crate) guests: GuestWorkers,
}

impl Session {
    /// Loads everything; nothing is attached yet.
    ///
    /// # Errors
    /// When the kernel refuses; the error says what to do.
    pub(crate) fn load(plan: SessionPlan) -> Result<Self, CollectError> {
        let mut header = header(&plan)?;
        let options = sampler_options(&plan.sampling, &header.cpus, header.vendor);
        let kernel = Kernel::load(&plan, options, &mut header)?;
        Self::with_sources(plan, Box::new(kernel), header)
    }

    fn with_sources(
        plan: SessionPlan,
        sources: Box<dyn Sources>,
        header: Header,
    ) -> Result<Self, CollectError> {
        // Processes' events are collected already, so that nothing falls in between.
        let processes = match plan.process_events {
            ProcessEvents::Followed => ProcessLog::scan(&plan.roots.proc)
                .map_err(|source| CollectError::Host { what: "/proc", source })?,
            ProcessEvents::Ignored => ProcessLog::default(),
        };
        let mut guests = GuestWorkers::new();
        if plan.sampling.call_graph {
            guests.unwind_stacks();
        }
        Ok(Self {
            kvm: plan.roots.sys.join("module/kvm").exists(),
            plan,
            sources,
            header,
            vms: VmTable::default(),
            reachable: HashMap::new(),
            processes,
            guests,
            throttling: ThrottlingLog::default(),
            looks: ScanState::default(),
            window: WindowState::default(),
            resets: Resets::default(),
            settled: HostNs(0),
            n_notes: 0,
        })
    }

    /// Guests' symbols that lie in this store need not be requested.
    pub(crate) fn set_symbol_store(&mut self, store: &Path) {
        self.guests.set_symbol_store(store.to_owned());
    }

    /// Marks this process and its descendants: `Image::of_command`.
    pub(crate) fn follow_command(&mut self, pid: Pid) {
        self.processes.follow_command(pid.0);
    }

    /// Finds the VMs that run, and begins to ask their guests.
    pub(crate) fn find_vms(&mut self) {
        if self.kvm && !self.sources.knows_vcpus() {
            let text = "this kernel does not tell KVM's types: guests show as VMs only; see vmscope doctor";
            self.note(text.to_owned());
        }
        self.look_for_vcpus(None);
    }

    /// Waits until each guest has begun its log and reported its map, or can't, or `interrupted`.
    ///
    /// # Errors
    /// When it was interrupted.
    pub(crate) fn wait_for_guests(
        &mut self,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), CollectError> {
        if let GuestQuestions::On { wait, .. } = &self.plan.guests {
            self.guests.wait_first_try(*wait, interrupted);
        }
        if interrupted() { Err(CollectError::Interrupted) } else { Ok(()) }
    }

    /// Begins to sample, and with it the first window. Switches come first, so that none is missed that a sample or a look at
    /// a vCPU tells of.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn attach(&mut self) -> Result<(), CollectError> {
        self.guests.begin_sampling();
        self.sources.start_tracers(&mut self.header.notes)?;
        self.apply_new_tasks();
        self.snapshot_vcpus();
        self.read_throttling();
        self.begin_window(self.sources.now());
        // Exits are counted already.
        self.exits();
        self.n_notes = self.header.notes.len();
        Ok(self.sources.start_sampling()?)
    }

    /// Samples with another period from the window on that began last, at about this moment.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn set_period(&mut self, period_ns: u64) -> Result<(), CollectError> {
        let Sampling { period_ns: before_ns, trigger_period, .. } = self.plan.sampling;
        let trigger_period = trigger_period.saturating_mul(period_ns) / before_ns.max(1);
        self.sources.set_period(trigger_period)?;
        self.plan.sampling = Sampling { period_ns, trigger_period, ..self.plan.sampling };
        self.header.period_ns = period_ns;
        Ok(())
    }

    /// The session's facts, and the window's begin.
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// Where the host's files are.
    pub(crate) fn roots(&self) -> &Roots {
        &self.plan.roots
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
        self.drain(sink, HostNs(u64::MAX), LateRecords::Carry)?;
        let mut news = self.drain_processes(settled);
        self.processes.forget_ended(|pid| sink.is_hit(Pid(pid)));
        self.read_throttling();
        self.throttling.drain(&*self.sources, &self.header.cpus);
        news.extend(self.scan_unknown().into_iter().map(Progress::VmFound));
        self.apply_new_tasks();
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
        let exits = self.exits();
        // Records that can't be stored are lost with this window, not moved to the next one.
        let mut sink = UntilError { sink, error: None };
        self.drain(&mut sink, self.header.end, LateRecords::Carry)?;
        let error = sink.error;
        let end = self.window_end(exits);
        self.begin_window(self.header.end);
        self.window.switches.extend(edge.vcpus);
        self.throttling.restate(self.header.start);
        error.map_or(Ok(end), |error| Err(error.into()))
    }

    /// The same in a session that continues: what ended before the new window is forgotten, and notes begin anew. All guests
    /// report what counts for the window, even if it is lost, so that they drop their log entries for it. Their answers are
    /// for the rows of that window: VMs may have other rows in the next one.
    pub(crate) fn next_window(
        &mut self,
        sink: &mut dyn Sink,
    ) -> (Result<WindowEnd, CollectError>, Pending) {
        self.note_new_cpus();
        self.note_left_out();
        let begun = self.header.start;
        let end = self.cut(sink);
        let guests = self.guests.collect_answers(begun, Log::GoesOn);
        self.header.notes.truncate(self.n_notes);
        self.looks.failed = 0;
        let moved = self.vms.forget_ended(self.header.start);
        for tid in &moved.unwatched {
            self.sources.forget(*tid);
            self.looks.not_watched.remove(tid);
        }
        let reachable = std::mem::take(&mut self.reachable).into_iter();
        self.reachable =
            reachable.filter_map(|(vm, process)| Some((moved.vm(vm)?, process))).collect();
        self.guests.remap(&moved);
        self.resets.remap(&moved);
        self.resets.forget_before(self.header.start);
        self.throttling.remap(&moved);
        self.window.switches.retain_mut(|switch| {
            moved.vcpu(switch.vcpu).map(|place| switch.vcpu = place).is_some()
        });
        (end, guests)
    }

    /// The images of processes that a window hit which ended at `end`. `None`: events from before may still come in.
    /// Nothing asks for that time again.
    pub(crate) fn take_processes(
        &mut self,
        end: HostNs,
        hit: &BTreeSet<Pid>,
        sink: &dyn Sink,
    ) -> Option<Vec<ProcessImage>> {
        if self.settled < end {
            return None;
        }
        let images = self.processes.images(|pid| hit.contains(&Pid(pid)));
        self.processes.forget_before(end, |pid| sink.is_hit(Pid(pid)));
        Some(images)
    }

    /// Ends the last window and everything else.
    ///
    /// # Errors
    /// When the sink can't store what came in.
    pub(crate) fn end(mut self, sink: &mut dyn Sink) -> Result<SessionEnd, CollectError> {
        self.snapshot_vcpus();
        self.header.end = self.sources.now();
        let exits = self.exits();
        self.sources.stop();
        self.drain(sink, self.header.end, LateRecords::Drop)?;
        self.drain_processes(HostNs(u64::MAX));
        self.read_throttling();
        self.scan_unknown();
        self.note_new_cpus();
        self.note_left_out();
        let window = self.window_end(exits);
        let Self { processes, guests, .. } = self;
        Ok(SessionEnd { window, processes, guests })
    }

    /// Brings the process log up to date, and forgets vCPU threads and VMs that ended.
    fn drain_processes(&mut self, before: HostNs) -> Vec<Progress> {
        self.settled = before;
        let Self { sources, processes, vms, reachable, looks, guests, .. } = self;
        let (mut news, mut ended_threads) = (Vec::new(), Vec::new());
        sources.drain_processes(before, &mut |event| {
            let (pid, tid, time) = (event.pid, event.tid, HostNs(event.time_ns));
            let is_exit = event.kind == EventKind::Exit;
            let was_known = processes.name(pid).is_some();
            processes.apply(event);
            if !is_exit {
                return;
            }
            looks.not_watched.remove(&Tid(tid));
            if vms.thread_ended(Tid(tid), time) {
                ended_threads.push(Tid(tid));
            }
            // A VMM's first thread may end before the others.
            let is_last = if was_known { processes.name(pid).is_none() } else { pid == tid };
            if is_last {
                let ended = vms.process_ended(Pid(pid), time);
                news.extend(ended.into_iter().map(Progress::VmEnded));
            }
        });
        for tid in ended_threads {
            sources.forget(tid);
        }
        reachable.retain(|vm, _| {
            let is_there = vms.vms[vm.index()].ended.is_none();
            if !is_there {
                guests.vm_gone(*vm);
            }
            is_there
        });
        news
    }

    fn read_throttling(&mut self) {
        let (roots, now) = (&self.plan.roots, self.sources.now());
        self.throttling.read(&mut Reading {
            proc: &roots.proc,
            cgroups: &roots.cgroups,
            vms: &self.vms,
            sources: &mut *self.sources,
            cpus: &self.header.cpus,
            now,
        });
        if let Some(error) = self.sources.take_quota_error() {
            let text =
                "throttled time is that of a counter, and may be another VM's of the same quota";
            self.note(format!("{text}: {error}"));
        }
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

    fn note_left_out(&mut self) {
        match self.processes.take_left_out() {
            0 => {}
            n => self.note(format!(
                "host processes mapped too much code or began too many threads: at least {n} mappings and threads have no names"
            )),
        }
    }

    /// Tells something about the host, in the window under way.
    pub(crate) fn note(&mut self, text: String) {
        self.header.notes.push(Note { subject: "host".to_owned(), text });
    }
}

/// How often the rings are looked at when nothing wants more.
fn poll_interval(sampling: &Sampling) -> Duration {
    if sampling.call_graph {
        return STACKS_POLL;
    }
    let interval = Duration::from_nanos(sampling.period_ns) * POLL_SAMPLES;
    interval.clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL)
}

fn sampler_options(sampling: &Sampling, cpus: &[u32], vendor: Vendor) -> probes::Options {
    let room = if sampling.call_graph { STACKS_ROOM } else { poll_interval(sampling) * RING_POLLS };
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

/// The header of a session at its begin.
fn header(plan: &SessionPlan) -> Result<Header, CollectError> {
    let roots = &plan.roots;
    let costs = host::capabilities::sysctl_costs(&roots.proc, plan.sampling.period_ns);
    let note = |text| Note { subject: "host".to_owned(), text };
    let cpus = host::machine::online_cpus(&roots.sys)
        .map_err(|source| CollectError::Host { what: "the list of CPUs", source })?;
    let now = probes::now();
    Ok(Header {
        vmscope_version: plan.vmscope_version.clone(),
        hostname: plan.hostname.clone().unwrap_or_else(|| host::machine::hostname(&roots.proc)),
        kernel: host::machine::kernel_release(&roots.proc),
        boot: host::machine::boot_id(&roots.proc),
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
        notes: costs.into_iter().map(note).collect(),
    })
}

#[cfg(test)]
mod test;
