//! The BPF program that notes page tables and FS bases of processes (bpf/guest_processes.bpf.c).

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use aya::maps::{Array, Map, MapData, MapError, RingBuf};
use linux::tasks::{Layout, comm};
use tracer::error_chain;

use super::load::{LoadError, Loading, attach};
use super::timeline::{Event, EventKind};

/// Bytes of `struct guest_process_event`.
const EVENT_BYTES: usize = 56;
const FORK: u32 = 1;
const EXEC: u32 = 2;
const EXIT: u32 = 3;
const KERNEL_EXIT: u32 = 4;

/// Programs, and the tracepoints that they run at.
const PROGRAMS: [(&str, &CStr); 3] = [
    ("on_fork", c"sched_process_fork"),
    ("on_exec", c"sched_process_exec"),
    ("on_exit", c"sched_process_exit"),
];

/// Why the program can't log processes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogProgramError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("the kernel refused to run BPF program {name}: {reason}")]
    Attach { name: &'static str, reason: io::Error },
    #[error("failed to read a BPF map: {}", error_chain(.0))]
    Map(#[from] MapError),
}

/// The program in the kernel, at rest.
pub(crate) struct LoadedProgram {
    events: RingBuf<MapData>,
    lost: Array<MapData, u64>,
    programs: Vec<OwnedFd>,
}

/// The running program. Dropping it takes it out of the kernel.
pub(crate) struct LogProgram {
    loaded: LoadedProgram,
    _attached: Vec<OwnedFd>,
    /// What earlier logs lost.
    lost_before: u64,
}

impl LoadedProgram {
    /// Loads it. It needs no relocation by the kernel's types: `layout` has the offsets of fields.
    pub(crate) fn load(layout: &Layout) -> Result<Self, LogProgramError> {
        let constants = [
            ("task_mm", layout.mm),
            ("task_flags", layout.flags),
            ("task_stack", layout.stack),
            ("task_start_time", layout.start_time),
            ("task_pid", layout.pid),
            ("task_tgid", layout.tgid),
            ("task_comm", layout.comm),
            ("task_fs_base", layout.fs_base),
            ("mm_pgd", layout.pgd),
        ];
        let mut loading = Loading::maps(bpf::GUEST_PROCESSES, &constants)?;
        let programs = PROGRAMS.map(|(name, _)| loading.program(name));
        let programs = programs.into_iter().collect::<Result<_, _>>()?;
        let events = MapData::from_fd(loading.take_map("events")?)?;
        let lost = MapData::from_fd(loading.take_map("lost")?)?;
        let events = RingBuf::try_from(Map::RingBuf(events))?;
        Ok(Self { events, lost: Array::try_from(Map::Array(lost))?, programs })
    }

    /// Has it note processes from now on.
    pub(crate) fn attach(mut self) -> Result<LogProgram, LogProgramError> {
        // The rest of an earlier log.
        while self.events.next().is_some() {}
        let lost_before = self.lost.get(&0, 0)?;
        let attached = self.programs.iter().zip(PROGRAMS).map(|(program, (name, tracepoint))| {
            attach(program.as_fd(), tracepoint)
                .map_err(|reason| LogProgramError::Attach { name, reason })
        });
        let attached = attached.collect::<Result<_, _>>()?;
        Ok(LogProgram { loaded: self, _attached: attached, lost_before })
    }
}

impl LogProgram {
    /// Takes it off the tracepoints; it stays in the kernel for the next log.
    pub(crate) fn detach(self) -> LoadedProgram {
        self.loaded
    }

    /// Its events since the last call.
    pub(crate) fn drain(&mut self, page_offset: u64) -> Vec<Event> {
        let mut events = Vec::new();
        // Bounded: a busy guest goes on writing while this reads.
        while events.len() < MAX_EVENTS
            && let Some(item) = self.loaded.events.next()
        {
            events.extend(parse(&item, page_offset));
        }
        events
    }

    /// How many events found no room so far.
    pub(crate) fn lost(&self) -> Result<u64, LogProgramError> {
        Ok(self.loaded.lost.get(&0, 0)?.saturating_sub(self.lost_before))
    }
}

impl std::fmt::Debug for LoadedProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadedProgram").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for LogProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogProgram").finish_non_exhaustive()
    }
}

/// Twice as many as the ring holds.
const MAX_EVENTS: usize = 1 << 17;

pub(super) fn parse(bytes: &[u8], page_offset: u64) -> Option<Event> {
    let bytes: &[u8; EVENT_BYTES] = bytes.first_chunk()?;
    let word = |at: usize| bytes[at..].first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
    let half = |at: usize| bytes[at..].first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    let (pgd, fs_base) = (word(8)?, word(16)?);
    let cr3 = pgd.wrapping_sub(page_offset);
    let name = comm(bytes[40..].first_chunk()?);
    let kind = match half(24)? {
        FORK => EventKind::Fork { parent: half(36)?, name, cr3: Some(cr3), fs_base },
        EXEC => EventKind::Exec { name, cr3 },
        EXIT => EventKind::Exit { fs_base },
        KERNEL_EXIT => EventKind::KernelExit { name, stack: pgd, start_ns: fs_base },
        _ => return None,
    };
    Some(Event { time_ns: word(0)?, pid: half(28)?, tid: half(32)?, kind })
}

#[cfg(test)]
mod test {
    use super::*;

    fn record(kind: u32) -> Vec<u8> {
        let words = [1000u64, 0xffff_8880_0123_4000, 0x7f11].map(u64::to_ne_bytes).concat();
        let halves = [kind, 7, 8, 1].map(u32::to_ne_bytes).concat();
        [&words[..], &halves[..], b"cat\0garbage\0\0\0\0\0"].concat()
    }

    fn check(kind: u32, expected: Option<EventKind>) {
        let expected = expected.map(|kind| Event { time_ns: 1000, pid: 7, tid: 8, kind });
        let bytes = record(kind);
        assert_eq!(parse(&bytes, 0xffff_8880_0000_0000), expected);
        assert_eq!(parse(&bytes[..55], 0), None);
    }

    #[test]
    fn records_become_events() {
        let cr3 = 0x0123_4000;
        let name = || "cat".to_owned();
        let fork = EventKind::Fork { parent: 1, name: name(), cr3: Some(cr3), fs_base: 0x7f11 };
        check(1, Some(fork));
        check(2, Some(EventKind::Exec { name: name(), cr3 }));
        check(3, Some(EventKind::Exit { fs_base: 0x7f11 }));
        let stack = 0xffff_8880_0123_4000;
        check(4, Some(EventKind::KernelExit { name: name(), stack, start_ns: 0x7f11 }));
        check(5, None);
    }

    /// Bytes that this thread has read so far.
    fn read_bytes() -> Option<u64> {
        let io = std::fs::read_to_string("/proc/thread-self/io").ok()?;
        io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok())
    }

    #[test]
    fn loading_reads_no_type_information_of_the_kernel() {
        let btf = std::path::Path::new("/sys/kernel/btf/vmlinux");
        let Ok(layout) = super::super::btf::read_layout(btf) else {
            return skip::skip("this kernel has no BTF");
        };
        let Some(before) = read_bytes() else {
            return skip::skip("this kernel does not count what threads read");
        };
        if let Err(error) = LoadedProgram::load(&layout).and_then(LoadedProgram::attach) {
            return skip::skip_if_refused(error);
        }
        let read = read_bytes().unwrap() - before;
        assert!(read < 1 << 20, "{read} bytes");
    }

    #[test]
    fn the_program_notes_a_child() {
        let btf = std::path::Path::new("/sys/kernel/btf/vmlinux");
        let Ok(layout) = super::super::btf::read_layout(btf) else {
            return skip::skip("this kernel has no BTF");
        };
        let mut program = match LoadedProgram::load(&layout).and_then(LoadedProgram::attach) {
            Ok(program) => program,
            Err(error) => return skip::skip_if_refused(error),
        };
        notes_a_child(&mut program);
        // For the next log it is not loaded again, and what an earlier one left is gone.
        std::process::Command::new("/bin/true").status().unwrap();
        let mut program = program.detach().attach().unwrap();
        let own = std::process::id();
        let of_own =
            |event: &Event| matches!(event.kind, EventKind::Fork { parent, .. } if parent == own);
        assert!(!program.drain(0).iter().any(of_own));
        notes_a_child(&mut program);
    }

    fn notes_a_child(program: &mut LogProgram) {
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let events = program.drain(0);
        let kinds: Vec<_> =
            events.into_iter().filter(|event| event.pid == pid).map(|event| event.kind).collect();
        let own = std::process::id();
        assert!(
            matches!(
                &kinds[..],
                [
                    EventKind::Fork { parent, .. },
                    EventKind::Exec { name, cr3 },
                    EventKind::Exit { fs_base }
                ] if *parent == own && name == "true" && *cr3 != 0 && *fs_base != 0
            ),
            "{kinds:x?}"
        );
        assert_eq!(program.lost().unwrap(), 0);
        assert_eq!(program.drain(0).iter().filter(|event| event.pid == pid).count(), 0);
    }
}
