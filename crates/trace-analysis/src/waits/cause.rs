//! What a task waits for.

use std::fmt;

/// Why a task does not run. Stopped and unknown are causes too: run time and all causes add up to a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// A CPU, after it was woken or made.
    CpuWoken,
    /// A CPU, after it lost one that it could have kept using.
    CpuPreempted,
    DiskRead,
    /// A disk, to write; also held back until the disk's queue is shorter.
    DiskWrite,
    /// A disk, to write its cache down.
    DiskFlush,
    /// A disk, to discard blocks or to fill them with zeros.
    DiskDiscard,
    /// A disk, within a page fault: the page has to be read.
    DiskFault,
    /// A disk; whether to read or to write is not known.
    Disk,
    /// Pages being written back (fsync, sync, truncation, a page that must not change meanwhile).
    Writeback,
    /// Too many dirty pages: writers are held back.
    DirtyThrottling,
    /// The file system's journal or log.
    Journal,
    /// A file server: 9p, NFS, FUSE, virtiofs...
    FileServer,
    /// The lock of a directory or file (`i_rwsem`).
    InodeLock,
    /// Another lock.
    Lock(LockClass),
    /// A futex: a lock, condition or thread's end in user space.
    Futex,
    /// A lock on a file (flock, fcntl, leases).
    FileLock,
    /// A pipe's other end.
    Pipe,
    /// A socket's other end.
    Socket,
    /// A message queue or a semaphore of System V or POSIX.
    Ipc,
    /// Whichever of several files is ready first (poll, select, epoll).
    Poll,
    /// Asynchronous reads and writes (aio, `io_uring`).
    AsyncIo,
    /// Something to read from an eventfd, inotify, the kernel's log, a device...
    Event,
    Timer,
    /// A child's end.
    Child,
    /// A vfork's child, which uses the parent's memory.
    Vfork,
    Signal,
    Terminal,
    /// A page fault that no disk is known to be needed for (userfaultfd, a page under migration, the host's paging).
    PageFault,
    /// Memory: reclaim, or a cgroup's limit.
    Memory,
    /// The threads that must end before another program can run.
    Exec,
    /// What must end before a task can.
    Exit,
    /// Something that the kernel does (RCU, work queues, other CPUs, modules).
    KernelWork,
    /// A guest that has nothing to do.
    Guest,
    /// A kernel task without work.
    KernelIdle,
    /// Nothing: it is stopped, traced or frozen.
    Stopped,
    Unknown(Unknown),
}

/// Causes that belong together, as they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    Cpu,
    /// A disk, or what in turn waits for one: journal, writeback, throttling.
    Disk,
    FileServer,
    InodeLock,
    /// Other locks of the kernel.
    OtherLocks,
    /// Other tasks, other machines, the user.
    Others,
    Timer,
    /// The kernel itself: memory, its own work, ends of tasks.
    Kernel,
    /// A kernel task without work: no waiting time.
    Idle,
    /// Stopped: no waiting time.
    Stopped,
    Unknown,
}

/// What a lock protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockClass {
    /// A process's map of its memory (`mmap_lock`, the locks of its areas).
    MemoryMap,
    /// From pages back to who maps them (`anon_vma`, `i_mmap_rwsem`).
    ReverseMap,
    /// A page of the page cache, and no disk is known to be at it.
    Page,
    /// A file's cached pages as a whole (`invalidate_lock`).
    PageCache,
    /// A name that another task is looking up.
    Dentry,
    /// An inode that another task is making or freeing.
    InodeState,
    /// Renames between directories (`s_vfs_rename_mutex`).
    Rename,
    /// A mounted file system (`s_umount`, freezing).
    Superblock,
    /// Mounts (`namespace_sem`).
    Mounts,
    /// A file system's own locks.
    FileSystem,
    Journal,
    /// sysfs, cgroupfs and the like.
    Kernfs,
    /// An open file's position.
    FilePosition,
    BlockDevice,
    Pipe,
    Socket,
    /// Network configuration (`rtnl_mutex`, namespaces).
    Network,
    Epoll,
    Terminal,
    /// A process as a whole (`exec_update_lock`, `cred_guard_mutex`).
    Process,
    Cgroup,
    /// Memory management as a whole (per-CPU memory, swap, compaction).
    MemoryManagement,
    /// A spinlock that sleeps (real-time kernels).
    Spin,
    /// Any other; the waiting function is reported.
    Other,
}

/// Why a wait has no cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unknown {
    /// There is no event of the task.
    NoEvent,
    /// It sleeps, and there is neither a stack nor other evidence.
    NoStack,
    /// It sleeps, and nothing in the stack is known.
    Unrecognised,
}

impl Cause {
    /// Every cause but locks and unknown ones.
    const PLAIN: [Self; 34] = [
        Self::CpuWoken,
        Self::CpuPreempted,
        Self::DiskRead,
        Self::DiskWrite,
        Self::DiskFlush,
        Self::DiskDiscard,
        Self::DiskFault,
        Self::Disk,
        Self::Writeback,
        Self::DirtyThrottling,
        Self::Journal,
        Self::FileServer,
        Self::InodeLock,
        Self::Futex,
        Self::FileLock,
        Self::Pipe,
        Self::Socket,
        Self::Ipc,
        Self::Poll,
        Self::AsyncIo,
        Self::Event,
        Self::Timer,
        Self::Child,
        Self::Vfork,
        Self::Signal,
        Self::Terminal,
        Self::PageFault,
        Self::Memory,
        Self::Exec,
        Self::Exit,
        Self::KernelWork,
        Self::Guest,
        Self::KernelIdle,
        Self::Stopped,
    ];

    /// The cause or lock with this name in the tables.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let locks = LockClass::ALL.into_iter().map(Self::Lock);
        Self::PLAIN.into_iter().chain(locks).find(|cause| cause.name() == name)
    }

    /// The group it is shown in.
    #[must_use]
    pub fn group(self) -> Group {
        match self {
            Self::CpuWoken | Self::CpuPreempted => Group::Cpu,
            Self::DiskRead
            | Self::DiskWrite
            | Self::DiskFlush
            | Self::DiskDiscard
            | Self::DiskFault
            | Self::Disk
            | Self::Writeback
            | Self::DirtyThrottling
            | Self::Journal => Group::Disk,
            Self::FileServer => Group::FileServer,
            Self::InodeLock => Group::InodeLock,
            Self::Lock(_) => Group::OtherLocks,
            Self::Futex
            | Self::FileLock
            | Self::Pipe
            | Self::Socket
            | Self::Ipc
            | Self::Poll
            | Self::AsyncIo
            | Self::Event
            | Self::Child
            | Self::Vfork
            | Self::Signal
            | Self::Terminal
            | Self::Guest => Group::Others,
            Self::Timer => Group::Timer,
            Self::PageFault | Self::Memory | Self::Exec | Self::Exit | Self::KernelWork => {
                Group::Kernel
            }
            Self::KernelIdle => Group::Idle,
            Self::Stopped => Group::Stopped,
            Self::Unknown(_) => Group::Unknown,
        }
    }

    /// Its name in tables, JSON and CSV.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CpuWoken => "cpu (woken)",
            Self::CpuPreempted => "cpu (preempted)",
            Self::DiskRead => "disk read",
            Self::DiskWrite => "disk write",
            Self::DiskFlush => "disk flush",
            Self::DiskDiscard => "disk discard",
            Self::DiskFault => "page fault (disk)",
            Self::Disk => "disk",
            Self::Writeback => "writeback",
            Self::DirtyThrottling => "dirty throttling",
            Self::Journal => "journal",
            Self::FileServer => "file server",
            Self::InodeLock => "inode lock",
            Self::Lock(class) => class.name(),
            Self::Futex => "futex",
            Self::FileLock => "file lock",
            Self::Pipe => "pipe",
            Self::Socket => "socket",
            Self::Ipc => "message queue or semaphore",
            Self::Poll => "poll",
            Self::AsyncIo => "asynchronous i/o",
            Self::Event => "event",
            Self::Timer => "timer",
            Self::Child => "child",
            Self::Vfork => "vfork",
            Self::Signal => "signal",
            Self::Terminal => "terminal",
            Self::PageFault => "page fault",
            Self::Memory => "memory",
            Self::Exec => "exec",
            Self::Exit => "exit",
            Self::KernelWork => "kernel work",
            Self::Guest => "guest idle",
            Self::KernelIdle => "kernel task idle",
            Self::Stopped => "stopped",
            Self::Unknown(why) => why.name(),
        }
    }

    /// Whether its time counts as waiting; unknown time does, so that it has a share.
    #[must_use]
    pub fn is_waiting(self) -> bool {
        !matches!(self.group(), Group::Idle | Group::Stopped)
    }

    /// Whether it is about files' contents, not about other tasks.
    pub(super) fn is_storage(self) -> bool {
        matches!(self.group(), Group::Disk | Group::FileServer)
    }
}

impl Group {
    /// In the order of the output.
    pub const ALL: [Self; 11] = [
        Self::Cpu,
        Self::Disk,
        Self::FileServer,
        Self::InodeLock,
        Self::OtherLocks,
        Self::Others,
        Self::Timer,
        Self::Kernel,
        Self::Idle,
        Self::Stopped,
        Self::Unknown,
    ];

    /// Its name in tables, JSON and CSV.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Disk => "disk",
            Self::FileServer => "file server",
            Self::InodeLock => "inode lock",
            Self::OtherLocks => "other locks",
            Self::Others => "other tasks",
            Self::Timer => "timer",
            Self::Kernel => "kernel",
            Self::Idle => "kernel task idle",
            Self::Stopped => "stopped",
            Self::Unknown => "unknown",
        }
    }
}

impl LockClass {
    const ALL: [Self; 24] = [
        Self::MemoryMap,
        Self::ReverseMap,
        Self::Page,
        Self::PageCache,
        Self::Dentry,
        Self::InodeState,
        Self::Rename,
        Self::Superblock,
        Self::Mounts,
        Self::FileSystem,
        Self::Journal,
        Self::Kernfs,
        Self::FilePosition,
        Self::BlockDevice,
        Self::Pipe,
        Self::Socket,
        Self::Network,
        Self::Epoll,
        Self::Terminal,
        Self::Process,
        Self::Cgroup,
        Self::MemoryManagement,
        Self::Spin,
        Self::Other,
    ];

    /// Its name in tables, JSON and CSV.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryMap => "mmap lock",
            Self::ReverseMap => "reverse map lock",
            Self::Page => "page lock",
            Self::PageCache => "page cache lock",
            Self::Dentry => "dentry lock",
            Self::InodeState => "inode being made or freed",
            Self::Rename => "rename lock",
            Self::Superblock => "superblock lock",
            Self::Mounts => "mount lock",
            Self::FileSystem => "file system lock",
            Self::Journal => "journal lock",
            Self::Kernfs => "kernfs lock",
            Self::FilePosition => "file position lock",
            Self::BlockDevice => "block device lock",
            Self::Pipe => "pipe lock",
            Self::Socket => "socket lock",
            Self::Network => "network lock",
            Self::Epoll => "epoll lock",
            Self::Terminal => "terminal lock",
            Self::Process => "process lock",
            Self::Cgroup => "cgroup lock",
            Self::MemoryManagement => "memory management lock",
            Self::Spin => "spinlock",
            Self::Other => "other lock",
        }
    }
}

impl Unknown {
    /// Its name in tables, JSON and CSV.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoEvent => "unknown (no event shows it)",
            Self::NoStack => "unknown (no stack)",
            Self::Unrecognised => "unknown (stack not recognised)",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
