//! SQL over the fleet's result tables, within limits.
//!
//! ```text
//!  SQL --+--> plan: one SELECT, nothing else
//!  store --> catalog: windows whose results are complete --> tables: exact lists of objects
//!        +--> run: so long, so much memory, so many rows --> Answer, which says what it lacks
//! ```
//! Design constraints: this is the only crate that knows the query engine. A query reads and never writes, sees no files
//! but the result tables, and runs on threads of its own. An answer that is not all there is says so.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bounds;
mod catalog;
mod fleet;
pub mod packs;
mod ready;
mod rewrite;
mod rows;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::http::{Answer, FleetAnswer, HealthAnswer};
use arrow::array::RecordBatch;
use chrono::{DateTime, NaiveDate, Utc};
use datafusion::common::config::Dialect;
use datafusion::common::{ParamValues, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::{SQLOptions, SessionConfig, SessionContext};
use datafusion::sql::sqlparser::parser::ParserError;
use object_store::ObjectStore;
use object_store::path::Path;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use catalog::{LastPacks, Scope};
pub use ready::{READY, ReadyQuery, parse_instant};
pub use rewrite::{Inputs, SLICE_S};

use bounds::LEFT_OUT;
use catalog::{Catalog, Windows};
use fleet::FleetTimes;
use packs::Packs;
use rows::Rows;
use table::{ResultTable, STORE, schemas};

/// Bytes of a query's text.
const MAX_TEXT: usize = 1 << 13;
/// Of a query's threads: `1+1+1...` of that length is a tree of 4,096 levels, which the engine walks by recursion.
const STACK_BYTES: usize = 256 << 20;
/// Time to stop in, for a query that is over its time.
const STOPPING: Duration = Duration::from_secs(5);
/// Windows whose results can't be read, and without which a query is tried again.
const MAX_DAMAGED: usize = 8;
/// How long a query waits until it may begin.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// What queries may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Time of one.
    pub time: Duration,
    /// Memory of all.
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
    /// There is no such ready-made query.
    #[error("there is no query {0:?}: see the list of queries")]
    NoSuchQuery(String),
    /// Others are being answered.
    #[error("too many queries are running: try again later")]
    Busy,
    /// It took too long before there was a row.
    #[error("the query took more than {} s: ask for a shorter time or fewer hosts", .0.as_secs())]
    Late(Duration),
    /// It took too much memory.
    #[error("the query needs too much memory: ask for a shorter time or fewer columns")]
    Memory,
    /// Results can't be read.
    #[error("the results in {0} can't be read")]
    Damaged(String),
    /// The store does not answer.
    #[error("the store: {0}")]
    Store(String),
}

/// Answers questions.
#[derive(Debug)]
pub struct Engine {
    limits: Limits,
    catalog: Arc<Catalog>,
    environment: Arc<RuntimeEnv>,
    room: Arc<Semaphore>,
    fleet: FleetTimes,
    /// Its own threads: a query that keeps them busy keeps nobody else waiting.
    threads: Option<tokio::runtime::Runtime>,
}

impl Engine {
    /// Over a store.
    ///
    /// # Errors
    /// When threads can't be started.
    pub fn new(objects: Arc<dyn ObjectStore>, limits: Limits) -> std::io::Result<Self> {
        let failed = |error: DataFusionError| std::io::Error::other(error.to_string());
        // What does not fit into memory is refused, not put on a disk.
        let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
        let environment = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(GreedyMemoryPool::new(limits.memory_bytes)))
            .with_disk_manager_builder(disk)
            .build_arc()
            .map_err(failed)?;
        let url = url::Url::parse(STORE).map_err(std::io::Error::other)?;
        environment.register_object_store(&url, Arc::clone(&objects));
        let threads = tokio::runtime::Builder::new_multi_thread()
            .thread_name("query")
            .thread_stack_size(STACK_BYTES)
            .enable_all()
            .build()?;
        Ok(Self {
            limits,
            catalog: Arc::new(Catalog::new(objects)),
            environment,
            room: Arc::new(Semaphore::new(limits.concurrent)),
            fleet: FleetTimes::default(),
            threads: Some(threads),
        })
    }

    /// Answers one `SELECT`.
    ///
    /// # Errors
    /// When it is none, or there is no answer within the limits.
    pub async fn sql(&self, sql: &str, scope: &Scope) -> Result<Answer, QueryError> {
        self.answer(sql.to_owned(), Vec::new(), scope.clone()).await
    }

    /// Answers a ready-made query.
    ///
    /// # Errors
    /// When there is none of this name, a parameter is missing, or there is no answer within the limits.
    pub async fn ready(
        &self,
        name: &str,
        parameters: &BTreeMap<String, String>,
    ) -> Result<Answer, QueryError> {
        let query =
            ReadyQuery::find(name).ok_or_else(|| QueryError::NoSuchQuery(name.to_owned()))?;
        let (sql, values) = query.bind(parameters)?;
        let instants = |end: &str| {
            let named = values.iter().filter(|(name, _)| name.rsplit('_').next() == Some(end));
            let us = named.filter_map(|(_, value)| match value {
                ScalarValue::TimestampMicrosecond(us, _) => *us,
                _ => None,
            });
            us.collect::<Vec<_>>()
        };
        let time = |us: Option<i64>| us.and_then(chrono::DateTime::from_timestamp_micros);
        let (from, to) = (instants("from").into_iter().min(), instants("to").into_iter().max());
        let host = parameters.get("host").filter(|host| !host.is_empty()).cloned();
        let other = parameters.contains_key("other_host");
        let scope = Scope { from: time(from), to: time(to), host: host.filter(|_| !other) };
        let most = sql.rsplit_once("LIMIT ").and_then(|(_, most)| most.trim().parse().ok());
        let mut answer = self.answer(sql, values, scope).await?;
        if most.is_some_and(|most: usize| most <= answer.rows.len()) {
            answer.partial.push(format!("only the first {} rows are shown", answer.rows.len()));
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
            let mut rows = self.read_sums(&scope, &readable).await;
            while let Err(QueryError::Damaged(object)) = &rows {
                self.catalog.is_given(object).await.map_err(failed)?;
                if !readable.leave_out(object) {
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
        let windows = self.catalog.windows(scope).await.map_err(failed)?;
        let files = self.catalog.files(table, scope, &windows).await.map_err(failed)?;
        Ok((files.into_iter().map(|file| file.location.to_string()).collect(), windows.lacks()))
    }

    async fn answer(
        &self,
        sql: String,
        values: Vec<(String, ScalarValue)>,
        scope: Scope,
    ) -> Result<Answer, QueryError> {
        if MAX_TEXT < sql.len() {
            return Err(QueryError::Invalid(format!("a query has at most {MAX_TEXT} bytes")));
        }
        let place = tokio::time::timeout(MAX_WAIT, Arc::clone(&self.room).acquire_owned()).await;
        let place = Arc::new(place.ok().and_then(Result::ok).ok_or(QueryError::Busy)?);
        let listed = tokio::time::timeout(self.limits.time, self.catalog.windows(&scope)).await;
        let windows = listed.map_err(|_| QueryError::Late(self.limits.time))?;
        let mut windows = windows.map_err(|error| QueryError::Store(error.to_string()))?;
        for _ in 0..MAX_DAMAGED {
            let windows_now = Arc::new(windows.clone());
            match self.attempt(&sql, &values, &scope, windows_now, &place).await {
                Err(QueryError::Damaged(object)) if windows.leave_out(&object) => {}
                done => return done,
            }
        }
        Err(QueryError::Store("too many results can't be read".to_owned()))
    }

    async fn attempt(
        &self,
        sql: &str,
        values: &[(String, ScalarValue)],
        scope: &Scope,
        windows: Arc<Windows>,
        place: &Arc<OwnedSemaphorePermit>,
    ) -> Result<Answer, QueryError> {
        let context = self.context(scope, &windows)?;
        let mut rows = Rows::new(self.limits.rows);
        windows.lacks().into_iter().for_each(|reason| rows.lacks(reason));
        if !values.is_empty() {
            // Who writes SQL says himself which slices count.
            let (shortest, longest) = windows.slices_s();
            scope.cut_slices(longest).into_iter().for_each(|reason| rows.lacks(reason));
            if shortest != longest && sql.contains("GROUP BY slice") {
                rows.lacks(format!("slices have different lengths: {shortest} to {longest} s"));
            }
        }
        let (limit, n_windows) = (self.limits.time, windows.len() as u64);
        let (sql, values) = (sql.to_owned(), values.to_vec());
        let place = Arc::clone(place);
        let work = async move {
            // A query that does not let go keeps its place.
            let _place = place;
            let late = tokio::time::sleep(limit);
            tokio::pin!(late);
            tokio::select! {
                result = run(&context, &sql, values, &mut rows) => result?,
                () = &mut late => {
                    if rows.is_empty() {
                        return Err(QueryError::Late(limit));
                    }
                    rows.lacks(format!("the query was stopped after {} s", limit.as_secs()));
                }
            }
            Ok(rows.answer(n_windows))
        };
        let Some(threads) = &self.threads else { return Err(QueryError::Busy) };
        let mut task = AbortOnDrop(threads.spawn(work));
        // One that does not let go, in planning for instance, is no longer waited for.
        let done = tokio::time::timeout(limit + STOPPING, &mut task.0).await;
        let done = done.map_err(|_| QueryError::Late(limit))?;
        done.unwrap_or_else(|error| Err(QueryError::Invalid(format!("the query failed: {error}"))))
    }

    fn context(&self, scope: &Scope, windows: &Arc<Windows>) -> Result<SessionContext, QueryError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let config = SessionConfig::new()
            .with_target_partitions(threads)
            .with_information_schema(false)
            .set_bool("datafusion.execution.enable_recursive_ctes", false)
            .set_str("datafusion.execution.time_zone", "UTC");
        let context = SessionContext::new_with_config_rt(config, Arc::clone(&self.environment));
        for name in LEFT_OUT {
            context.deregister_udf(name);
        }
        for (name, schema) in schemas() {
            let table = ResultTable {
                name,
                schema,
                catalog: Arc::clone(&self.catalog),
                scope: scope.clone(),
                windows: Arc::clone(windows),
            };
            context.register_table(name, Arc::new(table)).map_err(invalid)?;
        }
        Ok(context)
    }
}

/// A query whose asker is gone is not answered.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}

async fn run(
    context: &SessionContext,
    sql: &str,
    values: Vec<(String, ScalarValue)>,
    rows: &mut Rows,
) -> Result<(), QueryError> {
    use futures_util::StreamExt;
    let options =
        SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    let state = context.state();
    let statement = state.sql_to_statement(sql, &Dialect::Generic).map_err(invalid)?;
    // First: whatever makes a plan or looks at it walks through all of it.
    bounds::check_text(sql, &statement).map_err(invalid)?;
    let plan = state.statement_to_plan(statement).await.map_err(invalid)?;
    bounds::check(&plan).and_then(|()| options.verify_plan(&plan)).map_err(invalid)?;
    let mut frame = context.execute_logical_plan(plan).await.map_err(invalid)?;
    if !values.is_empty() {
        let values: ParamValues = values.into_iter().collect::<Vec<_>>().into();
        frame = frame.with_param_values(values).map_err(invalid)?;
    }
    rows.begin(frame.schema().as_arrow());
    let mut stream = frame.execute_stream().await.map_err(invalid)?;
    while let Some(batch) = stream.next().await {
        if !rows.add(&batch.map_err(invalid)?).map_err(|error| invalid(error.into()))? {
            break;
        }
    }
    Ok(())
}

fn invalid(error: DataFusionError) -> QueryError {
    match error.find_root() {
        // The question may have an object's name in it.
        DataFusionError::SQL(error, _) => return asked_wrongly(&parser_words(error)),
        DataFusionError::Plan(text) => return asked_wrongly(text),
        DataFusionError::SchemaError(error, _) => return asked_wrongly(&error.to_string()),
        _ => {}
    }
    // The reader of a table names the object that it could not read.
    let text = error.to_string();
    if let Some(object) = catalog::object_in(&text) {
        return QueryError::Damaged(object.to_owned());
    }
    match error.find_root() {
        DataFusionError::ResourcesExhausted(_) => QueryError::Memory,
        DataFusionError::ObjectStore(_) | DataFusionError::ParquetError(_) => {
            QueryError::Store(text)
        }
        root => asked_wrongly(&root.strip_backtrace()),
    }
}

fn parser_words(error: &ParserError) -> String {
    match error {
        ParserError::ParserError(text) | ParserError::TokenizerError(text) => text.clone(),
        ParserError::RecursionLimitExceeded => error.to_string(),
    }
}

/// In the words of who asks, who knows no catalogs and schemas.
fn asked_wrongly(text: &str) -> QueryError {
    const SCHEMA: &str = "datafusion.public.";
    let table = text.strip_prefix("table '").and_then(|rest| rest.strip_suffix("' not found"));
    QueryError::Invalid(match table {
        Some(name) => {
            let known: Vec<_> = schemas().map(|(name, _)| name).collect();
            let name = name.trim_start_matches(SCHEMA);
            format!("there is no table {name}: the tables are {}", known.join(", "))
        }
        None => {
            // The engine takes all that it did not expect for a bug of its own.
            let text = text.split("\nThis issue was likely caused by a bug").next().unwrap_or(text);
            text.replace(SCHEMA, "").replace('\n', " ")
        }
    })
}
