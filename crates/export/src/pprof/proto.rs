//! The messages of `profile.proto` (github.com/google/pprof, `proto/profile.proto`), as far as they
//! are used. Field numbers are the format's.

/// A profile.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Profile {
    /// What each number of a sample's `value` means.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    /// Code modules.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    /// Addresses.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    /// All text; the first is empty.
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// When it began, ns since 1970.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    /// What `period` counts.
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    /// Between samples.
    #[prost(int64, tag = "12")]
    pub period: i64,
    /// Remarks, indices into `string_table`.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// The sample type shown first, index into `string_table`.
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// Type and unit, indices into the string table.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ValueType {
    /// `samples`, `cpu`.
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    /// `count`, `nanoseconds`.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// Samples with one stack and one set of labels.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Sample {
    /// The stack, innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// One number per sample type.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// A word about a sample, indices into the string table.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Label {
    #[prost(int64, tag = "1")]
    pub key: i64,
    #[prost(int64, tag = "2")]
    pub str: i64,
}

/// A code module.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Mapping {
    /// From 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    /// First address after it.
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    /// Offset in the file of `memory_start`.
    #[prost(uint64, tag = "4")]
    pub file_offset: u64,
    /// Path, index into the string table.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// GNU build id in hexadecimal, index into the string table.
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// Functions are resolved: the reader need not look for the file.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
}

/// An address of a module, or a frame that has none.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Location {
    /// From 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its module; 0: none.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub address: u64,
    /// Its function.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// A function at an address.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Line {
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Function {
    /// From 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its name, index into the string table.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Its name in the object file, index into the string table.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
}
