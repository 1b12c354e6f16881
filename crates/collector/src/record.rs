//! One recording: a session with one window, whose records go to spools.

use model::{Header, Tables};
use recording::Writer;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::plan::{Collected, Control, Next, Plan, Progress};
use crate::session::{Session, SessionEnd, WindowEnd};
use crate::sink::SpoolSink;
use crate::vm_table::VmTable;
use crate::{CollectError, finish};

/// Records until `control` says so.
///
/// # Errors
/// When sampling can't begin or the recording can't be written; then nothing lies under its name.
pub fn record(plan: &Plan, control: &mut dyn Control) -> Result<Collected, CollectError> {
    allow_many_files();
    let session = Session::load(plan.session.clone())?;
    let sampled = Sampling::begin(plan, session, control)?.run(control)?;
    finish::finish(sampled, plan, control)
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

/// Samples on their way to a recording.
struct Sampling {
    session: Session,
    writer: Writer,
    sink: SpoolSink,
}

impl Sampling {
    /// Meets the VMs that run, and begins to sample.
    fn begin(
        plan: &Plan,
        mut session: Session,
        control: &dyn Control,
    ) -> Result<Self, CollectError> {
        let writer = Writer::create(&plan.output, session.header())?;
        let sink = match SpoolSink::create(&writer, &session.header().cpus) {
            Ok(sink) => sink,
            Err(error) => return Err(discard(writer, error.into())),
        };
        let found = session.find_vms(&|| control.interrupted());
        let stored = found.and_then(|()| Ok(checkpoint(&writer, &session)?));
        match stored.and_then(|()| session.attach()) {
            Ok(()) => Ok(Self { session, writer, sink }),
            Err(error) => Err(discard(writer, error)),
        }
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
                Next::Finish => break,
                Next::Discard => return Err(discard(self.writer, CollectError::Discarded)),
            }
            self.poll(control)?;
        }
        let Self { session, writer, mut sink } = self;
        let (window, session) = session.end(&mut sink)?;
        Ok(Sampled { writer, sink, window, session })
    }

    fn poll(&mut self, control: &mut dyn Control) -> Result<(), CollectError> {
        let news = self.session.poll(&mut self.sink)?;
        if news.iter().any(|news| matches!(news, Progress::VmFound(_))) {
            checkpoint(&self.writer, &self.session)?;
        }
        news.iter().for_each(|news| control.show(news));
        Ok(())
    }
}

/// A recording whose writer is killed knows its VMs.
fn checkpoint(writer: &Writer, session: &Session) -> Result<(), recording::Error> {
    let VmTable { vms, vcpus, .. } = session.vms();
    let tables = Tables { vms: vms.clone(), vcpus: vcpus.clone(), ..Tables::default() };
    let header: &Header = session.header();
    writer.checkpoint(header, &tables)
}

/// Removes what was written so far; the error that made it useless goes on.
fn discard(writer: Writer, error: CollectError) -> CollectError {
    match writer.discard() {
        Ok(()) => error,
        Err(error) => error.into(),
    }
}
