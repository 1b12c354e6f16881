//! Samples to columns.

use std::path::Path;

use model::{Cr3, HostMode, Sample, VcpuSample, VcpuState, WaitCounters};
use parquet::errors::ParquetError;

use super::{GUEST, NONE, SCHEMA, UNKNOWN, VMM};
use crate::error::Error;
use crate::manifest::FileEntry;
use crate::slices::{GroupWriter, SliceWriter};

/// Writes slices of samples, one row group each.
#[derive(Debug)]
pub(crate) struct SampleWriter {
    slices: SliceWriter,
}

impl SampleWriter {
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        Ok(Self { slices: SliceWriter::create(path, &SCHEMA)? })
    }

    /// Appends a slice in time order, later than those before. The sort keeps that order for each thread.
    pub(crate) fn write(&mut self, slice: &[Sample]) -> Result<(), Error> {
        let mut rows: Vec<_> = slice.iter().collect();
        rows.sort_by_key(|sample| (sample.cpu, sample.tid));
        self.slices.write(&rows, write_columns)
    }

    /// Makes the file durable.
    pub(crate) fn finish(self) -> Result<FileEntry, Error> {
        self.slices.finish()
    }
}

/// In the order of `SCHEMA`.
fn write_columns(group: &mut GroupWriter<'_, '_, Sample>) -> Result<(), ParquetError> {
    group.u64(|sample| sample.time.0)?;
    group.u32(|sample| sample.cpu.0)?;
    group.u32(|sample| sample.pid.0)?;
    group.u32(|sample| sample.tid.0)?;
    group.u64(|sample| sample.host_ip.0)?;
    group.bool(|sample| sample.host_mode == HostMode::User)?;
    group.optional_u32(|sample| sample.stack.map(|stack| stack.0))?;
    group.u32(|sample| state(&sample.vcpu).cast_unsigned())?;
    group.optional_u32(|sample| vcpu(sample).map(|vcpu| vcpu.vcpu.0))?;
    group.u64(|sample| vcpu(sample).map_or(0, |vcpu| vcpu.ip.0))?;
    group.optional_u64(|sample| vcpu(sample).and_then(|vcpu| vcpu.cr3).map(Cr3::base))?;
    group.u64(|sample| vcpu(sample).map_or(0, |vcpu| vcpu.fs_base.0))?;
    group.u32(|sample| vcpu(sample).map_or(0, |vcpu| vcpu.cpl.into()))?;
    group.u32(|sample| vcpu(sample).map_or(0, |vcpu| vcpu.asid))?;
    group.u32(|sample| vcpu(sample).map_or(0, |vcpu| vcpu.exit_reason))?;
    group.u32(|sample| vcpu(sample).map_or(0, |vcpu| vcpu.exit_info))?;
    group.optional_u64(|sample| waits(sample).map(|waits| waits.halted_ns))?;
    group.optional_u64(|sample| waits(sample).map(|waits| waits.polled_ns))?;
    group.optional_u64(|sample| waits(sample).map(|waits| waits.runnable_ns))
}

fn state(vcpu: &VcpuState) -> i32 {
    match vcpu {
        VcpuState::None => NONE,
        VcpuState::Unknown => UNKNOWN,
        VcpuState::Vmm(_) => VMM,
        VcpuState::Guest(_) => GUEST,
    }
}

fn vcpu(sample: &Sample) -> Option<&VcpuSample> {
    match &sample.vcpu {
        VcpuState::Vmm(vcpu) | VcpuState::Guest(vcpu) => Some(vcpu),
        VcpuState::None | VcpuState::Unknown => None,
    }
}

fn waits(sample: &Sample) -> Option<WaitCounters> {
    vcpu(sample).and_then(|vcpu| vcpu.waits)
}
