//! A host that runs vCPUs at random: what they want, and a scheduler with slices, wake-ups, moves, quotas and host threads.

use std::collections::BTreeMap;

use model::WaitCounters;

use super::{Host, Life, Truth, is_on};

/// The grain of time.
pub(crate) const GRAIN: u64 = 13_000;
pub(crate) const PERIOD: u64 = 1_000_000;
pub(crate) const N_PERIODS: u64 = 8000;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const BUSY: Load = Load {
    n_vcpus: 2,
    n_cpus: 1,
    burst: 5 * MS,
    halt: 0,
    poll: 0,
    io_wait: 0,
    in_vmm: 0,
    host_thread: 0,
    quota: 0,
    watched: false,
    slice: 3 * MS,
};

/// A linear congruential generator (Knuth's MMIX constants).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }

    /// From an eighth of `mean` to nearly twice as long.
    pub(crate) fn about(&mut self, mean: u64) -> u64 {
        mean / 8 + self.below(mean * 7 / 4).max(1)
    }

    pub(crate) fn chance(&mut self, per_cent: u64) -> bool {
        self.below(100) < per_cent
    }

    pub(crate) fn mostly(&mut self, value: u64) -> u64 {
        if self.chance(90) { value } else { u64::MAX >> self.below(64) }
    }

    pub(crate) fn waits(&mut self, waits: WaitCounters) -> Option<WaitCounters> {
        let WaitCounters { halted_ns, polled_ns, runnable_ns } = waits;
        let [halted_ns, polled_ns, runnable_ns] =
            [halted_ns, polled_ns, runnable_ns].map(|ns| self.mostly(ns));
        self.chance(90).then_some(WaitCounters { halted_ns, polled_ns, runnable_ns })
    }
}

/// What guests do, in ns on average; 0: never.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) n_vcpus: usize,
    pub(crate) n_cpus: u32,
    pub(crate) burst: u64,
    pub(crate) halt: u64,
    pub(crate) poll: u64,
    pub(crate) io_wait: u64,
    pub(crate) in_vmm: u64,
    pub(crate) host_thread: u64,
    pub(crate) quota: u64,
    /// The queues that it throttles are recorded.
    pub(crate) watched: bool,
    pub(crate) slice: u64,
}

/// What a vCPU is about to do, and for how much longer.
#[derive(Debug, Clone, Copy)]
struct Vcpu {
    letter: char,
    left: u64,
    /// Where it runs, or will.
    cpu: u32,
    /// Where it was queued.
    queue: u32,
}

/// One thread's turn on a pCPU; no thread: a host thread, or idle.
#[derive(Debug, Clone, Copy, Default)]
struct Cpu {
    vcpu: Option<usize>,
    slice: u64,
    host_thread: u64,
    host_thread_in: u64,
}

pub(crate) struct Simulation {
    load: Load,
    random: Random,
    vcpus: Vec<Vcpu>,
    /// What would run: on-CPU letters of vCPUs that wait for a CPU.
    wants: Vec<char>,
    cpus: Vec<Cpu>,
    lives: Vec<Vec<Truth>>,
    busy: BTreeMap<u32, Vec<(u64, u64)>>,
    throttled: bool,
    throttle_left: u64,
    /// When it was, if that is recorded.
    throttled_queues: Vec<(u64, u64)>,
}

impl Simulation {
    pub(crate) fn new(load: Load, seed: u64) -> Self {
        let mut random = Random(seed);
        let mut vcpus = Vec::new();
        for _ in 0..load.n_vcpus {
            let cpu = random.below(u64::from(load.n_cpus)) as u32;
            vcpus.push(Vcpu { letter: 'r', left: random.about(load.burst), cpu, queue: cpu });
        }
        let host_thread_in = if load.host_thread == 0 { u64::MAX } else { load.host_thread };
        Self {
            wants: vec!['u'; load.n_vcpus],
            cpus: vec![Cpu { host_thread_in, ..Cpu::default() }; load.n_cpus as usize],
            lives: vec![Vec::new(); load.n_vcpus],
            busy: BTreeMap::new(),
            throttled: false,
            throttle_left: load.quota.max(1),
            throttled_queues: Vec::new(),
            vcpus,
            random,
            load,
        }
    }

    pub(crate) fn run(mut self) -> Host {
        let end = N_PERIODS * PERIOD;
        let mut time = 0;
        while time < end {
            self.throttle();
            self.phases();
            (0..self.cpus.len()).for_each(|cpu| self.schedule(cpu));
            self.note(time, (time + GRAIN).min(end));
            time += GRAIN;
        }
        let lives = self.lives.into_iter().enumerate();
        let vm = |row| if row % 2 == 0 { 'a' } else { 'b' };
        let lives = lives.map(|(row, truth)| Life { vm: vm(row), number: row as u32, truth });
        Host {
            period_ns: PERIOD,
            end,
            lives: lives.collect(),
            busy: self.busy,
            missed: BTreeMap::new(),
            throttled: self.throttled_queues,
            phases: (0..self.load.n_cpus).map(|_| self.random.below(PERIOD)).collect(),
        }
    }

    /// The quota of VM `a` comes and goes.
    fn throttle(&mut self) {
        if self.load.quota == 0 {
            return;
        }
        self.throttle_left = self.throttle_left.saturating_sub(GRAIN);
        if self.throttle_left == 0 {
            self.throttled = !self.throttled;
            self.throttle_left = self.random.about(self.load.quota);
        }
    }

    fn held_back(&self, vcpu: usize) -> bool {
        self.throttled && vcpu.is_multiple_of(2)
    }

    /// Time passes for who runs or sleeps.
    fn phases(&mut self) {
        for row in 0..self.vcpus.len() {
            let vcpu = self.vcpus[row];
            if matches!(vcpu.letter, 'r' | 't') {
                continue;
            }
            let left = vcpu.left.saturating_sub(GRAIN);
            self.vcpus[row].left = left;
            if left == 0 {
                self.next_phase(row, vcpu.letter);
            }
        }
    }

    fn next_phase(&mut self, row: usize, letter: char) {
        let load = self.load;
        let poll = load.poll > 0 && self.random.chance(60);
        let (next, mean) = match letter {
            'u' | 'k' if load.io_wait > 0 && self.random.chance(20) => ('w', load.io_wait),
            'u' | 'k' if load.in_vmm > 0 && self.random.chance(30) => ('v', load.in_vmm),
            'u' | 'k' if load.halt > 0 && poll => ('p', load.poll),
            'u' | 'k' if load.halt > 0 => ('h', load.halt),
            'p' if self.random.chance(50) => ('h', load.halt),
            'u' => ('k', load.burst),
            _ => ('u', load.burst),
        };
        self.vcpus[row].left = self.random.about(mean);
        let slept = !is_on(letter);
        if is_on(next) && slept {
            // Woken, perhaps elsewhere.
            self.wants[row] = next;
            self.vcpus[row].letter = if self.held_back(row) { 't' } else { 'r' };
            self.vcpus[row].cpu = self.random.below(u64::from(load.n_cpus)) as u32;
            self.vcpus[row].queue = self.vcpus[row].cpu;
        } else {
            self.vcpus[row].letter = next;
        }
    }

    fn schedule(&mut self, cpu: usize) {
        let running = self.cpus[cpu].vcpu.filter(|row| is_on(self.vcpus[*row].letter));
        self.cpus[cpu].slice = self.cpus[cpu].slice.saturating_sub(GRAIN);
        let host_runs = self.host_thread(cpu);
        let waiting = |s: &Self, row: usize| {
            let vcpu = s.vcpus[row];
            matches!(vcpu.letter, 'r' | 't') && vcpu.cpu as usize == cpu && !s.held_back(row)
        };
        let after = running.map_or(0, |row| row + 1);
        let n = self.vcpus.len();
        let next = (0..n).map(|k| (after + k) % n).find(|row| waiting(self, *row));
        let over = self.cpus[cpu].slice == 0 && next.is_some();
        let stays = running.filter(|row| !over && !host_runs && !self.held_back(*row));
        if stays.is_some() {
            return;
        }
        if let Some(row) = running {
            self.wants[row] = self.vcpus[row].letter;
            self.vcpus[row].letter = if self.held_back(row) { 't' } else { 'r' };
            self.vcpus[row].queue = self.vcpus[row].cpu;
            if self.random.chance(10) {
                self.vcpus[row].cpu = self.random.below(u64::from(self.load.n_cpus)) as u32;
            }
        }
        self.cpus[cpu].vcpu = next.filter(|_| !host_runs);
        if let Some(row) = self.cpus[cpu].vcpu {
            self.vcpus[row].letter = self.wants[row];
            self.cpus[cpu].slice = self.random.about(self.load.slice);
        }
    }

    /// Whether a host thread has the pCPU.
    fn host_thread(&mut self, cpu: usize) -> bool {
        let mean = self.load.host_thread;
        let state = &mut self.cpus[cpu];
        if state.host_thread > 0 {
            state.host_thread = state.host_thread.saturating_sub(GRAIN);
            if state.host_thread == 0 {
                state.host_thread_in = self.random.about(5 * mean);
            }
            return state.host_thread > 0;
        }
        if state.host_thread_in != u64::MAX {
            state.host_thread_in = state.host_thread_in.saturating_sub(GRAIN);
            if state.host_thread_in == 0 {
                state.host_thread = self.random.about(mean);
                return true;
            }
        }
        false
    }

    fn note(&mut self, from: u64, to: u64) {
        if self.load.watched && self.throttled {
            match self.throttled_queues.last_mut() {
                Some(last) if last.1 == from => last.1 = to,
                _ => self.throttled_queues.push((from, to)),
            }
        }
        for (row, vcpu) in self.vcpus.iter().enumerate() {
            // Else it is what its thread was when it left its CPU.
            let letter = match vcpu.letter {
                'r' | 't' if self.load.watched => {
                    if self.held_back(row) {
                        't'
                    } else {
                        'r'
                    }
                }
                letter => letter,
            };
            let cpu = if matches!(letter, 'r' | 't') { vcpu.queue } else { vcpu.cpu };
            match self.lives[row].last_mut() {
                Some(last) if last.letter == letter && (last.cpu == cpu || letter == 'h') => {
                    last.to = to;
                }
                _ => self.lives[row].push(Truth { from, to, letter, cpu }),
            }
        }
        for (cpu, state) in (0_u32..).zip(&self.cpus) {
            if state.host_thread > 0 {
                let spans = self.busy.entry(cpu).or_default();
                match spans.last_mut() {
                    Some(last) if last.1 == from => last.1 = to,
                    _ => spans.push((from, to)),
                }
            }
        }
    }
}
