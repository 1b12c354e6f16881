//! A kernel drawn in a map of 64-bit words.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::*;

const BASE: u64 = 0xffff_8880_0000_0000;
const LAYOUT: Layout = Layout {
    tasks: 0x10,
    flags: 0x70,
    stack: 0x78,
    pid: 0x20,
    tgid: 0x24,
    comm: 0x28,
    mm: 0x38,
    exit_state: 0x68,
    start_time: 0x40,
    fs_base: 0x48,
    signal: 0x50,
    thread_node: 0x58,
    thread_head: 0x8,
    pgd: 0x18,
};

#[derive(Default)]
struct Memory {
    words: RefCell<BTreeMap<u64, u64>>,
    reads: RefCell<usize>,
    /// Set this word to this value after so many reads.
    change: Option<(usize, u64, u64)>,
}

impl KernelMemory for Memory {
    fn read(&self, address: GuestVirt, buffer: &mut [u8]) -> Option<()> {
        *self.reads.borrow_mut() += 1;
        if let Some((after, word, value)) = self.change
            && *self.reads.borrow() == after
        {
            self.words.borrow_mut().insert(word, value);
        }
        let words = self.words.borrow();
        for (byte, address) in buffer.iter_mut().zip(address.0..) {
            // Pages that have words are there.
            words.range(address & !0xfff..=address | 0xfff).next()?;
            let word = words.get(&(address & !7)).unwrap_or(&0).to_le_bytes();
            *byte = word[usize::try_from(address & 7).unwrap()];
        }
        Some(())
    }
}

/// Page `n` of the drawn kernel.
fn at(n: u64) -> u64 {
    BASE + n * 0x1000
}

/// Links list nodes to a ring.
fn ring(words: &mut BTreeMap<u64, u64>, nodes: &[u64]) {
    for (i, node) in nodes.iter().enumerate() {
        words.insert(*node, nodes[(i + 1) % nodes.len()]);
        words.insert(node + 8, nodes[(i + nodes.len() - 1) % nodes.len()]);
    }
}

/// `processes`: thread ids of each, the first is the process. Odd pages are tasks, by thread id;
/// page 0 is init_task. A process whose first id is a multiple of 100 is a kernel thread, with borrowed memory.
fn kernel(processes: &[&[u64]]) -> Memory {
    let mut words = BTreeMap::new();
    let mut leaders = vec![at(0) + LAYOUT.tasks];
    words.insert(at(0) + LAYOUT.mm, 0);
    for threads in processes {
        let (mm, signal) = (at(threads[0]) + 0x200, at(threads[0]) + 0x300);
        leaders.push(at(threads[0]) + LAYOUT.tasks);
        words.insert(mm + LAYOUT.pgd, BASE + threads[0] * 0x2000);
        let mut nodes = vec![signal + LAYOUT.thread_head];
        for tid in *threads {
            let task = at(*tid);
            nodes.push(task + LAYOUT.thread_node);
            words.insert(task + LAYOUT.pid, threads[0] << 32 | tid);
            let name = format!("t{tid:<7}").replace(' ', "\0");
            words.insert(
                task + LAYOUT.comm,
                u64::from_le_bytes(name.as_bytes().try_into().unwrap()),
            );
            words.insert(task + LAYOUT.comm + 8, 0);
            let flags = if threads[0] % 100 == 0 { PF_KTHREAD } else { 0 };
            words.insert(task + LAYOUT.mm, mm);
            words.insert(task + LAYOUT.flags, flags.into());
            words.insert(task + LAYOUT.stack, 0xffff_c900_0000_0000 + tid * 0x4000);
            words.insert(task + LAYOUT.start_time, 1000 + tid);
            words.insert(task + LAYOUT.fs_base, 0x7f00_0000 + tid);
            words.insert(task + LAYOUT.signal, signal);
        }
        ring(&mut words, &nodes);
    }
    ring(&mut words, &leaders);
    Memory { words: RefCell::new(words), ..Memory::default() }
}

fn check(memory: &Memory, expected: &[(u32, &[u32])], problem: Option<&str>) {
    let found = walk(memory, &LAYOUT, GuestVirt(at(0)), BASE);
    let processes: Vec<(u32, Vec<u32>)> = found
        .processes
        .iter()
        .map(|p| (p.pid, p.threads.iter().map(|thread| thread.tid).collect()))
        .collect();
    let expected: Vec<_> = expected.iter().map(|(pid, tids)| (*pid, tids.to_vec())).collect();
    assert_eq!((processes, found.problem), (expected, problem));
}

#[test]
fn processes_threads_and_kernel_threads_are_found() {
    let memory = kernel(&[&[1], &[100], &[7, 8, 9]]);
    check(&memory, &[(1, &[1]), (7, &[7, 8, 9])], None);
    let found = walk(&memory, &LAYOUT, GuestVirt(at(0)), BASE);
    assert_eq!(
        found.processes[1],
        Process {
            pid: 7,
            name: "t7".into(),
            cr3: 7 * 0x2000,
            start_ns: 1007,
            task: GuestVirt(at(7)),
            mm: GuestVirt(at(7) + 0x200),
            leader_has_ended: false,
            threads: [7, 8, 9]
                .map(|tid| Thread {
                    tid,
                    name: format!("t{tid}"),
                    fs_base: 0x7f00_0000 + u64::from(tid),
                    task: GuestVirt(at(tid.into())),
                })
                .to_vec(),
        }
    );
    let kernel_thread = |tid: u32, stack| KernelThread {
        tid,
        name: format!("t{tid}"),
        stack,
        start_ns: 1000 + u64::from(tid),
        task: GuestVirt(at(tid.into())),
    };
    assert_eq!(found.kernel_threads, [kernel_thread(100, 0xffff_c900_0019_0000)]);
}

#[test]
fn idle_tasks_are_found_by_cpu() {
    let memory = kernel(&[&[1], &[200], &[300]]);
    let (variable, offsets) = (0x1_f8c8, at(90));
    let idle = IdleTasks { variable: GuestVirt(variable), offsets: GuestVirt(offsets) };
    // CPU 0 has task 200, CPU 2 task 300; CPU 1 has none, CPU 3 no memory.
    for (cpu, task) in [(0, at(200)), (1, 0), (2, at(300))] {
        memory.words.borrow_mut().insert(offsets + cpu * 8, at(50 + cpu) - variable);
        memory.words.borrow_mut().insert(at(50 + cpu), task);
    }
    let found = idle_tasks(&memory, &LAYOUT, &idle, &[0, 1, 2, 3, u32::MAX]);
    let drawn: Vec<_> = found.iter().map(|task| (task.tid, &*task.name)).collect();
    assert_eq!(drawn, [(0, "t200"), (0, "t300")]);
}

#[test]
fn a_ring_that_never_comes_back_ends() {
    let memory = kernel(&[&[1], &[7], &[8]]);
    // 8's next is 7 again: its `prev` is not 8.
    memory.words.borrow_mut().insert(at(8) + LAYOUT.tasks, at(7) + LAYOUT.tasks);
    let astray = Some("the kernel's list of tasks changed while it was read");
    check(&memory, &[(1, &[1]), (7, &[7]), (8, &[8])], astray);
}

#[test]
fn an_endless_ring_is_cut_off() {
    let memory = kernel(&[&[1]]);
    let head = at(1) + LAYOUT.tasks;
    // The list enters a ring of one that does not hold the head.
    memory.words.borrow_mut().insert(head, head);
    memory.words.borrow_mut().insert(head + 8, at(0) + LAYOUT.tasks);
    let found = walk(&memory, &LAYOUT, GuestVirt(at(0)), BASE);
    assert!(found.problem.is_some());
    assert!(*memory.reads.borrow() < 20 * MAX_STEPS);
}

#[test]
fn pointers_to_user_memory_or_nowhere_are_not_followed() {
    for wild in [0, 0x5555_0000_0000, 0xffff_8880_dead_0000] {
        let memory = kernel(&[&[1], &[7]]);
        memory.words.borrow_mut().insert(at(1) + LAYOUT.tasks, wild);
        check(&memory, &[(1, &[1])], Some("the kernel's list of tasks changed while it was read"));
    }
}

#[test]
fn a_list_that_changes_under_the_walk_is_walked_again() {
    // While it is read, the node after 1 becomes wild, and is repaired during the next attempt.
    let mut memory = kernel(&[&[1], &[7]]);
    let word = at(1) + LAYOUT.tasks;
    let right = memory.words.borrow()[&word];
    memory.words.borrow_mut().insert(word, 0xffff_8880_dead_0000);
    memory.change = Some((20, word, right));
    check(&memory, &[(1, &[1]), (7, &[7])], None);
}

#[test]
fn a_process_outlives_its_first_thread() {
    let memory = kernel(&[&[1], &[7, 8, 9]]);
    memory.words.borrow_mut().insert(at(7) + LAYOUT.mm, 0);
    memory.words.borrow_mut().insert(at(7) + LAYOUT.exit_state, 0x20);
    let found = walk(&memory, &LAYOUT, GuestVirt(at(0)), BASE);
    let process = &found.processes[1];
    assert_eq!((process.pid, process.mm, process.cr3), (7, GuestVirt(at(7) + 0x200), 7 * 0x2000));
    assert!(process.leader_has_ended && process.threads.len() == 3);
    // Without any memory it is gone.
    for tid in [8, 9] {
        memory.words.borrow_mut().insert(at(tid) + LAYOUT.mm, 0);
    }
    check(&memory, &[(1, &[1])], None);
}

#[test]
fn a_process_that_changes_is_read_again_or_left_out() {
    // Memory is another one after so many reads: a program began.
    let (word, new) = (at(7) + LAYOUT.mm, at(1) + 0x200);
    for after in 0..30 {
        let mut memory = kernel(&[&[1], &[7]]);
        memory.change = Some((after, word, new));
        let found = walk(&memory, &LAYOUT, GuestVirt(at(0)), BASE);
        let process = &found.processes[1];
        let cr3 = if process.mm.0 == new { 0x2000 } else { 7 * 0x2000 };
        assert_eq!(process.cr3, cr3, "after {after}");
    }
    // One that is not its group's first never adds up.
    let memory = kernel(&[&[1], &[7]]);
    memory.words.borrow_mut().insert(at(7) + LAYOUT.pid, 8 << 32 | 7);
    let found = walk(&memory, &LAYOUT, GuestVirt(at(0)), BASE);
    assert_eq!((found.processes.len(), found.n_changing), (1, 1));
}

#[test]
fn new_processes_are_walked_until_a_known_one() {
    let memory = kernel(&[&[1], &[7], &[100], &[8, 9]]);
    let known = |pid: u32| {
        let is_known = move |key: TaskKey| {
            assert_eq!(
                (key.task, key.start_ns),
                (GuestVirt(at(key.pid.into())), 1000 + u64::from(key.pid))
            );
            key.pid == pid
        };
        let found = walk_new(&memory, &LAYOUT, GuestVirt(at(0)), BASE, &is_known);
        assert_eq!(found.problem, None);
        let pids: Vec<u32> = found.processes.iter().map(|process| process.pid).collect();
        (pids, found.kernel_threads.len())
    };
    assert_eq!(known(8), (vec![], 0));
    assert_eq!(known(7), (vec![8], 1));
    assert_eq!(known(99), (vec![8, 7, 1], 1));
}
