//! Windows of samples, one after the other, as overviews: on a thread of its own, so that keys are
//! answered while guests are asked.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use analysis::Resolver;
use analysis::overview::{Overview, overview};
use analysis::steal::{Evidence, SampleTimes};
use analysis::vcpu_timeline::{Place, VcpuTimelinesBuilder};
use collector::{Names, SessionPlan, Window, Windows};
use guest::Limits;
use model::OffCpuSource;

/// Names are asked for by themselves at most this often.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// When more than this part of the guests' time has no names, they are asked for again.
const UNNAMED_PART: f64 = 0.05;

/// What the screen shows of a window.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shown {
    pub(crate) hostname: String,
    pub(crate) n_cpus: usize,
    pub(crate) window_ns: u64,
    /// By VM and number.
    pub(crate) vcpus: Vec<Overview>,
    /// What goes on besides.
    pub(crate) status: String,
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
    let (ask, asked) = channel();
    let proc = plan.roots.proc.clone();
    let names = Names::none(&proc);
    let mut source = Source { session, names, asking: None, limits, asked_at: None, proc };
    // It ends when nobody takes its windows any more, or with the program.
    std::thread::Builder::new().name("windows".to_owned()).spawn(move || {
        loop {
            let shown = match source.wait(&asked, every) {
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
    names: Names,
    asking: Option<JoinHandle<Option<Names>>>,
    limits: Limits,
    asked_at: Option<Instant>,
    proc: PathBuf,
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
    /// Waits for a window's end. `None`: nobody takes windows any more.
    fn wait(&mut self, asked: &Receiver<()>, every: Duration) -> anyhow::Result<Option<Ends>> {
        let end = Instant::now() + every;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match asked.recv_timeout(left.min(self.session.poll_interval())) {
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
        let due = self.asked_at.is_none_or(|at| ASK_AGAIN <= at.elapsed());
        if self.asking.is_none() && (ends == Ends::ForNames || due && UNNAMED_PART < unnamed) {
            self.ask(window);
        }
        let status = if self.asking.is_some() { "asking the guests" } else { "" };
        Ok(Shown { status: status.to_owned(), ..shown })
    }

    /// What a window shows, and which part of the guests' time has no names.
    fn look(&mut self, window: &Window) -> (Shown, f64) {
        let tables = self.names.cover(window);
        let resolver = Resolver::new(tables);
        let mut builder =
            VcpuTimelinesBuilder::new(&resolver, &window.header, OffCpuSource::Samples);
        window.samples.iter().for_each(|sample| builder.push_sample(sample));
        window.switches.iter().for_each(|switch| builder.push_switch(switch));
        let axis = builder.finish();
        let has_no_name = |place: &Place| place.function.starts_with('[');
        let (mut all, mut unnamed) = (0_u64, 0_u64);
        for segment in axis.timelines.iter().flat_map(|timeline| &timeline.segments) {
            let Some(place) = segment.place else { continue };
            all += segment.length_ns();
            unnamed += if has_no_name(axis.place(place)) { segment.length_ns() } else { 0 };
        }
        let shown = Shown {
            hostname: window.header.hostname.clone(),
            n_cpus: window.header.cpus.len(),
            window_ns: window.header.end.since(window.header.start),
            vcpus: overview(&Evidence {
                axis: &axis,
                tables,
                header: &window.header,
                samples: &SampleTimes::default(),
                edges: OffCpuSource::Samples,
            }),
            status: String::new(),
        };
        (shown, unnamed as f64 / all.max(1) as f64)
    }

    fn ask(&mut self, window: Window) {
        let (limits, proc) = (self.limits.clone(), self.proc.clone());
        self.asked_at = Some(Instant::now());
        let asking = std::thread::Builder::new().name("names".to_owned()).spawn(move || {
            Names::ask(&window, &limits, &symbols::Store::default_path(), &proc).ok()
        });
        self.asking = asking.ok();
    }

    /// Takes the names that have come in.
    fn take_names(&mut self) {
        if let Some(asking) = self.asking.take_if(|asking| asking.is_finished())
            && let Ok(Some(names)) = asking.join()
        {
            self.names = names;
        }
    }
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
