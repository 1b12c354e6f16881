//! What operators say about findings: who looks after one, and which are not to be sent.

use api::http::{
    AcknowledgeRequest, Acknowledgement, ErrorReply, Resent, SilenceEntry, SilenceRequest,
};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::access::deleted;
use super::findings::known;
use super::{Admin, ApiError, JsonOf, PathOf, Reader, Reply, Shared};
use crate::auth::unix_s;
use crate::operator_notes::finding_id;

/// Acknowledges a finding. It is sent as before.
#[utoipa::path(post, path = "/v1/findings/{id}/acknowledge", params(
    ("id" = String, Path, pattern = "^[0-9a-f]{16}$"),
), request_body = AcknowledgeRequest, responses(
    (status = 201, body = Acknowledgement), (status = 400, body = ErrorReply),
    (status = 401, body = ErrorReply), (status = 403, body = ErrorReply),
    (status = 404, body = ErrorReply), (status = 408, body = ErrorReply),
    (status = 409, body = ErrorReply, description = "it was acknowledged before, or there are too many acknowledgements"),
    (status = 413, body = ErrorReply), (status = 415, body = ErrorReply),
    (status = 422, body = ErrorReply), (status = 503, body = ErrorReply),
))]
pub(super) async fn acknowledge(
    State(server): Shared,
    PathOf(id): PathOf<String>,
    JsonOf(request, Admin(by)): JsonOf<Admin, AcknowledgeRequest>,
) -> Reply<(StatusCode, Json<Acknowledgement>)> {
    let found = known(&server, &id)?;
    let entry = Acknowledgement { by, unix_s: unix_s(), note: request.note };
    server.handled.acknowledge(found.finding.id, &entry).await?;
    server.watch.requeue_alerts();
    Ok((StatusCode::CREATED, Json(entry)))
}

/// Withdraws an acknowledgement.
#[utoipa::path(delete, path = "/v1/findings/{id}/acknowledge", params(
    ("id" = String, Path, pattern = "^[0-9a-f]{16}$"),
), responses(
    (status = 204), (status = 400, body = ErrorReply), (status = 401, body = ErrorReply),
    (status = 403, body = ErrorReply), (status = 404, body = ErrorReply),
    (status = 503, body = ErrorReply),
))]
pub(super) async fn forget_acknowledgement(
    State(server): Shared,
    _: Admin,
    PathOf(id): PathOf<String>,
) -> Reply<StatusCode> {
    let removed = server.handled.forget_acknowledgement(finding_id(&id)?).await?;
    server.watch.requeue_alerts();
    deleted(removed)
}

/// Sends a finding's messages again that webhooks refused.
#[utoipa::path(post, path = "/v1/findings/{id}/resend", params(
    ("id" = String, Path, pattern = "^[0-9a-f]{16}$"),
), responses(
    (status = 202, body = Resent), (status = 400, body = ErrorReply),
    (status = 401, body = ErrorReply), (status = 403, body = ErrorReply),
    (status = 404, body = ErrorReply),
    (status = 409, body = ErrorReply, description = "no message was refused, or it is the beginning of what is over"),
    (status = 503, body = ErrorReply),
))]
pub(super) async fn resend(
    State(server): Shared,
    _: Admin,
    PathOf(id): PathOf<String>,
) -> Reply<(StatusCode, Json<Resent>)> {
    let found = known(&server, &id)?;
    let refused = server.refused_messages.of(&id);
    let is_late = found.over_s.is_some() && refused.iter().all(|one| one.event == "firing");
    let problem = match refused.as_slice() {
        [] => Some("no receiver refused a message of this finding"),
        _ if is_late => Some("the finding is over, and its beginning is not sent any more"),
        _ => None,
    };
    if let Some(problem) = problem {
        return Err(ApiError::new(StatusCode::CONFLICT, problem));
    }
    let messages = server.resend(&id).await? as u64;
    server.watch.requeue_alerts();
    Ok((StatusCode::ACCEPTED, Json(Resent { messages })))
}

/// Lists the findings that are not sent, by what they have in common.
#[utoipa::path(get, path = "/v1/silences", responses(
    (status = 200, body = Vec<SilenceEntry>), (status = 401, body = ErrorReply),
    (status = 403, body = ErrorReply), (status = 503, body = ErrorReply),
))]
pub(super) async fn list_silences(
    State(server): Shared,
    _: Reader,
) -> Reply<Json<Vec<SilenceEntry>>> {
    let now_s = unix_s();
    let mut silences = server.handled.said().await?.silences.clone();
    silences.retain(|silence| now_s < silence.until_unix_s);
    Ok(Json(silences))
}

/// Stops sending findings for a while: to Alertmanagers they are over, webhooks hear of no new ones.
#[utoipa::path(post, path = "/v1/silences", request_body = SilenceRequest, responses(
    (status = 201, body = SilenceEntry), (status = 400, body = ErrorReply),
    (status = 401, body = ErrorReply), (status = 403, body = ErrorReply),
    (status = 408, body = ErrorReply),
    (status = 409, body = ErrorReply, description = "there are too many"),
    (status = 413, body = ErrorReply), (status = 415, body = ErrorReply),
    (status = 422, body = ErrorReply), (status = 503, body = ErrorReply),
))]
pub(super) async fn silence(
    State(server): Shared,
    JsonOf(request, Admin(by)): JsonOf<Admin, SilenceRequest>,
) -> Reply<(StatusCode, Json<SilenceEntry>)> {
    let entry = server.handled.silence(request, by, unix_s()).await?;
    server.watch.requeue_alerts();
    Ok((StatusCode::CREATED, Json(entry)))
}

/// Ends a silence.
#[utoipa::path(delete, path = "/v1/silences/{id}", params(
    ("id" = String, Path, pattern = "^[0-9a-f]{16}$"),
), responses(
    (status = 204), (status = 400, body = ErrorReply), (status = 401, body = ErrorReply),
    (status = 403, body = ErrorReply), (status = 404, body = ErrorReply),
    (status = 503, body = ErrorReply),
))]
pub(super) async fn end_silence(
    State(server): Shared,
    _: Admin,
    PathOf(id): PathOf<String>,
) -> Reply<StatusCode> {
    let ended = server.handled.end_silence(&id).await?;
    server.watch.requeue_alerts();
    deleted(ended)
}
