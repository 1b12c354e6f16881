//! Sessions with a drawn kernel: a clock that the test moves, rings that it fills, vCPUs that it makes up.

use std::sync::{Arc, Mutex};

use model::{
    CpuId, ExitCount, OffCpuSource, Sample, Switch, SwitchEvent, Trigger, VcpuId, VcpuState,
};
use probes::{FoundVcpu, ProbeError, RecordBatch, RingCounters, VcpuSnapshot};

use super::*;
use crate::guests::Log;
use crate::plan::Exits;
use crate::sink::MemorySink;
use crate::sources::QuotaSource;
use crate::{GuestError, Roots};

const PERIOD_NS: u64 = 1_000_000;
const VMM: u32 = 50;
/// 1970 is so long before the clock of records began.
const UNIX_NS: u64 = 1_700_000_000_000_000_000;

/// What the drawn kernel holds; the test and the session's sources share it.
#[derive(Debug, Default)]
struct Drawn {
    now: u64,
    /// By CPU: records not drained yet.
    rings: BTreeMap<u32, Vec<u8>>,
    counters: BTreeMap<u32, RingCounters>,
    vcpus: Vec<FoundVcpu>,
    look_fails: bool,
    /// Room in the table of vCPUs.
    room: usize,
    /// By thread: the number that records are to have.
    watched: BTreeMap<Tid, u32>,
    sampling: bool,
    exits: Vec<ExitCount>,
    switches: Vec<Switch>,
}

#[derive(Debug, Clone)]
struct DrawnKernel(Arc<Mutex<Drawn>>);

impl DrawnKernel {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Drawn { now: 1_000_000_000, room: 8, ..Drawn::default() })))
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Drawn) -> T) -> T {
        use_it(&mut self.0.lock().unwrap())
    }

    /// A sample on a CPU, now.
    fn sample(&self, cpu: u32) {
        self.with(|drawn| {
            let sample = Sample {
                time: HostNs(drawn.now),
                cpu: CpuId(cpu),
                pid: Pid(7),
                tid: Tid(7),
                host_ip: model::HostVirt(0),
                host_mode: model::HostMode::User,
                stack: None,
                vcpu: VcpuState::None,
            };
            drawn.rings.entry(cpu).or_default().extend(recording::encode(&sample));
            drawn.counters.entry(cpu).or_default().written += 1;
        });
    }

    /// A millisecond passes, with a sample on both CPUs.
    fn tick(&self) {
        self.with(|drawn| drawn.now += PERIOD_NS);
        (0..2).for_each(|cpu| self.sample(cpu));
    }

    fn vcpu(&self, number: u32) {
        let seen = VcpuSnapshot {
            time: HostNs(self.with(|drawn| drawn.now)),
            cpu: CpuId(0),
            off_cpu: None,
            exit_reason: 0,
            waits: None,
        };
        let vcpu = FoundVcpu {
            pid: Pid(VMM),
            tid: Some(Tid(100 + number)),
            number,
            protected: false,
            kvm: 1,
            vcpu: 0x100 + u64::from(number),
            vmcb: 0,
            seen,
        };
        self.with(|drawn| drawn.vcpus.push(vcpu));
    }

    /// A sample hit an unknown vCPU.
    fn unknown(&self) {
        self.with(|drawn| drawn.counters.entry(0).or_default().unknown_vcpus += 1);
    }
}

impl QuotaSource for DrawnKernel {}

impl Sources for DrawnKernel {
    fn now(&self) -> HostNs {
        HostNs(self.with(|drawn| drawn.now))
    }

    fn unix_now_ns(&self) -> u64 {
        UNIX_NS + self.now().0
    }

    fn knows_vcpus(&self) -> bool {
        true
    }

    fn find_vcpus(&self) -> Result<Vec<FoundVcpu>, ProbeError> {
        self.with(|drawn| match drawn.look_fails {
            true => {
                let reason = std::io::Error::other("no memory");
                Err(ProbeError::Find { program: "find_vcpus", reason })
            }
            false => Ok(drawn.vcpus.clone()),
        })
    }

    fn watch(&self, tid: Tid, _vcpu: &FoundVcpu, number: u32) -> Result<(), ProbeError> {
        self.with(|drawn| {
            if drawn.watched.len() < drawn.room {
                drawn.watched.insert(tid, number);
                return Ok(());
            }
            let source = std::io::Error::other("too many vCPUs");
            Err(ProbeError::Map { map: "vcpus", source })
        })
    }

    fn forget(&self, tid: Tid) {
        self.with(|drawn| drawn.watched.remove(&tid));
    }

    fn start_tracers(&mut self, _notes: &mut Vec<Note>) -> Result<(), ProbeError> {
        Ok(())
    }

    fn start_sampling(&mut self) -> Result<(), ProbeError> {
        self.with(|drawn| drawn.sampling = true);
        Ok(())
    }

    /// CPU after CPU: the other one is still sampled once. Exits are counted until the last.
    fn stop(&mut self) {
        self.tick();
        self.with(|drawn| {
            drawn.sampling = false;
            drawn.exits.iter_mut().for_each(|exit| exit.count += 1000);
        });
    }

    fn drain_samples(
        &self,
        cpu: u32,
        take: &mut dyn FnMut(&RecordBatch<'_>) -> Result<(), recording::Error>,
    ) -> Result<(), recording::Error> {
        // Samples go on while rings are read.
        self.tick();
        let records = self.with(|drawn| drawn.rings.remove(&cpu)).unwrap_or_default();
        let drained = take(&RecordBatch::new(&records, None));
        if drained.is_err() {
            self.with(|drawn| drawn.rings.insert(cpu, records));
        }
        drained
    }

    fn drain_switches(&self, cpu: u32, switches: &mut Vec<Switch>) {
        if cpu == 0 {
            self.with(|drawn| switches.append(&mut drawn.switches));
        }
    }

    fn counters(&self, cpu: u32) -> RingCounters {
        self.with(|drawn| drawn.counters.get(&cpu).copied().unwrap_or_default())
    }

    fn exits(&self, _vcpus: usize) -> Vec<ExitCount> {
        self.with(|drawn| drawn.exits.clone())
    }
}

/// A host that holds nothing but KVM.
struct Host {
    _root: tempfile::TempDir,
    kernel: DrawnKernel,
    session: Session,
}

impl Host {
    fn new(kernel: DrawnKernel) -> Self {
        let root = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = root.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        let roots = Roots {
            proc: folder("proc"),
            sys: folder("sys/module/kvm").ancestors().nth(2).unwrap().to_owned(),
            cgroups: folder("cgroup"),
            locks: folder("run"),
            config: folder("etc"),
            logs: folder("log"),
            state: folder("state"),
        };
        let sampling = Sampling {
            trigger: Trigger::CpuClock,
            period_ns: PERIOD_NS,
            trigger_period: PERIOD_NS,
            call_graph: false,
        };
        let plan = SessionPlan {
            roots: roots.clone(),
            sampling,
            off_cpu_source: OffCpuSource::Samples,
            exits: Exits::Counted,
            process_events: ProcessEvents::Ignored,
            guests: GuestQuestions::On {
                limits: guest::Limits::default(),
                with_map: vec![],
                wait: Duration::ZERO,
            },
            vmscope_version: "test".to_owned(),
            hostname: Some("kvm1".to_owned()),
        };
        std::fs::create_dir_all(roots.sys.join("devices/system/cpu")).unwrap();
        std::fs::write(roots.sys.join("devices/system/cpu/online"), "0-1\n").unwrap();
        let header = header(&plan).unwrap();
        let session = Session::with_sources(plan, Box::new(kernel.clone()), header).unwrap();
        Self { _root: root, kernel, session }
    }

    /// Begun: its VMs are found, it samples.
    fn sampling(kernel: DrawnKernel) -> Self {
        let mut host = Self::new(kernel);
        host.session.find_vms();
        host.session.wait_for_guests(&|| false).unwrap();
        host.session.attach().unwrap();
        host
    }

    fn sink(&self) -> MemorySink {
        MemorySink::new(&self.session.header().cpus)
    }

    fn poll(&mut self) -> Vec<Progress> {
        let mut sink = self.sink();
        self.session.poll(&mut sink).unwrap()
    }

    fn notes(&self) -> String {
        let notes = self.session.header().notes.iter();
        notes.map(|note| note.text.clone()).collect::<Vec<_>>().join("\n")
    }
}

fn times(sink: &MemorySink, cpu: u32) -> Vec<u64> {
    let of_cpu = sink.samples.iter().filter(|sample| sample.cpu == CpuId(cpu));
    of_cpu.map(|sample| sample.time.0).collect()
}

#[test]
fn windows_follow_one_another_without_a_lost_sample() {
    let mut host = Host::sampling(DrawnKernel::new());
    let (mut all, mut end_before) = ([vec![], vec![]], host.session.header().start);
    for _ in 0..3 {
        let mut sink = host.sink();
        (0..100).for_each(|_| host.kernel.tick());
        host.session.poll(&mut sink).unwrap();
        (0..50).for_each(|_| host.kernel.tick());
        let end = host.session.cut(&mut sink).unwrap();
        assert_eq!(end.header.start, end_before);
        assert_eq!(end.header.start_unix_ns, UNIX_NS + end.header.start.0, "the same instant");
        end_before = end.header.end;
        for (cpu, all) in [0, 1].into_iter().zip(&mut all) {
            let times = times(&sink, cpu);
            assert!(times.iter().all(|time| end.header.start.0 < *time));
            assert!(times.iter().all(|time| *time <= end.header.end.0));
            assert_eq!(end.header.counters[&format!("samples_missed_cpu{cpu}")], 0);
            all.extend(times);
        }
    }
    let mut sink = host.sink();
    let kernel = host.kernel.clone();
    let end = host.session.end(&mut sink).unwrap().window;
    for (cpu, mut all) in [0, 1].into_iter().zip(all) {
        all.extend(times(&sink, cpu));
        let written = kernel.counters(cpu).written;
        let each_ms = (0..written).map(|n| 1_000_000_000 + (n + 1) * PERIOD_NS);
        let until_end: Vec<u64> = each_ms.take_while(|time| *time <= end.header.end.0).collect();
        assert_eq!(all, until_end, "every sample once, in order, and none after the end");
    }
    assert!(!kernel.with(|drawn| drawn.sampling));
}

#[test]
fn a_window_has_its_own_counts() {
    let kernel = DrawnKernel::new();
    kernel.vcpu(0);
    let mut host = Host::sampling(kernel);
    let exit = |count| ExitCount { vcpu: VcpuId(0), reason: 0x78, count };
    let mut window = |dropped, exits| {
        host.kernel.with(|drawn| {
            drawn.counters.entry(1).or_default().dropped += dropped;
            drawn.exits = vec![exit(exits)];
        });
        let mut sink = host.sink();
        let end = host.session.cut(&mut sink).unwrap();
        let exits = end.exits.iter().map(|exit| exit.count).sum::<u64>();
        (end.header.counters["samples_dropped_cpu1"], exits)
    };
    assert_eq!([window(3, 10), window(0, 10), window(2, 25)], [(3, 10), (0, 0), (2, 15)]);
}

#[test]
fn exits_are_those_of_the_window_s_time() {
    let kernel = DrawnKernel::new();
    kernel.vcpu(0);
    let exit = |count| vec![ExitCount { vcpu: VcpuId(0), reason: 0x78, count }];
    kernel.with(|drawn| drawn.exits = exit(7));
    let host = Host::sampling(kernel);
    host.kernel.with(|drawn| drawn.exits = exit(27));
    let mut sink = host.sink();
    let end = host.session.end(&mut sink).unwrap().window;
    assert_eq!(end.exits, exit(20));
}

#[test]
fn switches_belong_to_the_window_of_their_time() {
    let kernel = DrawnKernel::new();
    kernel.vcpu(0);
    let mut host = Host::sampling(kernel);
    let now = host.kernel.now().0;
    let event = SwitchEvent::Wake { throttled: false };
    let switch = |ns| Switch { time: HostNs(now + ns), cpu: CpuId(0), vcpu: VcpuId(0), event };
    host.kernel.with(|drawn| drawn.switches = vec![switch(0), switch(1 << 40)]);
    let (mut first, mut second) = (host.sink(), host.sink());
    host.session.cut(&mut first).unwrap();
    host.session.poll(&mut second).unwrap();
    let wakes = |sink: MemorySink| -> Vec<Switch> {
        sink.switches.into_iter().filter(|switch| switch.event == event).collect()
    };
    assert_eq!((wakes(first), wakes(second)), (vec![switch(0)], vec![switch(1 << 40)]));
}

#[test]
fn a_full_table_of_vcpus_is_counted_and_noted() {
    let kernel = DrawnKernel::new();
    kernel.with(|drawn| drawn.room = 2);
    (0..4).for_each(|number| kernel.vcpu(number));
    let mut host = Host::sampling(kernel);
    assert!(host.notes().contains("too many vCPUs"), "{}", host.notes());
    assert_eq!(host.notes().matches("too many vCPUs").count(), 1);
    let mut sink = host.sink();
    let end = host.session.cut(&mut sink).unwrap();
    assert_eq!(end.header.counters["vcpus_not_watched"], 2);
    assert_eq!(host.session.vms().vcpus.len(), 4, "they have their rows all the same");
    // There is room again: they are watched from the next look on.
    host.kernel.with(|drawn| drawn.room = 8);
    host.kernel.unknown();
    host.poll();
    assert_eq!(host.kernel.with(|drawn| drawn.watched.len()), 4);
    let end = host.session.cut(&mut sink).unwrap();
    assert_eq!(end.header.counters.get("vcpus_not_watched"), None);
}

#[test]
fn a_look_that_fails_is_counted_and_repeated() {
    let kernel = DrawnKernel::new();
    kernel.with(|drawn| drawn.look_fails = true);
    let mut host = Host::sampling(kernel);
    assert!(host.notes().contains("find_vcpus: no memory"), "{}", host.notes());
    host.kernel.with(|drawn| drawn.look_fails = false);
    host.kernel.vcpu(0);
    host.kernel.unknown();
    assert_eq!(host.poll(), [Progress::VmFound(format!("vm-{VMM}"))]);
    let mut sink = host.sink();
    let end = host.session.cut(&mut sink).unwrap();
    assert!(1 <= end.header.counters["vcpu_looks_failed"]);
}

#[test]
fn a_guest_that_can_not_be_queried_is_its_own_note() {
    let kernel = DrawnKernel::new();
    kernel.vcpu(0);
    let host = Host::sampling(kernel);
    let mut sink = host.sink();
    let end = host.session.end(&mut sink).unwrap();
    let mut answers = end.guests.collect_answers(HostNs(0), Log::Ends).wait();
    let answer = answers.remove(0).1;
    assert!(matches!(answer.unwrap_err().as_ref(), GuestError::NoWay { .. }));
}

#[test]
fn a_vm_that_is_gone_is_forgotten() {
    let kernel = DrawnKernel::new();
    kernel.vcpu(0);
    let mut host = Host::sampling(kernel);
    assert_eq!(host.session.reachable().len(), 1);
    host.kernel.with(|drawn| drawn.vcpus.clear());
    let mut sink = host.sink();
    host.session.cut(&mut sink).unwrap();
    assert!(host.session.vms().vms[0].ended.is_some());
    assert_eq!(host.session.reachable().len(), 0);
    assert_eq!(host.kernel.with(|drawn| drawn.watched.len()), 0);
}

/// Stores nothing.
struct FullDisk;

impl Sink for FullDisk {
    fn samples(&mut self, _cpu: usize, _drained: &RecordBatch<'_>) -> Result<(), recording::Error> {
        Err(recording::Error::NoSpace("disk".into(), recording::Folder::Recording))
    }

    fn switches(&mut self, _switches: &[Switch]) -> Result<(), recording::Error> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_it_and_loses_nothing_that_was_stored() {
    let mut host = Host::sampling(DrawnKernel::new());
    let mut sink = host.sink();
    host.session.poll(&mut sink).unwrap();
    let stored = sink.samples.len();
    assert!(0 < stored);
    host.kernel.tick();
    assert!(matches!(host.session.poll(&mut FullDisk), Err(CollectError::Recording(_))));
    // What the disk did not take is still there, for another disk.
    host.session.poll(&mut sink).unwrap();
    let times = times(&sink, 0);
    assert!(stored < times.len());
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] == PERIOD_NS), "{times:?}");
}

#[test]
fn a_window_that_cannot_be_stored_leaves_nothing_to_the_next_one() {
    let mut host = Host::sampling(DrawnKernel::new());
    let mut sink = host.sink();
    host.session.poll(&mut sink).unwrap();
    host.kernel.tick();
    let edge = host.session.header().start;
    assert!(matches!(host.session.next_window(&mut FullDisk).0, Err(CollectError::Recording(_))));
    let start = host.session.header().start;
    assert!(edge < start);
    host.kernel.tick();
    let mut sink = host.sink();
    let end = host.session.next_window(&mut sink).0.unwrap();
    assert_eq!(end.header.start, start);
    assert!(!sink.samples.is_empty());
    assert!(sink.samples.iter().all(|sample| start < sample.time), "{start:?}");
}

#[path = "many_windows_test.rs"]
mod many_windows;
