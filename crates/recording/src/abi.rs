//! The sampler's record (`struct sample` of `bpf/abi/sample.h`), byte by byte.

use model::{
    CpuId, Cr3, GuestTask, GuestVirt, HostMode, HostNs, HostVirt, KernelStack, Pid, Sample,
    StackId, Tid, VcpuId, VcpuSample, VcpuState, WaitCounters,
};

/// Bytes of one record.
pub const RECORD_SIZE: usize = 104;

const VCPU_NONE: u32 = 0xffff_ffff;
const VCPU_UNKNOWN: u32 = 0xffff_fffe;
const STACK_NONE: u32 = 0xffff_ffff;

const GUEST: u8 = 0x01;
const HOST_USER: u8 = 0x02;
const CR3_VALID: u8 = 0x04;
const WAITS_VALID: u8 = 0x08;
const KICKED: u8 = 0x10;
const TASK_VALID: u8 = 0x20;

/// Reads a record of CPU `cpu`. Every so many bytes are some sample.
#[must_use]
pub fn decode(record: &[u8; RECORD_SIZE], cpu: CpuId) -> Sample {
    let flags = record[88];
    let stack = u32_at(record, 84);
    Sample {
        time: time_of(record),
        cpu,
        pid: Pid(u32_at(record, 64)),
        tid: Tid(u32_at(record, 68)),
        host_ip: HostVirt(u64_at(record, 8)),
        host_mode: if flags & HOST_USER != 0 { HostMode::User } else { HostMode::Kernel },
        stack: (stack != STACK_NONE).then_some(StackId(stack)),
        vcpu: decode_vcpu(record, flags),
    }
}

/// The record of a sample: `decode` undone. Registers of a sample that has none are 0.
#[must_use]
pub fn encode(sample: &Sample) -> [u8; RECORD_SIZE] {
    let (guest, row, vcpu) = match &sample.vcpu {
        VcpuState::None => (0, VCPU_NONE, None),
        VcpuState::Unknown => (GUEST, VCPU_UNKNOWN, None),
        VcpuState::Vmm(vcpu) => (0, vcpu.vcpu.0, Some(vcpu)),
        VcpuState::Guest(vcpu) => (GUEST, vcpu.vcpu.0, Some(vcpu)),
    };
    let mut record = [0; RECORD_SIZE];
    let mut flags = guest;
    if sample.host_mode == HostMode::User {
        flags |= HOST_USER;
    }
    put(&mut record, 0, &sample.time.0.to_le_bytes());
    put(&mut record, 8, &sample.host_ip.0.to_le_bytes());
    put(&mut record, 64, &sample.pid.0.to_le_bytes());
    put(&mut record, 68, &sample.tid.0.to_le_bytes());
    put(&mut record, 72, &row.to_le_bytes());
    if let Some(vcpu) = vcpu {
        flags |= if vcpu.cr3.is_some() { CR3_VALID } else { 0 };
        flags |= if vcpu.kicked { KICKED } else { 0 };
        put(&mut record, 16, &vcpu.ip.0.to_le_bytes());
        put(&mut record, 24, &vcpu.cr3.map_or(0, Cr3::base).to_le_bytes());
        put(&mut record, 32, &vcpu.fs_base.0.to_le_bytes());
        put(&mut record, 76, &vcpu.exit_reason.to_le_bytes());
        put(&mut record, 80, &vcpu.exit_info.to_le_bytes());
        record[89] = vcpu.cpl;
        put(&mut record, 90, &vcpu.asid.to_le_bytes());
        put(&mut record, 92, &vcpu.kernel_stack.map_or(0, |stack| stack.0).to_le_bytes());
        if let Some(task) = vcpu.task {
            flags |= TASK_VALID;
            put(&mut record, 96, &task.pid.0.to_le_bytes());
            put(&mut record, 100, &task.tid.0.to_le_bytes());
        }
        if let Some(waits) = vcpu.waits {
            flags |= WAITS_VALID;
            put(&mut record, 40, &waits.halted_ns.to_le_bytes());
            put(&mut record, 48, &waits.polled_ns.to_le_bytes());
            put(&mut record, 56, &waits.runnable_ns.to_le_bytes());
        }
    }
    record[88] = flags;
    put(&mut record, 84, &sample.stack.map_or(STACK_NONE, |stack| stack.0).to_le_bytes());
    record
}

/// The time of a record.
#[must_use]
#[inline]
pub fn time_of(record: &[u8; RECORD_SIZE]) -> HostNs {
    HostNs(u64_at(record, 0))
}

/// The host process of a record.
#[must_use]
#[inline]
pub fn pid_of(record: &[u8; RECORD_SIZE]) -> Pid {
    Pid(u32_at(record, 64))
}

/// Of a record that interrupted a known vCPU's guest in kernel mode: the vCPU, and the guest's address.
#[must_use]
#[inline]
pub fn guest_kernel_ip(record: &[u8; RECORD_SIZE]) -> Option<(VcpuId, GuestVirt)> {
    let row = u32_at(record, 72);
    let is_known = record[88] & GUEST != 0 && row != VCPU_NONE && row != VCPU_UNKNOWN;
    (is_known && record[89] == 0).then(|| (VcpuId(row), GuestVirt(u64_at(record, 16))))
}

fn decode_vcpu(record: &[u8; RECORD_SIZE], flags: u8) -> VcpuState {
    let row = u32_at(record, 72);
    let vcpu = VcpuSample {
        vcpu: VcpuId(row),
        ip: GuestVirt(u64_at(record, 16)),
        cr3: (flags & CR3_VALID != 0).then(|| Cr3::new(u64_at(record, 24))),
        fs_base: GuestVirt(u64_at(record, 32)),
        cpl: record[89],
        kernel_stack: KernelStack::of_number(u32_at(record, 92)),
        task: (flags & TASK_VALID != 0)
            .then(|| GuestTask { pid: Pid(u32_at(record, 96)), tid: Tid(u32_at(record, 100)) }),
        asid: u16::from_le_bytes([record[90], record[91]]),
        exit_reason: u32_at(record, 76),
        exit_info: u32_at(record, 80),
        waits: (flags & WAITS_VALID != 0).then(|| WaitCounters {
            halted_ns: u64_at(record, 40),
            polled_ns: u64_at(record, 48),
            runnable_ns: u64_at(record, 56),
        }),
        kicked: flags & KICKED != 0,
    };
    match (row, flags & GUEST != 0) {
        (VCPU_NONE, false) => VcpuState::None,
        (VCPU_NONE | VCPU_UNKNOWN, _) => VcpuState::Unknown,
        (_, true) => VcpuState::Guest(vcpu),
        (_, false) => VcpuState::Vmm(vcpu),
    }
}

fn put(record: &mut [u8; RECORD_SIZE], at: usize, bytes: &[u8]) {
    record[at..at + bytes.len()].copy_from_slice(bytes);
}

#[inline]
fn u64_at(record: &[u8; RECORD_SIZE], at: usize) -> u64 {
    u64::from_le_bytes(*record[at..].first_chunk().expect("fields lie in the record"))
}

#[inline]
fn u32_at(record: &[u8; RECORD_SIZE], at: usize) -> u32 {
    u32::from_le_bytes(*record[at..].first_chunk().expect("fields lie in the record"))
}

#[cfg(test)]
mod test {
    use super::*;

    /// A record with every byte of every field different, written down by hand from the C header.
    fn record(vcpu: u32, flags: u8) -> [u8; RECORD_SIZE] {
        let mut record = [0; RECORD_SIZE];
        let mut at = 0;
        for value in [0x1112_u64, 0x2122, 0x3132, 0x4142_3000, 0x5152, 0x6162, 0x7172, 0x8182] {
            record[at..at + 8].copy_from_slice(&value.to_le_bytes());
            at += 8;
        }
        for value in [61_u32, 62, vcpu, 64, 65, 77] {
            record[at..at + 4].copy_from_slice(&value.to_le_bytes());
            at += 4;
        }
        record[at..].copy_from_slice(&[flags, 3, 66, 0, 78, 0, 0, 0, 79, 0, 0, 0, 80, 0, 0, 0]);
        record
    }

    fn check(vcpu: u32, flags: u8, mode: HostMode, expected: VcpuState) {
        let sample = decode(&record(vcpu, flags), CpuId(5));
        assert_eq!(sample.vcpu, expected);
        assert_eq!((sample.time, sample.cpu), (HostNs(0x1112), CpuId(5)));
        assert_eq!((sample.pid, sample.tid), (Pid(61), Tid(62)));
        assert_eq!(pid_of(&record(vcpu, flags)), sample.pid);
        assert_eq!((sample.host_ip, sample.host_mode), (HostVirt(0x2122), mode));
        assert_eq!(sample.stack, Some(StackId(77)));
        assert_eq!(decode(&encode(&sample), CpuId(5)), sample);
    }

    fn registers(cr3: Option<Cr3>) -> VcpuSample {
        VcpuSample {
            vcpu: VcpuId(63),
            ip: GuestVirt(0x3132),
            cr3,
            fs_base: GuestVirt(0x5152),
            cpl: 3,
            kernel_stack: Some(KernelStack(78)),
            task: None,
            asid: 66,
            exit_reason: 64,
            exit_info: 65,
            waits: None,
            kicked: false,
        }
    }

    #[test]
    fn records_decode_as_the_header_says() {
        use HostMode::{Kernel, User};
        let cr3 = Some(Cr3::new(0x4142_3000));
        check(63, 0b101, Kernel, VcpuState::Guest(registers(cr3)));
        check(63, 0b001, Kernel, VcpuState::Guest(registers(None)));
        let waits = WaitCounters { halted_ns: 0x6162, polled_ns: 0x7172, runnable_ns: 0x8182 };
        let waited = VcpuSample { waits: Some(waits), ..registers(None) };
        check(63, 0b1001, Kernel, VcpuState::Guest(waited));
        let kicked = VcpuSample { kicked: true, ..registers(cr3) };
        check(63, 0b1_0101, Kernel, VcpuState::Guest(kicked));
        let task = Some(GuestTask { pid: Pid(79), tid: Tid(80) });
        let with_task = VcpuSample { task, ..registers(cr3) };
        check(63, 0b10_0101, Kernel, VcpuState::Guest(with_task));
        check(63, 0b110, User, VcpuState::Vmm(registers(cr3)));
        check(VCPU_NONE, 0b010, User, VcpuState::None);
        check(VCPU_NONE, 0b001, Kernel, VcpuState::Unknown);
        check(VCPU_UNKNOWN, 0b001, Kernel, VcpuState::Unknown);
    }
}
