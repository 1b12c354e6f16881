//! What system calls wait for, where the stack of a sleep does not say it.

use super::cause::Cause;

/// A table's rows, by system call.
pub(super) fn by_name(
    table: &'static [(Cause, &[&'static str])],
) -> impl Iterator<Item = (&'static str, Cause)> {
    table.iter().flat_map(|(cause, calls)| calls.iter().map(|call| (*call, *cause)))
}

/// What a system call waits for, where nothing else tells. Only those that can hardly wait for anything else.
pub(super) const CALLS: &[(Cause, &[&str])] = &[
    (Cause::Futex, &["futex", "futex_wait", "futex_waitv"]),
    (Cause::FileLock, &["flock"]),
    (
        Cause::Poll,
        &["poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"],
    ),
    (Cause::Timer, &["nanosleep", "clock_nanosleep"]),
    (Cause::Child, &["wait4", "waitid"]),
    (Cause::Vfork, &["vfork"]),
    (Cause::Signal, &["pause", "rt_sigsuspend", "rt_sigtimedwait"]),
    (
        Cause::Socket,
        &[
            "accept", "accept4", "connect", "recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg",
            "sendmmsg",
        ],
    ),
    (Cause::Ipc, &["msgrcv", "msgsnd", "semop", "semtimedop", "mq_timedreceive", "mq_timedsend"]),
    (Cause::AsyncIo, &["io_getevents", "io_pgetevents", "io_uring_enter"]),
    (Cause::Writeback, &["fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "msync"]),
    (Cause::Exit, &["exit", "exit_group"]),
];

/// What a wait for a disk in a system call is for, where nothing else tells.
pub(super) const DISK_CALLS: &[(Cause, &[&str])] = &[
    (
        Cause::DiskRead,
        &[
            "read",
            "pread64",
            "readv",
            "preadv",
            "preadv2",
            "readahead",
            "open",
            "openat",
            "openat2",
            "stat",
            "lstat",
            "newfstatat",
            "statx",
            "access",
            "faccessat",
            "faccessat2",
            "getdents",
            "getdents64",
            "readlink",
            "readlinkat",
            "execve",
            "execveat",
        ],
    ),
    (Cause::DiskWrite, &["write", "pwrite64", "writev", "pwritev", "pwritev2"]),
    (Cause::Writeback, &["fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "msync"]),
];

/// System calls that change or list directories or change inodes: where a semaphore's waiter has no stack, waiting in
/// one of them (or for a task in one of them) means the inode's lock.
pub(super) const INODE_CALLS: &[&str] = &[
    "unlink",
    "unlinkat",
    "rmdir",
    "mkdir",
    "mkdirat",
    "mknod",
    "mknodat",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "rename",
    "renameat",
    "renameat2",
    "creat",
    "getdents",
    "getdents64",
    "truncate",
    "ftruncate",
    "chmod",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "chown",
    "fchown",
    "lchown",
    "fchownat",
    "utimensat",
    "setxattr",
    "fsetxattr",
    "lsetxattr",
    "removexattr",
];
