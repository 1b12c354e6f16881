//! What the scheduler did with vCPUs' threads: the spool while recording, `switches.parquet` afterwards.
//!
//! Events come in batches, of all CPUs: in time order only once sorted, and only per vCPU is that
//! promised. A row group is a batch of at most `SLICE` events as they came, in time order.

mod record;
mod spool;

pub use spool::SwitchSpool;
pub(crate) use spool::SwitchSpoolReader;

use model::Switch;

/// Events of one row group at most.
pub(crate) const SLICE: usize = 1 << 16;

/// Takes away events of vCPUs that are in no table: how many those were.
pub(crate) fn cut_dangling(batch: &mut Vec<Switch>, vcpus: usize) -> usize {
    let before = batch.len();
    batch.retain(|switch| switch.vcpu.index() < vcpus);
    before - batch.len()
}
