//! AttributionLevel a gap was: what the guest did before and after it.
//!
//! ```text
//!            before                 gap                     after
//!   function f  f  kernel k | StealOutside, Throttled.. | kernel l  f
//!               ^--- up to three samples of the guest's ---^
//!                    kernel are looked across: a tick interrupts a function, which then goes on
//! ```
//!
//! A VM exit in the VMM is charged to where the guest was at the exit, and a wait that a switch began to where the guest
//! stood then: that is where it goes on. Everything else is charged when both sides agree on the process, on its thread,
//! or on its function; else it is unattributed at that level. Across a halt no level agrees: what ran after it need not
//! have been there before.

use super::AttributionLevel::{Function, Process, Stack, Thread};
use crate::vcpu_timeline::{CodeLocation, CodeLocationId, Segment, VcpuTimeline, VcpuTimelines};
use model::{TimeAccount, TimelineState};

/// Samples of the guest's kernel that a function may be found behind.
const KERNEL_SAMPLES: u64 = 3;

/// To what time is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttributionLevel {
    /// A process of the guest.
    Process,
    Thread,
    /// A function of a process.
    Function,
    /// A function and its callers: of timelines whose places have them.
    Stack,
}

impl AttributionLevel {
    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Process => "process",
            Thread => "thread",
            Function => "function",
            Stack => "stack",
        }
    }
}

/// Charges a timeline's gaps to the guest's code.
#[derive(Debug)]
pub struct Attribution<'a> {
    axis: &'a VcpuTimelines,
    timeline: &'a VcpuTimeline,
    /// By segment: the nearest one before it that shows a place, with nothing between that hides it.
    before: Vec<Option<u32>>,
    after: Vec<Option<u32>>,
}

/// What a segment says about the place of its neighbours.
enum Shows {
    /// The guest was here.
    CodeLocation,
    Nothing,
    /// What is on its other side says nothing about this side.
    Barrier,
}

impl<'a> Attribution<'a> {
    /// Looks through the timeline once.
    #[must_use]
    pub fn new(axis: &'a VcpuTimelines, timeline: &'a VcpuTimeline) -> Self {
        let n = timeline.segments.len();
        let before = nearest(timeline, 0..n);
        let after = nearest(timeline, (0..n).rev());
        Self { axis, timeline, before, after }
    }

    /// The place that a segment is charged to, the same one for everything charged alike as far as `whose` tells:
    /// look at its process, thread or function only. `None`: unattributed.
    #[must_use]
    pub fn victim(&self, segment: usize, whose: AttributionLevel) -> Option<CodeLocationId> {
        let Segment { state, place, .. } = self.timeline.segments[segment];
        match state.account() {
            TimeAccount::Guest => return place,
            TimeAccount::StealVmm if place.is_some() => return place,
            TimeAccount::Halt | TimeAccount::HaltPolling | TimeAccount::Unknown => return None,
            _ => {}
        }
        let tells =
            |place: &CodeLocationId| whose != Thread || self.axis.place(*place).tid.is_some();
        if let Some(stood) = place.filter(tells) {
            // Where the guest's kernel stood in the middle of a function, that goes on. A switch does not say its callers.
            let it = self.axis.place(stood);
            let goes_on = match whose {
                Process | Thread => false,
                Function => it.kernel,
                Stack => it.kernel || it.callers.is_empty(),
            };
            let agreed = goes_on.then(|| self.agreed_function(segment, stood, whose)).flatten();
            return agreed.or(place);
        }
        let (before, after) = self.neighbours(segment);
        let (before, after) = (before?, after?);
        if self.is_same(before, after, whose) && whose != Thread {
            return Some(before);
        }
        match whose {
            Process => {
                let (before_it, after_it) = (self.axis.place(before), self.axis.place(after));
                before_it.is_process(after_it).then_some(before)
            }
            Thread => {
                let [before, after] = self.around(segment, |place| place.tid.is_some())?;
                let (before_it, after_it) = (self.axis.place(before), self.axis.place(after));
                before_it.is_thread(after_it).then_some(before)
            }
            Function | Stack => {
                let [before, after] = self.around(segment, |place| !place.kernel)?;
                self.is_same(before, after, whose).then_some(before)
            }
        }
    }

    /// Whether two places are one, as far as `whose` tells.
    fn is_same(&self, one: CodeLocationId, other: CodeLocationId, whose: AttributionLevel) -> bool {
        match whose {
            Stack => one == other,
            _ => self.axis.code_of(one) == self.axis.code_of(other),
        }
    }

    /// The function around both sides of a stay in the guest's kernel, or in that function.
    fn agreed_function(
        &self,
        segment: usize,
        stood: CodeLocationId,
        whose: AttributionLevel,
    ) -> Option<CodeLocationId> {
        let [before, after] = self.around(segment, |place| !place.kernel)?;
        let (around, stood) = (self.axis.place(before), self.axis.place(stood));
        let is_other = stood.tid.is_some() && around.tid.is_some() && around.tid != stood.tid;
        let is_function =
            (&around.function, &around.module) == (&stood.function, &stood.module) && !is_other;
        let is_it = stood.kernel || is_function;
        let is_agreed = self.is_same(before, after, whose);
        (is_agreed && is_it && around.is_process(stood)).then_some(before)
    }

    /// Whether time was taken between two stays in `wanted` code, whichever it is.
    #[must_use]
    pub fn is_within(&self, segment: usize, wanted: impl Fn(CodeLocationId) -> bool) -> bool {
        let account = self.timeline.segments[segment].state.account();
        let is_taken = matches!(
            account,
            TimeAccount::StealOutside | TimeAccount::StealVmm | TimeAccount::Throttled
        );
        is_taken
            && self
                .around(segment, |place| !place.kernel)
                .is_some_and(|it| it.map(wanted) == [true; 2])
    }

    /// Whether an unattributed segment may still be `wanted`'s: one of the sides says so, or none says anything.
    #[must_use]
    pub fn may_be(&self, segment: usize, wanted: impl Fn(CodeLocationId) -> bool) -> bool {
        let (before, after) = self.neighbours(segment);
        let user = |links| self.beyond_kernel(segment, links, |place| !place.kernel);
        let shown = [before, after, user(&self.before), user(&self.after)];
        (before.is_none() && after.is_none()) || shown.into_iter().flatten().any(wanted)
    }

    fn neighbours(&self, segment: usize) -> (Option<CodeLocationId>, Option<CodeLocationId>) {
        let place = |links: &[Option<u32>]| links[segment].and_then(|at| self.segment(at).place);
        (place(&self.before), place(&self.after))
    }

    /// The code before the interruption and the code after it.
    fn around(
        &self,
        segment: usize,
        tells: impl Fn(&CodeLocation) -> bool,
    ) -> Option<[CodeLocationId; 2]> {
        let before = self.beyond_kernel(segment, &self.before, &tells)?;
        let after = self.beyond_kernel(segment, &self.after, &tells)?;
        Some([before, after])
    }

    /// The nearest place that tells, behind a few samples of the guest's kernel on behalf of the same process and of no
    /// other thread. Which thread the kernel works for is not always known.
    fn beyond_kernel(
        &self,
        segment: usize,
        links: &[Option<u32>],
        tells: impl Fn(&CodeLocation) -> bool,
    ) -> Option<CodeLocationId> {
        let mut at = links[segment]?;
        let nearest = self.axis.place(self.segment(at).place?);
        let (mut seen, mut tid) = (0, nearest.tid);
        loop {
            let shown = self.segment(at);
            let place = self.axis.place(shown.place?);
            let is_other = place.tid.is_some() && tid.is_some() && place.tid != tid;
            if is_other || !place.is_process(nearest) {
                return None;
            }
            if tells(place) {
                return shown.place;
            }
            seen += self.axis.samples.within(self.timeline.vcpu, shown).max(1);
            if !place.kernel || KERNEL_SAMPLES < seen {
                return None;
            }
            tid = tid.or(place.tid);
            at = links[at as usize]?;
        }
    }

    fn segment(&self, at: u32) -> &'a Segment {
        &self.timeline.segments[at as usize]
    }
}

impl CodeLocation {
    /// The same process of the same guest.
    pub(super) fn is_process(&self, other: &Self) -> bool {
        (self.pid, &self.process) == (other.pid, &other.process)
    }

    /// Whether both are the same thread.
    fn is_thread(&self, other: &Self) -> bool {
        self.is_process(other) && self.tid == other.tid
    }
}

/// For each segment the last one, in this order, that showed a place.
fn nearest(timeline: &VcpuTimeline, order: impl Iterator<Item = usize>) -> Vec<Option<u32>> {
    let mut links = vec![None; timeline.segments.len()];
    let mut last = None;
    for at in order {
        links[at] = last;
        match shows(&timeline.segments[at]) {
            Shows::CodeLocation => last = u32::try_from(at).ok(),
            Shows::Barrier => last = None,
            Shows::Nothing => {}
        }
    }
    links
}

fn shows(segment: &Segment) -> Shows {
    match (segment.state, segment.place) {
        (
            TimelineState::Halt
            | TimelineState::HaltPolling
            | TimelineState::Paused
            | TimelineState::Unknown,
            _,
        ) => Shows::Barrier,
        (_, Some(_)) => Shows::CodeLocation,
        // The guest ran unknown code.
        (
            TimelineState::GuestKernel | TimelineState::GuestUser | TimelineState::GuestUnknown,
            None,
        ) => Shows::Barrier,
        (_, None) => Shows::Nothing,
    }
}

#[cfg(test)]
mod test {
    use super::super::testing::Drawn;
    use super::*;

    /// Every letter of the drawing charged: the victim's own letter, a process' or thread's first one, `.`
    /// unattributed.
    fn charged(line: &str, whose: AttributionLevel) -> String {
        let drawn = Drawn::new(&[line], "");
        let timeline = &drawn.axis.timelines[0];
        let attribution = Attribution::new(&drawn.axis, timeline);
        let mut out = String::new();
        for (number, segment) in timeline.segments.iter().enumerate() {
            let victim = attribution.victim(number, whose).map(|id| drawn.axis.place(id));
            let letter = match (victim, whose) {
                (None, _) => ".",
                (Some(place), Function) => &place.function,
                (Some(place), Stack) => {
                    place.callers.first().map_or(&*place.function, AsRef::as_ref)
                }
                (Some(place), Thread) => ["?", "1", "2", "3"][place.tid.unwrap_or(0) as usize],
                (Some(place), Process) => &place.process[..1],
            };
            out.push_str(&letter.repeat(usize::try_from(segment.length_ns() / 1_000_000).unwrap()));
        }
        out
    }

    fn check(line: &str, process: &str, thread: &str, function: &str) {
        assert_eq!(charged(line, Process), process, "{line} by process");
        assert_eq!(charged(line, Thread), thread, "{line} by thread");
        assert_eq!(charged(line, Function), function, "{line} by function");
    }

    #[test]
    fn both_sides_agree() {
        check("ff..ff", "aaaaaa", "111111", "ffffff");
        check("ff..gg", "aaaaaa", "111111", "ff..gg");
        check("ff..hh", "aaaaaa", "11..22", "ff..hh");
        check("ff..xx", "aa..oo", "11..33", "ff..xx");
        check("ft.wff", "aaaaaa", "111111", "ffffff");
        check("f.__.f", "aaaaaa", "111111", "ffffff");
    }

    #[test]
    fn one_side_is_not_enough() {
        check("..ff", "..aa", "..11", "..ff");
        check("ff..", "aa..", "11..", "ff..");
        check("....", "....", "....", "....");
        check("f?.f", "a..a", "1..1", "f..f");
    }

    #[test]
    fn nothing_is_carried_across_a_halt() {
        check("ff-.ff", "aa..aa", "11..11", "ff..ff");
        check("ff.-ff", "aa..aa", "11..11", "ff..ff");
        check("ff~.ff", "aa..aa", "11..11", "ff..ff");
    }

    #[test]
    fn exits_are_charged_to_where_the_guest_was() {
        check("xx11xx", "ooaaoo", "331133", "xxffxx");
        check("gg1gg", "aaaaa", "11111", "ggfgg");
        // Not known where: as any gap.
        check("gg3gg", "aaaaa", "11111", "ggggg");
        check("gg3xx", "aa.oo", "11.33", "gg.xx");
        // The exit before a preemption says where the guest was.
        check("xx1.ff", "ooaaaa", "331111", "xxffff");
    }

    #[test]
    fn a_switch_says_where_the_guest_stood() {
        check("ffFgg", "aaaaa", "11111", "fffgg");
        check("ffFxx", "aaaoo", "11133", "fffxx");
        check("ffX-f", "aao.a", "113.1", "ffx.f");
        check("fkKf", "aaaa", "1111", "fkff");
        check("fkKg", "aaaa", "1111", "fkkg");
        check("fNh", "aaa", "1.2", "fnh");
        check("X.ff", "o.aa", "3.11", "x.ff");
    }

    #[test]
    fn callers_are_those_of_samples_around_a_switch() {
        for (line, expected) in [
            ("dd..dd", "dddddd"),
            ("dd..ee", "dd..ee"),
            ("ddFdd", "ddddd"),
            ("ddFee", "ddfee"),
            ("ddXdd", "ddxdd"),
            ("dkKd", "dkdd"),
            ("dkKe", "dkke"),
        ] {
            assert_eq!(charged(line, Stack), expected, "{line}");
            // Callers change nothing of what a function has.
            let without = line.replace(['d', 'e'], "f");
            assert_eq!(charged(line, Function), charged(&without, Function), "{line}");
        }
    }

    #[test]
    fn interrupted_functions_go_on() {
        check("ff.kf", "aaaaa", "11111", "fffkf");
        check("fk.lf", "aaaaa", "11111", "fkflf");
        check("fkkk.f", "aaaaaa", "111111", "fkkkff");
        check("fkkkk.f", "aaaaaaa", "1111111", "fkkkk.f");
        check("fkkll.f", "aaaaaaa", "1111111", "fkkll.f");
        check("fk.kg", "aaaaa", "11111", "fkkkg");
        check("fk.lg", "aaaaa", "11111", "fk.lg");
        check("gk.f", "aaaa", "1111", "gk.f");
        check("fm.f", "ao.a", "13.1", "fm.f");
        // The kernel's thread is not known.
        check("ff.nf", "aaaaa", "111?1", "fffnf");
        check("fn.nh", "aaaaa", "1?.?2", "fnnnh");
        check("fn.lh", "aaaaa", "1?112", "fn.lh");
        check("f.n.f", "aaaaa", "11?11", "ffnff");
        check("hn.kf", "aaaaa", "2?.11", "hn.kf");
        check("n.n", "aaa", "?.?", "nnn");
        // A gap in the kernel's samples, and a halt.
        check("fk.k.f", "aaaaaa", "111111", "fkkkff");
        check("f-k.f", "a.aaa", "1.111", "f.k.f");
    }
}
