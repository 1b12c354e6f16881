//! System calls on x86-64: their names and classes.
//!
//! Numbers are those of the kernel's `arch/x86/entry/syscalls/syscall_64.tbl`, up to Linux 6.18.

use CallClass::{File, Ipc, Memory, Network, Poll, Process, Signal, System, Time};

/// What a system call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallClass {
    /// Files, directories, mounts, devices, asynchronous I/O.
    File,
    /// Processes and threads: making, ending, waiting for them, their rights and scheduling.
    Process,
    /// Memory.
    Memory,
    /// Sockets.
    Network,
    /// Pipes, futexes, message queues, semaphores, shared memory, events.
    Ipc,
    /// poll, select, epoll.
    Poll,
    /// Clocks, timers, sleeping.
    Time,
    /// Signals.
    Signal,
    /// The system as a whole: modules, keys, BPF, performance events...
    System,
    /// A number that the table does not have.
    Unknown,
}

/// The call's name; `None` for a number that the table does not have.
#[must_use]
pub fn syscall_name(number: u16) -> Option<&'static str> {
    row(number).map(|(_, name, _)| *name)
}

/// The call's name, or `syscall N`.
#[must_use]
pub fn syscall_label(number: u16) -> String {
    syscall_name(number).map_or_else(|| format!("syscall {number}"), str::to_owned)
}

/// What the call is about.
#[must_use]
pub fn syscall_class(number: u16) -> CallClass {
    row(number).map_or(CallClass::Unknown, |(_, _, class)| *class)
}

impl CallClass {
    /// Its name in tables, JSON and CSV.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            File => "file system calls",
            Process => "process system calls",
            Memory => "memory system calls",
            Network => "network system calls",
            Ipc => "ipc system calls",
            Poll => "poll system calls",
            Time => "time system calls",
            Signal => "signal system calls",
            System => "administrative system calls",
            Self::Unknown => "unnamed system calls",
        }
    }
}

fn row(number: u16) -> Option<&'static (u16, &'static str, CallClass)> {
    let at = CALLS.binary_search_by_key(&number, |(number, ..)| *number).ok()?;
    Some(&CALLS[at])
}

/// In order of the numbers. 337 to 423 were never given: 424 on are the same on all architectures.
const CALLS: &[(u16, &str, CallClass)] = &[
    (0, "read", File),
    (1, "write", File),
    (2, "open", File),
    (3, "close", File),
    (4, "stat", File),
    (5, "fstat", File),
    (6, "lstat", File),
    (7, "poll", Poll),
    (8, "lseek", File),
    (9, "mmap", Memory),
    (10, "mprotect", Memory),
    (11, "munmap", Memory),
    (12, "brk", Memory),
    (13, "rt_sigaction", Signal),
    (14, "rt_sigprocmask", Signal),
    (15, "rt_sigreturn", Signal),
    (16, "ioctl", File),
    (17, "pread64", File),
    (18, "pwrite64", File),
    (19, "readv", File),
    (20, "writev", File),
    (21, "access", File),
    (22, "pipe", Ipc),
    (23, "select", Poll),
    (24, "sched_yield", Process),
    (25, "mremap", Memory),
    (26, "msync", Memory),
    (27, "mincore", Memory),
    (28, "madvise", Memory),
    (29, "shmget", Ipc),
    (30, "shmat", Ipc),
    (31, "shmctl", Ipc),
    (32, "dup", File),
    (33, "dup2", File),
    (34, "pause", Signal),
    (35, "nanosleep", Time),
    (36, "getitimer", Time),
    (37, "alarm", Time),
    (38, "setitimer", Time),
    (39, "getpid", Process),
    (40, "sendfile", File),
    (41, "socket", Network),
    (42, "connect", Network),
    (43, "accept", Network),
    (44, "sendto", Network),
    (45, "recvfrom", Network),
    (46, "sendmsg", Network),
    (47, "recvmsg", Network),
    (48, "shutdown", Network),
    (49, "bind", Network),
    (50, "listen", Network),
    (51, "getsockname", Network),
    (52, "getpeername", Network),
    (53, "socketpair", Network),
    (54, "setsockopt", Network),
    (55, "getsockopt", Network),
    (56, "clone", Process),
    (57, "fork", Process),
    (58, "vfork", Process),
    (59, "execve", Process),
    (60, "exit", Process),
    (61, "wait4", Process),
    (62, "kill", Signal),
    (63, "uname", System),
    (64, "semget", Ipc),
    (65, "semop", Ipc),
    (66, "semctl", Ipc),
    (67, "shmdt", Ipc),
    (68, "msgget", Ipc),
    (69, "msgsnd", Ipc),
    (70, "msgrcv", Ipc),
    (71, "msgctl", Ipc),
    (72, "fcntl", File),
    (73, "flock", File),
    (74, "fsync", File),
    (75, "fdatasync", File),
    (76, "truncate", File),
    (77, "ftruncate", File),
    (78, "getdents", File),
    (79, "getcwd", File),
    (80, "chdir", File),
    (81, "fchdir", File),
    (82, "rename", File),
    (83, "mkdir", File),
    (84, "rmdir", File),
    (85, "creat", File),
    (86, "link", File),
    (87, "unlink", File),
    (88, "symlink", File),
    (89, "readlink", File),
    (90, "chmod", File),
    (91, "fchmod", File),
    (92, "chown", File),
    (93, "fchown", File),
    (94, "lchown", File),
    (95, "umask", File),
    (96, "gettimeofday", Time),
    (97, "getrlimit", Process),
    (98, "getrusage", Process),
    (99, "sysinfo", System),
    (100, "times", Time),
    (101, "ptrace", Process),
    (102, "getuid", Process),
    (103, "syslog", System),
    (104, "getgid", Process),
    (105, "setuid", Process),
    (106, "setgid", Process),
    (107, "geteuid", Process),
    (108, "getegid", Process),
    (109, "setpgid", Process),
    (110, "getppid", Process),
    (111, "getpgrp", Process),
    (112, "setsid", Process),
    (113, "setreuid", Process),
    (114, "setregid", Process),
    (115, "getgroups", Process),
    (116, "setgroups", Process),
    (117, "setresuid", Process),
    (118, "getresuid", Process),
    (119, "setresgid", Process),
    (120, "getresgid", Process),
    (121, "getpgid", Process),
    (122, "setfsuid", Process),
    (123, "setfsgid", Process),
    (124, "getsid", Process),
    (125, "capget", Process),
    (126, "capset", Process),
    (127, "rt_sigpending", Signal),
    (128, "rt_sigtimedwait", Signal),
    (129, "rt_sigqueueinfo", Signal),
    (130, "rt_sigsuspend", Signal),
    (131, "sigaltstack", Signal),
    (132, "utime", File),
    (133, "mknod", File),
    (134, "uselib", Process),
    (135, "personality", Process),
    (136, "ustat", File),
    (137, "statfs", File),
    (138, "fstatfs", File),
    (139, "sysfs", File),
    (140, "getpriority", Process),
    (141, "setpriority", Process),
    (142, "sched_setparam", Process),
    (143, "sched_getparam", Process),
    (144, "sched_setscheduler", Process),
    (145, "sched_getscheduler", Process),
    (146, "sched_get_priority_max", Process),
    (147, "sched_get_priority_min", Process),
    (148, "sched_rr_get_interval", Process),
    (149, "mlock", Memory),
    (150, "munlock", Memory),
    (151, "mlockall", Memory),
    (152, "munlockall", Memory),
    (153, "vhangup", System),
    (154, "modify_ldt", Process),
    (155, "pivot_root", File),
    (156, "_sysctl", System),
    (157, "prctl", Process),
    (158, "arch_prctl", Process),
    (159, "adjtimex", Time),
    (160, "setrlimit", Process),
    (161, "chroot", File),
    (162, "sync", File),
    (163, "acct", System),
    (164, "settimeofday", Time),
    (165, "mount", File),
    (166, "umount2", File),
    (167, "swapon", Memory),
    (168, "swapoff", Memory),
    (169, "reboot", System),
    (170, "sethostname", Network),
    (171, "setdomainname", Network),
    (172, "iopl", Process),
    (173, "ioperm", Process),
    (174, "create_module", System),
    (175, "init_module", System),
    (176, "delete_module", System),
    (177, "get_kernel_syms", System),
    (178, "query_module", System),
    (179, "quotactl", System),
    (180, "nfsservctl", System),
    (181, "getpmsg", System),
    (182, "putpmsg", System),
    (183, "afs_syscall", System),
    (184, "tuxcall", System),
    (185, "security", System),
    (186, "gettid", Process),
    (187, "readahead", File),
    (188, "setxattr", File),
    (189, "lsetxattr", File),
    (190, "fsetxattr", File),
    (191, "getxattr", File),
    (192, "lgetxattr", File),
    (193, "fgetxattr", File),
    (194, "listxattr", File),
    (195, "llistxattr", File),
    (196, "flistxattr", File),
    (197, "removexattr", File),
    (198, "lremovexattr", File),
    (199, "fremovexattr", File),
    (200, "tkill", Signal),
    (201, "time", Time),
    (202, "futex", Ipc),
    (203, "sched_setaffinity", Process),
    (204, "sched_getaffinity", Process),
    (205, "set_thread_area", Process),
    (206, "io_setup", File),
    (207, "io_destroy", File),
    (208, "io_getevents", File),
    (209, "io_submit", File),
    (210, "io_cancel", File),
    (211, "get_thread_area", Process),
    (212, "lookup_dcookie", System),
    (213, "epoll_create", Poll),
    (214, "epoll_ctl_old", Poll),
    (215, "epoll_wait_old", Poll),
    (216, "remap_file_pages", Memory),
    (217, "getdents64", File),
    (218, "set_tid_address", Process),
    (219, "restart_syscall", Signal),
    (220, "semtimedop", Ipc),
    (221, "fadvise64", File),
    (222, "timer_create", Time),
    (223, "timer_settime", Time),
    (224, "timer_gettime", Time),
    (225, "timer_getoverrun", Time),
    (226, "timer_delete", Time),
    (227, "clock_settime", Time),
    (228, "clock_gettime", Time),
    (229, "clock_getres", Time),
    (230, "clock_nanosleep", Time),
    (231, "exit_group", Process),
    (232, "epoll_wait", Poll),
    (233, "epoll_ctl", Poll),
    (234, "tgkill", Signal),
    (235, "utimes", File),
    (236, "vserver", System),
    (237, "mbind", Memory),
    (238, "set_mempolicy", Memory),
    (239, "get_mempolicy", Memory),
    (240, "mq_open", Ipc),
    (241, "mq_unlink", Ipc),
    (242, "mq_timedsend", Ipc),
    (243, "mq_timedreceive", Ipc),
    (244, "mq_notify", Ipc),
    (245, "mq_getsetattr", Ipc),
    (246, "kexec_load", System),
    (247, "waitid", Process),
    (248, "add_key", System),
    (249, "request_key", System),
    (250, "keyctl", System),
    (251, "ioprio_set", Process),
    (252, "ioprio_get", Process),
    (253, "inotify_init", File),
    (254, "inotify_add_watch", File),
    (255, "inotify_rm_watch", File),
    (256, "migrate_pages", Memory),
    (257, "openat", File),
    (258, "mkdirat", File),
    (259, "mknodat", File),
    (260, "fchownat", File),
    (261, "futimesat", File),
    (262, "newfstatat", File),
    (263, "unlinkat", File),
    (264, "renameat", File),
    (265, "linkat", File),
    (266, "symlinkat", File),
    (267, "readlinkat", File),
    (268, "fchmodat", File),
    (269, "faccessat", File),
    (270, "pselect6", Poll),
    (271, "ppoll", Poll),
    (272, "unshare", Process),
    (273, "set_robust_list", Process),
    (274, "get_robust_list", Process),
    (275, "splice", File),
    (276, "tee", File),
    (277, "sync_file_range", File),
    (278, "vmsplice", File),
    (279, "move_pages", Memory),
    (280, "utimensat", File),
    (281, "epoll_pwait", Poll),
    (282, "signalfd", Signal),
    (283, "timerfd_create", Time),
    (284, "eventfd", Ipc),
    (285, "fallocate", File),
    (286, "timerfd_settime", Time),
    (287, "timerfd_gettime", Time),
    (288, "accept4", Network),
    (289, "signalfd4", Signal),
    (290, "eventfd2", Ipc),
    (291, "epoll_create1", Poll),
    (292, "dup3", File),
    (293, "pipe2", Ipc),
    (294, "inotify_init1", File),
    (295, "preadv", File),
    (296, "pwritev", File),
    (297, "rt_tgsigqueueinfo", Signal),
    (298, "perf_event_open", System),
    (299, "recvmmsg", Network),
    (300, "fanotify_init", File),
    (301, "fanotify_mark", File),
    (302, "prlimit64", Process),
    (303, "name_to_handle_at", File),
    (304, "open_by_handle_at", File),
    (305, "clock_adjtime", Time),
    (306, "syncfs", File),
    (307, "sendmmsg", Network),
    (308, "setns", Process),
    (309, "getcpu", Process),
    (310, "process_vm_readv", Memory),
    (311, "process_vm_writev", Memory),
    (312, "kcmp", Process),
    (313, "finit_module", System),
    (314, "sched_setattr", Process),
    (315, "sched_getattr", Process),
    (316, "renameat2", File),
    (317, "seccomp", Process),
    (318, "getrandom", System),
    (319, "memfd_create", Memory),
    (320, "kexec_file_load", System),
    (321, "bpf", System),
    (322, "execveat", Process),
    (323, "userfaultfd", Memory),
    (324, "membarrier", Memory),
    (325, "mlock2", Memory),
    (326, "copy_file_range", File),
    (327, "preadv2", File),
    (328, "pwritev2", File),
    (329, "pkey_mprotect", Memory),
    (330, "pkey_alloc", Memory),
    (331, "pkey_free", Memory),
    (332, "statx", File),
    (333, "io_pgetevents", File),
    (334, "rseq", Process),
    (335, "uretprobe", System),
    (336, "uprobe", System),
    (424, "pidfd_send_signal", Signal),
    (425, "io_uring_setup", File),
    (426, "io_uring_enter", File),
    (427, "io_uring_register", File),
    (428, "open_tree", File),
    (429, "move_mount", File),
    (430, "fsopen", File),
    (431, "fsconfig", File),
    (432, "fsmount", File),
    (433, "fspick", File),
    (434, "pidfd_open", Process),
    (435, "clone3", Process),
    (436, "close_range", File),
    (437, "openat2", File),
    (438, "pidfd_getfd", Process),
    (439, "faccessat2", File),
    (440, "process_madvise", Memory),
    (441, "epoll_pwait2", Poll),
    (442, "mount_setattr", File),
    (443, "quotactl_fd", System),
    (444, "landlock_create_ruleset", System),
    (445, "landlock_add_rule", System),
    (446, "landlock_restrict_self", System),
    (447, "memfd_secret", Memory),
    (448, "process_mrelease", Memory),
    (449, "futex_waitv", Ipc),
    (450, "set_mempolicy_home_node", Memory),
    (451, "cachestat", Memory),
    (452, "fchmodat2", File),
    (453, "map_shadow_stack", Memory),
    (454, "futex_wake", Ipc),
    (455, "futex_wait", Ipc),
    (456, "futex_requeue", Ipc),
    (457, "statmount", File),
    (458, "listmount", File),
    (459, "lsm_get_self_attr", System),
    (460, "lsm_set_self_attr", System),
    (461, "lsm_list_modules", System),
    (462, "mseal", Memory),
    (463, "setxattrat", File),
    (464, "getxattrat", File),
    (465, "listxattrat", File),
    (466, "removexattrat", File),
    (467, "open_tree_attr", File),
    (468, "file_getattr", File),
    (469, "file_setattr", File),
];

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn numbers_ascend_and_names_are_given_once() {
        assert!(CALLS.is_sorted_by(|(a, ..), (b, ..)| a < b));
        let mut names: Vec<&str> = CALLS.iter().map(|(_, name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CALLS.len());
    }

    #[test]
    fn names_and_classes() {
        let check = |number, name: &str, class| {
            assert_eq!((syscall_label(number).as_str(), syscall_class(number)), (name, class));
        };
        check(0, "read", File);
        check(9, "mmap", Memory);
        check(23, "select", Poll);
        check(35, "nanosleep", Time);
        check(45, "recvfrom", Network);
        check(58, "vfork", Process);
        check(62, "kill", Signal);
        check(202, "futex", Ipc);
        check(321, "bpf", System);
        check(452, "fchmodat2", File);
        check(462, "mseal", Memory);
        check(400, "syscall 400", CallClass::Unknown);
        check(u16::MAX, "syscall 65535", CallClass::Unknown);
    }

    /// Against the kernel's own header, where it is installed: every call that it has is in the table, under its name.
    #[test]
    fn the_table_agrees_with_the_kernels_header() {
        const HEADER: &str = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";
        let Ok(header) = std::fs::read_to_string(HEADER) else {
            eprintln!("skipped: {HEADER} is not installed");
            return;
        };
        let calls = header.lines().filter_map(|line| {
            let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
            Some((name, number.trim().parse::<u16>().ok()?))
        });
        let calls: Vec<(&str, u16)> = calls.collect();
        assert!(300 < calls.len(), "{} calls in {HEADER}", calls.len());
        for (name, number) in calls {
            // Newer headers have newer calls.
            if CALLS.last().is_some_and(|(last, ..)| number <= *last) {
                assert_eq!(syscall_name(number), Some(name), "{number}");
            }
        }
    }
}
