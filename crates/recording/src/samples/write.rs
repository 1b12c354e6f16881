//! Samples to columns.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::{Cr3, HostMode, Sample, VcpuSample, VcpuState};
use parquet::basic::Encoding;
use parquet::data_type::{BoolType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use super::{
    ASID, CPU, EXIT_INFO, EXIT_REASON, GUEST, GUEST_CPL, GUEST_CR3, GUEST_FS_BASE, GUEST_IP,
    HOST_IP, HOST_USER, NONE, PID, STACK, STATE, TID, TIME, UNKNOWN, VCPU, VMM,
};
use crate::columns::properties;
use crate::error::Error;
use crate::files::DurableFile;
use crate::manifest::FileEntry;

/// Writes slices of samples, one row group each.
pub(crate) struct SampleWriter {
    path: PathBuf,
    writer: SerializedFileWriter<DurableFile>,
    rows: u64,
    order: Vec<u32>,
}

impl SampleWriter {
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        let file = DurableFile::create(path)?;
        let writer = open(file).map_err(|error| Error::writing(path, error))?;
        Ok(Self { path: path.to_owned(), writer, rows: 0, order: Vec::new() })
    }

    /// Appends a slice in time order, later than those before.
    pub(crate) fn write(&mut self, slice: &[Sample]) -> Result<(), Error> {
        by_cpu(slice, &mut self.order);
        self.rows += slice.len() as u64;
        self.write_group(slice).map_err(|error| Error::writing(&self.path, error))
    }

    /// Makes the file durable.
    pub(crate) fn finish(self) -> Result<FileEntry, Error> {
        let file = self.writer.into_inner().map_err(|error| Error::writing(&self.path, error))?;
        Ok(FileEntry::new(self.rows, file.commit()?))
    }

    fn write_group(&mut self, slice: &[Sample]) -> Result<(), ParquetError> {
        let mut group = Group { group: self.writer.next_row_group()?, slice, order: &self.order };
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
        group.group.close()?;
        Ok(())
    }
}

impl std::fmt::Debug for SampleWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SampleWriter").field("path", &self.path).finish_non_exhaustive()
    }
}

fn open(file: DurableFile) -> Result<SerializedFileWriter<DurableFile>, ParquetError> {
    let schema = parse_message_type(&schema())?;
    SerializedFileWriter::new(file, Arc::new(schema), Arc::new(sample_properties()?))
}

fn schema() -> String {
    let u64s = "int64";
    let u32s = "int32";
    let fields = [
        ("required", u64s, TIME, 64),
        ("required", u32s, CPU, 32),
        ("required", u32s, PID, 32),
        ("required", u32s, TID, 32),
        ("required", u64s, HOST_IP, 64),
        ("required", "boolean", HOST_USER, 0),
        ("optional", u32s, STACK, 32),
        ("required", u32s, STATE, 8),
        ("optional", u32s, VCPU, 32),
        ("required", u64s, GUEST_IP, 64),
        ("optional", u64s, GUEST_CR3, 64),
        ("required", u64s, GUEST_FS_BASE, 64),
        ("required", u32s, GUEST_CPL, 8),
        ("required", u32s, ASID, 32),
        ("required", u32s, EXIT_REASON, 32),
        ("required", u32s, EXIT_INFO, 32),
    ];
    let field = |(presence, physical, name, bits)| match bits {
        0 => format!("{presence} {physical} {name};"),
        _ => format!("{presence} {physical} {name} (INTEGER({bits},false));"),
    };
    format!("message samples {{ {} }}", fields.map(field).concat())
}

/// Measured, see `docs/formats.md`: times are best as packed differences, all else as dictionaries.
fn sample_properties() -> Result<WriterProperties, ParquetError> {
    let time = ColumnPath::from(TIME);
    Ok(properties()?
        .set_column_dictionary_enabled(time.clone(), false)
        .set_column_encoding(time, Encoding::DELTA_BINARY_PACKED)
        .build())
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

/// The order that puts each CPU's samples together and keeps their order.
fn by_cpu(slice: &[Sample], order: &mut Vec<u32>) {
    let mut cpus: Vec<_> = slice.iter().map(|sample| sample.cpu).collect();
    cpus.sort_unstable();
    cpus.dedup();
    let place = |sample: &Sample| cpus.partition_point(|cpu| *cpu < sample.cpu);
    let mut starts = vec![0_u32; cpus.len() + 1];
    slice.iter().for_each(|sample| starts[place(sample) + 1] += 1);
    (1..starts.len()).for_each(|cpu| starts[cpu] += starts[cpu - 1]);
    order.clear();
    order.resize(slice.len(), 0);
    for (row, sample) in (0..).zip(slice) {
        let next = &mut starts[place(sample)];
        order[*next as usize] = row;
        *next += 1;
    }
}

/// A row group that takes its columns one after the other.
struct Group<'a, 'b> {
    group: SerializedRowGroupWriter<'a, DurableFile>,
    slice: &'b [Sample],
    order: &'b [u32],
}

impl<'b> Group<'_, 'b> {
    fn u64(&mut self, value: impl Fn(&Sample) -> u64) -> Result<(), ParquetError> {
        let values: Vec<i64> = self.rows().map(|s| value(s).cast_signed()).collect();
        self.write::<Int64Type>(&values, None)
    }

    fn u32(&mut self, value: impl Fn(&Sample) -> u32) -> Result<(), ParquetError> {
        let values: Vec<i32> = self.rows().map(|s| value(s).cast_signed()).collect();
        self.write::<Int32Type>(&values, None)
    }

    fn bool(&mut self, value: impl Fn(&Sample) -> bool) -> Result<(), ParquetError> {
        let values: Vec<bool> = self.rows().map(value).collect();
        self.write::<BoolType>(&values, None)
    }

    fn optional_u64(&mut self, value: impl Fn(&Sample) -> Option<u64>) -> Result<(), ParquetError> {
        let levels: Vec<i16> = self.rows().map(|s| i16::from(value(s).is_some())).collect();
        let values: Vec<i64> = self.rows().filter_map(value).map(u64::cast_signed).collect();
        self.write::<Int64Type>(&values, Some(&levels))
    }

    fn optional_u32(&mut self, value: impl Fn(&Sample) -> Option<u32>) -> Result<(), ParquetError> {
        let levels: Vec<i16> = self.rows().map(|s| i16::from(value(s).is_some())).collect();
        let values: Vec<i32> = self.rows().filter_map(value).map(u32::cast_signed).collect();
        self.write::<Int32Type>(&values, Some(&levels))
    }

    fn rows(&self) -> impl Iterator<Item = &'b Sample> + use<'b> {
        let slice = self.slice;
        self.order.iter().map(move |row| &slice[*row as usize])
    }

    fn write<T: DataType>(
        &mut self,
        values: &[T::T],
        levels: Option<&[i16]>,
    ) -> Result<(), ParquetError> {
        let mut column =
            self.group.next_column()?.ok_or_else(|| ParquetError::General("columns".into()))?;
        column.typed::<T>().write_batch(values, levels, None)?;
        column.close()
    }
}
