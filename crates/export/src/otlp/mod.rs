//! OpenTelemetry's profiles, a signal in development: what a collector takes by OTLP over HTTP. A resource is a VM:
//! `service.name` is the VM, `host.name` its host. A VM has two profiles, `cpu` (apparent
//! time) and `corrected`. A stack is a function, its callers where they are known, and its process.

use std::collections::{BTreeMap, HashMap};

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, ProfilesDictionary, ResourceProfiles,
    Sample, ScopeProfiles, Stack, ValueType,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use sha2::{Digest, Sha256};
use table::clean;

pub use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
pub use opentelemetry_proto::tonic::profiles::v1development::Profile;

use crate::functions::{FunctionCost, Functions, GuestFunction};

/// Profiles as an encoded OTLP request.
#[must_use]
pub fn encoded(functions: &Functions) -> Vec<u8> {
    request(functions).encode_to_vec()
}

/// A profile's values: their name, and how to get one.
type Values = (&'static str, fn(&FunctionCost) -> u64);
const VALUES: [Values; 2] = [("cpu", |cost| cost.ns), ("corrected", |cost| cost.corrected_ns)];

/// The functions as a request, the same profiles for each VM.
#[must_use]
pub fn request(functions: &Functions) -> ExportProfilesServiceRequest {
    let mut tables = Tables::default();
    let mut vms: BTreeMap<(&str, &str), [Vec<Sample>; 2]> = BTreeMap::new();
    for (function, cost) in &functions.costs {
        let of_vm = vms.entry((&function.host, &function.vm)).or_default();
        for (samples, (_, value)) in of_vm.iter_mut().zip(VALUES) {
            samples.push(tables.sample(function, value(cost)));
        }
    }
    let unit_strindex = tables.strings.index("nanoseconds".to_owned());
    let types = VALUES.map(|(name, _)| (name, tables.strings.index(name.to_owned())));
    let profiles = |((host, vm), samples): ((&str, &str), [Vec<Sample>; 2])| {
        let profiles =
            samples.into_iter().zip(types).map(|(samples, (name, type_strindex))| Profile {
                sample_type: Some(ValueType { type_strindex, unit_strindex }),
                samples,
                time_unix_nano: functions.start_unix_ns,
                duration_nano: functions.length_ns,
                profile_id: profile_id([host, vm, name], functions),
                ..Profile::default()
            });
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let scope = Some(InstrumentationScope {
            name: "vmscope".to_owned(),
            version,
            ..InstrumentationScope::default()
        });
        ResourceProfiles {
            resource: Some(Resource {
                attributes: vec![attribute("service.name", vm), attribute("host.name", host)],
                ..Resource::default()
            }),
            scope_profiles: vec![ScopeProfiles {
                scope,
                profiles: profiles.collect(),
                ..ScopeProfiles::default()
            }],
            ..ResourceProfiles::default()
        }
    };
    ExportProfilesServiceRequest {
        resource_profiles: vms.into_iter().map(profiles).collect(),
        dictionary: Some(tables.finish()),
    }
}

/// The same profile has the same, independent of the sender.
fn profile_id(names: [&str; 3], functions: &Functions) -> Vec<u8> {
    let mut hash = Sha256::new();
    for name in names {
        hash.update(name.as_bytes());
        hash.update([0]);
    }
    hash.update(functions.start_unix_ns.to_be_bytes());
    hash.finalize()[..16].to_vec()
}

fn attribute(key: &str, text: &str) -> KeyValue {
    let value = Attribute::Text(clean(text).into_owned()).into_value();
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

/// An attribute's value. The message's own can't be a table's key: it may be a floating-point number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Attribute {
    Text(String),
    Number(i64),
}

impl Attribute {
    fn into_value(self) -> AnyValue {
        let value = match self {
            Self::Text(text) => Value::StringValue(text),
            Self::Number(number) => Value::IntValue(number),
        };
        AnyValue { value: Some(value) }
    }
}

/// Entries, each once; the first is the empty one.
#[derive(Debug)]
struct Table<K> {
    index: HashMap<K, i32>,
    all: Vec<K>,
}

impl<K: Default> Default for Table<K> {
    fn default() -> Self {
        Self { index: HashMap::new(), all: vec![K::default()] }
    }
}

impl<K: Clone + Eq + std::hash::Hash> Table<K> {
    fn index(&mut self, key: K) -> i32 {
        let next = i32::try_from(self.all.len()).unwrap_or(0);
        *self.index.entry(key.clone()).or_insert_with(|| {
            self.all.push(key);
            next
        })
    }
}

/// The dictionary in the making.
#[derive(Debug, Default)]
struct Tables {
    strings: Table<String>,
    /// By path.
    mappings: Table<i32>,
    /// By name.
    functions: Table<i32>,
    /// By mapping and function.
    locations: Table<(i32, i32)>,
    stacks: Table<Vec<i32>>,
    /// By key.
    attributes: Table<(i32, Option<Attribute>)>,
}

impl Tables {
    fn sample(&mut self, function: &GuestFunction, value: u64) -> Sample {
        let mapping = match function.module.as_str() {
            "" => 0,
            module => {
                let path = self.text(module);
                self.mappings.index(path)
            }
        };
        let outward = function.caller_frames().chain([function.process_frame()]);
        let frames = [(mapping, function.frame())].into_iter().chain(outward.map(|name| (0, name)));
        let locations = frames.map(|(mapping, name)| {
            let name = self.text(name);
            let function = self.functions.index(name);
            self.locations.index((mapping, function))
        });
        let stack = locations.collect();
        let mut attribute_indices = Vec::new();
        if !function.process.is_empty() {
            let name = Attribute::Text(clean(&function.process).into_owned());
            attribute_indices.push(self.attribute("process.executable.name", name));
        }
        if let Some(pid) = function.pid {
            attribute_indices.push(self.attribute("process.pid", Attribute::Number(pid.into())));
        }
        Sample {
            stack_index: self.stacks.index(stack),
            attribute_indices,
            values: vec![i64::try_from(value).unwrap_or(i64::MAX)],
            ..Sample::default()
        }
    }

    fn text(&mut self, text: &str) -> i32 {
        self.strings.index(clean(text).into_owned())
    }

    fn attribute(&mut self, key: &str, value: Attribute) -> i32 {
        let key = self.strings.index(key.to_owned());
        self.attributes.index((key, Some(value)))
    }

    fn finish(self) -> ProfilesDictionary {
        let mapping = |filename_strindex| Mapping { filename_strindex, ..Mapping::default() };
        let function = |name_strindex| Function { name_strindex, ..Function::default() };
        let location = |(mapping_index, function_index)| Location {
            mapping_index,
            // The empty one has no line.
            lines: (function_index != 0)
                .then_some(Line { function_index, ..Line::default() })
                .into_iter()
                .collect(),
            ..Location::default()
        };
        let attribute = |(key_strindex, value): (i32, Option<Attribute>)| KeyValueAndUnit {
            key_strindex,
            value: value.map(Attribute::into_value),
            ..KeyValueAndUnit::default()
        };
        ProfilesDictionary {
            mapping_table: self.mappings.all.into_iter().map(mapping).collect(),
            location_table: self.locations.all.into_iter().map(location).collect(),
            function_table: self.functions.all.into_iter().map(function).collect(),
            link_table: vec![Link::default()],
            string_table: self.strings.all,
            attribute_table: self.attributes.all.into_iter().map(attribute).collect(),
            stack_table: self
                .stacks
                .all
                .into_iter()
                .map(|location_indices| Stack { location_indices })
                .collect(),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn tables_begin_with_the_empty_entry_and_hold_each_once() {
        let request = request(&crate::functions::test::functions());
        let tables = request.dictionary.as_ref().unwrap();
        assert_eq!(tables.string_table[0], "");
        let text = |index: i32| tables.string_table[usize::try_from(index).unwrap()].as_str();
        assert_eq!(tables.location_table[0], Location::default());
        assert_eq!(tables.attribute_table[0], KeyValueAndUnit::default());
        // Two functions, their two callers and a process; the empty one.
        assert_eq!(tables.function_table.len(), 6);
        assert_eq!((tables.mapping_table.len(), tables.stack_table.len()), (2, 3));
        assert_eq!(tables.attribute_table.len(), 3);
        let profiles = &request.resource_profiles[0].scope_profiles[0].profiles;
        let values: Vec<_> = profiles[0].samples.iter().map(|sample| sample.values[0]).collect();
        assert_eq!(values.iter().sum::<i64>(), 6_000_000);
        let corrected = profiles[1].samples.iter().map(|sample| sample.values[0]);
        assert_eq!(corrected.sum::<i64>(), 3_000_000);
        let names = profiles.iter().map(|p| text(p.sample_type.unwrap().type_strindex));
        assert_eq!(names.collect::<Vec<_>>(), ["cpu", "corrected"]);
        assert_ne!(profiles[0].profile_id, profiles[1].profile_id);
        let at = |index: i32| usize::try_from(index).unwrap();
        let main = profiles[0].samples.iter().find(|sample| sample.values == [5_000_000]).unwrap();
        let stack = &tables.stack_table[at(main.stack_index)].location_indices;
        let names = stack.iter().map(|location| {
            let line = tables.location_table[at(*location)].lines[0];
            text(tables.function_table[at(line.function_index)].name_strindex)
        });
        assert_eq!(names.collect::<Vec<_>>(), ["main", "run", "_start", "mysqld"]);
        assert!(tables.string_table.iter().all(|text| !text.chars().any(model::is_unsafe)));
        assert_eq!(profiles[0].profile_id.len(), 16);
    }
}
