//! Sending and taking windows.

use std::sync::Arc;
use std::time::Duration;

use api::http::{ErrorReply, WindowEntry, WindowList, WindowReply, WindowState};
use axum::Json;
use axum::body::{Body, BodyDataStream};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::NaiveDate;
use futures_util::StreamExt;
use object_store::ObjectStoreExt;
use recording::window::{HostName, MAX_WINDOW_BYTES, WindowId};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{ApiError, PathOf, Reader, Reply, Shared, to_the_end};
use crate::Server;
use crate::object_names::{DayWindow, RAW, day_of_prefix};
use crate::store::Created;

/// Windows in one list.
const MAX_LISTED: usize = 10_000;

/// Takes a window of the host whose token is sent.
#[utoipa::path(put, path = "/v1/windows/{boot}/{start}",
    params(
        ("boot" = String, Path, description = "boot id", pattern = "^[0-9a-f]{32}$"),
        ("start" = String, Path, description = "first instant, ns", pattern = "^0[0-3][0-9]{18}$"),
    ),
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses(
        (status = 201, body = WindowReply, description = "it is stored durably"),
        (status = 200, body = WindowReply, description = "it was there already"),
        (status = 400, body = ErrorReply, description = "it never will be stored; why"),
        (status = 401, body = ErrorReply), (status = 408, body = ErrorReply),
        (status = 413, body = ErrorReply),
        (status = 429, body = ErrorReply, description = "come again after Retry-After seconds"),
        (status = 503, body = ErrorReply, description = "come again after Retry-After seconds"),
    ))]
pub(super) async fn put_window(
    State(server): Shared,
    PathOf((boot, start)): PathOf<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Reply<(StatusCode, Json<WindowReply>)> {
    to_the_end(async move { put(&server, (&boot, &start), &headers, body).await }).await
}

async fn put(
    server: &Arc<Server>,
    (boot, start): (&str, &str),
    headers: &HeaderMap,
    body: Body,
) -> Reply<(StatusCode, Json<WindowReply>)> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length = length.and_then(|length| length.parse().ok());
    let mut body = body.into_data_stream();
    let host = match server.sender(headers).await {
        Ok(host) => host,
        Err(error) => {
            drain(&mut body).await;
            return Err(error.into());
        }
    };
    let received = match server.admit(&host, boot, start, length) {
        Ok((id, _place)) => {
            server.metrics.receiving.inc();
            let received = server.receive(&id, &mut body).await;
            server.metrics.receiving.dec();
            received
        }
        Err(error) => Err(error),
    };
    match received {
        Ok(Created::Now) => {
            Ok((StatusCode::CREATED, Json(WindowReply { state: WindowState::Stored })))
        }
        Ok(Created::Before) => {
            Ok((StatusCode::OK, Json(WindowReply { state: WindowState::Known })))
        }
        Err(error) => {
            drain(&mut body).await;
            server.metrics.refused(error.reason());
            Err(error.into())
        }
    }
}

/// Reads what is still sent, for a while: a sender that is cut off does not see the answer.
pub(super) async fn drain(body: &mut BodyDataStream) {
    const TIME: Duration = Duration::from_secs(5);
    let reading = async {
        let mut left = MAX_WINDOW_BYTES;
        while let Some(Ok(chunk)) = body.next().await
            && 0 < left
        {
            left = left.saturating_sub(chunk.len() as u64);
        }
    };
    // Late or not: the answer follows.
    let _ = tokio::time::timeout(TIME, reading).await;
}

/// Which windows.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WindowsOf {
    /// Of this host only.
    #[param(pattern = "^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,63}$")]
    host: Option<String>,
    /// From this day on, UTC: YYYY-MM-DD.
    #[param(format = Date)]
    from: Option<String>,
    /// To this day.
    #[param(format = Date)]
    to: Option<String>,
}

/// Lists stored windows.
#[utoipa::path(get, path = "/v1/windows", params(WindowsOf), responses(
    (status = 200, body = WindowList), (status = 400, body = ErrorReply),
    (status = 401, body = ErrorReply), (status = 403, body = ErrorReply),
    (status = 503, body = ErrorReply),
))]
pub(super) async fn list_windows(
    State(server): Shared,
    _: Reader,
    query: Result<Query<WindowsOf>, QueryRejection>,
) -> Reply<Json<WindowList>> {
    let Query(wanted) = query?;
    let bad = |text: &str| ApiError::new(StatusCode::BAD_REQUEST, text);
    let day = |text: &Option<String>| -> Reply<Option<NaiveDate>> {
        let parse = |text: &String| text.parse().map_err(|_| bad("a day is YYYY-MM-DD"));
        text.as_ref().map(parse).transpose()
    };
    let (from, to) = (day(&wanted.from)?, day(&wanted.to)?);
    let host = wanted.host.as_ref().map(|host| host.parse::<HostName>()).transpose();
    let host = host.map_err(|error| bad(&error.to_string()))?;
    let mut list = WindowList { windows: Vec::new(), partial: None };
    for day in server.store.prefixes(RAW).await?.iter().filter_map(day_of_prefix) {
        if from.is_some_and(|from| day < from) || to.is_some_and(|to| to < day) {
            continue;
        }
        let end = host.as_ref().map_or(String::new(), |host| format!("/host={host}"));
        for object in server.store.list(&format!("{RAW}/day={day}{end}")).await? {
            let window = DayWindow::from_path(&object.location, RAW, ".window");
            let Some(DayWindow { id, .. }) = window else { continue };
            if MAX_LISTED <= list.windows.len() {
                list.partial =
                    Some(format!("there are more than {MAX_LISTED}: ask for fewer days"));
                return Ok(Json(list));
            }
            let (window, day) = (id.to_string(), day.to_string());
            list.windows.push(WindowEntry { window, day, bytes: object.size });
        }
    }
    Ok(Json(list))
}

/// A stored window.
#[utoipa::path(get, path = "/v1/windows/{host}/{boot}/{start}",
    params(
        ("host" = String, Path, pattern = "^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,63}$"),
        ("boot" = String, Path, pattern = "^[0-9a-f]{32}$"),
        ("start" = String, Path, pattern = "^0[0-3][0-9]{18}$"),
    ),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/x-tar"),
        (status = 400, body = ErrorReply), (status = 401, body = ErrorReply),
        (status = 403, body = ErrorReply), (status = 404, body = ErrorReply),
        (status = 503, body = ErrorReply),
    ))]
pub(super) async fn get_window(
    State(server): Shared,
    _: Reader,
    PathOf((host, boot, start)): PathOf<(String, String, String)>,
) -> Reply<Response> {
    let id = WindowId::parse(&host, &boot, &start)
        .map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    let mut days = server.store.prefixes(RAW).await?;
    days.reverse();
    for day in days.iter().filter_map(day_of_prefix) {
        let window = DayWindow { day, id: id.clone() };
        match server.store.objects().get(&window.raw()).await {
            Ok(found) => {
                let size = found.meta.size;
                let body = Body::from_stream(found.into_stream());
                let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
                let length = (header::CONTENT_LENGTH, HeaderValue::from(size));
                return Ok(([kind, length], body).into_response());
            }
            Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(ApiError::new(StatusCode::NOT_FOUND, "there is no such window"))
}
