//! How the fields of trace events are written and read, whatever the format: a format implements [`FieldSink`] and
//! [`FieldSource`], a type that is a field of events implements [`Field`], once for all formats.

use super::{
    BlockOp, BlockRequest, FileKind, Interrupt, LockKind, PrevState, RequestContent, TaskName,
    TraceStack, Vector,
};
use crate::{Pid, Tid};

/// A column of a trace's event table. An event has at most one value for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventColumn {
    /// The task it happened to.
    Tid,
    /// The other task it concerns.
    OtherTid,
    /// Which variant of its kind it is: one of a few words.
    Detail,
    /// A task's new name.
    Name,
    /// A number: CPU, process, system call, interrupt, disk or file.
    Number,
    /// An address in the machine.
    Address,
    /// A kernel stack.
    Stack,
    UserStack,
    /// A request's first sector.
    Sector,
    /// A request's length.
    Bytes,
}

/// Where a field is stored.
#[derive(Debug, Clone, Copy)]
pub struct FieldPlace {
    pub column: EventColumn,
    /// For a `bool`: the words for false and true. An empty word is stored as no word.
    pub words: &'static [&'static str],
}

/// A format that takes an event's fields, one after the other.
pub trait FieldSink {
    /// One of a few words, by its index; an empty word is none.
    fn word(&mut self, index: usize, words: &'static [&'static str]);
    /// Whether the value of this column is there. Formats that see it by the value itself ignore this.
    fn presence(&mut self, column: EventColumn, is_present: bool);
    /// A number of 32 bits.
    fn u32(&mut self, column: EventColumn, value: u32);
    /// A number of 64 bits.
    fn u64(&mut self, column: EventColumn, value: u64);
    /// A task's name.
    fn name(&mut self, name: TaskName);
}

/// A format that gives an event's fields back, in the order in which it took them. `None`: the input is damaged.
pub trait FieldSource {
    /// Index of one of a few words.
    fn word(&mut self, words: &'static [&'static str]) -> Option<usize>;
    /// Whether the value of this column is there.
    fn presence(&mut self, column: EventColumn) -> Option<bool>;
    /// A number of 32 bits.
    fn u32(&mut self, column: EventColumn) -> Option<u32>;
    /// A number of 64 bits.
    fn u64(&mut self, column: EventColumn) -> Option<u64>;
    /// A task's name.
    fn name(&mut self) -> Option<TaskName>;
}

/// A type that can be a field of a trace event.
pub trait Field: Sized {
    /// Writes it.
    fn put(self, place: FieldPlace, sink: &mut impl FieldSink);

    /// Reads it.
    fn take(place: FieldPlace, source: &mut impl FieldSource) -> Option<Self>;
}

macro_rules! u32_fields {
    ($($type:ident)*) => {$(
        impl Field for $type {
            fn put(self, place: FieldPlace, sink: &mut impl FieldSink) {
                sink.u32(place.column, self.0);
            }

            fn take(place: FieldPlace, source: &mut impl FieldSource) -> Option<Self> {
                source.u32(place.column).map(Self)
            }
        }
    )*};
}

u32_fields!(Tid Pid TraceStack);

impl Field for u16 {
    fn put(self, place: FieldPlace, sink: &mut impl FieldSink) {
        sink.u32(place.column, self.into());
    }

    fn take(place: FieldPlace, source: &mut impl FieldSource) -> Option<Self> {
        source.u32(place.column)?.try_into().ok()
    }
}

impl Field for u32 {
    fn put(self, place: FieldPlace, sink: &mut impl FieldSink) {
        sink.u32(place.column, self);
    }

    fn take(place: FieldPlace, source: &mut impl FieldSource) -> Option<Self> {
        source.u32(place.column)
    }
}

impl Field for u64 {
    fn put(self, place: FieldPlace, sink: &mut impl FieldSink) {
        sink.u64(place.column, self);
    }

    fn take(place: FieldPlace, source: &mut impl FieldSource) -> Option<Self> {
        source.u64(place.column)
    }
}

impl Field for TaskName {
    fn put(self, _: FieldPlace, sink: &mut impl FieldSink) {
        sink.name(self);
    }

    fn take(_: FieldPlace, source: &mut impl FieldSource) -> Option<Self> {
        source.name()
    }
}

impl<T: Field> Field for Option<T> {
    fn put(self, place: FieldPlace, sink: &mut impl FieldSink) {
        sink.presence(place.column, self.is_some());
        if let Some(value) = self {
            value.put(place, sink);
        }
    }

    fn take(place: FieldPlace, source: &mut impl FieldSource) -> Option<Self> {
        if source.presence(place.column)? { T::take(place, source).map(Some) } else { Some(None) }
    }
}

/// Stored as one of the words of its place.
impl Field for bool {
    fn put(self, place: FieldPlace, sink: &mut impl FieldSink) {
        sink.word(self.into(), place.words);
    }

    fn take(place: FieldPlace, source: &mut impl FieldSource) -> Option<Self> {
        source.word(place.words).map(|index| index == 1)
    }
}

/// A type whose values are words: each with the word that files have for it, in the order of the numbers that BPF
/// programs have for it.
macro_rules! words {
    ($type:ident { $($value:expr => $word:literal,)* }) => {
        impl $type {
            /// All values, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$($value),*];
            const WORDS: &'static [&'static str] = &[$($word),*];

            /// The word that files have for it.
            #[must_use]
            pub fn word(self) -> &'static str {
                Self::WORDS[index(Self::ALL, self)]
            }

            /// The value with this word.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                let index = Self::WORDS.iter().position(|known| *known == word)?;
                Self::ALL.get(index).copied()
            }
        }

        impl Field for $type {
                    fn put(self, _: FieldPlace, sink: &mut impl FieldSink) {
                sink.word(index(Self::ALL, self), Self::WORDS);
            }

            fn take(_: FieldPlace, source: &mut impl FieldSource) -> Option<Self> {
                Self::ALL.get(source.word(Self::WORDS)?).copied()
            }
        }
    };
}

fn index<T: PartialEq>(values: &[T], value: T) -> usize {
    values.iter().position(|known| *known == value).expect("the table has every value of the type")
}

words!(PrevState {
    Self::Runnable => "runnable",
    Self::Sleep => "sleep",
    Self::Uninterruptible { io: false } => "uninterruptible",
    Self::Uninterruptible { io: true } => "io",
    Self::Stopped => "stopped",
    Self::Dead => "dead",
});

words!(BlockOp {
    Self::Read => "read",
    Self::Write => "write",
    Self::Flush => "flush",
    Self::Discard => "discard",
    Self::Other => "other",
});

words!(RequestContent {
    Self::File => "file",
    Self::Disk => "disk",
    Self::Metadata => "metadata",
    Self::Memory => "memory",
});

words!(FileKind {
    Self::Regular => "file",
    Self::Folder => "folder",
    Self::BlockDevice => "block_device",
    Self::Other => "other",
});

words!(LockKind {
    Self::Spin => "spin",
    Self::Mutex => "mutex",
    Self::SemRead => "sem_read",
    Self::SemWrite => "sem_write",
    Self::Other => "other",
    Self::Futex => "futex",
});

words!(Vector {
    Self::LocalTimer => "local_timer",
    Self::Reschedule => "reschedule",
    Self::CallFunction => "call_function",
    Self::CallFunctionSingle => "call_function_single",
    Self::IrqWork => "irq_work",
    Self::Other => "vector",
});

/// The classes of interrupts with a number, then all vectors.
const INTERRUPTS: &[&str] = &[
    "device",
    "soft",
    "local_timer",
    "reschedule",
    "call_function",
    "call_function_single",
    "irq_work",
    "vector",
];

impl Field for Interrupt {
    fn put(self, _: FieldPlace, sink: &mut impl FieldSink) {
        let (class, number) = match self {
            Self::Device(number) => (0, Some(number)),
            Self::Soft(number) => (1, Some(number)),
            Self::Vector(vector) => (2 + index(Vector::ALL, vector), None),
        };
        sink.word(class, INTERRUPTS);
        if let Some(number) = number {
            sink.u32(EventColumn::Number, number);
        }
    }

    fn take(_: FieldPlace, source: &mut impl FieldSource) -> Option<Self> {
        Some(match source.word(INTERRUPTS)? {
            0 => Self::Device(source.u32(EventColumn::Number)?),
            1 => Self::Soft(source.u32(EventColumn::Number)?),
            vector => Self::Vector(*Vector::ALL.get(vector - 2)?),
        })
    }
}

impl Field for BlockRequest {
    fn put(self, place: FieldPlace, sink: &mut impl FieldSink) {
        sink.u64(EventColumn::Address, self.request);
        sink.u64(EventColumn::Sector, self.sector);
        sink.u32(EventColumn::Number, self.disk);
        sink.u32(EventColumn::Bytes, self.bytes);
        sink.u32(EventColumn::Tid, self.task.0);
        self.op.put(place, sink);
    }

    fn take(place: FieldPlace, source: &mut impl FieldSource) -> Option<Self> {
        Some(Self {
            request: source.u64(EventColumn::Address)?,
            sector: source.u64(EventColumn::Sector)?,
            disk: source.u32(EventColumn::Number)?,
            bytes: source.u32(EventColumn::Bytes)?,
            task: Tid(source.u32(EventColumn::Tid)?),
            op: BlockOp::take(place, source)?,
        })
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn interrupts_have_the_words_of_vectors() {
        assert_eq!(INTERRUPTS[2..], *Vector::WORDS);
    }
}
