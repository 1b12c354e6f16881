//! `profile.proto`, gzipped: what `pprof`, Pyroscope, Parca and others read.
//!
//! Every frame is a location. Functions have an address: their offset in their module, which is a
//! mapping that starts at 0, so that path, build id and address together can be resolved again
//! anywhere. Frames of VMs and processes are locations without a mapping. Who a sample belongs to is
//! also in its labels (`vm`, `process`, `pid`, `thread`, `tid`, `cpu`), for `-tagfocus` and `-tagroot`.

mod functions;
mod main_binary;
pub mod proto;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use analysis::flow::{Flow, FlowModule, FlowThread, Frame};
use prost::Message;
use table::clean;

pub use self::functions::{profile_of_functions, write_functions};

use self::proto::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};
use crate::About;
use analysis::flow::tree::{Label as FrameLabel, Labels};

/// Writes `flow` as a gzipped pprof profile.
///
/// # Errors
/// Only the writer's.
pub fn write(flow: &Flow, about: About<'_>, out: impl Write) -> io::Result<()> {
    gzipped(&profile(flow, about), out)
}

fn gzipped(profile: &Profile, out: impl Write) -> io::Result<()> {
    let bytes = profile.encode_to_vec();
    let mut gzip = flate2::write::GzEncoder::new(out, flate2::Compression::default());
    gzip.write_all(&bytes)?;
    gzip.finish()?.flush()
}

/// `flow` as the message.
#[must_use]
pub fn profile(flow: &Flow, about: About<'_>) -> Profile {
    let mut strings = Strings::default();
    let samples_count = value_type(&mut strings, "samples", "count");
    let cpu_nanoseconds = value_type(&mut strings, "cpu", "nanoseconds");
    let (function, location) = functions_and_locations(flow, &mut strings);
    let mut profile = Profile {
        sample_type: vec![samples_count, cpu_nanoseconds],
        sample: samples(flow, &mut strings),
        mapping: mappings(flow, &mut strings),
        location,
        function,
        time_nanos: signed(flow.start_unix_ns),
        duration_nanos: signed(flow.end.since(flow.start)),
        period_type: Some(cpu_nanoseconds),
        period: signed(flow.period_ns),
        comment: comments(flow, about, &mut strings),
        default_sample_type: cpu_nanoseconds.r#type,
        string_table: strings.finish(),
    };
    main_binary::put_first(&mut profile);
    profile
}

fn value_type(strings: &mut Strings, r#type: &str, unit: &str) -> ValueType {
    ValueType { r#type: strings.index(r#type), unit: strings.index(unit) }
}

fn comments(flow: &Flow, about: About<'_>, strings: &mut Strings) -> Vec<i64> {
    let first = format!("recorded by vmscope on {}, {}", flow.hostname, about.view);
    let notes = about.notes.iter().map(|note| format!("{}: {}", note.subject, note.text));
    std::iter::once(first).chain(notes).map(|text| strings.index(&text)).collect()
}

fn functions_and_locations<'a>(
    flow: &'a Flow,
    strings: &mut Strings,
) -> (Vec<Function>, Vec<Location>) {
    let mut labels = Labels::default();
    let location = |(idx, frame): (usize, &'a Frame)| Location {
        id: id(idx),
        mapping_id: frame.module.map_or(0, |module| id(module as usize)),
        address: frame.offset,
        line: vec![Line { function_id: id(labels.of(frame)) }],
    };
    let locations = flow.frames.iter().enumerate().map(location).collect();
    let function = |(idx, label): (usize, &FrameLabel<'_>)| {
        let name = strings.index(label.name);
        Function { id: id(idx), name, system_name: name }
    };
    (labels.list.iter().enumerate().map(function).collect(), locations)
}

fn mappings(flow: &Flow, strings: &mut Strings) -> Vec<Mapping> {
    let mut limits = vec![0_u64; flow.modules.len()];
    for frame in &flow.frames {
        if let Some(module) = frame.module {
            let limit = &mut limits[module as usize];
            *limit = (*limit).max(frame.offset.saturating_add(1));
        }
    }
    let mapping = |(idx, (module, limit)): (usize, (&FlowModule, u64))| Mapping {
        id: id(idx),
        memory_start: 0,
        memory_limit: limit.checked_next_multiple_of(4096).unwrap_or(limit),
        file_offset: 0,
        filename: strings.index(&module.path),
        build_id: module.build_id.as_ref().map_or(0, |id| strings.index(&id.to_string())),
        has_functions: true,
    };
    flow.modules.iter().zip(limits).enumerate().map(mapping).collect()
}

/// Samples that agree in stack, thread and CPU are one.
fn samples(flow: &Flow, strings: &mut Strings) -> Vec<Sample> {
    let mut counts: BTreeMap<(u32, u32, u32), u64> = BTreeMap::new();
    for sample in &flow.samples {
        *counts.entry((sample.thread, sample.stack, sample.cpu)).or_default() += 1;
    }
    let thread_labels: Vec<Vec<Label>> =
        flow.threads.iter().map(|thread| labels_of(thread, strings)).collect();
    let sample = |((thread, stack, cpu), count): ((u32, u32, u32), u64)| {
        let frames = flow.stacks[stack as usize].iter().rev();
        let mut label = thread_labels[thread as usize].clone();
        label.push(text_label(strings, "cpu", &cpu.to_string()));
        Sample {
            location_id: frames.map(|frame| id(*frame as usize)).collect(),
            value: vec![signed(count), signed(count.saturating_mul(flow.period_ns))],
            label,
        }
    };
    counts.into_iter().map(sample).collect()
}

/// Ids are text, not numbers: readers draw numbers as quantities with a unit.
fn labels_of(thread: &FlowThread, strings: &mut Strings) -> Vec<Label> {
    let (pid, tid) = (thread.pid.to_string(), thread.tid.to_string());
    let vm = thread.vm.as_deref().map(|vm| ("vm", vm));
    let rest = [
        ("process", thread.process.as_str()),
        ("pid", &pid),
        ("thread", &thread.thread),
        ("tid", &tid),
    ];
    vm.into_iter().chain(rest).map(|(key, text)| text_label(strings, key, text)).collect()
}

fn text_label(strings: &mut Strings, key: &str, text: &str) -> Label {
    Label { key: strings.index(key), str: strings.index(text) }
}

/// The format's string table.
#[derive(Debug, Default)]
struct Strings {
    index: HashMap<String, i64>,
    all: Vec<String>,
}

impl Strings {
    /// The index of `text` as shown; 0 for the empty text, as the format wants it.
    fn index(&mut self, text: &str) -> i64 {
        if text.is_empty() {
            return 0;
        }
        if let Some(index) = self.index.get(text) {
            return *index;
        }
        self.all.push(clean(text).into_owned());
        let index = signed(self.all.len() as u64);
        self.index.insert(text.to_owned(), index);
        index
    }

    fn finish(mut self) -> Vec<String> {
        self.all.insert(0, String::new());
        self.all
    }
}

/// Ids of the format begin at 1.
fn id(index: usize) -> u64 {
    index as u64 + 1
}

/// The format's numbers are signed; ours never come near the end.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
