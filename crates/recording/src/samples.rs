//! `samples.parquet`: its columns, and how samples become them and come back.
//!
//! A row group is a slice of time: at most `SLICE` samples, all later than those of the row group
//! before. In it the samples of each thread on a CPU stand together, in time order: they are alike, which
//! is what encodes well; a reader merges them back in one pass.

mod read;
mod references;
mod write;

pub(crate) use read::SampleReader;
pub(crate) use references::References;
pub(crate) use write::SampleWriter;

use parquet::basic::Encoding;

use crate::slices::{Kind, Schema};

/// Samples of one row group at most.
pub(crate) const SLICE: usize = 1 << 16;

const TIME: &str = "time_ns";
const CPU: &str = "cpu";
const PID: &str = "pid";
const TID: &str = "tid";
const HOST_IP: &str = "host_ip";
const HOST_USER: &str = "host_user";
const STACK: &str = "stack";
const STATE: &str = "vcpu_state";
const VCPU: &str = "vcpu";
const GUEST_IP: &str = "guest_ip";
const GUEST_CR3: &str = "guest_cr3";
const GUEST_FS_BASE: &str = "guest_fs_base";
const GUEST_CPL: &str = "guest_cpl";
const ASID: &str = "asid";
const EXIT_REASON: &str = "exit_reason";
const EXIT_INFO: &str = "exit_info";
const HALTED: &str = "halted_ns";
const POLLED: &str = "polled_ns";
const RUNNABLE: &str = "runnable_ns";

/// The encodings are measured, see `docs/formats.md`.
const SCHEMA: Schema = Schema {
    name: "samples",
    columns: &[
        ("required", Kind::U64, TIME),
        ("required", Kind::U32, CPU),
        ("required", Kind::U32, PID),
        ("required", Kind::U32, TID),
        ("required", Kind::U64, HOST_IP),
        ("required", Kind::Bool, HOST_USER),
        ("optional", Kind::U32, STACK),
        ("required", Kind::U8, STATE),
        ("optional", Kind::U32, VCPU),
        ("required", Kind::U64, GUEST_IP),
        ("optional", Kind::U64, GUEST_CR3),
        ("required", Kind::U64, GUEST_FS_BASE),
        ("required", Kind::U8, GUEST_CPL),
        ("required", Kind::U32, ASID),
        ("required", Kind::U32, EXIT_REASON),
        ("required", Kind::U32, EXIT_INFO),
        ("optional", Kind::U64, HALTED),
        ("optional", Kind::U64, POLLED),
        ("optional", Kind::U64, RUNNABLE),
    ],
    encodings: &[
        (TIME, Encoding::DELTA_BINARY_PACKED),
        (HALTED, Encoding::PLAIN),
        (POLLED, Encoding::PLAIN),
        (RUNNABLE, Encoding::PLAIN),
    ],
};

/// Values of column `vcpu_state`.
const NONE: i32 = 0;
const UNKNOWN: i32 = 1;
const VMM: i32 = 2;
const GUEST: i32 = 3;
