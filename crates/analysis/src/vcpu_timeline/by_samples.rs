//! A vCPU's track from its samples alone: the edges of its gaps are known to a period, their lengths from the
//! counters that came with the samples.

use model::{CpuId, OffCpuReason, TimelineState, WaitCounters};

use super::cover::middle;
use super::gap::{Gap, UncoveredTime, difference};
use super::marks::CpuObservations;
use super::queues::{VcpuQueues, overlap};
use super::track::{Activity, OffCpu, Point, Track, What, is_near};

/// Draws one vCPU's track.
#[derive(Debug)]
pub(super) struct GapFiller<'a> {
    points: &'a [Point],
    unseen: UncoveredTime,
    period_ns: u64,
    marks: &'a CpuObservations,
    queues: VcpuQueues<'a>,
}

impl<'a> GapFiller<'a> {
    pub(super) fn new(
        points: &'a [Point],
        marks: &'a CpuObservations,
        queues: VcpuQueues<'a>,
        period_ns: u64,
    ) -> Self {
        Self {
            points,
            unseen: UncoveredTime::from_points(points, period_ns),
            period_ns,
            marks,
            queues,
        }
    }

    /// The gap after each point that has counters on both sides.
    pub(super) fn gap(&self, number: usize) -> Option<Gap> {
        let (a, b) = (self.points.get(number)?, self.points.get(number + 1)?);
        let waits = difference(a, b)?.waits;
        let unseen_ns = self.unseen.ns(&waits, self.period_ns);
        let mut gap = Gap::new(a, b, waits, unseen_ns);
        let unexplained = gap.on().saturating_sub(gap.polled);
        let is_gap = gap.length > self.period_ns.saturating_add(self.period_ns / 2);
        if is_gap && unexplained > self.period_ns && b.away().is_none() {
            let absent = self.marks.absent(a, b);
            gap.find_waiting((a, b), absent, unseen_ns, self.period_ns);
        }
        Some(gap)
    }

    /// Draws it all; `throttled`: gaps that a quota explains, by number.
    pub(super) fn draw(&self, track: &mut Track, throttled: &[(usize, u64)]) {
        let [first, ..] = self.points else {
            track.push_until(u64::MAX, What::Off(TimelineState::Unknown), None);
            return;
        };
        self.begin(track, first);
        let mut throttled = throttled.iter().peekable();
        for (number, pair) in self.points.windows(2).enumerate() {
            let [a, b] = pair else { continue };
            match self.gap(number) {
                Some(mut gap) => {
                    if let Some((_, ns)) = throttled.next_if(|(of, _)| *of == number) {
                        gap.throttle(*ns);
                    }
                    self.draw_gap(track, number, &gap);
                }
                None => self.draw_uncounted(track, a, b),
            }
        }
        if let Some(last) = self.points.last() {
            self.end(track, last);
        }
    }

    fn begin(&self, track: &mut Track, first: &Point) {
        let known = first.time.saturating_sub(self.reach(first, track.from));
        track.push_until(known, What::Off(TimelineState::Unknown), None);
        let (what, cpu) = found(first);
        track.push_until(first.time, what, cpu);
    }

    fn end(&self, track: &mut Track, last: &Point) {
        let (what, cpu) = found(last);
        track.push_until(last.time.saturating_add(self.reach(last, track.to)), what, cpu);
        track.push_until(u64::MAX, What::Off(TimelineState::Unknown), None);
    }

    /// How far the first or the last look at it speaks for the time before or after.
    fn reach(&self, point: &Point, edge: u64) -> u64 {
        let (from, to) = (edge.min(point.time), edge.max(point.time));
        match point.state() {
            Some(_) => self.period_ns,
            None if is_near(from, to, self.period_ns) => to - from,
            None => 0,
        }
    }

    fn draw_gap(&self, track: &mut Track, number: usize, gap: &Gap) {
        let (a, b) = (&self.points[number], &self.points[number + 1]);
        let poll_after = self.draw_poll(track, number, gap);
        let (before, rest) = self.on_before(a, b, gap, poll_after);
        let is_asleep = gap.halted > 0 || gap.waiting > 0;
        let waits_on = if is_asleep { b.cpu } else { a.cpu };
        if gap.off() == 0 && rest == 0 {
            let turn = if a.cpu == b.cpu { b.time } else { middle(a.time, b.time) };
            track.push_until(turn, What::OnCpu, Some(a.cpu));
        } else {
            let throttled = self.queues.throttled(waits_on, a.time, b.time);
            let off = gap.off() + rest;
            let begin = around(&throttled, a.time.saturating_add(before), off);
            track.push_until(begin, What::OnCpu, Some(a.cpu));
            let slept = gap.halted + gap.waiting;
            let queued = gap.throttled + gap.preempted;
            let queued_first = {
                let common = |from: u64| overlap(&throttled, from, from.saturating_add(queued));
                common(begin.saturating_add(slept)) < common(begin)
            };
            if queued_first {
                self.draw_queued(track, begin, gap, waits_on);
                draw_asleep(track, begin.saturating_add(queued), gap, asleep(a, b));
            } else {
                draw_asleep(track, begin, gap, asleep(a, b));
                self.draw_queued(track, begin.saturating_add(slept), gap, waits_on);
            }
            if let Some(away) = b.away() {
                let to = begin.saturating_add(off);
                match queue(b) {
                    Some(cpu) => self.queues.push_queued(track, to, away.state(), cpu),
                    None => track.push_until(to, What::Off(away.state()), None),
                }
            }
        }
        track.push_until(b.time, What::OnCpu, Some(b.cpu));
    }

    /// Its wait for a CPU, from `at` on, which may be before the track begins.
    fn draw_queued(&self, track: &mut Track, at: u64, gap: &Gap, cpu: CpuId) {
        let throttled = at.saturating_add(gap.throttled);
        track.push_until(throttled, What::Off(TimelineState::Throttled), Some(cpu));
        let preempted = throttled.saturating_add(gap.preempted);
        self.queues.push_queued(track, preempted, TimelineState::StealOutside, cpu);
    }

    /// How long it stayed on the CPU after `a`, and how long it is away in a wait that has not ended at `b`.
    fn on_before(&self, a: &Point, b: &Point, gap: &Gap, poll_after: Option<u64>) -> (u64, u64) {
        let on = gap.on();
        let before = match (a.away(), poll_after) {
            (Some(_), _) => 0,
            (None, Some(after)) => after.max(on.saturating_sub(self.period_ns)).min(on),
            (None, None) => {
                let polled = gap.polled.min(on);
                (on - polled) / 2 + polled
            }
        };
        if b.away().is_none() {
            return (before, 0);
        }
        let before = before.min((self.period_ns / 2).max(poll_after.unwrap_or(gap.polled)));
        (before, on - before)
    }

    /// Says where in a gap the host polled. When it polled at the gap's first sample: how long after it.
    fn draw_poll(&self, track: &mut Track, number: usize, gap: &Gap) -> Option<u64> {
        let (a, b) = (&self.points[number], &self.points[number + 1]);
        if gap.polled == 0 {
            return None;
        }
        if a.may_poll() {
            let poll = poll_around(self.points, number, gap.polled, self.period_ns);
            track.poll(poll, a.place);
            return Some(poll.1.saturating_sub(a.time));
        }
        let polled = gap.polled.min(gap.on());
        let from = match gap.off() {
            0 => middle(a.time, b.time).saturating_sub(polled / 2),
            _ if a.away().is_some() => b.time.saturating_sub(polled),
            _ => a.time.saturating_add((gap.on() - polled) / 2),
        };
        track.poll((from, from.saturating_add(polled)), None);
        None
    }

    /// Without counters others' samples are all there is.
    fn draw_uncounted(&self, track: &mut Track, a: &Point, b: &Point) {
        let half = self.period_ns / 2;
        let is_gap = b.time.saturating_sub(a.time) > self.period_ns.saturating_add(half);
        if is_gap {
            let asleep = match a.doing {
                Activity::Vmm { halted: true, .. } => TimelineState::Halt,
                _ if was_away(a, OffCpuReason::Halted) => TimelineState::Halt,
                _ if was_away(a, OffCpuReason::Paused) => TimelineState::Paused,
                _ if b.kicked => TimelineState::Paused,
                _ => TimelineState::StealVmmWaiting { reason: None },
            };
            let mut others = self.marks.some_between(a.cpu, a.time, b.time).peekable();
            if others.peek().is_some() {
                track.push_until(a.time.saturating_add(half), What::OnCpu, Some(a.cpu));
            }
            while let Some(mark) = others.next() {
                let (state, cpu) = match mark.is_idle() {
                    true => (asleep, None),
                    false => (TimelineState::StealOutside, Some(a.cpu)),
                };
                let last = b.time.saturating_sub(half).max(mark.time);
                let to = others.peek().map_or(last, |next| middle(mark.time, next.time));
                track.push_until(to, What::Off(state), cpu);
            }
        }
        if let Some(away) = b.away() {
            track.push_until(b.time, What::Off(away.state()), queue(b));
        }
        let turn = if a.cpu == b.cpu { b.time } else { middle(track.at().max(a.time), b.time) };
        track.push_until(turn, What::OnCpu, Some(a.cpu));
        track.push_until(b.time, What::OnCpu, Some(b.cpu));
    }
}

/// Its sleep, from `at` on, which may be before the track begins.
fn draw_asleep(track: &mut Track, at: u64, gap: &Gap, in_vmm: TimelineState) {
    let halted = at.saturating_add(gap.halted);
    track.push_until(halted, What::Off(TimelineState::Halt), None);
    track.push_until(halted.saturating_add(gap.waiting), What::Off(in_vmm), None);
}

/// Where time off the CPU begins, about at `begin`: a thread does not run while its queue is throttled.
fn around(throttled: &[(u64, u64)], begin: u64, off: u64) -> u64 {
    let (Some((first, _)), Some((_, last))) = (throttled.first(), throttled.last()) else {
        return begin;
    };
    let earliest = last.saturating_sub(off);
    if earliest <= *first { begin.clamp(earliest, *first) } else { begin }
}

/// The one poll that point `number` and perhaps points before it were taken in.
pub(super) fn poll_around(
    points: &[Point],
    number: usize,
    polled: u64,
    period_ns: u64,
) -> (u64, u64) {
    let last = points[number].time;
    let same_poll = |a: &Point, b: &Point| {
        a.may_poll()
            && b.time.saturating_sub(a.time) < polled
            && difference(a, b).is_some_and(|d| d.waits == WaitCounters::default())
    };
    let pairs = points[..=number].windows(2).rev();
    let first = pairs
        .take_while(|pair| same_poll(&pair[0], &pair[1]))
        .map(|pair| pair[0].time)
        .take_while(|time| last.saturating_sub(*time) < polled)
        .last()
        .unwrap_or(last);
    let slack = polled.saturating_sub(last - first);
    let before = (slack / 2).min(period_ns);
    (first.saturating_sub(before), last.saturating_add(slack - before))
}

/// What a point found it to do, and where.
fn found(point: &Point) -> (What, Option<CpuId>) {
    match point.away() {
        Some(away) => (What::Off(away.state()), queue(point)),
        None => (What::OnCpu, Some(point.cpu)),
    }
}

fn was_away(point: &Point, why: OffCpuReason) -> bool {
    point.away().is_some_and(|away| away.off_cpu == why)
}

/// The CPU that it was queued on at a point; `None`: asleep.
fn queue(point: &Point) -> Option<CpuId> {
    point.away().is_none_or(|away| away.off_cpu.is_queued()).then_some(point.cpu)
}

/// Its state during the VMM's sleep between two points.
fn asleep(a: &Point, b: &Point) -> TimelineState {
    let paused = b.kicked || [a, b].iter().any(|point| was_away(point, OffCpuReason::Paused));
    if paused {
        TimelineState::Paused
    } else {
        TimelineState::StealVmmWaiting { reason: reason(a, b) }
    }
}

/// The exit that it slept in between two points.
fn reason(a: &Point, b: &Point) -> Option<u32> {
    [a, b].into_iter().find_map(|point| match point.doing {
        Activity::Vmm { reason, halted: false } => Some(reason),
        Activity::OffCpu(OffCpu { off_cpu: OffCpuReason::Asleep, exit_reason }) => {
            Some(exit_reason)
        }
        _ => None,
    })
}
