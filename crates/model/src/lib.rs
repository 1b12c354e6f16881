//! The words of vmscope: ids, clocks, addresses, samples, the tables of a recording, and the facts that reports, files and
//! messages share, each with its names.
//!
//! Design constraints: plain data and small pure functions. This crate must never do IO, read a
//! clock, spawn or use `unsafe`; every other crate may depend on it, it depends on none.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod address;
mod budget;
mod counter;
mod guest_task;
mod id;
mod interpreter;
mod results;
mod sample;
mod stack;
mod switch;
mod tables;
mod text;
mod time;
mod trace;
mod vcpu_time;

pub use address::{Cr3, GuestPhys, GuestVirt, HostVirt, KernelStack};
pub use budget::Budget;
pub use counter::Counter;
pub use guest_task::{GuestCode, GuestTask, TaskOffsets};
pub use id::{BootId, CpuId, ImageId, ModuleId, Pid, StackId, Tid, VcpuId, VmId};
pub use interpreter::Interpreter;
pub use results::{
    CpuTimeRow, ExitsRow, HealthRow, HostRow, IntervalRow, ResultCode, ResultRow, ResultStack,
    ResultThief, Results, ThiefKind, VcpuTimeRow, VmRow, WindowKey,
};
pub use sample::{HostMode, Sample, VcpuSample, VcpuState, WaitCounters};
pub use stack::StackEnd;
pub use switch::{GuestRegisters, OffCpuReason, RecordConsumer, Switch, SwitchEvent};
pub use tables::{
    BuildId, CpuNode, ExitCount, Guest, GuestStack, Header, Image, ImageKind, Mapping, Module,
    Note, NumaReading, OffCpuSource, Owner, QuotaMember, Stack, Symbol, SymbolName, Tables, Thread,
    ThrottledQueue, Throttling, Trigger, Vcpu, Vendor, Vm, VmLabels, VmMemory,
};
pub use text::{error_chain, is_unsafe, replace_unsafe};
pub use time::{Clock, HostNs};
pub use trace::{
    BlockOp, BlockRequest, EventColumn, Field, FieldPlace, FieldSink, FieldSource, FileKind,
    Interrupt, LockKind, LostEvents, Machine, MachineId, N_SLOT_KINDS, PrevState, RequestContent,
    SLOT_BYTES, SLOT_KIND_SHIFT, SLOT_KINDS, SLOT_MORE, Slot, SlotKind, TaskName, TraceEvent,
    TraceEventKind, TraceEventTag, TraceFile, TraceFilter, TraceStack, TraceTables, TraceTask,
    TracedCommand, Vector, record_slots, slot_kinds_header,
};
pub use vcpu_time::{TimeAccount, TimeClass, TimelineState, VcpuTimeState};
