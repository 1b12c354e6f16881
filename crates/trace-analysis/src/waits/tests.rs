//! Stacks are those that Linux 6.1, 6.12 and 6.18 were seen to leave, innermost function first.

use model::{
    BlockOp, HostNs, Interrupt, LockKind, MachineId, Pid, Tid, TraceStack, TraceTables, TraceTask,
    Vector,
};

use super::*;
use crate::group::By;
use crate::test_timelines::{Random, at_random};
use crate::timeline::{
    LockWait, Request, Segments, Sleep, State, Task, TaskId, Timeline, Waker, WokenBy,
};
use crate::tree::all;

const HERE: MachineId = MachineId::HOST;

/// Tables with these stacks, numbered from 0.
fn tables(stacks: &[&str]) -> TraceTables {
    let stack = |(number, stack): (u32, &&str)| {
        let functions = stack.split_whitespace().map(str::to_owned).collect();
        (HERE, TraceStack(number), functions)
    };
    TraceTables { stacks: (0..).zip(stacks).map(stack).collect(), ..TraceTables::default() }
}

/// Task 0 `app` in a state for 10 ns; task 1 `other`, which made requests of all kinds.
fn timeline(state: State) -> Timeline {
    let segment = |state| {
        let mut segments = Segments::beginning(HostNs(0));
        segments.push(HostNs(10), state);
        segments
    };
    let request = |op| Request {
        disk: 0,
        op,
        bytes: 512,
        queued: HostNs(1),
        issued: None,
        done: Some(HostNs(9)),
        lower: None,
        for_loop: false,
    };
    let task = |tid, name: &str, state| Task {
        tid: Tid(tid),
        pid: Pid(tid),
        parent: None,
        parent_pid: Pid(0),
        names: vec![(HostNs(0), name.to_owned())],
        kernel: false,
        begin: HostNs(0),
        end: HostNs(10),
        before: true,
        exited: false,
        segments: segment(state),
        requests: Vec::new(),
    };
    let ops = [BlockOp::Read, BlockOp::Write, BlockOp::Flush, BlockOp::Discard];
    let mut other = task(2, "other", State::Running { cpu: 0 });
    other.requests = ops.map(request).into();
    let disk = crate::timeline::Disk { name: "vda".to_owned(), ..Default::default() };
    Timeline {
        end: HostNs(10),
        tasks: vec![task(1, "app", state), other],
        disks: vec![disk],
        ..Timeline::default()
    }
}

fn wait_of<'a>(classifier: &'a Classifier, timeline: &Timeline) -> Wait<'a> {
    let task = &timeline.tasks[0];
    classifier.wait(timeline, task, &task.segments.get(0).unwrap()).unwrap()
}

/// A sleep with this stack: the cause, and the function that tells.
fn check(stack: &str, cause: &str, function: &str) {
    check_task(stack, false, cause, function);
}

fn check_kernel(stack: &str, cause: &str, function: &str) {
    check_task(stack, true, cause, function);
}

fn check_task(stack: &str, kernel: bool, cause: &str, function: &str) {
    let classifier = Classifier::new(&tables(&[stack]), HERE);
    let sleep = Sleep { stack: Some(TraceStack(0)), ..Sleep::default() };
    let mut timeline = timeline(State::Asleep(sleep));
    timeline.tasks[0].kernel = kernel;
    let wait = wait_of(&classifier, &timeline);
    assert_eq!((wait.cause.name(), wait.function), (cause, function), "{stack}");
}

#[test]
fn disks() {
    check(
        "__schedule schedule io_schedule folio_wait_bit_common filemap_get_pages filemap_read vfs_read \
         __x64_sys_pread64 do_syscall_64 entry_SYSCALL_64_after_hwframe",
        "disk read",
        "filemap_get_pages",
    );
    check(
        "schedule io_schedule bit_wait_io __wait_on_bit out_of_line_wait_on_bit ext4_read_bh ext4_bread \
         __ext4_read_dirblock htree_dirblock_to_tree ext4_htree_fill_tree ext4_readdir iterate_dir",
        "disk read",
        "ext4_read_bh",
    );
    check(
        "schedule io_schedule bit_wait_io __wait_on_bit out_of_line_wait_on_bit __sync_dirty_buffer \
         ext4_write_inode __writeback_single_inode writeback_single_inode ext4_sync_file do_fsync",
        "disk write",
        "__sync_dirty_buffer",
    );
    check(
        "schedule schedule_timeout io_schedule_timeout wait_for_completion_io_timeout submit_bio_wait \
         blkdev_issue_flush ext4_sync_file do_fsync __x64_sys_fsync",
        "disk flush",
        "blkdev_issue_flush",
    );
    check(
        "schedule schedule_timeout io_schedule_timeout wait_for_completion_io_timeout submit_bio_wait \
         blkdev_issue_discard blkdev_common_ioctl blkdev_ioctl __x64_sys_ioctl",
        "disk discard",
        "blkdev_issue_discard",
    );
    check(
        "schedule io_schedule rq_qos_wait wbt_wait blk_mq_submit_bio",
        "disk write",
        "rq_qos_wait",
    );
    check("io_schedule something_new __x64_sys_read do_syscall_64", "disk read", "io_schedule");
    check("io_schedule something_new __x64_sys_ioctl do_syscall_64", "disk", "io_schedule");
    check("schedule io_schedule read_a_pipe pipe_read", "disk", "io_schedule");
}

#[test]
fn page_faults() {
    check(
        "__schedule schedule io_schedule folio_wait_bit_common filemap_fault __do_fault do_fault \
         __handle_mm_fault handle_mm_fault exc_page_fault asm_exc_page_fault",
        "page fault (disk)",
        "filemap_fault",
    );
    check(
        "schedule io_schedule blk_mq_get_tag __blk_mq_alloc_requests ext4_mpage_readpages read_pages \
         page_cache_ra_unbounded filemap_fault __do_fault handle_mm_fault exc_page_fault",
        "page fault (disk)",
        "ext4_mpage_readpages",
    );
    check(
        "schedule handle_userfault do_anonymous_page __handle_mm_fault exc_page_fault",
        "page fault",
        "handle_userfault",
    );
    check(
        "schedule new_sort_of_page handle_mm_fault exc_page_fault",
        "page fault",
        "new_sort_of_page",
    );
    check(
        "schedule balance_dirty_pages balance_dirty_pages_ratelimited_flags fault_dirty_shared_page \
         do_fault handle_mm_fault",
        "dirty throttling",
        "balance_dirty_pages",
    );
    // What was done before the page was touched does not count.
    check(
        "schedule strange exc_page_fault asm_exc_page_fault copy_user pipe_write",
        "page fault",
        "strange",
    );
}

#[test]
fn writeback_journal_and_file_servers() {
    check(
        "schedule io_schedule folio_wait_bit folio_wait_writeback __filemap_fdatawait_range \
         file_write_and_wait_range ext4_sync_file do_fsync",
        "writeback",
        "folio_wait_writeback",
    );
    check(
        "schedule wb_wait_for_completion sync_inodes_sb ksys_sync",
        "writeback",
        "wb_wait_for_completion",
    );
    check(
        "schedule io_schedule_timeout balance_dirty_pages balance_dirty_pages_ratelimited_flags \
         generic_perform_write ext4_buffered_write_iter vfs_write",
        "dirty throttling",
        "balance_dirty_pages",
    );
    check(
        "schedule jbd2_log_wait_commit ext4_sync_file do_fsync",
        "journal",
        "jbd2_log_wait_commit",
    );
    check(
        "schedule wait_transaction_locked add_transaction_credits start_this_handle jbd2__journal_start",
        "journal",
        "wait_transaction_locked",
    );
    check(
        "schedule io_schedule bit_wait_io __wait_on_bit out_of_line_wait_on_bit do_get_write_access \
         jbd2_journal_get_write_access ext4_mkdir",
        "journal",
        "do_get_write_access",
    );
    check_kernel(
        "schedule io_schedule bit_wait_io __wait_on_bit out_of_line_wait_on_bit __wait_on_buffer \
         jbd2_journal_commit_transaction kjournald2 kthread ret_from_fork",
        "journal",
        "jbd2_journal_commit_transaction",
    );
    check("schedule p9_client_rpc p9_client_walk v9fs_vfs_lookup", "file server", "p9_client_rpc");
    check(
        "schedule io_schedule folio_wait_bit_common filemap_get_pages filemap_read v9fs_file_read_iter",
        "file server",
        "v9fs_file_read_iter",
    );
    check("schedule fuse_dev_do_read fuse_dev_read vfs_read", "event", "fuse_dev_do_read");
}

#[test]
fn inode_lock_or_another_by_the_function_that_wants_it() {
    let check = |caller: &str, cause| {
        let slow = "schedule schedule_preempt_disabled rwsem_down_write_slowpath";
        self::check(&format!("__schedule {slow} down_write {caller} outer"), cause, caller);
        self::check(
            &format!("__schedule {slow} down_write_killable {caller} outer"),
            cause,
            caller,
        );
        let caller_with_suffix = format!("{slow} {caller}.isra.0 outer");
        self::check(&caller_with_suffix, cause, caller);
    };
    for caller in [
        "path_openat",
        "do_unlinkat",
        "do_rmdir",
        "filename_create",
        "lock_rename",
        "vfs_rename",
        "lock_two_directories",
        "iterate_dir",
        "walk_component",
        "chmod_common",
        "do_truncate",
        "vfs_utimes",
        "ext4_buffered_write_iter",
        "ext4_file_read_iter",
        "generic_file_write_iter",
        "shmem_file_write_iter",
        "xfs_ilock",
        "btrfs_inode_lock",
    ] {
        check(caller, "inode lock");
    }
    for caller in [
        "do_user_addr_fault",
        "lock_mm_and_find_vma",
        "__vm_munmap",
        "vm_mmap_pgoff",
        "dup_mmap",
        "do_madvise",
    ] {
        check(caller, "mmap lock");
    }
    check("unlink_anon_vmas", "reverse map lock");
    check("ext4_map_blocks", "file system lock");
    check("filemap_fault", "page cache lock");
    check("super_lock", "superblock lock");
    check("n_tty_read", "terminal lock");
    check("kernfs_iop_permission", "kernfs lock");
    check("copy_process", "cgroup lock");
    check("who_knows", "other lock");
}

#[test]
fn other_locks() {
    let check_mutex = |caller: &str, cause| {
        check(&format!("schedule __mutex_lock.constprop.0 {caller} outer"), cause, caller);
        check(&format!("schedule __mutex_lock_slowpath mutex_lock {caller} outer"), cause, caller);
    };
    check_mutex("pipe_read", "pipe lock");
    check_mutex("anon_pipe_write", "pipe lock");
    check_mutex("lock_rename", "rename lock");
    check_mutex("fdget_pos", "file position lock");
    check_mutex("ep_send_events", "epoll lock");
    check_mutex("unix_stream_read_generic", "socket lock");
    check_mutex("ext4_orphan_add", "file system lock");
    check_mutex("jbd2_log_do_checkpoint", "journal lock");
    check_mutex("rtnl_lock", "network lock");
    check_mutex("pcpu_alloc", "memory management lock");
    check_mutex("who_knows", "other lock");
    check("schedule d_alloc_parallel path_openat", "dentry lock", "d_alloc_parallel");
    check("schedule __lock_sock lock_sock_nested inet_csk_accept", "socket lock", "__lock_sock");
    check("schedule io_schedule __folio_lock mystery do_syscall_64", "page lock", "__folio_lock");
    check(
        "schedule percpu_rwsem_wait __percpu_down_read mnt_want_write do_unlinkat",
        "superblock lock",
        "mnt_want_write",
    );
}

#[test]
fn other_tasks_and_time() {
    check("schedule futex_wait_queue futex_wait do_futex", "futex", "futex_wait_queue");
    check("schedule futex_do_wait __futex_wait futex_wait do_futex", "futex", "futex_do_wait");
    check("schedule pipe_read vfs_read ksys_read", "pipe", "pipe_read");
    check("__schedule schedule anon_pipe_read vfs_read ksys_read", "pipe", "anon_pipe_read");
    check(
        "schedule wait_for_partner fifo_open do_dentry_open path_openat",
        "pipe",
        "wait_for_partner",
    );
    check(
        "schedule schedule_timeout unix_stream_read_generic unix_stream_recvmsg sock_recvmsg",
        "socket",
        "unix_stream_read_generic",
    );
    check(
        "schedule schedule_timeout wait_woken sk_wait_data tcp_recvmsg_locked",
        "socket",
        "sk_wait_data",
    );
    check("schedule inet_csk_accept inet_accept do_accept", "socket", "inet_csk_accept");
    check(
        "schedule schedule_hrtimeout_range_clock poll_schedule_timeout.constprop.0 do_sys_poll",
        "poll",
        "poll_schedule_timeout",
    );
    check(
        "schedule_hrtimeout_range_clock do_epoll_wait __x64_sys_epoll_wait",
        "poll",
        "do_epoll_wait",
    );
    check("schedule do_nanosleep hrtimer_nanosleep common_nsleep", "timer", "do_nanosleep");
    check("schedule do_wait kernel_wait4 do_syscall_64", "child", "do_wait");
    check(
        "schedule schedule_timeout __wait_for_common wait_for_completion_state kernel_clone __x64_sys_vfork",
        "vfork",
        "kernel_clone",
    );
    check("schedule sigsuspend.isra.0 __x64_sys_rt_sigsuspend", "signal", "sigsuspend");
    check("schedule __x64_sys_pause do_syscall_64", "signal", "__x64_sys_pause");
    check("schedule schedule_timeout wait_woken n_tty_read tty_read", "terminal", "n_tty_read");
    check("schedule locks_lock_inode_wait __do_sys_flock", "file lock", "locks_lock_inode_wait");
    check("schedule do_wait_intr_irq eventfd_read vfs_read", "event", "eventfd_read");
    check("schedule io_cqring_wait __do_sys_io_uring_enter", "asynchronous i/o", "io_cqring_wait");
    check("schedule do_msgrcv __x64_sys_msgrcv", "message queue or semaphore", "do_msgrcv");
    check("schedule begin_new_exec load_elf_binary bprm_execve", "exec", "begin_new_exec");
    check("schedule something do_exit do_group_exit", "exit", "do_exit");
    check(
        "schedule wait_for_completion synchronize_rcu namespace_unlock",
        "kernel work",
        "synchronize_rcu",
    );
    check("schedule_timeout reclaim_throttle shrink_node pipe_write", "memory", "reclaim_throttle");
    check("schedule msleep tty_release", "timer", "msleep");
    check(
        "schedule do_signal_stop get_signal arch_do_signal_or_restart",
        "stopped",
        "do_signal_stop",
    );
}

#[test]
fn kernel_tasks_without_work() {
    let idle = "kernel task idle";
    check_kernel(
        "schedule worker_thread kthread ret_from_fork ret_from_fork_asm",
        idle,
        "worker_thread",
    );
    check_kernel("schedule smpboot_thread_fn kthread ret_from_fork", idle, "smpboot_thread_fn");
    check_kernel(
        "schedule schedule_timeout rcu_gp_fqs_loop rcu_gp_kthread kthread ret_from_fork",
        idle,
        "rcu_gp_fqs_loop",
    );
    // One that was not listed: its main function sleeps itself.
    check_kernel(
        "schedule schedule_timeout my_driver_thread kthread ret_from_fork",
        idle,
        "my_driver_thread",
    );
    // Two functions deep, and a signal could wake it.
    check_kernel(
        "schedule kvm_nx_lpage_recovery_worker kvm_vm_worker_thread kthread ret_from_fork",
        idle,
        "kvm_nx_lpage_recovery_worker",
    );
    let two = ["schedule wait_for_something my_driver_thread kthread ret_from_fork"];
    let sleep = Sleep { stack: stack(0), uninterruptible: true, ..Sleep::default() };
    let mut timeline = timeline(State::Asleep(sleep));
    timeline.tasks[0].kernel = true;
    let classifier = Classifier::new(&tables(&two), HERE);
    assert_eq!(wait_of(&classifier, &timeline).cause, Cause::Unknown(Unknown::Unrecognised));
    // At work, and waiting.
    check_kernel(
        "schedule io_schedule my_driver_thread kthread ret_from_fork_asm",
        "disk",
        "io_schedule",
    );
    check_kernel(
        "schedule strange process_one_work worker_thread kthread ret_from_fork",
        "unknown (stack not recognised)",
        "strange < process_one_work < worker_thread < kthread < ret_from_fork",
    );
    check(
        "schedule my_driver_thread kthread ret_from_fork",
        "unknown (stack not recognised)",
        "my_driver_thread < kthread < ret_from_fork",
    );
}

#[test]
fn what_a_tracer_leaves_on_the_stack_says_nothing() {
    check(
        "bpf_prog_1234_on_switch bpf_trace_run4 __traceiter_sched_switch __schedule schedule pipe_read",
        "pipe",
        "pipe_read",
    );
    check("schedule pipe_read+0x12/0x40 vfs_read+0x3/0x10", "pipe", "pipe_read");
}

#[test]
fn unknown_has_a_reason() {
    let long = "x".repeat(500);
    check("a.cold b c d e f g", "unknown (stack not recognised)", "a < b < c < d < e");
    check(&format!("schedule {long}"), "unknown (stack not recognised)", &"x".repeat(80));
    check("schedule schedule_timeout", "unknown (no stack)", "");
    check("", "unknown (no stack)", "");
    // Only as deep as kernel stacks are.
    let deep = "deep ".repeat(1000) + "pipe_read";
    check(&deep, "unknown (stack not recognised)", "deep < deep < deep < deep < deep");
}

/// `(cause, evidence)` of a sleep; stack 0 is of a pipe, 1 unknown, 2 a semaphore of `do_unlinkat`, 3 one of
/// `vm_mmap_pgoff`, 4 of asynchronous I/O, 5 a page's lock, 6 a mutex without a known owner.
fn cause_of(sleep: Sleep) -> (&'static str, Evidence) {
    let stacks = [
        "schedule pipe_read",
        "schedule mystery",
        "schedule rwsem_down_write_slowpath down_write do_unlinkat",
        "schedule rwsem_down_read_slowpath down_read vm_mmap_pgoff",
        "schedule read_events do_io_getevents",
        "schedule io_schedule __folio_lock mystery",
        "schedule __mutex_lock mystery",
    ];
    let classifier = Classifier::new(&tables(&stacks), HERE);
    let wait = wait_of(&classifier, &timeline(State::Asleep(sleep)));
    (wait.cause.name(), wait.evidence)
}

fn stack(number: u32) -> Option<TraceStack> {
    Some(TraceStack(number))
}

fn lock(kind: LockKind, stack: Option<TraceStack>) -> Option<LockWait> {
    Some(LockWait { lock: 0xabc, kind, owner: Some((TaskId(1), Some(87))), stack })
}

/// Woken by a request of the other task: 0 a read, 1 a write, 2 a flush, 3 a discard; others there are none.
fn by_request(row: u32) -> Option<Waker> {
    Some(Waker { time: HostNs(9), by: WokenBy::Request { task: TaskId(1), row } })
}

#[test]
fn locks_by_their_events() {
    let check = |sleep: Sleep, cause, evidence| assert_eq!(cause_of(sleep), (cause, evidence));
    let with = |lock, stack| Sleep { lock, stack, ..Sleep::default() };
    let read = LockKind::SemRead;
    check(with(lock(read, stack(2)), None), "inode lock", Evidence::Lock);
    check(with(lock(read, stack(3)), None), "mmap lock", Evidence::Lock);
    check(with(lock(read, None), stack(3)), "mmap lock", Evidence::Lock);
    check(with(lock(LockKind::Mutex, stack(6)), stack(6)), "other lock", Evidence::Lock);
    check(with(lock(LockKind::Spin, stack(2)), None), "spinlock", Evidence::Lock);
    check(with(lock(LockKind::Other, stack(2)), None), "inode lock", Evidence::Lock);
    // No stack: the holder is in unlink.
    check(with(lock(read, None), None), "inode lock", Evidence::Syscall);
    check(with(lock(LockKind::Mutex, None), None), "other lock", Evidence::Lock);
    // The end of the wait for the lock was lost: it reads a pipe now.
    check(with(lock(read, stack(2)), stack(0)), "pipe", Evidence::Stack);
    // The kernel tells of the lock, and nothing on the stack is known.
    check(with(lock(read, stack(2)), stack(1)), "inode lock", Evidence::Lock);
    // A stack that the tables do not have.
    check(with(None, stack(99)), "unknown (no stack)", Evidence::Nothing);
}

#[test]
fn evidence_in_its_order() {
    let check = |sleep: Sleep, cause, evidence| assert_eq!(cause_of(sleep), (cause, evidence));
    let none = Sleep::default;
    check(Sleep { stack: stack(0), woken_by: by_request(0), ..none() }, "pipe", Evidence::Stack);
    check(
        Sleep { stack: stack(1), woken_by: by_request(1), ..none() },
        "disk write",
        Evidence::Request,
    );
    check(Sleep { stack: stack(4), ..none() }, "asynchronous i/o", Evidence::Stack);
    check(
        Sleep { stack: stack(4), woken_by: by_request(1), ..none() },
        "disk write",
        Evidence::Request,
    );
    check(Sleep { stack: stack(5), ..none() }, "page lock", Evidence::Stack);
    check(
        Sleep { stack: stack(5), woken_by: by_request(0), ..none() },
        "disk read",
        Evidence::Request,
    );
    check(Sleep { woken_by: by_request(2), ..none() }, "disk flush", Evidence::Request);
    check(Sleep { woken_by: by_request(3), io: true, ..none() }, "disk discard", Evidence::Request);
    check(Sleep { woken_by: by_request(9), io: true, ..none() }, "disk", Evidence::IoWait);
    check(
        Sleep { woken_by: by_request(0), in_fault: true, ..none() },
        "page fault (disk)",
        Evidence::Request,
    );
    check(Sleep { io: true, syscall: Some(0), ..none() }, "disk read", Evidence::IoWait);
    check(
        Sleep { io: true, in_fault: true, syscall: Some(1), ..none() },
        "page fault (disk)",
        Evidence::IoWait,
    );
    check(Sleep { stack: stack(1), syscall: Some(202), ..none() }, "futex", Evidence::Syscall);
    check(Sleep { syscall: Some(61), ..none() }, "child", Evidence::Syscall);
    check(Sleep { syscall: Some(0), ..none() }, "unknown (no stack)", Evidence::Nothing);
    check(Sleep { syscall: Some(61), in_fault: true, ..none() }, "page fault", Evidence::Fault);
    check(Sleep { stack: stack(1), ..none() }, "unknown (stack not recognised)", Evidence::Nothing);
}

#[test]
fn states_and_where_a_task_was_found_asleep() {
    let found = TraceTask {
        machine: HERE,
        tid: Tid(1),
        pid: Pid(1),
        parent: Pid(0),
        name: "app".to_owned(),
        kernel: false,
        asleep_in: Some("schedule;do_wait;kernel_wait4".to_owned()),
        in_call: None,
    };
    let check = |asleep_in: Option<&str>, state: State, cause| {
        let tasks =
            asleep_in.map(|it| TraceTask { asleep_in: Some(it.to_owned()), ..found.clone() });
        let tables = TraceTables { tasks: tasks.into_iter().collect(), ..TraceTables::default() };
        let classifier = Classifier::new(&tables, HERE);
        assert_eq!(wait_of(&classifier, &timeline(state)).cause.name(), cause);
    };
    let asleep = || State::Asleep(Sleep::default());
    check(None, State::Runnable { preempted: true }, "cpu (preempted)");
    check(None, State::Runnable { preempted: false }, "cpu (woken)");
    check(None, State::Stopped { woken_by: None }, "stopped");
    check(None, State::Unknown, "unknown (no event shows it)");
    check(None, asleep(), "unknown (no stack)");
    check(Some("schedule;do_wait;kernel_wait4"), asleep(), "child");
    check(Some("schedule < pipe_read < vfs_read"), asleep(), "pipe");
    check(Some("futex_wait_queue"), asleep(), "futex");
    check(Some(""), asleep(), "unknown (no stack)");
    // It is of the first sleep only.
    let tables = TraceTables { tasks: vec![found], ..TraceTables::default() };
    let classifier = Classifier::new(&tables, HERE);
    let mut later = timeline(asleep());
    later.tasks[0].segments = Segments::beginning(HostNs(5));
    later.tasks[0].segments.push(HostNs(10), asleep());
    assert_eq!(wait_of(&classifier, &later).cause.name(), "unknown (no stack)");
    // A task that runs waits for nothing.
    let running = &later.tasks[1];
    assert_eq!(classifier.wait(&later, running, &running.segments.get(0).unwrap()), None);
}

#[test]
fn details_name_the_lock_its_holder_and_who_ended_the_wait() {
    let classifier = Classifier::new(&tables(&["schedule down_write do_unlinkat"]), HERE);
    let by = |by| Some(Waker { time: HostNs(10), by });
    let wakers_of = |woken_by| {
        let sleep =
            Sleep { lock: lock(LockKind::SemWrite, stack(0)), woken_by, ..Sleep::default() };
        let timeline = timeline(State::Asleep(sleep));
        let rows = details(&timeline, &classifier, &all(&timeline));
        let [(detail, sum)] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((detail.cause, detail.function.as_str()), (Cause::InodeLock, "do_unlinkat"));
        let held = detail.lock.as_ref().unwrap();
        let holder = held.holder.as_ref().unwrap();
        assert_eq!((held.address, held.kind), (0xabc, LockKind::SemWrite));
        assert_eq!((holder.name.as_str(), holder.syscall), ("other", Some(87)));
        assert_eq!(holder.known, HolderKnown::ByLock);
        assert_eq!(*sum, Sum { count: 1, ns: 10, longest_ns: 10 });
        let wakers = wakers(&timeline, &classifier, &all(&timeline));
        let [((Cause::InodeLock, name), Sum { ns: 10, .. })] = &wakers[..] else {
            panic!("{wakers:?}")
        };
        name.clone()
    };
    let check = |woken_by, name: Option<&str>| assert_eq!(wakers_of(woken_by).as_deref(), name);
    check(by(WokenBy::Task(TaskId(1))), Some("other"));
    check(by(WokenBy::Interrupt(Interrupt::Vector(Vector::LocalTimer))), Some("local timer"));
    check(by(WokenBy::Interrupt(Interrupt::Soft(1))), Some("softirq timer"));
    check(by_request(0), Some("disk vda"));
    check(by_request(77), None);
    check(by(WokenBy::Task(TaskId(77))), None);
    check(by(WokenBy::Unknown), None);
    check(None, None);
}

#[test]
fn shares() {
    let sum = |ns| Sum { count: 1, ns, longest_ns: ns };
    let causes = [
        (Cause::Pipe, sum(60)),
        (Cause::DiskRead, sum(20)),
        (Cause::DiskFault, sum(15)),
        (Cause::Unknown(Unknown::NoStack), sum(5)),
        (Cause::Stopped, sum(1000)),
        (Cause::KernelIdle, sum(2000)),
    ];
    let life = Life { running: sum(7), causes: causes.into() };
    assert_eq!(life.total_ns(), 3107);
    assert_eq!(life.waiting(), Sum { count: 4, ns: 100, longest_ns: 60 });
    assert_eq!(life.unknown().ns, 5);
    assert!((life.unknown_share() - 0.05).abs() < 1e-9);
    assert_eq!(life.groups()[&Group::Disk], Sum { count: 2, ns: 35, longest_ns: 20 });
    assert_eq!(life.by_time()[2], (Cause::Pipe, sum(60)));
    assert!(Life::default().unknown_share().abs() < 1e-9);
}

/// Waits, run time, stopped and unknown add up to every life; rows add up to the total, however they are put together.
#[test]
fn sums_hold_whatever_happens() {
    let stacks = ["schedule pipe_read", "io_schedule filemap_get_pages", "schedule mystery"];
    let mut tables = tables(&stacks);
    for row in 0..2 {
        let number = TraceStack::of_user(row).unwrap();
        tables.stacks.push((HERE, number, vec!["pipe_read".to_owned(), "main".to_owned()]));
    }
    let classifier = Classifier::new(&tables, HERE);
    let random = &mut Random(5);
    for _ in 0..300 {
        let mut timeline = at_random(random);
        for task in &mut timeline.tasks {
            let segments = task.segments.iter().map(|mut segment| {
                if let State::Asleep(sleep) = &mut segment.state {
                    sleep.stack = u32::try_from(random.below(5)).ok().map(TraceStack);
                    let row = u32::try_from(random.below(3)).ok();
                    sleep.user_stack = row.and_then(TraceStack::of_user);
                    sleep.syscall = u16::try_from(random.below(500)).ok();
                }
                segment
            });
            task.segments = segments.collect();
        }
        let lives = lives(&timeline, &classifier);
        for (life, task) in lives.iter().zip(&timeline.tasks) {
            assert_eq!(life.total_ns(), task.length_ns());
        }
        let everyone = all(&timeline);
        let whole = total(&lives, &everyone);
        for by in [By::Task, By::Process, By::Name] {
            let rows = rows(&timeline, &lives, by, &everyone);
            let mut sum = Life::default();
            rows.iter().for_each(|row| sum.merge(&row.life));
            assert_eq!(sum, whole, "{by:?}");
            assert!(rows.is_sorted_by(|a, b| a.life.waiting().ns >= b.life.waiting().ns));
        }
        let waits: u64 =
            details(&timeline, &classifier, &everyone).iter().map(|(_, sum)| sum.ns).sum();
        assert_eq!(waits, whole.total_ns() - whole.running.ns);
        let by_stack = super::stacks(&tables, &timeline, &classifier, &everyone);
        assert_eq!(by_stack.values().map(|sum| sum.ns).sum::<u64>(), waits);
        let woken: u64 =
            wakers(&timeline, &classifier, &everyone).iter().map(|(_, sum)| sum.ns).sum();
        assert_eq!(woken, waits);
    }
}

/// From events to causes: what the builder makes of them is understood here.
mod of_events {
    use model::{LockKind, PrevState, TraceEventKind, TraceStack};

    use super::super::*;
    use crate::kernel::KernelTime;
    use crate::timeline::build::testing::{
        Scene, done, enter, leave, lock, lock_end, request, switch, wakeup, waking,
    };
    use crate::tree::all;

    const DISK: PrevState = PrevState::Uninterruptible { io: true };
    const LOCK: PrevState = PrevState::Uninterruptible { io: false };

    /// Task 5 on CPU 0 and task 6 on CPU 1; `stack` is where sleepers sleep. What task 5 waited for, with ns.
    fn check(events: &[(u64, u32, TraceEventKind)], stack: &str, expected: &str) {
        let mut scene = Scene::new(events).task(5, "app").task(6, "other");
        let names = stack.split_whitespace().map(str::to_owned).collect();
        scene.tables.stacks.push((super::HERE, TraceStack(7), names));
        let timeline = scene.build();
        let classifier = Classifier::new(&scene.tables, super::HERE);
        let lives = lives(&timeline, &classifier);
        let app = timeline.tasks.iter().position(|task| task.name() == "app").unwrap();
        assert_eq!(lives[app].total_ns(), timeline.tasks[app].length_ns());
        let causes = lives[app].by_time().into_iter();
        let causes: Vec<String> =
            causes.map(|(cause, sum)| format!("{cause} {}", sum.ns)).collect();
        let running = lives[app].running.ns;
        assert_eq!(format!("running {running}, {}", causes.join(", ")), expected);
        let time = KernelTime::new(&timeline);
        assert_eq!(time.total().total_ns(), 200);
        assert!(time.times_of(&all(&timeline)).total_ns() <= 200);
        // Woken tasks are still where they slept.
        let stacks = super::super::stacks(&scene.tables, &timeline, &classifier, &all(&timeline));
        let kernel = |is_cause: &dyn Fn(Cause) -> bool| {
            let mut found = stacks.keys().filter(|stack| is_cause(stack.cause));
            found.next().map(|stack| stack.kernel.clone())
        };
        if let Some(woken) = kernel(&|cause| cause == Cause::CpuWoken) {
            let slept = kernel(&|cause| !matches!(cause, Cause::CpuWoken | Cause::CpuPreempted));
            assert_eq!(Some(woken), slept);
        }
    }

    #[test]
    fn a_read_from_a_disk() {
        let events = [
            (0, 0, switch(0, PrevState::Runnable, 5)),
            (10, 0, enter(5, 0)),
            (12, 0, TraceEventKind::BlockIssue(request(1, 5))),
            (15, 0, switch(5, DISK, 0)),
            (50, 0, done(1)),
            (51, 0, waking(5, 0)),
            (52, 0, wakeup(5)),
            (60, 0, switch(0, PrevState::Runnable, 5)),
            (70, 0, leave(5, 0)),
        ];
        let stack = "schedule io_schedule folio_wait_bit_common filemap_get_pages filemap_read";
        check(&events, stack, "running 55, disk read 37, cpu (woken) 8");
        check(&events, "mystery", "running 55, disk read 37, cpu (woken) 8");
    }

    #[test]
    fn two_writers_in_a_directory() {
        let events = |stack: Option<TraceStack>| {
            let mut begin = lock(5, 0xabc, LockKind::SemWrite, Some(6));
            if let TraceEventKind::LockBegin { stack: at, .. } = &mut begin {
                *at = stack;
            }
            [
                (0, 0, switch(0, PrevState::Runnable, 5)),
                (0, 1, switch(0, PrevState::Runnable, 6)),
                (5, 1, enter(6, 87)),
                (10, 0, enter(5, 87)),
                (12, 0, begin),
                (14, 0, switch(5, LOCK, 0)),
                (60, 1, waking(5, 6)),
                (61, 1, wakeup(5)),
                (62, 0, switch(0, PrevState::Runnable, 5)),
                (64, 0, lock_end(5, 0xabc)),
                (70, 0, leave(5, 87)),
            ]
        };
        let stack = "schedule rwsem_down_write_slowpath down_write do_unlinkat __x64_sys_unlink";
        let expected = "running 52, inode lock 47, cpu (woken) 1";
        check(&events(None), stack, expected);
        check(&events(Some(TraceStack(7))), stack, expected);
        // Nothing but system calls to tell by.
        check(&events(None), "", expected);
        let stack = "schedule rwsem_down_write_slowpath down_write dup_mmap copy_process";
        check(&events(None), stack, "running 52, mmap lock 47, cpu (woken) 1");
    }

    /// Readers hold the lock, so that it has no owner: who let it go did.
    #[test]
    fn the_holder_is_who_let_the_lock_go() {
        let known = |owner: Option<u32>| {
            let events = [
                (0, 0, switch(0, PrevState::Runnable, 5)),
                (0, 1, switch(0, PrevState::Runnable, 6)),
                (5, 1, enter(6, 78)),
                (12, 0, lock(5, 0xabc, LockKind::SemWrite, owner)),
                (14, 0, switch(5, LOCK, 0)),
                (60, 1, waking(5, 6)),
                (61, 1, wakeup(5)),
            ];
            let scene = Scene::new(&events).task(5, "app").task(6, "lister");
            let timeline = scene.build();
            let classifier = Classifier::new(&scene.tables, super::HERE);
            let rows = details(&timeline, &classifier, &all(&timeline));
            let mut holders =
                rows.iter().filter_map(|(detail, _)| detail.lock.as_ref()?.holder.clone());
            let holder = holders.next().unwrap();
            assert_eq!((holder.name.as_str(), holder.syscall), ("lister", Some(78)));
            assert_eq!(holders.next(), None);
            holder.known
        };
        assert_eq!(known(Some(6)), HolderKnown::ByLock);
        assert_eq!(known(None), HolderKnown::ByWakeup);
    }

    /// What a futex names counts if it is a thread of the same process. Who wakes need not have held it.
    #[test]
    fn a_futex_has_an_address_and_perhaps_a_holder() {
        let held = |owner_pid: u32| {
            let futex = lock(5, 0x7f00, LockKind::Futex, Some(6));
            let events = [
                (0, 0, switch(0, PrevState::Runnable, 5)),
                (0, 1, switch(0, PrevState::Runnable, 6)),
                (12, 0, enter(5, 202)),
                (12, 0, futex),
                (13, 0, lock(5, 0xabc, LockKind::Mutex, None)),
                (13, 0, lock_end(5, 0xabc)),
                (14, 0, switch(5, PrevState::Sleep, 0)),
                (60, 1, waking(5, 6)),
                (61, 1, wakeup(5)),
                (62, 0, switch(0, PrevState::Runnable, 5)),
                (63, 0, leave(5, 202)),
                (64, 0, switch(5, PrevState::Sleep, 0)),
            ];
            let mut scene = Scene::new(&events).task(5, "app").task(6, "app");
            let owner = scene.tables.tasks.iter_mut().find(|task| task.tid.0 == 6).unwrap();
            owner.pid = model::Pid(owner_pid);
            let timeline = scene.build();
            let classifier = Classifier::new(&scene.tables, super::HERE);
            let rows = details(&timeline, &classifier, &all(&timeline));
            let locks: Vec<_> = rows.into_iter().filter_map(|(it, _)| it.lock).collect();
            let [lock] = &locks[..] else { panic!("{locks:?}") };
            assert_eq!((lock.address, lock.kind), (0x7f00, LockKind::Futex));
            lock.holder.as_ref().map(|holder| holder.known)
        };
        assert_eq!(held(5), Some(HolderKnown::ByLock));
        assert_eq!(held(6), None);
    }

    #[test]
    fn a_preempted_task_and_one_that_sleeps() {
        let events = [
            (0, 0, switch(0, PrevState::Runnable, 5)),
            (20, 0, switch(5, PrevState::Runnable, 6)),
            (50, 0, switch(6, PrevState::Dead, 5)),
            (55, 0, enter(5, 230)),
            (60, 0, switch(5, PrevState::Sleep, 0)),
        ];
        let stack = "schedule do_nanosleep hrtimer_nanosleep";
        check(&events, stack, "running 30, timer 40, cpu (preempted) 30");
    }
}
