//! Tables that are too long to be held: a row group is a slice of rows, written and read one at a time.

mod read;
mod write;

pub(crate) use read::{GroupReader, Optional, SliceReader};
pub(crate) use write::{GroupWriter, SliceWriter};

use parquet::basic::Encoding;

/// What a column holds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    U8,
    U32,
    U64,
    Bool,
    Text,
}

impl Kind {
    fn field(self, presence: &str, name: &str) -> String {
        match self {
            Self::U8 => format!("{presence} int32 {name} (INTEGER(8,false));"),
            Self::U32 => format!("{presence} int32 {name} (INTEGER(32,false));"),
            Self::U64 => format!("{presence} int64 {name} (INTEGER(64,false));"),
            Self::Bool => format!("{presence} boolean {name};"),
            Self::Text => format!("{presence} binary {name} (STRING);"),
        }
    }
}

/// A table's name and columns: whether each is `required` or `optional`, what it holds, its name.
#[derive(Debug)]
pub(crate) struct Schema {
    pub(crate) name: &'static str,
    pub(crate) columns: &'static [(&'static str, Kind, &'static str)],
    /// Columns with an encoding of their own; all others are dictionaries.
    pub(crate) encodings: &'static [(&'static str, Encoding)],
}

impl Schema {
    fn message(&self) -> String {
        let fields = self.columns.iter().map(|(presence, kind, name)| kind.field(presence, name));
        format!("message {} {{ {} }}", self.name, fields.collect::<String>())
    }
}
