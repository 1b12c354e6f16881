//! The Firefox Profiler's processed profile, gzipped JSON: every sample at its own time.
//!
//! One process per host process and per guest process (`[vm1] compute`); the profiler makes equal
//! process ids of different guests distinct itself. Functions are already named: the profiler asks
//! nothing for symbols.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::time::Duration;

use analysis::flow::{Flow, FlowModule, FlowThread, Frame, FrameKind};
use fxprof_processed_profile as fx;
use fxprof_processed_profile::debugid::DebugId;
use model::{BuildId, HostNs};
use table::clean;

use analysis::flow::tree::{kind_of_stack, process_name};

/// Writes `flow` as a gzipped processed profile.
///
/// # Errors
/// Only the writer's.
pub fn write(flow: &Flow, out: impl Write) -> io::Result<()> {
    let mut gzip = flate2::write::GzEncoder::new(out, flate2::Compression::default());
    // JSON comes a few bytes at a time, and each call of the encoder costs.
    let mut buffered = BufWriter::with_capacity(1 << 16, &mut gzip);
    write_json(flow, &mut buffered)?;
    buffered.flush()?;
    drop(buffered);
    gzip.finish()?.flush()
}

/// Writes `flow` as a processed profile, not compressed.
///
/// # Errors
/// Only the writer's.
pub fn write_json(flow: &Flow, out: impl Write) -> io::Result<()> {
    serde_json::to_writer(out, &profile(flow)).map_err(io::Error::from)
}

/// Bytes of JSON that the profiler opens: it makes one string of them, and Chromium's are the shortest (2^29 - 24 characters).
pub const MAX_JSON_BYTES: u64 = (1 << 29) - 24;

/// Bytes of JSON that a sample takes at most, and a thread, a stack or a frame without its name, and how much longer a name
/// may get: it is in several tables, and escaped.
const SAMPLE_BYTES: u64 = 96;
const ROW_BYTES: u64 = 512;
const NAME_COPIES: u64 = 16;
/// What every profile has.
const BASE_BYTES: u64 = 1 << 16;

/// The bytes of `flow`'s JSON, if they are more than the profiler opens.
///
/// # Errors
/// When the profile can't be serialized.
pub fn bytes_beyond(flow: &Flow, most: u64) -> io::Result<Option<u64>> {
    if bytes_at_most(flow) <= most {
        return Ok(None);
    }
    let mut counted = Count(0);
    write_json(flow, BufWriter::with_capacity(1 << 16, &mut counted))?;
    Ok((most < counted.0).then_some(counted.0))
}

/// An upper limit that costs nothing.
fn bytes_at_most(flow: &Flow) -> u64 {
    let names = flow.frames.iter().map(|frame| frame.name.len());
    let names = names.chain(flow.modules.iter().map(|module| module.path.len()));
    let of_threads = flow.threads.iter().map(|thread| thread.thread.len() + thread.process.len());
    let names: usize = names.chain(of_threads).sum();
    let rows = flow.frames.len() + flow.modules.len() + flow.threads.len();
    let in_stacks: usize = flow.stacks.iter().map(Vec::len).sum();
    // Each thread has tables of its own: stacks and frames may be in all.
    let threads = flow.threads.len().max(1) as u64;
    let of_names = NAME_COPIES.saturating_mul(names as u64);
    let of_rows = ROW_BYTES.saturating_mul((rows + in_stacks) as u64);
    let of_samples = SAMPLE_BYTES.saturating_mul(flow.samples.len() as u64);
    let of_code = of_names.saturating_add(of_rows).saturating_mul(threads);
    BASE_BYTES.saturating_add(of_code).saturating_add(of_samples)
}

/// Counts what is written.
struct Count(u64);

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn profile(flow: &Flow) -> fx::Profile {
    let start = Duration::from_nanos(flow.start_unix_ns);
    let mut profile = fx::Profile::new(
        &format!("vmscope on {}", clean(&flow.hostname)),
        fx::ReferenceTimestamp::from_duration_since_unix_epoch(start),
        fx::SamplingInterval::from_nanos(flow.period_ns.max(1)),
    );
    profile.set_symbolicated(true);
    let categories = Categories::new(&mut profile);
    let frames = frames(flow, &categories, &mut profile);
    let threads = threads(flow, &mut profile);
    add_samples(flow, &mut profile, &categories, &frames, &threads);
    profile
}

fn frames(flow: &Flow, categories: &Categories, profile: &mut fx::Profile) -> Vec<fx::FrameInfo> {
    let libraries = libraries(flow, profile);
    let frame = |frame: &Frame| fx::FrameInfo {
        frame: location(frame, &libraries, profile),
        category_pair: categories.of(frame.kind).into(),
        flags: fx::FrameFlags::empty(),
    };
    flow.frames.iter().map(frame).collect()
}

/// The format's addresses have 32 bits; a function beyond them, or without a module, is a label.
fn location(
    frame: &Frame,
    libraries: &[fx::LibraryHandle],
    profile: &mut fx::Profile,
) -> fx::Frame {
    match (frame.module, u32::try_from(frame.offset)) {
        (Some(module), Ok(offset)) => {
            fx::Frame::RelativeAddressFromInstructionPointer(libraries[module as usize], offset)
        }
        _ => fx::Frame::Label(profile.intern_string(&clean(&frame.name))),
    }
}

fn libraries(flow: &Flow, profile: &mut fx::Profile) -> Vec<fx::LibraryHandle> {
    let mut names: Vec<BTreeMap<u32, &str>> = vec![BTreeMap::new(); flow.modules.len()];
    for frame in &flow.frames {
        if let (Some(module), Ok(offset)) = (frame.module, u32::try_from(frame.offset)) {
            names[module as usize].insert(offset, &frame.name);
        }
    }
    let with_names = flow.modules.iter().zip(names);
    with_names.map(|(module, names)| profile.add_lib(library(module, &names))).collect()
}

fn library(module: &FlowModule, names: &BTreeMap<u32, &str>) -> fx::LibraryInfo {
    let path = clean(&module.path).into_owned();
    let name = path.rsplit('/').next().unwrap_or(&path).to_owned();
    let build_id = module.build_id.as_ref();
    fx::LibraryInfo {
        debug_name: name.clone(),
        debug_path: path.clone(),
        debug_id: build_id.map_or_else(DebugId::nil, debug_id),
        code_id: build_id.map(ToString::to_string),
        arch: None,
        symbol_table: Some(Arc::new(symbols(names))),
        name,
        path,
    }
}

/// Neighbouring addresses with one name are one symbol, as far as it was seen.
fn symbols(names: &BTreeMap<u32, &str>) -> fx::SymbolTable {
    let seen: Vec<(u32, &str)> = names.iter().map(|(offset, name)| (*offset, *name)).collect();
    let symbol = |run: &[(u32, &str)]| fx::Symbol {
        address: run[0].0,
        size: Some((run[run.len() - 1].0 - run[0].0).saturating_add(1)),
        name: clean(run[0].1).into_owned(),
    };
    fx::SymbolTable::new(seen.chunk_by(|a, b| a.1 == b.1).map(symbol).collect())
}

/// Breakpad's rule for ELF files: the first 16 bytes of the build id read as a little-endian GUID.
fn debug_id(build_id: &BuildId) -> DebugId {
    let mut guid = [0; 16];
    for (to, from) in guid.iter_mut().zip(build_id.bytes()) {
        *to = *from;
    }
    DebugId::from_guid_age(&guid, 0).unwrap_or_default()
}

struct Categories {
    host_kernel: fx::CategoryHandle,
    host_user: fx::CategoryHandle,
    guest_kernel: fx::CategoryHandle,
    guest_user: fx::CategoryHandle,
    idle: fx::CategoryHandle,
}

impl Categories {
    fn new(profile: &mut fx::Profile) -> Self {
        Self {
            host_kernel: profile.add_category("Host kernel", fx::CategoryColor::Orange),
            host_user: profile.add_category("Host user", fx::CategoryColor::Yellow),
            guest_kernel: profile.add_category("Guest kernel", fx::CategoryColor::Blue),
            guest_user: profile.add_category("Guest user", fx::CategoryColor::Green),
            idle: profile.add_category("Idle", fx::CategoryColor::Transparent),
        }
    }

    fn of(&self, kind: FrameKind) -> fx::CategoryHandle {
        match kind {
            FrameKind::HostKernel => self.host_kernel,
            FrameKind::HostUser => self.host_user,
            FrameKind::GuestKernel => self.guest_kernel,
            FrameKind::GuestUser => self.guest_user,
            FrameKind::Idle => self.idle,
            FrameKind::Vm | FrameKind::Process => fx::CategoryHandle::OTHER,
        }
    }
}

fn threads<'a>(flow: &'a Flow, profile: &mut fx::Profile) -> Vec<fx::ThreadHandle> {
    let begin = fx::Timestamp::from_nanos_since_reference(0);
    let end = timestamp(flow, flow.end);
    let mut processes: HashMap<(Option<&'a str>, u32, &'a str), fx::ProcessHandle> = HashMap::new();
    let thread = |thread: &'a FlowThread| {
        let key = (thread.vm.as_deref(), thread.pid, thread.process.as_str());
        let process = *processes.entry(key).or_insert_with(|| {
            let process = profile.add_process(&clean(&process_name(thread)), thread.pid, begin);
            profile.set_process_end_time(process, end);
            process
        });
        let handle = profile.add_thread(process, thread.tid, begin, thread.tid == thread.pid);
        profile.set_thread_name(handle, &clean(&thread.thread));
        profile.set_thread_end_time(handle, end);
        handle
    };
    flow.threads.iter().map(thread).collect()
}

fn add_samples(
    flow: &Flow,
    profile: &mut fx::Profile,
    categories: &Categories,
    frames: &[fx::FrameInfo],
    threads: &[fx::ThreadHandle],
) {
    let mut stacks: HashMap<(u32, u32), Option<fx::StackHandle>> = HashMap::new();
    let mut previous: Vec<Option<HostNs>> = vec![None; threads.len()];
    for sample in &flow.samples {
        let thread = threads[sample.thread as usize];
        let frames_of_stack = &flow.stacks[sample.stack as usize];
        let idle = kind_of_stack(flow, frames_of_stack) == Some(FrameKind::Idle);
        let stack = *stacks.entry((sample.thread, sample.stack)).or_insert_with(|| {
            let infos = frames_of_stack.iter().map(|frame| match frames[*frame as usize].clone() {
                info if idle => fx::FrameInfo { category_pair: categories.idle.into(), ..info },
                info => info,
            });
            profile.intern_stack_frames(thread, infos)
        });
        let before = previous[sample.thread as usize].replace(sample.time);
        let busy = match idle {
            true => fx::CpuDelta::ZERO,
            false => cpu_delta(flow.period_ns, before, sample.time),
        };
        profile.add_sample(thread, timestamp(flow, sample.time), stack, busy, 1);
    }
}

/// A sample stands for one period, but never for more than the time since its thread's last one.
fn cpu_delta(period_ns: u64, before: Option<HostNs>, now: HostNs) -> fx::CpuDelta {
    let since = before.map_or(period_ns, |before| now.since(before));
    fx::CpuDelta::from_nanos(period_ns.min(since))
}

fn timestamp(flow: &Flow, time: HostNs) -> fx::Timestamp {
    fx::Timestamp::from_nanos_since_reference(time.since(flow.start))
}
