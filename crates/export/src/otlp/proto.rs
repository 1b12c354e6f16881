//! The messages of OpenTelemetry's profiles (github.com/open-telemetry/opentelemetry-proto,
//! `profiles/v1development/profiles.proto`, in version 1.10), as far as they are used. Field numbers are the format's.
//!
//! A field `..._index` points into a table of the dictionary, whose first entry is empty.

/// An OTLP export request.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExportProfilesServiceRequest {
    /// Profiles by VM or host.
    #[prost(message, repeated, tag = "1")]
    pub resource_profiles: Vec<ResourceProfiles>,
    #[prost(message, optional, tag = "2")]
    pub dictionary: Option<ProfilesDictionary>,
}

/// Tables that all profiles of a request refer to.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProfilesDictionary {
    /// Code modules.
    #[prost(message, repeated, tag = "1")]
    pub mapping_table: Vec<Mapping>,
    /// Places in code.
    #[prost(message, repeated, tag = "2")]
    pub location_table: Vec<Location>,
    #[prost(message, repeated, tag = "3")]
    pub function_table: Vec<Function>,
    /// Links to spans: there are none.
    #[prost(message, repeated, tag = "4")]
    pub link_table: Vec<Link>,
    #[prost(string, repeated, tag = "5")]
    pub string_table: Vec<String>,
    /// What else is known of samples.
    #[prost(message, repeated, tag = "6")]
    pub attribute_table: Vec<KeyValueAndUnit>,
    #[prost(message, repeated, tag = "7")]
    pub stack_table: Vec<Stack>,
}

/// Profiles of a VM.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResourceProfiles {
    /// The VM.
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scope_profiles: Vec<ScopeProfiles>,
}

/// What profiles are of.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Resource {
    /// Its names.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// Profiles by one program.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScopeProfiles {
    /// The program.
    #[prost(message, optional, tag = "1")]
    pub scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    pub profiles: Vec<Profile>,
}

/// The program that made a profile.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct InstrumentationScope {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

/// A profile.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Profile {
    #[prost(message, optional, tag = "1")]
    pub sample_type: Option<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub samples: Vec<Sample>,
    /// When it began, ns since 1970.
    #[prost(fixed64, tag = "3")]
    pub time_unix_nano: u64,
    #[prost(uint64, tag = "4")]
    pub duration_nano: u64,
    /// 16 bytes: a profile of this id is this one.
    #[prost(bytes = "vec", tag = "7")]
    pub profile_id: Vec<u8>,
}

/// Type and unit.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ValueType {
    /// `cpu`.
    #[prost(int32, tag = "1")]
    pub type_strindex: i32,
    /// `nanoseconds`.
    #[prost(int32, tag = "2")]
    pub unit_strindex: i32,
}

/// Time of a stack.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Sample {
    #[prost(int32, tag = "1")]
    pub stack_index: i32,
    #[prost(int32, repeated, tag = "2")]
    pub attribute_indices: Vec<i32>,
    #[prost(int64, repeated, tag = "4")]
    pub values: Vec<i64>,
}

/// A code module.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Mapping {
    #[prost(int32, tag = "4")]
    pub filename_strindex: i32,
}

/// A stack, innermost first.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Stack {
    /// Its frames.
    #[prost(int32, repeated, tag = "1")]
    pub location_indices: Vec<i32>,
}

/// A place in code.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Location {
    /// Its module.
    #[prost(int32, tag = "1")]
    pub mapping_index: i32,
    /// Its function.
    #[prost(message, repeated, tag = "3")]
    pub lines: Vec<Line>,
}

/// A function at a place.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Line {
    #[prost(int32, tag = "1")]
    pub function_index: i32,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Function {
    #[prost(int32, tag = "1")]
    pub name_strindex: i32,
}

/// A link to a span.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Link {}

/// A property of samples.
#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyValueAndUnit {
    #[prost(int32, tag = "1")]
    pub key_strindex: i32,
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// A property of a resource.
#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// A value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AnyValue {
    /// Of one of these types.
    #[prost(oneof = "Value", tags = "1, 3")]
    pub value: Option<Value>,
}

/// A value's type.
#[derive(Clone, PartialEq, Eq, Hash, prost::Oneof)]
pub enum Value {
    #[prost(string, tag = "1")]
    String(String),
    #[prost(int64, tag = "3")]
    Int(i64),
}
