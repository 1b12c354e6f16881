//! The load generator as a process of its own, so that its CPU time is not mixed with what measures.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use lab::Load;

use crate::error::Error;
use crate::load::{LoadJob, Phase, generate};

/// What a generator writes on its standard output: a line for each phase, and its result.
const MEASURING: &str = "measuring";
const MEASURED: &str = "measured";

/// A running generator. It ends with the thread that started it.
#[derive(Debug)]
pub(crate) struct Generator {
    child: Child,
    lines: Receiver<String>,
}

/// Something a generator said.
#[derive(Debug)]
pub(crate) enum Said {
    Phase(Phase),
    Result(Box<Load>),
    /// No message for this long.
    Nothing,
}

/// What a generator process does: reads its job from `job`, and says how far it is.
///
/// # Errors
/// When the job is none, or the kernel gives no timer.
pub fn serve(job: &str, say: impl Fn(&str) + Clone + 'static) -> Result<(), Error> {
    let job = LoadJob::parse(job).map_err(Error::Generator)?;
    let tell = say.clone();
    let load = generate(&job, move |phase| {
        tell(match phase {
            Phase::Measuring => MEASURING,
            Phase::Measured => MEASURED,
        });
    })
    .map_err(|error| Error::Generator(error.to_string()))?;
    say(&load.to_line());
    Ok(())
}

impl Generator {
    /// Starts one; `vmscope` is this program.
    pub(crate) fn start(vmscope: &Path, job: &LoadJob) -> Result<Self, Error> {
        let failed = |error: std::io::Error| Error::Generator(format!("did not start: {error}"));
        let mut command = Command::new(vmscope);
        command.args(["lab", "load", "--job"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = testbed::spawn_bound(&mut command).map_err(failed)?;
        let out = child.stdout.take();
        if let Some(mut to) = child.stdin.take() {
            to.write_all(job.json().to_string().as_bytes()).map_err(failed)?;
        }
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let lines = out.into_iter().flat_map(|out| BufReader::new(out).lines());
            for line in lines.map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, lines })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the next message.
    pub(crate) fn wait(&mut self, at_most: Duration) -> Result<Said, Error> {
        match self.lines.recv_timeout(at_most) {
            Ok(line) => match line.as_str() {
                MEASURING => Ok(Said::Phase(Phase::Measuring)),
                MEASURED => Ok(Said::Phase(Phase::Measured)),
                line => Load::parse(line)
                    .map(|load| Said::Result(Box::new(load)))
                    .map_err(|error| Error::Generator(format!("said {line:?}: {error}"))),
            },
            Err(RecvTimeoutError::Timeout) => Ok(Said::Nothing),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().map(|status| status.to_string());
                let status = status.unwrap_or_else(|error| error.to_string());
                Err(Error::Generator(format!("ended early: {status}")))
            }
        }
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        // Killed if it still runs, and waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
