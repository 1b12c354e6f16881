//! What the scheduler did with vCPUs' threads: the spool while recording, `switches.parquet` afterwards.
//!
//! Events come in batches, of all CPUs: in time order only once sorted, and only per vCPU is that
//! promised. A row group is a batch of at most `SLICE` events as they came, in time order.

mod read;
mod record;
mod spool;
mod write;

pub(crate) use read::SwitchReader;
pub use spool::SwitchSpool;
pub(crate) use spool::SwitchSpoolReader;
pub(crate) use write::SwitchWriter;

use model::Switch;
use parquet::basic::Encoding;

use crate::slices::{Kind, Schema};

/// Events of one row group at most.
pub(crate) const SLICE: usize = 1 << 16;

const TIME: &str = "time_ns";
const CPU: &str = "cpu";
const VCPU: &str = "vcpu";
const EVENT: &str = "event";
const OFF_CPU: &str = "away";
const OTHER_PID: &str = "other_pid";
const OTHER_TID: &str = "other_tid";
const EXIT_REASON: &str = "exit_reason";
/// Also a value of column `away`.
const THROTTLED: &str = "throttled";
const HALTED_NS: &str = "halted_ns";
const POLLED_NS: &str = "polled_ns";
const RUNNABLE_NS: &str = "runnable_ns";
const GUEST_IP: &str = "guest_ip";
const GUEST_CR3: &str = "guest_cr3";
const GUEST_FS_BASE: &str = "guest_fs_base";
const GUEST_CPL: &str = "guest_cpl";

const SCHEMA: Schema = Schema {
    name: "switches",
    columns: &[
        ("required", Kind::U64, TIME),
        ("required", Kind::U32, CPU),
        ("required", Kind::U32, VCPU),
        ("required", Kind::Text, EVENT),
        ("optional", Kind::Text, OFF_CPU),
        ("optional", Kind::U32, OTHER_PID),
        ("optional", Kind::U32, OTHER_TID),
        ("optional", Kind::U32, EXIT_REASON),
        ("optional", Kind::Bool, THROTTLED),
        ("optional", Kind::U64, HALTED_NS),
        ("optional", Kind::U64, POLLED_NS),
        ("optional", Kind::U64, RUNNABLE_NS),
        ("optional", Kind::U64, GUEST_IP),
        ("optional", Kind::U64, GUEST_CR3),
        ("optional", Kind::U64, GUEST_FS_BASE),
        ("optional", Kind::U32, GUEST_CPL),
    ],
    encodings: &[(TIME, Encoding::DELTA_BINARY_PACKED)],
};

/// Values of column `event`.
const OUT: &str = "out";
const IN: &str = "in";
const WAKE: &str = "wake";
const SEEN: &str = "seen";

/// Values of column `away`; the fourth is `THROTTLED`.
const RUNNABLE: &str = "runnable";
const HALTED: &str = "halted";
const ASLEEP: &str = "asleep";

/// Counts events of vCPUs that are in no table.
pub(crate) const DANGLING: &str = "switches_without_vcpu_row";

/// Takes away events of vCPUs that are in no table: how many those were.
pub(crate) fn cut_dangling(batch: &mut Vec<Switch>, vcpus: usize) -> usize {
    let before = batch.len();
    batch.retain(|switch| switch.vcpu.index() < vcpus);
    before - batch.len()
}
