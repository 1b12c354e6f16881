//! SQL over the fleet's result tables, within limits.
//!
//! ```text
//!  SQL --> queue --> child: a process without privileges that plans and runs it --> Answer, which says what it lacks
//!                      ^ which objects? what is in them?
//!  store --> catalog: windows whose results are complete --> tables: exact lists of objects
//! ```
//! Design constraints: this is the only crate that knows the query engine. What users ask runs where it can be killed: no
//! rule about SQL keeps a query from threads or memory, the kernel does. A query reads and never writes, and sees no files
//! but the result tables. An answer that is not all there is says so. What the server itself asks (`sum_up`, `rewrite`) has
//! fixed texts, which read columns and add them up, and runs here.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answer;
mod catalog;
mod checked;
mod child;
mod fleet;
pub mod packs;
mod pool;
mod queue;
mod ready;
mod remote;
mod rewrite;
mod rows;
mod statement;
mod table;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::http::{FleetAnswer, HealthAnswer};
use api::query::{Question, Value};
use arrow::array::RecordBatch;
use chrono::{DateTime, NaiveDate, Utc};
use datafusion::execution::context::SessionContext;
use datafusion::execution::runtime_env::RuntimeEnv;
use object_store::ObjectStore;
use object_store::path::Path;

pub use answer::AnswerText;
pub use catalog::{LastPacks, Scope};
pub use checked::Damage;
pub use ready::{READY, ReadyQuery, parse_instant};
pub use rewrite::{Inputs, SLICE_S};

use catalog::{Catalog, Windows};
use checked::Checked;
use fleet::FleetTimes;
use packs::Packs;
use pool::{Pool, Source};
use queue::Place;
use statement::invalid;
use table::{Files, FilesOf, schemas};

/// Bytes of a query's text. VMs may have names of 8 KiB.
const MAX_TEXT: usize = 1 << 15;
/// Windows whose results can't be read, and without which a query is tried again.
const MAX_DAMAGED: usize = 8;
/// Threads of a child at most.
const MAX_THREADS: usize = 8;

/// What queries may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub time: Duration,
    /// Memory of all: each may take its part.
    pub memory_bytes: usize,
    /// Rows of an answer.
    pub rows: usize,
    /// Queries at the same time.
    pub concurrent: usize,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The question is to blame.
    #[error("{0}")]
    Invalid(String),
    /// The engine failed at it.
    #[error("the query failed: the engine panicked")]
    Panicked,
    /// There is no such ready-made query.
    #[error("there is no query {0:?}: see the list of queries")]
    NoSuchQuery(String),
    #[error("too many queries are running: try again later")]
    Busy,
    /// It took too long before there was a row.
    #[error("the query took more than {} s: ask for a shorter time or fewer hosts", .0.as_secs())]
    Late(Duration),
    /// It took too much memory.
    #[error("the query needs too much memory: ask for a shorter time or fewer columns")]
    Memory,
    /// Its process ended before it answered.
    #[error("the query's process {0}: try again")]
    Ended(String),
    #[error("the results in {0} can't be read")]
    Damaged(String),
    /// The store does not answer.
    #[error("failed to read the store: {0}")]
    Store(String),
}

/// Threads that one query runs on.
pub(crate) fn n_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS)
}

/// Is a process that answers queries, if this process was started for that: a program's first call. `None`: it was not.
#[must_use]
pub fn serve_child() -> Option<std::process::ExitCode> {
    sandbox::serve_dialogue::<child::QueryChild>()
}

/// Answers SQL queries over the fleet's result tables.
#[derive(Debug)]
pub struct Engine {
    limits: Limits,
    objects: Arc<dyn ObjectStore>,
    catalog: Arc<Catalog>,
    pool: Arc<Pool>,
    fleet: FleetTimes,
    /// For what the server itself asks.
    environment: Arc<RuntimeEnv>,
    threads: Option<tokio::runtime::Runtime>,
}

impl Engine {
    /// Over a store, in a program that calls `serve_child` first.
    ///
    /// # Errors
    /// When threads can't be started.
    pub fn new(objects: Arc<dyn ObjectStore>, limits: Limits) -> std::io::Result<Self> {
        Self::with(objects, limits, true)
    }

    /// The same without processes, for tests of what is around them: nothing ends a query here.
    ///
    /// # Errors
    /// When threads can't be started.
    pub fn here(objects: Arc<dyn ObjectStore>, limits: Limits) -> std::io::Result<Self> {
        Self::with(objects, limits, false)
    }

    fn with(
        objects: Arc<dyn ObjectStore>,
        limits: Limits,
        has_processes: bool,
    ) -> std::io::Result<Self> {
        let checked = Checked::new(objects);
        let damage = Arc::clone(&checked.damage);
        let objects: Arc<dyn ObjectStore> = Arc::new(checked);
        let environment = child::environment(Arc::clone(&objects), limits.memory_bytes)?;
        let threads = tokio::runtime::Builder::new_multi_thread()
            .thread_name("results")
            .enable_all()
            .build()?;
        Ok(Self {
            limits,
            catalog: Arc::new(Catalog::new(Arc::clone(&objects), damage)),
            objects,
            pool: Arc::new(Pool::new(limits, has_processes)),
            fleet: FleetTimes::default(),
            environment,
            threads: Some(threads),
        })
    }

    /// Has a process ready for the first query.
    ///
    /// # Errors
    /// When there can be none.
    pub async fn prepare(&self) -> Result<(), QueryError> {
        self.pool.prepare().await
    }

    /// Ids of the processes that are ready for a query.
    #[must_use]
    pub fn children(&self) -> Vec<u32> {
        self.pool.ids()
    }

    /// Answers one `SELECT` of an asker: those of one wait for each other, rather than others for them.
    ///
    /// # Errors
    /// When it is none, or there is no answer within the limits.
    pub async fn sql(
        &self,
        asker: &str,
        sql: &str,
        scope: &Scope,
    ) -> Result<AnswerText, QueryError> {
        self.answer(asker, sql.to_owned(), Vec::new(), scope.clone()).await
    }

    /// Answers a ready-made query.
    ///
    /// # Errors
    /// When there is none of this name, a parameter is missing, or there is no answer within the limits.
    pub async fn ready(
        &self,
        asker: &str,
        name: &str,
        parameters: &BTreeMap<String, String>,
    ) -> Result<AnswerText, QueryError> {
        let query =
            ReadyQuery::find(name).ok_or_else(|| QueryError::NoSuchQuery(name.to_owned()))?;
        let (sql, values) = query.bind(parameters)?;
        let instants = |end: &str| {
            let named = values.iter().filter(|(name, _)| name.rsplit('_').next() == Some(end));
            let us = named.filter_map(|(_, value)| match value {
                Value::Instant(us) => Some(*us),
                Value::Text(_) => None,
            });
            us.collect::<Vec<_>>()
        };
        let time = |us: Option<i64>| us.and_then(chrono::DateTime::from_timestamp_micros);
        let (from, to) = (instants("from").into_iter().min(), instants("to").into_iter().max());
        let host = parameters.get("host").filter(|host| !host.is_empty()).cloned();
        let other = parameters.contains_key("other_host");
        let scope = Scope { from: time(from), to: time(to), host: host.filter(|_| !other) };
        let mut answer = self.answer(asker, sql, values, scope).await?;
        if query.rows.is_some_and(|most| most <= answer.len()) {
            answer.partial.push(format!("only the first {} rows are shown", answer.len()));
        }
        Ok(answer)
    }

    /// The last lists of packs of a day, of one host or all, by `day=.../host=...`.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn packs(
        &self,
        day: NaiveDate,
        host: Option<&str>,
    ) -> object_store::Result<LastPacks> {
        let scope = Scope { host: host.map(str::to_owned), ..Scope::default() };
        self.catalog.packs(day, &scope, Instant::now()).await
    }

    /// A list of packs.
    ///
    /// # Errors
    /// When it is none, or the store fails.
    pub async fn read_packs(&self, path: &Path) -> object_store::Result<Arc<Packs>> {
        self.catalog.read_packs(path).await
    }

    /// Adds up what VMs lost, and what agents collected, in the windows that are new since the last call.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn sum_up(&self, now: DateTime<Utc>) -> Result<(), QueryError> {
        let failed = |error: object_store::Error| QueryError::Store(error.to_string());
        let scope = Scope { from: Some(now - fleet::KEPT), ..Scope::default() };
        let windows = self.catalog.with_results(&scope).await.map_err(failed)?;
        self.fleet.forget(now);
        for part in self.fleet.unread(&windows) {
            let mut readable = part.clone();
            self.leave_out(&mut readable, None);
            let mut rows = self.read_sums(&scope, &readable).await;
            while let Err(error) = &rows {
                if let QueryError::Damaged(object) = error {
                    self.catalog.is_given(object).await.map_err(failed)?;
                }
                if !self.leave_out(&mut readable, Some(error)) {
                    break;
                }
                rows = self.read_sums(&scope, &readable).await;
            }
            self.fleet.take(&part, &readable, &rows?);
        }
        Ok(())
    }

    async fn read_sums(
        &self,
        scope: &Scope,
        windows: &Windows,
    ) -> Result<fleet::Rows<Vec<RecordBatch>>, QueryError> {
        let context = self.context(scope, &Arc::new(windows.clone()))?;
        let Some(threads) = &self.threads else { return Err(QueryError::Busy) };
        let work = async move {
            let read = async |sql| {
                let frame = context.sql(sql).await.map_err(invalid)?;
                frame.collect().await.map_err(invalid)
            };
            let fleet::Rows { vms, hosts, health } = fleet::ROWS;
            Ok(fleet::Rows {
                vms: read(vms).await?,
                hosts: read(hosts).await?,
                health: read(health).await?,
            })
        };
        let done = threads.spawn(work).await;
        done.unwrap_or_else(|error| Err(QueryError::Invalid(format!("it failed: {error}"))))
    }

    /// What hosts and VMs lost in a range, as far as `sum_up` has read, in at most so many slots.
    #[must_use]
    pub fn fleet(
        &self,
        from: DateTime<Utc>,
        to: DateTime<Utc>,
        slots: usize,
        now: DateTime<Utc>,
    ) -> FleetAnswer {
        self.fleet.answer(from, to, slots, now)
    }

    /// What the hosts' agents collected and noted in a range, as far as `sum_up` has read.
    #[must_use]
    pub fn health(
        &self,
        from: DateTime<Utc>,
        to: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> HealthAnswer {
        self.fleet.health(from, to, now)
    }

    /// Names of the objects that together hold a table's rows, each row once, and why some rows are not there.
    ///
    /// # Errors
    /// When there is no such table, or the store fails.
    pub async fn objects(
        &self,
        table: &str,
        scope: &Scope,
    ) -> Result<(Vec<String>, Vec<String>), QueryError> {
        if !schemas().any(|(name, _)| name == table) {
            return Err(QueryError::Invalid(format!("there is no table {table:?}")));
        }
        let failed = |error: object_store::Error| QueryError::Store(error.to_string());
        let mut windows = self.catalog.windows(scope).await.map_err(failed)?;
        self.leave_out(&mut windows, None);
        let files = loop {
            match self.catalog.files(table, scope, &windows).await {
                Err(_) if self.leave_out(&mut windows, None) => {}
                files => break files.map_err(failed)?,
            }
        };
        Ok((files.into_iter().map(|file| file.location.to_string()).collect(), windows.lacks()))
    }

    async fn answer(
        &self,
        asker: &str,
        sql: String,
        values: Vec<(String, Value)>,
        scope: Scope,
    ) -> Result<AnswerText, QueryError> {
        if MAX_TEXT < sql.len() {
            return Err(QueryError::Invalid(format!("a query has at most {MAX_TEXT} bytes")));
        }
        let place = self.pool.enter(asker).await.ok_or(QueryError::Busy)?;
        let listed = tokio::time::timeout(self.limits.time, self.catalog.windows(&scope)).await;
        let windows = listed.map_err(|_| QueryError::Late(self.limits.time))?;
        let mut windows = windows.map_err(|error| QueryError::Store(error.to_string()))?;
        self.leave_out(&mut windows, None);
        for _ in 0..MAX_DAMAGED {
            let windows_now = Arc::new(windows.clone());
            match self.attempt(&sql, &values, &scope, windows_now, &place).await {
                Err(error) if self.leave_out(&mut windows, Some(&error)) => {}
                done => return done,
            }
        }
        Err(QueryError::Store("too many results can't be read".to_owned()))
    }

    /// Does without the windows whose results are known to be damaged or missing, also by an error; false: there are none.
    fn leave_out(&self, windows: &mut Windows, error: Option<&QueryError>) -> bool {
        // A child names objects, of its own query only.
        if let Some(QueryError::Damaged(object)) = error
            && windows.has_object(object)
        {
            self.catalog.damage.add(&Path::from(object.as_str()));
        }
        windows.leave_out_all(&self.catalog.damage.stems())
    }

    /// What was found damaged or missing.
    #[must_use]
    pub fn damage(&self) -> &Damage {
        &self.catalog.damage
    }

    async fn attempt(
        &self,
        sql: &str,
        values: &[(String, Value)],
        scope: &Scope,
        windows: Arc<Windows>,
        place: &Arc<Place>,
    ) -> Result<AnswerText, QueryError> {
        let mut lacks = windows.lacks();
        if !values.is_empty() {
            // Who writes SQL says himself which slices count.
            let (shortest, longest) = windows.slices_s();
            lacks.extend(scope.cut_slices(longest));
            if shortest != longest && sql.contains("GROUP BY slice") {
                lacks.push(format!("slices have different lengths: {shortest} to {longest} s"));
            }
        }
        let n_windows = windows.len() as u64;
        let files = self.files(scope, &windows);
        let source = Source { objects: Arc::clone(&self.objects), files };
        let (sql, values) = (sql.to_owned(), values.to_vec());
        let question = Question { sql, values, rows: self.limits.rows };
        let (found, rows) = self.pool.ask(question, &source, place).await?;
        AnswerText::new(found, rows, n_windows, lacks)
    }

    fn files(&self, scope: &Scope, windows: &Arc<Windows>) -> Arc<dyn Files> {
        Arc::new(FilesOf {
            catalog: Arc::clone(&self.catalog),
            scope: scope.clone(),
            windows: Arc::clone(windows),
        })
    }

    /// For what the server itself asks.
    fn context(&self, scope: &Scope, windows: &Arc<Windows>) -> Result<SessionContext, QueryError> {
        statement::context(&self.environment, n_threads(), &self.files(scope, windows))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}
