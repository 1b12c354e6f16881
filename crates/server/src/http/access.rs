//! Hosts and tokens.

use api::http::{
    EnrollReply, EnrollRequest, ErrorReply, HostEntry, Role, SessionRequest, TokenEntry,
    TokenReply, TokenRequest,
};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use recording::window::HostName;

use super::{Admin, ApiError, COOKIE, JsonBody, JsonOf, PathOf, Reader, Reply, Shared};
use crate::Server;
use crate::auth::Denied;

/// Makes a host known: it gets a token of its own.
#[utoipa::path(post, path = "/v1/enroll", request_body = EnrollRequest, security(()), responses(
    (status = 201, body = EnrollReply),
    (status = 400, body = ErrorReply, description = "no such name"),
    (status = 401, body = ErrorReply, description = "the token is not known"),
    (status = 403, body = ErrorReply, description = "the token is for something else"),
    (status = 408, body = ErrorReply),
    (status = 409, body = ErrorReply, description = "the host is enrolled already"),
    (status = 413, body = ErrorReply),
    (status = 415, body = ErrorReply), (status = 422, body = ErrorReply),
    (status = 503, body = ErrorReply),
))]
pub(super) async fn enroll(
    State(server): Shared,
    JsonBody(request): JsonBody<EnrollRequest>,
) -> Reply<(StatusCode, Json<EnrollReply>)> {
    allow(&server, &request.token, "enroll", &[Role::Agent, Role::Admin]).await?;
    let host: HostName = request
        .host
        .parse()
        .map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, format!("{error}")))?;
    let host_token = server.auth.enroll(&host).await?;
    Ok((StatusCode::CREATED, Json(EnrollReply { host_token })))
}

/// Lets a browser read: it keeps the token in a cookie that its scripts can't see, until it is closed.
#[utoipa::path(post, path = "/v1/session", request_body = SessionRequest, security(()), responses(
    (status = 204), (status = 400, body = ErrorReply),
    (status = 401, body = ErrorReply, description = "the token is not known"),
    (status = 403, body = ErrorReply, description = "the token is for something else"),
    (status = 408, body = ErrorReply), (status = 413, body = ErrorReply),
    (status = 415, body = ErrorReply), (status = 422, body = ErrorReply),
    (status = 503, body = ErrorReply),
))]
pub(super) async fn log_in(
    State(server): Shared,
    JsonBody(request): JsonBody<SessionRequest>,
) -> Reply<(StatusCode, [(HeaderName, HeaderValue); 1])> {
    allow(&server, &request.token, "session", &[Role::Read, Role::Admin]).await?;
    keep_cookie(&request.token, "")
}

/// Turns a token away that is not of one of these roles, and counts it.
async fn allow(
    server: &Server,
    token: &str,
    purpose: &'static str,
    roles: &[Role],
) -> Result<(), Denied> {
    let allowed = match server.auth.role(token).await {
        Ok(role) if roles.contains(&role) => Ok(()),
        Ok(_) => Err(Denied::Role),
        Err(error) => Err(error),
    };
    allowed.inspect_err(|error| server.count_denied(purpose, error))
}

/// Lets the browser forget its token.
#[utoipa::path(delete, path = "/v1/session", security(()), responses((status = 204)))]
pub(super) async fn log_out() -> Reply<(StatusCode, [(HeaderName, HeaderValue); 1])> {
    keep_cookie("", "; Max-Age=0")
}

fn keep_cookie(value: &str, more: &str) -> Reply<(StatusCode, [(HeaderName, HeaderValue); 1])> {
    let cookie = format!("{COOKIE}={value}; Path=/; Secure; HttpOnly; SameSite=Strict{more}");
    let cookie = HeaderValue::try_from(cookie).map_err(|_| ApiError::from(Denied::Unknown))?;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]))
}

/// Lists the hosts that are enrolled.
#[utoipa::path(get, path = "/v1/hosts", responses(
    (status = 200, body = Vec<HostEntry>), (status = 401, body = ErrorReply),
    (status = 403, body = ErrorReply), (status = 503, body = ErrorReply),
))]
pub(super) async fn list_hosts(State(server): Shared, _: Reader) -> Reply<Json<Vec<HostEntry>>> {
    Ok(Json(server.auth.hosts().await?))
}

/// Makes a host unknown: its token is good no longer, and it can be enrolled again. Its windows stay.
#[utoipa::path(delete, path = "/v1/hosts/{host}", params(
    ("host" = String, Path, pattern = "^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,63}$"),
), responses(
    (status = 204), (status = 400, body = ErrorReply), (status = 401, body = ErrorReply),
    (status = 403, body = ErrorReply), (status = 404, body = ErrorReply),
    (status = 503, body = ErrorReply),
))]
pub(super) async fn delete_host(
    State(server): Shared,
    _: Admin,
    PathOf(host): PathOf<String>,
) -> Reply<StatusCode> {
    let host: HostName =
        host.parse().map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, format!("{error}")))?;
    deleted(server.auth.delete_host(&host).await?)
}

pub(super) fn deleted(there_was_one: bool) -> Reply<StatusCode> {
    match there_was_one {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::new(StatusCode::NOT_FOUND, "there is none")),
    }
}

/// Lists the tokens, without their text.
#[utoipa::path(get, path = "/v1/tokens", responses(
    (status = 200, body = Vec<TokenEntry>), (status = 401, body = ErrorReply),
    (status = 403, body = ErrorReply), (status = 503, body = ErrorReply),
))]
pub(super) async fn list_tokens(State(server): Shared, _: Admin) -> Reply<Json<Vec<TokenEntry>>> {
    Ok(Json(server.auth.tokens().await?))
}

/// Makes a token.
#[utoipa::path(post, path = "/v1/tokens", request_body = TokenRequest, responses(
    (status = 201, body = TokenReply), (status = 400, body = ErrorReply),
    (status = 401, body = ErrorReply), (status = 403, body = ErrorReply),
    (status = 408, body = ErrorReply), (status = 413, body = ErrorReply),
    (status = 415, body = ErrorReply), (status = 422, body = ErrorReply),
    (status = 503, body = ErrorReply),
))]
pub(super) async fn make_token(
    State(server): Shared,
    JsonOf(request, _): JsonOf<Admin, TokenRequest>,
) -> Reply<(StatusCode, Json<TokenReply>)> {
    Ok((StatusCode::CREATED, Json(server.auth.make_token(request).await?)))
}

/// Deletes a token.
#[utoipa::path(delete, path = "/v1/tokens/{id}", params(
    ("id" = String, Path, pattern = "^[0-9a-fA-F]{64}$"),
), responses(
    (status = 204), (status = 400, body = ErrorReply), (status = 401, body = ErrorReply),
    (status = 403, body = ErrorReply), (status = 404, body = ErrorReply),
    (status = 503, body = ErrorReply),
))]
pub(super) async fn delete_token(
    State(server): Shared,
    _: Admin,
    PathOf(id): PathOf<String>,
) -> Reply<StatusCode> {
    deleted(server.auth.delete_token(&id).await?)
}
