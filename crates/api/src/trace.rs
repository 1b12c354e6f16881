//! The JSON of `vmscope trace report` and `vmscope trace compare`, described for its readers in docs/trace.md.
//!
//! Stable: within a version fields are only added. Times are ns (instants from the trace's begin), shares are fractions
//! of 1.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of these formats.
pub const VERSION: u32 = 1;

/// `vmscope trace report`: the trace, one of its machines, and the view that was asked for. The overview has several.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// `VERSION` of the writer.
    pub version: u32,
    /// What it was asked of.
    pub trace: Trace,
    /// The machine that is looked at.
    pub machine: Machine,
    /// The command, when it ran on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
    /// Whose tasks the views are about, but for machine-wide figures: `the command`, `all tasks`...
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub whose: String,
    /// View `profile`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// View `states`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states: Option<States>,
    /// View `waits`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// View `kernel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Kernel>,
    /// View `process`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<Process>>,
    /// View `critical-path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critical_path: Option<CriticalPath>,
    /// View `gantt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gantt: Option<Gantt>,
    /// Views `kernel` and `process` of a VM whose host was traced, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_side: Option<HostSide>,
}

/// A trace as a whole.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Who wrote it.
    pub vmscope_version: String,
    /// The host's name.
    pub hostname: String,
    /// The wall clock at its begin, since 1970.
    pub begin_unix_ns: u64,
    /// Its length.
    pub duration_ns: u64,
    /// False: the writer did not finish, the end is missing.
    pub complete: bool,
    /// What it was limited to, as on the command line.
    pub filters: Vec<String>,
    /// Names of the machines that were traced.
    pub machines: Vec<String>,
    /// What was dropped or truncated besides events, by name.
    pub counters: BTreeMap<String, u64>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// A machine of a trace.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// `host`, or the VM's name.
    pub name: String,
    /// Its kernel release.
    pub kernel: String,
    /// CPUs that were traced.
    pub cpus: Vec<u32>,
    /// How its events came out: `here`, `guest memory`, `vsock`, `ports`.
    pub path: String,
    /// How long it was traced.
    pub wall_ns: u64,
    /// Its events.
    pub events: u64,
    /// Events that found no room.
    pub lost: Vec<Lost>,
    /// Probes that could not be used.
    pub missing: Vec<Missing>,
    /// What makes figures doubtful: words as in text.
    pub doubtful: Vec<String>,
    /// How long a page fault is taken to last where its end was not seen.
    pub fault_estimate_ns: Option<u64>,
    /// For a VM: how far its times are off the host's at most.
    pub clock_error_ns: Option<u64>,
    /// Why its trace ended before the others', if it did.
    pub ended_early: Option<String>,
}

/// Events that found no room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The CPU.
    pub cpu: u32,
    /// The kind of event.
    pub kind: String,
    /// How many.
    pub count: u64,
}

/// A probe that could not be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Its name.
    pub probe: String,
    /// Why.
    pub reason: String,
}

/// The command that was traced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Its words.
    pub words: Vec<String>,
    /// Its first task's process id.
    pub pid: u32,
    /// Null: it did not end by itself.
    pub exit_code: Option<i32>,
    /// From its first task's begin to its end.
    pub wall_ns: u64,
}

/// CPU and disk together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// First instant looked at.
    pub begin_ns: u64,
    /// Last instant looked at.
    pub end_ns: u64,
    /// Any CPU, any disk.
    pub machine: FourWay,
    /// Each CPU, with any disk.
    pub cpus: Vec<CpuProfile>,
    /// Each disk, with any CPU.
    pub disks: Vec<DiskProfile>,
}

/// Wall time by what was busy. All but `wall_ns` add up to `wall_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FourWay {
    /// All of it.
    pub wall_ns: u64,
    /// A CPU and no disk.
    pub cpu_only_ns: u64,
    /// A CPU and a disk.
    pub both_ns: u64,
    /// A disk and no CPU.
    pub disk_only_ns: u64,
    /// Nothing.
    pub neither_ns: u64,
    /// Whether a CPU was is not known; no disk was.
    pub unknown_ns: u64,
    /// Whether a CPU was is not known; a disk was.
    pub unknown_and_disk_ns: u64,
}

/// A CPU's profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuProfile {
    /// Its number.
    pub cpu: u32,
    /// Its time.
    pub time: FourWay,
}

/// A disk's profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiskProfile {
    /// Its name.
    pub disk: String,
    /// Requests that were done.
    pub requests: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Its time.
    pub time: FourWay,
}

/// What tasks did with CPUs and disks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct States {
    /// How many tasks.
    pub tasks: u64,
    /// All of them.
    pub total: StateTable,
    /// By command name, longest lives first.
    pub names: Vec<NameStates>,
    /// By process, longest lives first.
    pub processes: Vec<ProcessStates>,
}

/// The 3x3 table: CPU by disk. All but `life_ns` add up to `life_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateTable {
    /// The whole of it.
    pub life_ns: u64,
    /// Had a CPU, and a disk worked for it.
    pub cpu_running_disk_running_ns: u64,
    /// Had a CPU, and a request waited in a disk's queue.
    pub cpu_running_disk_waiting_ns: u64,
    /// Had a CPU.
    pub cpu_running_disk_none_ns: u64,
    /// Waited for a CPU, and a disk worked for it.
    pub cpu_waiting_disk_running_ns: u64,
    /// Waited for a CPU, and a request waited in a disk's queue.
    pub cpu_waiting_disk_waiting_ns: u64,
    /// Waited for a CPU.
    pub cpu_waiting_disk_none_ns: u64,
    /// Slept while a disk worked for it.
    pub cpu_none_disk_running_ns: u64,
    /// Slept while a request waited in a disk's queue.
    pub cpu_none_disk_waiting_ns: u64,
    /// Slept for anything else.
    pub cpu_none_disk_none_ns: u64,
    /// Not known.
    pub unknown_ns: u64,
}

/// All processes of a name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NameStates {
    /// The name.
    pub name: String,
    /// How many processes.
    pub processes: u64,
    /// Their tasks' time.
    pub time: StateTable,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessStates {
    /// Its name.
    pub name: String,
    /// Its id.
    pub pid: u32,
    /// Its tasks' time.
    pub time: StateTable,
}

/// What was waited for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Waits {
    /// How many tasks.
    pub tasks: u64,
    /// All of them.
    pub total: Life,
    /// By command name, most waiting time first.
    pub names: Vec<NameLife>,
    /// By process, most waiting time first.
    pub processes: Vec<NameLife>,
    /// Alike waits, most time first.
    pub details: Vec<WaitDetail>,
    /// Who ended them, most time first.
    pub wakers: Vec<Waker>,
}

/// What tasks' lives are made of: `running_ns` and the causes add up to `life_ns`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Life {
    /// All of it.
    pub life_ns: u64,
    /// On a CPU.
    pub running_ns: u64,
    /// Waiting: the causes but `stopped` and `kernel task idle`.
    pub waiting_ns: u64,
    /// The part of waiting whose cause is not known.
    pub unknown_ns: u64,
    /// By cause, most time first.
    pub causes: Vec<Cause>,
}

/// Waits of one cause.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cause {
    /// As in text.
    pub cause: String,
    /// What it belongs to, as in text.
    pub group: String,
    /// How long.
    pub ns: u64,
    /// How many.
    pub count: u64,
    /// The longest.
    pub longest_ns: u64,
}

/// Lives of a name's or process' tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NameLife {
    /// The name.
    pub name: String,
    /// The process; null for all of a name.
    pub pid: Option<u32>,
    /// One of the kernel's own.
    pub kernel: bool,
    /// Their lives.
    pub life: Life,
}

/// Waits that are alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitDetail {
    /// As in text.
    pub cause: String,
    /// The kernel function that tells; empty without a stack.
    pub function: String,
    /// By what the cause was told: `state`, `lock`, `stack`, `request`, `iowait`, `syscall`, `fault`, `nothing`.
    pub evidence: String,
    /// The lock's address, where it is known, in hex.
    pub lock: Option<String>,
    /// Who held it when the wait began.
    pub holder: Option<String>,
    /// The system call the holder was in.
    pub holder_syscall: Option<String>,
    /// How long.
    pub ns: u64,
    /// How many.
    pub count: u64,
    /// The longest.
    pub longest_ns: u64,
}

/// Waits by who ended them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Waker {
    /// As in text.
    pub cause: String,
    /// A task's name, an interrupt, a disk; null: not known, or the trace ended first.
    pub by: Option<String>,
    /// How long.
    pub ns: u64,
    /// How many.
    pub count: u64,
}

/// What CPUs executed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// All CPUs, whoever had them: adds up to their number times the machine's wall time.
    pub machine: Vec<ClassTime>,
    /// Each CPU: adds up to the wall time.
    pub cpus: Vec<CpuTime>,
    /// While the tasks asked for had a CPU.
    pub tasks: Vec<ClassTime>,
    /// By command name, most kernel time first.
    pub names: Vec<NameTime>,
    /// By process, most kernel time first.
    pub processes: Vec<NameTime>,
    /// Their system calls, most CPU time first.
    pub calls: Vec<Call>,
}

/// A class of what CPUs execute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassTime {
    /// As in text.
    pub class: String,
    /// What it belongs to, as in text.
    pub group: String,
    /// How long.
    pub ns: u64,
}

/// A CPU's time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuTime {
    /// Its number.
    pub cpu: u32,
    /// What it executed.
    pub classes: Vec<ClassTime>,
}

/// CPU time of a name's or process' tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NameTime {
    /// The name.
    pub name: String,
    /// The process; null for all of a name.
    pub pid: Option<u32>,
    /// In the kernel.
    pub kernel_ns: u64,
    /// What was executed.
    pub classes: Vec<ClassTime>,
}

/// The calls of a system call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Its number on x86-64.
    pub number: u16,
    /// Its name.
    pub name: String,
    /// As in text.
    pub class: String,
    /// How many.
    pub count: u64,
    /// How many failed.
    pub failed: u64,
    /// On a CPU in the call itself.
    pub on_cpu_ns: u64,
    /// From entry to exit, waits included.
    pub ns: u64,
    /// The longest, waits included.
    pub longest_ns: u64,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Its last name.
    pub name: String,
    /// Its id.
    pub pid: u32,
    /// Its parent's id; 0: none or unknown.
    pub parent_pid: u32,
    /// One of the kernel's own.
    pub kernel: bool,
    /// How many threads.
    pub threads: u64,
    /// Begin of its life within the trace.
    pub begin_ns: u64,
    /// End of its life within the trace.
    pub end_ns: u64,
    /// Whether it was there before the trace.
    pub before: bool,
    /// Whether it ended in the trace.
    pub exited: bool,
    /// Its own code.
    pub user_ns: u64,
    /// The kernel for it, interrupts included.
    pub kernel_ns: u64,
    /// What its threads waited for.
    pub life: Life,
    /// System calls.
    pub calls: u64,
    /// Requests to disks that were done.
    pub requests: u64,
    /// Bytes of them.
    pub request_bytes: u64,
}

/// What the length of a command (or process) is made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CriticalPath {
    /// Whose.
    pub task: Task,
    /// Its length. Each list of parts adds up to it.
    pub wall_ns: u64,
    /// By category, longest first.
    pub categories: Vec<PathCategory>,
    /// By command name, longest first.
    pub names: Vec<PathName>,
    /// What was stolen of it, in a VM whose host was traced, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_side: Option<PathHostSide>,
    /// What would make it shorter, best first.
    pub improvements: Vec<Improvement>,
    /// In order of time, touching.
    pub segments: Vec<PathSegment>,
}

/// A VM's time as its host saw it: what the hosts' threads of its vCPUs did. `busy`, `idle` and `unknown` add up to CPUs x
/// wall time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSide {
    /// While guest CPUs had something to do; asleep is here: in the VMM.
    pub busy: HostShare,
    /// While they were idle; asleep is here: halted.
    pub idle: HostShare,
    /// While it is not known which.
    pub unknown: HostShare,
    /// Each CPU: its parts add up to the wall time.
    pub cpus: Vec<CpuHostSide>,
    /// By command name, most CPU time first: while they had a guest CPU.
    pub names: Vec<NameHostSide>,
    /// By process, most CPU time first.
    pub processes: Vec<NameHostSide>,
}

/// Guest time by what the host's thread did meanwhile: all but `ns` add up to `ns`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostShare {
    /// All of it.
    pub ns: u64,
    /// It had a pCPU.
    pub ran_ns: u64,
    /// It waited for one.
    pub stolen_ns: u64,
    /// It slept.
    pub asleep_ns: u64,
    /// The host's events don't say.
    pub unknown_ns: u64,
    /// Who had the pCPU that was waited for, most first: adds up to `stolen_ns`.
    pub stolen_by: Vec<Thief>,
}

/// Who stole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thief {
    /// As in text.
    pub by: String,
    /// How long.
    pub ns: u64,
}

/// A guest CPU from the host's side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuHostSide {
    /// Its number.
    pub cpu: u32,
    /// The host's thread that runs it.
    pub thread: Option<u32>,
    /// As in `HostSide`.
    pub busy: HostShare,
    /// As in `HostSide`.
    pub idle: HostShare,
    /// As in `HostSide`.
    pub unknown: HostShare,
}

/// CPU time of a name's or process' tasks, from the host's side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameHostSide {
    /// The name.
    pub name: String,
    /// The process; null for all of a name.
    pub pid: Option<u32>,
    /// While they had a guest CPU.
    pub time: HostShare,
}

/// A critical path's guest CPUs from the host's side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathHostSide {
    /// While the path's tasks had a guest CPU.
    pub running: HostShare,
    /// While they waited for one: of that CPU.
    pub waiting: HostShare,
}

/// A task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its name.
    pub name: String,
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
}

/// A category's part of the path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathCategory {
    /// As in text.
    pub category: String,
    /// How long.
    pub ns: u64,
    /// Of the path.
    pub share: f64,
    /// In how many segments.
    pub segments: u64,
}

/// A command name's part of the path: `ns` is the sum of the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathName {
    /// The name.
    pub name: String,
    /// How many processes.
    pub processes: u64,
    /// How long.
    pub ns: u64,
    /// Its own code.
    pub user_ns: u64,
    /// The kernel for it.
    pub kernel_ns: u64,
    /// Waiting for a CPU, being woken.
    pub cpu_wait_ns: u64,
    /// Disks and their queues.
    pub disk_ns: u64,
    /// Everything else.
    pub other_ns: u64,
}

/// Amdahl's bound for a part of the path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Improvement {
    /// As in text.
    pub what: String,
    /// How long it is on the path.
    pub on_path_ns: u64,
    /// How long it would all take without it, at best.
    pub at_best_ns: u64,
    /// How many times as fast that is; null: nothing would remain.
    pub factor: Option<f64>,
}

/// A stretch of the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathSegment {
    /// Begin.
    pub begin_ns: u64,
    /// Length.
    pub ns: u64,
    /// Whose; for a disk's: who made the request.
    pub task: Task,
    /// As in text.
    pub doing: String,
    /// In a VM whose host was traced, while the task has a guest CPU or waits for one: what that CPU's thread did. All of the
    /// path's add up to `running` and `waiting` of its `host_side`.
    pub host_side: Option<HostShare>,
}

/// What everyone did when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gantt {
    /// First instant drawn.
    pub begin_ns: u64,
    /// Last instant drawn.
    pub end_ns: u64,
    /// CPUs, disks, tasks.
    pub lanes: Vec<Lane>,
    /// Tasks that never had a CPU.
    pub idle_tasks: u64,
    /// Tasks that were left out (`--limit`).
    pub left_out: u64,
}

/// A CPU, disk or task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// `cpu`, `disk` or `task`.
    pub kind: String,
    /// As in text.
    pub name: String,
    /// How many ancestors above have lanes.
    pub depth: u32,
    /// What it did: pieces that touch.
    pub pieces: Vec<Piece>,
}

/// A stretch of a lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Begin.
    pub begin_ns: u64,
    /// End.
    pub end_ns: u64,
    /// For how long what, longest first: adds up to its length. `user`, `kernel`, `interrupt`, `idle`, `cpu_wait`, `disk_wait`,
    /// `lock_wait`, `asleep`, `stopped`, `reads`, `writes`, `reads_and_writes`, `queued`, `unknown`.
    pub shares: Vec<(String, u64)>,
}

/// `vmscope trace compare`: the same figures of two traces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compare {
    /// `VERSION` of the writer.
    pub version: u32,
    /// Who is compared: `commands` with the machines while they ran, or `machines` with all their tasks.
    pub of: String,
    /// The first.
    pub a: Side,
    /// The second.
    pub b: Side,
    /// The figures, in groups.
    pub groups: Vec<CompareGroup>,
}

/// A trace that is compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// As it was named.
    pub name: String,
    /// The trace.
    pub trace: Trace,
    /// Its machine.
    pub machine: Machine,
    /// Its command.
    pub command: Option<Command>,
}

/// Figures that belong together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareGroup {
    /// As in text.
    pub group: String,
    /// The figures.
    pub rows: Vec<CompareRow>,
}

/// A figure of both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareRow {
    /// As in text.
    pub what: String,
    /// `ns`, `count` or `bytes`.
    pub unit: String,
    /// Of the first.
    pub a: u64,
    /// Of the second.
    pub b: u64,
    /// The second less the first.
    pub difference: i64,
    /// The second over the first; null when that is 0.
    pub ratio: Option<f64>,
}
