//! Timelines drawn as text in `tests/golden/analysis/axis.txt`: what really happened above the line, below it the samples
//! of each vCPU, and its states as either way to find edges has them, with the thieves in periods.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::disallowed_methods)]

mod axis_world;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use analysis::vcpu_timeline::{Occupant, VcpuTimeline, VcpuTimelines, thieves};
use axis_world::{Host, Life, Recorded, Truth};
use model::{HostNs, OffCpuSource, SwitchEvent, TimelineState, VcpuId, VcpuState, WaitCounters};

/// One character.
const STEP: u64 = 100;
/// Four characters.
const PERIOD: u64 = 4 * STEP;

/// Lines of the drawing: `NAME: LETTERS` (and `spoil: WHAT`, see `spoil`).
///
/// - `a0@1`: what vCPU 0 of VM `a` does on pCPU 1 (letters: `axis_world::Letter`); `a0`: the same, and the line
///   after it, `@`, says on which pCPU.
/// - `cpu0`: `x` where a host thread has the pCPU; else, when no vCPU has it, it idles.
/// - `missed0`: `!` where the pCPU's samples are missing.
///
/// Each pCPU is interrupted at its second character, and then at every fourth.
fn host(drawing: &str) -> Host {
    let lines = drawing.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<(&str, &str)> =
        lines.map(|line| line.split_once(": ").unwrap()).map(|(n, l)| (n.trim(), l)).collect();
    let drawn = lines.iter().filter(|(name, _)| *name != "spoil");
    let end = drawn.map(|(_, letters)| letters.len()).max().unwrap() as u64 * STEP;
    let mut host = Host {
        period_ns: PERIOD,
        end,
        lives: Vec::new(),
        busy: BTreeMap::new(),
        missed: BTreeMap::new(),
        throttled: Vec::new(),
        phases: vec![STEP + STEP / 2; 2],
    };
    for (number, (name, letters)) in lines.iter().enumerate() {
        if let Some(cpu) = name.strip_prefix("cpu") {
            host.busy.insert(cpu.parse().unwrap(), spans(letters, 'x'));
        } else if let Some(cpu) = name.strip_prefix("missed") {
            host.missed.insert(cpu.parse().unwrap(), spans(letters, '!'));
        } else if !matches!(*name, "@" | "spoil") {
            let (vcpu, cpu) = name.split_once('@').unwrap_or((name, "0"));
            let cpus = match lines.get(number + 1) {
                Some(("@", cpus)) => (*cpus).to_owned(),
                _ => cpu.repeat(letters.len()),
            };
            host.lives.push(life(vcpu, letters, &cpus));
        }
    }
    host
}

fn spans(letters: &str, wanted: char) -> Vec<(u64, u64)> {
    let at = (0_u64..).zip(letters.chars()).filter(|(_, letter)| *letter == wanted);
    at.map(|(n, _)| (n * STEP, (n + 1) * STEP)).collect()
}

fn life(vcpu: &str, letters: &str, cpus: &str) -> Life {
    let mut truth: Vec<Truth> = Vec::new();
    for ((n, letter), cpu) in (0_u64..).zip(letters.chars()).zip(cpus.chars()) {
        let (from, to, cpu) = (n * STEP, (n + 1) * STEP, cpu.to_digit(10).unwrap());
        match truth.last_mut() {
            Some(last) if (last.letter, last.cpu) == (letter, cpu) => last.to = to,
            _ => truth.push(Truth { from, to, letter, cpu }),
        }
    }
    let (vm, number) = vcpu.split_at(1);
    Life { vm: vm.chars().next().unwrap(), number: number.parse().unwrap(), truth }
}

fn letter(state: TimelineState) -> char {
    match state {
        TimelineState::GuestKernel => 'k',
        TimelineState::GuestUser => 'u',
        TimelineState::GuestUnknown => 'g',
        TimelineState::NotSampled => '~',
        TimelineState::StealVmm { .. } => 'v',
        TimelineState::StealOutside => 'r',
        TimelineState::StealVmmWaiting { reason: Some(_) } => 'w',
        TimelineState::StealVmmWaiting { reason: None } => 'W',
        TimelineState::Halt => 'h',
        TimelineState::HaltPolling => 'p',
        TimelineState::Throttled => 't',
        TimelineState::Paused => 'z',
        TimelineState::Unknown => '?',
    }
}

fn drawn(timeline: &VcpuTimeline, end: u64) -> String {
    let steps = (0..end.div_ceil(STEP)).map(|n| HostNs(n * STEP + STEP / 2));
    let at = |time| timeline.segments.iter().find(|s| s.from <= time && time < s.to);
    steps.map(|time| at(time).map_or('.', |segment| letter(segment.state))).collect()
}

/// Who had the CPU while a vCPU could not, in periods.
fn drawn_thieves(recorded: &Recorded, axis: &VcpuTimelines, timeline: &VcpuTimeline) -> String {
    let mut shares: BTreeMap<String, u64> = BTreeMap::new();
    for segment in timeline.segments.iter().filter(|s| s.state == TimelineState::StealOutside) {
        let taken = thieves(axis, timeline.vcpu, segment);
        assert_eq!(taken.iter().map(|(_, ns)| ns).sum::<u64>(), segment.length_ns());
        for (who, ns) in taken {
            let name = match who {
                Occupant::Idle => "idle".to_owned(),
                Occupant::Vcpu(vcpu) => name(recorded, vcpu),
                Occupant::Thread(pid, _) => format!("pid {pid}"),
                Occupant::Unknown => "unknown".to_owned(),
            };
            *shares.entry(name).or_default() += ns;
        }
    }
    let periods = |ns: u64| ns as f64 / PERIOD as f64;
    shares.into_iter().map(|(name, ns)| format!(" {name} {:.2}", periods(ns))).collect()
}

fn name(recorded: &Recorded, vcpu: VcpuId) -> String {
    let row = &recorded.tables.vcpus[vcpu.index()];
    let vm = recorded.tables.vms.get(row.vm.index()).map_or("-", |vm| vm.name.as_str());
    format!("{vm}{}", row.number)
}

fn assert_whole(axis: &VcpuTimelines) {
    for timeline in &axis.timelines {
        let sum: u64 = timeline.segments.iter().map(|segment| segment.length_ns()).sum();
        assert_eq!(sum, timeline.length_ns(), "{timeline:?}");
        assert!(timeline.segments.windows(2).all(|pair| pair[0].to == pair[1].from));
        assert!(timeline.segments.first().is_none_or(|first| first.from == timeline.from));
        assert!(timeline.segments.iter().all(|segment| segment.from < segment.to));
    }
}

fn axis_drawn(recorded: &Recorded, off_cpu_source: OffCpuSource) -> String {
    let (method, whose) = match off_cpu_source {
        OffCpuSource::Samples => ("samples", "samples "),
        OffCpuSource::Switches => ("switches", "switches"),
    };
    let axis = recorded.axis(off_cpu_source);
    assert_whole(&axis);
    let mut text = String::new();
    for timeline in &axis.timelines {
        let (vcpu, states) =
            (name(recorded, timeline.vcpu), drawn(timeline, recorded.header.end.0));
        let thieves = drawn_thieves(recorded, &axis, timeline);
        writeln!(text, "{whose} {vcpu}: {states}{thieves}").unwrap();
    }
    for (problem, n) in &axis.problems {
        writeln!(text, "{method}: {n} {problem}").unwrap();
    }
    text
}

/// What each vCPU's samples saw.
fn samples_drawn(recorded: &Recorded) -> String {
    let mut lines =
        vec![vec!['.'; recorded.header.end.0.div_ceil(STEP) as usize]; recorded.tables.vcpus.len()];
    for sample in &recorded.samples {
        let (vcpu, letter) = match &sample.vcpu {
            VcpuState::Guest(vcpu) => (vcpu, if vcpu.cpl == 0 { 'k' } else { 'u' }),
            VcpuState::Vmm(vcpu) => (vcpu, 'v'),
            VcpuState::None | VcpuState::Unknown => continue,
        };
        let line = lines.get_mut(vcpu.vcpu.index());
        if let Some(at) = line.and_then(|line| line.get_mut((sample.time.0 / STEP) as usize)) {
            *at = letter;
        }
    }
    let rows = lines.into_iter().enumerate();
    let text = |(row, line): (usize, Vec<char>)| {
        let line: String = line.into_iter().collect();
        format!("sampled  {}: {line}\n", name(recorded, VcpuId::from_index(row)))
    };
    rows.map(text).collect()
}

/// What goes wrong while recording.
fn spoil(recorded: &mut Recorded, how: &str) {
    let lose = |recorded: &mut Recorded, lost: fn(&SwitchEvent) -> bool| {
        recorded.switches.retain(|switch| !lost(&switch.event));
    };
    match how {
        "no In" => lose(recorded, |event| matches!(event, SwitchEvent::In { .. })),
        "no Out" => lose(recorded, |event| matches!(event, SwitchEvent::Out { .. })),
        "no Wake" => lose(recorded, |event| matches!(event, SwitchEvent::Wake { .. })),
        "no Seen" => lose(recorded, |event| matches!(event, SwitchEvent::Seen { .. })),
        "no switches" => lose(recorded, |_| true),
        "no switches but Seen" => lose(recorded, |e| !matches!(e, SwitchEvent::Seen { .. })),
        "no samples" => recorded.samples.clear(),
        "no counters" => count(recorded, |_, _| None),
        "counters go backwards" => count(recorded, |n, waits| {
            let runnable_ns = waits.runnable_ns.saturating_sub(n as u64 * 10_000);
            Some(WaitCounters { halted_ns: 0, runnable_ns, ..waits })
        }),
        "counters are huge" => count(recorded, |n, _| {
            let halted_ns = u64::MAX / 64 * n as u64;
            Some(WaitCounters { halted_ns, polled_ns: halted_ns, runnable_ns: halted_ns })
        }),
        "switches in reverse" => recorded.switches.reverse(),
        "samples in reverse" => recorded.samples.reverse(),
        "times before and after" => {
            for (sample, time) in
                recorded.samples.iter_mut().step_by(7).zip([0, u64::MAX].repeat(9))
            {
                sample.time = HostNs(time);
            }
            for (switch, time) in
                recorded.switches.iter_mut().step_by(3).zip([0, u64::MAX].repeat(9))
            {
                switch.time = HostNs(time);
            }
            recorded.header.start = HostNs(STEP);
        }
        "vCPUs in no table" => recorded.tables.vcpus.truncate(1),
        "vCPUs of no VM" => recorded.tables.vms.clear(),
        "sampled in the middle only" => {
            let (from, to) = (HostNs(8 * STEP), HostNs(recorded.header.end.0 - 8 * STEP));
            (recorded.header.start, recorded.header.end) = (from, to);
            recorded.samples.retain(|sample| from <= sample.time && sample.time <= to);
        }
        "no period" => recorded.header.period_ns = 0,
        "a period of ages" => recorded.header.period_ns = u64::MAX,
        "ends before it starts" => recorded.header.start = HostNs(u64::MAX),
        _ => panic!("spoil: {how}"),
    }
}

fn count(recorded: &mut Recorded, changed: impl Fn(usize, WaitCounters) -> Option<WaitCounters>) {
    for (number, sample) in recorded.samples.iter_mut().enumerate() {
        if let VcpuState::Guest(vcpu) | VcpuState::Vmm(vcpu) = &mut sample.vcpu {
            vcpu.waits = vcpu.waits.and_then(|waits| changed(number, waits));
        }
    }
    for switch in &mut recorded.switches {
        if let SwitchEvent::Seen { waits, .. } = &mut switch.event {
            *waits = None;
        }
    }
}

/// The drawing of a host, and those of its axes.
fn case(drawing: &str) -> String {
    let mut recorded = host(drawing).record();
    for how in drawing.lines().filter_map(|line| line.strip_prefix("spoil: ")) {
        spoil(&mut recorded, how);
    }
    let mut text = samples_drawn(&recorded);
    text += axis_drawn(&recorded, OffCpuSource::Samples).as_str();
    text += axis_drawn(&recorded, OffCpuSource::Switches).as_str();
    text
}

/// Each case: a title, a drawing, a line, what is expected.
#[test]
fn timelines() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/analysis/axis.txt");
    let golden = std::fs::read_to_string(&path).unwrap();
    let mut actual = String::new();
    let mut cases = golden.split("# ");
    actual += cases.next().unwrap();
    for text in cases {
        let (title, text) = text.split_once('\n').unwrap();
        let (drawing, _) = text.split_once("---\n").unwrap();
        write!(actual, "# {title}\n{drawing}---\n{}\n", case(drawing)).unwrap();
    }
    let actual = actual.trim_end().to_owned() + "\n";
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &actual).unwrap();
    } else {
        assert_eq!(actual, golden, "axis.txt (UPDATE=1 rewrites)");
    }
}
