//! What the finder of vCPUs reports (`struct vcpu_found` of bpf/abi/sample.h).

use model::{CpuId, HostNs, OffCpuReason, Pid, Tid, WaitCounters};

use crate::abi::field;

/// Bytes of `struct vcpu_found`.
pub(crate) const FOUND_BYTES: usize = 80;

/// A vCPU the finder met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundVcpu {
    /// The VMM's process.
    pub pid: Pid,
    /// The thread that runs it; `None`: it has not run yet, or its thread has ended.
    pub tid: Option<Tid>,
    /// Its number in its VM.
    pub number: u32,
    /// Its registers are encrypted (SEV-ES, SEV-SNP, TDX).
    pub protected: bool,
    /// Kernel address of the VM: tells VMs of one process apart.
    pub kvm: u64,
    /// Kernel address of the vCPU.
    pub vcpu: u64,
    /// Kernel address of its VMCB; 0: not on AMD.
    pub vmcb: u64,
    pub seen: VcpuSnapshot,
}

/// What a vCPU's thread did when it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VcpuSnapshot {
    pub time: HostNs,
    /// Where it was, or was last.
    pub cpu: CpuId,
    /// Why it was on no CPU; `None`: it was on one.
    pub off_cpu: Option<OffCpuReason>,
    /// Last VM-exit reason; 0 where it is unknown.
    pub exit_reason: u32,
    /// Its counters; `None` where this kernel does not count.
    pub waits: Option<WaitCounters>,
}

pub(crate) fn decode(bytes: &[u8]) -> FoundVcpu {
    let word = |at| u32::from_ne_bytes(field(bytes, at));
    let long = |at| u64::from_ne_bytes(field(bytes, at));
    let waits = WaitCounters { halted_ns: long(32), polled_ns: long(40), runnable_ns: long(48) };
    FoundVcpu {
        vcpu: long(0),
        kvm: long(8),
        vmcb: long(16),
        pid: Pid(word(56)),
        tid: (word(60) != 0).then(|| Tid(word(60))),
        number: word(64),
        protected: bytes[76] != 0,
        seen: VcpuSnapshot {
            time: HostNs(long(24)),
            cpu: CpuId(word(68)),
            off_cpu: OffCpuReason::from_number(bytes[78]),
            exit_reason: word(72),
            waits: (bytes[77] != 0).then_some(waits),
        },
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_found_vcpu_is_read_as_the_header_says() {
        let mut bytes = Vec::new();
        for value in [0x11_u64, 0x12, 0x1f, 0x13, 0x14, 0x15, 0x16] {
            bytes.extend(value.to_ne_bytes());
        }
        for value in [0x21_u32, 0x22, 0x23, 0x24, 0x25] {
            bytes.extend(value.to_ne_bytes());
        }
        bytes.extend([1, 1, 3, 0]);
        assert_eq!(bytes.len(), FOUND_BYTES);
        let waits = WaitCounters { halted_ns: 0x14, polled_ns: 0x15, runnable_ns: 0x16 };
        let expected = FoundVcpu {
            pid: Pid(0x21),
            tid: Some(Tid(0x22)),
            number: 0x23,
            protected: true,
            kvm: 0x12,
            vcpu: 0x11,
            vmcb: 0x1f,
            seen: VcpuSnapshot {
                time: HostNs(0x13),
                cpu: CpuId(0x24),
                off_cpu: Some(OffCpuReason::Halted),
                exit_reason: 0x25,
                waits: Some(waits),
            },
        };
        assert_eq!(decode(&bytes), expected);
        bytes[60..64].fill(0);
        bytes[76..79].fill(0);
        let fresh = decode(&bytes);
        assert_eq!((fresh.tid, fresh.protected), (None, false));
        assert_eq!((fresh.seen.off_cpu, fresh.seen.waits), (None, None));
    }
}
