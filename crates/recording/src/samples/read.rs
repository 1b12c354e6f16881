//! Columns to samples.

use std::fs::File;
use std::path::{Path, PathBuf};

use model::{
    CpuId, Cr3, GuestVirt, HostMode, HostNs, HostVirt, Pid, Sample, StackId, Tid, VcpuId,
    VcpuSample, VcpuState,
};
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{BoolType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};

use super::{
    ASID, CPU, EXIT_INFO, EXIT_REASON, GUEST, GUEST_CPL, GUEST_CR3, GUEST_FS_BASE, GUEST_IP,
    HOST_IP, HOST_USER, NONE, PID, STACK, STATE, TID, TIME, UNKNOWN, VCPU, VMM,
};
use crate::columns::{find_column, guarded};
use crate::error::Error;

/// Rows of one row group at most, whoever wrote it: bounds what is held at a time.
const MAX_SLICE: usize = 1 << 20;

/// Reads `samples.parquet` row group by row group.
pub(crate) struct SampleReader {
    path: PathBuf,
    reader: SerializedFileReader<File>,
    next: usize,
    columns: Columns,
    order: Vec<u32>,
}

impl SampleReader {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(|source| Error::io("read", path, source))?;
        let reader = guarded(path, || SerializedFileReader::new(file))?;
        let columns = Columns::default();
        Ok(Self { path: path.to_owned(), reader, next: 0, columns, order: Vec::new() })
    }

    /// Fills `batch` with the next slice in time order; false at the end.
    pub(crate) fn next_batch(&mut self, batch: &mut Vec<Sample>) -> Result<bool, Error> {
        batch.clear();
        if self.next == self.reader.num_row_groups() {
            return Ok(false);
        }
        let Self { path, reader, next, columns, order } = self;
        guarded(path, || columns.read(reader, *next))?;
        *next += 1;
        columns.time_order(order);
        batch.reserve(order.len());
        for row in order.iter() {
            let sample = columns.sample(*row as usize);
            batch.push(sample.ok_or_else(|| Error::damaged(path, "a state that can't be"))?);
        }
        Ok(true)
    }
}

impl std::fmt::Debug for SampleReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SampleReader").field("path", &self.path).finish_non_exhaustive()
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
}

impl Columns {
    fn read(&mut self, file: &SerializedFileReader<File>, idx: usize) -> Result<(), ParquetError> {
        let group = file.get_row_group(idx)?;
        let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(usize::MAX);
        if MAX_SLICE < rows {
            return Err(ParquetError::General("a row group is too large".into()));
        }
        let group = Group { file, group: group.as_ref(), rows };
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
        group.required::<Int32Type>(EXIT_INFO, &mut self.exit_info)
    }

    /// The rows in time order. The sort finds each CPU's run and merges them.
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
            waits: None,
        })
    }
}

/// A column with absent values: the value where the level is 1.
#[derive(Debug, Default)]
struct Optional<T> {
    values: Vec<T>,
    levels: Vec<i16>,
}

impl<T: Copy + Default> Optional<T> {
    fn get(&self, row: usize) -> Option<T> {
        (self.levels[row] == 1).then(|| self.values[row])
    }

    /// Moves each value to its row.
    fn spread(&mut self) {
        let mut from = self.values.len();
        self.values.resize(self.levels.len(), T::default());
        for row in (0..self.levels.len()).rev() {
            if self.levels[row] == 1 {
                from -= 1;
                self.values[row] = self.values[from];
            }
        }
    }
}

struct Group<'a> {
    file: &'a SerializedFileReader<File>,
    group: &'a (dyn RowGroupReader + 'a),
    rows: usize,
}

impl Group<'_> {
    fn required<T: DataType>(
        &self,
        name: &str,
        values: &mut Vec<T::T>,
    ) -> Result<(), ParquetError> {
        self.read::<T>(name, values, None)
    }

    fn optional<T: DataType>(
        &self,
        name: &str,
        column: &mut Optional<T::T>,
    ) -> Result<(), ParquetError>
    where
        T::T: Copy + Default,
    {
        self.read::<T>(name, &mut column.values, Some(&mut column.levels))?;
        let present = column.levels.iter().filter(|level| **level == 1).count();
        if present != column.values.len() {
            return Err(ParquetError::General(format!("column {name} lacks values")));
        }
        column.spread();
        Ok(())
    }

    fn read<T: DataType>(
        &self,
        name: &str,
        values: &mut Vec<T::T>,
        mut levels: Option<&mut Vec<i16>>,
    ) -> Result<(), ParquetError> {
        values.clear();
        if let Some(levels) = &mut levels {
            levels.clear();
        }
        let shape = (i16::from(levels.is_some()), 0);
        let column = find_column::<T>(self.file.metadata(), name, shape)?;
        let mut reader = get_typed_column_reader::<T>(self.group.get_column_reader(column)?);
        let (rows, ..) = reader.read_records(self.rows, levels, None, values)?;
        if rows != self.rows {
            return Err(ParquetError::General(format!("column {name} lacks rows")));
        }
        Ok(())
    }
}
