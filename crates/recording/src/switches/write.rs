//! Switch events to columns.

use std::path::Path;

use model::{Cr3, GuestAt, OffCpuReason, Switch, SwitchEvent, WaitCounters};
use parquet::errors::ParquetError;

use super::{ASLEEP, HALTED, IN, OUT, RUNNABLE, SCHEMA, SEEN, THROTTLED, WAKE};
use crate::error::Error;
use crate::manifest::FileEntry;
use crate::slices::{GroupWriter, SliceWriter};

/// Writes slices of events, one row group each.
#[derive(Debug)]
pub(crate) struct SwitchWriter {
    slices: SliceWriter,
}

impl SwitchWriter {
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        Ok(Self { slices: SliceWriter::create(path, &SCHEMA)? })
    }

    /// Appends a slice in time order.
    pub(crate) fn write(&mut self, slice: &[Switch]) -> Result<(), Error> {
        let rows: Vec<_> = slice.iter().collect();
        self.slices.write(&rows, write_columns)
    }

    /// Makes the file durable.
    pub(crate) fn finish(self) -> Result<FileEntry, Error> {
        self.slices.finish()
    }
}

/// In the order of `SCHEMA`.
fn write_columns(group: &mut GroupWriter<'_, '_, Switch>) -> Result<(), ParquetError> {
    group.u64(|switch| switch.time.0)?;
    group.u32(|switch| switch.cpu.0)?;
    group.u32(|switch| switch.vcpu.0)?;
    group.text(|switch| event(switch.event))?;
    group.optional_text(|switch| off_cpu(switch.event).map(off_cpu_name))?;
    group.optional_u32(|switch| other(switch.event).map(|(pid, _)| pid))?;
    group.optional_u32(|switch| other(switch.event).map(|(_, tid)| tid))?;
    group.optional_u32(|switch| exit_reason(switch.event))?;
    group.optional_bool(|switch| throttled(switch.event))?;
    group.optional_u64(|switch| waits(switch.event).map(|waits| waits.halted_ns))?;
    group.optional_u64(|switch| waits(switch.event).map(|waits| waits.polled_ns))?;
    group.optional_u64(|switch| waits(switch.event).map(|waits| waits.runnable_ns))?;
    group.optional_u64(|switch| guest(switch.event).map(|guest| guest.ip.0))?;
    group.optional_u64(|switch| guest(switch.event)?.cr3.map(Cr3::base))?;
    group.optional_u64(|switch| guest(switch.event).map(|guest| guest.fs_base.0))?;
    group.optional_u32(|switch| guest(switch.event).map(|guest| u32::from(guest.cpl)))
}

fn event(event: SwitchEvent) -> &'static str {
    match event {
        SwitchEvent::Out { .. } => OUT,
        SwitchEvent::In { .. } => IN,
        SwitchEvent::Wake { .. } => WAKE,
        SwitchEvent::Seen { .. } => SEEN,
    }
}

fn off_cpu(event: SwitchEvent) -> Option<OffCpuReason> {
    match event {
        SwitchEvent::Out { off_cpu, .. } => Some(off_cpu),
        SwitchEvent::Seen { off_cpu, .. } => off_cpu,
        SwitchEvent::In { .. } | SwitchEvent::Wake { .. } => None,
    }
}

fn off_cpu_name(off_cpu: OffCpuReason) -> &'static str {
    match off_cpu {
        OffCpuReason::Runnable => RUNNABLE,
        OffCpuReason::Throttled => THROTTLED,
        OffCpuReason::Halted => HALTED,
        OffCpuReason::Asleep => ASLEEP,
    }
}

fn other(event: SwitchEvent) -> Option<(u32, u32)> {
    match event {
        SwitchEvent::Out { pid, tid, .. } | SwitchEvent::In { pid, tid } => Some((pid.0, tid.0)),
        SwitchEvent::Wake { .. } | SwitchEvent::Seen { .. } => None,
    }
}

fn exit_reason(event: SwitchEvent) -> Option<u32> {
    match event {
        SwitchEvent::Out { exit_reason, .. } | SwitchEvent::Seen { exit_reason, .. } => {
            Some(exit_reason)
        }
        SwitchEvent::In { .. } | SwitchEvent::Wake { .. } => None,
    }
}

fn guest(event: SwitchEvent) -> Option<GuestAt> {
    match event {
        SwitchEvent::Out { guest, .. } => guest,
        _ => None,
    }
}

fn throttled(event: SwitchEvent) -> Option<bool> {
    match event {
        SwitchEvent::Wake { throttled } => Some(throttled),
        _ => None,
    }
}

fn waits(event: SwitchEvent) -> Option<WaitCounters> {
    match event {
        SwitchEvent::Seen { waits, .. } => waits,
        _ => None,
    }
}
