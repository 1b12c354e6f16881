//! `/mcp`: the questions of `vmscope ask` as tools of the Model Context Protocol, over HTTP without sessions. A question puts
//! its own requests to the API below it, with the caller's headers: it reads what the caller may read, within its limits.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use api::http::ErrorReply;
use ask::{Answer, Answers, Arguments, AskError, Fleet, Question, Tools};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::Response;
use axum::routing::MethodRouter;
use rmcp::transport::StreamableHttpServerConfig;
use rmcp::transport::streamable_http_server::StreamableHttpService;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tower_service::Service as _;
use url::form_urlencoded::Serializer;

use super::{ApiError, JSON_TIME, Reader, Reply, RequestOf, Shared, whole};
use crate::Server;

/// Questions that are answered at the same time.
const AT_ONCE: usize = 4;
/// Bytes of an answer of the API below.
const MAX_ANSWER: usize = 16 << 20;

/// The path's handler. `api` answers what questions need.
pub(super) fn route(api: Router) -> MethodRouter<Arc<Server>> {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let handle =
        async move |State(server): Shared, RequestOf(request, Reader { .. }): RequestOf<Reader>| {
            let page = server.config.public_url.clone().unwrap_or_default();
            answer(api, turns, page, request).await
        };
    axum::routing::post(handle)
}

async fn answer(
    api: Router,
    turns: Arc<Semaphore>,
    page: String,
    request: Request,
) -> Reply<Response> {
    let (parts, body) = request.into_parts();
    let late = |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time");
    let body = tokio::time::timeout(JSON_TIME, whole(body)).await.map_err(late)??;
    let mut headers = parts.headers.clone();
    for name in [header::CONTENT_LENGTH, header::CONTENT_TYPE, header::TRANSFER_ENCODING] {
        headers.remove(name);
    }
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().copied();
    let caller = Caller { api, page, headers, peer, runtime: Handle::current() };
    let tools = move || Ok(Tools::new(caller.clone(), Arc::clone(&turns)));
    // A token is needed, which no page of another name has.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .disable_allowed_hosts();
    let sessions = Arc::new(NeverSessionManager::default());
    let service = StreamableHttpService::new(tools, sessions, config);
    Ok(service.handle(Request::from_parts(parts, body)).await.map(Body::new))
}

/// Who asks, and where.
#[derive(Clone)]
struct Caller {
    api: Router,
    /// The page's address as users have it; empty: unknown.
    page: String,
    headers: HeaderMap,
    peer: Option<ConnectInfo<SocketAddr>>,
    runtime: Handle,
}

impl Answers for Caller {
    fn questions(&self) -> Vec<Question> {
        let of_fleet = |question: &Question| *question != Question::JobWaits;
        Question::ALL.iter().copied().filter(of_fleet).collect()
    }

    fn answer(&self, question: Question, arguments: &Arguments) -> Result<Answer, AskError> {
        let fleet = Fleet::new(|request: &ask::Request<'_>| self.send(request), &self.page, now_us);
        ask::answer(&fleet, question, arguments)
    }
}

impl Caller {
    /// The API's answer to a request of the caller's.
    fn send(&self, request: &ask::Request<'_>) -> Result<String, AskError> {
        let failed = |error: &dyn std::fmt::Display| AskError::Source(error.to_string());
        let (method, path, body) = match request {
            ask::Request::Get { path, parameters } => {
                let query = Serializer::new(String::new()).extend_pairs(parameters).finish();
                (Method::GET, format!("{path}?{query}"), Body::empty())
            }
            ask::Request::Post { path, json } => {
                (Method::POST, (*path).to_owned(), Body::from(json.clone()))
            }
        };
        let request = Request::builder().method(method).uri(path);
        let mut request = request.body(body).map_err(|error| failed(&error))?;
        *request.headers_mut() = self.headers.clone();
        let json = header::HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, json);
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(peer);
        }
        self.runtime.block_on(async {
            // It is always ready, and answers errors as responses.
            let Ok(response) = self.api.clone().call(request).await;
            let status = response.status();
            let bytes = to_bytes(response.into_body(), MAX_ANSWER).await;
            let bytes = bytes.map_err(|error| failed(&error))?;
            let text = String::from_utf8(bytes.into()).map_err(|error| failed(&error))?;
            if status.is_success() {
                return Ok(text);
            }
            let error = serde_json::from_str::<ErrorReply>(&text);
            let text = error.map_or_else(|_| status.to_string(), |reply| reply.error);
            Err(match status.as_u16() {
                400 | 404 | 422 => AskError::Arguments(text),
                _ => AskError::Source(text),
            })
        })
    }
}

fn now_us() -> i64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}
