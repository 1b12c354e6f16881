//! Recordings of a session: one, or window after window for days; a trace of the same seconds beside it.
//!
//! ```text
//!  create --> attach --> poll, poll, ... --> cut --> poll, poll, ... --> cut ... --> end
//!             |<------- first window ------->|<------- second window -->|           the last one
//!                                               its processes' events have come in: it is a `SampledWindow`
//! ```
//! A recording is such a session with one window.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use host::processes::ProcessImage;
use model::{Header, Pid, Tables};
use recording::Writer;
use recording::trace::FOLDER_IN_RECORDING;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::CollectError;
use crate::beside::ConcurrentSampler;
use crate::finish::{self, Naming};
use crate::guests::{GuestWorkers, Log, Pending};
use crate::memory::{MemoryReader, WindowMemory};
use crate::plan::{Collected, Control, Next, Plan, Progress, SessionPlan};
use crate::session::{Session, SessionEnd, WindowEnd};
use crate::sink::{NoSink, Sink, SpoolSink};
use crate::trace::{TracePlan, Traced, trace_beside};
use crate::vm_table::VmTable;

/// A window that has ended waits this long for the events of its processes.
const SETTLE: Duration = Duration::from_millis(100);

/// Records samples until `control` says so.
///
/// # Errors
/// When sampling can't begin or the recording can't be written; then nothing lies under its name.
pub fn record(plan: &Plan, control: &mut dyn Control) -> Result<Collected, CollectError> {
    let mut recorder = Recorder::from_plan(plan, control)?;
    if let Err(error) = recorder.attach() {
        return Err(recorder.discard(error));
    }
    let unfinished = recorder.run(control)?;
    unfinished.finish(&mut plan.naming(), &mut |progress| control.show(progress))
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
    let recorder = Recorder::from_plan(plan, control)?;
    let held = recorder.open.as_ref().map(|open| open.writer.held_path());
    let output = held.unwrap_or(&plan.output).join(FOLDER_IN_RECORDING);
    let mut beside = ConcurrentSampler::Attaching(Box::new(recorder));
    let mut traced =
        match trace_beside(&TracePlan { output, ..trace.clone() }, &mut beside, control) {
            Ok(traced) => traced,
            Err(error) => return Err(beside.give_up(error)),
        };
    let unfinished = beside.into_sampled().ok_or(CollectError::Discarded)?;
    let collected =
        unfinished.finish(&mut plan.naming(), &mut |progress| control.show(progress))?;
    traced.summary.path = collected.summary.path.join(FOLDER_IN_RECORDING);
    Ok((collected, traced))
}

/// Each CPU takes five descriptors: a large host needs more than the usual soft limit.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // If it is refused, opening the files will say so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A window that has been sampled, and is to be finished: named, and turned into a recording.
#[derive(Debug)]
pub struct SampledWindow {
    pub(crate) writer: Writer,
    pub(crate) sink: SpoolSink,
    pub(crate) window: WindowEnd,
    pub(crate) processes: Vec<ProcessImage>,
    pub(crate) memory: WindowMemory,
    /// Of the session's last window: they end with it.
    pub(crate) workers: Option<GuestWorkers>,
    pub(crate) guests: Pending,
}

impl SampledWindow {
    /// What is known of it so far; its bounds are `start` and `end`.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.window.header
    }

    /// Asks the guests, finds names and writes the tables. `show` gets the progress.
    ///
    /// # Errors
    /// When something can't be read or written; what was recorded stays readable under its partial name.
    pub fn finish(
        self,
        naming: &mut Naming,
        show: &mut dyn FnMut(&Progress),
    ) -> Result<Collected, CollectError> {
        finish::finish(self, naming, show)
    }

    /// Where it is until it is finished.
    #[must_use]
    pub fn partial_path(&self) -> &Path {
        self.writer.partial_path()
    }

    /// Removes the written files.
    ///
    /// # Errors
    /// When it can't be removed.
    pub fn discard(self) -> Result<(), CollectError> {
        Ok(self.writer.discard()?)
    }
}

/// Samples on their way to recordings.
#[derive(Debug)]
pub struct Recorder {
    session: Session,
    memory: MemoryReader,
    /// `None`: the window under way is lost.
    open: Option<OpenWindow>,
    settling: Option<Settling>,
    next_poll: Instant,
}

/// The files of the window under way.
#[derive(Debug)]
struct OpenWindow {
    writer: Writer,
    sink: SpoolSink,
}

/// A window that is over. Events of its processes may still come in.
#[derive(Debug)]
struct Settling {
    open: OpenWindow,
    window: WindowEnd,
    memory: WindowMemory,
    guests: Pending,
}

impl OpenWindow {
    fn create(output: &Path, header: &Header) -> Result<Self, CollectError> {
        let writer = Writer::create(output, header)?;
        match SpoolSink::create(&writer, &header.cpus) {
            Ok(sink) => Ok(Self { writer, sink }),
            Err(error) => Err(discard(writer, error.into())),
        }
    }
}

impl Settling {
    fn settled(self, processes: Vec<ProcessImage>) -> SampledWindow {
        let Self { open: OpenWindow { writer, sink }, window, memory, guests } = self;
        SampledWindow { writer, sink, window, processes, memory, workers: None, guests }
    }
}

impl Recorder {
    /// Makes the first window's folder, meets the VMs that run, and begins to sample.
    ///
    /// # Errors
    /// When sampling can't begin, or `interrupted`.
    pub fn begin(
        plan: &SessionPlan,
        symbol_store: &Path,
        output: &Path,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Self, CollectError> {
        let mut recorder = Self::create(plan, symbol_store, output, interrupted, &mut |_| ())?;
        match recorder.attach() {
            Ok(()) => Ok(recorder),
            Err(error) => Err(recorder.discard(error)),
        }
    }

    fn from_plan(plan: &Plan, control: &mut dyn Control) -> Result<Self, CollectError> {
        let control = std::cell::RefCell::new(control);
        let interrupted = || control.borrow().interrupted();
        let show = &mut |progress: &Progress| control.borrow_mut().show(progress);
        Self::create(&plan.session, &plan.symbol_store, &plan.output, &interrupted, show)
    }

    /// Makes the folder and meets the VMs that run; nothing is sampled yet.
    fn create(
        plan: &SessionPlan,
        symbol_store: &Path,
        output: &Path,
        interrupted: &dyn Fn() -> bool,
        show: &mut dyn FnMut(&Progress),
    ) -> Result<Self, CollectError> {
        allow_many_files();
        let mut session = Session::load(plan.clone())?;
        session.set_symbol_store(symbol_store);
        Self::from_session(session, output, interrupted, show)
    }

    pub(crate) fn from_session(
        mut session: Session,
        output: &Path,
        interrupted: &dyn Fn() -> bool,
        show: &mut dyn FnMut(&Progress),
    ) -> Result<Self, CollectError> {
        let open = OpenWindow::create(output, session.header())?;
        session.find_vms();
        let memory = MemoryReader::begin(session.roots(), session.vms());
        if !session.vms().vms.is_empty() {
            show(&Progress::Preparing("asking the guests"));
        }
        let requested = session.wait_for_guests(interrupted);
        match requested.and_then(|()| Ok(checkpoint(&open.writer, &session)?)) {
            Ok(()) => {
                let (open, next_poll) = (Some(open), Instant::now());
                Ok(Self { session, memory, open, settling: None, next_poll })
            }
            Err(error) => Err(discard(open.writer, error)),
        }
    }

    pub(crate) fn attach(&mut self) -> Result<(), CollectError> {
        self.session.attach()?;
        self.next_poll = Instant::now() + self.session.poll_interval();
        Ok(())
    }

    /// The session's facts, and the begin of the window under way.
    #[must_use]
    pub fn header(&self) -> &Header {
        self.session.header()
    }

    /// When the rings are to be looked at next.
    #[must_use]
    pub fn next_poll(&self) -> Instant {
        self.next_poll
    }

    /// Readable when it is time for that earlier.
    #[must_use]
    pub fn wake(&self) -> Vec<BorrowedFd<'_>> {
        self.session.wake()
    }

    /// Samples with another period from now on: the window under way should have begun just now.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_period(&mut self, period_ns: u64) -> Result<(), CollectError> {
        self.session.set_period(period_ns)
    }

    /// Notes something about the host in the window under way.
    pub fn note(&mut self, text: String) {
        self.session.note(text);
    }

    /// Stores what comes in until the end.
    fn run(mut self, control: &mut dyn Control) -> Result<SampledWindow, CollectError> {
        let vms = self.session.vms().vms.iter().map(|vm| vm.name.clone()).collect();
        control.show(&Progress::Sampling { cpus: self.session.header().cpus.len(), vms });
        loop {
            let next = control.next();
            if let Some(pid) = control.command() {
                self.session.follow_command(pid);
            }
            match next {
                Next::GoOn(at_most) => {
                    let interval = self.session.poll_interval().min(at_most);
                    control.wait(interval, &self.session.wake());
                }
                Next::Finish | Next::End(_) => return self.end_recording(),
                Next::Discard => return Err(self.discard(CollectError::Discarded)),
            }
            self.poll()?.iter().for_each(|news| control.show(news));
        }
    }

    /// Stores what has come in, if it is time: for a caller with an interval of its own, which is shorter.
    pub(crate) fn poll_if_due(&mut self, control: &mut dyn Control) -> Result<(), CollectError> {
        let is_due = self.next_poll <= Instant::now() || self.is_woken();
        if is_due {
            self.poll()?.iter().for_each(|news| control.show(news));
        }
        Ok(())
    }

    /// Whether a ring of processes' events is filling up.
    fn is_woken(&self) -> bool {
        let wake = self.session.wake();
        let mut wake: Vec<_> = wake.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let ready = poll(&mut wake, Timespec::try_from(Duration::ZERO).ok().as_ref());
        ready.is_ok_and(|ready| 0 < ready)
    }

    /// Stores what has come in. Returns what the user may want to know.
    ///
    /// # Errors
    /// When it can't be stored; it is still there for `lose_window` then.
    pub fn poll(&mut self) -> Result<Vec<Progress>, CollectError> {
        self.next_poll = Instant::now() + self.session.poll_interval();
        let Some(open) = &mut self.open else { return self.session.poll(&mut NoSink) };
        let news = self.session.poll(&mut open.sink)?;
        if news.iter().any(|news| matches!(news, Progress::VmFound(_))) {
            checkpoint(&open.writer, &self.session)?;
        }
        Ok(news)
    }

    /// The window before, as soon as the events of its processes have come in: after a `poll`.
    pub fn take_settled(&mut self) -> Option<SampledWindow> {
        let Self { session, open, settling, .. } = self;
        let before = settling.as_ref()?;
        let sink: &dyn Sink = open.as_ref().map_or(&NoSink, |open| &open.sink);
        let (end, hit) = (before.window.header.end, before.open.sink.hit.pids());
        let processes = session.take_processes(end, hit, sink)?;
        if let Some(open) = open {
            open.sink.hit_before.clear();
        }
        settling.take().map(|before| before.settled(processes))
    }

    /// Ends the window, and begins the next one at the same instant, whose folder will be `next`. The window can be taken by
    /// `take_settled` a moment later, the one before it must have been.
    ///
    /// # Errors
    /// When the next window can't be written: it is lost. Or when the one before it can't be written to its end: it is
    /// lost.
    pub fn cut(&mut self, next: &Path) -> Result<(), CollectError> {
        let made = OpenWindow::create(next, self.session.header());
        let ((ended, guests), open) = match self.open.take() {
            Some(mut open) => (self.session.next_window(&mut open.sink), Some(open)),
            None => (self.session.next_window(&mut NoSink), None),
        };
        let memory = self.memory.cut(self.session.vms());
        let (window, lost) = match ended {
            Ok(window) => (Some(window), None),
            Err(error) => (None, Some(error)),
        };
        let mut hit_before = BTreeSet::new();
        match (open, window) {
            (Some(open), Some(window)) => {
                hit_before.clone_from(open.sink.hit.pids());
                // If it can't be written, finishing it will show why.
                let _ = open.writer.checkpoint_header(&window.header);
                self.settling = Some(Settling { open, window, memory, guests });
            }
            (Some(open), None) => open.writer.discard()?,
            (None, _) => {}
        }
        self.next_poll = Instant::now() + SETTLE.min(self.session.poll_interval());
        let mut made = made?;
        made.sink.hit_before = hit_before;
        // It was made with the header of the window before.
        if let Err(error) = checkpoint(&made.writer, &self.session) {
            return Err(discard(made.writer, error.into()));
        }
        self.open = Some(made);
        lost.map_or(Ok(()), Err)
    }

    /// Gives up the window under way: removes what was written. What comes in until the next `cut` is not stored.
    ///
    /// # Errors
    /// When it can't be removed.
    pub fn lose_window(&mut self) -> Result<(), CollectError> {
        self.open.take().map_or(Ok(()), |open| Ok(open.writer.discard()?))
    }

    /// Ends sampling. The last windows: the one before if it was not taken, and the one under way unless it is lost.
    ///
    /// # Errors
    /// When the last one can't be written to its end.
    pub fn end(self) -> Result<Vec<SampledWindow>, CollectError> {
        let Self { session, mut memory, open, settling, .. } = self;
        let mut none = NoSink;
        let (mut open, begun) = (open, session.header().start);
        let sink: &mut dyn Sink = match &mut open {
            Some(open) => &mut open.sink,
            None => &mut none,
        };
        let memory = memory.cut(session.vms());
        let SessionEnd { window, processes, guests: workers } = session.end(sink)?;
        let images = |hit: &BTreeSet<Pid>| processes.images(|pid| hit.contains(&Pid(pid)));
        let mut unfinished: Vec<_> = settling
            .map(|before| {
                let processes = images(before.open.sink.hit.pids());
                before.settled(processes)
            })
            .into_iter()
            .collect();
        if let Some(OpenWindow { writer, sink }) = open {
            let processes = images(sink.hit.pids());
            let guests = workers.collect_answers(begun, Log::Ends);
            let workers = Some(workers);
            unfinished.push(SampledWindow {
                writer,
                sink,
                window,
                processes,
                memory,
                workers,
                guests,
            });
        }
        Ok(unfinished)
    }

    /// Ends the only window.
    pub(crate) fn end_recording(self) -> Result<SampledWindow, CollectError> {
        self.end()?.pop().ok_or(CollectError::Discarded)
    }

    /// Removes what was written so far; the error that made it useless goes on.
    pub(crate) fn discard(self, error: CollectError) -> CollectError {
        match self.open {
            Some(open) => discard(open.writer, error),
            None => error,
        }
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
