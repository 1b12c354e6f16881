//! Windows of samples, one after the other, as overviews: on a thread of its own, so that keys are
//! answered while guests are queried.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use analysis::Resolver;
use analysis::overview::{Overview, overview};
use analysis::steal::TimelineInput;
use analysis::vcpu_timeline::{CodeLocation, VcpuTimelines, VcpuTimelinesBuilder};
use collector::{LiveSymbolizer, Roots, SessionPlan, Window, Windows};
use guest::Limits;
use model::{OffCpuSource, RecordConsumer, VmId};

use super::questions::Questions;

/// When more than this part of a guest's time has no names, it is queried for them again.
const UNNAMED_PART: f64 = 0.05;

/// What the screen shows of a window.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shown {
    pub(crate) hostname: String,
    pub(crate) n_cpus: usize,
    pub(crate) window_ns: u64,
    /// By VM and number.
    pub(crate) vcpus: Vec<Overview>,
    /// What the host's settings cost.
    pub(crate) notes: Vec<String>,
    /// What goes on besides.
    pub(crate) status: String,
    /// Whether guests have been queried, and have answered or not in time.
    pub(crate) has_queried: bool,
}

/// The windows to come.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) windows: Receiver<anyhow::Result<Shown>>,
    /// Asks for names at the next window.
    pub(crate) ask: Sender<()>,
}

/// Begins to sample; a window every `every`.
pub(crate) fn start(plan: &SessionPlan, every: Duration, limits: Limits) -> anyhow::Result<Data> {
    let session = Windows::begin(plan)?;
    let (send, windows) = channel();
    let (ask, requested) = channel();
    let roots = plan.roots.clone();
    let names = LiveSymbolizer::none(&roots.proc);
    let questions = Questions::default();
    let mut source =
        Source { session, names, asking: None, limits, questions, has_queried: false, roots };
    // It ends when nothing takes its windows any more, or with the program.
    std::thread::Builder::new().name("windows".to_owned()).spawn(move || {
        loop {
            let shown = match source.wait(&requested, every) {
                Ok(Some(names)) => source.window(names),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            if send.send(shown).is_err() {
                return;
            }
        }
    })?;
    Ok(Data { windows, ask })
}

struct Source {
    session: Windows,
    names: LiveSymbolizer,
    /// The guests that are being queried.
    asking: Option<(BTreeSet<VmId>, JoinHandle<Option<LiveSymbolizer>>)>,
    limits: Limits,
    questions: Questions,
    has_queried: bool,
    roots: Roots,
}

/// Why a window ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// It is long enough.
    InTime,
    /// The user wants names.
    ForNames,
}

impl Source {
    /// Waits for a window's end. `None`: nothing takes windows any more.
    fn wait(&mut self, requested: &Receiver<()>, every: Duration) -> anyhow::Result<Option<Ends>> {
        let end = Instant::now() + every;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match requested.recv_timeout(left.min(self.session.poll_interval())) {
                Ok(()) => return Ok(Some(Ends::ForNames)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if end <= Instant::now() => {
                    return Ok(Some(Ends::InTime));
                }
                // Lest the rings fill up in a long window.
                Err(RecvTimeoutError::Timeout) => self.session.poll()?,
            }
        }
    }

    fn window(&mut self, ends: Ends) -> anyhow::Result<Shown> {
        let window = self.session.next_window()?;
        self.take_names();
        let (shown, unnamed) = self.look(&window);
        let vms: BTreeSet<VmId> = match ends {
            Ends::ForNames => window.processes.iter().map(|(vm, _)| *vm).collect(),
            Ends::InTime => self.questions.due(unnamed.into_iter(), Instant::now()),
        };
        if self.asking.is_none() && !vms.is_empty() {
            self.ask(window, vms);
        }
        let status = if self.asking.is_some() { "asking the guests" } else { "" };
        Ok(Shown { status: status.to_owned(), has_queried: self.has_queried, ..shown })
    }

    /// What a window shows, and the VMs of whose guests' time too much has no names.
    fn look(&mut self, window: &Window) -> (Shown, Vec<VmId>) {
        let tables = self.names.tables_for(window);
        let resolver = Resolver::new(tables);
        let mut builder =
            VcpuTimelinesBuilder::new(&resolver, &window.header, OffCpuSource::Samples);
        window.samples.iter().for_each(|sample| builder.push_sample(sample));
        window.switches.iter().for_each(|switch| builder.push_switch(switch));
        let axis = builder.finish();
        let shown = Shown {
            hostname: window.header.hostname.clone(),
            n_cpus: window.header.cpus.len(),
            window_ns: window.header.end.since(window.header.start),
            vcpus: overview(&TimelineInput { axis: &axis, tables, header: &window.header }),
            notes: window.header.notes.iter().map(|note| note.text.clone()).collect(),
            status: String::new(),
            has_queried: false,
        };
        (shown, unnamed(&axis, window))
    }

    fn ask(&mut self, window: Window, vms: BTreeSet<VmId>) {
        let (limits, roots) = (self.limits.clone(), self.roots.clone());
        let (requested, answers) = (vms.clone(), self.names.answers().clone());
        self.questions.requested(&vms, Instant::now());
        let asking = std::thread::Builder::new().name("names".to_owned()).spawn(move || {
            let store = symbols::Store::default_path();
            LiveSymbolizer::ask(&window, &requested, answers, &limits, &store, &roots).ok()
        });
        self.asking = asking.ok().map(|asking| (vms, asking));
    }

    /// Takes the names that have come in.
    fn take_names(&mut self) {
        let Some((vms, asking)) = self.asking.take_if(|(_, asking)| asking.is_finished()) else {
            return;
        };
        self.has_queried = true;
        if let Ok(Some(names)) = asking.join() {
            self.names = names;
            let answers = self.names.answers();
            self.questions.answered(&vms, |vm| answers.has_answered(vm));
        } else {
            self.questions.answered(&vms, |_| false);
        }
    }
}

/// VMs of whose guests' time too much has no names.
fn unnamed(axis: &VcpuTimelines, window: &Window) -> Vec<VmId> {
    let has_no_name = |place: &CodeLocation| place.function.starts_with('[');
    let mut times: BTreeMap<VmId, (u64, u64)> = BTreeMap::new();
    for timeline in &axis.timelines {
        let Some(row) = window.vcpus.get(timeline.vcpu.index()) else { continue };
        let (all, unnamed) = times.entry(row.vm).or_default();
        for segment in &timeline.segments {
            let Some(place) = segment.place else { continue };
            *all += segment.length_ns();
            *unnamed += if has_no_name(axis.place(place)) { segment.length_ns() } else { 0 };
        }
    }
    let is_much = |(all, unnamed): &(u64, u64)| UNNAMED_PART * (*all as f64) < *unnamed as f64;
    times.into_iter().filter(|(_, time)| is_much(time)).map(|(vm, _)| vm).collect()
}

impl Data {
    /// The newest window since the last call.
    pub(crate) fn newest(&self) -> anyhow::Result<Option<Shown>> {
        let mut newest = None;
        loop {
            match self.windows.try_recv() {
                Ok(shown) => newest = Some(shown?),
                Err(TryRecvError::Empty) => return Ok(newest),
                Err(TryRecvError::Disconnected) => anyhow::bail!("sampling ended unexpectedly"),
            }
        }
    }
}
