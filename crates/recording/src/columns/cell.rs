//! What one row has in one column.

use bytes::Bytes;
use model::{
    BuildId, CpuId, Cr3, GuestVirt, HostNs, HostVirt, ImageId, ImageKind, KernelStack, MachineId,
    ModuleId, OffCpuReason, Owner, Pid, StackEnd, StackId, Tid, TraceEventTag, TraceStack, VcpuId,
    VmId,
};
use parquet::column::reader::{get_column_reader, get_typed_column_reader};
use parquet::data_type::{
    AsBytes, BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type,
};
use parquet::errors::ParquetError;
use parquet::file::writer::SerializedColumnWriter;

use super::Budget;
use super::pages::RowGroup;
use crate::schema::{Presence, ValueType};

/// Rows that are read at a time.
const CHUNK: usize = 1 << 16;

/// A type of a column's values.
pub(crate) trait Scalar: Sized {
    type Data: DataType;
    const VALUE: ValueType;
    fn store(&self) -> <Self::Data as DataType>::T;
    /// `None`: there is no such value.
    fn load(value: <Self::Data as DataType>::T) -> Option<Self>;
}

/// The values of one row: one, one or none, or any number.
pub(crate) trait Cell: Sized {
    type Data: DataType;
    const VALUE: ValueType;
    const PRESENCE: Presence;
    fn store(&self, values: &mut Stored<Self::Data>);
    /// `None`: the column ends, or the value is none of this type.
    fn load(values: &mut Loaded<Self::Data>) -> Option<Self>;
}

/// The values of a column as Parquet takes them: those that are there, and the levels that place them.
pub(crate) struct Stored<D: DataType> {
    values: Vec<D::T>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

/// The same on the way back.
pub(crate) struct Loaded<D: DataType> {
    values: std::vec::IntoIter<D::T>,
    definition: std::vec::IntoIter<i16>,
    repetition: std::iter::Peekable<std::vec::IntoIter<i16>>,
}

impl<S: Scalar> Cell for S {
    type Data = S::Data;
    const VALUE: ValueType = S::VALUE;
    const PRESENCE: Presence = Presence::Required;

    fn store(&self, values: &mut Stored<Self::Data>) {
        values.values.push(Scalar::store(self));
    }

    fn load(values: &mut Loaded<Self::Data>) -> Option<Self> {
        Scalar::load(values.values.next()?)
    }
}

impl<S: Scalar> Cell for Option<S> {
    type Data = S::Data;
    const VALUE: ValueType = S::VALUE;
    const PRESENCE: Presence = Presence::Optional;

    fn store(&self, values: &mut Stored<Self::Data>) {
        values.definition.push(self.is_some().into());
        values.values.extend(self.as_ref().map(Scalar::store));
    }

    fn load(values: &mut Loaded<Self::Data>) -> Option<Self> {
        match values.definition.next()? {
            0 => Some(None),
            _ => Scalar::load(values.values.next()?).map(Some),
        }
    }
}

impl<S: Scalar> Cell for Vec<S> {
    type Data = S::Data;
    const VALUE: ValueType = S::VALUE;
    const PRESENCE: Presence = Presence::List;

    fn store(&self, values: &mut Stored<Self::Data>) {
        let (levels, present) = (self.len().max(1), i16::from(!self.is_empty()));
        values.definition.extend(std::iter::repeat_n(present, levels));
        values.repetition.push(0);
        values.repetition.extend(std::iter::repeat_n(1, levels - 1));
        values.values.extend(self.iter().map(Scalar::store));
    }

    fn load(values: &mut Loaded<Self::Data>) -> Option<Self> {
        let mut list = Self::new();
        (values.repetition.next()? == 0).then_some(())?;
        loop {
            if values.definition.next()? == 1 {
                list.push(Scalar::load(values.values.next()?)?);
            }
            if values.repetition.next_if(|level| *level == 1).is_none() {
                return Some(list);
            }
        }
    }
}

/// A column, whatever it holds.
pub(crate) trait Column {
    fn clear(&mut self);
    fn write(&self, writer: &mut SerializedColumnWriter<'_>) -> Result<(), ParquetError>;
    /// Takes its values from column `index` of a row group; without one they are absent.
    fn read(
        &mut self,
        group: &RowGroup<'_>,
        index: Option<usize>,
        budget: &Budget,
    ) -> Result<(), ParquetError>;
    /// The type that it must have in the file.
    fn physical_type(&self) -> parquet::basic::Type;
}

impl<T: Cell> Column for Vec<T> {
    fn clear(&mut self) {
        Self::clear(self);
    }

    fn write(&self, writer: &mut SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
        let values = Vec::with_capacity(self.len());
        let mut stored = Stored { values, definition: Vec::new(), repetition: Vec::new() };
        self.iter().for_each(|cell| cell.store(&mut stored));
        let Stored { values, definition, repetition } = &stored;
        let definition = (T::PRESENCE != Presence::Required).then_some(definition.as_slice());
        let repetition = (T::PRESENCE == Presence::List).then_some(repetition.as_slice());
        writer.typed::<T::Data>().write_batch(values, definition, repetition).map(drop)
    }

    fn read(
        &mut self,
        group: &RowGroup<'_>,
        index: Option<usize>,
        budget: &Budget,
    ) -> Result<(), ParquetError> {
        let rows = group.rows();
        let Stored { values, definition, repetition } = match index {
            Some(index) => load::<T::Data>(group, index, budget)?,
            None => {
                Stored { values: Vec::new(), definition: vec![0; rows], repetition: vec![0; rows] }
            }
        };
        let mut loaded = Loaded {
            values: values.into_iter(),
            definition: definition.into_iter(),
            repetition: repetition.into_iter().peekable(),
        };
        self.clear();
        self.reserve(rows);
        for _ in 0..rows {
            let bad = || ParquetError::General("a column has too few or invalid values".into());
            self.push(T::load(&mut loaded).ok_or_else(bad)?);
        }
        Ok(())
    }

    fn physical_type(&self) -> parquet::basic::Type {
        T::Data::get_physical_type()
    }
}

fn load<D: DataType>(
    group: &RowGroup<'_>,
    index: usize,
    budget: &Budget,
) -> Result<Stored<D>, ParquetError> {
    let is_text = D::get_physical_type() == parquet::basic::Type::BYTE_ARRAY;
    // Texts are parts of their pages.
    let pages = group.pages(index, is_text.then_some(budget))?;
    let column = group.metadata.column(index).column_descr_ptr();
    let mut reader = get_typed_column_reader::<D>(get_column_reader(column, pages));
    let (mut values, mut definition, mut repetition) = (Vec::new(), Vec::new(), Vec::new());
    let mut left = group.rows();
    while 0 < left {
        let before = (values.len(), definition.len());
        let levels = (Some(&mut definition), Some(&mut repetition));
        let (read, ..) = reader.read_records(left.min(CHUNK), levels.0, levels.1, &mut values)?;
        if read == 0 {
            return Err(ParquetError::General("a column is too short".into()));
        }
        budget.take(values.len() - before.0, size_of::<D::T>())?;
        budget.take(definition.len() - before.1, 2 * size_of::<i16>())?;
        if is_text {
            // In their rows.
            budget.take(values[before.0..].iter().map(|value| value.as_bytes().len()).sum(), 1)?;
        }
        left -= read;
    }
    Ok(Stored { values, definition, repetition })
}

/// `scalar!(type, Parquet's type, logical type, store, load)`.
macro_rules! scalar {
    ($type:ty, $data:ty, $value:ident, $store:expr, $load:expr) => {
        impl $crate::columns::Scalar for $type {
            type Data = $data;
            const VALUE: $crate::schema::ValueType = $crate::schema::ValueType::$value;

            fn store(&self) -> <$data as parquet::data_type::DataType>::T {
                let store: fn(&Self) -> <$data as parquet::data_type::DataType>::T = $store;
                store(self)
            }

            fn load(value: <$data as parquet::data_type::DataType>::T) -> Option<Self> {
                let load: fn(<$data as parquet::data_type::DataType>::T) -> Option<Self> = $load;
                load(value)
            }
        }
    };
}

/// Types that wrap a scalar.
macro_rules! newtypes {
    ($inner:ty: $($type:ty)*) => {$(
        impl Scalar for $type {
            type Data = <$inner as Scalar>::Data;
            const VALUE: ValueType = <$inner as Scalar>::VALUE;

            fn store(&self) -> <Self::Data as DataType>::T {
                Scalar::store(&self.0)
            }

            fn load(value: <Self::Data as DataType>::T) -> Option<Self> {
                <$inner as Scalar>::load(value).map(Self)
            }
        }
    )*};
}

/// Types whose values are words in files.
macro_rules! words {
    ($type:ty: $($value:ident $word:literal,)*) => {
        scalar!(
            $type,
            ByteArrayType,
            Text,
            |value| word(match value { $(<$type>::$value => $word,)* }),
            |bytes| match bytes.as_utf8().ok()? { $($word => Some(<$type>::$value),)* _ => None }
        );
    };
}

pub(crate) use scalar;

scalar!(bool, BoolType, Bool, |value| *value, Some);
scalar!(u8, Int32Type, U8, |value| (*value).into(), |value| value.try_into().ok());
scalar!(u32, Int32Type, U32, |value| value.cast_signed(), |value| Some(value.cast_unsigned()));
scalar!(u64, Int64Type, U64, |value| value.cast_signed(), |value| Some(value.cast_unsigned()));
scalar!(i64, Int64Type, I64, |value| *value, Some);
newtypes!(u32: CpuId ImageId KernelStack MachineId ModuleId Pid StackId Tid TraceStack VcpuId VmId);
newtypes!(u64: GuestVirt HostVirt);
scalar!(HostNs, Int64Type, U64, |time| time.0.cast_signed(), |value| {
    Some(HostNs(value.cast_unsigned())).filter(|time| *time <= HostNs::MAX)
});
scalar!(Cr3, Int64Type, U64, |cr3| cr3.base().cast_signed(), |base| {
    Some(Cr3::new(base.cast_unsigned()))
});
scalar!(BuildId, ByteArrayType, Text, |id| id.to_string().as_str().into(), |hex| {
    BuildId::from_hex(hex.as_utf8().ok()?)
});
scalar!(TraceEventTag, ByteArrayType, Text, |tag| word(tag.name()), |name| {
    TraceEventTag::from_name(name.as_utf8().ok()?)
});
words!(ImageKind: Kernel "kernel", Process "process",);
scalar!(StackEnd, ByteArrayType, Text, |end| word(end.name()), |name| {
    StackEnd::from_name(name.as_utf8().ok()?)
});
scalar!(OffCpuReason, ByteArrayType, Text, |reason| word(reason.name()), |name| {
    OffCpuReason::from_name(name.as_utf8().ok()?)
});
scalar!(Text, ByteArrayType, Text, |text| text.0.clone(), |bytes| {
    bytes.as_utf8().is_ok().then_some(Self(bytes))
});

/// A word, without a copy of it.
fn word(word: &'static str) -> ByteArray {
    Bytes::from_static(word.as_bytes()).into()
}

/// An instant, us since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Micros(pub(crate) i64);

scalar!(Micros, Int64Type, UnixMicros, |time| time.0, |us| Some(Self(us)));

/// UTF-8 that all rows with the same value may share.
#[derive(Debug, Clone)]
pub(crate) struct Text(ByteArray);

impl Text {
    /// A word, without a copy of it.
    pub(crate) fn word(text: &'static str) -> Self {
        Self(word(text))
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.as_utf8().expect("texts are checked when they are made")
    }

    pub(crate) fn from_text(text: Option<&str>) -> Option<Self> {
        text.map(Self::from)
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text.into_bytes().into())
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The host has no row in the table of VMs.
impl Cell for Owner {
    type Data = Int32Type;
    const VALUE: ValueType = ValueType::U32;
    const PRESENCE: Presence = Presence::Optional;

    fn store(&self, values: &mut Stored<Self::Data>) {
        let vm = match self {
            Self::Host => None,
            Self::Vm(vm) => Some(*vm),
        };
        Cell::store(&vm, values);
    }

    fn load(values: &mut Loaded<Self::Data>) -> Option<Self> {
        <Option<VmId> as Cell>::load(values).map(|vm| vm.map_or(Self::Host, Self::Vm))
    }
}
