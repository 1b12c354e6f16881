//! Questions about the results.

use std::collections::BTreeMap;

use api::http::{Answer, ErrorReply, QueryEntry, SqlRequest};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Duration, SecondsFormat, Utc};
use query::{AnswerText, QueryError, READY, ReadyQuery, Scope};
use recording::window::HostName;
use utoipa::IntoParams;

use super::{ApiError, JsonOf, PathOf, Reader, Reply, Shared};

impl From<QueryError> for ApiError {
    fn from(error: QueryError) -> Self {
        let text = error.to_string();
        match error {
            QueryError::Invalid(_) | QueryError::Panicked => {
                Self::new(StatusCode::BAD_REQUEST, text)
            }
            QueryError::NoSuchQuery(_) => Self::new(StatusCode::NOT_FOUND, text),
            QueryError::Busy => Self::later(StatusCode::SERVICE_UNAVAILABLE, text, 5),
            QueryError::Ended(_) => Self::later(StatusCode::SERVICE_UNAVAILABLE, text, 2),
            QueryError::Late(_) | QueryError::Memory => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, text)
            }
            QueryError::Damaged(_) | QueryError::Store(_) => {
                Self::later(StatusCode::SERVICE_UNAVAILABLE, text, 10)
            }
        }
    }
}

/// Lists the ready-made queries.
#[utoipa::path(get, path = "/v1/tables", responses(
    (status = 200, body = Vec<QueryEntry>), (status = 401, body = ErrorReply),
    (status = 403, body = ErrorReply), (status = 503, body = ErrorReply),
))]
pub(super) async fn list_queries(_: Reader) -> Json<Vec<QueryEntry>> {
    let entry = |query: &ReadyQuery| QueryEntry {
        name: query.name.to_owned(),
        purpose: query.purpose().to_owned(),
        parameters: query.parameters().into_iter().map(str::to_owned).collect(),
    };
    Json(READY.iter().map(entry).collect())
}

/// Parameters of ready-made queries; `GET /v1/tables` says which one has which.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "for the description")]
struct Parameters {
    /// A host's name; absent: all hosts.
    #[param(pattern = "^([a-zA-Z0-9_-][a-zA-Z0-9._-]{0,63})?$")]
    host: Option<String>,
    /// A VM's name.
    vm: Option<String>,
    /// A function's name.
    function: Option<String>,
    /// The first instant, RFC 3339; absent: an hour before `to`.
    #[param(format = DateTime)]
    from: Option<String>,
    /// The instant after the last; absent: now.
    #[param(format = DateTime)]
    to: Option<String>,
    /// The other side of a comparison; absent: the same.
    #[param(pattern = "^([a-zA-Z0-9_-][a-zA-Z0-9._-]{0,63})?$")]
    other_host: Option<String>,
    /// The same.
    other_vm: Option<String>,
    /// The same.
    #[param(format = DateTime)]
    other_from: Option<String>,
    /// The same.
    #[param(format = DateTime)]
    other_to: Option<String>,
}

/// Answers a ready-made query.
#[utoipa::path(get, path = "/v1/tables/{query}", params(("query" = String, Path), Parameters),
    responses(
        (status = 200, body = Answer), (status = 400, body = ErrorReply),
        (status = 401, body = ErrorReply), (status = 403, body = ErrorReply),
        (status = 404, body = ErrorReply),
        (status = 422, body = ErrorReply, description = "it takes more than queries may"),
        (status = 503, body = ErrorReply, description = "come again after Retry-After seconds"),
    ))]
pub(super) async fn ask_ready(
    State(server): Shared,
    Reader(asker): Reader,
    PathOf(name): PathOf<String>,
    parameters: Result<Query<BTreeMap<String, String>>, QueryRejection>,
) -> Reply<Response> {
    let Query(mut parameters) = parameters?;
    let text = |time: DateTime<Utc>| time.to_rfc3339_opts(SecondsFormat::Micros, true);
    let to = parameters.entry("to".to_owned()).or_insert_with(|| text(DateTime::from(now())));
    let to = time(to)?;
    let from = parameters.entry("from".to_owned()).or_insert_with(|| text(to - Duration::hours(1)));
    let from = time(from)?;
    in_order(Some(from), Some(to))?;
    let other = |name: &str, same| parameters.get(name).map_or(Ok(same), |text| time(text));
    in_order(Some(other("other_from", from)?), Some(other("other_to", to)?))?;
    for name in ["host", "other_host"] {
        host(parameters.get(name).filter(|host| !host.is_empty()))?;
    }
    answered(&server.engine.ready(&asker, &name, &parameters).await?)
}

/// Answers a `SELECT` on the result tables.
#[utoipa::path(post, path = "/v1/sql", request_body = SqlRequest, responses(
    (status = 200, body = Answer), (status = 400, body = ErrorReply),
    (status = 401, body = ErrorReply), (status = 403, body = ErrorReply),
    (status = 408, body = ErrorReply), (status = 413, body = ErrorReply),
    (status = 415, body = ErrorReply),
    (status = 422, body = ErrorReply, description = "it takes more than queries may"),
    (status = 503, body = ErrorReply, description = "come again after Retry-After seconds"),
))]
pub(super) async fn ask_sql(
    State(server): Shared,
    JsonOf(request, Reader(asker)): JsonOf<Reader, SqlRequest>,
) -> Reply<Response> {
    let instant = |text: &Option<String>| text.as_deref().map(time).transpose();
    let (from, to) = (instant(&request.from)?, instant(&request.to)?);
    in_order(from, to)?;
    let host = host(request.host.as_ref())?.map(|host| host.to_string());
    let scope = Scope { from, to, host };
    answered(&server.engine.sql(&asker, &request.sql, &scope).await?)
}

fn answered(answer: &AnswerText) -> Reply<Response> {
    let failed = |error: serde_json::Error| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    };
    let kind = (header::CONTENT_TYPE, "application/json");
    Ok(([kind], answer.to_json().map_err(failed)?).into_response())
}

fn host(name: Option<&String>) -> Reply<Option<HostName>> {
    let host = name.map(|name| name.parse::<HostName>()).transpose();
    host.map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, error.to_string()))
}

/// A range that ends before it begins has nothing in it, which would look like an answer.
fn in_order(from: Option<DateTime<Utc>>, to: Option<DateTime<Utc>>) -> Reply<()> {
    match (from, to) {
        (Some(from), Some(to)) if to <= from => {
            Err(ApiError::new(StatusCode::BAD_REQUEST, "from must be before to"))
        }
        _ => Ok(()),
    }
}

fn time(text: &str) -> Reply<DateTime<Utc>> {
    Ok(query::parse_instant(text)?)
}

fn now() -> std::time::SystemTime {
    std::time::SystemTime::now()
}
