//! Both ways to find edges against the truth, over random schedules.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

mod axis_world;

use std::collections::BTreeMap;

use analysis::vcpu_timeline::{Occupant, VcpuTimeline, VcpuTimelines, agreement, thieves};
use axis_world::simulation::{BUSY, Load, MS, N_PERIODS, PERIOD, Random, Simulation};
use axis_world::{Host, Life, Truth, is_on};
use model::{
    HostNs, OffCpuSource, SwitchEvent, TimeAccount, TimelineState, VcpuState, WaitCounters,
};

fn account(letter: char) -> TimeAccount {
    match letter {
        'k' | 'u' => TimeAccount::Guest,
        'v' | 'l' | 'w' => TimeAccount::StealVmm,
        'p' => TimeAccount::HaltPolling,
        'h' => TimeAccount::Halt,
        'r' => TimeAccount::StealOutside,
        't' => TimeAccount::Throttled,
        'z' => TimeAccount::Paused,
        _ => TimeAccount::Unknown,
    }
}

/// Letters of off-CPU states with their edges; what is on the CPU as one letter.
fn off_letter(state: TimelineState) -> char {
    match state {
        TimelineState::StealOutside => 'r',
        TimelineState::StealVmmWaiting { .. } => 'w',
        TimelineState::Halt => 'h',
        TimelineState::Throttled => 't',
        TimelineState::Paused => 'z',
        TimelineState::Unknown => '?',
        _ => '-',
    }
}

fn merged(stretches: impl Iterator<Item = (u64, u64, char)>) -> Vec<(u64, u64, char)> {
    let mut merged: Vec<(u64, u64, char)> = Vec::new();
    for (from, to, letter) in stretches {
        match merged.last_mut() {
            Some(last) if last.2 == letter => last.1 = to,
            _ => merged.push((from, to, letter)),
        }
    }
    merged
}

fn off_cpu(timeline: &VcpuTimeline) -> Vec<(u64, u64, char)> {
    let letters = timeline.segments.iter();
    merged(letters.map(|segment| (segment.from.0, segment.to.0, off_letter(segment.state))))
}

fn true_off_cpu(life: &Life) -> Vec<(u64, u64, char)> {
    let letter = |letter| if is_on(letter) { '-' } else { letter };
    merged(life.truth.iter().map(|truth| (truth.from, truth.to, letter(truth.letter))))
}

fn assert_whole(axis: &VcpuTimelines) {
    for timeline in &axis.timelines {
        let mut at = timeline.from;
        for segment in &timeline.segments {
            assert!(segment.from == at && at < segment.to);
            at = segment.to;
        }
        assert_eq!(at, timeline.to);
    }
    for occupancy in &axis.cpus {
        assert_eq!(occupancy.spans.first().map(|span| span.from), Some(HostNs(0)));
        assert!(occupancy.spans.windows(2).all(|pair| pair[0].to == pair[1].from));
    }
}

fn totals(timeline: &VcpuTimeline) -> BTreeMap<TimeAccount, i64> {
    let mut totals = BTreeMap::new();
    for segment in &timeline.segments {
        let account = match segment.state.account() {
            TimeAccount::NotSampled => TimeAccount::Guest,
            account => account,
        };
        *totals.entry(account).or_default() += segment.length_ns() as i64;
    }
    totals
}

fn true_totals(life: &Life) -> BTreeMap<TimeAccount, i64> {
    let mut totals = BTreeMap::new();
    for truth in &life.truth {
        *totals.entry(account(truth.letter)).or_default() += (truth.to - truth.from) as i64;
    }
    totals
}

/// Who had the pCPUs while a vCPU was runnable there. `None`: idle.
fn true_thieves(host: &Host, victim: usize) -> BTreeMap<Option<usize>, i64> {
    let mut shares: BTreeMap<Option<usize>, i64> = BTreeMap::new();
    let overlap = |a: &Truth, b: &Truth| {
        if a.cpu == b.cpu { a.to.min(b.to).saturating_sub(a.from.max(b.from)) as i64 } else { 0 }
    };
    for wait in host.lives[victim].truth.iter().filter(|truth| truth.letter == 'r') {
        let mut idle = (wait.to - wait.from) as i64;
        for (row, life) in host.lives.iter().enumerate() {
            let first = life.truth.partition_point(|truth| truth.to <= wait.from);
            let near = life.truth[first..].iter().take_while(|truth| truth.from < wait.to);
            let ns: i64 = near.filter(|truth| is_on(truth.letter)).map(|t| overlap(t, wait)).sum();
            *shares.entry(Some(row)).or_default() += ns;
            idle -= ns;
        }
        *shares.entry(None).or_default() += idle;
    }
    shares
}

fn found_thieves(axis: &VcpuTimelines, victim: usize) -> BTreeMap<Option<usize>, i64> {
    let mut shares: BTreeMap<Option<usize>, i64> = BTreeMap::new();
    let timeline = &axis.timelines[victim];
    for wait in
        timeline.segments.iter().filter(|segment| segment.state == TimelineState::StealOutside)
    {
        let taken = thieves(axis, timeline.vcpu, wait);
        assert_eq!(taken.iter().map(|(_, ns)| ns).sum::<u64>(), wait.length_ns());
        for (who, ns) in taken {
            let row = if let Occupant::Vcpu(vcpu) = who { Some(vcpu.index()) } else { None };
            *shares.entry(row).or_default() += ns as i64;
        }
    }
    shares
}

/// The largest difference of two accounts, in per cent of the wall time.
fn points<K: Ord + Copy>(found: &BTreeMap<K, i64>, truth: &BTreeMap<K, i64>) -> f64 {
    let of = |totals: &BTreeMap<K, i64>, key| totals.get(key).copied().unwrap_or(0);
    let differences = found.keys().chain(truth.keys()).map(|key| of(found, key) - of(truth, key));
    let largest = differences.map(i64::abs).max().unwrap_or(0);
    largest as f64 * 100.0 / (N_PERIODS * PERIOD) as f64
}

/// How far shares of a vCPU's time by samples may be off, in points.
const SHARES_WITHIN: f64 = 1.0;

/// `within`: how far thieves by samples may be off, in points.
fn check_with(what: &str, load: Load, within: f64) {
    for seed in 0..3 {
        let host = Simulation::new(load, seed).run();
        let recorded = host.record();
        let by_samples = recorded.axis(OffCpuSource::Samples);
        let by_switches = recorded.axis(OffCpuSource::Switches);
        for axis in [&by_samples, &by_switches] {
            assert_whole(axis);
            assert_eq!(axis.problems, []);
        }
        let agreement = agreement(&by_samples, &by_switches, PERIOD);
        for (row, life) in host.lives.iter().enumerate() {
            let what = format!("{what}, seed {seed}, vCPU {row}");
            let exact = off_cpu(&by_switches.timelines[row]) == true_off_cpu(life);
            assert!(exact, "{what}: switches tell off-CPU time exactly");
            for (axis, within) in [(&by_samples, within), (&by_switches, 0.1)] {
                let off = points(&totals(&axis.timelines[row]), &true_totals(life));
                assert!(off <= SHARES_WITHIN, "{what}: {off} points from the truth");
                let off = points(&found_thieves(axis, row), &true_thieves(&host, row));
                assert!(off <= within, "{what}: thieves {off} points from the truth");
            }
            let vcpu = &agreement.vcpus[row];
            assert!(vcpu.largest_points() <= SHARES_WITHIN, "{what}: {vcpu:?}");
            let beyond = vcpu.gaps.count - vcpu.gaps.within_period;
            assert!(20 * beyond <= vcpu.gaps.count + 20, "{what}: {vcpu:?}");
            assert!(vcpu.gaps.mean_ns() <= PERIOD / 2, "{what}: {vcpu:?}");
        }
    }
}

fn check(what: &str, load: Load) {
    check_with(what, load, 1.5);
}

/// A vCPU alone: what its guest does.
#[test]
fn alone() {
    let alone = Load { n_vcpus: 1, ..BUSY };
    check("busy", alone);
    check("halting", Load { halt: 10 * MS, ..alone });
    check("halting, short runs", Load { burst: MS / 3, halt: MS, ..alone });
    check("halting, very short runs", Load { burst: MS / 8, halt: MS / 2, ..alone });
    check("polling", Load { halt: 5 * MS, poll: MS / 5, ..alone });
    check("waiting for I/O", Load { io_wait: 8 * MS, ..alone });
    check("in the VMM", Load { in_vmm: MS / 2, burst: MS, ..alone });
    check("throttled", Load { quota: 50 * MS, ..alone });
    let watched = Load { quota: 50 * MS, watched: true, ..alone };
    check("throttled, queue watched", watched);
    check("throttled, halting, queue watched", Load { halt: 10 * MS, ..watched });
    let sleeping = Load { burst: 50 * MS, ..watched };
    check("throttled, halting for long, queue watched", Load { halt: 80 * MS, ..sleeping });
    check("throttled, waiting for I/O, queue watched", Load { io_wait: 8 * MS, ..watched });
}

/// vCPUs that share a pCPU, with each other and the host.
#[test]
fn contended() {
    check("two busy", BUSY);
    check("three busy", Load { n_vcpus: 3, ..BUSY });
    check_with("short slices", Load { n_vcpus: 3, slice: MS * 6 / 10, ..BUSY }, 3.0);
    check_with("very short slices", Load { n_vcpus: 3, slice: MS * 3 / 10, ..BUSY }, 10.0);
    check("two halting", Load { halt: 10 * MS, ..BUSY });
    check("three halting", Load { n_vcpus: 3, halt: 10 * MS, ..BUSY });
    check_with("halting, short runs", Load { burst: MS / 3, halt: MS, ..BUSY }, 4.0);
    check("polling", Load { halt: 5 * MS, poll: MS / 5, ..BUSY });
    check("waiting for I/O", Load { io_wait: 8 * MS, ..BUSY });
    check("host thread", Load { host_thread: 2 * MS, ..BUSY });
    check("throttled", Load { quota: 50 * MS, ..BUSY });
    let watched = Load { quota: 50 * MS, watched: true, ..BUSY };
    check("throttled, queue watched", watched);
    check("halting, throttled, queue watched", Load { halt: 10 * MS, ..watched });
    let three = Load { n_vcpus: 3, ..watched };
    check("three, throttled, queue watched", three);
    check("three halting, throttled, queue watched", Load { halt: 10 * MS, ..three });
    let sleeping = Load { burst: 50 * MS, ..three };
    check("three halting for long, throttled, queue watched", Load { halt: 80 * MS, ..sleeping });
    check("three waiting for I/O, throttled, queue watched", Load { io_wait: 8 * MS, ..three });
    check("three polling, throttled, queue watched", Load { halt: 5 * MS, poll: MS / 5, ..three });
}

/// Everything at once. Of a VM that also waits in the VMM, samples tell what its quota held back if its queues are
/// watched.
#[test]
fn all_at_once() {
    let all = Load {
        n_vcpus: 6,
        n_cpus: 3,
        burst: 3 * MS,
        halt: 6 * MS,
        poll: MS / 5,
        io_wait: 5 * MS,
        in_vmm: MS / 2,
        host_thread: MS,
        ..BUSY
    };
    check_with("all", all, 3.0);
    check_with("all, throttled", Load { quota: 50 * MS, watched: true, ..all }, 3.0);
}

/// Whatever a recording says, timelines stay whole and nothing panics.
#[test]
fn nonsense() {
    let host = Simulation::new(Load { n_vcpus: 3, n_cpus: 2, halt: 5 * MS, ..BUSY }, 1).run();
    let recorded = host.record();
    for seed in 0..20 {
        let mut random = Random(seed);
        let mut recorded = recorded.clone();
        recorded.samples.truncate(500);
        recorded.switches.truncate(500);
        for sample in &mut recorded.samples {
            sample.time = HostNs(random.mostly(sample.time.0));
            if let VcpuState::Guest(vcpu) = &mut sample.vcpu {
                vcpu.vcpu.0 = random.mostly(u64::from(vcpu.vcpu.0)) as u32;
                vcpu.waits = vcpu.waits.and_then(|waits| random.waits(waits));
            }
        }
        for switch in &mut recorded.switches {
            switch.time = HostNs(random.mostly(switch.time.0));
            switch.vcpu.0 = random.mostly(u64::from(switch.vcpu.0)) as u32;
            if random.chance(20) {
                let waits = random.waits(WaitCounters::default());
                switch.event = SwitchEvent::Seen { off_cpu: None, exit_reason: 0, waits };
            }
        }
        for vm in &mut recorded.tables.vms {
            vm.started = random.chance(30).then(|| HostNs(random.below(u64::MAX)));
            vm.ended = random.chance(30).then(|| HostNs(random.below(u64::MAX)));
        }
        recorded.header.period_ns = [PERIOD, 0, 1, u64::MAX][random.below(4) as usize];
        let axes = [OffCpuSource::Samples, OffCpuSource::Switches]
            .map(|off_cpu_source| recorded.axis(off_cpu_source));
        for axis in &axes {
            assert_whole(axis);
            (0..axis.timelines.len()).for_each(|row| drop(found_thieves(axis, row)));
        }
        let agreement = agreement(&axes[0], &axes[1], recorded.header.period_ns);
        assert_eq!(agreement.vcpus.len(), 3);
    }
}
