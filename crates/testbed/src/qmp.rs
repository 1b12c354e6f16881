//! QMP: what starting a guest needs, and the commands of a scenario's steps.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A session with one QEMU.
#[derive(Debug)]
pub(crate) struct Session {
    stream: BufReader<UnixStream>,
    /// The events so far, by name.
    events: Vec<String>,
}

/// How long QEMU may take to open its socket, and to answer.
const LIMIT: Duration = Duration::from_secs(120);

/// Bytes of one message, and events of one session: QEMU's work, but what a guest does may be in it.
const MAX_LINE_BYTES: u64 = 1 << 20;
const MAX_EVENTS: usize = 1 << 16;

impl Session {
    /// Connects as soon as the socket is there; `alive` says whether waiting still makes sense.
    pub(crate) fn connect(socket: &Path, mut alive: impl FnMut() -> bool) -> io::Result<Self> {
        let start = Instant::now();
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) if start.elapsed() > LIMIT || !alive() => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        stream.set_read_timeout(Some(LIMIT))?;
        let mut session = Self { stream: BufReader::new(stream), events: Vec::new() };
        session.read()?;
        session.ask("qmp_capabilities", None)?;
        Ok(session)
    }

    /// The thread of each vCPU, in the vCPUs' order.
    pub(crate) fn vcpu_threads(&mut self) -> io::Result<Vec<i32>> {
        threads(&self.ask("query-cpus-fast", None)?)
            .ok_or_else(|| io::Error::other("QEMU named no vCPU threads"))
    }

    /// Lets the paused guest run.
    pub(crate) fn go_on(&mut self) -> io::Result<()> {
        self.ask("cont", None).map(drop)
    }

    /// Saves the running guest to a file; it is paused then.
    pub(crate) fn save(&mut self, file: &Path) -> io::Result<()> {
        let uri = format!("exec:cat >'{}'", file.display());
        self.ask("migrate", Some(&json!({ "uri": uri })))?;
        let start = Instant::now();
        loop {
            let answer = self.ask("query-migrate", None)?;
            match answer["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => {
                    return Err(io::Error::other(format!("QEMU failed to migrate: {answer}")));
                }
                _ if start.elapsed() > LIMIT => return Err(io::ErrorKind::TimedOut.into()),
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Carries out a command; returns QEMU's answer.
    pub(crate) fn ask(&mut self, command: &str, arguments: Option<&Value>) -> io::Result<Value> {
        let mut request = json!({ "execute": command });
        if let Some(arguments) = arguments {
            request["arguments"] = arguments.clone();
        }
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes())?;
        loop {
            let mut message = self.read()?;
            let refused = |why: &Value| io::Error::other(format!("QEMU refused {command}: {why}"));
            if let Some(answer) = message.get_mut("return") {
                // The commands of the human monitor say in plain text that they failed.
                let failed = answer.as_str().is_some_and(|text| text.contains("Error"));
                return if failed { Err(refused(answer)) } else { Ok(answer.take()) };
            }
            if let Some(error) = message.get("error") {
                return Err(refused(error));
            }
        }
    }

    /// Waits for an event; one that came since the session began will do.
    pub(crate) fn wait(&mut self, event: &str) -> io::Result<()> {
        while !self.events.iter().any(|seen| seen == event) {
            self.read().map_err(|error| {
                io::Error::new(error.kind(), format!("QEMU did not say {event}: {error}"))
            })?;
        }
        Ok(())
    }

    fn read(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        if self.stream.by_ref().take(MAX_LINE_BYTES).read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let message: Value = serde_json::from_str(&line)?;
        if MAX_EVENTS <= self.events.len() {
            return Err(io::Error::other("QEMU said too many events"));
        }
        self.events.extend(message["event"].as_str().map(str::to_owned));
        Ok(message)
    }
}

fn threads(answer: &Value) -> Option<Vec<i32>> {
    let mut vcpus: Vec<(u64, i32)> = answer
        .as_array()?
        .iter()
        .map(|cpu| {
            Some((cpu["cpu-index"].as_u64()?, i32::try_from(cpu["thread-id"].as_i64()?).ok()?))
        })
        .collect::<Option<_>>()?;
    vcpus.sort_unstable();
    Some(vcpus.into_iter().map(|(_, thread)| thread).collect())
}

/// For tests that feed bytes: what is made of all that a QEMU says.
pub(crate) fn feed(said: &[u8]) -> io::Result<Vec<i32>> {
    let (ours, mut theirs) = UnixStream::pair()?;
    // The kernel keeps so much.
    theirs.set_nonblocking(true)?;
    let _ = theirs.write_all(said);
    theirs.shutdown(std::net::Shutdown::Write)?;
    let mut session = Session { stream: BufReader::new(ours), events: Vec::new() };
    session.read()?;
    session.ask("qmp_capabilities", None)?;
    session.go_on()?;
    let threads = session.vcpu_threads();
    session.wait("RESUME")?;
    threads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_events_of_a_command() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut qemu = theirs.try_clone().unwrap();
        for line in [
            "{\"event\":\"RESET\"}",
            "{\"return\":{}}",
            "{\"event\":\"STOP\"}",
            "{\"error\":{\"class\":\"x\"}}",
        ] {
            writeln!(qemu, "{line}").unwrap();
        }
        writeln!(qemu, "{{\"return\":\"Error: no device can store it\"}}").unwrap();
        let mut session = Session { stream: BufReader::new(ours), events: Vec::new() };
        let arguments = json!({ "id": "cpu1" });
        assert_eq!(session.ask("device_del", Some(&arguments)).unwrap(), json!({}));
        session.wait("RESET").unwrap();
        session.wait("STOP").unwrap();
        assert!(session.ask("cont", None).unwrap_err().to_string().contains("refused cont"));
        assert!(session.ask("savevm", None).unwrap_err().to_string().contains("no device"));
        let mut sent = String::new();
        BufReader::new(theirs).read_line(&mut sent).unwrap();
        assert_eq!(sent, "{\"execute\":\"device_del\",\"arguments\":{\"id\":\"cpu1\"}}\n");
    }

    #[test]
    fn threads_come_in_the_vcpus_order() {
        let answer = json!([{ "cpu-index": 1, "thread-id": 77 }, { "cpu-index": 0, "thread-id": 78, "target": "x86_64" }]);
        assert_eq!(threads(&answer), Some(vec![78, 77]));
        assert_eq!(threads(&json!([{ "cpu-index": 1 }])), None);
        assert_eq!(threads(&json!({})), None);
    }
}
