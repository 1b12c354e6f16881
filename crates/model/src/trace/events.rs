//! The table of trace events. A new event is a row here and a probe in `bpf/tracer.bpf.c`.
//!
//! From the rows come: the enum, the names, the kinds of slots that BPF programs write (also as the C header that they
//! include), the decoder of slots, and the fields that files store.
//!
//! ```text
//! Variant "name in files" [spool tags] { field: Type => column, ... }        column(no, yes): the words of a bool
//!     number C_NAME [slots of a record] => value,               once per kind of slot; `?` refuses a record
//! ```
//! Names, tags, numbers and the order of fields are stable: files have them, and guests of another version write them.
//! Tags are less than 64.

use super::fields::{EventColumn, Field, FieldPlace, FieldSink, FieldSource};
use super::slot::{Record, lock_kind, stack, user_stack, value};
use super::{
    BlockOp, BlockRequest, Interrupt, LockKind, PrevState, RequestContent, Slot, TaskName,
    TraceStack, Vector,
};
use crate::{Pid, Tid};

/// A kind of slot that begins a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotKind {
    pub number: u8,
    /// Its name in C, after `TRACE_`.
    pub c_name: &'static str,
    /// The event that its records are.
    pub event: TraceEventTag,
}

macro_rules! trace_events {
    (|$record:ident| $(
        $(#[$doc:meta])*
        $variant:ident $name:literal [$($tag:literal)*] $( ($payload:ident: $payload_type:ident) )? $({ $(
            $(#[$field_doc:meta])*
            $field:ident: $type:ty => $column:ident $(($no:literal, $yes:literal))?,
        )* })?
        $($number:literal $c_name:ident [$slots:literal] => $value:expr,)+
    )*) => {
        /// What happened. Thread ids are those of the machine's initial PID namespace; 0 is a CPU's idle task.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum TraceEventKind {
            $($(#[$doc])* $variant $( ($payload_type) )? $({ $($(#[$field_doc])* $field: $type,)* })?,)*
        }

        /// A [`TraceEventKind`] without its fields.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum TraceEventTag {
            $($(#[$doc])* $variant,)*
        }

        impl TraceEventTag {
            /// All tags, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The kind's name: in files, in counters of losses, in messages.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The bytes that begin such an event in a spool: one for each word that it may have. When words are more, the
            /// last byte stands for the rest, and another says which.
            #[must_use]
            pub const fn spool_tags(self) -> &'static [u8] {
                match self {
                    $(Self::$variant => &[$($tag),*],)*
                }
            }

            /// Reads the fields of such an event. `None`: the input is damaged.
            pub fn take(self, source: &mut impl FieldSource) -> Option<TraceEventKind> {
                Some(match self {
                    $(Self::$variant => TraceEventKind::$variant
                        $( (<$payload_type as Field>::take(PAYLOAD, source)?) )?
                        $({ $($field: <$type as Field>::take(place!($column $(($no, $yes))?), source)?,)* })?,)*
                })
            }
        }

        impl TraceEventKind {
            /// Which kind it is.
            #[must_use]
            pub fn tag(&self) -> TraceEventTag {
                match self {
                    $(Self::$variant { .. } => TraceEventTag::$variant,)*
                }
            }

            /// Writes the event's fields.
            pub fn put(&self, sink: &mut impl FieldSink) {
                match *self {
                    $(Self::$variant $( ($payload) )? $({ $($field,)* })? => {
                        $($payload.put(PAYLOAD, sink);)?
                        $($($field.put(place!($column $(($no, $yes))?), sink);)*)?
                    })*
                }
            }

            /// The event of a record of slots, which has as many as `record_slots` says. `None`: a value is out of range.
            fn from_record($record: Record<'_>) -> Option<Self> {
                Some(match $record.0[0].kind() {
                    $($($number => $value,)+)*
                    _ => return None,
                })
            }
        }

        /// All kinds of slots that begin a record.
        pub const SLOT_KINDS: &[SlotKind] = &[
            $($(SlotKind {
                number: $number,
                c_name: stringify!($c_name),
                event: TraceEventTag::$variant,
            },)+)*
        ];

        /// Slots of a record that begins with this kind; `None`: no record does.
        #[must_use]
        pub fn record_slots(kind: u8) -> Option<usize> {
            match kind {
                $($($number => Some($slots),)+)*
                _ => None,
            }
        }
    };
}

macro_rules! place {
    ($column:ident) => {
        FieldPlace { column: EventColumn::$column, words: &[] }
    };
    ($column:ident($no:literal, $yes:literal)) => {
        FieldPlace { column: EventColumn::$column, words: &[$no, $yes] }
    };
}

/// Payloads have several columns, which they name themselves.
const PAYLOAD: FieldPlace = place!(Detail);

/// One more than the largest number of a kind of slot.
pub const N_SLOT_KINDS: usize = {
    let (mut n, mut i) = (0, 0);
    while i < SLOT_KINDS.len() {
        let number = SLOT_KINDS[i].number as usize;
        n = if n <= number { number + 1 } else { n };
        i += 1;
    }
    n
};

trace_events! { |r|
    /// The CPU went from one task to another.
    Switch "switch" [0 1 2 3 4 5] {
        /// Who had the CPU.
        prev: Tid => Tid,
        /// Who has it now.
        next: Tid => OtherTid,
        /// Why it left.
        prev_state: PrevState => Detail,
        /// Where it fell asleep; unknown when it did not sleep or the stack could not be stored.
        stack: Option<TraceStack> => Stack,
        /// Where its program was then.
        user_stack: Option<TraceStack> => UserStack,
    }
        1 SWITCH_RUNNABLE [1] => switch(r, PrevState::Runnable),
        2 SWITCH_SLEEP [2] => sleep(r, PrevState::Sleep),
        3 SWITCH_DISK [2] => sleep(r, PrevState::Uninterruptible { io: r.data(1) != 0 }),
        4 SWITCH_STOPPED [1] => switch(r, PrevState::Stopped),
        5 SWITCH_DEAD [1] => switch(r, PrevState::Dead),
    /// The task that runs on this CPU (or an interrupt of it) begins to wake a task.
    Waking "waking" [6] {
        /// Who is woken.
        task: Tid => Tid,
        /// The task that runs here: the waker, unless an interrupt is being handled.
        by: Tid => OtherTid,
    }
        6 WAKING [1] => TraceEventKind::Waking { task: r.task(), by: r.other_task() },
    /// A woken task was put on a CPU's queue: from now on it waits for a CPU.
    Wakeup "wakeup" [7] {
        /// Who was woken.
        task: Tid => Tid,
        /// On whose queue.
        target_cpu: u32 => Number,
    }
        7 WAKEUP [1] => TraceEventKind::Wakeup { task: r.task(), target_cpu: r.high(0) },
    /// A task was made.
    Fork "fork" [8 35] {
        /// Who made it.
        parent: Tid => Tid,
        /// The new one's thread id.
        child: Tid => OtherTid,
        /// Its process: equal to `child` unless it is a thread.
        pid: Pid => Number,
        /// It is one of the kernel's own, or works for a program within the kernel (io_uring, vhost).
        kernel: bool => Detail("", "kernel"),
    }
        8 FORK [2] => TraceEventKind::Fork {
            parent: r.other_task(),
            child: r.task(),
            pid: Pid(r.whole(1)?),
            kernel: r.data(1) != 0,
        },
    /// A task runs another program from now on.
    Exec "exec" [9] {
        task: Tid => Tid,
        /// Its new name.
        name: TaskName => Name,
    }
        9 EXEC [2] => TraceEventKind::Exec { task: r.task(), name: r.name(1) },
    /// A task has a new name.
    Rename "rename" [10] {
        task: Tid => Tid,
        name: TaskName => Name,
    }
        10 RENAME [2] => TraceEventKind::Rename { task: r.task(), name: r.name(1) },
    /// A task ends.
    Exit "exit" [11] {
        task: Tid => Tid,
    }
        11 EXIT [1] => TraceEventKind::Exit { task: r.task() },
    /// A system call begins.
    SyscallEnter "syscall_enter" [12] {
        /// Who calls.
        task: Tid => Tid,
        /// Its number on x86-64.
        number: u16 => Number,
    }
        12 SYSCALL_ENTER [1] => TraceEventKind::SyscallEnter { task: r.task(), number: r.high(0).try_into().ok()? },
    /// A system call ends.
    SyscallExit "syscall_exit" [13 14] {
        /// Who called.
        task: Tid => Tid,
        /// Its number on x86-64.
        number: u16 => Number,
        failed: bool => Detail("", "failed"),
    }
        13 SYSCALL_EXIT [1] => TraceEventKind::SyscallExit {
            task: r.task(),
            number: (r.high(0) & !SYSCALL_FAILED).try_into().ok()?,
            failed: r.high(0) & SYSCALL_FAILED != 0,
        },
    /// Handling of an interrupt begins.
    InterruptEnter "interrupt_enter" [15 16 17] (interrupt: Interrupt)
        14 IRQ_ENTER [1] => TraceEventKind::InterruptEnter(Interrupt::Device(r.whole(0)?)),
        16 SOFTIRQ_ENTER [1] => TraceEventKind::InterruptEnter(Interrupt::Soft(r.whole(0)?)),
        18 VECTOR_ENTER [1] => TraceEventKind::InterruptEnter(Interrupt::Vector(value(Vector::ALL, r.payload(0))?)),
    /// Handling of an interrupt ends.
    InterruptExit "interrupt_exit" [18 19 20] (interrupt: Interrupt)
        15 IRQ_EXIT [1] => TraceEventKind::InterruptExit(Interrupt::Device(r.whole(0)?)),
        17 SOFTIRQ_EXIT [1] => TraceEventKind::InterruptExit(Interrupt::Soft(r.whole(0)?)),
        19 VECTOR_EXIT [1] => TraceEventKind::InterruptExit(Interrupt::Vector(value(Vector::ALL, r.payload(0))?)),
    /// A page fault begins.
    FaultEnter "fault_enter" [22 21] {
        /// The address that was touched.
        address: u64 => Address,
        /// Whether user code did.
        user: bool => Detail("kernel", "user"),
    }
        20 FAULT_USER [1] => TraceEventKind::FaultEnter { address: r.payload(0), user: true },
        21 FAULT_KERNEL [1] => TraceEventKind::FaultEnter { address: r.payload(0), user: false },
    /// The page of a fault is there. Only where the kernel lets us see it.
    FaultExit "fault_exit" [23 24] {
        /// Whether it came from a disk (a major fault).
        major: bool => Detail("minor", "major"),
    }
        22 FAULT_END [1] => TraceEventKind::FaultExit { major: r.payload(0) != 0 },
    /// A request joined a disk's queue.
    BlockInsert "block_insert" [25] (request: BlockRequest)
        23 BLOCK_INSERT [3] => TraceEventKind::BlockInsert(request(r)?),
    /// A request went to the disk.
    BlockIssue "block_issue" [26] (request: BlockRequest)
        24 BLOCK_ISSUE [3] => TraceEventKind::BlockIssue(request(r)?),
    /// A request went back to the queue.
    BlockRequeue "block_requeue" [27] {
        request: u64 => Address,
    }
        25 BLOCK_REQUEUE [1] => TraceEventKind::BlockRequeue { request: r.payload(0) },
    /// A queued request is none from now on: another one does its work, too.
    BlockMerge "block_merge" [36] {
        request: u64 => Address,
    }
        29 BLOCK_MERGE [1] => TraceEventKind::BlockMerge { request: r.payload(0) },
    /// A disk finished a request. An empty write that asks for a flush has no begin.
    BlockComplete "block_complete" [28] {
        /// Which: names it from insert or issue to here, then may be used again.
        request: u64 => Address,
        /// Bytes done.
        bytes: u32 => Bytes,
    }
        26 BLOCK_COMPLETE [2] => TraceEventKind::BlockComplete { request: r.payload(0), bytes: r.whole(1)? },
    /// A task begins to wait for a held lock.
    LockBegin "lock_begin" [29 30 31 32 33 37] {
        /// Who waits.
        task: Tid => Tid,
        lock: u64 => Address,
        kind: LockKind => Detail,
        /// Who holds it, if the lock says so.
        owner: Option<Tid> => OtherTid,
        /// Where the task waits.
        stack: Option<TraceStack> => Stack,
    }
        27 LOCK_BEGIN [3] => TraceEventKind::LockBegin {
            task: Tid(r.whole(2)?),
            lock: r.payload(0),
            kind: lock_kind(r.data(1)),
            owner: Some(Tid(r.low(1))).filter(|owner| owner.0 != 0),
            stack: stack(r.high(1)),
        },
    /// The task has the lock, or gave up.
    LockEnd "lock_end" [34] {
        /// Who waited.
        task: Tid => Tid,
        lock: u64 => Address,
    }
        28 LOCK_END [2] => TraceEventKind::LockEnd { task: Tid(r.whole(1)?), lock: r.payload(0) },
    /// The system call that the task is in is of this file.
    CallFile "call_file" [38] {
        task: Tid => Tid,
        /// Its number in the table of files; 0: it found no room there.
        file: u32 => Number,
    }
        30 CALL_FILE [1] => TraceEventKind::CallFile { task: r.task(), file: r.high(0) },
    /// The task's system call returns how many bytes it read or wrote.
    CallBytes "call_bytes" [39] {
        task: Tid => Tid,
        bytes: u32 => Bytes,
    }
        31 CALL_BYTES [1] => TraceEventKind::CallBytes { task: r.task(), bytes: r.high(0) },
    /// Pages of a file were added to the page cache.
    PageAdded "page_added" [40] {
        /// Who added them.
        task: Tid => Tid,
        /// As in `CallFile`.
        file: u32 => Number,
        bytes: u32 => Bytes,
    }
        32 PAGE_ADDED [1] => TraceEventKind::PageAdded {
            task: r.task(),
            file: r.high(0) & FILE_MASK,
            bytes: (r.high(0) >> FILE_MASK.count_ones()) * PAGE_BYTES,
        },
    /// The lock that the task begins to wait for is this file's.
    LockFile "lock_file" [41] {
        task: Tid => Tid,
        /// As in `CallFile`.
        file: u32 => Number,
    }
        33 LOCK_FILE [1] => TraceEventKind::LockFile { task: r.task(), file: r.high(0) },
    /// What a request holds that goes to the disk.
    BlockFile "block_file" [42 43 44 45] {
        request: u64 => Address,
        content: RequestContent => Detail,
        /// As in `CallFile`, of a request that holds pages of a file; else 0.
        file: u32 => Number,
    }
        34 BLOCK_FILE [2] => TraceEventKind::BlockFile {
            request: r.payload(0),
            content: value(RequestContent::ALL, r.data(1))?,
            file: r.whole(1)?,
        },
    /// The system call that the task is in is of a socket.
    CallSocket "call_socket" [46 47] {
        task: Tid => Tid,
        /// Its address family is that of IP: other machines, or this one through its network stack.
        network: bool => Detail("local", "network"),
    }
        35 CALL_SOCKET [1] => TraceEventKind::CallSocket { task: r.task(), network: r.high(0) != 0 },
}

/// `TRACE_FILE_BITS` of a page's record: its file. The rest is the number of pages.
const FILE_MASK: u32 = (1 << 20) - 1;
const PAGE_BYTES: u32 = 4096;

/// `TRACE_SYSCALL_EXIT`: it failed.
const SYSCALL_FAILED: u32 = 1 << 31;

fn switch(r: Record<'_>, prev_state: PrevState) -> TraceEventKind {
    let (prev, next) = (r.other_task(), r.task());
    TraceEventKind::Switch { prev, prev_state, stack: None, user_stack: None, next }
}

fn sleep(r: Record<'_>, prev_state: PrevState) -> TraceEventKind {
    let (stack, user_stack) = (stack(r.low(1)), user_stack(r.high(1)));
    TraceEventKind::Switch { prev: r.other_task(), prev_state, stack, user_stack, next: r.task() }
}

fn request(r: Record<'_>) -> Option<BlockRequest> {
    Some(BlockRequest {
        request: r.payload(0),
        disk: r.high(1),
        sector: r.data(1),
        bytes: r.whole(2)?,
        op: value(BlockOp::ALL, r.data(2))?,
        task: Tid(r.low(1)),
    })
}

impl TraceEventTag {
    /// The tag with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|tag| tag.name() == name)
    }
}

impl TraceEventKind {
    /// The kind's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.tag().name()
    }

    /// The event that a record's slots hold. `None`: they are too few, no record begins so, or a value is out of range.
    #[must_use]
    pub fn from_slots(slots: &[Slot]) -> Option<Self> {
        let n = record_slots(slots.first()?.kind())?;
        if slots.len() == n { Self::from_record(Record(slots)) } else { None }
    }
}

/// The kinds of slots as a C header, for the BPF programs.
#[must_use]
pub fn slot_kinds_header() -> String {
    let define = |kind: &SlotKind| format!("#define TRACE_{} {}\n", kind.c_name, kind.number);
    let kinds: String = SLOT_KINDS.iter().map(define).collect();
    format!("{kinds}#define TRACE_KINDS {N_SLOT_KINDS}\n")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique() {
        let unique = |mut all: Vec<String>| {
            let n = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), n);
        };
        unique(SLOT_KINDS.iter().map(|kind| kind.number.to_string()).collect());
        unique(SLOT_KINDS.iter().map(|kind| kind.c_name.to_owned()).collect());
        unique(TraceEventTag::ALL.iter().map(|tag| tag.name().to_owned()).collect());
        let spool_tags = TraceEventTag::ALL.iter().flat_map(|tag| tag.spool_tags());
        unique(spool_tags.map(u8::to_string).collect());
    }

    #[test]
    fn every_kind_of_slot_gives_the_event_it_says() {
        for kind in SLOT_KINDS {
            let first = Slot { tag: u64::from(kind.number) << 48, payload: 0 };
            let mut slots = vec![first];
            slots.resize(record_slots(kind.number).unwrap_or(0), Slot::default());
            let tag = TraceEventKind::from_slots(&slots).map(|event| event.tag());
            assert_eq!(tag, Some(kind.event));
            assert_eq!(TraceEventTag::from_name(kind.event.name()), tag);
        }
    }

    #[test]
    fn the_programs_header() {
        let header = slot_kinds_header();
        assert!(header.starts_with("#define TRACE_SWITCH_RUNNABLE 1\n"), "{header}");
        assert!(header.ends_with(&format!("#define TRACE_KINDS {N_SLOT_KINDS}\n")), "{header}");
    }
}
