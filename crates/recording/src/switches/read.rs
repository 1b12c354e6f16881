//! Columns to switch events.

use std::path::Path;

use model::{
    CpuId, Cr3, GuestAt, GuestVirt, HostNs, OffCpuReason, Pid, Switch, SwitchEvent, Tid, VcpuId,
    WaitCounters,
};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;

use super::{
    ASLEEP, CPU, EVENT, EXIT_REASON, GUEST_CPL, GUEST_CR3, GUEST_FS_BASE, GUEST_IP, HALTED,
    HALTED_NS, IN, OFF_CPU, OTHER_PID, OTHER_TID, OUT, POLLED_NS, RUNNABLE, RUNNABLE_NS, SEEN,
    THROTTLED, TIME, VCPU, WAKE,
};
use crate::error::Error;
use crate::slices::{GroupReader, Optional, SliceReader};

/// Reads `switches.parquet` row group by row group.
#[derive(Debug)]
pub(crate) struct SwitchReader {
    slices: SliceReader,
    columns: Columns,
}

impl SwitchReader {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self { slices: SliceReader::open(path)?, columns: Columns::default() })
    }

    /// Fills `batch` with the next slice in time order; false at the end.
    pub(crate) fn next_batch(&mut self, batch: &mut Vec<Switch>) -> Result<bool, Error> {
        batch.clear();
        let Self { slices, columns } = self;
        if !slices.next(|group| columns.read(group))? {
            return Ok(false);
        }
        for row in 0..columns.time.len() {
            let switch = columns.switch(row);
            batch.push(switch.ok_or_else(|| slices.damaged("an event that can't be"))?);
        }
        batch.sort_by_key(|switch| switch.time);
        Ok(true)
    }
}

/// The columns of one row group; the buffers are used again for the next.
#[derive(Debug, Default)]
struct Columns {
    time: Vec<i64>,
    cpu: Vec<i32>,
    vcpu: Vec<i32>,
    event: Vec<ByteArray>,
    off_cpu: Optional<ByteArray>,
    other_pid: Optional<i32>,
    other_tid: Optional<i32>,
    exit_reason: Optional<i32>,
    throttled: Optional<bool>,
    halted: Optional<i64>,
    polled: Optional<i64>,
    runnable: Optional<i64>,
    guest_ip: Optional<i64>,
    guest_cr3: Optional<i64>,
    guest_fs_base: Optional<i64>,
    guest_cpl: Optional<i32>,
}

impl Columns {
    fn read(&mut self, group: &GroupReader<'_>) -> Result<(), ParquetError> {
        group.required::<Int64Type>(TIME, &mut self.time)?;
        group.required::<Int32Type>(CPU, &mut self.cpu)?;
        group.required::<Int32Type>(VCPU, &mut self.vcpu)?;
        group.required::<ByteArrayType>(EVENT, &mut self.event)?;
        group.optional::<ByteArrayType>(OFF_CPU, &mut self.off_cpu)?;
        group.optional::<Int32Type>(OTHER_PID, &mut self.other_pid)?;
        group.optional::<Int32Type>(OTHER_TID, &mut self.other_tid)?;
        group.optional::<Int32Type>(EXIT_REASON, &mut self.exit_reason)?;
        group.optional::<BoolType>(THROTTLED, &mut self.throttled)?;
        group.optional::<Int64Type>(HALTED_NS, &mut self.halted)?;
        group.optional::<Int64Type>(POLLED_NS, &mut self.polled)?;
        group.optional::<Int64Type>(RUNNABLE_NS, &mut self.runnable)?;
        group.added::<Int64Type>(GUEST_IP, &mut self.guest_ip)?;
        group.added::<Int64Type>(GUEST_CR3, &mut self.guest_cr3)?;
        group.added::<Int64Type>(GUEST_FS_BASE, &mut self.guest_fs_base)?;
        group.added::<Int32Type>(GUEST_CPL, &mut self.guest_cpl)
    }

    /// `None` when the row lacks what its event must have.
    fn switch(&self, row: usize) -> Option<Switch> {
        Some(Switch {
            time: HostNs(self.time[row].cast_unsigned()),
            cpu: CpuId(self.cpu[row].cast_unsigned()),
            vcpu: VcpuId(self.vcpu[row].cast_unsigned()),
            event: self.event(row)?,
        })
    }

    fn event(&self, row: usize) -> Option<SwitchEvent> {
        let off_cpu = match self.off_cpu.get(row) {
            None => None,
            Some(name) => Some(off_cpu(name)?),
        };
        let pid = self.other_pid.get(row).map(|pid| Pid(pid.cast_unsigned()));
        let tid = self.other_tid.get(row).map(|tid| Tid(tid.cast_unsigned()));
        let exit_reason = self.exit_reason.get(row).map(|reason| reason.cast_unsigned());
        Some(match std::str::from_utf8(self.event[row].data()).ok()? {
            OUT => SwitchEvent::Out {
                off_cpu: off_cpu?,
                pid: pid?,
                tid: tid?,
                exit_reason: exit_reason?,
                guest: self.guest(row),
            },
            IN => SwitchEvent::In { pid: pid?, tid: tid? },
            WAKE => SwitchEvent::Wake { throttled: *self.throttled.get(row)? },
            SEEN => {
                SwitchEvent::Seen { off_cpu, exit_reason: exit_reason?, waits: self.waits(row) }
            }
            _ => return None,
        })
    }

    fn guest(&self, row: usize) -> Option<GuestAt> {
        Some(GuestAt {
            ip: GuestVirt(self.guest_ip.get(row)?.cast_unsigned()),
            cr3: self.guest_cr3.get(row).map(|cr3| Cr3::new(cr3.cast_unsigned())),
            fs_base: GuestVirt(self.guest_fs_base.get(row)?.cast_unsigned()),
            cpl: u8::try_from(*self.guest_cpl.get(row)?).ok()?,
        })
    }

    fn waits(&self, row: usize) -> Option<WaitCounters> {
        Some(WaitCounters {
            halted_ns: self.halted.get(row)?.cast_unsigned(),
            polled_ns: self.polled.get(row)?.cast_unsigned(),
            runnable_ns: self.runnable.get(row)?.cast_unsigned(),
        })
    }
}

fn off_cpu(name: &ByteArray) -> Option<OffCpuReason> {
    match std::str::from_utf8(name.data()).ok()? {
        RUNNABLE => Some(OffCpuReason::Runnable),
        THROTTLED => Some(OffCpuReason::Throttled),
        HALTED => Some(OffCpuReason::Halted),
        ASLEEP => Some(OffCpuReason::Asleep),
        _ => None,
    }
}
