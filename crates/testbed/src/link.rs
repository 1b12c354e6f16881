//! Between the launcher and the part inside the host: the command's output, events one way, control
//! the other. In the virtual host these are virtio-serial ports; on a real one, this process's own.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::inside::{Message, Stop};

/// Ports of the virtual host.
pub(crate) const OUT: &str = "out";
pub(crate) const ERR: &str = "err";
pub(crate) const EVENTS: &str = "events";

/// What the part inside tells: one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// A guest boots.
    Starting(String),
    /// A guest is ready; so many milliseconds after its start.
    Ready(String, u128),
    /// A guest ended while booting, and why; it is started again.
    Died(String, String),
    /// A guest was ended, as the scenario says.
    Gone(String),
    /// The command runs.
    Running,
    /// The command ended; the run is over.
    Ended(u8),
    Failed(String),
}

impl Event {
    fn line(&self) -> String {
        match self {
            Self::Starting(guest) => format!("starting {guest}\n"),
            Self::Ready(guest, after_ms) => format!("ready {after_ms} {guest}\n"),
            Self::Died(guest, problem) => format!("died {guest} {}\n", one_line(problem)),
            Self::Gone(guest) => format!("gone {guest}\n"),
            Self::Running => "running \n".to_owned(),
            Self::Ended(code) => format!("ended {code}\n"),
            Self::Failed(problem) => format!("failed {}\n", one_line(problem)),
        }
    }

    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ')?;
        match word {
            "starting" => Some(Self::Starting(rest.to_owned())),
            "ready" => rest
                .split_once(' ')
                .and_then(|(ms, guest)| Some(Self::Ready(guest.to_owned(), ms.parse().ok()?))),
            "died" => rest
                .split_once(' ')
                .map(|(guest, why)| Self::Died(guest.to_owned(), why.to_owned())),
            "gone" => Some(Self::Gone(rest.to_owned())),
            "running" => Some(Self::Running),
            "ended" => rest.parse().ok().map(Self::Ended),
            "failed" => Some(Self::Failed(rest.to_owned())),
            _ => None,
        }
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], "; ")
}

/// How the inside reports to the launcher.
#[derive(Debug)]
pub(crate) enum Link {
    /// In the virtual host: output and events leave by ports.
    Ports {
        /// The command's output and errors.
        outputs: [File; 2],
        events: Mutex<File>,
    },
    /// On this machine: output is inherited.
    Direct { events: Sender<Event> },
}

/// The launcher's orders.
#[derive(Debug)]
pub(crate) struct Control(File);

impl Link {
    /// Opens the virtual host's ports.
    pub(crate) fn ports() -> Result<(Self, Control), Error> {
        let [out, err, events] = [OUT, ERR, EVENTS].map(open_port);
        let events = events?;
        let control = events.try_clone().map_err(Error::io("open", Path::new(EVENTS)))?;
        Ok((Self::Ports { outputs: [out?, err?], events: Mutex::new(events) }, Control(control)))
    }

    /// Tells the launcher; one that is gone needs no news.
    pub(crate) fn tell(&self, event: &Event) {
        match self {
            Self::Ports { events, .. } => {
                let mut events = events.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = events.write_all(event.line().as_bytes());
            }
            Self::Direct { events } => {
                let _ = events.send(event.clone());
            }
        }
    }

    /// Where a command's output goes.
    pub(crate) fn output(&self) -> Stdio {
        match self {
            // A pipe, not the port itself: programs may open /dev/stdout again, a port opens once.
            Self::Ports { .. } => Stdio::piped(),
            Self::Direct { .. } => Stdio::inherit(),
        }
    }

    /// Carries a child's piped output; each receiver hears when one stream has ended.
    pub(crate) fn pump(&self, child: &mut Child) -> Vec<Receiver<()>> {
        let Self::Ports { outputs: [out, err], .. } = self else { return Vec::new() };
        let mut ends = Vec::new();
        if let (Some(from), Ok(to)) = (child.stdout.take(), out.try_clone()) {
            ends.push(carry(from, to));
        }
        if let (Some(from), Ok(to)) = (child.stderr.take(), err.try_clone()) {
            ends.push(carry(from, to));
        }
        ends
    }
}

impl Control {
    /// Turns the launcher's orders into messages.
    pub(crate) fn forward(self, messages: Sender<Message>) {
        std::thread::spawn(move || {
            for line in BufReader::new(self.0).lines().map_while(Result::ok) {
                let message = match line.as_str() {
                    "peer" => Message::PeerReady,
                    "stop limit" => Message::Stop(Stop::TimeLimit),
                    _ => Message::Stop(Stop::Interrupted),
                };
                if messages.send(message).is_err() {
                    return;
                }
            }
        });
    }
}

/// The second host is ready, for `Control`.
pub(crate) const PEER_LINE: &str = "peer\n";

/// The order that `Control` reads.
pub(crate) fn stop_line(stop: Stop) -> &'static str {
    match stop {
        Stop::Interrupted => "stop interrupted\n",
        Stop::TimeLimit => "stop limit\n",
    }
}

fn carry(mut from: impl Read + Send + 'static, mut to: File) -> Receiver<()> {
    let (done, end) = mpsc::channel();
    std::thread::spawn(move || {
        // `io::copy` would try to splice, which ports only half support.
        let mut buffer = vec![0; 1 << 16];
        while let Ok(n) = from.read(&mut buffer)
            && n > 0
            && to.write_all(&buffer[..n]).is_ok()
        {}
        done.send(())
    });
    end
}

/// Where a host without virtio has links to its serial ports.
const SERIAL_PORTS: &str = "/run/testbed/ports";

/// Ports get their names a moment after their driver is loaded.
fn open_port(name: &str) -> Result<File, Error> {
    let start = Instant::now();
    loop {
        let serial = Some(Path::new(SERIAL_PORTS).join(name)).filter(|path| path.exists());
        let virtio = || {
            let device = find_port(Path::new("/sys/class/virtio-ports"), name)?;
            Some(Path::new("/dev").join(device))
        };
        match serial.or_else(virtio) {
            Some(path) => {
                return File::options()
                    .read(true)
                    .write(true)
                    .open(&path)
                    .map_err(Error::io("open", &path));
            }
            None if start.elapsed() > Duration::from_secs(30) => {
                return Err(Error::Host { problem: format!("has no port `{name}`") });
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn find_port(class: &Path, name: &str) -> Option<String> {
    fs::read_dir(class).ok()?.flatten().find_map(|entry| {
        let found: io::Result<String> = fs::read_to_string(entry.path().join("name"));
        (found.ok()?.trim() == name).then(|| entry.file_name().into_string().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_back_as_sent() {
        let check = |event: Event| {
            assert_eq!(Event::parse(event.line().trim_end_matches('\n')), Some(event))
        };
        check(Event::Starting("web-1".to_owned()));
        check(Event::Ready("web-1".to_owned(), 9_123));
        check(Event::Gone("a".to_owned()));
        check(Event::Died("a".to_owned(), "QEMU's exit status: 0".to_owned()));
        check(Event::Running);
        check(Event::Ended(130));
        check(Event::Failed("guest a: ended".to_owned()));
        assert_eq!(Event::parse("nonsense"), None);
        assert_eq!(Event::parse("ended 300"), None);
    }

    #[test]
    fn ports_are_found_by_name() {
        let class = tempfile::tempdir().unwrap();
        for (device, name) in [("vport1p1", "out"), ("vport1p2", "err")] {
            fs::create_dir(class.path().join(device)).unwrap();
            fs::write(class.path().join(device).join("name"), format!("{name}\n")).unwrap();
        }
        assert_eq!(find_port(class.path(), "err").as_deref(), Some("vport1p2"));
        assert_eq!(find_port(class.path(), "other"), None);
    }
}
