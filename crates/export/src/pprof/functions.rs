//! Functions of a fleet's guests as a pprof profile: a function, its process, its VM, and what they took.

use std::collections::HashMap;
use std::io::{self, Write};

use super::proto::{Function, Line, Location, Mapping, Profile, Sample};
use super::{Strings, gzipped, id, main_binary, signed, text_label, value_type};
use crate::functions::{FunctionCost, Functions, GuestFunction};

/// Writes them as a gzipped pprof profile.
///
/// # Errors
/// Only the writer's.
pub fn write_functions(functions: &Functions, out: impl Write) -> io::Result<()> {
    gzipped(&profile_of_functions(functions), out)
}

/// Them as the message.
#[must_use]
pub fn profile_of_functions(functions: &Functions) -> Profile {
    let mut strings = Strings::default();
    let samples_count = value_type(&mut strings, "samples", "count");
    let cpu = value_type(&mut strings, "cpu", "nanoseconds");
    let corrected = value_type(&mut strings, "corrected", "nanoseconds");
    let mut code = Code::default();
    let sample = functions.costs.iter().map(|row| code.sample(row, &mut strings)).collect();
    let comment = functions.notes.iter().map(|note| strings.index(note)).collect();
    let mut profile = Profile {
        sample_type: vec![samples_count, cpu, corrected],
        sample,
        mapping: code.mapping,
        location: code.location,
        function: code.function,
        time_nanos: signed(functions.start_unix_ns),
        duration_nanos: signed(functions.length_ns),
        period_type: Some(cpu),
        period: signed(period_ns(functions)),
        comment,
        default_sample_type: cpu.r#type,
        string_table: strings.finish(),
    };
    main_binary::put_first(&mut profile);
    profile
}

/// Time between samples of one CPU: of hosts that sample at different periods, the mean.
fn period_ns(functions: &Functions) -> u64 {
    let costs = || functions.costs.values();
    let samples: u128 = costs().map(|cost| u128::from(cost.samples)).sum();
    let ns: u128 = costs().map(|cost| u128::from(cost.ns)).sum();
    ns.checked_div(samples).and_then(|ns| u64::try_from(ns).ok()).unwrap_or(0)
}

/// Places, each once.
#[derive(Debug, Default)]
struct Code<'f> {
    mapping: Vec<Mapping>,
    location: Vec<Location>,
    function: Vec<Function>,
    modules: HashMap<(&'f str, &'f str), u64>,
    places: HashMap<(u64, &'f str), u64>,
}

impl<'f> Code<'f> {
    fn sample(
        &mut self,
        (function, cost): (&'f GuestFunction, &FunctionCost),
        strings: &mut Strings,
    ) -> Sample {
        let module = self.module(function, strings);
        let outward = function.caller_frames().chain([function.process_frame(), &function.vm]);
        let frames = [(module, function.frame())].into_iter().chain(outward.map(|name| (0, name)));
        let location_id = frames.map(|(module, name)| self.place(module, name, strings)).collect();
        let pid = function.pid.map(|pid| pid.to_string());
        let known = [
            ("host", Some(function.host.as_str())),
            ("vm", Some(&function.vm)),
            ("process", Some(&function.process)),
            ("pid", pid.as_deref()),
        ];
        let label = known.into_iter().filter_map(|(key, text)| {
            Some(text_label(strings, key, text.filter(|t| !t.is_empty())?))
        });
        let value = [cost.samples, cost.ns, cost.corrected_ns].map(signed).to_vec();
        Sample { location_id, value, label: label.collect() }
    }

    /// A VM's module; 0: it is not known.
    fn module(&mut self, function: &'f GuestFunction, strings: &mut Strings) -> u64 {
        if function.module.is_empty() {
            return 0;
        }
        let key = (function.vm.as_str(), function.module.as_str());
        *self.modules.entry(key).or_insert_with(|| {
            let id = id(self.mapping.len());
            let filename = strings.index(&format!("[{}]{}", key.0, key.1));
            self.mapping.push(Mapping { id, filename, has_functions: true, ..Mapping::default() });
            id
        })
    }

    fn place(&mut self, mapping_id: u64, name: &'f str, strings: &mut Strings) -> u64 {
        *self.places.entry((mapping_id, name)).or_insert_with(|| {
            let id = id(self.location.len());
            let name = strings.index(name);
            self.function.push(Function { id, name, system_name: name });
            let line = vec![Line { function_id: id }];
            self.location.push(Location { id, mapping_id, address: 0, line });
            id
        })
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn each_function_is_a_stack_with_its_process_and_vm() {
        let functions = crate::functions::test::functions();
        let profile = profile_of_functions(&functions);
        let text = |index: i64| profile.string_table[usize::try_from(index).unwrap()].as_str();
        assert_eq!(profile.sample.len(), 2);
        let sample = profile.sample.iter().find(|sample| sample.value[0] == 2).unwrap();
        assert_eq!(sample.value, [2, 5_000_000, 2_500_000]);
        let names: Vec<_> = sample
            .location_id
            .iter()
            .map(|id| text(profile.function[usize::try_from(*id).unwrap() - 1].name))
            .collect();
        assert_eq!(names, ["main", "run", "_start", "mysqld", "db"]);
        let labels: Vec<_> =
            sample.label.iter().map(|label| (text(label.key), text(label.str))).collect();
        assert_eq!(labels, [("host", "kvm1"), ("vm", "db"), ("process", "mysqld"), ("pid", "7")]);
        assert_eq!(profile.mapping.len(), 1);
        let (samples, ns) = profile
            .sample
            .iter()
            .fold((0, 0), |(samples, ns), it| (samples + it.value[0], ns + it.value[1]));
        assert_eq!(profile.period, ns / samples);
        assert_ne!(profile.period, 0);
        assert!(profile.string_table.iter().all(|text| !text.chars().any(model::is_unsafe)));
        assert!(profile.string_table.iter().all(|text| text.len() < 300));
    }
}
