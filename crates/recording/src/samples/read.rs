//! Columns to samples.

use std::path::Path;

use model::{
    CpuId, Cr3, GuestVirt, HostMode, HostNs, HostVirt, Pid, Sample, StackId, Tid, VcpuId,
    VcpuSample, VcpuState, WaitCounters,
};
use parquet::data_type::{BoolType, Int32Type, Int64Type};
use parquet::errors::ParquetError;

use super::{
    ASID, CPU, EXIT_INFO, EXIT_REASON, GUEST, GUEST_CPL, GUEST_CR3, GUEST_FS_BASE, GUEST_IP,
    HALTED, HOST_IP, HOST_USER, NONE, PID, POLLED, RUNNABLE, STACK, STATE, TID, TIME, UNKNOWN,
    VCPU, VMM,
};
use crate::error::Error;
use crate::slices::{GroupReader, Optional, SliceReader};

/// Reads `samples.parquet` row group by row group.
#[derive(Debug)]
pub(crate) struct SampleReader {
    slices: SliceReader,
    columns: Columns,
    order: Vec<u32>,
}

impl SampleReader {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let slices = SliceReader::open(path)?;
        Ok(Self { slices, columns: Columns::default(), order: Vec::new() })
    }

    /// Fills `batch` with the next slice in time order; false at the end.
    pub(crate) fn next_batch(&mut self, batch: &mut Vec<Sample>) -> Result<bool, Error> {
        batch.clear();
        let Self { slices, columns, order } = self;
        if !slices.next(|group| columns.read(group))? {
            return Ok(false);
        }
        columns.time_order(order);
        batch.reserve(order.len());
        for row in order.iter() {
            let sample = columns.sample(*row as usize);
            batch.push(sample.ok_or_else(|| slices.damaged("a state that can't be"))?);
        }
        Ok(true)
    }
}

/// The columns of one row group; the buffers are used again for the next.
#[derive(Debug, Default)]
struct Columns {
    time: Vec<i64>,
    cpu: Vec<i32>,
    pid: Vec<i32>,
    tid: Vec<i32>,
    host_ip: Vec<i64>,
    host_user: Vec<bool>,
    stack: Optional<i32>,
    state: Vec<i32>,
    vcpu: Optional<i32>,
    guest_ip: Vec<i64>,
    guest_cr3: Optional<i64>,
    guest_fs_base: Vec<i64>,
    guest_cpl: Vec<i32>,
    asid: Vec<i32>,
    exit_reason: Vec<i32>,
    exit_info: Vec<i32>,
    halted: Optional<i64>,
    polled: Optional<i64>,
    runnable: Optional<i64>,
}

impl Columns {
    fn read(&mut self, group: &GroupReader<'_>) -> Result<(), ParquetError> {
        group.required::<Int64Type>(TIME, &mut self.time)?;
        group.required::<Int32Type>(CPU, &mut self.cpu)?;
        group.required::<Int32Type>(PID, &mut self.pid)?;
        group.required::<Int32Type>(TID, &mut self.tid)?;
        group.required::<Int64Type>(HOST_IP, &mut self.host_ip)?;
        group.required::<BoolType>(HOST_USER, &mut self.host_user)?;
        group.optional::<Int32Type>(STACK, &mut self.stack)?;
        group.required::<Int32Type>(STATE, &mut self.state)?;
        group.optional::<Int32Type>(VCPU, &mut self.vcpu)?;
        group.required::<Int64Type>(GUEST_IP, &mut self.guest_ip)?;
        group.optional::<Int64Type>(GUEST_CR3, &mut self.guest_cr3)?;
        group.required::<Int64Type>(GUEST_FS_BASE, &mut self.guest_fs_base)?;
        group.required::<Int32Type>(GUEST_CPL, &mut self.guest_cpl)?;
        group.required::<Int32Type>(ASID, &mut self.asid)?;
        group.required::<Int32Type>(EXIT_REASON, &mut self.exit_reason)?;
        group.required::<Int32Type>(EXIT_INFO, &mut self.exit_info)?;
        group.added::<Int64Type>(HALTED, &mut self.halted)?;
        group.added::<Int64Type>(POLLED, &mut self.polled)?;
        group.added::<Int64Type>(RUNNABLE, &mut self.runnable)
    }

    /// The rows in time order. The sort finds each thread's run and merges them.
    fn time_order(&self, order: &mut Vec<u32>) {
        order.clear();
        order.extend((0..).take(self.time.len()));
        order.sort_by_key(|row| self.time[*row as usize].cast_unsigned());
    }

    fn sample(&self, row: usize) -> Option<Sample> {
        Some(Sample {
            time: HostNs(self.time[row].cast_unsigned()),
            cpu: CpuId(self.cpu[row].cast_unsigned()),
            pid: Pid(self.pid[row].cast_unsigned()),
            tid: Tid(self.tid[row].cast_unsigned()),
            host_ip: HostVirt(self.host_ip[row].cast_unsigned()),
            host_mode: if self.host_user[row] { HostMode::User } else { HostMode::Kernel },
            stack: self.stack.get(row).map(|stack| StackId(stack.cast_unsigned())),
            vcpu: match self.state[row] {
                NONE => VcpuState::None,
                UNKNOWN => VcpuState::Unknown,
                VMM => VcpuState::Vmm(self.vcpu(row)?),
                GUEST => VcpuState::Guest(self.vcpu(row)?),
                _ => return None,
            },
        })
    }

    fn vcpu(&self, row: usize) -> Option<VcpuSample> {
        Some(VcpuSample {
            vcpu: VcpuId(self.vcpu.get(row)?.cast_unsigned()),
            ip: GuestVirt(self.guest_ip[row].cast_unsigned()),
            cr3: self.guest_cr3.get(row).map(|base| Cr3::new(base.cast_unsigned())),
            fs_base: GuestVirt(self.guest_fs_base[row].cast_unsigned()),
            cpl: u8::try_from(self.guest_cpl[row]).ok()?,
            asid: self.asid[row].cast_unsigned(),
            exit_reason: self.exit_reason[row].cast_unsigned(),
            exit_info: self.exit_info[row].cast_unsigned(),
            waits: self.waits(row),
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
