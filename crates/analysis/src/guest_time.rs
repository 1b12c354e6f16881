//! A guest's time that no sample speaks of.
//!
//! A vCPU that never stops has one sample per period. Of those that are missing some were not taken
//! although the guest ran: the interrupt never came, or its sample was dropped.
//!
//! ```text
//!  timer   |   |   |   |   |   |   |   |   |   |   |
//!  cpu0    a   a           a    a  a   i       a   a     a: guest on vCPU a; i: idle
//!                  ^   ^        late       ^
//!            missed of a                   missed of nobody: unlike neighbours
//! ```
//!
//! The timer keeps its beat whatever it skips, so interrupts are counted by its beats, not by the time
//! between samples: a late one is close to the next, and rounding would take every late one for a missed one.

use std::collections::BTreeMap;

use model::{CpuId, Header, HostNs, Sample, Tables, Trigger, VcpuId, VcpuState, VmId};
use rustc_hash::FxHashMap;

use crate::{Selection, View};

/// Counts what each vCPU was seen to run, and what was missed of it.
#[derive(Debug)]
pub(crate) struct GuestTime<'r> {
    tables: &'r Tables,
    header: &'r Header,
    seen_of_vcpu: Vec<u64>,
    seen_unknown_vcpu: u64,
    missed: Missed,
}

/// Samples that a vCPU should have had and did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Unseen {
    pub(crate) not_running: u64,
    pub(crate) not_sampled: u64,
}

impl<'r> GuestTime<'r> {
    /// `None` where there is no whole vCPU to account for: in other views, and for one process
    /// (nobody knows whose the missing samples would have been).
    pub(crate) fn of(
        tables: &'r Tables,
        header: &'r Header,
        selection: &Selection,
    ) -> Option<Self> {
        let whole = selection.view() == View::Guest && selection.process().is_none();
        whole.then(|| Self {
            tables,
            header,
            seen_of_vcpu: vec![0; tables.vcpus.len()],
            seen_unknown_vcpu: 0,
            missed: Missed::new(header, tables.vcpus.len()),
        })
    }

    /// Every sample of the recording, each CPU's in time order.
    pub(crate) fn note_any(&mut self, sample: &Sample) {
        self.missed.push(sample);
    }

    /// A sample that the selection looks at.
    pub(crate) fn note_seen(&mut self, sample: &Sample) {
        match &sample.vcpu {
            VcpuState::Guest(vcpu) => match self.seen_of_vcpu.get_mut(vcpu.vcpu.index()) {
                Some(seen) => *seen += 1,
                None => self.seen_unknown_vcpu += 1,
            },
            VcpuState::Unknown => self.seen_unknown_vcpu += 1,
            VcpuState::None | VcpuState::Vmm(_) => {}
        }
    }

    /// What is missing of the selected vCPUs, by their number.
    pub(crate) fn unseen(&self, selection: &Selection) -> BTreeMap<u32, Unseen> {
        let mut unseen = BTreeMap::new();
        let Some(vm) = selection.vm() else {
            return unseen;
        };
        let expected = self.expected(vm);
        let rows = self.tables.vcpus.iter().zip(&self.seen_of_vcpu).zip(&self.missed.of_vcpu);
        for ((row, seen), missed) in rows {
            if row.vm == vm && selection.vcpu().is_none_or(|number| number == row.number) {
                let new = Unseen { not_running: expected, not_sampled: 0 };
                let vcpu: &mut Unseen = unseen.entry(row.number).or_insert(new);
                vcpu.not_running = vcpu.not_running.saturating_sub(*seen);
                vcpu.not_sampled = vcpu.not_sampled.saturating_add(*missed);
            }
        }
        // Nobody knows which vCPU these were on.
        let mut unknown = self.seen_unknown_vcpu;
        for vcpu in unseen.values_mut() {
            vcpu.not_sampled = vcpu.not_sampled.min(vcpu.not_running);
            vcpu.not_running -= vcpu.not_sampled;
            let taken = unknown.min(vcpu.not_running);
            vcpu.not_running -= taken;
            unknown -= taken;
        }
        unseen
    }

    /// Samples of one vCPU that never stops, while its VM was there.
    fn expected(&self, vm: VmId) -> u64 {
        let vm = &self.tables.vms[vm.index()];
        let from = vm.started.map_or(self.header.start, |t| t.max(self.header.start));
        let to = vm.ended.map_or(self.header.end, |t| t.min(self.header.end));
        rounded(to.since(from), self.header.period_ns.max(1))
    }
}

/// Interrupts that never came, by the vCPU that ran before and after. Memory: one entry per CPU.
#[derive(Debug)]
struct Missed {
    /// `None`: the trigger does not tick while a CPU is idle, so a gap means nothing.
    period_ns: Option<u64>,
    last: FxHashMap<CpuId, Interrupt>,
    of_vcpu: Vec<u64>,
}

/// The last interrupt of a CPU.
#[derive(Debug, Clone, Copy)]
struct Interrupt {
    /// The timer's beat that it belongs to, as early as samples have shown it to be.
    due: HostNs,
    /// Whose guest it interrupted.
    vcpu: Option<VcpuId>,
}

impl Missed {
    fn new(header: &Header, n_vcpus: usize) -> Self {
        let ticks = header.trigger == Trigger::CpuClock && header.period_ns > 0;
        Self {
            period_ns: ticks.then_some(header.period_ns),
            last: FxHashMap::default(),
            of_vcpu: vec![0; n_vcpus],
        }
    }

    fn push(&mut self, sample: &Sample) {
        let Some(period_ns) = self.period_ns else {
            return;
        };
        let vcpu = match &sample.vcpu {
            VcpuState::Guest(guest) => Some(guest.vcpu),
            VcpuState::None | VcpuState::Unknown | VcpuState::Vmm(_) => None,
        };
        let Some(last) = self.last.get_mut(&sample.cpu) else {
            self.last.insert(sample.cpu, Interrupt { due: sample.time, vcpu });
            return;
        };
        let beats = sample.time.since(last.due) / period_ns;
        let due = match beats {
            // Two interrupts of one beat can't be: this one came less late than any before.
            0 => sample.time,
            beats => HostNs(last.due.0 + beats * period_ns),
        };
        let before = std::mem::replace(last, Interrupt { due, vcpu });
        if let (Some(vcpu), true) = (vcpu, before.vcpu == vcpu)
            && let Some(missed) = self.of_vcpu.get_mut(vcpu.index())
        {
            *missed = missed.saturating_add(beats.saturating_sub(1));
        }
    }
}

/// How many periods, the nearest whole number.
fn rounded(ns: u64, period_ns: u64) -> u64 {
    ns.saturating_add(period_ns / 2) / period_ns
}

#[cfg(test)]
mod test {
    use model::{Cr3, Guest, GuestVirt, HostMode, HostVirt, Pid, Tid, Vcpu, VcpuSample, Vm};

    use super::*;
    use crate::testing::header;

    const PERIOD: u64 = 100;
    /// Samples in half periods.
    const STEP: u64 = PERIOD / 2;

    fn tables() -> Tables {
        let vm = |name: &str| Vm {
            name: name.to_owned(),
            pid: Pid(1),
            started: None,
            ended: None,
            guest: Guest::Unmapped { reason: String::new() },
        };
        let vcpu = |vm, number| Vcpu { vm: VmId(vm), number, tid: Tid(1) };
        Tables {
            vms: vec![vm("one"), vm("two")],
            vcpus: vec![vcpu(0, 0), vcpu(0, 1), vcpu(1, 0)],
            ..Tables::default()
        }
    }

    /// `a`, `b`: guest on vCPU 0, 1 of the first VM; `c`: of the second; `v`: VMM of `a`; `u`: a vCPU
    /// not known yet; `x`: one that is in no table; `i`: idle; a gap: no sample.
    fn sample(what: char, cpu: u32, time: u64) -> Option<Sample> {
        let guest = |row| VcpuSample {
            vcpu: VcpuId(row),
            ip: GuestVirt(0),
            cr3: Some(Cr3::new(0)),
            fs_base: GuestVirt(0),
            cpl: 3,
            asid: 1,
            exit_reason: 0,
            exit_info: 0,
            waits: None,
        };
        let vcpu = match what {
            'a' => VcpuState::Guest(guest(0)),
            'b' => VcpuState::Guest(guest(1)),
            'c' => VcpuState::Guest(guest(2)),
            'x' => VcpuState::Guest(guest(9)),
            'v' => VcpuState::Vmm(guest(0)),
            'u' => VcpuState::Unknown,
            'i' => VcpuState::None,
            _ => return None,
        };
        Some(Sample {
            time: HostNs(time),
            cpu: CpuId(cpu),
            pid: Pid(1),
            tid: Tid(1),
            host_ip: HostVirt(0),
            host_mode: HostMode::Kernel,
            stack: None,
            vcpu,
        })
    }

    /// Timelines, one per CPU, half a period per character; expected of VM `one`: its vCPUs'
    /// `number not_running+not_sampled`.
    fn check_with(trigger: Trigger, timelines: &[&str], expected: &str) {
        let length = timelines.iter().map(|line| line.len() as u64).max().unwrap();
        let (tables, header) = (tables(), Header { trigger, ..header(PERIOD, length * STEP) });
        let selection = Selection::new(&tables, View::Guest, Some("one"), None, None).unwrap();
        let mut time = GuestTime::of(&tables, &header, &selection).unwrap();
        for at in 0..length {
            for (cpu, line) in (0_u32..).zip(timelines) {
                let what = line.chars().nth(usize::try_from(at).unwrap()).unwrap_or(' ');
                if let Some(sample) = sample(what, cpu, at * STEP) {
                    time.note_any(&sample);
                    if what != 'c' {
                        time.note_seen(&sample);
                    }
                }
            }
        }
        let unseen = time.unseen(&selection).into_iter();
        let unseen: Vec<String> =
            unseen.map(|(n, u)| format!("{n} {}+{}", u.not_running, u.not_sampled)).collect();
        assert_eq!(unseen.join(", "), expected, "{timelines:?}");
    }

    fn check(timelines: &[&str], expected: &str) {
        check_with(Trigger::CpuClock, timelines, expected);
    }

    #[test]
    fn between_two_samples_of_a_vcpu_it_was_running() {
        check(&["a a a a a a "], "0 0+0, 1 6+0");
        check(&["a a     a a "], "0 0+2, 1 6+0");
        check(&["a     a     "], "0 2+2, 1 6+0");
        check(&["a a     a a ", "b b b   b b "], "0 0+2, 1 0+1");
    }

    #[test]
    fn between_unlike_neighbours_nobody_knows() {
        check(&["a a     b b "], "0 4+0, 1 4+0");
        check(&["a a     c c "], "0 4+0, 1 6+0");
        check(&["a a i   a a "], "0 2+0, 1 6+0");
        check(&["a a v   a a "], "0 2+0, 1 6+0");
        check(&["x   x   x   "], "0 3+0, 1 6+0");
        check(&["    a a     "], "0 4+0, 1 6+0");
        check(&["a a         ", "        a a "], "0 2+0, 1 6+0");
    }

    #[test]
    fn a_late_interrupt_is_not_a_missed_one() {
        check(&["a a  aa a i "], "0 1+0, 1 6+0");
        check(&["a a  a a a a "], "0 1+0, 1 7+0");
        check(&["a a      aa a i i "], "0 2+2, 1 9+0");
    }

    #[test]
    fn the_first_interrupt_may_have_been_late() {
        check(&[" aa a   a i "], "0 1+1, 1 6+0");
    }

    #[test]
    fn no_more_than_is_missing() {
        check(&["a   a   a   a   a", "a a a a a a a a a"], "0 0+0, 1 9+0");
    }

    #[test]
    fn vcpus_not_known_yet_fill_up_what_was_not_running() {
        check(&["u u a   a a "], "0 0+1, 1 6+0");
        check(&["u u u u u u ", "u   u   u u "], "0 0+0, 1 2+0");
    }

    #[test]
    fn cycles_do_not_tick_while_idle() {
        check_with(Trigger::Cycles, &["a a     a a "], "0 2+0, 1 6+0");
    }
}
