//! What a VM did in a window, second by second: analysed on request, from the window that the host sent.

use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use api::http::{ErrorReply, SecondsAnswer, SecondsRow};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use recording::window::WindowId;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{ApiError, PathOf, Reader, Reply, Shared, to_the_end};
use crate::Server;
use crate::analyze::AnalyzeError;
use crate::object_names::{DayWindow, RAW, day_of_prefix};
use crate::worker::Task;

/// Windows that are analysed for users at the same time.
pub(crate) const AT_ONCE: usize = 2;
/// Until one has its turn.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
const SECOND_US: i64 = 1_000_000;

/// Of which VM.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OfVm {
    /// Its name.
    vm: String,
}

impl From<AnalyzeError> for ApiError {
    fn from(error: AnalyzeError) -> Self {
        match error {
            AnalyzeError::Window(text) => Self::new(StatusCode::UNPROCESSABLE_ENTITY, text),
            AnalyzeError::Store(error) => error.into(),
            AnalyzeError::Machine(text) | AnalyzeError::Stopped(text) => {
                Self::later(StatusCode::SERVICE_UNAVAILABLE, text, 10)
            }
        }
    }
}

/// Says what a VM's vCPUs did in a stored window, second by second.
#[utoipa::path(get, path = "/v1/windows/{host}/{boot}/{start}/seconds",
    params(
        ("host" = String, Path, pattern = "^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,63}$"),
        ("boot" = String, Path, pattern = "^[0-9a-f]{32}$"),
        ("start" = String, Path, pattern = "^0[0-3][0-9]{18}$"),
        OfVm,
    ),
    responses(
        (status = 200, body = SecondsAnswer),
        (status = 400, body = ErrorReply), (status = 401, body = ErrorReply),
        (status = 403, body = ErrorReply), (status = 404, body = ErrorReply),
        (status = 422, body = ErrorReply, description = "the window can't be analysed"),
        (status = 429, body = ErrorReply), (status = 503, body = ErrorReply),
    ))]
pub(super) async fn ask_seconds(
    State(server): Shared,
    _: Reader,
    PathOf((host, boot, start)): PathOf<(String, String, String)>,
    of: Result<Query<OfVm>, QueryRejection>,
) -> Reply<Json<SecondsAnswer>> {
    let Query(OfVm { vm }) = of?;
    let id = WindowId::parse(&host, &boot, &start)
        .map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    let place = Arc::clone(&server.seconds).acquire_owned();
    let place = tokio::time::timeout(LONGEST_WAIT, place).await;
    let busy = || {
        let text = "too many windows are being analysed: try again later".to_owned();
        ApiError::later(StatusCode::TOO_MANY_REQUESTS, text, 5)
    };
    let place = place.ok().and_then(Result::ok).ok_or_else(busy)?;
    to_the_end(async move {
        let _place = place;
        seconds_of(&server, id, vm).await
    })
    .await
}

async fn seconds_of(server: &Server, id: WindowId, vm: String) -> Reply<Json<SecondsAnswer>> {
    let mut days = server.store.prefixes(RAW).await?;
    days.reverse();
    for day in days.iter().filter_map(day_of_prefix) {
        let window = DayWindow { day, id: id.clone() };
        let Some(file) = server.fetch(&window.raw()).await? else { continue };
        let outcome = server.work(Task::Seconds, &window.id.host, file).await?;
        let read = move || {
            let folder = outcome.folder().map_err(AnalyzeError::from)?;
            read(&folder, &vm).map_err(|error| AnalyzeError::Window(error.to_string()))
        };
        let answer = tokio::task::spawn_blocking(read).await;
        let failed = |error: tokio::task::JoinError| AnalyzeError::Machine(error.to_string());
        return Ok(Json(answer.map_err(failed)??));
    }
    Err(ApiError::new(StatusCode::NOT_FOUND, "there is no such window"))
}

/// Adds up the rows of a VM by all but vCPU and process id.
fn read(folder: &FilePath, vm: &str) -> Result<SecondsAnswer, recording::Error> {
    let results = recording::results::read(folder)?;
    let of_vm = || results.vcpu_time.iter().filter(|result| result.row.vm == vm);
    let start_us = of_vm().map(|result| result.slice_unix_us).min().unwrap_or(0);
    let mut sums: BTreeMap<_, BTreeMap<u64, [u64; 3]>> = BTreeMap::new();
    for result in of_vm() {
        let row = &result.row;
        let key = (&row.state, &row.code.process, &row.code.thread, &row.code.function);
        let key =
            (key, (&row.code.module, &row.stack), (&row.thief, &row.thief_vm, &row.exit_reason));
        let second = (result.slice_unix_us - start_us) / SECOND_US;
        let cells = sums.entry(key).or_default();
        let cell = cells.entry(u64::try_from(second).unwrap_or(0)).or_default();
        for (sum, value) in cell.iter_mut().zip([row.ns, row.corrected_ns, row.samples]) {
            *sum = sum.saturating_add(value);
        }
    }
    let rows = sums.into_iter().map(|(key, cells)| {
        let ((state, process, thread, function), (module, stack), thief) = key;
        let (thief, thief_vm, exit_reason) = thief;
        SecondsRow {
            state: state.clone(),
            process: process.clone(),
            thread: thread.clone(),
            function: function.clone(),
            module: module.clone(),
            stack: stack.as_ref().map(|stack| stack.functions.clone()),
            kernel_frames: stack.as_ref().map(|stack| stack.n_kernel),
            thief: thief.clone(),
            thief_vm: thief_vm.clone(),
            exit_reason: exit_reason.clone(),
            cells: cells.into_iter().map(|(s, [ns, own, n])| [s, ns, own, n]).collect(),
        }
    });
    let start_unix_s = u64::try_from(start_us / SECOND_US).unwrap_or(0);
    Ok(SecondsAnswer { start_unix_s, rows: rows.collect() })
}
