//! What guests' functions took, for other tools: on request, or sent to OpenTelemetry collectors as windows are
//! analysed.
//!
//! ```text
//!  analyze --window--> queue of 64 for each collector --> results --> OTLP
//! ```
//! The server that analyses a window sends it, so it is sent once. What does not fit into the queue is counted and left out.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use api::http::Answer;
use bytes::Bytes;
use export::{FunctionCost, Functions, GuestFunction};
use model::VcpuTimeState;
use model::{ResultStack, Results, VcpuTimeRow};
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tracing::warn;

use crate::Server;
use crate::auth::unix_s;
use crate::destination::{PostError, Poster};
use crate::object_names::DayWindow;

/// Where collectors take profiles.
const PATH: &str = "/v1development/profiles";
const QUEUE: usize = 64;
/// Functions of a window.
const MAX_FUNCTIONS: usize = 4000;
/// Attempts at a window, with pauses that double between them.
const ATTEMPTS: u32 = 6;
const PAUSE: Duration = Duration::from_secs(1);

/// The query of `vcpu_time` for host, VM, process, pid, module, function, stack, samples, apparent and corrected ns, with a
/// condition on its rows.
pub(crate) fn query(condition: &str) -> String {
    let names = |is: fn(VcpuTimeState) -> bool| {
        let names = VcpuTimeState::ALL
            .iter()
            .copied()
            .filter(|state| is(*state))
            .map(|state| format!("'{}'", state.name()));
        names.collect::<Vec<_>>().join(", ")
    };
    let (apparent, sampled) =
        (names(VcpuTimeState::is_apparent), names(VcpuTimeState::is_sampled_guest));
    format!(
        "SELECT host, vm, process, pid, module, function, stack, \
         sum(CASE WHEN state IN ({sampled}) THEN samples ELSE 0 END), sum(ns) AS apparent_ns, sum(corrected_ns) \
         FROM vcpu_time WHERE state IN ({apparent}) AND {condition} \
         GROUP BY host, vm, process, pid, module, function, stack ORDER BY apparent_ns DESC"
    )
}

/// From the answer to [`query`].
pub(crate) fn from_answer(answer: &Answer, from_ns: u64, to_ns: u64) -> Functions {
    let mut functions = Functions {
        start_unix_ns: from_ns,
        length_ns: to_ns.saturating_sub(from_ns),
        notes: answer.partial.iter().map(|reason| format!("partial: {reason}")).collect(),
        ..Functions::default()
    };
    for row in &answer.rows {
        let [host, vm, process, pid, module, function, stack, samples, ns, corrected_ns] =
            row.as_slice()
        else {
            continue;
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let function = GuestFunction {
            host: text(host),
            vm: text(vm),
            process: text(process),
            pid: pid.as_u64().and_then(|pid| u32::try_from(pid).ok()),
            module: text(module),
            function: text(function),
            callers: stack.as_str().map(callers).unwrap_or_default(),
        };
        let (samples, ns) = (number(samples), number(ns));
        functions.add(function, FunctionCost { samples, ns, corrected_ns: number(corrected_ns) });
    }
    functions
}

/// Of the function that a row's path ends with.
fn callers(path: &str) -> Vec<String> {
    let mut names: Vec<String> = ResultStack::names(path).collect();
    names.pop();
    names
}

/// From a window's rows.
fn from_results(results: &Results) -> Functions {
    let mut functions = Functions::default();
    if let Some(host) = results.hosts.first() {
        functions.start_unix_ns =
            u64::try_from(host.slice_unix_us).unwrap_or(0).saturating_mul(1000);
        functions.length_ns = host.row.length_ns;
    }
    for row in &results.vcpu_time {
        let VcpuTimeRow { vm, state, code, stack, ns, corrected_ns, samples, .. } = &row.row;
        let state = VcpuTimeState::from_name(state);
        if !state.is_apparent() {
            continue;
        }
        let text = |name: &Option<String>| name.clone().unwrap_or_default();
        let function = GuestFunction {
            host: row.window.host.clone(),
            vm: vm.clone(),
            process: text(&code.process),
            pid: code.pid,
            module: text(&code.module),
            function: text(&code.function),
            callers: stack.as_ref().map(|it| callers(&it.functions)).unwrap_or_default(),
        };
        let samples = if state.is_sampled_guest() { *samples } else { 0 };
        let cost = FunctionCost { samples, ns: *ns, corrected_ns: *corrected_ns };
        functions.add(function, cost);
    }
    functions.keep_most(MAX_FUNCTIONS);
    functions
}

/// The ends of the queues at which windows come in.
pub(crate) type Queues = std::sync::OnceLock<Vec<Sender<DayWindow>>>;

/// A task for each collector.
pub(crate) fn start(server: &Arc<Server>) -> Result<Vec<JoinHandle<()>>> {
    let (mut tasks, mut queues) = (Vec::new(), Vec::new());
    for collector in &server.config.otlp {
        let poster = Poster::new(collector, PATH)?;
        server.metrics.sends_to("otlp");
        let (sender, windows) = channel(QUEUE);
        queues.push(sender);
        tasks.push(tokio::spawn(Arc::clone(server).send_profiles(poster, windows)));
    }
    // It is started once.
    let _ = server.profiles.set(queues);
    Ok(tasks)
}

impl Server {
    /// A window has its results.
    pub(crate) fn queue_profile(&self, window: &DayWindow) {
        for queue in self.profiles.get().into_iter().flatten() {
            if queue.try_send(window.clone()).is_err() {
                self.metrics.message("otlp", "dropped");
            }
        }
    }

    async fn send_profiles(self: Arc<Self>, poster: Poster, mut windows: Receiver<DayWindow>) {
        while let Some(window) = windows.recv().await {
            let functions = match self.results(&window).await {
                Ok(Some(results)) => from_results(&results),
                Ok(None) => continue,
                Err(error) => {
                    warn!("no profile of {} was sent: {error}", window.id);
                    self.metrics.message("otlp", "dropped");
                    continue;
                }
            };
            if functions.costs.is_empty() {
                continue;
            }
            let body = Bytes::from(export::otlp::encoded(&functions));
            self.send_profile(&poster, &window, body).await;
        }
    }

    async fn send_profile(&self, poster: &Poster, window: &DayWindow, body: Bytes) {
        let id = window.id.to_string();
        for attempt in 0..ATTEMPTS {
            let sent = poster.post("application/x-protobuf", &id, unix_s(), body.clone()).await;
            self.count("otlp", &sent);
            match sent {
                Ok(()) => return,
                Err(error @ PostError::Refused(..)) => {
                    return warn!("a profile: {error}");
                }
                Err(error) if attempt + 1 == ATTEMPTS => {
                    warn!("no profile of {id} was sent: {error}");
                    self.metrics.message("otlp", "dropped");
                }
                Err(_) => tokio::time::sleep(PAUSE * (1 << attempt)).await,
            }
        }
    }
}
