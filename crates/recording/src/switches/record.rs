//! A switch event in the spool, byte by byte.

use model::{
    CpuId, Cr3, GuestRegisters, GuestVirt, HostNs, KernelStack, OffCpuReason, Pid, Switch,
    SwitchEvent, Tid, VcpuId, WaitCounters,
};

/// Bytes of one event.
pub(crate) const SWITCH_SIZE: usize = 64;

const OUT: u8 = 0;
const IN: u8 = 1;
const WAKE: u8 = 2;
const SEEN: u8 = 3;

const THROTTLED: u8 = 0x01;
const WAITS_VALID: u8 = 0x02;
const GUEST_VALID: u8 = 0x04;
const CR3_VALID: u8 = 0x08;

/// The bytes of an event. What an event does not have is 0.
pub(crate) fn encode_switch(switch: &Switch) -> [u8; SWITCH_SIZE] {
    let mut words = [0_u64; 4];
    let mut halves = [0_u32; 5];
    let mut bytes = [0_u8; 4];
    let mut kernel_stack = 0;
    words[0] = switch.time.0;
    (halves[0], halves[1]) = (switch.vcpu.0, switch.cpu.0);
    match switch.event {
        SwitchEvent::Out { off_cpu, pid, tid, exit_reason, guest } => {
            (halves[2], halves[3], halves[4]) = (pid.0, tid.0, exit_reason);
            (bytes[0], bytes[1]) = (OUT, off_cpu_code(Some(off_cpu)));
            if let Some(at) = guest {
                words[1..].copy_from_slice(&[at.ip.0, at.cr3.map_or(0, Cr3::base), at.fs_base.0]);
                bytes[2] = GUEST_VALID | if at.cr3.is_some() { CR3_VALID } else { 0 };
                bytes[3] = at.cpl;
                kernel_stack = at.kernel_stack.map_or(0, |stack| stack.0);
            }
        }
        SwitchEvent::In { pid, tid } => {
            (halves[2], halves[3]) = (pid.0, tid.0);
            bytes[0] = IN;
        }
        SwitchEvent::Wake { throttled } => {
            (bytes[0], bytes[2]) = (WAKE, if throttled { THROTTLED } else { 0 });
        }
        SwitchEvent::Seen { off_cpu, exit_reason, waits } => {
            halves[4] = exit_reason;
            (bytes[0], bytes[1]) = (SEEN, off_cpu_code(off_cpu));
            if let Some(waits) = waits {
                words[1..].copy_from_slice(&[waits.halted_ns, waits.polled_ns, waits.runnable_ns]);
                bytes[2] = WAITS_VALID;
            }
        }
    }
    let mut record = [0; SWITCH_SIZE];
    let (words_part, rest) = record.split_at_mut(32);
    let (halves_part, rest) = rest.split_at_mut(20);
    let (bytes_part, stack_part) = rest.split_at_mut(4);
    for (place, word) in words_part.as_chunks_mut().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    for (place, half) in halves_part.as_chunks_mut().0.iter_mut().zip(halves) {
        *place = half.to_le_bytes();
    }
    bytes_part.copy_from_slice(&bytes);
    stack_part[..4].copy_from_slice(&u32::to_le_bytes(kernel_stack));
    record
}

/// `encode_switch` undone; `None` when the bytes are no event.
pub(crate) fn decode_switch(record: &[u8; SWITCH_SIZE]) -> Option<Switch> {
    let word = |at: usize| u64::from_le_bytes(record.as_chunks().0[at]);
    let half = |at: usize| u32::from_le_bytes(record.as_chunks().0[8 + at]);
    let (pid, tid, exit_reason) = (Pid(half(2)), Tid(half(3)), half(4));
    let off_cpu = off_cpu_of(record[53])?;
    let flags = record[54];
    let waits = WaitCounters { halted_ns: word(1), polled_ns: word(2), runnable_ns: word(3) };
    let guest = (flags & GUEST_VALID != 0).then(|| GuestRegisters {
        ip: GuestVirt(word(1)),
        cr3: (flags & CR3_VALID != 0).then(|| Cr3::new(word(2))),
        fs_base: GuestVirt(word(3)),
        cpl: record[55],
        kernel_stack: KernelStack::of_number(half(6)),
    });
    let event = match record[52] {
        OUT => SwitchEvent::Out { off_cpu: off_cpu?, pid, tid, exit_reason, guest },
        IN => SwitchEvent::In { pid, tid },
        WAKE => SwitchEvent::Wake { throttled: flags & THROTTLED != 0 },
        SEEN => SwitchEvent::Seen {
            off_cpu,
            exit_reason,
            waits: (flags & WAITS_VALID != 0).then_some(waits),
        },
        _ => return None,
    };
    let (time, vcpu, cpu) = (HostNs(word(0)), VcpuId(half(0)), CpuId(half(1)));
    Some(Switch { time, cpu, vcpu, event })
}

fn off_cpu_code(off_cpu: Option<OffCpuReason>) -> u8 {
    off_cpu.map_or(0, OffCpuReason::number)
}

/// `None`: the input is damaged.
fn off_cpu_of(code: u8) -> Option<Option<OffCpuReason>> {
    let off_cpu = OffCpuReason::from_number(code);
    (code == 0 || off_cpu.is_some()).then_some(off_cpu)
}
