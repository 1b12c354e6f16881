//! What really happened on a host, and what its kernel would have recorded of it.

#![allow(dead_code, clippy::unwrap_used, clippy::cast_possible_truncation)]

pub(crate) mod simulation;

use std::collections::BTreeMap;

use analysis::Resolver;
use analysis::vcpu_timeline::{VcpuTimelines, VcpuTimelinesBuilder};
use model::{
    CpuId, Cr3, Guest, GuestVirt, Header, HostMode, HostNs, HostVirt, OffCpuReason, OffCpuSource,
    Pid, QuotaMember, RecordConsumer, Sample, Switch, SwitchEvent, Tables, ThrottledQueue,
    Throttling, Tid, Trigger, Vcpu, VcpuId, VcpuSample, VcpuState, Vendor, Vm, VmId, WaitCounters,
};

/// What a vCPU does, one letter each.
///
/// On a CPU: `k` guest kernel, `u` guest user, `v` in the VMM for an I/O exit, `p` polling for the end of a halt,
/// `l` in KVM after a halt that it has not counted yet.
/// Off: `h` halted, `w` waiting in the VMM for I/O, `z` paused by it, `r` runnable, `t` throttled.
/// Not there: `.` its VM is not, `,` its VM is.
pub(crate) type Letter = char;

pub(crate) const IO: u32 = 0x7b;
pub(crate) const HLT: u32 = 0x78;
/// Long before any counter would be 0.
const SINCE_BOOT: WaitCounters =
    WaitCounters { halted_ns: 5_000_000, polled_ns: 70_000, runnable_ns: 900_000 };

/// A stretch of what a vCPU did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Truth {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) letter: Letter,
    pub(crate) cpu: u32,
}

/// A vCPU and all it did, from 0 to the end.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    pub(crate) vm: char,
    pub(crate) number: u32,
    pub(crate) truth: Vec<Truth>,
}

/// A host.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    pub(crate) period_ns: u64,
    pub(crate) end: u64,
    pub(crate) lives: Vec<Life>,
    /// When a host thread had a pCPU.
    pub(crate) busy: BTreeMap<u32, Vec<(u64, u64)>>,
    /// When a pCPU took no interrupts, or lost the samples.
    pub(crate) missed: BTreeMap<u32, Vec<(u64, u64)>>,
    /// When a quota throttled the queues of the first VM, on all pCPUs.
    pub(crate) throttled: Vec<(u64, u64)>,
    /// When a pCPU's first interrupt comes, and how many there are.
    pub(crate) phases: Vec<u64>,
}

/// What is recorded of it.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    pub(crate) header: Header,
    pub(crate) tables: Tables,
    pub(crate) samples: Vec<Sample>,
    pub(crate) switches: Vec<Switch>,
}

impl Recorded {
    pub(crate) fn axis(&self, off_cpu_source: OffCpuSource) -> VcpuTimelines {
        let resolver = Resolver::new(&self.tables);
        let mut builder = VcpuTimelinesBuilder::new(&resolver, &self.header, off_cpu_source);
        self.samples.iter().for_each(|sample| builder.push_sample(sample));
        self.switches.iter().for_each(|switch| builder.push_switch(switch));
        builder.finish()
    }
}

pub(crate) fn is_on(letter: Letter) -> bool {
    matches!(letter, 'k' | 'u' | 'v' | 'p' | 'l')
}

fn is_asleep(letter: Letter) -> bool {
    matches!(letter, 'h' | 'w' | 'z')
}

fn is_there(letter: Letter) -> bool {
    !matches!(letter, '.' | ',')
}

impl Life {
    pub(crate) fn at(&self, time: u64) -> Option<(usize, &Truth)> {
        let number = self.truth.partition_point(|truth| truth.to <= time);
        self.truth.get(number).map(|truth| (number, truth))
    }

    /// The counters at the begin of each stretch: each wait is added when it ends.
    fn counters(&self) -> Vec<WaitCounters> {
        let mut waits = SINCE_BOOT;
        let (mut halted_from, mut queued_from) = (None, None);
        let mut before: Option<Truth> = None;
        let mut counters = Vec::new();
        for truth in &self.truth {
            let was = before.filter(|_| is_on(truth.letter));
            if was.is_some() && truth.letter != 'l' {
                // KVM's halt time ends when the thread runs again.
                waits.halted_ns += halted_from.take().map_or(0, |from| truth.from - from);
            }
            if is_on(truth.letter) {
                // From its enqueueing to its next turn on a CPU, also where its group's queue was throttled meanwhile.
                waits.runnable_ns += queued_from.take().map_or(0, |from| truth.from - from);
            }
            let polled = before.filter(|was| was.letter == 'p');
            waits.polled_ns += polled.map_or(0, |was| was.to - was.from);
            if truth.letter == 'h' {
                halted_from = halted_from.or(Some(truth.from));
            }
            if matches!(truth.letter, 'r' | 't') {
                queued_from = queued_from.or(Some(truth.from));
            }
            counters.push(waits);
            before = Some(*truth);
        }
        counters
    }

    /// The reason of the last VM exit.
    fn exit_reason(&self, number: usize) -> u32 {
        let before = self.truth[..=number].iter().rev();
        let exit =
            before.map(|truth| truth.letter).find(|l| matches!(l, 'v' | 'p' | 'l' | 'h' | 'w'));
        match exit {
            Some('v' | 'w') => IO,
            Some(_) => HLT,
            None => 0x60,
        }
    }

    fn off_cpu(letter: Letter) -> Option<OffCpuReason> {
        match letter {
            'r' => Some(OffCpuReason::Runnable),
            't' => Some(OffCpuReason::Throttled),
            'h' => Some(OffCpuReason::Halted),
            'w' => Some(OffCpuReason::Asleep),
            'z' => Some(OffCpuReason::Paused),
            _ => None,
        }
    }
}

impl Host {
    pub(crate) fn record(&self) -> Recorded {
        Recorded {
            header: self.header(),
            tables: self.tables(),
            samples: self.samples(),
            switches: self.switches(),
        }
    }

    fn header(&self) -> Header {
        Header {
            vmscope_version: String::new(),
            hostname: String::new(),
            kernel: String::new(),
            boot: None,
            vendor: Vendor::Amd,
            trigger: Trigger::CpuClock,
            period_ns: self.period_ns,
            off_cpu_source: OffCpuSource::Switches,
            cpus: (0..self.phases.len() as u32).collect(),
            start: HostNs(0),
            end: HostNs(self.end),
            start_unix_ns: 0,
            complete: true,
            counters: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    fn vms(&self) -> Vec<char> {
        let mut vms: Vec<char> = self.lives.iter().map(|life| life.vm).collect();
        vms.sort_unstable();
        vms.dedup();
        vms
    }

    fn vm_of(&self, life: &Life) -> VmId {
        VmId::from_index(self.vms().binary_search(&life.vm).unwrap())
    }

    fn tables(&self) -> Tables {
        let vms = self.vms().into_iter().map(|name| {
            let lives = || self.lives.iter().filter(|life| life.vm == name);
            let there = |truth: &&Truth| truth.letter != '.';
            let started = lives().filter_map(|l| l.truth.iter().find(there)).map(|t| t.from).min();
            let ended =
                lives().filter_map(|l| l.truth.iter().rev().find(there)).map(|t| t.to).max();
            Vm {
                name: name.to_string(),
                pid: self.pid(name),
                started: started.filter(|time| 0 < *time).map(HostNs),
                ended: ended.filter(|time| *time < self.end).map(HostNs),
                labels: model::VmLabels::default(),
                guest: Guest::Unmapped { reason: String::new() },
            }
        });
        let vcpus = self.lives.iter().enumerate();
        Tables {
            vms: vms.collect(),
            vcpus: vcpus
                .map(|(row, life)| Vcpu {
                    vm: self.vm_of(life),
                    number: life.number,
                    tid: tid(row),
                    started: None,
                    ended: None,
                })
                .collect(),
            throttling: if self.throttled.is_empty() { self.throttling() } else { Vec::new() },
            quota_members: self.quota_members(),
            throttled_queues: self.throttled_queues(),
            ..Tables::default()
        }
    }

    fn pid(&self, vm: char) -> Pid {
        Pid(100 + u32::from(vm))
    }

    fn quota_members(&self) -> Vec<QuotaMember> {
        let member =
            QuotaMember { quota: 7, vm: VmId(0), vcpu: None, since: HostNs(0), until: None };
        if self.throttled.is_empty() { Vec::new() } else { vec![member] }
    }

    fn throttled_queues(&self) -> Vec<ThrottledQueue> {
        let row = |(from, to): &(u64, u64), cpu| ThrottledQueue {
            quota: 7,
            cpu: CpuId(cpu),
            from: HostNs(*from),
            to: HostNs(*to),
        };
        let cpus = 0..self.phases.len() as u32;
        let times = self.throttled.iter();
        times.flat_map(|time| cpus.clone().map(move |cpu| row(time, cpu))).collect()
    }

    /// Each VM's throttled time, read every ten periods; each time of throttling is added when it ends.
    fn throttling(&self) -> Vec<Throttling> {
        let mut readings = Vec::new();
        for (row, name) in self.vms().into_iter().enumerate() {
            let truth = self.lives.iter().filter(|l| l.vm == name).flat_map(|l| &l.truth);
            let ended: Vec<(u64, u64)> =
                truth.filter(|t| t.letter == 't').map(|t| (t.to, t.to - t.from)).collect();
            let mut last = None;
            let times = (0..self.end).step_by(10 * self.period_ns as usize).chain([self.end]);
            for time in times.filter(|_| !ended.is_empty()) {
                let sum = ended.iter().filter(|(to, _)| *to <= time).map(|(_, ns)| ns).sum::<u64>();
                if last != Some(sum) {
                    let vm = VmId::from_index(row);
                    readings.push(Throttling { vm, time: HostNs(time), throttled_ns: sum });
                    last = Some(sum);
                }
            }
        }
        readings
    }

    fn samples(&self) -> Vec<Sample> {
        let counters: Vec<Vec<WaitCounters>> = self.lives.iter().map(Life::counters).collect();
        let mut samples = Vec::new();
        for (cpu, phase) in (0_u32..).zip(&self.phases) {
            let beats = (*phase..self.end).step_by(self.period_ns as usize);
            for time in beats.filter(|time| !covers(&self.missed, cpu, *time)) {
                samples.push(self.sample(cpu, time, &counters));
            }
        }
        samples.sort_by_key(|sample| (sample.time, sample.cpu));
        self.mark_kicked(&mut samples);
        samples
    }

    /// The first sample after each pause says that there was one.
    fn mark_kicked(&self, samples: &mut [Sample]) {
        let mut sampled = vec![0; self.lives.len()];
        for sample in samples {
            let (VcpuState::Guest(vcpu) | VcpuState::Vmm(vcpu)) = &mut sample.vcpu else {
                continue;
            };
            let before = &mut sampled[vcpu.vcpu.index()];
            let (from, to) = (std::mem::replace(before, sample.time.0), sample.time.0);
            let pauses = self.lives[vcpu.vcpu.index()].truth.iter().filter(|t| t.letter == 'z');
            vcpu.kicked = pauses.into_iter().any(|pause| from <= pause.from && pause.from < to);
        }
    }

    fn sample(&self, cpu: u32, time: u64, counters: &[Vec<WaitCounters>]) -> Sample {
        let (pid, tid, vcpu) = match self.on_cpu(cpu, time) {
            Some(row) => {
                let (pid, tid) = self.thread_of(row);
                (pid, tid, self.vcpu_state(row, time, &counters[row]))
            }
            None => {
                let (pid, tid) = self.other(cpu, time);
                (pid, tid, VcpuState::None)
            }
        };
        Sample {
            time: HostNs(time),
            cpu: CpuId(cpu),
            pid,
            tid,
            host_ip: HostVirt(0),
            host_mode: HostMode::Kernel,
            stack: None,
            vcpu,
        }
    }

    fn vcpu_state(&self, row: usize, time: u64, counters: &[WaitCounters]) -> VcpuState {
        let life = &self.lives[row];
        let (number, truth) = life.at(time).unwrap();
        let sample = VcpuSample {
            vcpu: VcpuId::from_index(row),
            ip: GuestVirt(0x40_0000),
            cr3: Some(Cr3::new(0)),
            fs_base: GuestVirt(0),
            cpl: if truth.letter == 'k' { 0 } else { 3 },
            kernel_stack: None,
            task: None,
            asid: 1,
            exit_reason: life.exit_reason(number),
            exit_info: 0,
            waits: Some(counters[number]),
            kicked: false,
        };
        match truth.letter {
            'v' | 'p' | 'l' => VcpuState::Vmm(sample),
            _ => VcpuState::Guest(sample),
        }
    }

    /// Which vCPU has a pCPU.
    fn on_cpu(&self, cpu: u32, time: u64) -> Option<usize> {
        let has = |life: &Life| {
            life.at(time).is_some_and(|(_, truth)| is_on(truth.letter) && truth.cpu == cpu)
        };
        self.lives.iter().position(has)
    }

    fn thread_of(&self, row: usize) -> (Pid, Tid) {
        (self.pid(self.lives[row].vm), tid(row))
    }

    /// Who has a pCPU that no vCPU has.
    fn other(&self, cpu: u32, time: u64) -> (Pid, Tid) {
        if covers(&self.busy, cpu, time) { (Pid(50), Tid(50)) } else { (Pid(0), Tid(0)) }
    }

    fn anybody(&self, cpu: u32, time: u64) -> (Pid, Tid) {
        let vcpu = self.on_cpu(cpu, time).map(|row| self.thread_of(row));
        vcpu.unwrap_or_else(|| self.other(cpu, time))
    }

    fn switches(&self) -> Vec<Switch> {
        let mut switches = Vec::new();
        for row in 0..self.lives.len() {
            self.switches_of(row, &mut switches);
        }
        switches
    }

    fn switches_of(&self, row: usize, switches: &mut Vec<Switch>) {
        let (life, vcpu) = (&self.lives[row], VcpuId::from_index(row));
        let counters = life.counters();
        let mut push = |time, cpu, event| {
            switches.push(Switch { time: HostNs(time), cpu: CpuId(cpu), vcpu, event });
        };
        let mut before: Option<Truth> = None;
        for (number, truth) in life.truth.iter().enumerate() {
            let (time, cpu) = (truth.from, truth.cpu);
            let exit_reason = life.exit_reason(number);
            let off_cpu = Life::off_cpu(truth.letter);
            let waits = Some(counters[number]);
            let seen = SwitchEvent::Seen { off_cpu, exit_reason, waits };
            let was = before.filter(|b| is_there(b.letter));
            match (was, is_there(truth.letter)) {
                (_, false) => {}
                (None, true) => push(time, cpu, seen),
                (Some(was), true) => {
                    let moves = is_on(truth.letter) && was.cpu != cpu;
                    let off_cpu = off_cpu.or(moves.then_some(OffCpuReason::Runnable));
                    if is_on(was.letter)
                        && let Some(off_cpu) = off_cpu
                    {
                        let (pid, tid) = self.anybody(was.cpu, time);
                        let guest = None;
                        push(
                            time,
                            was.cpu,
                            SwitchEvent::Out { off_cpu, pid, tid, exit_reason, guest },
                        );
                    }
                    if is_asleep(was.letter) {
                        push(time, cpu, SwitchEvent::Wake { throttled: truth.letter == 't' });
                    }
                    if is_on(truth.letter) && (moves || !is_on(was.letter)) {
                        let (pid, tid) = self.anybody(cpu, time.saturating_sub(1));
                        push(time, cpu, SwitchEvent::In { pid, tid });
                    }
                }
            }
            if is_there(truth.letter) && truth.to == self.end {
                push(self.end, cpu, seen);
            }
            before = Some(*truth);
        }
    }
}

fn tid(row: usize) -> Tid {
    Tid(1000 + row as u32)
}

fn covers(spans: &BTreeMap<u32, Vec<(u64, u64)>>, cpu: u32, time: u64) -> bool {
    spans.get(&cpu).is_some_and(|s| s.iter().any(|(from, to)| *from <= time && time < *to))
}
