//! A host as the benchmarks see it: per CPU one sample per period, from VMs, host processes and idle
//! time, with skewed addresses and the jitter of a timer interrupt. The same seed gives the same host.

use model::{
    CpuId, Cr3, GuestVirt, Header, HostMode, HostNs, HostVirt, Pid, Sample, Tables, Tid, Trigger,
    Vcpu, VcpuId, VcpuSample, VcpuState, Vendor, Vm, VmId,
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
    fn skewed(&mut self, limit: u64) -> u64 {
        (self.unit().powi(3) * limit as f64) as u64
    }
}

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
        (0..count as u64)
            .map(|tick| {
                if random.below(6) == 0 {
                    task = random.below(u64::from(self.vms) * 2 + 4);
                }
                if random.below(4) == 0 {
                    process = random.below(6);
                }
                let time = 1_000_000_000_000 + offset + tick * self.period_ns + jitter(&mut random);
                self.sample(&mut random, CpuId(cpu), HostNs(time), task as u32, process)
            })
            .collect()
    }

    pub(crate) fn header(&self) -> Header {
        Header {
            vmscope_version: "0.1.0".into(),
            hostname: "synthetic".into(),
            kernel: "6.1.0".into(),
            vendor: Vendor::Amd,
            trigger: Trigger::CpuClock,
            period_ns: self.period_ns,
            edges: model::Edges::Samples,
            cpus: (0..self.cpus).collect(),
            start: HostNs(1_000_000_000_000),
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
            guest: model::Guest::Unmapped { reason: "synthetic".into() },
        };
        let vcpu = |row| Vcpu {
            vm: VmId(row / 2),
            number: row % 2,
            tid: Tid(2003 + row / 2 * 10 + row % 2),
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
        task: u32,
        process: u64,
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
            (sample.pid, sample.tid) =
                (Pid(2000 + task / 2 * 10), Tid(2003 + task / 2 * 10 + task % 2));
            let guest = random.below(100) < 88;
            let vcpu = registers(random, task, process, guest);
            sample.vcpu = if guest { VcpuState::Guest(vcpu) } else { VcpuState::Vmm(vcpu) };
            sample.host_ip = if guest { HostVirt(0xffff_ffff_c0a1_2345) } else { kernel };
        } else if task < vcpus + 3 {
            (sample.pid, sample.tid) = (Pid(900 + task * 7), Tid(900 + task * 7));
            let user = random.below(10) < 7;
            sample.host_mode = if user { HostMode::User } else { HostMode::Kernel };
            let code = HostVirt(0x7f12_3400_0000 + random.skewed(300) * 9);
            sample.host_ip = if user { code } else { kernel };
        }
        sample
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
    VcpuSample {
        vcpu: VcpuId(row),
        ip: GuestVirt(ip),
        cr3: Some(Cr3::new(0x1_0000_0000 + (u64::from(row) * 8 + process) * 0x2000)),
        fs_base: GuestVirt(0x7f33_0000_0740 + process * 0x1000),
        cpl,
        asid: row + 1,
        exit_reason,
        exit_info,
        waits: None,
    }
}

/// A timer interrupt is 1 us late, mostly; one in a hundred waits for interrupts to be enabled.
fn jitter(random: &mut Random) -> u64 {
    let tail = if random.below(100) == 0 { 30_000.0 } else { 700.0 };
    1_000 + (-random.unit().max(1e-9).ln() * tail) as u64
}
