//! The table of vCPU threads that the programs look into (`struct vcpu_bucket` of bpf/abi/sample.h).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use libbpf_rs::Object;
use model::Tid;

use crate::found::FoundVcpu;
use crate::mapped::Mapped;
use crate::{ProbeError, object};

const BUCKET_BITS: u32 = 12;
const BUCKETS: usize = 1 << BUCKET_BITS;
const SLOTS: usize = 8;
const HASH: u32 = 0x9e37_79b1;
const REF_BYTES: usize = 16;
const BUCKET_BYTES: usize = SLOTS * (4 + REF_BYTES);

/// Name of the map in all objects.
pub(crate) const MAP: &str = "vcpus";

/// Which threads are vCPUs; the programs of all objects look into the same.
#[derive(Debug)]
pub(crate) struct VcpuTable {
    fd: OwnedFd,
    memory: Mapped,
}

impl VcpuTable {
    pub(crate) fn of(object: &Object) -> Result<Self, ProbeError> {
        let fd = object::find_map(object, MAP)?
            .as_fd()
            .try_clone_to_owned()
            .map_err(|source| ProbeError::Map { map: MAP, source })?;
        let memory = object::memory(object, MAP, BUCKETS * BUCKET_BYTES)?;
        Ok(Self { fd, memory })
    }

    pub(crate) fn fd(&self) -> impl AsFd + '_ {
        self.fd.as_fd()
    }

    /// From now on `tid` is this vCPU's thread.
    pub(crate) fn insert(&self, tid: Tid, vcpu: &FoundVcpu, row: u32) -> Result<(), ProbeError> {
        self.remove(tid);
        let Some(slot) = self.slot_with(tid, 0) else {
            let source =
                std::io::Error::other("too many vCPUs: its place for this thread is taken");
            return Err(ProbeError::Map { map: MAP, source });
        };
        let bucket = bucket_of(tid) * BUCKET_BYTES;
        let reference = bucket + SLOTS * 4 + slot * REF_BYTES;
        let second = u64::from(row) | u64::from(vcpu.protected) << 32;
        self.memory.word(reference).store(vcpu.vcpu, Ordering::Relaxed);
        self.memory.word(reference + 8).store(second, Ordering::Relaxed);
        self.memory.half_word(bucket + slot * 4).store(tid.0, Ordering::Release);
        Ok(())
    }

    /// `tid` is no vCPU's thread any more.
    pub(crate) fn remove(&self, tid: Tid) {
        if let Some(slot) = self.slot_with(tid, tid.0) {
            let id = bucket_of(tid) * BUCKET_BYTES + slot * 4;
            self.memory.half_word(id).store(0, Ordering::Release);
        }
    }

    /// The slot in `tid`'s bucket that holds `value`.
    fn slot_with(&self, tid: Tid, value: u32) -> Option<usize> {
        let bucket = bucket_of(tid) * BUCKET_BYTES;
        (0..SLOTS)
            .find(|slot| self.memory.half_word(bucket + slot * 4).load(Ordering::Acquire) == value)
    }
}

fn bucket_of(tid: Tid) -> usize {
    (tid.0.wrapping_mul(HASH) >> (32 - BUCKET_BITS)) as usize
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn threads_of_large_vms_spread_over_the_buckets() {
        let most = |tids: &mut dyn Iterator<Item = u32>| {
            let mut load = vec![0; BUCKETS];
            tids.for_each(|tid| load[bucket_of(Tid(tid))] += 1);
            load.into_iter().max().unwrap_or(0)
        };
        assert!(most(&mut (5000..9096)) <= 2);
        // 64 VMs of 64 vCPUs whose processes started far apart.
        assert!(most(&mut (0..4096).map(|i| i / 64 * 32768 + i % 64)) < SLOTS);
    }
}
