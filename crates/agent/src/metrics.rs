//! What the agent counts, and who may look at it: Prometheus, over loopback.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::self_priority;

/// A number that only its owner changes and everybody reads.
#[derive(Debug, Default)]
pub(crate) struct Number(AtomicU64);

impl Number {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// All counts since the agent started.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) windows_cut: Number,
    pub(crate) windows_finished: Number,
    pub(crate) windows_sent: Number,
    pub(crate) windows_refused: Number,
    /// No room in the spool.
    pub(crate) dropped_spooled: Number,
    /// No room among those that wait to be finished.
    pub(crate) dropped_unfinished: Number,
    /// Could not be written.
    pub(crate) windows_lost: Number,
    /// Left by an agent that was killed, and finished by this one.
    pub(crate) windows_recovered: Number,
    pub(crate) samples: Number,
    pub(crate) samples_lost: Number,
    pub(crate) uncovered_ns: Number,
    pub(crate) spool_bytes: Number,
    pub(crate) spool_windows: Number,
    /// Of those, what the server takes later, because a clock is wrong.
    pub(crate) deferred: Number,
    pub(crate) unfinished: Number,
    pub(crate) send_failures: Number,
    pub(crate) reload_failures: Number,
    pub(crate) period_ns: Number,
    pub(crate) window_ns: Number,
    /// Of the last window, by VM.
    guest_cpu_ns: Mutex<BTreeMap<String, u64>>,
}

impl Metrics {
    /// What telling their maps cost the guests in the last window.
    pub(crate) fn set_guest_cpu(&self, by_vm: &[(String, u64)]) {
        *self.guest_cpu_ns.lock().unwrap_or_else(PoisonError::into_inner) =
            by_vm.iter().cloned().collect();
    }

    /// In Prometheus' text format.
    pub(crate) fn text(&self) -> String {
        let mut text = Text(String::new());
        text.family("windows_total", "counter", "Windows, by outcome.");
        for (outcome, n) in [
            ("cut", &self.windows_cut),
            ("finished", &self.windows_finished),
            ("sent", &self.windows_sent),
            ("refused", &self.windows_refused),
            ("dropped_spooled", &self.dropped_spooled),
            ("dropped_unfinished", &self.dropped_unfinished),
            ("lost", &self.windows_lost),
            ("recovered", &self.windows_recovered),
        ] {
            text.value("windows_total", &[("outcome", outcome)], &n.get().to_string());
        }
        let counters = [
            ("samples_total", "Samples in finished windows.", &self.samples),
            ("samples_lost_total", "Samples lost in finished windows.", &self.samples_lost),
            ("send_failures_total", "Failed attempts to send a window.", &self.send_failures),
            ("reload_failures_total", "Configurations that were refused.", &self.reload_failures),
        ];
        for (name, help, n) in counters {
            text.number(name, "counter", help, &n.get().to_string());
        }
        let seconds = |n: &Number| Duration::from_nanos(n.get()).as_secs_f64().to_string();
        let help = "Time not covered: between windows, and lost or dropped windows.";
        text.number("uncovered_seconds_total", "counter", help, &seconds(&self.uncovered_ns));
        let gauges = [
            ("spool_bytes", "Bytes of windows that wait to be sent.", &self.spool_bytes),
            ("spool_windows", "Windows that wait to be sent.", &self.spool_windows),
            (
                "put_off_windows",
                "Windows that a wrong clock keeps from being sent.",
                &self.deferred,
            ),
            ("unfinished_windows", "Windows that wait to be finished.", &self.unfinished),
        ];
        for (name, help, n) in gauges {
            text.number(name, "gauge", help, &n.get().to_string());
        }
        let help = "Sampling period in force.";
        text.number("period_seconds", "gauge", help, &seconds(&self.period_ns));
        text.number("window_seconds", "gauge", "Length of windows.", &seconds(&self.window_ns));
        let cpu = self_priority::cpu_time().as_secs_f64().to_string();
        text.number("cpu_seconds_total", "counter", "The agent's own CPU time.", &cpu);
        let memory = self_priority::memory_bytes().to_string();
        text.number("resident_bytes", "gauge", "The agent's own memory.", &memory);
        let files = self_priority::open_files().to_string();
        text.number("open_files", "gauge", "The agent's open files.", &files);
        let help = "CPU time of a guest's answers in the last window.";
        text.family("guest_map_cpu_seconds", "gauge", help);
        let guests = self.guest_cpu_ns.lock().unwrap_or_else(PoisonError::into_inner);
        for (vm, cpu_ns) in guests.iter() {
            let seconds = Duration::from_nanos(*cpu_ns).as_secs_f64().to_string();
            text.value("guest_map_cpu_seconds", &[("vm", vm)], &seconds);
        }
        text.0
    }
}

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP vmscope_agent_{name} {help}");
        let _ = writeln!(self.0, "# TYPE vmscope_agent_{name} {kind}");
    }

    fn number(&mut self, name: &str, kind: &str, help: &str, value: &str) {
        self.family(name, kind, help);
        self.value(name, &[], value);
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "vmscope_agent_{name}{labels} {value}");
    }
}

/// A label's value: VMs' names are anybody's choice.
fn escaped(value: &str) -> String {
    let mut text = String::new();
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            c if c.is_control() => text.push(char::REPLACEMENT_CHARACTER),
            c => text.push(c),
        }
    }
    text
}

/// Longest request that is read.
const MAX_REQUEST_BYTES: usize = 4096;
/// For a request and its answer.
const LIMIT: Duration = Duration::from_secs(2);

/// Answers one connection after the other. Who does not ask in time is hung up.
pub(crate) fn serve(address: SocketAddr, metrics: Arc<Metrics>) -> std::io::Result<()> {
    let listener = TcpListener::bind(address)?;
    let serve = move || {
        for stream in listener.incoming() {
            match stream {
                // The process that queried may be gone.
                Ok(stream) => drop(answer(stream, &metrics)),
                // No descriptors are left: there may be some a moment later.
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    };
    std::thread::Builder::new().name("metrics".to_owned()).spawn(serve).map(drop)
}

fn answer(mut stream: TcpStream, metrics: &Metrics) -> std::io::Result<()> {
    let deadline = Instant::now() + LIMIT;
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let read = stream.read(&mut chunk)?;
        if read == 0 || left.is_zero() || MAX_REQUEST_BYTES < request.len() {
            return Ok(());
        }
        request.extend_from_slice(&chunk[..read]);
    }
    let (status, text) = if request.starts_with(b"GET /metrics ") {
        ("200 OK", metrics.text())
    } else {
        ("404 Not Found", "try /metrics\n".to_owned())
    };
    stream.set_write_timeout(Some(LIMIT))?;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(text.as_bytes())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn it_is_prometheus_text() {
        let metrics = Arc::<Metrics>::default();
        metrics.windows_cut.add(3);
        metrics.uncovered_ns.add(1_500_000_000);
        metrics.set_guest_cpu(&[("we\"b\n".to_owned(), 2_000_000)]);
        let text = metrics.text();
        for line in [
            "vmscope_agent_windows_total{outcome=\"cut\"} 3",
            "vmscope_agent_uncovered_seconds_total 1.5",
            "vmscope_agent_guest_map_cpu_seconds{vm=\"we\\\"b\u{fffd}\"} 0.002",
            "# TYPE vmscope_agent_spool_bytes gauge",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        serve(address, Arc::clone(&metrics)).unwrap();
        let ask = |request: &str| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        };
        // Says nothing: it does not keep others waiting for long.
        let _silent = TcpStream::connect(address).unwrap();
        assert!(ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").contains("outcome=\"cut\"} 3"));
        assert!(ask("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    }
}
