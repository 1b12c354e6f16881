//! The process that answers queries, one after the other, without privileges: it can be killed at any time.
//!
//! ```text
//!  main thread: the server's messages --> queries --> "query" thread: plans them; the engine's threads run them
//!               bytes of objects ------> the engine                  --> answer --> idle
//!               stop: answers itself with the rows so far
//! ```
//! It has no files and no network: its parent reads for it (`remote`).

use std::sync::Arc;
use std::sync::Barrier;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use api::query::{FromChild, Question, ToChild, Unanswered};
use bytes::Bytes;
use catch_panic::catch_panic;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::SessionContext;
use object_store::ObjectStore;
use sandbox::{Allowance, Channel, Dialogue};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::remote::{Link, RemoteStore, Reply};
use crate::rows::{Rows, Taken};
use crate::statement::{context, run};
use crate::table::{Files, STORE};
use crate::{QueryError, n_threads};

/// Of each thread: `1+1+1...` is a tree of 4,096 levels, parts of which are walked by recursion.
const STACK_BYTES: usize = 64 << 20;
/// Memory for layouts of files that were read.
const METADATA_BYTES: usize = 8 << 20;
/// A child that has grown by this much memory is replaced.
const KEPT_BYTES: u64 = 64 << 20;
/// How long a query's tasks may go on once it is answered.
const TO_END: Duration = Duration::from_millis(500);

pub(crate) struct QueryChild {
    runtime: Option<Runtime>,
    link: Arc<Link>,
    queries: Sender<(Question, Arc<Taken>)>,
}

/// The engine's memory and its store.
pub(crate) fn environment(
    objects: Arc<dyn ObjectStore>,
    memory_bytes: usize,
) -> std::io::Result<Arc<RuntimeEnv>> {
    // Rows that do not fit into memory are refused, not put on a disk.
    let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
    let environment = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(GreedyMemoryPool::new(memory_bytes)))
        .with_disk_manager_builder(disk)
        .with_metadata_cache_limit(METADATA_BYTES)
        .build_arc()
        .map_err(|error| std::io::Error::other(error.to_string()))?;
    let url = url::Url::parse(STORE).map_err(std::io::Error::other)?;
    environment.register_object_store(&url, objects);
    Ok(environment)
}

impl QueryChild {
    fn try_start(
        allowed: Allowance,
        resident: impl Fn() -> u64 + Send + 'static,
    ) -> std::io::Result<Self> {
        let link = Arc::new(Link::default());
        // The engine counts some of what it allocates.
        let counted = usize::try_from(allowed.memory_bytes / 2).unwrap_or(usize::MAX);
        let environment = environment(Arc::new(RemoteStore(Arc::clone(&link))), counted)?;
        let files: Arc<dyn Files> = Arc::clone(&link) as _;
        let context = context(&environment, n_threads(), &files).map_err(std::io::Error::other)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(n_threads())
            .thread_name("query")
            .thread_stack_size(STACK_BYTES)
            .build()?;
        let all_run = Arc::new(Barrier::new(n_threads() + 2));
        for _ in 0..n_threads() {
            let runs = Arc::clone(&all_run);
            runtime.spawn(async move {
                runs.wait();
            });
        }
        let (queries, received) = channel();
        let answering = Answering {
            runtime: runtime.handle().clone(),
            context,
            link: Arc::clone(&link),
            cpu_limit: Duration::from_secs(allowed.cpu_seconds / 2),
            at_start: resident(),
            resident: Box::new(resident),
        };
        let runs = Arc::clone(&all_run);
        std::thread::Builder::new().stack_size(STACK_BYTES).name("query".to_owned()).spawn(
            move || {
                runs.wait();
                answering.answer_all(&received);
            },
        )?;
        all_run.wait();
        Ok(Self { runtime: Some(runtime), link, queries })
    }
}

impl Dialogue for QueryChild {
    const NAME: &'static str = "vmscope-query";

    fn start(allowed: Allowance, resident: impl Fn() -> u64 + Send + 'static) -> Self {
        // Without threads there is no child; the parent sees it end.
        Self::try_start(allowed, resident).unwrap_or_else(|_| std::process::abort())
    }

    fn talk(mut self, parent: Channel) {
        let Some(parent) = self.link.connect(parent) else { return };
        let mut current: Option<Arc<Taken>> = None;
        while let Some(message) = parent.receive() {
            let Ok((message, rest)) = postcard::take_from_bytes::<ToChild>(&message) else {
                break;
            };
            match message {
                ToChild::Ask(question) => {
                    let taken = Arc::new(Taken::new(Rows::new(question.rows)));
                    current = Some(Arc::clone(&taken));
                    if self.queries.send((question, taken)).is_err() {
                        break;
                    }
                }
                ToChild::Files { id, found } => self.link.take(id, Reply::Files(found)),
                ToChild::Bytes { id, failed } => {
                    let bytes = failed.map_or_else(|| Ok(Bytes::copy_from_slice(rest)), Err);
                    self.link.take(id, Reply::Bytes(bytes));
                }
                ToChild::Stop { seconds } => {
                    let rows = current.take().and_then(|taken| taken.take());
                    rows.into_iter().for_each(|rows| stopped(&self.link, rows, seconds));
                }
            }
        }
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Answers with what there was when the time was over.
fn stopped(link: &Link, mut rows: Rows, seconds: u64) {
    if rows.is_empty() {
        return answer(link, Err(Unanswered::Late));
    }
    rows.lacks(format!("the query was stopped after {seconds} s"));
    answer(link, Ok(rows));
}

fn answer(link: &Link, rows: Result<Rows, Unanswered>) {
    match rows.map(Rows::finish) {
        Ok((found, text)) => link.say(&FromChild::Answer(Ok(found)), &text),
        Err(reason) => link.say(&FromChild::Answer(Err(reason)), &[]),
    };
}

/// The thread that runs queries.
struct Answering {
    runtime: Handle,
    context: SessionContext,
    link: Arc<Link>,
    /// A child that used more is replaced.
    cpu_limit: Duration,
    /// Memory.
    at_start: u64,
    resident: Box<dyn Fn() -> u64 + Send>,
}

impl Answering {
    fn answer_all(self, queries: &Receiver<(Question, Arc<Taken>)>) {
        for (question, taken) in queries {
            let ran = catch_panic(|| self.runtime.block_on(run(&self.context, question, &taken)));
            let ran = ran.unwrap_or(Err(QueryError::Panicked));
            let is_whole = !matches!(ran, Err(QueryError::Panicked));
            // If it was stopped, it is answered.
            if let Some(rows) = taken.take() {
                answer(&self.link, ran.map(|()| rows).map_err(unanswered));
            }
            let is_spent = !is_whole || !self.is_over() || self.has_much();
            if !self.link.say(&FromChild::Idle { is_spent }, &[]) {
                return;
            }
        }
    }

    /// Waits until nothing of a query is left; false: something goes on.
    fn is_over(&self) -> bool {
        let began = Instant::now();
        while 0 < self.runtime.metrics().num_alive_tasks() {
            if TO_END < began.elapsed() {
                return false;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        true
    }

    fn has_much(&self) -> bool {
        self.at_start + KEPT_BYTES < (self.resident)() || self.cpu_limit < sandbox::cpu_time()
    }
}

fn unanswered(error: QueryError) -> Unanswered {
    match error {
        QueryError::Late(_) => Unanswered::Late,
        QueryError::Memory => Unanswered::Memory,
        QueryError::Damaged(object) => Unanswered::Damaged(object),
        QueryError::Store(text) => Unanswered::Store(text),
        other => Unanswered::Invalid(other.to_string()),
    }
}
