//! Timelines as drawings: a letter is a millisecond.
//!
//! ```text
//!  f g  user functions of app (1), thread 1      .  preempted      1  in the VMM for io, from f
//!  h    user function of app (1), thread 2       t  throttled      2  in the VMM for msr, from x
//!  k l  kernel functions in app (1), thread 1    w  asleep for io  3  in the VMM, interrupt, place not known
//!  n    kernel function in app (1), thread not known
//!  x    user function of other (2), thread 3     -  halted         ?  unknown
//!  m    kernel function in other (2), thread 3   ~  halt polling   _  not sampled
//!  F K  preempted, and the switch says that the guest stood in f, k; X, N alike
//! ```

use model::{
    CpuId, ExitCount, Guest, Header, HostNs, Image, ImageId, ImageKind, Mapping, ModuleId, Owner,
    Pid, Tables, Thread, Tid, TimelineState, Vcpu, VcpuId, Vm, VmId,
};

use super::TimelineInput;
use crate::vcpu_timeline::{
    CodeLocation, CodeLocationId, Occupancy, Occupant, SampleTimes, Segment, Span, VcpuTimeline,
    VcpuTimelines, same_code,
};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const IO: u32 = 0x7b;
pub(crate) const MSR: u32 = 0x7c;
pub(crate) const INTERRUPT: u32 = 0x60;
const PLACES: &str = "fghklxmnde";
pub(crate) const VM_A: VmId = VmId(0);

/// What evidence refers to.
pub(crate) struct Drawn {
    pub(crate) axis: VcpuTimelines,
    pub(crate) tables: Tables,
    pub(crate) header: Header,
}

impl Drawn {
    /// vCPUs 0 and 1 of VM a, vCPU 0 of VM b, all on CPU 0; and who had that CPU.
    pub(crate) fn new(vcpus: &[&str], cpu: &str) -> Self {
        let end = vcpus.iter().map(|line| line.len()).max().unwrap_or(0) as u64 * MS;
        let timelines = (0..).map(VcpuId).zip(vcpus).map(|(v, line)| timeline(v, line));
        let places: Vec<_> = PLACES.chars().map(place).collect();
        let axis = VcpuTimelines {
            timelines: timelines.collect(),
            cpus: vec![occupancy(cpu)],
            same_code: same_code(&places),
            places,
            samples: SampleTimes::new(vcpus.iter().map(|line| sample_times(line)).collect()),
            ..VcpuTimelines::default()
        };
        let header = crate::testing::header(MS, end);
        Self { axis, tables: tables(), header }
    }

    pub(crate) fn evidence(&self) -> TimelineInput<'_> {
        let Self { axis, tables, header } = self;
        TimelineInput { axis, tables, header }
    }

    pub(crate) fn count_exits(mut self, counts: &[(u32, u64)]) -> Self {
        let exit = |(reason, count)| ExitCount { vcpu: VcpuId(0), reason, count };
        self.tables.exits = counts.iter().copied().map(exit).collect();
        self
    }
}

fn timeline(vcpu: VcpuId, line: &str) -> VcpuTimeline {
    let mut segments: Vec<Segment> = Vec::new();
    for (at, (letter, state, place)) in (0..).zip(line.chars().map(drawn)) {
        let (from, to) = (HostNs(at * MS), HostNs((at + 1) * MS));
        match segments.last_mut() {
            Some(last) if (last.state, last.place) == (state, place) => last.to = to,
            _ => segments.push(Segment { from, to, state, cpu: cpu_of(letter), place }),
        }
    }
    let to = HostNs(line.len() as u64 * MS);
    VcpuTimeline { vcpu, from: HostNs(0), to, segments }
}

fn cpu_of(letter: char) -> Option<CpuId> {
    (!matches!(letter, '-' | 'w' | '?')).then_some(CpuId(0))
}

fn drawn(letter: char) -> (char, TimelineState, Option<CodeLocationId>) {
    let place =
        PLACES.find(letter.to_ascii_lowercase()).map(|n| CodeLocationId(u32::try_from(n).unwrap()));
    let (state, place) = match letter {
        'd' | 'e' | 'f' | 'g' | 'h' | 'x' => (TimelineState::GuestUser, place),
        'k' | 'l' | 'm' | 'n' => (TimelineState::GuestKernel, place),
        '1' => (TimelineState::StealVmm { reason: IO }, Some(CodeLocationId(0))),
        '2' => (TimelineState::StealVmm { reason: MSR }, Some(CodeLocationId(5))),
        '3' => (TimelineState::StealVmm { reason: INTERRUPT }, None),
        'w' => (TimelineState::StealVmmWaiting { reason: Some(IO) }, None),
        '.' => (TimelineState::StealOutside, None),
        'F' | 'K' | 'X' | 'N' => (TimelineState::StealOutside, place),
        't' => (TimelineState::Throttled, None),
        'z' => (TimelineState::Paused, None),
        '-' => (TimelineState::Halt, None),
        '~' => (TimelineState::HaltPolling, None),
        '_' => (TimelineState::NotSampled, None),
        '?' => (TimelineState::Unknown, None),
        other => panic!("{other}"),
    };
    (letter, state, place)
}

fn place(letter: char) -> CodeLocation {
    let (process, pid, tid) = match letter {
        'x' | 'm' => ("other", 2, Some(3)),
        'h' => ("app", 1, Some(2)),
        'n' => ("app", 1, None),
        _ => ("app", 1, Some(1)),
    };
    let kernel = matches!(letter, 'k' | 'l' | 'm' | 'n');
    let is_caller = matches!(letter, 'd' | 'e');
    CodeLocation {
        process: process.to_owned(),
        pid: Some(pid),
        thread: tid.map(|tid| format!("t{tid}")),
        tid,
        function: if is_caller { 'f' } else { letter }.to_string(),
        callers: if is_caller { vec![letter.to_string().into()] } else { Vec::new() },
        kernel_callers: 0,
        module: Some(if kernel { "[kernel]" } else { "/bin/code" }.to_owned()),
        build_id: None,
        kernel,
    }
}

/// Who has CPU 0: `0` to `2` a vCPU, `q` a thread of VM a's QEMU, `v` its vhost, which
/// is a kernel thread, `w` the same as a thread of QEMU, `p` a process, `f` one that calls itself vhost, `h` idle, `s` a kernel
/// thread, `u` an unseen process, `i` idle, `?` unknown.
fn occupancy(line: &str) -> Occupancy {
    let thread = |pid, tid| Occupant::Thread(Pid(pid), Tid(tid));
    let spans = (0..).zip(line.chars()).map(|(at, letter)| {
        let who = match letter {
            '0' | '1' | '2' => Occupant::Vcpu(VcpuId(letter.to_digit(10).unwrap())),
            'q' => thread(1000, 1005),
            'v' => thread(1050, 1050),
            'w' => thread(1000, 1006),
            'p' => thread(300, 301),
            'f' => thread(400, 400),
            'h' => thread(401, 401),
            's' => thread(14, 14),
            'u' => thread(77, 77),
            'i' => Occupant::Idle,
            '?' => Occupant::Unknown,
            other => panic!("{other}"),
        };
        Span { from: HostNs(at * MS), to: HostNs((at + 1) * MS), who }
    });
    Occupancy::new(CpuId(0), spans.collect())
}

fn tables() -> Tables {
    let vm = |name: &str, pid| Vm {
        name: name.to_owned(),
        pid: Pid(pid),
        started: None,
        ended: None,
        labels: model::VmLabels::default(),
        guest: Guest::Unmapped { reason: String::new() },
    };
    let image = |pid, name: &str| Image {
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
    let known = |kernel_thread, image| Image { kernel_thread: Some(kernel_thread), ..image };
    let vcpu =
        |vm, number, tid| Vcpu { vm: VmId(vm), number, tid: Tid(tid), started: None, ended: None };
    let thread = |image, tid, name: &str| Thread {
        image: ImageId(image),
        tid: Tid(tid),
        name: name.to_owned(),
        fs_base: None,
    };
    let code =
        |image| Mapping { image: ImageId(image), start: 0, end: 1, offset: 0, module: ModuleId(0) };
    Tables {
        vms: vec![vm("a", 1000), vm("b", 2000)],
        vcpus: vec![vcpu(0, 0, 1001), vcpu(0, 1, 1002), vcpu(1, 0, 2001)],
        images: vec![
            image(1000, "qemu-system-x86"),
            image(1050, "vhost-1000"),
            image(300, "postgres"),
            image(14, "ksoftirqd/0"),
            known(false, image(400, "vhost-1000")),
            known(false, image(401, "[idle]")),
        ],
        threads: vec![
            thread(0, 1005, "IO iothread1"),
            thread(0, 1006, "vhost-1000"),
            thread(1, 1050, "vhost-1000"),
        ],
        mappings: vec![code(0), code(2)],
        ..Tables::default()
    }
}

/// In the middle of each millisecond that a sample shows.
fn sample_times(line: &str) -> Vec<HostNs> {
    let is_sampled = |(_, state, place): (char, TimelineState, Option<CodeLocationId>)| {
        place.is_some() || matches!(state, TimelineState::StealVmm { .. })
    };
    let samples = (0..).zip(line.chars().map(drawn)).filter(|(_, drawn)| is_sampled(*drawn));
    samples.map(|(at, _)| HostNs(at * MS + MS / 2)).collect()
}
