//! The HTTP API: who may ask what, and how it is answered. Its description (`/openapi.json`) is made from these functions.

mod access;
mod findings;
mod fleet;
mod mcp;
mod page;
mod profiles;
mod queries;
mod seconds;
mod silences;
mod windows;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use api::http::{ErrorReply, Role};
use axum::body::Body;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{
    ConnectInfo, DefaultBodyLimit, FromRequest, FromRequestParts, Path, Request, State,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use detect::Measure;
use futures_util::StreamExt;
use recording::window::HostName;
use tokio::task::JoinError;
use utoipa::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::Server;
use crate::alerts::{kind_of, short};
use crate::auth::{Denied, unix_s};
use crate::config::Proxy;
use crate::net::{Budget, hold_answer};
use crate::operator_notes::HandleError;
use crate::receive::ReceiveError;

/// Bytes of a request that is no window.
const MAX_REQUEST: usize = 1 << 16;
/// Of a user's name that a proxy says.
const MAX_NAME: usize = 100;
/// Until a request's JSON is there.
const JSON_TIME: Duration = Duration::from_secs(10);

/// The web page's cookie. Browsers take one of this prefix over TLS only, and for this host only.
const COOKIE: &str = "__Host-vmscope";

pub(crate) use seconds::AT_ONCE;

pub(crate) type Shared = State<Arc<Server>>;

/// All paths, and their description.
pub(crate) fn router(server: Arc<Server>) -> Router {
    let (router, description) = described();
    let description = Json(description);
    let api = router.clone().with_state(Arc::clone(&server));
    router
        .route("/mcp", mcp::route(api))
        .route("/openapi.json", axum::routing::get(async move || description.clone()))
        .merge(page::router())
        .fallback(async || ApiError::new(StatusCode::NOT_FOUND, "there is no such path"))
        .layer(DefaultBodyLimit::max(MAX_REQUEST))
        .layer(axum::middleware::from_fn_with_state(Budget::new(), hold_answer))
        // The outermost: also of what the others answer.
        .layer(axum::middleware::map_response(guarded))
        .with_state(server)
}

/// No browser guesses an answer's type, or keeps what is for readers only, unless it says so itself.
async fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// What the API is, for programs.
#[must_use]
pub fn description() -> String {
    described().1.to_pretty_json().unwrap_or_default()
}

#[derive(OpenApi)]
#[openapi(
    info(title = "vmscope fleet", description = "Windows of KVM hosts, and questions about them."),
    security(("token" = []))
)]
struct Description;

fn described() -> (Router<Arc<Server>>, utoipa::openapi::OpenApi) {
    let (router, mut description) = OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(access::enroll))
        .routes(routes!(access::log_in, access::log_out))
        .routes(routes!(windows::put_window))
        .routes(routes!(windows::list_windows))
        .routes(routes!(windows::get_window))
        .routes(routes!(seconds::ask_seconds))
        .routes(routes!(access::list_hosts))
        .routes(routes!(access::delete_host))
        .routes(routes!(access::list_tokens, access::make_token))
        .routes(routes!(access::delete_token))
        .routes(routes!(queries::list_queries))
        .routes(routes!(queries::ask_ready))
        .routes(routes!(queries::ask_sql))
        .routes(routes!(findings::list_findings))
        .routes(routes!(findings::get_finding))
        .routes(routes!(silences::acknowledge, silences::forget_acknowledgement))
        .routes(routes!(silences::resend))
        .routes(routes!(silences::list_silences, silences::silence))
        .routes(routes!(silences::end_silence))
        .routes(routes!(profiles::pprof))
        .routes(routes!(fleet_metrics))
        .routes(routes!(fleet::ask_fleet))
        .routes(routes!(fleet::ask_health))
        .routes(routes!(authority))
        .routes(routes!(healthz))
        .routes(routes!(metrics))
        .split_for_parts();
    let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    let components = description.components.get_or_insert_default();
    components.add_security_scheme("token", scheme);
    (router, description)
}

/// An answer that says what went wrong.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    text: String,
    /// Seconds.
    retry_after: Option<u32>,
    /// What a window that was not taken is counted as.
    reason: Option<&'static str>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), retry_after: None, reason: None }
    }

    pub(crate) fn later(status: StatusCode, text: String, seconds: u32) -> Self {
        Self { retry_after: Some(seconds), ..Self::new(status, text) }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = Json(ErrorReply { error: self.text, reason: self.reason.map(str::to_owned) });
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<JsonRejection> for ApiError {
    fn from(error: JsonRejection) -> Self {
        Self::new(error.status(), error.body_text())
    }
}

impl From<QueryRejection> for ApiError {
    fn from(error: QueryRejection) -> Self {
        Self::new(error.status(), error.body_text())
    }
}

impl From<object_store::Error> for ApiError {
    fn from(error: object_store::Error) -> Self {
        let text = format!("the store does not answer: {error}");
        Self::later(StatusCode::SERVICE_UNAVAILABLE, text, 10)
    }
}

impl From<HandleError> for ApiError {
    fn from(error: HandleError) -> Self {
        match error {
            HandleError::Invalid(text) => Self::new(StatusCode::BAD_REQUEST, text),
            HandleError::Conflict(text) => Self::new(StatusCode::CONFLICT, text),
            HandleError::Store(error) => error.into(),
        }
    }
}

impl From<Denied> for ApiError {
    fn from(error: Denied) -> Self {
        let text = error.to_string();
        match error {
            Denied::NoToken | Denied::Unknown => Self::new(StatusCode::UNAUTHORIZED, text),
            Denied::Role => Self::new(StatusCode::FORBIDDEN, text),
            Denied::Enrolled(_) => Self::new(StatusCode::CONFLICT, text),
            Denied::Invalid(_) => Self::new(StatusCode::BAD_REQUEST, text),
            Denied::Store(error) => error.into(),
        }
    }
}

impl From<ReceiveError> for ApiError {
    fn from(error: ReceiveError) -> Self {
        let (text, reason) = (error.to_string(), error.reason());
        let answer = match error {
            ReceiveError::Refused { .. } => Self::new(StatusCode::BAD_REQUEST, text),
            ReceiveError::TooLarge(_) => Self::new(StatusCode::PAYLOAD_TOO_LARGE, text),
            ReceiveError::Busy(_) => Self::later(StatusCode::TOO_MANY_REQUESTS, text, 2),
            ReceiveError::Broken => Self::new(StatusCode::REQUEST_TIMEOUT, text),
            ReceiveError::Clock { seconds, .. } => {
                Self::later(StatusCode::SERVICE_UNAVAILABLE, text, seconds)
            }
            ReceiveError::Unavailable(_) => Self::later(StatusCode::SERVICE_UNAVAILABLE, text, 10),
        };
        Self { reason: Some(reason), ..answer }
    }
}

pub(crate) type Reply<T> = Result<T, ApiError>;

/// Works to the end, also when the client goes away: a worker that is at it does not stop, and holds its place till then.
async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Reply<T>> + Send + 'static,
) -> Reply<T> {
    let failed = |error: JoinError| {
        Err(ApiError::later(StatusCode::SERVICE_UNAVAILABLE, error.to_string(), 10))
    };
    tokio::spawn(work).await.unwrap_or_else(failed)
}

/// JSON, whose errors have the form of all others.
struct JsonBody<T>(T);

impl<T: serde::de::DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        // A slow sender has no place among known users.
        let late =
            |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time");
        let (parts, body) = request.into_parts();
        let body = tokio::time::timeout(JSON_TIME, whole(body)).await.map_err(late)??;
        let Json(value) = Json::from_request(Request::from_parts(parts, body), state).await?;
        Ok(Self(value))
    }
}

/// A body that is no larger than a request may be. Of a larger one the rest is read and forgotten: who is cut off while
/// sending sees no answer.
async fn whole(body: Body) -> Result<Body, ApiError> {
    let (mut stream, mut bytes) = (body.into_data_stream(), Vec::new());
    while let Some(chunk) = stream.next().await {
        let broken = |_| ApiError::new(StatusCode::BAD_REQUEST, "the request did not arrive");
        bytes.extend_from_slice(&chunk.map_err(broken)?);
        if MAX_REQUEST < bytes.len() {
            windows::drain(&mut stream).await;
            let text = format!("a request has at most {MAX_REQUEST} bytes");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
    }
    Ok(bytes.into())
}

/// Parts of a path, whose errors have the form of all others.
struct PathOf<T>(T);

impl<T: serde::de::DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathOf<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let read = Path::<T>::from_request_parts(parts, state).await;
        let Path(value) = read.map_err(|error| ApiError::new(error.status(), error.body_text()))?;
        Ok(Self(value))
    }
}

/// The token of a request.
fn token(headers: &HeaderMap) -> Result<&str, Denied> {
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    value.and_then(|value| value.strip_prefix("Bearer ")).ok_or(Denied::NoToken)
}

/// The token that a browser keeps for the web page, and sends with the page's own requests. Browsers also send it with
/// requests of other services on this host, which they say: those are not believed.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let site =
        headers.get("sec-fetch-site").map_or("none", |site| site.to_str().unwrap_or_default());
    if !["same-origin", "none"].contains(&site) {
        return None;
    }
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut cookies = cookies.flat_map(|value| value.split(';')).map(str::trim);
    cookies.find_map(|cookie| cookie.strip_prefix(COOKIE)?.strip_prefix('='))
}

impl Server {
    /// The host that sends.
    async fn sender(&self, headers: &HeaderMap) -> Result<HostName, Denied> {
        let host = match token(headers) {
            Ok(token) => self.auth.host(token).await,
            Err(error) => Err(error),
        };
        host.inspect_err(|error| self.count_denied("host", error))
    }

    /// The name of who asks, if he may.
    async fn require(
        &self,
        headers: &HeaderMap,
        token: Result<&str, Denied>,
        peer: IpAddr,
        allowed: &[Role],
    ) -> Result<String, Denied> {
        let user = match (self.user_by_proxy(headers, peer), token) {
            (Some(user), _) => user,
            (None, Ok(token)) => self.auth.user(token).await.map(|entry| (entry.role, entry.name)),
            (None, Err(error)) => Err(error),
        };
        let result = match user {
            Ok((role, name)) if allowed.contains(&role) => return Ok(name),
            Ok(_) => Err(Denied::Role),
            Err(error) => Err(error),
        };
        result.inspect_err(|error| self.count_denied("token", error))
    }

    /// A store that fails denies no access.
    fn count_denied(&self, reason: &'static str, error: &Denied) {
        if !matches!(error, Denied::Store(_)) {
            self.metrics.denied(reason);
        }
    }

    /// What a user may do whom the proxy names, and his name; `None`: it names no user, or is none of ours.
    fn user_by_proxy(
        &self,
        headers: &HeaderMap,
        peer: IpAddr,
    ) -> Option<Result<(Role, String), Denied>> {
        let proxy = self.config.proxy.as_ref().filter(|proxy| is_of(proxy, peer))?;
        if !headers.contains_key(&proxy.user_header) {
            return None;
        }
        // Of two values one may be the user's own.
        let user = single(headers, &proxy.user_header).filter(|user| !user.is_empty());
        let groups = single(headers, &proxy.groups_header).unwrap_or_default();
        let has = |known: &[String]| {
            groups.split(',').any(|group| known.iter().any(|known| known == group.trim()))
        };
        Some(match user {
            None => Err(Denied::Unknown),
            Some(user) if has(&proxy.admin_groups) => Ok((Role::Admin, short(user, MAX_NAME))),
            Some(user) if has(&proxy.read_groups) => Ok((Role::Read, short(user, MAX_NAME))),
            Some(_) => Err(Denied::Role),
        })
    }
}

/// Whether this is a proxy's address.
fn is_of(proxy: &Proxy, peer: IpAddr) -> bool {
    proxy.addresses.iter().any(|address| address.to_canonical() == peer.to_canonical())
}

/// A header's value; `None`: there is none, or more than one.
fn single<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// The address that a request came from.
fn peer(parts: &Parts) -> IpAddr {
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    // Of none, nothing is believed.
    peer.map_or(IpAddr::from([0; 16]), |ConnectInfo(peer)| peer.ip())
}

/// Who may ask for what was recorded, by name. An extractor: a handler that has it is reached by no others.
pub(crate) struct Reader(String);

impl FromRequestParts<Arc<Server>> for Reader {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, ApiError> {
        let headers = &parts.headers;
        // The cookie lets a browser read, whatever its token may do besides.
        let token = token(headers).or_else(|error| cookie(headers).ok_or(error));
        let roles = [Role::Read, Role::Admin];
        Ok(Self(server.require(headers, token, peer(parts), &roles).await?))
    }
}

/// Who may change something, by name. The web page's cookie is not enough.
struct Admin(String);

impl FromRequestParts<Arc<Server>> for Admin {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, ApiError> {
        let headers = &parts.headers;
        Ok(Self(server.require(headers, token(headers), peer(parts), &[Role::Admin]).await?))
    }
}

/// A request of a `W`. The server reads and drops the body of any other caller: a client that is cut off while it sends
/// never reads the answer.
struct RequestOf<W>(Request, W);

impl<W> FromRequest<Arc<Server>> for RequestOf<W>
where
    W: FromRequestParts<Arc<Server>, Rejection = ApiError> + Send,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        match W::from_request_parts(&mut parts, server).await {
            Ok(who) => Ok(Self(Request::from_parts(parts, body), who)),
            Err(error) => {
                windows::drain(&mut body.into_data_stream()).await;
                Err(error)
            }
        }
    }
}

/// JSON of a `W`.
struct JsonOf<W, T>(T, W);

impl<W, T> FromRequest<Arc<Server>> for JsonOf<W, T>
where
    W: FromRequestParts<Arc<Server>, Rejection = ApiError> + Send,
    T: serde::de::DeserializeOwned,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, ApiError> {
        let RequestOf(request, who) = RequestOf::from_request(request, server).await?;
        let JsonBody(value) = JsonBody::from_request(request, server).await?;
        Ok(Self(value, who))
    }
}

/// The certificate authority of this server's certificate, PEM: compare its fingerprint before you trust it.
#[utoipa::path(get, path = "/v1/ca", security(()), responses(
    (status = 200, body = String, content_type = "application/x-pem-file"),
))]
async fn authority(State(server): Shared) -> Response {
    let kind = (header::CONTENT_TYPE, "application/x-pem-file");
    ([kind], server.identity.authority.clone()).into_response()
}

/// Whether the server is there.
#[utoipa::path(get, path = "/healthz", security(()), responses((status = 200, body = String)))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// What the server counts, for Prometheus: for readers, and for everybody on the same machine.
#[utoipa::path(get, path = "/metrics", security((), ("token" = [])), responses(
    (status = 200, body = String, content_type = "text/plain"),
    (status = 401, body = ErrorReply), (status = 403, body = ErrorReply),
))]
async fn metrics(
    State(server): Shared,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
) -> Reply<Response> {
    let peer = peer.ip();
    // What a proxy on this machine passes on comes from elsewhere.
    let is_proxy = server.config.proxy.as_ref().is_some_and(|proxy| is_of(proxy, peer));
    if is_proxy || !peer.to_canonical().is_loopback() {
        let token = token(&headers);
        server.require(&headers, token, peer, &[Role::Read, Role::Admin]).await?;
    }
    server.metrics.findings_open.set(i64::try_from(server.watch.n_open()).unwrap_or(i64::MAX));
    let refused = i64::try_from(server.refused_messages.count()).unwrap_or(i64::MAX);
    server.metrics.messages_refused.set(refused);
    server.metrics.analyses_left.set(i64::try_from(server.queue.len()).unwrap_or(i64::MAX));
    prometheus(server.metrics.text())
}

/// What VMs and hosts of the fleet did, for Prometheus. It names VMs: for readers only, on whatever machine.
#[utoipa::path(get, path = "/v1/metrics", responses(
    (status = 200, body = String, content_type = "text/plain"),
    (status = 401, body = ErrorReply), (status = 403, body = ErrorReply),
    (status = 503, body = ErrorReply),
))]
async fn fleet_metrics(State(server): Shared, _: Reader) -> Reply<Response> {
    let (said, now_s) = (server.handled.said().await?, unix_s());
    let mut totals = server.watch.totals();
    for found in server.watch.findings().0.iter().filter(|found| found.over_s.is_none()) {
        let series = &found.first.series;
        let is_silenced = said.silence(found, now_s).is_some();
        *totals.open.entry((kind_of(&series.measure).name, is_silenced)).or_default() += 1;
        if let (Measure::Windows, Some(host)) = (&series.measure, &series.host) {
            totals.add_silent(host, (found.first.began_s, is_silenced));
        }
    }
    prometheus(totals.text(now_s))
}

fn prometheus(text: Result<String, std::fmt::Error>) -> Reply<Response> {
    let failed = |error: std::fmt::Error| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text.map_err(failed)?).into_response())
}
