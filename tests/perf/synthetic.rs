//! A host as the benchmarks see it: per CPU one sample per period, from VMs, host processes and idle
//! time, with skewed addresses and the jitter of a timer interrupt. The same seed gives the same host.

use model::{
    CpuId, Cr3, GuestVirt, Header, HostMode, HostNs, HostVirt, KernelStack, OffCpuReason, Pid,
    Sample, Switch, SwitchEvent, Tables, Tid, Trigger, Vcpu, VcpuId, VcpuSample, VcpuState, Vendor,
    Vm, VmId, WaitCounters,
};

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// 0..limit, small numbers far more often: about the profile of a real program.
    pub(crate) fn skewed(&mut self, limit: u64) -> u64 {
        (self.unit().powi(3) * limit as f64) as u64
    }
}

const START: u64 = 1_000_000_000_000;

pub(crate) struct Host {
    pub(crate) cpus: u32,
    pub(crate) vms: u32,
    pub(crate) period_ns: u64,
    pub(crate) seed: u64,
}

impl Host {
    pub(crate) fn samples(&self, cpu: u32, count: usize) -> Vec<Sample> {
        let mut random = Random(self.seed ^ u64::from(cpu) << 32);
        let offset = random.below(self.period_ns);
        let (mut task, mut process) = (0, 0);
        let mut waiting = Waiting::new(self, cpu);
        (0..count as u64)
            .map(|tick| {
                if random.below(6) == 0 {
                    task = random.below(u64::from(self.vms) * 2 + 4);
                    waiting.got_the_cpu(task as usize);
                }
                waiting.ran(task as usize);
                if random.below(4) == 0 {
                    process = random.below(6);
                }
                let time = START + offset + tick * self.period_ns + jitter(&mut random);
                let task = Task { task: task as u32, process, waits: waiting.of(task as usize) };
                self.sample(&mut random, CpuId(cpu), HostNs(time), task)
            })
            .collect()
    }

    /// Events of the vCPUs' threads in so much time, drain by drain; in one drain CPU after CPU.
    pub(crate) fn switches(&self, span_ns: u64) -> Vec<Vec<Switch>> {
        let mut random = Random(self.seed);
        let mut all: Vec<_> =
            (0..self.vms * 2).flat_map(|row| self.thread(&mut random, row, span_ns)).collect();
        let drain = |switch: &Switch| (switch.time.0 - START) / 200_000_000;
        all.sort_by_key(|switch| (drain(switch), switch.cpu, switch.time));
        all.chunk_by(|a, b| drain(a) == drain(b)).map(<[_]>::to_vec).collect()
    }

    /// One thread's events: it runs up to 2 ms, then mostly halts.
    fn thread(&self, random: &mut Random, row: u32, span_ns: u64) -> Vec<Switch> {
        let mut switches = Vec::new();
        let (mut time, mut cpu) = (START, row % self.cpus);
        while time < START + span_ns {
            let mut push = |time, cpu, event| {
                let (time, cpu, vcpu) = (HostNs(time), CpuId(cpu), VcpuId(row));
                switches.push(Switch { time, cpu, vcpu, event });
            };
            time += 20_000 + random.skewed(2_000_000);
            let (pid, tid) = self.other(random, row);
            let (off_cpu, exit_reason) = match random.below(10) {
                0..6 => (OffCpuReason::Halted, 0x78),
                6..9 => (OffCpuReason::Runnable, 0x60),
                _ => (OffCpuReason::Asleep, 0x400),
            };
            push(time, cpu, SwitchEvent::Out { off_cpu, pid, tid, exit_reason, guest: None });
            if off_cpu == OffCpuReason::Runnable {
                time += random.skewed(4_000_000);
            } else {
                time += 20_000 + random.skewed(5_000_000);
                if random.below(20) == 0 {
                    cpu = random.below(self.cpus.into()) as u32;
                }
                push(time, cpu, SwitchEvent::Wake { throttled: false });
            }
            time += 2_000 + random.skewed(50_000);
            let (pid, tid) = self.other(random, row);
            push(time, cpu, SwitchEvent::In { pid, tid });
        }
        switches
    }

    /// The CPU's user when vCPU `row` has not: mostly idle.
    fn other(&self, random: &mut Random, row: u32) -> (Pid, Tid) {
        let tasks = u64::from(self.vms) * 2 + 3;
        match random.below(2) {
            0 => (Pid(0), Tid(0)),
            _ => self.task((u64::from(row) + 1 + random.below(tasks - 1)) as u32 % tasks as u32),
        }
    }

    /// Process and thread of a task: the vCPUs (two per VM), then three host processes.
    fn task(&self, task: u32) -> (Pid, Tid) {
        if task < self.vms * 2 {
            return (Pid(2000 + task / 2 * 10), Tid(2003 + task / 2 * 10 + task % 2));
        }
        (Pid(900 + task * 7), Tid(900 + task * 7))
    }

    pub(crate) fn header(&self) -> Header {
        Header {
            vmscope_version: "0.1.0".into(),
            hostname: "synthetic".into(),
            kernel: "6.1.0".into(),
            boot: None,
            vendor: Vendor::Amd,
            trigger: Trigger::CpuClock,
            period_ns: self.period_ns,
            off_cpu_source: model::OffCpuSource::Samples,
            cpus: (0..self.cpus).collect(),
            start: HostNs(START),
            end: HostNs(1_060_000_000_000),
            start_unix_ns: 1_700_000_000_000_000_000,
            complete: true,
            counters: Default::default(),
            notes: vec![],
        }
    }

    pub(crate) fn tables(&self) -> Tables {
        let vm = |vm| Vm {
            name: format!("vm{vm}"),
            pid: Pid(2000 + vm * 10),
            started: None,
            ended: None,
            labels: model::VmLabels::default(),
            guest: model::Guest::Unmapped { reason: "synthetic".into() },
        };
        let vcpu = |row| Vcpu {
            vm: VmId(row / 2),
            number: row % 2,
            tid: Tid(2003 + row / 2 * 10 + row % 2),
            started: None,
            ended: None,
        };
        Tables {
            vms: (0..self.vms).map(vm).collect(),
            vcpus: (0..self.vms * 2).map(vcpu).collect(),
            ..Tables::default()
        }
    }

    /// Tasks: the vCPUs (two per VM), three host processes, the idle task.
    fn sample(
        &self,
        random: &mut Random,
        cpu: CpuId,
        time: HostNs,
        Task { task, process, waits }: Task,
    ) -> Sample {
        let vcpus = self.vms * 2;
        let kernel = HostVirt(0xffff_ffff_8100_0000 + random.skewed(800) * 0x35);
        let mut sample = Sample {
            time,
            cpu,
            pid: Pid(0),
            tid: Tid(0),
            host_ip: HostVirt(0xffff_ffff_81a0_1234),
            host_mode: HostMode::Kernel,
            stack: None,
            vcpu: VcpuState::None,
        };
        if task < vcpus {
            (sample.pid, sample.tid) = self.task(task);
            let guest = random.below(100) < 88;
            let vcpu = VcpuSample { waits, ..registers(random, task, process, guest) };
            sample.vcpu = if guest { VcpuState::Guest(vcpu) } else { VcpuState::Vmm(vcpu) };
            sample.host_ip = if guest { HostVirt(0xffff_ffff_c0a1_2345) } else { kernel };
        } else if task < vcpus + 3 {
            (sample.pid, sample.tid) = self.task(task);
            let user = random.below(10) < 7;
            sample.host_mode = if user { HostMode::User } else { HostMode::Kernel };
            let code = HostVirt(0x7f12_3400_0000 + random.skewed(300) * 9);
            sample.host_ip = if user { code } else { kernel };
        }
        sample
    }
}

/// What has the CPU.
struct Task {
    task: u32,
    process: u64,
    waits: Option<WaitCounters>,
}

/// What the vCPUs have waited for before they got one CPU; another CPU's are as if they were others.
struct Waiting {
    random: Random,
    vcpus: Vec<WaitCounters>,
}

impl Waiting {
    fn new(host: &Host, cpu: u32) -> Self {
        let mut random = Random(!host.seed ^ u64::from(cpu) << 32);
        let mut before = |limit| random.below(limit);
        let vcpus = (0..host.vms * 2).map(|_| WaitCounters {
            halted_ns: before(1 << 45),
            polled_ns: before(1 << 40),
            runnable_ns: before(1 << 42),
        });
        let vcpus = vcpus.collect();
        Self { random, vcpus }
    }

    fn of(&self, task: usize) -> Option<WaitCounters> {
        self.vcpus.get(task).copied()
    }

    /// Half of the vCPUs that get a CPU were halted, for which the host polled first; the others were
    /// preempted.
    fn got_the_cpu(&mut self, task: usize) {
        let Some(waits) = self.vcpus.get_mut(task) else { return };
        if self.random.below(2) == 0 {
            waits.halted_ns += 50_000 + self.random.below(20_000_000);
            waits.polled_ns += self.random.below(200_000);
            waits.runnable_ns += 2_000 + self.random.below(30_000);
        } else {
            waits.runnable_ns += 50_000 + self.random.below(6_000_000);
        }
    }

    /// In one period of eight a kernel thread had the CPU meanwhile; in one of twelve the guest slept a
    /// moment, mostly while the host polled.
    fn ran(&mut self, task: usize) {
        let Some(waits) = self.vcpus.get_mut(task) else { return };
        if self.random.below(8) == 0 {
            waits.runnable_ns += 3_000 + self.random.below(40_000);
        }
        if self.random.below(12) == 0 {
            waits.polled_ns += self.random.below(200_000);
            if self.random.below(3) == 0 {
                waits.halted_ns += self.random.below(300_000);
                waits.runnable_ns += 2_000 + self.random.below(10_000);
            }
        }
    }
}

/// A guest runs two tight loops, a larger program, or much of its kernel.
fn registers(random: &mut Random, row: u32, process: u64, guest: bool) -> VcpuSample {
    let (cpl, ip) = match process {
        0..=1 => (3, 0x40_1000 + random.skewed(14) * 5),
        2..=3 => (3, 0x7f00_1230_0000 + random.skewed(120) * 6),
        _ if random.below(3) == 0 => (3, 0x55d0_0000_1000 + random.skewed(60) * 4),
        _ => (0, 0xffff_ffff_9b00_0000 + random.skewed(1500) * 0x47),
    };
    let exits = [(0x78, 0), (0x400, 0), (0x7c, 0), (0x7b, 0x03f8_0220), (0x60, 0x8000_00ec)];
    let (exit_reason, exit_info) = if guest { exits[4] } else { exits[random.skewed(5) as usize] };
    // One in eight on an interrupt's stack.
    let stack = if random.below(8) == 0 { 200 } else { 3 * process as u32 };
    VcpuSample {
        vcpu: VcpuId(row),
        ip: GuestVirt(ip),
        cr3: Some(Cr3::new(0x1_0000_0000 + (u64::from(row) * 8 + process) * 0x2000)),
        fs_base: GuestVirt(0x7f33_0000_0740 + process * 0x1000),
        cpl,
        kernel_stack: (cpl == 0).then_some(KernelStack(0x2400_0000 + row * 256 + stack)),
        task: None,
        asid: row as u16 + 1,
        exit_reason,
        exit_info,
        waits: None,
        kicked: false,
    }
}

/// A timer interrupt is 1 us late, mostly; one in a hundred waits for interrupts to be enabled.
fn jitter(random: &mut Random) -> u64 {
    let tail = if random.below(100) == 0 { 30_000.0 } else { 700.0 };
    1_000 + (-random.unit().max(1e-9).ln() * tail) as u64
}
