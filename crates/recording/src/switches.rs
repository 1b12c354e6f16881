//! What the scheduler did with vCPUs' threads: the spool while recording, `switches.parquet` afterwards.
//!
//! Events come in batches, of all CPUs: in time order only once sorted, and only per vCPU is that
//! promised. A row group is a batch of at most `SLICE` events as they came, in time order.

mod record;

pub(crate) use record::{SWITCH_SIZE, decode_switch, encode_switch};

use model::{
    CpuId, Cr3, GuestRegisters, GuestVirt, HostNs, KernelStack, OffCpuReason, Pid, Switch,
    SwitchEvent, Tid, VcpuId, WaitCounters,
};

use crate::columns::{Text, table};
use crate::files::SWITCHES;
use crate::samples::waits;

/// Values of column `event`.
const OUT: &str = "out";
const IN: &str = "in";
const WAKE: &str = "wake";
const SEEN: &str = "seen";

table! {
    Switches of Switch, sliced SWITCHES, by time_ns;
    write |number, switch|
    let Fields { name, off_cpu, other, exit_reason, throttled, waits, guest } = switch.event.into(); {
        time_ns: HostNs [delta] = switch.time,
        cpu: CpuId = switch.cpu,
        vcpu: VcpuId = switch.vcpu,
        event: Text = Text::word(name),
        away: Option<OffCpuReason> = off_cpu,
        other_pid: Option<Pid> = other.map(|(pid, _)| pid),
        other_tid: Option<Tid> = other.map(|(_, tid)| tid),
        exit_reason: Option<u32> = exit_reason,
        throttled: Option<bool> = throttled,
        halted_ns: Option<u64> = waits.map(|waits| waits.halted_ns),
        polled_ns: Option<u64> = waits.map(|waits| waits.polled_ns),
        runnable_ns: Option<u64> = waits.map(|waits| waits.runnable_ns),
        guest_ip: Option<GuestVirt> [added] = guest.map(|guest| guest.ip),
        guest_cr3: Option<Cr3> [added] = guest.and_then(|guest| guest.cr3),
        guest_fs_base: Option<GuestVirt> [added] = guest.map(|guest| guest.fs_base),
        guest_cpl: Option<u32> [added] = guest.map(|guest| guest.cpl.into()),
        guest_stack: Option<KernelStack> [added] = guest.and_then(|guest| guest.kernel_stack),
    }
    read |row, columns| {
        let guest = || Some(GuestRegisters {
            ip: (*guest_ip)?,
            cr3: *guest_cr3,
            fs_base: (*guest_fs_base)?,
            cpl: u8::try_from((*guest_cpl)?).ok()?,
            kernel_stack: *guest_stack,
        });
        let fields = Fields {
            name: event.as_str(),
            off_cpu: *away,
            other: other_pid.zip(*other_tid),
            exit_reason: *exit_reason,
            throttled: *throttled,
            waits: waits(*halted_ns, *polled_ns, *runnable_ns),
            guest: guest(),
        };
        let event = fields.event().ok_or("invalid switch event")?;
        Ok(Switch { time: *time_ns, cpu: *cpu, vcpu: *vcpu, event })
    }
}

/// An event's fields, whatever its kind.
#[derive(Debug, Clone, Copy, Default)]
struct Fields<'a> {
    name: &'a str,
    off_cpu: Option<OffCpuReason>,
    other: Option<(Pid, Tid)>,
    exit_reason: Option<u32>,
    throttled: Option<bool>,
    waits: Option<WaitCounters>,
    guest: Option<GuestRegisters>,
}

impl From<SwitchEvent> for Fields<'static> {
    fn from(event: SwitchEvent) -> Self {
        let none = Self::default();
        match event {
            SwitchEvent::Out { off_cpu, pid, tid, exit_reason, guest } => {
                let (off_cpu, other) = (Some(off_cpu), Some((pid, tid)));
                Self { name: OUT, off_cpu, other, exit_reason: Some(exit_reason), guest, ..none }
            }
            SwitchEvent::In { pid, tid } => Self { name: IN, other: Some((pid, tid)), ..none },
            SwitchEvent::Wake { throttled } => {
                Self { name: WAKE, throttled: Some(throttled), ..none }
            }
            SwitchEvent::Seen { off_cpu, exit_reason, waits } => {
                Self { name: SEEN, off_cpu, exit_reason: Some(exit_reason), waits, ..none }
            }
        }
    }
}

impl Fields<'_> {
    /// `None` when there is no such event, or it lacks what it must have.
    fn event(self) -> Option<SwitchEvent> {
        let Self { name, off_cpu, other, exit_reason, throttled, waits, guest } = self;
        Some(match name {
            OUT => {
                let ((pid, tid), off_cpu, exit_reason) = (other?, off_cpu?, exit_reason?);
                SwitchEvent::Out { off_cpu, pid, tid, exit_reason, guest }
            }
            IN => {
                let (pid, tid) = other?;
                SwitchEvent::In { pid, tid }
            }
            WAKE => SwitchEvent::Wake { throttled: throttled? },
            SEEN => SwitchEvent::Seen { off_cpu, exit_reason: exit_reason?, waits },
            _ => return None,
        })
    }
}

/// Takes away events of vCPUs that are in no table: how many those were.
pub(crate) fn cut_dangling(batch: &mut Vec<Switch>, vcpus: usize) -> usize {
    let before = batch.len();
    batch.retain(|switch| switch.vcpu.index() < vcpus);
    before - batch.len()
}
