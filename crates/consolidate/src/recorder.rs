//! vmscope's own recording of the measurements: one session with the kernel, of which each measurement is a window.
//!
//! ```text
//!  begin --> (in between: sampled, not kept) --> start(folder) --> poll, poll, ... --> stop --> a recording in the folder
//! ```

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use analysis::Resolver;
use analysis::steal::TimelineInput;
use analysis::vcpu_timeline::VcpuTimelinesBuilder;
use collector::{
    Exits, GuestQuestions, Naming, ProcessEvents, Recorder, Roots, Sampling, SessionPlan,
};
use lab::observe::{CpuUses, VmRoles};
use model::{Counter, OffCpuSource, Trigger};
use recording::Recording;
use split::Split;

use crate::error::Error;

/// How long the events of a window's processes may take to come in.
const SETTLE: Duration = Duration::from_secs(10);

/// A session with the kernel.
#[derive(Debug)]
pub(crate) struct WindowRecorder {
    recorder: Recorder,
    naming: Naming,
    scratch: PathBuf,
    n_windows: u32,
}

impl WindowRecorder {
    /// Begins to sample; nothing is kept yet.
    pub(crate) fn begin(
        period: Duration,
        symbols: &Path,
        scratch: &Path,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Self, Error> {
        let roots = Roots::default();
        let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        let naming = Naming::new(roots.proc.clone(), Vec::new(), symbols.to_owned());
        let plan = SessionPlan {
            roots,
            sampling: Sampling {
                trigger: Trigger::CpuClock,
                period_ns,
                trigger_period: period_ns,
                call_graph: false,
            },
            off_cpu_source: OffCpuSource::Samples,
            exits: Exits::Counted,
            process_events: ProcessEvents::Followed,
            guests: GuestQuestions::Off,
            vmscope_version: env!("CARGO_PKG_VERSION").to_owned(),
            hostname: None,
        };
        let first = scratch.join("between-0");
        let mut recorder = Recorder::begin(&plan, symbols, &first, interrupted)?;
        recorder.lose_window()?;
        Ok(Self { recorder, naming, scratch: scratch.to_owned(), n_windows: 0 })
    }

    /// Begins a window, whose recording will be `folder`.
    pub(crate) fn start(&mut self, folder: &Path) -> Result<(), Error> {
        Ok(self.recorder.cut(folder)?)
    }

    /// Takes in what was sampled; to be called several times a second.
    pub(crate) fn poll(&mut self) -> Result<(), Error> {
        self.recorder.poll()?;
        Ok(())
    }

    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        self.n_windows += 1;
        let between = self.scratch.join(format!("between-{}", self.n_windows));
        Ok(self.recorder.cut(&between)?)
    }

    /// Finishes the recording of the window that was stopped.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        let since = Instant::now();
        let unfinished = loop {
            std::thread::sleep(Duration::from_millis(50));
            self.recorder.poll()?;
            match self.recorder.take_settled() {
                Some(unfinished) => break unfinished,
                None if SETTLE < since.elapsed() => {
                    return Err(collector::CollectError::Discarded.into());
                }
                None => {}
            }
        };
        self.recorder.lose_window()?;
        unfinished.finish(&mut self.naming, &mut |_| ())?;
        Ok(())
    }
}

/// Adds what a recording shows to a measurement, and to the parts of captured requests.
pub(crate) fn add_figures(
    folder: &Path,
    cast: &VmRoles,
    requests: Option<&Split>,
    run: &mut lab::Run,
) -> Result<(), Error> {
    let recording = Recording::open(folder)?;
    let (tables, header) = (&recording.tables, &recording.header);
    let resolver = Resolver::new(tables);
    let mut builder = VcpuTimelinesBuilder::new(&resolver, header, header.off_cpu_source);
    let mut cpus = CpuUses::new(cast, tables, &header.cpus);
    recording.replay(&mut [&mut builder, &mut cpus])?;
    let axis = builder.finish();
    let evidence = TimelineInput { axis: &axis, tables, header };
    run.window_ns = header.end.since(header.start);
    run.began_unix_ms = header.start_unix_ns / 1_000_000;
    run.vms = lab::observe::vms(&evidence, cast);
    run.parts = requests
        .map_or_else(Default::default, |requests| lab::observe::parts(&evidence, cast, requests));
    run.cpus = cpus.finish(run.window_ns, header.period_ns);
    let notes = header.notes.iter();
    run.notes.extend(notes.map(|note| format!("{}: {}", note.subject, note.text)));
    let dropped = header.counters.iter().filter(|(name, n)| {
        0 < **n && Counter::parse(name).is_some_and(|(counter, _)| counter.is_drop())
    });
    run.notes.extend(dropped.map(|(name, n)| format!("{name}: {n}")));
    Ok(())
}
