//! Tracks to timelines: on-CPU stretches divided among the samples in them.
//!
//! ```text
//!  samples     k        k               u       u
//!  on-CPU   [---------------------------------------]
//!  covered  [kkkkkkkkkkkkkkkkkk|......|uuuuuuuuuuuuu]     k, u: guest kernel, user; .: not sampled
//!                       <period>      <period>
//! ```
//!
//! A sample stands for the time up to half way to its neighbour, at most one period to each side; one that was taken
//! while the host polled for the end of a halt stands for that poll.

use model::{CpuId, HostNs, TimelineState};

use super::track::{Departure, Point, Poll, Stretch, Track, What};
use super::{CodeLocationId, Segment, VcpuTimeline};

/// The timeline of a track; `points` and `departures` are in time order.
pub(super) fn timeline(
    track: &Track,
    points: &[Point],
    departures: &[Departure],
    period_ns: u64,
) -> VcpuTimeline {
    let mut left = Left { departures, place: None };
    let mut cover = Cover { segments: Vec::new(), track, polls: &track.polls };
    let mut rest = points;
    for stretch in &track.stretches {
        let before = rest.partition_point(|point| point.time < stretch.from);
        let within = rest.partition_point(|point| point.time < stretch.to);
        let inside = rest.get(before..within).unwrap_or_default();
        rest = rest.get(within..).unwrap_or_default();
        match stretch.what {
            What::OnCpu => {
                left.place = None;
                cover.on_cpu(stretch, inside, period_ns);
            }
            What::Off(state) => {
                let place = left.place(stretch.from, state);
                cover.push(stretch.from, stretch.to, state, stretch.cpu, place);
            }
        }
    }
    let timeline = VcpuTimeline {
        vcpu: track.vcpu,
        from: HostNs(track.from),
        to: HostNs(track.to),
        segments: cover.segments,
    };
    debug_assert!(is_whole(&timeline), "segments touch and add up to the timeline's length");
    timeline
}

/// Where the guest stands while its vCPU is away.
struct Left<'d> {
    /// Not yet passed.
    departures: &'d [Departure],
    place: Option<CodeLocationId>,
}

impl Left<'_> {
    /// In a stretch off the CPU that begins at `from`; queried in time order. A wait that follows a sleep counts from
    /// the sleep's begin, unless the sleep was a halt.
    fn place(&mut self, from: u64, state: TimelineState) -> Option<CodeLocationId> {
        let passed = self.departures.partition_point(|departure| departure.time < from);
        self.departures = self.departures.get(passed..).unwrap_or_default();
        match self.departures {
            [departure, ..] if departure.time == from => self.place = Some(departure.place),
            _ if matches!(
                state,
                TimelineState::Halt | TimelineState::Paused | TimelineState::Unknown
            ) =>
            {
                self.place = None
            }
            _ => {}
        }
        self.place
    }
}

/// Whether the segments touch from the timeline's first instant to its last.
pub(super) fn is_whole(timeline: &VcpuTimeline) -> bool {
    let mut at = timeline.from;
    for segment in &timeline.segments {
        if segment.from != at || segment.to <= segment.from {
            return false;
        }
        at = segment.to;
    }
    at == timeline.to
}

#[derive(Debug)]
struct Cover<'t> {
    segments: Vec<Segment>,
    track: &'t Track,
    /// Not yet passed.
    polls: &'t [Poll],
}

impl Cover<'_> {
    fn on_cpu(&mut self, stretch: &Stretch, points: &[Point], period_ns: u64) {
        // One that was taken in a poll speaks for the poll alone.
        let track = self.track;
        let polls = |point: &Point| point.may_poll() && track.polls_at(point.time);
        let speaking = || points.iter().filter(|point| !polls(point));
        let samples = || speaking().filter_map(|point| Some((point, point.state()?)));
        let mut at = stretch.from;
        let mut next = samples().skip(1);
        for (point, state) in samples() {
            let next = next.next().map_or(stretch.to, |(next, _)| middle(point.time, next.time));
            let from = at.max(point.time.saturating_sub(period_ns));
            let to = next.min(point.time.saturating_add(period_ns));
            self.push_on(at, from, TimelineState::NotSampled, stretch.cpu, None);
            self.push_on(from, to, state, Some(point.cpu), point.place);
            at = to.max(from);
        }
        self.push_on(at, stretch.to, TimelineState::NotSampled, stretch.cpu, None);
    }

    /// On a CPU: polling where the host polled, else `state`.
    fn push_on(
        &mut self,
        mut from: u64,
        to: u64,
        state: TimelineState,
        cpu: Option<CpuId>,
        place: Option<CodeLocationId>,
    ) {
        while let [poll, later @ ..] = self.polls {
            if to <= poll.from {
                break;
            }
            self.push(from, poll.from.max(from), state, cpu, place);
            let end = poll.to.min(to).max(from);
            self.push(from.max(poll.from), end, TimelineState::HaltPolling, cpu, poll.place);
            from = end;
            if to < poll.to {
                break;
            }
            self.polls = later;
        }
        self.push(from, to, state, cpu, place);
    }

    fn push(
        &mut self,
        from: u64,
        to: u64,
        state: TimelineState,
        cpu: Option<CpuId>,
        place: Option<CodeLocationId>,
    ) {
        if to <= from {
            return;
        }
        let (from, to) = (HostNs(from), HostNs(to));
        match self.segments.last_mut() {
            Some(last) if last.state == state && last.cpu == cpu && last.place == place => {
                last.to = to;
            }
            _ => self.segments.push(Segment { from, to, state, cpu, place }),
        }
    }
}

pub(super) fn middle(a: u64, b: u64) -> u64 {
    a + b.saturating_sub(a) / 2
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_wait_is_where_the_guest_left_off() {
        let at = |time, place| Departure { time, place: CodeLocationId(place) };
        let departures = [at(10, 1), at(30, 2), at(50, 3)];
        let mut left = Left { departures: &departures, place: None };
        assert_eq!(left.place(5, TimelineState::StealOutside), None, "before the first");
        assert_eq!(
            left.place(10, TimelineState::StealVmmWaiting { reason: None }),
            Some(CodeLocationId(1))
        );
        assert_eq!(
            left.place(20, TimelineState::StealOutside),
            Some(CodeLocationId(1)),
            "woken, not yet back"
        );
        assert_eq!(left.place(30, TimelineState::StealOutside), Some(CodeLocationId(2)));
        assert_eq!(left.place(40, TimelineState::Halt), None, "a halt hides it");
        assert_eq!(left.place(45, TimelineState::StealOutside), None);
        assert_eq!(left.place(60, TimelineState::Throttled), None, "an event was lost");
    }
}
