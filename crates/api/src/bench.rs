//! The JSON of `vmscope bench`: result files, comparisons and lists, described for their readers in docs/bench.md.
//!
//! Stable: within a version fields are only added. Costs are in ticks of the machine's own TSC unless named otherwise.

use serde::{Deserialize, Serialize};

/// Version of these formats.
pub const VERSION: u32 = 1;
/// What a result file says it is.
pub const FORMAT: &str = "vmscope-bench";

/// A result file: what one machine measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// `FORMAT`.
    pub format: String,
    /// `VERSION` of the writer.
    pub version: u32,
    /// Where it ran or was read from: `tcg`, `kvm`, `testbed-kvm`, `serial`, `qr`.
    pub source: String,
    /// The machine.
    pub machine: Machine,
    /// Conditions that were entered.
    pub conditions: Vec<InForce>,
    /// What came of each operation under each condition.
    pub results: Vec<Outcome>,
    /// `complete`, another word of the program, or null: the end is missing.
    pub ending: Option<String>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// A machine, as the program found it; null: not known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Version of the program that measured.
    pub program_version: String,
    /// The CPU's vendor.
    pub vendor: String,
    /// The name it gives itself.
    pub brand: String,
    /// Its family.
    pub family: Option<u32>,
    /// Its model.
    pub model: Option<u32>,
    /// Its stepping.
    pub stepping: Option<u32>,
    /// The signature of the hypervisor that says it is there.
    pub hypervisor: Option<String>,
    /// The clock.
    pub tsc: Tsc,
    /// Usable memory.
    pub memory_bytes: Option<u64>,
    /// How many CPUs.
    pub cpus: Option<u32>,
    /// Whether there is a local APIC.
    pub apic: Option<bool>,
    /// What ends an operation that hangs.
    pub watchdog: Option<String>,
    /// `multiboot` or `pvh`.
    pub loader: Option<String>,
    /// `bios`, `uefi` or `unknown`.
    pub firmware: Option<String>,
    /// The plan's name.
    pub plan: String,
    /// The command line.
    pub command_line: Option<String>,
    /// How many operations the plan has, each counted once per condition.
    pub planned: Option<u32>,
}

/// A time stamp counter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tsc {
    /// Ticks in a second.
    pub hz: Option<f64>,
    /// Whether it ticks alike in every state of the CPU.
    pub invariant: Option<bool>,
    /// What it was compared with.
    pub calibrated_by: Option<String>,
    /// How far the comparisons differ.
    pub spread_ppm: Option<u64>,
    /// How much it had drifted against that at the end.
    pub drift_ppm: Option<i64>,
    /// How often it went backwards.
    pub backward_jumps: Option<u64>,
}

/// A condition, as it was read back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InForce {
    /// Its id: `long.cpl3.2m.cold`.
    pub condition: String,
    /// Whether it is in force.
    pub effective: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Control register 0.
    pub cr0: Option<u64>,
    /// Control register 4.
    pub cr4: Option<u64>,
    /// A step of the pointer chase that tells whether caches work.
    pub chase_ticks: Option<f64>,
    /// A shot of nothing, which was taken off.
    pub empty_ticks: Option<f64>,
}

/// What came of an operation under a condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The operation.
    pub operation: String,
    /// The condition's id.
    pub condition: String,
    /// `ok`, `fault`, `missing`, `timeout`, `hung` or `lost`; the figures below are of `ok`.
    pub status: String,
    /// Why there is no figure.
    #[serde(default)]
    pub reason: Option<String>,
    /// Of a fault.
    #[serde(default)]
    pub vector: Option<u8>,
    /// Of a time-out.
    #[serde(default)]
    pub after_ms: Option<u64>,
    /// Single shots.
    #[serde(default)]
    pub single: Option<Spread>,
    /// Batches.
    #[serde(default)]
    pub batch: Option<Batch>,
    /// Bytes that it moves, or works on.
    #[serde(default)]
    pub bytes: u64,
    /// How often it was done for the figures; null: not known.
    #[serde(default)]
    pub done: Option<u64>,
    /// The program trusts the figure.
    #[serde(default)]
    pub reliable: Option<bool>,
    /// Why the condition is not in force.
    #[serde(default)]
    pub ineffective: Option<String>,
}

/// Single shots.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The fastest.
    pub min: f64,
    /// Half were faster.
    pub median: f64,
    /// 99 % were faster.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
    /// How many.
    pub n: u64,
}

/// Batches of `of` operations, per operation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// How many operations.
    pub of: u64,
    /// From the minima of all repetitions.
    pub min: f64,
    /// From their medians.
    pub median: f64,
}

/// `vmscope bench compare`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// `VERSION` of the writer.
    pub version: u32,
    /// The baseline first.
    pub machines: Vec<Compared>,
    /// The original's tables.
    pub tables: Vec<Table>,
    /// Every operation under every condition.
    pub operations: Vec<Row>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// A machine of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// As in tables.
    pub label: String,
    /// What it is.
    pub machine: Machine,
    /// How many times slower than the baseline its general instructions are.
    pub general_ratio: Option<f64>,
}

/// A table of the original.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// `general`, `levels` or `paging`.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// Titles of values.
    pub columns: Vec<String>,
    /// Its rows.
    pub rows: Vec<TableRow>,
}

/// A row of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableRow {
    /// The heading that it stands under.
    pub section: String,
    /// What it is about.
    pub name: String,
    /// One per column; null: none.
    pub values: Vec<Option<f64>>,
}

/// An operation under a condition, on every machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The operation.
    pub operation: String,
    /// Its kind: `general`, `privileged`, `sensitive`, `paging`, `exit`, `interrupt`, `memory`, `io` or `other`.
    pub group: String,
    /// The condition's id.
    pub condition: String,
    /// Bytes that it moves, or works on.
    pub bytes: u64,
    /// One per machine, in their order.
    pub machines: Vec<Cell>,
}

/// What a machine made of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// As in result files; null: not tried.
    pub status: Option<String>,
    /// Why there is no cost.
    pub reason: Option<String>,
    /// What it costs.
    pub cost: Option<Cost>,
    /// Against the baseline; null for that itself.
    pub ratio: Option<Ratio>,
    /// `exits`, `does_not`, `cant_say`; null for the baseline.
    pub verdict: Option<String>,
    /// Why that can't be said.
    pub why: Option<String>,
    /// What the exit costs.
    pub exit_ticks: Option<f64>,
    /// The same in time.
    pub exit_ns: Option<f64>,
}

/// What an operation costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// In ticks.
    pub ticks: f64,
    /// In time.
    pub ns: Option<f64>,
    /// In ADD instructions under the same condition.
    pub adds: Option<f64>,
    /// No less than this, in ticks.
    pub low: f64,
    /// No more than this, in ticks.
    pub high: f64,
    /// The program trusts it.
    pub reliable: bool,
    /// The condition was in force.
    pub effective: bool,
}

/// A cost by the baseline's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Of ticks.
    pub ticks: Option<f64>,
    /// Of times.
    pub ns: Option<f64>,
    /// Of ADD units.
    pub adds: Option<f64>,
    /// Both are trusted.
    pub reliable: bool,
    /// What both may cost overlaps: no difference is shown.
    pub overlap: bool,
}

/// `vmscope bench list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// `VERSION` of the writer.
    pub version: u32,
    /// Operations, as the image has them.
    pub operations: Vec<Operation>,
    /// Conditions' ids.
    pub conditions: Vec<String>,
    /// Plans.
    pub plans: Vec<String>,
}

/// An operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Its name.
    pub name: String,
    /// Its kind, as in comparisons.
    pub group: String,
    /// What it does; empty: not known.
    pub title: String,
}
