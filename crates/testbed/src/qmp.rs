//! The few QMP exchanges needed to start a guest.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A session with one QEMU.
#[derive(Debug)]
pub(crate) struct Session {
    stream: BufReader<UnixStream>,
}

/// How long QEMU may take to open its socket, and to answer.
const LIMIT: Duration = Duration::from_secs(120);

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
        let mut session = Self { stream: BufReader::new(stream) };
        session.read()?;
        session.ask("qmp_capabilities")?;
        Ok(session)
    }

    /// The thread of each vCPU, in the vCPUs' order.
    pub(crate) fn vcpu_threads(&mut self) -> io::Result<Vec<i32>> {
        threads(&self.ask("query-cpus-fast")?)
            .ok_or_else(|| io::Error::other("QEMU named no vCPU threads"))
    }

    /// Lets the paused guest run.
    pub(crate) fn go_on(&mut self) -> io::Result<()> {
        self.ask("cont").map(drop)
    }

    fn ask(&mut self, command: &str) -> io::Result<Value> {
        let mut line = json!({ "execute": command }).to_string();
        line.push('\n');
        self.stream.get_mut().write_all(line.as_bytes())?;
        loop {
            let mut message = self.read()?;
            if let Some(answer) = message.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(error) = message.get("error") {
                return Err(io::Error::other(format!("QEMU refused {command}: {error}")));
            }
            // Anything else is an event that nobody waits for.
        }
    }

    fn read(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_come_in_the_vcpus_order() {
        let answer = json!([{ "cpu-index": 1, "thread-id": 77 }, { "cpu-index": 0, "thread-id": 78, "target": "x86_64" }]);
        assert_eq!(threads(&answer), Some(vec![78, 77]));
        assert_eq!(threads(&json!([{ "cpu-index": 1 }])), None);
        assert_eq!(threads(&json!({})), None);
    }
}
