//! One statement, run by the engine, and its errors in words of SQL.

use std::error::Error;
use std::sync::Arc;

use api::query::{Question, Value};
use arrow::error::ArrowError;
use datafusion::common::config::Dialect;
use datafusion::common::{ParamValues, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::execution::context::SessionContext;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::prelude::{SQLOptions, SessionConfig};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::Statement as SqlStatement;
use datafusion::sql::sqlparser::parser::ParserError;
use tokio::task::JoinError;

use crate::QueryError;
use crate::catalog::object_in;
use crate::rows::Taken;
use crate::table::{Files, ResultTable, schemas};

/// The result tables, as `files` says.
pub(crate) fn context(
    environment: &Arc<RuntimeEnv>,
    threads: usize,
    files: &Arc<dyn Files>,
) -> Result<SessionContext, QueryError> {
    let config = SessionConfig::new()
        .with_target_partitions(threads)
        .with_information_schema(false)
        .set_str("datafusion.execution.time_zone", "UTC");
    let context = SessionContext::new_with_config_rt(config, Arc::clone(environment));
    for (name, schema) in schemas() {
        let files = Arc::clone(files);
        let table = ResultTable { name, schema, files, environment: Arc::clone(environment) };
        context.register_table(name, Arc::new(table)).map_err(invalid)?;
    }
    Ok(context)
}

/// Answers a query, as far as rows are taken.
pub(crate) async fn run(
    context: &SessionContext,
    question: Question,
    rows: &Taken,
) -> Result<(), QueryError> {
    use futures_util::StreamExt;
    let options =
        SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    let state = context.state();
    let statement = state.sql_to_statement(&question.sql, &Dialect::Generic).map_err(invalid)?;
    if !is_query(&statement) {
        return Err(QueryError::Invalid("only a SELECT is answered".to_owned()));
    }
    let plan = state.statement_to_plan(statement).await.map_err(invalid)?;
    options.verify_plan(&plan).map_err(invalid)?;
    let mut frame = context.execute_logical_plan(plan).await.map_err(invalid)?;
    if !question.values.is_empty() {
        let values = question.values.into_iter().map(|(name, value)| (name, scalar(value)));
        let values: ParamValues = values.collect::<Vec<_>>().into();
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

fn is_query(statement: &Statement) -> bool {
    match statement {
        Statement::Statement(statement) => matches!(statement.as_ref(), SqlStatement::Query(_)),
        _ => false,
    }
}

fn scalar(value: Value) -> ScalarValue {
    match value {
        Value::Text(text) => ScalarValue::Utf8View(Some(text)),
        Value::Instant(us) => ScalarValue::TimestampMicrosecond(Some(us), Some("UTC".into())),
    }
}

pub(crate) fn invalid(error: DataFusionError) -> QueryError {
    if has_panicked(&error) {
        return QueryError::Panicked;
    }
    if let Some(text) = not_computed(&error) {
        return wrong(text);
    }
    match error.find_root() {
        // The question may have an object's name in it.
        DataFusionError::SQL(error, _) => return wrong(&parser_words(error)),
        DataFusionError::Plan(text) => return wrong(text),
        DataFusionError::SchemaError(error, _) => return wrong(&error.to_string()),
        _ => {}
    }
    // The reader of a table names the object that it could not read.
    let text = error.to_string();
    if let Some(object) = object_in(&text) {
        return QueryError::Damaged(object.to_owned());
    }
    match error.find_root() {
        DataFusionError::ResourcesExhausted(_) => QueryError::Memory,
        DataFusionError::ObjectStore(_)
        | DataFusionError::ParquetError(_)
        | DataFusionError::IoError(_)
        | DataFusionError::External(_) => QueryError::Store(text),
        // What a table's reader could make nothing of is no fault of the question.
        DataFusionError::ArrowError(error, _)
            if matches!(**error, ArrowError::ParquetError(_) | ArrowError::ExternalError(_)) =>
        {
            QueryError::Store(text)
        }
        root => wrong(&root.strip_backtrace()),
    }
}

/// Why an expression could not be evaluated. A reader that filters rows returns such an error as its own.
fn not_computed(error: &DataFusionError) -> Option<&str> {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(ArrowError::ComputeError(text)) = error.downcast_ref() {
            return Some(text);
        }
        cause = error.source();
    }
    None
}

/// Whether a task of the engine panicked: its panic comes as an error of the task that waits for it.
fn has_panicked(error: &DataFusionError) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let shared = error.downcast_ref::<Arc<JoinError>>().map(AsRef::as_ref);
        if error.downcast_ref().or(shared).is_some_and(JoinError::is_panic) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn parser_words(error: &ParserError) -> String {
    match error {
        ParserError::ParserError(text) | ParserError::TokenizerError(text) => text.clone(),
        ParserError::RecursionLimitExceeded => error.to_string(),
    }
}

/// An error of the query, without the engine's catalogs and schemas, which users do not know.
fn wrong(text: &str) -> QueryError {
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
