//! Samples and switches to an axis.

use std::collections::BTreeMap;

use model::{
    CpuId, Header, HostMode, HostNs, OffCpuSource, Pid, RecordConsumer, Sample, Switch,
    SwitchEvent, Throttling, Tid, VcpuId, VcpuSample, VcpuState, VmId,
};
use rustc_hash::FxHashMap;

use super::by_samples::GapFiller;
use super::gap::{self, difference};
use super::marks::{CpuObservation, CpuObservations};
use super::places::Places;
use super::problems::{Problem, Problems};
use super::queues::Queues;
use super::throttle::{self, Wait};
use super::track::{Activity, Departure, OffCpu, Point, Track};
use super::{Occupancy, Occupant, SampleTimes, VcpuTimelines, by_switches, cover, occupancy};
use crate::{Resolver, exit_reason};
use resolve::Level;

/// Builds an axis from samples and switches as they come. Memory: at most 100 bytes for a sample.
#[derive(Debug)]
pub struct VcpuTimelinesBuilder<'r> {
    resolver: &'r Resolver<'r>,
    header: &'r Header,
    off_cpu_source: OffCpuSource,
    places: Places<'r>,
    vcpu_of_thread: FxHashMap<Tid, VcpuId>,
    /// By vCPU.
    points: Vec<Vec<Point>>,
    /// By vCPU.
    switches: Vec<Vec<Switch>>,
    /// By vCPU: where the guest stood when its vCPU left a CPU.
    departures: Vec<Vec<Departure>>,
    marks: CpuObservations,
    problems: Problems,
}

impl<'r> VcpuTimelinesBuilder<'r> {
    /// Ready for samples and switches; `off_cpu_source` says how to find the edges of gaps, whatever was recorded.
    #[must_use]
    pub fn new(
        resolver: &'r Resolver<'r>,
        header: &'r Header,
        off_cpu_source: OffCpuSource,
    ) -> Self {
        let vcpus = &resolver.tables().vcpus;
        let threads = vcpus.iter().enumerate();
        Self {
            resolver,
            header,
            off_cpu_source,
            places: Places::new(resolver),
            vcpu_of_thread: threads.map(|(n, v)| (v.tid, VcpuId::from_index(n))).collect(),
            points: vec![Vec::new(); vcpus.len()],
            switches: vec![Vec::new(); vcpus.len()],
            departures: vec![Vec::new(); vcpus.len()],
            marks: CpuObservations::default(),
            problems: Problems::default(),
        }
    }

    /// Places of guests' code have callers, where samples have them; before anything is pushed.
    #[must_use]
    pub fn with_callers(mut self) -> Self {
        self.places.distinguish_callers();
        self
    }

    /// The axis of what was pushed.
    #[must_use]
    pub fn finish(mut self) -> VcpuTimelines {
        let period_ns = self.header.period_ns.max(1);
        if self.header.period_ns == 0 {
            self.problems.count(Problem::NoPeriod);
        }
        self.sort();
        let mut tracks = self.new_tracks();
        match self.off_cpu_source {
            OffCpuSource::Samples => self.draw_by_samples(&mut tracks, period_ns),
            OffCpuSource::Switches => self.draw_by_switches(&mut tracks, period_ns),
        }
        let draw = |(row, track): (usize, &Track)| {
            cover::timeline(track, &self.points[row], &self.departures[row], period_ns)
        };
        let timelines: Vec<_> = tracks.iter().enumerate().map(draw).collect();
        for timeline in timelines.iter().filter(|timeline| !cover::is_whole(timeline)) {
            debug_assert!(false, "vCPU {} adds up", timeline.vcpu);
            self.problems.count(Problem::NotWhole);
        }
        let cpus = self.occupancies(&tracks, period_ns);
        self.problems.add(Problem::CallersLeftOut, self.places.callers_left_out);
        let (places, same_code) = self.places.finish();
        VcpuTimelines {
            timelines,
            cpus,
            places,
            same_code,
            samples: SampleTimes::from_points(&self.points),
            off_cpu_source: self.off_cpu_source,
            problems: self.problems.finish(),
        }
    }

    /// When a vCPU's timeline begins and ends; `None`: it is in no table.
    fn span(&self, vcpu: VcpuId) -> Option<(HostNs, HostNs)> {
        self.resolver.tables().vcpu_span(vcpu, self.header)
    }

    fn push_guest(&mut self, sample: &Sample, vcpu: &VcpuSample) -> Occupant {
        let (level, place) = self.places.locate(sample, vcpu);
        let doing = match level {
            Level::GuestKernel => Activity::GuestKernel,
            Level::GuestUser => Activity::GuestUser,
            _ => Activity::GuestUnknown,
        };
        self.push_point(sample, vcpu, Point { doing, place: Some(place), ..bare(sample, vcpu) })
    }

    fn push_vmm(&mut self, sample: &Sample, vcpu: &VcpuSample) -> Occupant {
        let (_, place) = self.places.locate(sample, vcpu);
        let reason = vcpu.exit_reason;
        let halted = sample.host_mode == HostMode::Kernel
            && exit_reason::is_halt(self.header.vendor, reason);
        let doing = Activity::Vmm { reason, halted };
        self.push_point(sample, vcpu, Point { doing, place: Some(place), ..bare(sample, vcpu) })
    }

    fn push_point(&mut self, sample: &Sample, vcpu: &VcpuSample, point: Point) -> Occupant {
        match self.span(vcpu.vcpu) {
            None => {
                self.problems.count(Problem::UnknownVcpu);
                return self.thread(sample);
            }
            Some((from, to)) if sample.time < from || to < sample.time => {
                self.problems.count(Problem::SampledOutside);
            }
            Some(_) => self.points[vcpu.vcpu.index()].push(point),
        }
        Occupant::Vcpu(vcpu.vcpu)
    }

    fn thread(&self, sample: &Sample) -> Occupant {
        occupant(&self.vcpu_of_thread, sample.pid, sample.tid)
    }

    fn sort(&mut self) {
        self.marks.sort();
        for points in &mut self.points {
            let samples = points.iter().filter(|point| point.state().is_some());
            if !samples.is_sorted_by_key(|point| point.time) {
                self.problems.count(Problem::SamplesOutOfOrder);
            }
            points.sort_by_key(|point| point.time);
            for pair in points.windows(2) {
                if difference(&pair[0], &pair[1]).is_some_and(|d| d.backwards) {
                    self.problems.count(Problem::WaitsBackwards);
                }
            }
            gap::count_late_halts(points, self.header.period_ns);
        }
        for switches in &mut self.switches {
            switches.sort_by_key(|switch| switch.time);
        }
        for departures in &mut self.departures {
            departures.sort_by_key(|departure| departure.time);
        }
    }

    fn new_tracks(&self) -> Vec<Track> {
        let rows = (0..self.points.len()).map(VcpuId::from_index);
        let spans = rows.filter_map(|vcpu| Some((vcpu, self.span(vcpu)?)));
        spans.map(|(vcpu, (from, to))| Track::new(vcpu, from, to)).collect()
    }

    fn draw_by_samples(&self, tracks: &mut [Track], period_ns: u64) {
        let queues = Queues::new(self.resolver.tables());
        let drawer = |row: usize| {
            let of_vcpu = queues.of(VcpuId::from_index(row));
            GapFiller::new(&self.points[row], &self.marks, of_vcpu, period_ns)
        };
        let mut throttled: Vec<Vec<(usize, u64)>> = vec![Vec::new(); tracks.len()];
        let tables = self.resolver.tables();
        let mut by_vm = BTreeMap::<VmId, (Vec<&Throttling>, Vec<usize>)>::new();
        for reading in &tables.throttling {
            by_vm.entry(reading.vm).or_default().0.push(reading);
        }
        for row in 0..tracks.len() {
            if let Some((_, rows)) = by_vm.get_mut(&tables.vcpus[row].vm) {
                rows.push(row);
            }
        }
        for (readings, rows) in by_vm.values().filter(|(readings, _)| 1 < readings.len()) {
            for (wait, ns) in self.throttled_waits(readings, rows, &drawer) {
                throttled[wait.track].push((wait.gap, ns));
            }
        }
        for (row, track) in tracks.iter_mut().enumerate() {
            drawer(row).draw(track, &throttled[row]);
        }
    }

    fn throttled_waits<'s>(
        &self,
        readings: &[&Throttling],
        rows: &[usize],
        drawer: &impl Fn(usize) -> GapFiller<'s>,
    ) -> Vec<(Wait, u64)> {
        let mut waits = Vec::new();
        for &row in rows {
            let drawer = drawer(row);
            for (number, pair) in self.points[row].windows(2).enumerate() {
                let Some(gap) = drawer.gap(number) else { continue };
                let (from, to) = (pair[0].time, pair[1].time);
                let (preempted, waiting) = (gap.preempted, gap.waiting);
                waits.push(Wait { from, to, track: row, gap: number, preempted, waiting });
            }
        }
        waits.retain(|wait| 0 < wait.preempted + wait.waiting);
        throttle::share(readings.iter().copied(), waits)
    }

    fn draw_by_switches(&mut self, tracks: &mut [Track], period_ns: u64) {
        let queues = Queues::new(self.resolver.tables());
        for (row, track) in tracks.iter_mut().enumerate() {
            let (switches, points) = (&self.switches[row], &self.points[row]);
            let queues = queues.of(VcpuId::from_index(row));
            by_switches::draw(track, switches, points, queues, period_ns, &mut self.problems);
        }
        for switch in self.switches.iter().flatten() {
            let (time, pid, tid) = match switch.event {
                SwitchEvent::Out { pid, tid, .. } => (switch.time.0, pid, tid),
                SwitchEvent::In { pid, tid } => (switch.time.0.saturating_sub(1), pid, tid),
                SwitchEvent::Wake { .. } | SwitchEvent::Seen { .. } => continue,
            };
            let who = occupant(&self.vcpu_of_thread, pid, tid);
            self.marks.add(switch.cpu, CpuObservation { time, who });
        }
        self.marks.sort();
    }

    fn occupancies(&self, tracks: &[Track], period_ns: u64) -> Vec<Occupancy> {
        let (from, to) = (self.header.start.0, self.header.end.0);
        let exact = match self.off_cpu_source {
            OffCpuSource::Samples => FxHashMap::default(),
            OffCpuSource::Switches => occupancy::on_cpu(tracks),
        };
        let spans = |cpu: CpuId, marks: &[CpuObservation]| match exact.get(&cpu) {
            Some(exact) => occupancy::by_switches(from, to, marks, exact, period_ns),
            None => occupancy::by_marks(from, to, marks, period_ns),
        };
        let by_cpu = self.marks.by_cpu().into_iter();
        by_cpu.map(|(cpu, marks)| Occupancy::new(cpu, spans(cpu, marks))).collect()
    }
}

impl RecordConsumer for VcpuTimelinesBuilder<'_> {
    fn push_sample(&mut self, sample: &Sample) {
        let who = match &sample.vcpu {
            VcpuState::Guest(vcpu) => self.push_guest(sample, vcpu),
            VcpuState::Vmm(vcpu) => self.push_vmm(sample, vcpu),
            VcpuState::None | VcpuState::Unknown => self.thread(sample),
        };
        self.marks.add(sample.cpu, CpuObservation { time: sample.time.0, who });
    }

    fn push_switch(&mut self, switch: &Switch) {
        let Some((from, to)) = self.span(switch.vcpu) else {
            self.problems.count(Problem::UnknownVcpu);
            return;
        };
        let (start, end) = (self.header.start, self.header.end);
        if end < switch.time {
            return;
        }
        // Tracing begins before sampling: what happened before says what the vCPU did at the start.
        if start <= switch.time && (switch.time < from || to < switch.time) {
            self.problems.count(Problem::SwitchedOutside);
            return;
        }
        if let SwitchEvent::Seen { off_cpu, exit_reason, waits } = switch.event {
            let doing = off_cpu.map_or(Activity::Running, |off_cpu| {
                Activity::OffCpu(OffCpu { off_cpu, exit_reason })
            });
            let (time, cpu) = (switch.time.0, switch.cpu);
            let point = Point { time, cpu, doing, waits, kicked: false, place: None };
            self.points[switch.vcpu.index()].push(point);
        } else if self.off_cpu_source == OffCpuSource::Samples {
            return;
        }
        if let Some(sample) = switch.guest_sample()
            && let VcpuState::Guest(guest) = &sample.vcpu
        {
            let (_, place) = self.places.locate(&sample, guest);
            let departure = Departure { time: switch.time.0, place };
            self.departures[switch.vcpu.index()].push(departure);
        }
        self.switches[switch.vcpu.index()].push(*switch);
    }
}

fn occupant(vcpu_of_thread: &FxHashMap<Tid, VcpuId>, pid: Pid, tid: Tid) -> Occupant {
    match (tid.0, vcpu_of_thread.get(&tid)) {
        (0, _) => Occupant::Idle,
        (_, Some(vcpu)) => Occupant::Vcpu(*vcpu),
        (_, None) => Occupant::Thread(pid, tid),
    }
}

fn bare(sample: &Sample, vcpu: &VcpuSample) -> Point {
    let (time, cpu) = (sample.time.0, sample.cpu);
    let VcpuSample { waits, kicked, .. } = *vcpu;
    Point { time, cpu, doing: Activity::Running, waits, kicked, place: None }
}
