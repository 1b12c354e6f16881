use model::{Machine, MachineId, Pid, Tid, TraceTables};

use super::*;
use crate::critical_path::{Scope, critical_path};
use crate::test_timelines::DrawnTimeline;
use crate::timeline::build::random::senseless;
use crate::tree::all;

/// Threads of the host by their line's number, from 1.
fn machine(process: Option<u32>, threads: &[u32]) -> Machine {
    Machine {
        name: "a".to_owned(),
        vm_process: process.map(Pid),
        vcpu_threads: threads.iter().map(|tid| Tid(*tid)).collect(),
        ..Machine::default()
    }
}

/// Running, stolen, asleep, unknown, in characters of the drawing.
fn numbers(share: &Share) -> [u64; 4] {
    [share.running_ns, share.stolen_ns(), share.asleep_ns, share.unknown_ns].map(|ns| ns / 10)
}

#[test]
fn a_guest_cpu_over_its_thread() {
    let check = |guest: &str, thread: &str, other: &str, busy, idle, unknown| {
        let guest = DrawnTimeline::new(&[("cc1", "", guest)], &[]).timeline;
        let host = DrawnTimeline::new(&[("vcpu", "", thread), ("other", "", other)], &[]).timeline;
        let side = HostSide::new(&host, &guest, &machine(None, &[1])).unwrap();
        let cpu = &side.cpus[0];
        assert_eq!([&cpu.busy, &cpu.idle, &cpu.unknown].map(numbers), [busy, idle, unknown]);
        assert_eq!(cpu.total(), side.during(0, &(guest.begin..guest.end)));
        assert_eq!(side.tasks[0], cpu.busy);
    };
    // Busy: ran, stolen, asleep in the VMM. Idle: halted, woken late.
    check("000000aa", "0..0aaa.", "x00xxxxx", [2, 2, 2, 0], [0, 1, 1, 0], [0; 4]);
    check("0000", "0000", "xxxx", [4, 0, 0, 0], [0; 4], [0; 4]);
    // Stopped VMs sleep.
    check("00aa", "0ssx", "xxxx", [1, 0, 1, 0], [0, 0, 2, 0], [0; 4]);
    // Events of the host are missing, or its trace is shorter.
    check("0000", "0??0", "xxxx", [2, 0, 0, 2], [0; 4], [0; 4]);
    check("0000aa", "00", "xx", [2, 0, 0, 2], [0, 0, 0, 2], [0; 4]);
}

#[test]
fn thieves_have_the_cpu_that_is_waited_for() {
    let guest = DrawnTimeline::new(&[("cc1", "", "00000000")], &[]).timeline;
    let lines = [
        ("vcpu", "", "0.....0."),
        ("b", "", ".00.xxxx"),
        ("c", "", "xx.0xxx0"),
        ("d", "", "111111xx"),
    ];
    let host = DrawnTimeline::new(&lines, &[]);
    let side = HostSide::new(&host.timeline, &guest, &machine(Some(1), &[1])).unwrap();
    let (b, c) = (Some(host.id("b")), Some(host.id("c")));
    // The last wait never ends: it is for the CPU that the thread had.
    let expected = BTreeMap::from([(None, 20), (b, 20), (c, 20)]);
    assert_eq!(side.tasks[0].stolen, expected);

    let mut tables = TraceTables {
        machines: vec![Machine::default(), machine(Some(1), &[1]), machine(Some(2), &[2])],
        ..TraceTables::default()
    };
    tables.machines[2].name = "b".to_owned();
    let named = |timeline: &Timeline| {
        let found = Thieves::new(&tables, MachineId(1), timeline).sums(&side.tasks[0]);
        found.iter().map(|(thief, ns)| format!("{thief}: {ns}")).collect::<Vec<_>>()
    };
    assert_eq!(named(&host.timeline), ["VM b: 20", "c (3): 20", "idle, or not known: 20"]);
    let mut own = host.timeline.clone();
    own.tasks[1].pid = Pid(1);
    own.tasks[2].kernel = true;
    assert_eq!(named(&own), ["its own VMM: 20", "[c]: 20", "idle, or not known: 20"]);
}

#[test]
fn a_guest_cpu_when() {
    let check = |guest: &str, thread: &str, other: &str, expected: &str| {
        let guest = DrawnTimeline::new(&[("cc1", "", guest)], &[]).timeline;
        let host = DrawnTimeline::new(&[("vcpu", "", thread), ("other", "", other)], &[]).timeline;
        let side = HostSide::new(&host, &guest, &machine(None, &[1])).unwrap();
        let letter = |state| match state {
            VcpuState::Ran => 'r',
            VcpuState::Stolen(Some(_)) => 'S',
            VcpuState::Stolen(None) => 's',
            VcpuState::AsleepInVmm => 'v',
            VcpuState::Halted => 'h',
            VcpuState::Asleep => 'a',
            VcpuState::Unknown => '?',
        };
        let segments = side.cpus[0].segments.iter();
        let letters = segments.map(|it| (letter(it.state), it.length_ns() / 10));
        let text: Vec<_> = letters.map(|(letter, n)| format!("{letter}{n}")).collect();
        assert_eq!(text.join(" "), expected, "{guest:?}");
    };
    check("000000aa", "0..0aaa.", "x00xxxxx", "r1 S2 r1 v2 h1 s1");
    check("00000000", "0.......", "x00xx00x", "r1 S2 s2 S2 s1");
    check("00aa00aa", "00000000", "xxxxxxxx", "r8");
    check("0000aa", "0?", "xx", "r1 ?5");
}

#[test]
fn what_can_t_be_known() {
    let guest = DrawnTimeline::new(&[("cc1", "", "0011")], &[]).timeline;
    let host = DrawnTimeline::new(&[("vcpu", "", "0000")], &[]).timeline;
    assert_eq!(HostSide::new(&host, &guest, &Machine::default()), None);
    assert_eq!(HostSide::new(&Timeline::default(), &guest, &machine(None, &[1])), None);
    // No thread for CPU 1; and a thread id that is another process's by now.
    let side = HostSide::new(&host, &guest, &machine(None, &[1])).unwrap();
    assert_eq!(numbers(&side.tasks[0]), [2, 0, 0, 2]);
    let side = HostSide::new(&host, &guest, &machine(Some(7), &[1])).unwrap();
    assert_eq!(numbers(&side.tasks[0]), [0, 0, 0, 4]);
}

#[test]
fn tasks_and_paths() {
    let lines = [("make", "", "00aaaa00"), ("cc1", "make", " .0000  "), ("sh", "", "11111111")];
    let guest = DrawnTimeline::new(&lines, &[('a', crate::test_timelines::By::Task("cc1"))]);
    let lines = [("vcpu", "", "0.00.00x"), ("other", "", "x0xx0xxx"), ("vcpu1", "", "111111..")];
    let host = DrawnTimeline::new(&lines, &[]).timeline;
    let side = HostSide::new(&host, &guest.timeline, &machine(None, &[1, 3])).unwrap();
    let rows = side.rows(&guest.timeline, By::Name, &all(&guest.timeline));
    let rows: Vec<_> = rows.iter().map(|row| (&*row.key.name, numbers(&row.share))).collect();
    let (make, cc1, sh) = ([2, 1, 1, 0], [3, 1, 0, 0], [6, 2, 0, 0]);
    assert_eq!(rows, [("sh", sh), ("make", make), ("cc1", cc1)]);

    let scope = Scope::life(&guest.timeline, guest.id("make")).unwrap();
    let path = side.path(&critical_path(&guest.timeline, scope));
    let all = numbers(&path.running).iter().chain(&numbers(&path.waiting)).sum::<u64>();
    assert_eq!(all, 8);
    assert_eq!(path.running.stolen_ns() + path.waiting.stolen_ns(), 20);
}

#[test]
fn any_host_over_any_guest_adds_up() {
    let (mut stolen_ns, mut of_thieves_ns) = (0, 0);
    let hosts: Vec<Timeline> = senseless().collect();
    for (round, (host, guest)) in hosts.iter().zip(hosts.iter().skip(1)).enumerate() {
        let process = host.tasks.first().map(|task| task.pid).filter(|_| round % 2 == 0);
        let threads = host.tasks.iter().map(|task| task.tid).collect();
        let row = Machine { vm_process: process, vcpu_threads: threads, ..Machine::default() };
        let Some(side) = HostSide::new(host, guest, &row) else { continue };
        let wall_ns = guest.length_ns();
        assert_eq!(side.cpus.len(), guest.cpus.len());
        for cpu in &side.cpus {
            assert_eq!(cpu.total().total_ns(), wall_ns);
            assert_eq!(cpu.total(), side.during(cpu.number, &(guest.begin..guest.end)));
            let touch =
                |two: &[VcpuSegment]| two[0].end == two[1].begin && two[0].state != two[1].state;
            assert!(cpu.segments.windows(2).all(touch), "{:?}", cpu.segments);
            let ends = cpu.segments.first().zip(cpu.segments.last());
            assert!(ends.is_none_or(|(first, last)| (first.begin, last.end) == (guest.begin, guest.end)));
        }
        assert!(side.adds_up());
        assert_eq!(side.total().total().total_ns(), wall_ns * guest.cpus.len() as u64);
        for (task, share) in guest.tasks.iter().zip(&side.tasks) {
            let running = guest
                .cpus
                .iter()
                .flat_map(|cpu| &cpu.slices)
                .filter(|slice| slice.task.is_some_and(|id| guest.tasks[id.index()] == *task));
            let running: u64 = running.map(|slice| slice.length_ns()).sum();
            assert_eq!(share.total_ns(), running, "a task's time is split, nothing is added");
        }
        stolen_ns += side.total().total().stolen_ns();
        let tables = TraceTables::default();
        let thieves = Thieves::new(&tables, MachineId(1), host).sums(&side.total().total());
        let sum: u64 = thieves.iter().map(|(_, ns)| ns).sum();
        assert_eq!(sum, side.total().total().stolen_ns());
        of_thieves_ns +=
            thieves.iter().filter(|(who, _)| *who != Thief::Unknown).map(|it| it.1).sum::<u64>();
    }
    assert!(0 < of_thieves_ns && of_thieves_ns <= stolen_ns, "{of_thieves_ns} of {stolen_ns}");
}
