//! What a session takes from the kernel: samples, switches, exits, processes' events, vCPUs and the clock.

use std::os::fd::BorrowedFd;

use host::sideband::{Event, Sideband};
use model::{
    ExitCount, GuestCode, Header, HostNs, Interpreter, Note, OffCpuSource, Pid, Switch, Tid,
};
use probes::{
    ExitCounter, ExitLink, FoundVcpu, GuestView, KickMarks, MemorySlot, ProbeError, QuotaEvent,
    QuotaTracer, RecordBatch, RingCounters, Sampler, SamplingEvents, SwitchLinks, SwitchTracer,
};

use crate::CollectError;
use crate::plan::{Exits, ProcessEvents, SessionPlan};

/// Events per CPU between two drains: 2 MiB.
const SWITCH_SLOTS: u32 = 1 << 16;
/// Records of processes' events per CPU between two drains.
const SIDEBAND_RING_BYTES: usize = 512 << 10;

/// When control groups' queues were throttled.
pub(crate) trait QuotaSource: std::fmt::Debug {
    /// From now on this control group's throttling is recorded under a number; whether it is.
    fn watch_quota(&mut self, _group: u64, _number: u32) -> bool {
        false
    }

    /// That of this control group is not recorded any more.
    fn forget_quota(&self, _group: u64) {}

    /// Appends the ends of throttling that a CPU has recorded since the last call.
    fn drain_quotas(&self, _cpu: u32, _events: &mut Vec<QuotaEvent>) {}

    /// Since when a CPU's queue of a control group is throttled, if it is.
    fn throttled_since(&self, _number: u32, _cpu: u32) -> Option<HostNs> {
        None
    }

    /// Records of throttling that found no room so far. `None`: there are none.
    fn quotas_dropped(&self, _cpu: u32) -> Option<u64> {
        None
    }

    /// Why throttling can't be recorded, once.
    fn take_quota_error(&mut self) -> Option<ProbeError> {
        None
    }
}

/// The kernel as a session needs it. Tests draw their own.
pub(crate) trait Sources: QuotaSource + Send {
    /// `CLOCK_MONOTONIC`, the clock of all records.
    fn now(&self) -> HostNs;

    /// The wall clock, ns since 1970.
    fn unix_now_ns(&self) -> u64;

    /// Whether this kernel tells the types by which vCPUs are found.
    fn knows_vcpus(&self) -> bool;

    /// All vCPUs of the host, and what each does now.
    ///
    /// # Errors
    /// When the look fails. The next one may succeed.
    fn find_vcpus(&self) -> Result<Vec<FoundVcpu>, ProbeError>;

    /// From now on samples of this thread are this vCPU's, which has this number in the records.
    ///
    /// # Errors
    /// When the table has no room for it.
    fn watch(&self, tid: Tid, vcpu: &FoundVcpu, number: u32) -> Result<(), ProbeError>;

    /// This thread is no vCPU's any more.
    fn forget(&self, tid: Tid);

    /// Samples of this vCPU's thread say from now on which task of its guest runs; `None`: they say so no longer.
    fn set_guest_view(&self, _tid: Tid, _view: Option<(&GuestView, &[MemorySlot])>) {}

    /// Copies more of this thread's stack from now on.
    fn copy_more(&self, _cr3: u64, _tid: u32) {}

    /// Copies the frames of this process' interpreter from now on.
    fn copy_interpreter(&self, _vmm: Pid, _cr3: u64, _interpreter: &Interpreter) {}

    /// Hands out the code of guests that samples on this CPU hit first since the last call, with the vCPU's number.
    fn drain_guest_code(&self, _cpu: u32, _take: &mut dyn FnMut(u32, GuestCode)) {}

    /// Attaches what is traced beside the samples. What can't be is noted where the recording is worth having without it.
    ///
    /// # Errors
    /// When the kernel refuses what was requested.
    fn start_tracers(&mut self, notes: &mut Vec<Note>) -> Result<(), ProbeError>;

    /// Begins to sample.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn start_sampling(&mut self) -> Result<(), ProbeError>;

    /// Samples with another period: ns for cpu-clock, cycles for the cycle counter.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_period(&mut self, _trigger_period: u64) -> Result<(), ProbeError> {
        Ok(())
    }

    /// Ends sampling and tracing. What lies in the rings can still be drained.
    fn stop(&mut self);

    /// Hands out the records that a CPU has published since the last call.
    ///
    /// # Errors
    /// Those of `take`.
    fn drain_samples(
        &self,
        cpu: u32,
        take: &mut dyn FnMut(&RecordBatch<'_>) -> Result<(), recording::Error>,
    ) -> Result<(), recording::Error>;

    /// Appends the switches of vCPUs' threads that a CPU has published since the last call.
    fn drain_switches(&self, cpu: u32, switches: &mut Vec<Switch>);

    /// Whether switches are traced.
    fn traces_switches(&self) -> bool {
        false
    }

    /// What a CPU's ring of samples has seen so far.
    fn counters(&self, cpu: u32) -> RingCounters;

    /// Switches that found no room so far. `None`: they are not traced.
    fn switches_dropped(&self, _cpu: u32) -> Option<u64> {
        None
    }

    /// VM exits of the vCPUs with the first numbers so far; `vcpu` is the number.
    fn exits(&self, _vcpus: usize) -> Vec<ExitCount> {
        Vec::new()
    }

    /// Hands out processes' events from before `time`.
    fn drain_processes(&mut self, _time: HostNs, _take: &mut dyn FnMut(Event)) {}

    /// Processes' events that found no room so far. `None`: they are not followed.
    fn processes_lost(&self) -> Option<u64> {
        None
    }

    /// Readable when it is time to drain processes' events.
    fn wake(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// The probes in the host's kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    sampler: Sampler,
    switches: Option<SwitchTracer>,
    exits: Option<ExitCounter>,
    /// KVM is loaded.
    kvm: bool,
    sideband: Option<Sideband>,
    quotas: QuotaProbe,
    attached: Attached,
}

/// Records throttling once a VM has a quota.
#[derive(Debug)]
enum QuotaProbe {
    Unused { cpus: Vec<u32> },
    Started(QuotaTracer),
    Refused(Option<ProbeError>),
}

impl QuotaProbe {
    fn start(&mut self) -> Option<&QuotaTracer> {
        if let Self::Unused { cpus } = self {
            *self = match QuotaTracer::start(cpus) {
                Ok(tracer) => Self::Started(tracer),
                Err(error) => Self::Refused(Some(error)),
            };
        }
        self.started()
    }

    fn started(&self) -> Option<&QuotaTracer> {
        match self {
            Self::Started(tracer) => Some(tracer),
            Self::Unused { .. } | Self::Refused(_) => None,
        }
    }
}

/// Attached programs; they stop when this is dropped.
#[derive(Debug, Default)]
struct Attached {
    samples: Option<SamplingEvents>,
    switches: Option<SwitchLinks>,
    exits: Option<ExitLink>,
    kicks: Option<KickMarks>,
}

impl Kernel {
    /// Loads what the plan asks for. That exits can't be counted is noted.
    pub(crate) fn load(
        plan: &SessionPlan,
        options: probes::Options,
        header: &mut Header,
    ) -> Result<Self, CollectError> {
        let sampler = Sampler::load(options)?;
        let switches = (plan.off_cpu_source == OffCpuSource::Switches)
            .then(|| SwitchTracer::load(&sampler, &header.cpus, SWITCH_SLOTS, header.vendor))
            .transpose()?;
        let exits = (plan.exits == Exits::Counted)
            .then(|| ExitCounter::load(&sampler, header.vendor))
            .and_then(|loaded| or_note(NO_EXITS, loaded, &mut header.notes));
        let sideband = (plan.process_events == ProcessEvents::Followed)
            .then(|| Sideband::open(&header.cpus, SIDEBAND_RING_BYTES))
            .transpose()?;
        let kvm = plan.roots.sys.join("module/kvm").exists();
        let quotas = QuotaProbe::Unused { cpus: header.cpus.clone() };
        let attached = Attached::default();
        Ok(Self { sampler, switches, exits, kvm, sideband, quotas, attached })
    }
}

impl QuotaSource for Kernel {
    fn watch_quota(&mut self, group: u64, number: u32) -> bool {
        self.quotas.start().is_some_and(|quotas| quotas.watch(group, number).is_ok())
    }

    fn forget_quota(&self, group: u64) {
        if let Some(quotas) = self.quotas.started() {
            quotas.forget(group);
        }
    }

    fn drain_quotas(&self, cpu: u32, events: &mut Vec<QuotaEvent>) {
        if let Some(quotas) = self.quotas.started() {
            quotas.drain(cpu, events);
        }
    }

    fn throttled_since(&self, number: u32, cpu: u32) -> Option<HostNs> {
        self.quotas.started()?.throttled_since(number, cpu)
    }

    fn quotas_dropped(&self, cpu: u32) -> Option<u64> {
        Some(self.quotas.started()?.dropped(cpu))
    }

    fn take_quota_error(&mut self) -> Option<ProbeError> {
        match &mut self.quotas {
            QuotaProbe::Refused(error) => error.take(),
            QuotaProbe::Unused { .. } | QuotaProbe::Started(_) => None,
        }
    }
}

impl Sources for Kernel {
    fn now(&self) -> HostNs {
        probes::now()
    }

    fn unix_now_ns(&self) -> u64 {
        probes::unix_now_ns()
    }

    fn knows_vcpus(&self) -> bool {
        self.sampler.knows_vcpus()
    }

    fn find_vcpus(&self) -> Result<Vec<FoundVcpu>, ProbeError> {
        self.sampler.find_vcpus()
    }

    fn watch(&self, tid: Tid, vcpu: &FoundVcpu, number: u32) -> Result<(), ProbeError> {
        self.sampler.watch(tid, vcpu, number)
    }

    fn set_guest_view(&self, tid: Tid, view: Option<(&GuestView, &[MemorySlot])>) {
        match view {
            // One that finds no room has samples without it.
            Some((view, slots)) => drop(self.sampler.set_guest_view(tid, view, slots)),
            None => self.sampler.forget_guest_view(tid),
        }
    }

    fn drain_guest_code(&self, cpu: u32, take: &mut dyn FnMut(u32, GuestCode)) {
        self.sampler.drain_guest_code(cpu, take);
    }

    fn copy_more(&self, cr3: u64, tid: u32) {
        self.sampler.copy_more(cr3, tid);
    }

    fn copy_interpreter(&self, vmm: Pid, cr3: u64, interpreter: &Interpreter) {
        self.sampler.copy_interpreter(vmm.0, cr3, interpreter);
    }

    fn forget(&self, tid: Tid) {
        self.sampler.forget(tid);
    }

    fn start_tracers(&mut self, notes: &mut Vec<Note>) -> Result<(), ProbeError> {
        self.attached.switches = self.switches.as_ref().map(SwitchTracer::start).transpose()?;
        let exits = self.exits.as_ref().map(ExitCounter::start);
        self.attached.exits = exits.and_then(|exits| or_note(NO_EXITS, exits, notes));
        if self.kvm {
            let kicks = KickMarks::start(&self.sampler);
            self.attached.kicks = or_note(NO_PAUSES, kicks, notes);
        }
        Ok(())
    }

    fn start_sampling(&mut self) -> Result<(), ProbeError> {
        self.attached.samples = Some(self.sampler.start()?);
        Ok(())
    }

    fn set_period(&mut self, trigger_period: u64) -> Result<(), ProbeError> {
        let samples = self.attached.samples.as_ref();
        samples.map_or(Ok(()), |samples| samples.set_period(trigger_period))
    }

    fn stop(&mut self) {
        self.attached = Attached::default();
    }

    fn drain_samples(
        &self,
        cpu: u32,
        take: &mut dyn FnMut(&RecordBatch<'_>) -> Result<(), recording::Error>,
    ) -> Result<(), recording::Error> {
        self.sampler.drain(cpu, |drained| take(&drained))
    }

    fn drain_switches(&self, cpu: u32, switches: &mut Vec<Switch>) {
        if let Some(tracer) = &self.switches {
            tracer.drain(cpu, switches);
        }
    }

    fn traces_switches(&self) -> bool {
        self.switches.is_some()
    }

    fn counters(&self, cpu: u32) -> RingCounters {
        self.sampler.counters(cpu)
    }

    fn switches_dropped(&self, cpu: u32) -> Option<u64> {
        self.switches.as_ref().map(|tracer| tracer.dropped(cpu))
    }

    fn exits(&self, vcpus: usize) -> Vec<ExitCount> {
        let vcpus = u32::try_from(vcpus).unwrap_or(u32::MAX);
        self.exits.as_ref().map(|exits| exits.counts(vcpus)).unwrap_or_default()
    }

    fn drain_processes(&mut self, time: HostNs, take: &mut dyn FnMut(Event)) {
        if let Some(sideband) = &mut self.sideband {
            sideband.drain_before(time.0, take);
        }
    }

    fn processes_lost(&self) -> Option<u64> {
        self.sideband.as_ref().map(Sideband::lost)
    }

    fn wake(&self) -> Vec<BorrowedFd<'_>> {
        self.sideband.iter().flat_map(Sideband::half_full).collect()
    }
}

const NO_EXITS: &str = "VM exits are not counted";
const NO_PAUSES: &str = "pauses of VMs may show as steal type 2";

/// A recording without this is worth having.
fn or_note<T>(lack: &str, outcome: Result<T, ProbeError>, notes: &mut Vec<Note>) -> Option<T> {
    outcome
        .map_err(|error| {
            let text = format!("{lack}: {error}");
            notes.push(Note { subject: "host".to_owned(), text });
        })
        .ok()
}
