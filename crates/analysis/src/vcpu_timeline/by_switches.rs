//! A vCPU's track from the scheduler's switches of its thread: edges to the nanosecond.
//!
//! ```text
//!              Out(Runnable | Throttled)
//!   OnCpu -------------------------------> Queued ---In---> OnCpu
//!     \-- Out(Halted | Paused | Asleep) --> Asleep ---Wake---^
//! ```
//!
//! What can't follow (Out after Out, In after In) shows that events were lost: the stretch between is unknown.

use model::{CpuId, OffCpuReason, Switch, SwitchEvent, TimelineState};

use super::by_samples::poll_around;
use super::gap::difference;
use super::problems::{Problem, Problems};
use super::queues::VcpuQueues;
use super::track::{Point, Track, What, is_near};

/// What a vCPU's thread is in between two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    /// Before the first event.
    Untold,
    OnCpu(CpuId),
    Queued(TimelineState, CpuId),
    Asleep(TimelineState),
    /// After events that contradict each other.
    Lost,
}

impl Status {
    fn from_switch(off_cpu: OffCpuReason, exit_reason: u32, cpu: CpuId) -> Self {
        let state = off_cpu.state(exit_reason);
        if off_cpu.is_queued() { Self::Queued(state, cpu) } else { Self::Asleep(state) }
    }

    fn what(self) -> (What, Option<CpuId>) {
        match self {
            Self::Untold | Self::Lost => (What::Off(TimelineState::Unknown), None),
            Self::OnCpu(cpu) => (What::OnCpu, Some(cpu)),
            Self::Queued(state, cpu) => (What::Off(state), Some(cpu)),
            Self::Asleep(state) => (What::Off(state), None),
        }
    }
}

/// Draws one vCPU's track.
#[derive(Debug)]
struct GapFiller<'a> {
    track: &'a mut Track,
    status: Status,
    since: u64,
    queues: VcpuQueues<'a>,
    period_ns: u64,
    problems: &'a mut Problems,
}

/// Draws a track from a vCPU's switches, in time order; its samples help where switches are missing.
pub(super) fn draw(
    track: &mut Track,
    switches: &[Switch],
    points: &[Point],
    queues: VcpuQueues<'_>,
    period_ns: u64,
    problems: &mut Problems,
) {
    let since = track.from;
    let mut drawer =
        GapFiller { track, status: Status::Untold, since, queues, period_ns, problems };
    let mut samples = points.iter().filter(|point| point.state().is_some()).peekable();
    for switch in switches {
        while let Some(sample) = samples.next_if(|sample| sample.time < switch.time.0) {
            drawer.sampled(sample);
        }
        drawer.switched(switch);
    }
    samples.for_each(|sample| drawer.sampled(sample));
    drawer.until(u64::MAX, drawer.status);
    draw_polls(track, switches, points, period_ns);
}

impl GapFiller<'_> {
    fn switched(&mut self, switch: &Switch) {
        let (time, cpu) = (switch.time.0, switch.cpu);
        match switch.event {
            SwitchEvent::Out { off_cpu, exit_reason, .. } => {
                let was = match self.status {
                    Status::Untold => Status::OnCpu(cpu),
                    Status::OnCpu(on) if on == cpu => self.status,
                    _ => self.lost(),
                };
                self.until(time, was);
                self.become_status(time, Status::from_switch(off_cpu, exit_reason, cpu));
            }
            SwitchEvent::In { .. } => {
                let was = match self.status {
                    Status::OnCpu(_) => self.lost(),
                    other => other,
                };
                self.until(time, was);
                self.become_status(time, Status::OnCpu(cpu));
            }
            SwitchEvent::Wake { throttled } => {
                // Threads that are still awake are woken too.
                if matches!(self.status, Status::Asleep(_) | Status::Untold) {
                    let state = if throttled {
                        TimelineState::Throttled
                    } else {
                        TimelineState::StealOutside
                    };
                    self.until(time, self.status);
                    self.become_status(time, Status::Queued(state, cpu));
                }
            }
            SwitchEvent::Seen { off_cpu, exit_reason, .. } => {
                let seen = off_cpu.map_or(Status::OnCpu(cpu), |off_cpu| {
                    Status::from_switch(off_cpu, exit_reason, cpu)
                });
                self.seen(time, seen);
            }
        }
    }

    /// What it was found in, perhaps a moment before the event that came first.
    fn seen(&mut self, time: u64, seen: Status) {
        let is_on = |status| matches!(status, Status::OnCpu(_));
        match self.status {
            Status::Untold => {
                let near = is_near(self.track.from, time, self.period_ns);
                self.until(time, if near { seen } else { Status::Untold });
                self.become_status(time, seen);
            }
            Status::Lost => {
                self.until(time, Status::Lost);
                self.become_status(time, seen);
            }
            status if is_on(status) == is_on(seen) => {}
            _ if time.saturating_sub(self.since) < self.period_ns => {}
            _ => {
                let lost = self.lost();
                self.until(time, lost);
                self.become_status(time, seen);
            }
        }
    }

    /// It was on this CPU, whatever the switches say.
    fn sampled(&mut self, sample: &Point) {
        match self.status {
            Status::OnCpu(cpu) if cpu == sample.cpu => self.until(sample.time, self.status),
            Status::Untold | Status::Lost => {
                self.until(sample.time.saturating_sub(self.period_ns), self.status);
                self.become_status(sample.time, Status::OnCpu(sample.cpu));
            }
            _ if sample.time.saturating_sub(self.since) < self.period_ns / 16 => {
                self.problems.count(Problem::SampledAway);
            }
            _ => {
                let lost = self.lost();
                self.until(sample.time, lost);
                self.become_status(sample.time, Status::OnCpu(sample.cpu));
            }
        }
    }

    fn lost(&mut self) -> Status {
        self.problems.count(Problem::SwitchesLost);
        Status::Lost
    }

    fn until(&mut self, time: u64, status: Status) {
        if let Status::Queued(state, cpu) = status {
            return self.queues.push_queued(self.track, time, state, cpu);
        }
        let (what, cpu) = status.what();
        self.track.push_until(time, what, cpu);
    }

    fn become_status(&mut self, time: u64, status: Status) {
        (self.status, self.since) = (status, time);
    }
}

/// Failed polls end where the thread goes to sleep, successful ones anywhere on the CPU.
fn draw_polls(track: &mut Track, switches: &[Switch], points: &[Point], period_ns: u64) {
    let is_halt = |switch: &Switch| {
        matches!(switch.event, SwitchEvent::Out { off_cpu: OffCpuReason::Halted, .. })
    };
    let halts: Vec<u64> = switches.iter().filter(|s| is_halt(s)).map(|s| s.time.0).collect();
    let counted: Vec<usize> =
        (0..points.len()).filter(|number| points[*number].waits.is_some()).collect();
    for pair in counted.windows(2) {
        let [number, next] = [pair[0], pair[1]];
        let (a, b) = (&points[number], &points[next]);
        let polled = difference(a, b).map_or(0, |d| d.waits.polled_ns);
        let polled = polled.min(b.time.saturating_sub(a.time));
        if polled == 0 {
            continue;
        }
        let begin = halts.partition_point(|time| *time <= a.time);
        let end = halts.partition_point(|time| *time <= b.time);
        let halts = halts.get(begin..end).unwrap_or_default();
        if halts.is_empty() {
            match a.may_poll() {
                true => track.poll(poll_around(points, number, polled, period_ns), a.place),
                false => track.poll(longest_middle(track, a.time, b.time, polled), None),
            }
            continue;
        }
        let mut left = polled;
        for (number, halt) in (0_u64..).zip(halts) {
            let share = left.div_ceil((halts.len() as u64).saturating_sub(number).max(1));
            let on = track.within(halt.saturating_sub(1), *halt).last();
            let on = on.filter(|stretch| stretch.what == What::OnCpu && stretch.to == *halt);
            let from = on.map_or(*halt, |on| on.from.max(halt.saturating_sub(share)));
            track.poll((from, *halt), a.place.filter(|_| a.may_poll() && number == 0));
            left -= *halt - from;
        }
    }
}

/// The middle of the longest time on a CPU between two instants.
fn longest_middle(track: &Track, from: u64, to: u64, length: u64) -> (u64, u64) {
    let on = track.within(from, to).iter().filter(|stretch| stretch.what == What::OnCpu);
    let clipped = on.map(|stretch| (stretch.from.max(from), stretch.to.min(to)));
    let longest = clipped.max_by_key(|(from, to)| to.saturating_sub(*from));
    let (from, to) = longest.unwrap_or((from, from));
    let length = length.min(to.saturating_sub(from));
    let begin = from + (to.saturating_sub(from) - length) / 2;
    (begin, begin + length)
}
