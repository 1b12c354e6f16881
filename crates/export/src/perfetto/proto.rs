//! The messages of Perfetto's trace format (github.com/google/perfetto, `protos/perfetto/trace`), as far as
//! they are used. Field numbers are the format's.

/// A trace: any number of these, one after the other, are one trace too.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Trace {
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<TracePacket>,
}

/// A packet of the trace.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TracePacket {
    /// When, in the clock of the defaults.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// One instant in several clocks.
    #[prost(message, optional, tag = "6")]
    pub clock_snapshot: Option<ClockSnapshot>,
    /// Which writer: interned names are a writer's own.
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    /// Something that happened on a track.
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    /// Names for this and later packets.
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    /// See `SequenceFlags`.
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// What later packets don't repeat.
    #[prost(message, optional, tag = "59")]
    pub trace_packet_defaults: Option<TracePacketDefaults>,
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
    #[prost(bool, optional, tag = "87")]
    pub first_packet_on_sequence: Option<bool>,
    /// What the kernel's scheduler did on a CPU.
    #[prost(message, optional, tag = "1")]
    pub ftrace_events: Option<FtraceEventBundle>,
    #[prost(message, optional, tag = "2")]
    pub process_tree: Option<ProcessTree>,
    #[prost(message, optional, tag = "45")]
    pub system_info: Option<SystemInfo>,
    /// Of a machine other than the first: it has processes and CPUs of its own.
    #[prost(uint32, optional, tag = "98")]
    pub machine_id: Option<u32>,
}

/// Names and defaults begin here.
pub const SEQ_INCREMENTAL_STATE_CLEARED: u32 = 1;
/// Useless without the names and defaults before it.
pub const SEQ_NEEDS_INCREMENTAL_STATE: u32 = 2;

/// `CLOCK_REALTIME`.
pub const CLOCK_REALTIME: u32 = 1;
/// `CLOCK_MONOTONIC`.
pub const CLOCK_MONOTONIC: u32 = 3;
/// `CLOCK_BOOTTIME`: that of ftrace's events.
pub const CLOCK_BOOTTIME: u32 = 6;

/// One instant in several clocks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
    /// The one that the trace is shown in.
    #[prost(uint32, optional, tag = "2")]
    pub primary_trace_clock: Option<u32>,
}

/// A clock's reading.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Clock {
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    /// ns.
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// What a writer's packets don't repeat.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct TracePacketDefaults {
    /// The clock of `TracePacket::timestamp`.
    #[prost(uint32, optional, tag = "58")]
    pub timestamp_clock_id: Option<u32>,
}

/// A row on the screen, or a group of rows.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// The group it is in.
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
    /// How those in it are ordered.
    #[prost(uint32, optional, tag = "11")]
    pub child_ordering: Option<u32>,
    /// Its place in its group.
    #[prost(int32, optional, tag = "12")]
    pub sibling_order_rank: Option<i32>,
    /// What to say about it.
    #[prost(string, optional, tag = "14")]
    pub description: Option<String>,
    /// Whether rows of one name become one.
    #[prost(uint32, optional, tag = "15")]
    pub sibling_merge_behavior: Option<u32>,
}

/// A track of a number that changes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CounterDescriptor {
    /// What is counted.
    #[prost(string, optional, tag = "6")]
    pub unit_name: Option<String>,
}

/// By `sibling_order_rank`.
pub const ORDERING_EXPLICIT: u32 = 3;
/// Rows of one name stay apart.
pub const SIBLING_MERGE_NONE: u32 = 2;

/// Something that happened on a track.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub category_iids: Vec<u64>,
    /// Begin, end or instant.
    #[prost(uint32, optional, tag = "9")]
    pub r#type: Option<u32>,
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
    /// Arrows that begin here.
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub flow_ids: Vec<u64>,
    /// Arrows that end here.
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub terminating_flow_ids: Vec<u64>,
}

/// A slice begins.
pub const TYPE_SLICE_BEGIN: u32 = 1;
/// The track's innermost slice ends.
pub const TYPE_SLICE_END: u32 = 2;
/// Something without a length.
pub const TYPE_INSTANT: u32 = 3;
/// A counter has a new value.
pub const TYPE_COUNTER: u32 = 4;

/// A fact about an event.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DebugAnnotation {
    #[prost(uint64, optional, tag = "1")]
    pub name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
    #[prost(uint64, optional, tag = "17")]
    pub string_value_iid: Option<u64>,
}

/// Names, each with its id.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InternedData {
    #[prost(message, repeated, tag = "1")]
    pub event_categories: Vec<Interned>,
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<Interned>,
    #[prost(message, repeated, tag = "3")]
    pub debug_annotation_names: Vec<Interned>,
    /// Texts of facts (bytes in the format, which look the same).
    #[prost(message, repeated, tag = "29")]
    pub debug_annotation_string_values: Vec<Interned>,
}

/// A name and its id: `EventCategory`, `EventName`, `DebugAnnotationName` and `InternedString` alike.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Interned {
    /// From 1.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

/// Events of one CPU.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FtraceEventBundle {
    #[prost(uint32, optional, tag = "1")]
    pub cpu: Option<u32>,
    #[prost(message, repeated, tag = "2")]
    pub event: Vec<FtraceEvent>,
}

/// An event of the kernel; one of its messages is there.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FtraceEvent {
    /// ns of `CLOCK_BOOTTIME`.
    #[prost(uint64, optional, tag = "1")]
    pub timestamp: Option<u64>,
    /// The thread that ran.
    #[prost(uint32, optional, tag = "2")]
    pub pid: Option<u32>,
    #[prost(uint32, optional, tag = "5")]
    pub common_flags: Option<u32>,
    #[prost(message, optional, tag = "4")]
    pub sched_switch: Option<SchedSwitch>,
    #[prost(message, optional, tag = "20")]
    pub sched_waking: Option<SchedWaking>,
    #[prost(message, optional, tag = "235")]
    pub task_newtask: Option<TaskNewtask>,
    #[prost(message, optional, tag = "240")]
    pub sched_process_free: Option<SchedProcessFree>,
}

/// `common_flags`: it happened in an interrupt.
pub const FLAG_HARDIRQ: u32 = 8;

/// A CPU changed hands.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SchedSwitch {
    #[prost(string, optional, tag = "1")]
    pub prev_comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub prev_pid: Option<i32>,
    /// As kernels from 4.14 on number states.
    #[prost(int64, optional, tag = "4")]
    pub prev_state: Option<i64>,
    #[prost(string, optional, tag = "5")]
    pub next_comm: Option<String>,
    #[prost(int32, optional, tag = "6")]
    pub next_pid: Option<i32>,
}

/// A thread was woken.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SchedWaking {
    #[prost(string, optional, tag = "1")]
    pub comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
}

/// A thread was made, by the event's `pid`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TaskNewtask {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub comm: Option<String>,
    #[prost(uint64, optional, tag = "3")]
    pub clone_flags: Option<u64>,
}

/// `CLONE_THREAD`: it is of the same process.
pub const CLONE_THREAD: u64 = 0x10000;

/// A thread is no more.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SchedProcessFree {
    #[prost(string, optional, tag = "1")]
    pub comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
}

/// Processes and threads that are there.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProcessTree {
    #[prost(message, repeated, tag = "1")]
    pub processes: Vec<Process>,
    #[prost(message, repeated, tag = "2")]
    pub threads: Vec<Thread>,
}

/// A process.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Process {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    pub ppid: Option<i32>,
    #[prost(string, repeated, tag = "3")]
    pub cmdline: Vec<String>,
}

/// A thread.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Thread {
    #[prost(int32, optional, tag = "1")]
    pub tid: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// Its process.
    #[prost(int32, optional, tag = "3")]
    pub tgid: Option<i32>,
}

/// A machine's kernel.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SystemInfo {
    #[prost(message, optional, tag = "1")]
    pub utsname: Option<Utsname>,
}

/// As `uname` says it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Utsname {
    #[prost(string, optional, tag = "1")]
    pub sysname: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub release: Option<String>,
}
