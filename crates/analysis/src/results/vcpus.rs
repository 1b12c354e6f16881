//! The time of each vCPU, with the guest's code that it is charged to and its thief: summed by slice (`vcpu_time`), or
//! interval by interval.

use std::hash::Hash;

use model::{
    IntervalRow, ResultCode, ResultStack, ResultThief, TimeAccount, TimelineState, VcpuTimeRow,
    VmId,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::slices::Slices;
use crate::exit_reason;
use crate::steal::{Attribution, AttributionLevel, Thief, ThiefNames, TimelineInput};
use crate::vcpu_timeline::{
    CodeLocation, CodeLocationId, Occupant, Segment, Span, VcpuTimeline, VcpuTimelines,
    thief_spans, thieves,
};

const LEVELS: [AttributionLevel; 4] = [
    AttributionLevel::Process,
    AttributionLevel::Thread,
    AttributionLevel::Function,
    AttributionLevel::Stack,
];
/// A call path with less than this part of the time that its VM's functions have is shown as its function alone.
const STACK_SHARE: u64 = 5000;

/// What is added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    slice: u64,
    state: TimelineState,
    /// By process, thread, function, stack: the first place that is the same as far as each tells.
    whose: [Option<CodeLocationId>; 4],
    thief: Option<Thief>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    ns: u64,
    samples: u64,
}

/// All rows with the begins of their slices.
pub(super) fn rows(
    evidence: &TimelineInput<'_>,
    slices: &Slices,
    names: &ThiefNames<'_>,
) -> Vec<(i64, VcpuTimeRow)> {
    let same = SamePlaces::new(evidence.axis);
    let timelines = &evidence.axis.timelines;
    let sums = timelines.iter().map(|it| (it, sums(evidence, slices, names, &same, it)));
    let sums: Vec<_> = sums.collect();
    let hot = hot_stacks(evidence, &same, &sums);
    let mut rows = Vec::new();
    for (timeline, sums) in sums {
        let vm = evidence.tables.vcpus.get(timeline.vcpu.index()).map(|vcpu| vcpu.vm);
        let sums = without_cold_stacks(sums, |stack| hot.contains(&(vm, same.path(stack))));
        let n_before = rows.len();
        rows.extend(sums.into_iter().filter_map(|(key, sum)| {
            let row = row(evidence, names, timeline, &key, sum)?;
            Some((slices.unix_us(key.slice), row))
        }));
        let total: u64 = rows[n_before..].iter().map(|(_, row)| row.ns).sum();
        debug_assert_eq!(total, timeline.length_ns(), "rows add up to the time the vCPU was there");
    }
    rows.sort_unstable();
    rows
}

fn sums(
    evidence: &TimelineInput<'_>,
    slices: &Slices,
    names: &ThiefNames<'_>,
    same: &SamePlaces,
    timeline: &VcpuTimeline,
) -> FxHashMap<Key, Sum> {
    let attribution = Attribution::new(evidence.axis, timeline);
    let mut sums: FxHashMap<Key, Sum> = FxHashMap::default();
    for (number, segment) in timeline.segments.iter().enumerate() {
        let whose = LEVELS
            .map(|whose| attribution.victim(number, whose).map(|place| same.first(place, whose)));
        let whose = with_stack_of_function(evidence.axis, whose);
        for (slice, from, to) in slices.cut(segment.from, segment.to) {
            let piece = Segment { from, to, ..*segment };
            let key = Key { slice, state: segment.state, whose, thief: None };
            if segment.state == TimelineState::StealOutside {
                for (occupant, ns) in thieves(evidence.axis, timeline.vcpu, &piece) {
                    let thief = Some(names.thief(occupant, from));
                    sums.entry(Key { thief, ..key }).or_default().ns += ns;
                }
                continue;
            }
            let sum = sums.entry(key).or_default();
            sum.ns += piece.length_ns();
            sum.samples += evidence.axis.samples.within(timeline.vcpu, &piece);
        }
    }
    sums
}

/// Paths that have their share of a VM's time in functions.
fn hot_stacks(
    evidence: &TimelineInput<'_>,
    same: &SamePlaces,
    sums: &[(&VcpuTimeline, FxHashMap<Key, Sum>)],
) -> FxHashSet<(Option<VmId>, CodeLocationId)> {
    let (mut of_path, mut of_vm) = (FxHashMap::default(), FxHashMap::default());
    for (timeline, sums) in sums {
        let vm = evidence.tables.vcpus.get(timeline.vcpu.index()).map(|vcpu| vcpu.vm);
        for (Key { whose: [_, _, function, stack], .. }, sum) in sums {
            if function.is_some() {
                *of_vm.entry(vm).or_insert(0_u64) += sum.ns;
            }
            if let Some(stack) = stack {
                *of_path.entry((vm, same.path(*stack))).or_insert(0_u64) += sum.ns;
            }
        }
    }
    let is_hot =
        |((vm, _), ns): &(_, u64)| of_vm.get(vm).is_none_or(|all| all / STACK_SHARE <= *ns);
    of_path.into_iter().filter(is_hot).map(|(path, _)| path).collect()
}

fn without_cold_stacks(
    sums: FxHashMap<Key, Sum>,
    is_hot: impl Fn(CodeLocationId) -> bool,
) -> FxHashMap<Key, Sum> {
    let mut kept: FxHashMap<Key, Sum> = FxHashMap::default();
    for (mut key, Sum { ns, samples }) in sums {
        let [.., stack] = &mut key.whose;
        *stack = stack.filter(|stack| is_hot(*stack));
        let sum = kept.entry(key).or_default();
        (sum.ns, sum.samples) = (sum.ns + ns, sum.samples + samples);
    }
    kept
}

/// Shows all intervals of a vCPU in time order. Lengths add up to the time that the vCPU was there.
///
/// # Errors
/// That of `see`, after which it ends.
pub fn for_each_interval<E>(
    evidence: &TimelineInput<'_>,
    names: &ThiefNames<'_>,
    timeline: &VcpuTimeline,
    see: &mut dyn FnMut(IntervalRow) -> Result<(), E>,
) -> Result<(), E> {
    let attribution = Attribution::new(evidence.axis, timeline);
    let header = evidence.header;
    for (number, segment) in timeline.segments.iter().enumerate() {
        let whose = LEVELS.map(|whose| attribution.victim(number, whose));
        let whose = with_stack_of_function(evidence.axis, whose);
        let mut show = |span: &Span, thief| {
            let piece = Segment { from: span.from, to: span.to, ..*segment };
            let samples = evidence.axis.samples.within(timeline.vcpu, &piece);
            let sum = Sum { ns: piece.length_ns(), samples };
            let key = Key { slice: 0, state: segment.state, whose, thief };
            let Some(time) = row(evidence, names, timeline, &key, sum) else { return Ok(()) };
            let from_ns = span.from.since(header.start);
            let from_unix_us = header.start_unix_ns.saturating_add(from_ns) / 1000;
            let from_unix_us = i64::try_from(from_unix_us).unwrap_or(i64::MAX);
            see(IntervalRow { from_ns, from_unix_us, time })
        };
        if segment.state == TimelineState::StealOutside {
            for span in thief_spans(evidence.axis, timeline.vcpu, segment) {
                show(&span, Some(names.thief(span.who, span.from)))?;
            }
        } else {
            show(&Span { from: segment.from, to: segment.to, who: Occupant::Unknown }, None)?;
        }
    }
    Ok(())
}

/// `None`: of a vCPU that is in no table.
fn row(
    evidence: &TimelineInput<'_>,
    names: &ThiefNames<'_>,
    timeline: &VcpuTimeline,
    key: &Key,
    sum: Sum,
) -> Option<VcpuTimeRow> {
    let tables = evidence.tables;
    let vcpu = tables.vcpus.get(timeline.vcpu.index())?;
    let vm_name = |vm: model::VmId| tables.vms.get(vm.index()).map(|vm| vm.name.clone());
    let is_own = matches!(key.state.account(), TimeAccount::Guest | TimeAccount::NotSampled);
    Some(VcpuTimeRow {
        vm: vm_name(vcpu.vm)?,
        vcpu: vcpu.number,
        state: key.state.kind().name().to_owned(),
        code: code(evidence.axis, key.whose),
        stack: stack(evidence.axis, key.whose),
        thief: key.thief.map(|thief| names.name(thief)),
        thief_vm: key.thief.and_then(|thief| names.vm(thief)).and_then(vm_name),
        thief_is: key.thief.map(|thief| ResultThief {
            kind: thief.kind(),
            name: names.own_name(thief).map(str::to_owned),
            pid: names.pid(thief).map(|pid| pid.0),
        }),
        exit_reason: key
            .state
            .exit_reason()
            .map(|reason| exit_reason::name(evidence.header.vendor, reason).into_owned()),
        ns: sum.ns,
        corrected_ns: if is_own { sum.ns } else { 0 },
        samples: sum.samples,
    })
}

/// A stack is kept if it has callers and ends with the function that the time is charged to.
fn with_stack_of_function(
    axis: &VcpuTimelines,
    whose: [Option<CodeLocationId>; 4],
) -> [Option<CodeLocationId>; 4] {
    let [process, thread, function, stack] = whose;
    let code = |place: CodeLocationId| {
        let CodeLocation { function, module, .. } = axis.place(place);
        (function, module)
    };
    let stack = stack.filter(|stack| {
        !axis.place(*stack).callers.is_empty()
            && function.is_some_and(|function| code(function) == code(*stack))
    });
    [process, thread, function, stack]
}

fn stack(axis: &VcpuTimelines, [.., stack]: [Option<CodeLocationId>; 4]) -> Option<ResultStack> {
    let CodeLocation { function, callers, kernel_callers, kernel, .. } = axis.place(stack?);
    let callers = callers.iter().rev().map(AsRef::as_ref);
    let functions = ResultStack::join(callers.chain([function.as_str()]));
    Some(ResultStack { functions, n_kernel: if *kernel { kernel_callers + 1 } else { 0 } })
}

fn code(axis: &VcpuTimelines, whose: [Option<CodeLocationId>; 4]) -> ResultCode {
    let [process, thread, function, _] = whose.map(|place| place.map(|place| axis.place(place)));
    ResultCode {
        process: process.map(|place| place.process.clone()),
        pid: process.and_then(|place| place.pid),
        thread: thread.and_then(|place| place.thread.clone()),
        tid: thread.and_then(|place| place.tid),
        function: function.map(|place| place.function.clone()),
        module: function.and_then(|place| place.module.clone()),
        build_id: function.and_then(|place| Some(place.build_id.as_ref()?.to_string())),
    }
}

/// Places that are one process, thread or function.
#[derive(Debug)]
struct SamePlaces {
    process: Vec<CodeLocationId>,
    thread: Vec<CodeLocationId>,
    function: Vec<CodeLocationId>,
    stack: Vec<CodeLocationId>,
    path: Vec<CodeLocationId>,
}

impl SamePlaces {
    fn new(axis: &VcpuTimelines) -> Self {
        Self {
            process: firsts(axis, |p| (&p.process, p.pid)),
            thread: firsts(axis, |p| (&p.process, p.pid, &p.thread, p.tid)),
            function: firsts(axis, |p| (&p.process, p.pid, &p.function, &p.module, &p.build_id)),
            stack: firsts(axis, |p| {
                let code = (&p.function, &p.module, &p.build_id, p.kernel);
                (&p.process, p.pid, code, &p.callers, p.kernel_callers)
            }),
            path: firsts(axis, |p| (&p.process, &p.function, &p.module, &p.callers)),
        }
    }

    fn first(&self, place: CodeLocationId, whose: AttributionLevel) -> CodeLocationId {
        let firsts = match whose {
            AttributionLevel::Process => &self.process,
            AttributionLevel::Thread => &self.thread,
            AttributionLevel::Function => &self.function,
            AttributionLevel::Stack => &self.stack,
        };
        firsts[place.0 as usize]
    }

    /// The same for all processes of a name.
    fn path(&self, stack: CodeLocationId) -> CodeLocationId {
        self.path[stack.0 as usize]
    }
}

/// For each place the first with the same key.
fn firsts<'a, K: Eq + Hash>(
    axis: &'a VcpuTimelines,
    key: impl Fn(&'a CodeLocation) -> K,
) -> Vec<CodeLocationId> {
    let mut first: FxHashMap<K, CodeLocationId> = FxHashMap::default();
    let places = (0..).map(CodeLocationId).zip(&axis.places);
    places.map(|(id, place)| *first.entry(key(place)).or_insert(id)).collect()
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::steal::testing::{Drawn, MS};

    /// Rows of the first vCPU in slices of four letters: `slice state process.thread.function thief reason ms/samples`.
    fn check(line: &str, cpu: &str, expected: &[&str]) {
        let drawn = Drawn::new(&[line], cpu);
        let slices = Slices::new(&drawn.header, 4 * MS);
        let names = ThiefNames::new(&drawn.tables);
        let rows = rows(&drawn.evidence(), &slices, &names);
        let text = |(slice, row): &(i64, VcpuTimeRow)| {
            let ResultCode { process, tid, function, .. } = &row.code;
            let shown = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".to_owned());
            let thread = tid.map_or("-".to_owned(), |tid| tid.to_string());
            let code = format!("{}.{thread}.{}", shown(process), shown(function));
            let (slice, ms) = (slice / 4000, row.ns / MS);
            let who = [&row.thief, &row.exit_reason].map(|name| name.clone().unwrap_or_default());
            let text =
                format!("{slice} {} {code} {} {ms}/{}", row.state, who.concat(), row.samples);
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(rows.iter().map(text).collect::<Vec<_>>(), expected, "{line}");
        let total: u64 = rows.iter().map(|(_, row)| row.ns).sum();
        assert_eq!(total, line.len() as u64 * MS, "{line}");
    }

    #[test]
    fn each_slice_has_its_part() {
        check(
            "ffff.f--",
            "0000p000",
            &[
                "0 guest_user app.1.f 4/4",
                "1 guest_user app.1.f 1/1",
                "1 halt -.-.- 2/0",
                "1 steal_outside app.1.f postgres (300) 1/0",
            ],
        );
        check(
            "ff....g-",
            "00222p00",
            &[
                "0 guest_user app.1.f 2/2",
                "0 steal_outside app.1.- b vcpu0 2/0",
                "1 guest_user app.1.g 1/1",
                "1 halt -.-.- 1/0",
                "1 steal_outside app.1.- b vcpu0 1/0",
                "1 steal_outside app.1.- postgres (300) 1/0",
            ],
        );
    }

    #[test]
    fn call_paths_have_a_share_of_their_vm() {
        let check = |line: &str, expected: &[&str]| {
            let drawn = Drawn::new(&[line], "");
            let slices = Slices::new(&drawn.header, 1 << 40);
            let rows = rows(&drawn.evidence(), &slices, &ThiefNames::new(&drawn.tables));
            let text = |(_, row): &(i64, VcpuTimeRow)| {
                let stack = row.stack.as_ref().map_or("-", |stack| stack.functions.as_str());
                let function = row.code.function.as_deref().unwrap_or("-");
                format!("{} {function} {stack} {}", row.state, row.ns / MS)
            };
            let expected: Vec<_> = expected.iter().map(|row| (*row).to_owned()).collect();
            assert_eq!(rows.iter().map(text).collect::<Vec<_>>(), expected, "{line}");
        };
        check(
            "dd.dd.eefF",
            &[
                "guest_user f - 1",
                "guest_user f d;f 4",
                "guest_user f e;f 2",
                "steal_outside f - 2",
                "steal_outside f d;f 1",
            ],
        );
        // One of 6,000 is too little for a row.
        check(&format!("{}e", "d".repeat(6000)), &["guest_user f - 1", "guest_user f d;f 6000"]);
    }

    #[test]
    fn exits_are_charged_to_who_caused_them() {
        check(
            "f1wtf_z?",
            "",
            &[
                "0 guest_user app.1.f 1/1",
                "0 steal_vmm app.1.f io 1/1",
                "0 steal_vmm_waiting app.1.f io 1/0",
                "0 throttled app.1.f 1/0",
                "1 guest_user app.1.f 1/1",
                "1 not_sampled -.-.- 1/0",
                "1 paused -.-.- 1/0",
                "1 unknown -.-.- 1/0",
            ],
        );
    }

    /// Intervals of the first vCPU: `from ms state process.function thief`. Thieves have as long as `steal` says.
    fn check_intervals(line: &str, cpu: &str, expected: &[&str]) {
        let drawn = Drawn::new(&[line], cpu);
        let names = ThiefNames::new(&drawn.tables);
        let (evidence, mut rows) = (drawn.evidence(), Vec::new());
        let timeline = &evidence.axis.timelines[0];
        for_each_interval(&evidence, &names, timeline, &mut |row| {
            rows.push(row);
            Ok::<(), ()>(())
        })
        .unwrap();
        let text = |IntervalRow { from_ns, time, .. }: &IntervalRow| {
            let [process, function] = [&time.code.process, &time.code.function]
                .map(|name| name.as_deref().unwrap_or("-"));
            let thief = time.thief.as_deref().unwrap_or_default();
            let (from, ms) = (from_ns / MS, time.ns / MS);
            let text = format!("{from} {ms} {} {process}.{function} {thief}", time.state);
            text.trim_end().to_owned()
        };
        assert_eq!(rows.iter().map(text).collect::<Vec<_>>(), expected, "{line}");
        let mut at = 0;
        for row in &rows {
            assert_eq!(row.from_ns, at, "they touch");
            at += row.time.ns;
        }
        assert_eq!(at, timeline.length_ns());
        let sums = crate::steal::balances(&evidence, &names);
        for (thief, ns) in &sums[&timeline.vcpu].thieves {
            let is_thief = |row: &&IntervalRow| row.time.thief == Some(names.name(*thief));
            assert_eq!(rows.iter().filter(is_thief).map(|row| row.time.ns).sum::<u64>(), *ns);
        }
    }

    #[test]
    fn intervals_have_one_thief_each() {
        check_intervals(
            "ff....g1-",
            "002pp0000",
            &[
                "0 2 guest_user app.f",
                "2 1 steal_outside app.- b vcpu0",
                "3 3 steal_outside app.- postgres (300)",
                "6 1 guest_user app.g",
                "7 1 steal_vmm app.f",
                "8 1 halt -.-",
            ],
        );
        check_intervals(
            "f..f",
            "00pi",
            &[
                "0 1 guest_user app.f",
                "1 2 steal_outside app.f postgres (300)",
                "3 1 guest_user app.f",
            ],
        );
        check_intervals(
            "f..f",
            "",
            &["0 1 guest_user app.f", "1 2 steal_outside app.f [unknown]", "3 1 guest_user app.f"],
        );
    }
}
