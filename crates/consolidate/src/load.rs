//! An open-loop generator: requests are sent when they are meant to be, whether or not earlier ones were answered, and a
//! turnaround counts from that time. A server that stalls thus shows in every request that it kept waiting.
//!
//! ```text
//!  timer --> request meant for t --> a connection to its VM (or the queue for one) --> answer at u: turnaround u - t
//! ```
//!
//! One thread does everything: it sleeps until a request is due or an answer comes.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, Uri, header};
use hyper_util::rt::TokioIo;
use lab::{Arrivals, Choose, Load, Turnarounds};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::LocalSet;

/// Requests under way at most: more fail at once, so that memory stays bounded however slow the VMs are.
const MAX_OUTSTANDING: usize = 20_000;
/// Connections to each target at most, as in plans.
const MAX_CONNECTIONS: usize = 1000;
/// Bytes of an answer at most.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Requests, and their targets.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadJob {
    pub targets: Vec<SocketAddr>,
    /// The path of each request.
    pub path: String,
    pub pace: Pace,
    pub choose: Choose,
    /// Time before requests count, ns.
    pub warm_up_ns: u64,
    /// Time in which they count, ns.
    pub measure_ns: u64,
    /// A request that takes longer has failed, ns.
    pub timeout_ns: u64,
    /// Connections to each target at most.
    pub connections: usize,
    /// What random times and orders are made of.
    pub seed: u64,
}

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Pace {
    /// At this rate, whatever becomes of them.
    Open {
        /// Requests a second.
        rate: f64,
        /// Times between them.
        arrivals: Arrivals,
    },
    /// By clients that wait for the answer, and then think.
    Closed {
        clients: u32,
        /// How long they think on average, ns; the times are random.
        think_ns: u64,
    },
}

/// How far the generator is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Requests count from now on.
    Measuring,
    /// No more requests are sent that count. Answers may still come.
    Measured,
}

impl LoadJob {
    /// As it is given to a generator that is a process of its own.
    #[must_use]
    pub fn json(&self) -> Value {
        let arrivals = |arrivals| match arrivals {
            Arrivals::Poisson => "poisson",
            Arrivals::Constant => "constant",
        };
        let choose = match self.choose {
            Choose::Random => "random",
            Choose::RoundRobin => "round-robin",
        };
        let pace = match self.pace {
            Pace::Open { rate, arrivals: times } => {
                json!({ "open": { "rate": rate, "arrivals": arrivals(times) } })
            }
            Pace::Closed { clients, think_ns } => {
                json!({ "closed": { "clients": clients, "think_ns": think_ns } })
            }
        };
        json!({
            "targets": self.targets.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "path": self.path,
            "pace": pace,
            "choose": choose,
            "warm_up_ns": self.warm_up_ns,
            "measure_ns": self.measure_ns,
            "timeout_ns": self.timeout_ns,
            "connections": self.connections,
            "seed": self.seed,
        })
    }

    /// Reads a job.
    ///
    /// # Errors
    /// When it is none, or a number is out of bounds.
    pub fn parse(text: &str) -> Result<Self, String> {
        let job: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        job.check()
    }

    /// The job, if all its numbers are within their bounds.
    ///
    /// # Errors
    /// When one is not, with the bounds.
    pub fn check(self) -> Result<Self, String> {
        let bound = self.warm_up_ns.saturating_add(self.measure_ns).saturating_add(self.timeout_ns);
        if self.targets.is_empty() {
            return Err("no server is named".to_owned());
        }
        if 86_400_000_000_000 < bound {
            return Err("it would take longer than a day".to_owned());
        }
        if self.measure_ns == 0 || self.timeout_ns == 0 {
            return Err("the duration and the timeout must be longer than 0 s".to_owned());
        }
        if !(1..=MAX_CONNECTIONS).contains(&self.connections) {
            let n = self.connections;
            return Err(format!("{n} connections are not within 1 to {MAX_CONNECTIONS}"));
        }
        match self.pace {
            Pace::Open { rate, .. } if !(0.001..=1e6).contains(&rate) => {
                Err(format!("a rate of {rate} is not within 0.001 to 1000000"))
            }
            Pace::Closed { clients, .. } if !(1..=10_000).contains(&clients) => {
                Err(format!("{clients} clients are not within 1 to 10000"))
            }
            _ => Ok(self),
        }
    }
}

/// Asks, and waits for the answers. `tell` hears how far it is.
///
/// # Errors
/// When the kernel gives no timer. A target that does not answer is no error: its requests have failed.
pub fn generate(job: &LoadJob, tell: impl FnMut(Phase) + 'static) -> io::Result<Load> {
    generate_until(job, &AtomicBool::new(false), tell)
}

/// The same up to when `stop` is set, if that is earlier. Requests that are not answered by then have failed.
///
/// # Errors
/// As above.
pub fn generate_until(
    job: &LoadJob,
    stop: &AtomicBool,
    tell: impl FnMut(Phase) + 'static,
) -> io::Result<Load> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = LocalSet::new();
    let generator = Rc::new(Generator::new(job)?);
    let cpu_before = cpu_ns();
    runtime.block_on(tasks.run_until(async {
        tokio::select! {
            ended = Rc::clone(&generator).run(tell) => ended,
            () = until(stop) => Ok(()),
        }
    }))?;
    let measured_ns =
        now_ns().clamp(generator.measure_from(), generator.measure_to()) - generator.measure_from();
    drop(tasks);
    let generator = Rc::into_inner(generator).ok_or_else(|| io::Error::other("requests go on"))?;
    let (mut turnarounds, late) = (generator.turnarounds.into_inner(), generator.late.into_inner());
    (0..generator.unanswered.get()).for_each(|_| turnarounds.add_failed("interrupted"));
    Ok(Load {
        length_ns: measured_ns,
        turnarounds,
        late_p99_ns: late.percentile(99.0).unwrap_or(0),
        cpu_ns: cpu_ns().saturating_sub(cpu_before),
    })
}

struct Generator {
    job: LoadJob,
    targets: Vec<Rc<Target>>,
    random: RefCell<fastrand::Rng>,
    next_target: Cell<usize>,
    turnarounds: RefCell<Turnarounds>,
    late: RefCell<Turnarounds>,
    outstanding: Cell<usize>,
    /// Of them, those that count.
    unanswered: Cell<usize>,
    start_ns: u64,
    is_over: watch::Sender<bool>,
}

struct Target {
    address: SocketAddr,
    uri: Uri,
    idle: RefCell<Vec<SendRequest<Empty<Bytes>>>>,
    places: Semaphore,
}

impl Generator {
    fn new(job: &LoadJob) -> io::Result<Self> {
        let uri: Uri = job.path.parse().map_err(io::Error::other)?;
        let target = |address: &SocketAddr| {
            Rc::new(Target {
                address: *address,
                uri: uri.clone(),
                idle: RefCell::default(),
                places: Semaphore::new(job.connections.max(1)),
            })
        };
        Ok(Self {
            targets: job.targets.iter().map(target).collect(),
            random: RefCell::new(fastrand::Rng::with_seed(job.seed)),
            next_target: Cell::new(0),
            turnarounds: RefCell::default(),
            late: RefCell::default(),
            outstanding: Cell::new(0),
            unanswered: Cell::new(0),
            start_ns: now_ns(),
            is_over: watch::Sender::new(false),
            job: job.clone(),
        })
    }

    async fn run(self: Rc<Self>, tell: impl FnMut(Phase) + 'static) -> io::Result<()> {
        let phases = tokio::task::spawn_local(Rc::clone(&self).phases(tell));
        match self.job.pace {
            Pace::Open { rate, arrivals } => Rc::clone(&self).open(rate, arrivals).await?,
            Pace::Closed { clients, think_ns } => Rc::clone(&self).closed(clients, think_ns).await,
        }
        phases.await.map_err(io::Error::other)??;
        // Each ends at its timeout.
        while 0 < self.outstanding.get() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    async fn phases(self: Rc<Self>, mut tell: impl FnMut(Phase)) -> io::Result<()> {
        let mut timer = Timer::new()?;
        timer.sleep_until(self.measure_from()).await?;
        tell(Phase::Measuring);
        timer.sleep_until(self.measure_to()).await?;
        self.is_over.send_replace(true);
        tell(Phase::Measured);
        Ok(())
    }

    async fn open(self: Rc<Self>, rate: f64, arrivals: Arrivals) -> io::Result<()> {
        let mut timer = Timer::new()?;
        let mut due = self.start_ns as f64;
        loop {
            due += match arrivals {
                Arrivals::Constant => 1e9 / rate,
                Arrivals::Poisson => self.exponential(1e9 / rate),
            };
            let due_ns = rounded(due);
            if self.measure_to() <= due_ns {
                return Ok(());
            }
            if now_ns() < due_ns {
                timer.sleep_until(due_ns).await?;
            } else {
                // Late: those that were sent go first, so that all are sent in order.
                tokio::task::yield_now().await;
            }
            let generator = Rc::clone(&self);
            tokio::task::spawn_local(async move { generator.request(due_ns).await });
        }
    }

    async fn closed(self: Rc<Self>, clients: u32, think_ns: u64) {
        let client = |_| {
            let generator = Rc::clone(&self);
            tokio::task::spawn_local(async move { generator.client(think_ns).await })
        };
        let clients: Vec<_> = (0..clients).map(client).collect();
        for client in clients {
            // A client never panics; if it did, its requests would be missing.
            drop(client.await);
        }
    }

    async fn client(self: Rc<Self>, think_ns: u64) {
        let mut is_over = self.is_over.subscribe();
        loop {
            let think = Duration::from_nanos(rounded(self.exponential(think_ns as f64)));
            tokio::select! {
                () = tokio::time::sleep(think) => {}
                _ = is_over.wait_for(|is_over| *is_over) => return,
            }
            Rc::clone(&self).request(now_ns()).await;
            if self.measure_to() <= now_ns() {
                return;
            }
        }
    }

    /// One request that was meant to be sent at `due_ns`.
    async fn request(self: Rc<Self>, due_ns: u64) {
        let counts = (self.measure_from()..self.measure_to()).contains(&due_ns);
        if counts {
            self.late.borrow_mut().add(now_ns().saturating_sub(due_ns));
            self.unanswered.set(self.unanswered.get() + 1);
        }
        let outcome = if self.outstanding.get() < MAX_OUTSTANDING {
            self.outstanding.set(self.outstanding.get() + 1);
            let target = Rc::clone(&self.targets[self.choose()]);
            let limit = due_ns.saturating_add(self.job.timeout_ns).saturating_sub(now_ns());
            let requested = tokio::time::timeout(Duration::from_nanos(limit), target.ask()).await;
            self.outstanding.set(self.outstanding.get() - 1);
            requested.unwrap_or_else(|_| Err("timeout".to_owned()))
        } else {
            Err("too many outstanding".to_owned())
        };
        let took = now_ns().saturating_sub(due_ns);
        if counts {
            self.unanswered.set(self.unanswered.get() - 1);
            let mut turnarounds = self.turnarounds.borrow_mut();
            match outcome {
                Ok(()) => turnarounds.add(took),
                Err(why) => turnarounds.add_failed(&why),
            }
        }
    }

    fn choose(&self) -> usize {
        let n = self.targets.len();
        match self.job.choose {
            Choose::Random => self.random.borrow_mut().usize(..n),
            Choose::RoundRobin => {
                let next = self.next_target.get();
                self.next_target.set((next + 1) % n);
                next
            }
        }
    }

    fn exponential(&self, mean: f64) -> f64 {
        -mean * (1.0 - self.random.borrow_mut().f64()).ln()
    }

    fn measure_from(&self) -> u64 {
        self.start_ns.saturating_add(self.job.warm_up_ns)
    }

    fn measure_to(&self) -> u64 {
        self.measure_from().saturating_add(self.job.measure_ns)
    }
}

impl Target {
    /// Sends a request and reads the whole answer. The server may have closed an idle connection: then another one is
    /// made, as browsers do.
    async fn ask(&self) -> Result<(), String> {
        let _place = self.places.acquire().await.map_err(|_| "no connection".to_owned())?;
        let idle = self.idle.borrow_mut().pop();
        if let Some(mut connection) = idle
            && connection.ready().await.is_ok()
            && let Ok(answer) = connection.send_request(self.request()).await
        {
            return self.read(connection, answer).await;
        }
        let mut connection = self.connect().await?;
        let answer = connection.send_request(self.request()).await.map_err(disconnected)?;
        self.read(connection, answer).await
    }

    async fn connect(&self) -> Result<SendRequest<Empty<Bytes>>, String> {
        let not_connected = |error: io::Error| format!("not connected: {error}");
        let stream = TcpStream::connect(self.address).await.map_err(not_connected)?;
        stream.set_nodelay(true).map_err(not_connected)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(disconnected)?;
        // It ends with its last sender, or when the server hangs up.
        tokio::task::spawn_local(connection);
        Ok(sender)
    }

    fn request(&self) -> Request<Empty<Bytes>> {
        let request = Request::get(self.uri.clone());
        let request = request.header(header::HOST, self.address.to_string());
        request.body(Empty::new()).expect("a parsed URI and an address make a request")
    }

    async fn read(
        &self,
        connection: SendRequest<Empty<Bytes>>,
        answer: Response<Incoming>,
    ) -> Result<(), String> {
        let status = answer.status();
        let mut body = answer.into_body();
        let mut size = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(disconnected)?;
            size += frame.data_ref().map_or(0, Bytes::len);
            if MAX_ANSWER_BYTES < size {
                return Err("answer too long".to_owned());
            }
        }
        self.idle.borrow_mut().push(connection);
        if status.is_success() { Ok(()) } else { Err(format!("status {}", status.as_u16())) }
    }
}

/// A connection ended before its answer, or the answer is no HTTP. The reason is the system's, if it has one.
#[allow(clippy::needless_pass_by_value, reason = "`map_err` gives it away")]
fn disconnected(error: hyper::Error) -> String {
    match error.source() {
        Some(cause) => format!("disconnected: {cause}"),
        None => format!("disconnected: {error}"),
    }
}

/// A signal's handler can do no more than to set a flag.
async fn until(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A timer of the kernel: the runtime's own has milliseconds.
struct Timer(AsyncFd<std::os::fd::OwnedFd>);

impl Timer {
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: it owns its descriptor, which is open and the same until both are dropped.
        Ok(Self(unsafe { AsyncFd::register(timer) }?))
    }

    async fn sleep_until(&mut self, at_ns: u64) -> io::Result<()> {
        let it_value = Timespec {
            tv_sec: i64::try_from(at_ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(at_ns % 1_000_000_000).unwrap_or(0),
        };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let when = Itimerspec { it_interval: never, it_value };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::ABSTIME, &when)?;
        while now_ns() < at_ns {
            let mut ready = self.0.readable().await?;
            let mut expirations = [0; 8];
            // It may be unreadable before its time.
            let _ = ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut expirations)?));
        }
        Ok(())
    }
}

fn now_ns() -> u64 {
    ns(clock_gettime(ClockId::Monotonic))
}

fn cpu_ns() -> u64 {
    ns(clock_gettime(ClockId::ProcessCPUTime))
}

fn ns(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times of this machine's uptime; casts saturate"
)]
fn rounded(ns: f64) -> u64 {
    ns as u64
}

#[cfg(test)]
mod test {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::atomic::AtomicU64;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A server whose answers take `delay(n)` ms, n being the number of the request.
    fn server(delay: impl Fn(u64) -> u64 + Send + Sync + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (delay, counted) = (Arc::new(delay), Arc::new(AtomicU64::new(0)));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (delay, counted) = (Arc::clone(&delay), Arc::clone(&counted));
                std::thread::spawn(move || answer(stream, &*delay, &counted));
            }
        });
        address
    }

    fn answer(mut stream: std::net::TcpStream, delay: &dyn Fn(u64) -> u64, counted: &AtomicU64) {
        let mut request = [0; 4096];
        while stream.read(&mut request).is_ok_and(|n| 0 < n) {
            let n = counted.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(delay(n)));
            let answered = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
            if answered.is_err() {
                return;
            }
        }
    }

    fn job(target: SocketAddr, pace: Pace) -> LoadJob {
        LoadJob {
            targets: vec![target],
            path: "/page?n=1".to_owned(),
            pace,
            choose: Choose::RoundRobin,
            warm_up_ns: 50_000_000,
            measure_ns: 400_000_000,
            timeout_ns: 5_000_000_000,
            connections: 64,
            seed: 1,
        }
    }

    const CONSTANT: Pace = Pace::Open { rate: 100.0, arrivals: Arrivals::Constant };

    #[test]
    fn a_job_comes_back_as_written() {
        let target = "127.0.0.1:80".parse().unwrap();
        for pace in [CONSTANT, Pace::Closed { clients: 3, think_ns: 5 }] {
            let job = job(target, pace);
            assert_eq!(LoadJob::parse(&job.json().to_string()), Ok(job));
        }
        let none = LoadJob { targets: Vec::new(), ..job(target, CONSTANT) };
        assert!(LoadJob::parse(&none.json().to_string()).is_err());
    }

    /// No number makes a generator that never sends, never ends or fails of itself.
    #[test]
    fn numbers_of_a_job_have_bounds() {
        let good = job("127.0.0.1:80".parse().unwrap(), CONSTANT);
        let check = |change: &dyn Fn(&mut LoadJob), expected: &str| {
            let mut job = good.clone();
            change(&mut job);
            let error = job.check().unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        for rate in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e-300, 1e7, f64::MAX] {
            let pace = Pace::Open { rate, arrivals: Arrivals::Poisson };
            check(&|job| job.pace = pace, &format!("a rate of {rate} is not within"));
        }
        for clients in [0, u32::MAX] {
            check(
                &|job| job.pace = Pace::Closed { clients, think_ns: 1 },
                "clients are not within",
            );
        }
        for n in [0, 1001, usize::MAX] {
            check(&|job| job.connections = n, "connections are not within 1 to 1000");
        }
        check(&|job| job.measure_ns = 0, "longer than 0 s");
        check(&|job| job.timeout_ns = 0, "longer than 0 s");
        check(&|job| job.measure_ns = u64::MAX, "longer than a day");
    }

    #[test]
    fn failures_have_the_reason_of_the_system_or_of_the_server() {
        let answers = [
            (&b"HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\n\r\n"[..], "status 503"),
            (b"nothing\r\n\r\n", "disconnected: invalid HTTP version parsed"),
        ];
        for (said, expected) in answers {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            std::thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    let _ = stream.read(&mut [0; 4096]);
                    let _ = stream.write_all(said);
                }
            });
            let load = generate(&job(address, CONSTANT), |_| ()).unwrap();
            let reasons: Vec<_> = load.turnarounds.failed().keys().collect();
            assert_eq!(reasons, [expected]);
        }
    }

    #[test]
    fn requests_are_sent_at_their_times_whatever_becomes_of_them() {
        let load = generate(&job(server(|_| 20), CONSTANT), |_| ()).unwrap();
        assert_eq!((load.turnarounds.len(), load.turnarounds.n_failed()), (40, 0));
        assert!(20_000_000 <= load.turnarounds.percentile(1.0).unwrap());
        assert!((load.sent_per_s() - 100.0).abs() < 1e-9);
    }

    #[test]
    fn a_stall_shows_in_every_request_that_it_kept_waiting() {
        // One connection: the tenth answer takes 300 ms, and the requests meant for that time wait for it.
        let stalls = server(|n| if n == 10 { 300 } else { 0 });
        let stalled = LoadJob { connections: 1, ..job(stalls, CONSTANT) };
        let load = generate(&stalled, |_| ()).unwrap();
        // 30 requests were meant to be sent in the stall: a client that waits for answers would have one slow request.
        let slow = (1..=40).filter(|n| {
            let percentile = load.turnarounds.percentile(100.0 * f64::from(*n) / 40.0);
            50_000_000 < percentile.unwrap()
        });
        assert!(20 < slow.count(), "{:?}", load.turnarounds);
        assert_eq!(load.turnarounds.n_failed(), 0);
    }

    #[test]
    fn what_is_not_answered_in_time_has_failed() {
        let slow = LoadJob { timeout_ns: 30_000_000, ..job(server(|_| 200), CONSTANT) };
        let load = generate(&slow, |_| ()).unwrap();
        assert_eq!((load.turnarounds.n_answered(), load.turnarounds.n_failed()), (0, 40));
        assert_eq!(load.turnarounds.failed()["timeout"], 40);
        assert_eq!(load.turnarounds.percentile(1.0), None);
        let unread = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let load = generate(&job(unread, CONSTANT), |_| ()).unwrap();
        assert_eq!(
            load.turnarounds.failed()["not connected: Connection refused (os error 111)"],
            40
        );
    }

    #[test]
    fn what_was_measured_up_to_an_interruption_is_kept() {
        // The first answer is the last: then the test interrupts, while nine requests and more wait.
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stops, seen) = (Arc::clone(&stop), Arc::clone(&answered));
        let target = server(move |n| {
            seen.store(n, Ordering::Relaxed);
            stops.store(10 <= n, Ordering::Relaxed);
            if n == 0 { 0 } else { 60_000 }
        });
        let job = LoadJob { warm_up_ns: 0, measure_ns: 60_000_000_000, ..job(target, CONSTANT) };
        let load = generate_until(&job, &stop, |_| ()).unwrap();
        assert!(10 <= answered.load(Ordering::Relaxed));
        assert_eq!(load.turnarounds.n_answered(), 1);
        let interrupted = load.turnarounds.failed()["interrupted"];
        assert!((10..6000).contains(&interrupted), "{interrupted}");
        assert!(load.length_ns < 60_000_000_000);
    }

    #[test]
    fn clients_wait_for_answers_and_think() {
        let pace = Pace::Closed { clients: 2, think_ns: 10_000_000 };
        let phases = Arc::new(Mutex::new(Vec::new()));
        let reported = Arc::clone(&phases);
        let tell = move |phase| reported.lock().unwrap().push(phase);
        let load = generate(&job(server(|_| 40), pace), tell).unwrap();
        // Two clients of 50 ms each on average: 16 requests in 400 ms, were all thoughts of average length.
        let n = load.turnarounds.n_answered();
        assert!((1..=20).contains(&n), "{n}");
        assert_eq!(*phases.lock().unwrap(), [Phase::Measuring, Phase::Measured]);
    }
}
