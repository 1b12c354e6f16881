//! The tables' files and columns, for queries. `docs/formats.md` says what they mean. Those of a trace are
//! `trace::SCHEMAS`, those of results `results::SCHEMAS`.

use parquet::basic::Encoding;

use crate::columns::Cell;
pub use crate::tables::SCHEMAS as RECORDING;

/// The schema of a table.
#[derive(Debug, Clone, Copy)]
pub struct TableSchema {
    /// Its file in the folder.
    pub file: &'static str,
    /// Its columns, in the order of the file.
    pub columns: &'static [ColumnSchema],
    /// Too long to be held: each row group is a slice of it.
    pub(crate) is_sliced: bool,
}

/// The schema of a column.
#[derive(Debug, Clone, Copy)]
pub struct ColumnSchema {
    pub name: &'static str,
    pub value: ValueType,
    /// How many values a row has.
    pub presence: Presence,
    /// Files of earlier versions lack it; its values are then absent.
    pub is_added: bool,
    /// Its own encoding; others are dictionaries.
    pub(crate) encoding: Option<Encoding>,
}

/// The type of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    Bool,
    U8,
    U32,
    U64,
    I64,
    /// An instant in UTC, us since 1970.
    UnixMicros,
    /// UTF-8.
    Text,
}

/// How many values a row has in a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Required,
    /// One or none.
    Optional,
    List,
}

impl TableSchema {
    /// A table of one row group.
    pub(crate) const fn whole(file: &'static str, columns: &'static [ColumnSchema]) -> Self {
        Self { file, columns, is_sliced: false }
    }

    /// A table that is written and read a slice of rows at a time.
    pub(crate) const fn sliced(file: &'static str, columns: &'static [ColumnSchema]) -> Self {
        Self { file, columns, is_sliced: true }
    }

    /// As the Parquet crate parses it.
    pub(crate) fn message(&self) -> String {
        let fields: String = self.columns.iter().map(ColumnSchema::field).collect();
        let name = if self.is_sliced { self.file.trim_end_matches(".parquet") } else { "table" };
        format!("message {name} {{ {fields} }}")
    }
}

impl ColumnSchema {
    pub(crate) const fn new<T: Cell>(name: &'static str) -> Self {
        Self { name, value: T::VALUE, presence: T::PRESENCE, is_added: false, encoding: None }
    }

    pub(crate) const fn added(self) -> Self {
        Self { is_added: true, ..self }
    }

    pub(crate) const fn delta(self) -> Self {
        Self { encoding: Some(Encoding::DELTA_BINARY_PACKED), ..self }
    }

    pub(crate) const fn plain(self) -> Self {
        Self { encoding: Some(Encoding::PLAIN), ..self }
    }

    fn field(&self) -> String {
        let (physical, logical) = match self.value {
            ValueType::Bool => ("boolean", ""),
            ValueType::U8 => ("int32", "(INTEGER(8,false))"),
            ValueType::U32 => ("int32", "(INTEGER(32,false))"),
            ValueType::U64 => ("int64", "(INTEGER(64,false))"),
            ValueType::I64 => ("int64", "(INTEGER(64,true))"),
            ValueType::UnixMicros => ("int64", "(TIMESTAMP(MICROS,true))"),
            ValueType::Text => ("binary", "(STRING)"),
        };
        let name = self.name;
        match self.presence {
            Presence::Required => format!("required {physical} {name} {logical};"),
            Presence::Optional => format!("optional {physical} {name} {logical};"),
            Presence::List => format!(
                "required group {name} (LIST) {{ repeated group list {{ \
                 required {physical} element {logical}; }} }}"
            ),
        }
    }

    /// Highest definition and repetition level.
    pub(crate) fn levels(&self) -> (i16, i16) {
        match self.presence {
            Presence::Required => (0, 0),
            Presence::Optional => (1, 0),
            Presence::List => (1, 1),
        }
    }
}
