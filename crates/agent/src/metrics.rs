//! What the agent counts, and who may look at it: Prometheus, over loopback.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use model::replace_unsafe;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

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

    /// In the text format of OpenMetrics.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // A string takes everything.
        let _ = encode(&mut text, &self.registry());
        text
    }

    /// All metrics as they are now. The library adds `_total` to counters' names.
    fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("vmscope_agent");
        let windows = Family::<[(&str, &str); 1], Counter>::default();
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
            windows.get_or_create(&[("outcome", outcome)]).inc_by(n.get());
        }
        registry.register("windows", "Windows, by outcome", windows);
        for (name, help, n) in [
            ("samples", "Samples in finished windows", &self.samples),
            ("samples_lost", "Samples lost in finished windows", &self.samples_lost),
            ("send_failures", "Failed attempts to send a window", &self.send_failures),
            ("reload_failures", "Configurations that were refused", &self.reload_failures),
        ] {
            registry.register(name, help, ConstCounter::new(n.get()));
        }
        let uncovered = Duration::from_nanos(self.uncovered_ns.get());
        for (name, help, time) in [
            (
                "uncovered_seconds",
                "Time not covered: between windows, and lost or dropped windows",
                uncovered,
            ),
            ("cpu_seconds", "The agent's own CPU time", self_priority::cpu_time()),
        ] {
            registry.register(name, help, ConstCounter::new(time.as_secs_f64()));
        }
        for (name, help, n) in [
            ("spool_bytes", "Bytes of windows that wait to be sent", self.spool_bytes.get()),
            ("spool_windows", "Windows that wait to be sent", self.spool_windows.get()),
            (
                "put_off_windows",
                "Windows that a wrong clock keeps from being sent",
                self.deferred.get(),
            ),
            ("unfinished_windows", "Windows that wait to be finished", self.unfinished.get()),
            ("resident_bytes", "The agent's own memory", self_priority::memory_bytes()),
            ("open_files", "The agent's open files", self_priority::open_files()),
        ] {
            registry.register(name, help, ConstGauge::new(n));
        }
        for (name, help, n) in [
            ("period_seconds", "Sampling period in force", &self.period_ns),
            ("window_seconds", "Length of windows", &self.window_ns),
        ] {
            let seconds = Duration::from_nanos(n.get()).as_secs_f64();
            registry.register(name, help, ConstGauge::new(seconds));
        }
        let guests = Family::<[(&str, String); 1], Gauge<f64, AtomicU64>>::default();
        for (vm, ns) in self.guest_cpu_ns.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let guest = guests.get_or_create(&[("vm", replace_unsafe(vm))]);
            guest.set(Duration::from_nanos(*ns).as_secs_f64());
        }
        let help = "CPU time of a guest's answers in the last window";
        registry.register("guest_map_cpu_seconds", help, guests);
        registry
    }
}

/// Longest request that is read.
const MAX_REQUEST_BYTES: usize = 4096;
/// For a request and its answer.
const LIMIT: Duration = Duration::from_secs(2);

/// Answers one connection after the other. Who does not ask in time is hung up.
///
/// tiny_http has no time limits, starts a thread for each connection, reads lines without end, and stops when it finds no
/// descriptor for a connection.
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
        "HTTP/1.1 {status}\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\
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
