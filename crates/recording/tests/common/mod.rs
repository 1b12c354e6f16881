//! Recordings for the tests.

#![allow(dead_code, clippy::pedantic, clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

pub(crate) mod damage;
pub(crate) mod folders;
pub(crate) mod golden;
pub(crate) mod limit;
pub(crate) mod traces;

#[path = "../../../../tests/perf/synthetic.rs"]
#[allow(clippy::cast_sign_loss)]
pub(crate) mod synthetic;

#[path = "../../../../tests/perf/synthetic_trace.rs"]
#[allow(clippy::cast_sign_loss)]
pub(crate) mod synthetic_trace;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use model::*;
use recording::{Recording, Summary, Writer, encode};
use synthetic::Random;

/// Every combination of absent and present values, and extreme ones, by seed.
pub(crate) struct Wild(pub(crate) Random);

impl Wild {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Random(seed))
    }

    pub(crate) fn tables(&mut self) -> Tables {
        let vms = self.rows(|wild, row| wild.vm(row));
        let n_vms = vms.len();
        let vcpus = self.rows(|wild, _| wild.vcpu(n_vms));
        let n_vcpus = vcpus.len();
        let images = self.rows(|wild, _| wild.image(n_vms));
        let modules = self.rows(|wild, _| Module {
            owner: wild.owner(n_vms),
            path: wild.text(),
            build_id: BuildId::new(&wild.bytes(21)),
        });
        let (n_images, n_modules) = (images.len(), modules.len());
        Tables {
            throttling: self.rows(|wild, _| Throttling {
                vm: VmId(wild.below(n_vms)),
                time: HostNs(wild.time()),
                throttled_ns: wild.u64(),
            }),
            exits: self.rows(|wild, _| ExitCount {
                vcpu: VcpuId(wild.below(n_vcpus)),
                reason: wild.u32(),
                count: wild.u64(),
            }),
            cpu_nodes: self.rows(|wild, _| CpuNode { cpu: CpuId(wild.u32()), node: wild.u32() }),
            memory: self.rows(|wild, _| VmMemory {
                vm: VmId(wild.below(n_vms)),
                time: HostNs(wild.time()),
                found: match wild.below(2) {
                    0 => NumaReading::OnNode { node: wild.u32(), bytes: wild.u64() },
                    _ => NumaReading::Unknown(wild.text()),
                },
            }),
            quota_members: self.rows(|wild, _| QuotaMember {
                quota: wild.u32(),
                vm: VmId(wild.below(n_vms)),
                vcpu: wild.maybe(|wild| VcpuId(wild.below(n_vcpus))),
                since: HostNs(wild.time()),
                until: wild.maybe(|wild| HostNs(wild.time())),
            }),
            throttled_queues: self.rows(|wild, _| ThrottledQueue {
                quota: wild.u32(),
                cpu: CpuId(wild.u32()),
                from: HostNs(wild.time()),
                to: HostNs(wild.time()),
            }),
            threads: self.rows(|wild, _| Thread {
                image: ImageId(wild.below(n_images)),
                tid: Tid(wild.u32()),
                name: wild.text(),
                fs_base: wild.maybe(|wild| GuestVirt(wild.u64())),
            }),
            mappings: self.rows(|wild, _| Mapping {
                image: ImageId(wild.below(n_images)),
                start: wild.u64(),
                end: wild.u64(),
                offset: wild.u64(),
                module: ModuleId(wild.below(n_modules)),
            }),
            symbols: self.rows(|wild, _| Symbol {
                module: ModuleId(wild.below(n_modules)),
                offset: wild.u64(),
                name: match wild.below(3) {
                    0 => SymbolName::Function(wild.text()),
                    1 => SymbolName::Stripped,
                    _ => SymbolName::Unreadable(wild.text()),
                },
            }),
            stacks: self.rows(|wild, _| Stack {
                kernel: wild.addresses(),
                user: wild.addresses(),
                guest: wild.guest_stack(),
            }),
            vms,
            vcpus,
            images,
            modules,
        }
    }

    pub(crate) fn header(&mut self) -> Header {
        Header {
            vmscope_version: self.text(),
            hostname: self.text(),
            kernel: self.text(),
            boot: self.maybe(|wild| model::BootId(std::array::from_fn(|_| wild.u32() as u8))),
            vendor: [Vendor::Amd, Vendor::Intel, Vendor::Other][self.below(3) as usize],
            trigger: [Trigger::CpuClock, Trigger::Cycles][self.below(2) as usize],
            period_ns: self.time(),
            off_cpu_source: [OffCpuSource::Samples, OffCpuSource::Switches][self.below(2) as usize],
            cpus: (0..self.below(5)).collect(),
            start: HostNs(self.time()),
            end: HostNs(self.time()),
            start_unix_ns: self.time(),
            complete: true,
            counters: (0..self.below(4)).map(|_| (self.text(), self.count())).collect(),
            notes: self.rows(|wild, _| Note { subject: wild.text(), text: wild.text() }),
        }
    }

    /// In time order, on that CPU: no two at one time.
    pub(crate) fn samples(&mut self, cpu: u32, count: usize, tables: &Tables) -> Vec<Sample> {
        let mut times = BTreeSet::new();
        while times.len() < count {
            times.insert(self.time());
        }
        times.into_iter().map(|time| self.sample(cpu, time, tables)).collect()
    }

    fn sample(&mut self, cpu: u32, time: u64, tables: &Tables) -> Sample {
        let has_vcpus = !tables.vcpus.is_empty();
        Sample {
            time: HostNs(time),
            cpu: CpuId(cpu),
            pid: Pid(self.u32()),
            tid: Tid(self.u32()),
            host_ip: HostVirt(self.u64()),
            host_mode: [HostMode::Kernel, HostMode::User][self.below(2) as usize],
            stack: self
                .maybe(|wild| StackId(wild.below(tables.stacks.len())))
                .filter(|_| !tables.stacks.is_empty()),
            vcpu: match self.below(4) {
                0 => VcpuState::None,
                2 if has_vcpus => VcpuState::Vmm(self.registers(tables.vcpus.len())),
                3 if has_vcpus => VcpuState::Guest(self.registers(tables.vcpus.len())),
                _ => VcpuState::Unknown,
            },
        }
    }

    fn registers(&mut self, n_vcpus: usize) -> VcpuSample {
        VcpuSample {
            vcpu: VcpuId(self.below(n_vcpus)),
            ip: GuestVirt(self.u64()),
            cr3: self.maybe(|wild| Cr3::new(wild.u64())),
            fs_base: GuestVirt(self.u64()),
            cpl: self.u32() as u8,
            kernel_stack: self.kernel_stack(),
            task: self.maybe(|wild| GuestTask { pid: Pid(wild.u32()), tid: Tid(wild.u32()) }),
            asid: self.u32() as u16,
            exit_reason: self.u32(),
            exit_info: self.u32(),
            waits: self.waits(),
            kicked: self.below(2) == 0,
        }
    }

    /// Of vCPUs that `tables` has, at any time.
    pub(crate) fn switches(&mut self, count: usize, tables: &Tables) -> Vec<Switch> {
        (0..count).map(|_| self.switch(tables.vcpus.len())).collect()
    }

    fn switch(&mut self, n_vcpus: usize) -> Switch {
        Switch {
            time: HostNs(self.time()),
            cpu: CpuId(self.u32()),
            vcpu: VcpuId(self.below(n_vcpus)),
            event: match self.below(4) {
                0 => SwitchEvent::Out {
                    off_cpu: self.off_cpu(),
                    pid: Pid(self.u32()),
                    tid: Tid(self.u32()),
                    exit_reason: self.u32(),
                    guest: self.maybe(Self::guest_at),
                },
                1 => SwitchEvent::In { pid: Pid(self.u32()), tid: Tid(self.u32()) },
                2 => SwitchEvent::Wake { throttled: self.below(2) == 0 },
                _ => SwitchEvent::Seen {
                    off_cpu: self.maybe(Self::off_cpu),
                    exit_reason: self.u32(),
                    waits: self.waits(),
                },
            },
        }
    }

    fn guest_at(&mut self) -> GuestRegisters {
        GuestRegisters {
            ip: GuestVirt(self.u64()),
            cr3: self.maybe(|wild| Cr3::new(wild.u64())),
            fs_base: GuestVirt(self.u64()),
            cpl: u8::try_from(self.below(256)).unwrap(),
            kernel_stack: self.kernel_stack(),
        }
    }

    fn kernel_stack(&mut self) -> Option<KernelStack> {
        self.maybe(|wild| KernelStack(wild.u32() | 1))
    }

    fn off_cpu(&mut self) -> OffCpuReason {
        use OffCpuReason::{Asleep, Halted, Paused, Runnable, Throttled};
        [Runnable, Throttled, Halted, Paused, Asleep][self.below(5) as usize]
    }

    fn waits(&mut self) -> Option<WaitCounters> {
        self.maybe(|wild| WaitCounters {
            halted_ns: wild.u64(),
            polled_ns: wild.u64(),
            runnable_ns: wild.u64(),
        })
    }

    fn vm(&mut self, row: usize) -> Vm {
        Vm {
            name: format!("{row}{}", self.text()),
            pid: Pid(self.u32()),
            started: self.maybe(|wild| HostNs(wild.time())),
            ended: self.maybe(|wild| HostNs(wild.time())),
            labels: self.labels(),
            guest: match self.below(2) {
                0 => Guest::Unmapped { reason: self.text() },
                _ => Guest::Mapped {
                    via: self.text(),
                    clock: Clock { host_minus_guest_ns: self.u64() as i64, error_ns: self.u64() },
                },
            },
        }
    }

    fn labels(&mut self) -> model::VmLabels {
        let texts = [(); 10].map(|()| self.maybe(Self::text));
        model::VmLabels::from_values(texts)
    }

    fn vcpu(&mut self, n_vms: usize) -> Vcpu {
        Vcpu {
            vm: VmId(self.below(n_vms)),
            number: self.u32(),
            tid: Tid(self.u32()),
            started: self.maybe(|wild| HostNs(wild.time())),
            ended: self.maybe(|wild| HostNs(wild.time())),
        }
    }

    fn image(&mut self, n_vms: usize) -> Image {
        Image {
            owner: self.owner(n_vms),
            kind: [ImageKind::Kernel, ImageKind::Process][self.below(2) as usize],
            pid: Pid(self.u32()),
            name: self.text(),
            cr3: self.maybe(|wild| Cr3::new(wild.u64())),
            kernel_stack: self.kernel_stack(),
            kernel_thread: self.maybe(|wild| wild.below(2) == 1),
            of_command: self.maybe(|wild| wild.below(2) == 1),
            start: self.maybe(|wild| HostNs(wild.time())),
            end: self.maybe(|wild| HostNs(wild.time())),
        }
    }

    fn owner(&mut self, n_vms: usize) -> Owner {
        self.maybe(|wild| Owner::Vm(VmId(wild.below(n_vms)))).unwrap_or(Owner::Host)
    }

    /// At least one row, so that others can refer to it.
    pub(crate) fn rows<T>(&mut self, mut row: impl FnMut(&mut Self, usize) -> T) -> Vec<T> {
        (0..1 + self.below(20) as usize).map(|idx| row(self, idx)).collect()
    }

    fn addresses(&mut self) -> Vec<HostVirt> {
        (0..self.below(5)).map(|_| HostVirt(self.u64())).collect()
    }

    fn guest_stack(&mut self) -> GuestStack {
        let mut addresses = || self.addresses().into_iter().map(|it| GuestVirt(it.0)).collect();
        let (kernel, user) = (addresses(), addresses());
        let mut end = || self.maybe(|wild| StackEnd::ALL[wild.below(StackEnd::ALL.len()) as usize]);
        GuestStack { kernel, kernel_end: end(), user, user_end: end() }
    }

    pub(crate) fn text(&mut self) -> String {
        let texts =
            ["", "a", "std::vector<T>::operator[]", "日本語", "[kernel]", "\"\\\n\0", "/x y"];
        texts[self.below(texts.len()) as usize].to_owned()
    }

    fn bytes(&mut self, limit: usize) -> Vec<u8> {
        (0..self.below(limit)).map(|_| self.u32() as u8).collect()
    }

    pub(crate) fn maybe<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(3) != 0).then(|| value(self))
    }

    pub(crate) fn below(&mut self, limit: impl TryInto<u64, Error: std::fmt::Debug>) -> u32 {
        self.0.below(limit.try_into().unwrap()) as u32
    }

    pub(crate) fn u32(&mut self) -> u32 {
        self.u64() as u32
    }

    /// Of the clock, in ns.
    pub(crate) fn time(&mut self) -> u64 {
        self.u64() >> 2
    }

    /// Of things that can be counted.
    pub(crate) fn count(&mut self) -> u64 {
        self.u64() >> 11
    }

    pub(crate) fn u64(&mut self) -> u64 {
        let random = self.0.next();
        [0, 1, u64::MAX, 1 << 63, random, random >> 32, random >> 56][self.0.below(7) as usize]
    }
}

/// All switch events of a recording, batch after batch.
pub(crate) fn read_switches(recording: &Recording) -> Vec<Switch> {
    let mut switches = Vec::new();
    recording.for_each_switch_batch(&mut |batch| switches.extend_from_slice(batch)).unwrap();
    switches
}

/// A recording of these samples, finished.
pub(crate) fn write(
    path: &Path,
    header: &Header,
    tables: &Tables,
    cpus: &[Vec<Sample>],
) -> Summary {
    spool(path, header, cpus).finish(header, tables).unwrap()
}

/// One with these switch events, too, drain by drain.
pub(crate) fn write_with_switches(
    path: &Path,
    (header, tables, cpus): &(Header, Tables, Vec<Vec<Sample>>),
    drains: &[Vec<Switch>],
) {
    let writer = spool(path, header, cpus);
    let mut spool = writer.switch_spool().unwrap();
    drains.iter().for_each(|drained| spool.append(drained).unwrap());
    writer.finish(header, tables).unwrap();
}

/// One that waits to be finished.
pub(crate) fn spool(path: &Path, header: &Header, cpus: &[Vec<Sample>]) -> Writer {
    let writer = Writer::create(path, header).unwrap();
    for samples in cpus {
        let Some(first) = samples.first() else { continue };
        let mut spool = writer.spool(first.cpu).unwrap();
        for drained in samples.chunks(7) {
            spool.append(&drained.iter().flat_map(encode).collect::<Vec<_>>()).unwrap();
        }
    }
    writer
}

pub(crate) fn read(recording: &Recording) -> Vec<Sample> {
    let mut samples = Vec::new();
    recording.for_each_batch(&mut |batch| samples.extend_from_slice(batch)).unwrap();
    samples
}

/// As a recording gives them: by time, then by CPU.
pub(crate) fn merged(cpus: &[Vec<Sample>]) -> Vec<Sample> {
    let mut all = cpus.concat();
    all.sort_by_key(|sample| (sample.time, sample.cpu));
    all
}

/// The error of opening and reading all of it, on one line as the program prints it.
pub(crate) fn failure(path: &Path) -> Option<String> {
    let read = |recording: Recording| {
        recording.for_each_batch(&mut |_| ())?;
        recording.for_each_switch_batch(&mut |_| ())
    };
    Recording::open(path).and_then(read).err().map(on_one_line)
}

fn on_one_line(error: recording::Error) -> String {
    let source = std::error::Error::source(&error);
    source.map_or(error.to_string(), |source| format!("{error}: {source}"))
}

pub(crate) fn texts(notes: &[Note]) -> Vec<&str> {
    notes.iter().map(|note| note.text.as_str()).collect()
}

/// A recording small enough to read, with one of everything.
pub(crate) fn small() -> (Header, Tables, Vec<Vec<Sample>>) {
    let header = Header {
        vmscope_version: "0.1.0".into(),
        hostname: "host1".into(),
        kernel: "6.1.0-1-amd64".into(),
        boot: None,
        vendor: Vendor::Amd,
        trigger: Trigger::CpuClock,
        period_ns: 1_000_000,
        off_cpu_source: OffCpuSource::Switches,
        cpus: vec![0, 1],
        start: HostNs(5_000_000_000),
        end: HostNs(5_003_000_000),
        start_unix_ns: 1_760_000_000_000_000_000,
        complete: true,
        counters: BTreeMap::from([("samples_dropped_cpu0".into(), 0)]),
        notes: vec![Note { subject: "vm2".into(), text: "its functions have no names".into() }],
    };
    let (vcpu, stack) = (VcpuId(0), Some(StackId(0)));
    let registers = VcpuSample {
        vcpu,
        ip: GuestVirt(0x40_1136),
        cr3: Some(Cr3::new(0x1_0ab0_4000)),
        fs_base: GuestVirt(0x7f00_0000_0740),
        cpl: 3,
        kernel_stack: None,
        task: None,
        asid: 7,
        exit_reason: 0x60,
        exit_info: 0x8000_00ec,
        waits: Some(WaitCounters { halted_ns: 9_000_000, polled_ns: 40_000, runnable_ns: 700_000 }),
        kicked: false,
    };
    let host = |time, cpu, vcpu| Sample {
        time: HostNs(time),
        cpu: CpuId(cpu),
        pid: Pid(2000),
        tid: Tid(2003),
        host_ip: HostVirt(0xffff_ffff_c0a1_2345),
        host_mode: HostMode::Kernel,
        stack: None,
        vcpu,
    };
    let in_kernel =
        VcpuSample { cpl: 0, kernel_stack: Some(KernelStack(0x2400_004b)), ..registers };
    let no_cr3 =
        VcpuSample { vcpu: VcpuId(1), cr3: None, exit_reason: 0x78, waits: None, ..in_kernel };
    let cpus = vec![
        vec![
            host(5_000_100_000, 0, VcpuState::Guest(registers)),
            host(5_001_100_007, 0, VcpuState::Vmm(no_cr3)),
        ],
        vec![
            Sample { host_mode: HostMode::User, stack, ..host(5_000_600_000, 1, VcpuState::None) },
            host(5_001_600_001, 1, VcpuState::Unknown),
        ],
    ];
    (header, small_tables(), cpus)
}

/// Events of the small recording, as two drains gave them.
pub(crate) fn small_switches() -> [Vec<Switch>; 2] {
    let at = |time, vcpu, event| Switch {
        time: HostNs(time),
        cpu: CpuId(vcpu),
        vcpu: VcpuId(vcpu),
        event,
    };
    let (pid, tid, exit_reason) = (Pid(900), Tid(901), 0x78);
    let waits =
        Some(WaitCounters { halted_ns: 8_000_000, polled_ns: 30_000, runnable_ns: 600_000 });
    let (ip, fs_base) = (GuestVirt(0x40_1000), GuestVirt(0x7f00_0000_1000));
    let (cr3, kernel_stack) = (Some(Cr3::new(0x1234_6000)), Some(KernelStack(0x2400_004c)));
    let guest = Some(GuestRegisters { ip, cr3, fs_base, cpl: 0, kernel_stack });
    let out = |off_cpu| SwitchEvent::Out {
        off_cpu,
        pid,
        tid,
        exit_reason,
        guest: guest.filter(|_| off_cpu != OffCpuReason::Halted),
    };
    [
        vec![
            at(5_000_000_100, 0, SwitchEvent::Seen { off_cpu: None, exit_reason: 0x60, waits }),
            at(5_000_200_000, 0, out(OffCpuReason::Runnable)),
            at(5_000_300_000, 0, SwitchEvent::In { pid, tid }),
            at(
                5_000_000_200,
                1,
                SwitchEvent::Seen { off_cpu: Some(OffCpuReason::Asleep), exit_reason, waits: None },
            ),
            at(5_000_250_000, 1, SwitchEvent::Wake { throttled: false }),
            at(5_000_260_000, 1, SwitchEvent::In { pid: Pid(0), tid: Tid(0) }),
        ],
        vec![
            at(5_001_200_000, 0, out(OffCpuReason::Halted)),
            at(5_001_900_000, 0, SwitchEvent::Wake { throttled: true }),
            at(5_001_100_000, 1, out(OffCpuReason::Throttled)),
        ],
    ]
}

fn small_tables() -> Tables {
    let (vm1, vm2) = (VmId(0), VmId(1));
    let clock = Clock { host_minus_guest_ns: -12_345, error_ns: 900 };
    let vm = |name: &str, pid, guest| Vm {
        name: name.into(),
        pid: Pid(pid),
        started: None,
        ended: None,
        labels: model::VmLabels::default(),
        guest,
    };
    let image = |owner, kind, pid, name: &str, cr3| Image {
        owner,
        kind,
        pid: Pid(pid),
        name: name.into(),
        cr3,
        kernel_stack: None,
        kernel_thread: None,
        of_command: None,
        start: None,
        end: Some(HostNs(5_002_000_000)),
    };
    let module = |owner, path: &str, id| Module { owner, path: path.into(), build_id: id };
    let symbol = |offset, name| Symbol { module: ModuleId(1), offset, name };
    let memory = |vm, found| VmMemory { vm, time: HostNs(5_000_000_000), found };
    Tables {
        throttling: vec![Throttling {
            vm: vm2,
            time: HostNs(5_000_500_000),
            throttled_ns: 1_234_000,
        }],
        quota_members: vec![
            QuotaMember {
                quota: 4,
                vm: vm1,
                vcpu: None,
                since: HostNs(5_000_000_000),
                until: Some(HostNs(5_001_500_000)),
            },
            QuotaMember {
                quota: 5,
                vm: vm2,
                vcpu: Some(VcpuId(1)),
                since: HostNs(5_001_000_000),
                until: None,
            },
        ],
        throttled_queues: vec![ThrottledQueue {
            quota: 5,
            cpu: CpuId(1),
            from: HostNs(5_001_100_000),
            to: HostNs(5_001_200_000),
        }],
        exits: vec![
            ExitCount { vcpu: VcpuId(0), reason: 0x60, count: 12 },
            ExitCount { vcpu: VcpuId(1), reason: 0x78, count: 3 },
        ],
        cpu_nodes: [(0, 0), (1, 1)].map(|(cpu, node)| CpuNode { cpu: CpuId(cpu), node }).to_vec(),
        memory: vec![
            memory(vm1, NumaReading::OnNode { node: 0, bytes: 3 << 20 }),
            memory(vm1, NumaReading::OnNode { node: 1, bytes: 1 << 20 }),
            memory(vm2, NumaReading::Unknown("its process has ended".into())),
        ],
        vms: vec![
            vm("vm1", 2000, Guest::Mapped { via: "vsock".into(), clock }),
            Vm {
                started: Some(HostNs(5_001_000_000)),
                ..vm("vm2", 2010, Guest::Unmapped { reason: "no vsock device".into() })
            },
        ],
        vcpus: vec![
            Vcpu { vm: vm1, number: 0, tid: Tid(2003), started: None, ended: None },
            Vcpu { vm: vm2, number: 0, tid: Tid(2013), started: None, ended: None },
        ],
        images: vec![
            image(Owner::Host, ImageKind::Kernel, 0, "6.1.0-1-amd64", None),
            image(Owner::Vm(vm1), ImageKind::Process, 71, "compute", Some(Cr3::new(0x1_0ab0_4000))),
            Image {
                kernel_stack: Some(KernelStack(0x2400_004b)),
                kernel_thread: None,
                of_command: None,
                ..image(Owner::Vm(vm2), ImageKind::Process, 12, "[ksoftirqd/0]", None)
            },
        ],
        threads: vec![Thread {
            image: ImageId(1),
            tid: Tid(71),
            name: "compute".into(),
            fs_base: Some(GuestVirt(0x7f00_0000_0740)),
        }],
        mappings: vec![Mapping {
            image: ImageId(1),
            start: 0x40_1000,
            end: 0x40_2000,
            offset: 0x1000,
            module: ModuleId(1),
        }],
        modules: vec![
            module(Owner::Host, "[kernel]", None),
            module(Owner::Vm(vm1), "/usr/bin/compute", BuildId::from_hex("c0ffee00")),
        ],
        symbols: vec![
            symbol(0x1136, SymbolName::Function("compute_a".into())),
            symbol(0x1200, SymbolName::Stripped),
            symbol(0x1300, SymbolName::Unreadable("permission denied".into())),
        ],
        stacks: vec![Stack {
            kernel: vec![HostVirt(0xffff_ffff_8100_0010), HostVirt(0xffff_ffff_8100_0020)],
            user: vec![],
            guest: GuestStack {
                kernel: vec![],
                kernel_end: None,
                user: vec![GuestVirt(0x40_1136)],
                user_end: Some(StackEnd::Cut),
            },
        }],
    }
}
