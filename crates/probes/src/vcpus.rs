//! The table of vCPU threads that the programs look into (`struct vcpu_bucket` of bpf/abi/sample.h).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use libbpf_rs::Object;
use model::Tid;

use crate::found::FoundVcpu;
use crate::{ProbeError, object};
use bpf::Mapped;

const BUCKET_BITS: u32 = 12;
const BUCKETS: usize = 1 << BUCKET_BITS;
const SLOTS: usize = 8;
const HASH: u32 = 0x9e37_79b1;
const REF_BYTES: usize = 32;
const BUCKET_BYTES: usize = SLOTS * REF_BYTES;
/// `VCPU_PROTECTED` and `VCPU_WAITS`.
const PROTECTED: u64 = 1;
const WAITS: u64 = 2;

/// Where a slot has its row of `guest_views`.
const VIEW: usize = 28;

/// Name of the map behind the variable in all objects.
pub(crate) const MAP: &str = ".bss.vcpus";

/// Which threads are vCPUs; the programs of all objects look into the same.
#[derive(Debug)]
pub(crate) struct VcpuTable {
    fd: OwnedFd,
    memory: Mapped,
}

impl VcpuTable {
    pub(crate) fn from_object(object: &Object) -> Result<Self, ProbeError> {
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
        let protected = if vcpu.protected { PROTECTED } else { 0 };
        let waits = if vcpu.seen.waits.is_some() { WAITS } else { 0 };
        self.memory.word(slot + 8).store(vcpu.vcpu | protected | waits, Ordering::Relaxed);
        self.memory.word(slot + 16).store(vcpu.vmcb, Ordering::Relaxed);
        self.memory.half_word(slot + 24).store(0, Ordering::Relaxed);
        self.memory.half_word(slot + VIEW).store(0, Ordering::Relaxed);
        self.memory.half_word(slot + 4).store(row, Ordering::Relaxed);
        self.memory.half_word(slot).store(tid.0, Ordering::Release);
        Ok(())
    }

    /// `tid` is no vCPU's thread any more.
    pub(crate) fn remove(&self, tid: Tid) {
        if let Some(slot) = self.slot_with(tid, tid.0) {
            self.memory.half_word(slot).store(0, Ordering::Release);
        }
    }

    /// Which row of `guest_views` samples of `tid` look into; 0: none. The row that it had.
    pub(crate) fn set_view(&self, tid: Tid, row: u32) -> Option<u32> {
        let slot = self.slot_with(tid, tid.0)?;
        Some(self.memory.half_word(slot + VIEW).swap(row, Ordering::AcqRel))
    }

    /// Where the slot in `tid`'s bucket is whose thread is `value`.
    fn slot_with(&self, tid: Tid, value: u32) -> Option<usize> {
        let bucket = bucket_of(tid) * BUCKET_BYTES;
        let mut slots = (bucket..bucket + BUCKET_BYTES).step_by(REF_BYTES);
        slots.find(|slot| self.memory.half_word(*slot).load(Ordering::Acquire) == value)
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
