//! The BPF program that notes page tables and FS bases of processes (bpf/guest_processes.bpf.c).

use aya::maps::{Array, MapData, MapError, RingBuf};
use aya::programs::{Program, ProgramError, RawTracePoint};
use aya::{Ebpf, EbpfError, EbpfLoader};
use tracer::error_chain;

use super::timeline::{Event, EventKind};
use crate::walk::{Layout, comm};

/// Bytes of `struct guest_process_event`.
const EVENT_BYTES: usize = 56;
const FORK: u32 = 1;
const EXEC: u32 = 2;
const EXIT: u32 = 3;
const KERNEL_EXIT: u32 = 4;

/// Why the program can't log processes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogProgramError {
    #[error("the kernel refused the BPF objects: {}", error_chain(.0))]
    Load(#[from] EbpfError),
    #[error("the kernel refused BPF program {name}: {}", error_chain(.reason))]
    Program { name: &'static str, reason: ProgramError },
    #[error("failed to read a BPF map: {}", error_chain(.0))]
    Map(#[from] MapError),
    #[error("the BPF object has no {0}: build vmscope-guest again")]
    Missing(&'static str),
}

/// The running program. Dropping it takes it out of the kernel.
pub(crate) struct LogProgram {
    bpf: Ebpf,
    events: RingBuf<MapData>,
}

impl LogProgram {
    /// Loads and attaches it.
    pub(crate) fn start(layout: &Layout) -> Result<Self, LogProgramError> {
        let mut loader = EbpfLoader::new();
        // It needs no relocation: reading the kernel's BTF for one would take long.
        loader.btf(None);
        for (name, offset) in [
            ("task_mm", &layout.mm),
            ("task_flags", &layout.flags),
            ("task_stack", &layout.stack),
            ("task_start_time", &layout.start_time),
            ("task_pid", &layout.pid),
            ("task_tgid", &layout.tgid),
            ("task_comm", &layout.comm),
            ("task_fs_base", &layout.fs_base),
            ("mm_pgd", &layout.pgd),
        ] {
            loader.override_global(name, offset, true);
        }
        let mut bpf = loader.load(bpf::GUEST_PROCESSES)?;
        for (name, tracepoint) in [
            ("on_fork", "sched_process_fork"),
            ("on_exec", "sched_process_exec"),
            ("on_exit", "sched_process_exit"),
        ] {
            let program = bpf.program_mut(name).ok_or(LogProgramError::Missing(name))?;
            attach(program, tracepoint)
                .map_err(|reason| LogProgramError::Program { name, reason })?;
        }
        let events = bpf.take_map("events").ok_or(LogProgramError::Missing("events"))?;
        Ok(Self { events: RingBuf::try_from(events)?, bpf })
    }

    /// Its events since the last call.
    pub(crate) fn drain(&mut self, page_offset: u64) -> Vec<Event> {
        let mut events = Vec::new();
        // Bounded: a busy guest goes on writing while this reads.
        while events.len() < MAX_EVENTS
            && let Some(item) = self.events.next()
        {
            events.extend(parse(&item, page_offset));
        }
        events
    }

    /// How many events found no room so far.
    pub(crate) fn lost(&self) -> Result<u64, LogProgramError> {
        let map = self.bpf.map("lost").ok_or(LogProgramError::Missing("lost"))?;
        let lost: Array<_, u64> = Array::try_from(map)?;
        Ok(lost.get(&0, 0)?)
    }
}

impl std::fmt::Debug for LogProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogProgram").finish_non_exhaustive()
    }
}

fn attach(program: &mut Program, tracepoint: &str) -> Result<(), ProgramError> {
    let program: &mut RawTracePoint = program.try_into()?;
    program.load()?;
    program.attach(tracepoint).map(|_| ())
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

    #[test]
    fn the_program_notes_a_child() {
        let btf = std::path::Path::new("/sys/kernel/btf/vmlinux");
        let Ok(layout) = super::super::btf::read_layout(btf) else {
            return skip::skip("this kernel has no BTF");
        };
        let mut program = match LogProgram::start(&layout) {
            Ok(program) => program,
            Err(error) => return skip::skip_if_refused(error),
        };
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
