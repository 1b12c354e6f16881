//! Switches of vCPU threads (`struct switch_event` of bpf/abi/switch.h).

use libbpf_rs::{Link, Object};
use model::{
    CpuId, Cr3, GuestRegisters, GuestVirt, HostNs, KernelStack, OffCpuReason, Pid, Switch,
    SwitchEvent, Tid, VcpuId, Vendor,
};

use crate::abi::{RINGS, field};
use crate::ring::Rings;
use crate::{ProbeError, Sampler, object, vcpus};

/// Bytes of `struct switch_event`.
const EVENT_BYTES: usize = 64;

const GUEST: u8 = 1;
const CR3: u8 = 2;

/// The loaded programs and their rings.
#[derive(Debug)]
pub struct SwitchTracer {
    rings: Rings,
    object: Object,
}

/// The attached programs; they stop when this is dropped.
#[derive(Debug)]
pub struct SwitchLinks {
    _links: Vec<Link>,
}

impl SwitchTracer {
    /// Loads the programs for the vCPUs that `sampler` watches; nothing is traced yet. Each CPU has room for
    /// `slots` events, rounded up to a power of two.
    ///
    /// # Errors
    /// When the kernel refuses; the error says what to do.
    pub fn load(
        sampler: &Sampler,
        cpus: &[u32],
        slots: u32,
        vendor: Vendor,
    ) -> Result<Self, ProbeError> {
        let slots = slots.next_power_of_two();
        let n_rings = object::rings_for(cpus)?;
        let n_slots = n_rings * slots;
        let mut open = object::open(bpf::SWITCHES)?;
        let config = [slots - 1, object::vendor_word(vendor)];
        object::configure(&mut open, &[("events", n_slots)], &config)?;
        object::share(&mut open, vcpus::MAP, sampler.vcpus().fd())?;
        let object = object::load(open)?;
        let rings = Rings {
            heads: object::memory(&object, RINGS, object::RING_HEADS_BYTES)?,
            records: object::memory(&object, "events", n_slots as usize * EVENT_BYTES)?,
            record_bytes: EVENT_BYTES,
            slots: slots as usize,
        };
        Ok(Self { rings, object })
    }

    /// Attaches the programs.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn start(&self) -> Result<SwitchLinks, ProbeError> {
        let attach = |program: libbpf_rs::ProgramMut<'_>| program.attach();
        let links = self.object.progs_mut().map(attach).collect::<Result<_, _>>();
        Ok(SwitchLinks { _links: links.map_err(ProbeError::Trace)? })
    }

    /// Appends what `cpu` has published since the last call.
    pub fn drain(&self, cpu: u32, switches: &mut Vec<Switch>) {
        let take = |_: usize, records: &[u8]| {
            switches.extend(records.chunks_exact(EVENT_BYTES).filter_map(decode));
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(()) = self.rings.drain(cpu as usize, take);
    }

    /// Events of `cpu` that found no room.
    #[must_use]
    pub fn dropped(&self, cpu: u32) -> u64 {
        self.rings.counters(cpu as usize).dropped
    }
}

/// `None` never happens: the programs write no other kinds.
fn decode(bytes: &[u8]) -> Option<Switch> {
    let word = |at| u32::from_ne_bytes(field(bytes, at));
    let (pid, tid) = (Pid(word(40)), Tid(word(44)));
    let why = OffCpuReason::from_number(bytes[53]);
    let event = match bytes[52] {
        1 => {
            SwitchEvent::Out { off_cpu: why?, pid, tid, exit_reason: word(48), guest: guest(bytes) }
        }
        2 => SwitchEvent::In { pid, tid },
        3 => SwitchEvent::Wake { throttled: why == Some(OffCpuReason::Throttled) },
        _ => return None,
    };
    Some(Switch {
        time: HostNs(u64::from_ne_bytes(field(bytes, 0))),
        vcpu: VcpuId(word(32)),
        cpu: CpuId(word(36)),
        event,
    })
}

fn guest(bytes: &[u8]) -> Option<GuestRegisters> {
    let long = |at| u64::from_ne_bytes(field(bytes, at));
    let flags = bytes[55];
    (flags & GUEST != 0).then(|| GuestRegisters {
        ip: GuestVirt(long(8)),
        cr3: (flags & CR3 != 0).then(|| Cr3::new(long(16))),
        fs_base: GuestVirt(long(24)),
        cpl: bytes[54],
        kernel_stack: KernelStack::of_number(u32::from_ne_bytes(field(bytes, 56))),
    })
}

#[cfg(test)]
mod test {
    use super::*;

    fn check(kind: u8, off_cpu: u8, flags: u8, expected: Option<SwitchEvent>) {
        let mut bytes = Vec::new();
        for value in [0x11_u64, 0x12, 0x1300_0000, 0x14] {
            bytes.extend(value.to_ne_bytes());
        }
        for value in [0x21_u32, 0x22, 0x23, 0x24, 0x25] {
            bytes.extend(value.to_ne_bytes());
        }
        bytes.extend([kind, off_cpu, 3, flags, 0x26, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes.len(), EVENT_BYTES);
        let expected = expected.map(|event| Switch {
            time: HostNs(0x11),
            cpu: CpuId(0x22),
            vcpu: VcpuId(0x21),
            event,
        });
        assert_eq!(decode(&bytes), expected);
    }

    #[test]
    fn events_are_read_as_the_header_says() {
        let (pid, tid) = (Pid(0x23), Tid(0x24));
        let out =
            |off_cpu, guest| Some(SwitchEvent::Out { off_cpu, pid, tid, exit_reason: 0x25, guest });
        let (ip, fs_base, cpl) = (GuestVirt(0x12), GuestVirt(0x14), 3);
        let kernel_stack = Some(KernelStack(0x26));
        let with = |cr3| Some(GuestRegisters { ip, cr3, fs_base, cpl, kernel_stack });
        check(1, 1, 0, out(OffCpuReason::Runnable, None));
        check(1, 1, 1, out(OffCpuReason::Runnable, with(None)));
        check(1, 2, 3, out(OffCpuReason::Throttled, with(Some(Cr3::new(0x1300_0000)))));
        check(1, 3, 0, out(OffCpuReason::Halted, None));
        check(1, 4, 0, out(OffCpuReason::Asleep, None));
        check(1, 5, 0, out(OffCpuReason::Paused, None));
        check(1, 0, 0, None);
        check(2, 0, 0, Some(SwitchEvent::In { pid, tid }));
        check(3, 1, 0, Some(SwitchEvent::Wake { throttled: false }));
        check(3, 2, 0, Some(SwitchEvent::Wake { throttled: true }));
        check(0, 0, 0, None);
    }
}
