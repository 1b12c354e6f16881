//! `cpu_time`: each instant of each physical CPU. A sample stands for a period; the rest was not sampled.

use std::collections::BTreeMap;

use model::{CpuTimeRow, Header, Pid, ResultCode, ResultStack, Tables, Tid, VmId};
use rustc_hash::FxHashMap;

use super::slices::Slices;
use crate::flow::{Flow, Frame, FrameKind};
use crate::share::shared_out;
use crate::steal::ThiefNames;
use crate::vcpu_timeline::Occupant;

/// Where a CPU was: a thread and a stack of the flow. `None`: no sample says.
type At = Option<(u32, u32)>;

/// All rows with the begins of their slices, and how many samples were of CPUs that the header does not have.
pub(super) fn rows(
    flow: &Flow,
    slices: &Slices,
    header: &Header,
    names: &ThiefNames<'_>,
    tables: &Tables,
) -> (Vec<(i64, CpuTimeRow)>, u64) {
    let mut samples: FxHashMap<(u32, u64), BTreeMap<At, u64>> = FxHashMap::default();
    for sample in &flow.samples {
        let here = samples.entry((sample.cpu, slices.number(sample.time))).or_default();
        *here.entry(Some((sample.thread, sample.stack))).or_default() += 1;
    }
    let codes = Codes { flow, names, tables };
    let mut rows = Vec::new();
    for cpu in &header.cpus {
        for (slice, length_ns) in slices.all() {
            let seen = samples.remove(&(*cpu, slice)).unwrap_or_default();
            for (at, ns) in times(&seen, length_ns, header.period_ns) {
                let n = seen.get(&at).copied().unwrap_or(0);
                rows.push((slices.unix_us(slice), codes.row(*cpu, at, ns, n)));
            }
        }
    }
    rows.sort_unstable();
    let left_out = samples.values().flat_map(BTreeMap::values).sum();
    (rows, left_out)
}

/// A slice's length by what was seen: a period for each sample, or equal parts of the slice where there are more samples
/// than periods.
fn times(seen: &BTreeMap<At, u64>, length_ns: u64, period_ns: u64) -> BTreeMap<At, u64> {
    let n: u64 = seen.values().sum();
    let reported_ns = n.saturating_mul(period_ns);
    if length_ns <= reported_ns {
        return shared_out(length_ns, seen);
    }
    let mut times: BTreeMap<At, u64> = seen.iter().map(|(at, n)| (*at, n * period_ns)).collect();
    times.insert(None, length_ns - reported_ns);
    times
}

struct Codes<'a> {
    flow: &'a Flow,
    names: &'a ThiefNames<'a>,
    tables: &'a Tables,
}

impl Codes<'_> {
    fn row(&self, cpu: u32, at: At, ns: u64, samples: u64) -> CpuTimeRow {
        let Some((thread, stack)) = at else {
            let level = "not_sampled".to_owned();
            let code = ResultCode::default();
            return CpuTimeRow { cpu, level, vm: None, code, stack: None, ns, samples };
        };
        let thread = &self.flow.threads[thread as usize];
        let frames: Vec<&Frame> = self.flow.stacks[stack as usize]
            .iter()
            .map(|frame| &self.flow.frames[*frame as usize])
            .collect();
        let level = level(&frames);
        let vm = thread.vm.clone().or_else(|| self.vm_of_host_thread(thread.pid, thread.tid));
        let function = frames.last().filter(|frame| frame.kind != FrameKind::Vm);
        let module = function.and_then(|frame| Some(&self.flow.modules[frame.module? as usize]));
        let path = module.map(|module| {
            let path = module.path.as_str();
            let of_guest = thread.vm.as_ref().map(|vm| format!("[{vm}]"));
            let own = of_guest.and_then(|prefix| path.strip_prefix(prefix.as_str()));
            own.unwrap_or(path).to_owned()
        });
        let has_id = level != "idle";
        let code = ResultCode {
            process: Some(thread.process.clone()),
            pid: (has_id && thread.pid != 0).then_some(thread.pid),
            thread: Some(thread.thread.clone()),
            tid: (has_id && thread.tid != 0).then_some(thread.tid),
            function: function.map(|frame| frame.name.clone()),
            module: path,
            build_id: module.and_then(|module| Some(module.build_id.as_ref()?.to_string())),
        };
        let stack = (thread.vm.is_none() && 2 < frames.len())
            .then(|| ResultStack::join(frames[1..].iter().map(|frame| frame.name.as_str())));
        CpuTimeRow { cpu, level: level.to_owned(), vm, code, stack, ns, samples }
    }

    /// The VM that a thread of the host works for.
    fn vm_of_host_thread(&self, pid: u32, tid: u32) -> Option<String> {
        let occupant = Occupant::Thread(Pid(pid), Tid(tid));
        let vm: VmId = self.names.vm(self.names.thief(occupant, self.flow.start))?;
        self.tables.vms.get(vm.index()).map(|vm| vm.name.clone())
    }
}

fn level(frames: &[&Frame]) -> &'static str {
    match (frames.first().map(|frame| frame.kind), frames.last().map(|frame| frame.kind)) {
        (Some(FrameKind::Idle), _) => "idle",
        (_, Some(FrameKind::GuestKernel)) => "guest_kernel",
        (_, Some(FrameKind::GuestUser)) => "guest_user",
        (_, Some(FrameKind::Vm)) => "guest_unknown",
        (_, Some(FrameKind::HostKernel)) => "host_kernel",
        _ => "host_user",
    }
}
