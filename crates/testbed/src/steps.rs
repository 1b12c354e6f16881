//! What happens to guests and host while a command runs: `vmscope testbed steps`, in the command.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::error::Error;
use crate::exec;
use crate::inside;
use crate::process;
use crate::scenario::{Action, Step};

/// A step that was done, and when, by the host's monotonic clock.
#[derive(Debug, Clone, PartialEq)]
pub struct Done<'a> {
    pub step: &'a Step,
    pub began: Duration,
    pub ended: Duration,
}

impl fmt::Display for Done<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (began, ended) = (self.began.as_secs_f64(), self.ended.as_secs_f64());
        let place = self.step.guest.as_deref().unwrap_or("host");
        write!(f, "{began:.6} {ended:.6} {place}: {}", self.step.action)
    }
}

/// Does the steps of the scenario this process runs in, each at its time; the times count from now.
pub fn steps(mut tell: impl FnMut(&Done<'_>)) -> Result<(), Error> {
    let (folder, plan) = (exec::testbed_folder(), exec::plan()?);
    let start = Instant::now();
    for step in &plan.scenario()?.steps {
        std::thread::sleep(step.at.saturating_sub(start.elapsed()));
        let began = now();
        carry_out(step, &folder)?;
        tell(&Done { step, began, ended: now() });
    }
    Ok(())
}

fn carry_out(step: &Step, folder: &Path) -> Result<(), Error> {
    match (&step.action, step.guest.as_deref()) {
        (Action::Run(line), None) => process::run(Command::new("sh").args(["-c", line])).map(drop),
        (Action::Run(line), Some(guest)) => {
            let output = exec::run_line(guest, line)?;
            let said = process::last_lines(&output.stderr, 3).unwrap_or_default();
            let failed = || problem(guest, format!("`{line}` ended with {}: {said}", output.code));
            if output.code == 0 { Ok(()) } else { Err(failed()) }
        }
        (Action::Qmp { execute, arguments, until }, Some(guest)) => {
            let socket = inside::guests_folder(folder).join(format!("{guest}.qmp"));
            let run = || -> Result<(), qmp::QmpError> {
                let mut session = qmp::Session::wait_for(&socket, || socket.exists())?;
                session.ask(execute, arguments.as_ref())?;
                until.as_ref().map_or(Ok(()), |event| session.wait(event))
            };
            run().map_err(|error| problem(guest, format!("{execute}: {error}")))
        }
        (Action::Migrate, Some(guest)) => exec::migrate(guest),
        // A scenario with a QMP command and no guest for it is refused.
        (Action::Wait | Action::Qmp { .. } | Action::Migrate, _) => Ok(()),
    }
}

fn problem(guest: &str, problem: String) -> Error {
    Error::Guest { guest: guest.to_owned(), problem }
}

fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}
