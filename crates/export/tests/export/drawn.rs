//! A time axis drawn with letters: a letter is a millisecond.

use analysis::vcpu_timeline::{
    CodeLocation, CodeLocationId, Occupancy, Occupant, Segment, Span, VcpuTimeline, VcpuTimelines,
};
use export::Chart;
use model::{
    CpuId, Guest, Header, HostNs, Image, ImageId, ImageKind, Mapping, ModuleId, OffCpuSource,
    Owner, Pid, Tables, Thread, Tid, TimelineState, Trigger, Vcpu, VcpuId, Vendor, Vm, VmId,
};

pub(crate) const MS: u64 = 1_000_000;
const START: u64 = 5_000 * MS;

/// States: u, s guest user in one process and another; k guest kernel; g level not known; x VM exit; w, W waiting
/// in the VMM for a reason and for none; P preempted; h halted; l halt polling; t throttled; n not sampled; ? unknown.
pub(crate) const VCPUS: [(u32, &str); 3] =
    [(0, "uuukkPPPPPPxxuuss??"), (0, "hhhlggPnnttttwwWWhh"), (1, "hhhhhPuuuuuPPhPhhhh")];

/// Who has each CPU: 0, 1, 2 the vCPUs; q a thread of VM 0's VMM; d another process; i idle; ? not known.
pub(crate) const CPUS: [&str; 2] = ["00000q22222000000??", "iii111d11iiqqiiiiii"];

/// On which CPU each vCPU is or waits.
const CPU_OF: [u32; 3] = [0, 1, 0];

/// What a chart borrows from.
#[derive(Debug)]
pub(crate) struct Drawing {
    pub(crate) axis: VcpuTimelines,
    pub(crate) tables: Tables,
    pub(crate) header: Header,
}

impl Drawing {
    pub(crate) fn chart(&self) -> Chart<'_> {
        let Self { axis, tables, header } = self;
        Chart { axis, tables, header, vm: None, vcpu: None }
    }
}

/// Two VMs, `web` with one vCPU and `db` with two, on two CPUs.
pub(crate) fn small() -> Drawing {
    let names = ["web", "db", "compute", "worker", "compute_a", "schedule", "postgres"];
    drawing(&names.map(str::to_owned), &VCPUS.map(|(_, states)| states.to_owned()), &CPUS)
}

/// The same with one name everywhere a guest or a host process has a say.
pub(crate) fn hostile(name: &str) -> Drawing {
    let states = VCPUS.map(|(_, states)| states.to_owned());
    drawing(&std::array::from_fn(|_| name.to_owned()), &states, &CPUS)
}

/// `times` as long, with everything happening again and again.
pub(crate) fn long(times: usize) -> Drawing {
    let names = ["web", "db", "compute", "worker", "compute_a", "schedule", "postgres"];
    let cpus = CPUS.map(|cpu| cpu.repeat(times));
    let states = VCPUS.map(|(_, states)| states.repeat(times));
    drawing(&names.map(str::to_owned), &states, &[&cpus[0], &cpus[1]])
}

/// A vCPU waits as long as there is, while its CPU has another owner every ms.
pub(crate) fn waiting(ms: usize) -> Drawing {
    let names = ["web", "db", "compute", "worker", "compute_a", "schedule", "postgres"];
    let states = ["P", "h", "h"].map(|state| state.repeat(ms));
    let cpus = ["qd".repeat(ms / 2), "i".repeat(ms)];
    drawing(&names.map(str::to_owned), &states, &[&cpus[0], &cpus[1]])
}

fn drawing(names: &[String; 7], states: &[String; 3], cpus: &[&str; 2]) -> Drawing {
    let length = states[0].len() as u64 * MS;
    let places = vec![
        place(&names[2], 42, &names[4], false),
        place(&names[2], 42, &names[5], true),
        place(&names[3], 43, &names[4], false),
    ];
    let timelines = states.iter().enumerate().map(|(row, states)| timeline(row, states)).collect();
    let cpus = cpus.iter().enumerate().map(|(row, who)| occupancy(row, who)).collect();
    let axis = VcpuTimelines { timelines, cpus, places, ..VcpuTimelines::default() };
    Drawing { axis, tables: tables(names), header: header(length) }
}

/// Runs of one letter: where each begins and ends, in ms.
fn runs(letters: &str) -> Vec<(char, u64, u64)> {
    let mut runs: Vec<(char, u64, u64)> = Vec::new();
    for (at, letter) in (0..).zip(letters.chars()) {
        match runs.last_mut() {
            Some((last, _, to)) if *last == letter => *to = at + 1,
            _ => runs.push((letter, at, at + 1)),
        }
    }
    runs
}

fn at(ms: u64) -> HostNs {
    HostNs(START + ms * MS)
}

fn timeline(row: usize, letters: &str) -> VcpuTimeline {
    let runs = runs(letters);
    let cpu = CpuId(CPU_OF[row]);
    let segment = |(letter, from, to): &(char, u64, u64)| {
        let (state, place) = state(*letter);
        let asleep = matches!(letter, 'w' | 'W' | 'h' | 't' | '?');
        Segment {
            from: at(*from),
            to: at(*to),
            state,
            cpu: (!asleep).then_some(cpu),
            place: place.map(CodeLocationId),
        }
    };
    let segments: Vec<Segment> = runs.iter().map(segment).collect();
    let (from, to) = (at(0), segments.last().unwrap().to);
    VcpuTimeline { vcpu: VcpuId::from_index(row), from, to, segments }
}

fn state(letter: char) -> (TimelineState, Option<u32>) {
    match letter {
        'u' => (TimelineState::GuestUser, Some(0)),
        's' => (TimelineState::GuestUser, Some(2)),
        'k' => (TimelineState::GuestKernel, Some(1)),
        'g' => (TimelineState::GuestUnknown, None),
        'x' => (TimelineState::StealVmm { reason: 0x400 }, Some(1)),
        'w' => (TimelineState::StealVmmWaiting { reason: Some(0x7b) }, None),
        'W' => (TimelineState::StealVmmWaiting { reason: None }, None),
        'P' => (TimelineState::StealOutside, None),
        'h' => (TimelineState::Halt, None),
        'l' => (TimelineState::HaltPolling, Some(1)),
        't' => (TimelineState::Throttled, None),
        'z' => (TimelineState::Paused, None),
        'n' => (TimelineState::NotSampled, None),
        '?' => (TimelineState::Unknown, None),
        other => panic!("no state is drawn {other}"),
    }
}

fn occupancy(row: usize, letters: &str) -> Occupancy {
    let span = |(letter, from, to): (char, u64, u64)| {
        let who = match letter {
            'i' => Occupant::Idle,
            'q' => Occupant::Thread(Pid(1000), Tid(1009)),
            'd' => Occupant::Thread(Pid(300), Tid(300)),
            '?' => Occupant::Unknown,
            vcpu => Occupant::Vcpu(VcpuId(vcpu.to_digit(10).unwrap())),
        };
        Span { from: at(from), to: at(to), who }
    };
    let cpu = CpuId(u32::try_from(row).unwrap());
    Occupancy::new(cpu, runs(letters).into_iter().map(span).collect())
}

fn place(process: &str, pid: u32, function: &str, kernel: bool) -> CodeLocation {
    CodeLocation {
        process: process.to_owned(),
        pid: Some(pid),
        thread: None,
        tid: None,
        function: function.to_owned(),
        callers: Vec::new(),
        kernel_callers: 0,
        module: Some(if kernel { "[kernel]".to_owned() } else { format!("/opt/{process}") }),
        build_id: None,
        kernel,
    }
}

fn tables(names: &[String; 7]) -> Tables {
    let vm = |name: &String, pid| Vm {
        name: name.clone(),
        pid: Pid(pid),
        started: None,
        ended: None,
        labels: model::VmLabels::default(),
        guest: Guest::Unmapped { reason: "drawn".to_owned() },
    };
    let image = |name: &str, pid| Image {
        owner: Owner::Host,
        kind: ImageKind::Process,
        pid: Pid(pid),
        name: name.to_owned(),
        cr3: None,
        kernel_stack: None,
        kernel_thread: None,
        of_command: None,
        start: None,
        end: None,
    };
    let vcpu =
        |vm, number, tid| Vcpu { vm: VmId(vm), number, tid: Tid(tid), started: None, ended: None };
    let code = |image| Mapping {
        image: ImageId(image),
        start: 0x1000,
        end: 0x2000,
        offset: 0,
        module: ModuleId(0),
    };
    let thread = |tid, name: &str| Thread {
        image: ImageId(0),
        tid: Tid(tid),
        name: name.to_owned(),
        fs_base: None,
    };
    Tables {
        vms: vec![vm(&names[0], 1000), vm(&names[1], 2000)],
        vcpus: vec![vcpu(0, 0, 1001), vcpu(1, 0, 2001), vcpu(1, 1, 2002)],
        images: vec![image("qemu-system-x86", 1000), image(&names[6], 300)],
        mappings: vec![code(1)],
        threads: vec![thread(1009, "iothread")],
        ..Tables::default()
    }
}

fn header(length_ns: u64) -> Header {
    Header {
        vmscope_version: "0".to_owned(),
        hostname: "kvm1".to_owned(),
        kernel: "6.1".to_owned(),
        boot: None,
        vendor: Vendor::Amd,
        trigger: Trigger::CpuClock,
        period_ns: MS,
        off_cpu_source: OffCpuSource::Switches,
        cpus: vec![0, 1],
        start: HostNs(START),
        end: HostNs(START + length_ns),
        start_unix_ns: 1_750_000_000_000_000_000,
        complete: true,
        counters: std::collections::BTreeMap::new(),
        notes: Vec::new(),
    }
}
