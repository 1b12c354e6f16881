//! One recording: a session with one window, whose records go to spools; a trace of the same seconds beside it.

use std::path::Path;
use std::time::{Duration, Instant};

use model::Tables;
use recording::Writer;
use recording::trace::FOLDER_IN_RECORDING;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::beside::Beside;
use crate::plan::{Collected, Control, Next, Plan, Progress};
use crate::session::{Session, SessionEnd, WindowEnd};
use crate::sink::SpoolSink;
use crate::trace::{TracePlan, Traced, trace_beside};
use crate::vm_table::VmTable;
use crate::{CollectError, finish};

/// Records samples until `control` says so.
///
/// # Errors
/// When sampling can't begin or the recording can't be written; then nothing lies under its name.
pub fn record(plan: &Plan, control: &mut dyn Control) -> Result<Collected, CollectError> {
    allow_many_files();
    let mut recorder = SampleRecorder::create(plan, control)?;
    if let Err(error) = recorder.attach() {
        return Err(recorder.discard(error));
    }
    finish::finish(recorder.run(control)?, plan, control)
}

/// Records samples and a trace of the same seconds, until `control` says so or the trace's command ends. The trace lies in the
/// recording's folder, wherever its plan says.
///
/// # Errors
/// When either can't begin; nothing lies under the recording's name then. When something can't be written: what was
/// recorded by then stays readable under its partial name.
pub fn record_with_trace(
    plan: &Plan,
    trace: &TracePlan,
    control: &mut dyn Control,
) -> Result<(Collected, Traced), CollectError> {
    allow_many_files();
    let recorder = SampleRecorder::create(plan, control)?;
    let output = recorder.partial_path().join(FOLDER_IN_RECORDING);
    let mut beside = Beside::Attaching(Box::new(recorder));
    let mut traced =
        match trace_beside(&TracePlan { output, ..trace.clone() }, &mut beside, control) {
            Ok(traced) => traced,
            Err(error) => return Err(beside.give_up(error)),
        };
    let sampled = beside.into_sampled().ok_or(CollectError::Discarded)?;
    let collected = finish::finish(sampled, plan, control)?;
    traced.summary.path = collected.summary.path.join(FOLDER_IN_RECORDING);
    Ok((collected, traced))
}

/// Each CPU takes four descriptors: a large host needs more than the usual soft limit.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // If it is refused, opening the files will say so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// What the sampling phase leaves behind.
#[derive(Debug)]
pub(crate) struct Sampled {
    pub(crate) writer: Writer,
    pub(crate) sink: SpoolSink,
    pub(crate) window: WindowEnd,
    pub(crate) session: SessionEnd,
}

impl Sampled {
    /// Removes what was written; the error that made it useless goes on.
    pub(crate) fn discard(self, error: CollectError) -> CollectError {
        discard(self.writer, error)
    }
}

/// Samples on their way to a recording.
#[derive(Debug)]
pub(crate) struct SampleRecorder {
    session: Session,
    writer: Writer,
    sink: SpoolSink,
    next_poll: Instant,
}

impl SampleRecorder {
    /// Makes the folder and meets the VMs that run; nothing is sampled yet.
    fn create(plan: &Plan, control: &mut dyn Control) -> Result<Self, CollectError> {
        let mut session = Session::load(plan.session.clone())?;
        let writer = Writer::create(&plan.output, session.header())?;
        let sink = match SpoolSink::create(&writer, &session.header().cpus) {
            Ok(sink) => sink,
            Err(error) => return Err(discard(writer, error.into())),
        };
        session.know_symbols_in(&plan.symbol_store);
        session.find_vms();
        if !session.vms().vms.is_empty() {
            control.show(&Progress::Preparing("asking the guests"));
        }
        let asked = session.wait_for_guests(&|| control.interrupted());
        match asked.and_then(|()| Ok(checkpoint(&writer, &session)?)) {
            Ok(()) => Ok(Self { session, writer, sink, next_poll: Instant::now() }),
            Err(error) => Err(discard(writer, error)),
        }
    }

    /// Begins to sample.
    pub(crate) fn attach(&mut self) -> Result<(), CollectError> {
        self.session.attach()?;
        self.next_poll = Instant::now() + self.session.poll_interval();
        Ok(())
    }

    /// Where the recording is until it is finished.
    fn partial_path(&self) -> &Path {
        self.writer.partial_path()
    }

    /// Stores what comes in until the end.
    fn run(mut self, control: &mut dyn Control) -> Result<Sampled, CollectError> {
        let vms = self.session.vms().vms.iter().map(|vm| vm.name.clone()).collect();
        control.show(&Progress::Sampling { cpus: self.session.header().cpus.len(), vms });
        loop {
            match control.next() {
                Next::GoOn(at_most) => {
                    let interval = self.session.poll_interval().min(at_most);
                    control.wait(interval, &self.session.wake());
                }
                Next::Finish | Next::End(_) => return self.end(),
                Next::Discard => return Err(self.discard(CollectError::Discarded)),
            }
            self.poll(control)?;
        }
    }

    /// Stores what has come in, if it is time: for a caller with an interval of its own, which is shorter.
    pub(crate) fn poll_if_due(&mut self, control: &mut dyn Control) -> Result<(), CollectError> {
        let is_due = self.next_poll <= Instant::now() || self.is_woken();
        if is_due { self.poll(control) } else { Ok(()) }
    }

    /// Whether a ring of processes' events is filling up.
    fn is_woken(&self) -> bool {
        let wake = self.session.wake();
        let mut wake: Vec<_> = wake.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let ready = poll(&mut wake, Timespec::try_from(Duration::ZERO).ok().as_ref());
        ready.is_ok_and(|ready| 0 < ready)
    }

    fn poll(&mut self, control: &mut dyn Control) -> Result<(), CollectError> {
        let news = self.session.poll(&mut self.sink)?;
        if news.iter().any(|news| matches!(news, Progress::VmFound(_))) {
            checkpoint(&self.writer, &self.session)?;
        }
        news.iter().for_each(|news| control.show(news));
        self.next_poll = Instant::now() + self.session.poll_interval();
        Ok(())
    }

    /// Ends sampling.
    pub(crate) fn end(self) -> Result<Sampled, CollectError> {
        let Self { session, writer, mut sink, .. } = self;
        let (window, session) = session.end(&mut sink)?;
        Ok(Sampled { writer, sink, window, session })
    }

    /// Removes what was written so far; the error that made it useless goes on.
    pub(crate) fn discard(self, error: CollectError) -> CollectError {
        discard(self.writer, error)
    }
}

/// A recording whose writer is killed knows its VMs.
fn checkpoint(writer: &Writer, session: &Session) -> Result<(), recording::Error> {
    let VmTable { vms, vcpus, .. } = session.vms();
    let tables = Tables { vms: vms.clone(), vcpus: vcpus.clone(), ..Tables::default() };
    writer.checkpoint(session.header(), &tables)
}

/// Removes what was written so far; the error that made it useless goes on.
fn discard(writer: Writer, error: CollectError) -> CollectError {
    match writer.discard() {
        Ok(()) => error,
        Err(error) => error.into(),
    }
}
