//! Requests to the server. What it answers is bounded: it is only read for a reason, or a token.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use ureq::http::Response;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};
use ureq::{Agent, Body, RequestBuilder, SendBody};

/// Longest answer that is read.
const MAX_ANSWER_BYTES: u64 = 64 << 10;
/// The same for a user's table.
const MAX_TABLE_BYTES: u64 = 256 << 20;

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// For everything but a window's bytes and users' queries.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// For users' queries: a server may give one an hour.
const REQUEST_LIMIT: Duration = Duration::from_secs(3600 + 60);
/// For a window's bytes.
const SEND_LIMIT: Duration = Duration::from_secs(600);

/// A server that is known by its certificate authority.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    agent: Agent,
    url: String,
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Its body, as far as it is read.
    pub(crate) text: String,
    pub(crate) retry_after: Option<Duration>,
}

/// Why nothing came back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("{0}")]
    Request(#[from] ureq::Error),
    #[error("the certificate authority is not in PEM form")]
    NoCertificate,
}

impl Server {
    /// A server whose certificate must be signed by `authority` (PEM).
    pub(crate) fn known_by(url: &str, authority: &str) -> Result<Self, HttpError> {
        let certificates: Vec<Certificate<'static>> = certificates(authority)?;
        let tls = tls().root_certs(RootCerts::new_with_certs(&certificates)).build();
        Ok(Self::with(url, tls))
    }

    /// Any server: what it says must be checked.
    pub(crate) fn unknown(url: &str) -> Self {
        Self::with(url, tls().disable_verification(true).build())
    }

    fn with(url: &str, tls: TlsConfig) -> Self {
        let config = Agent::config_builder()
            .tls_config(tls)
            .https_only(true)
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_LIMIT))
            .timeout_resolve(Some(CONNECT_LIMIT))
            .timeout_send_body(Some(SEND_LIMIT))
            .timeout_recv_response(Some(ANSWER_LIMIT))
            .timeout_recv_body(Some(ANSWER_LIMIT))
            .user_agent(concat!("vmscope-agent/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { agent: config.new_agent(), url: url.trim_end_matches('/').to_owned() }
    }

    pub(crate) fn get(&self, path: &str) -> Result<Answer, HttpError> {
        answer(self.agent.get(format!("{}{path}", self.url)).call()?, MAX_ANSWER_BYTES)
    }

    /// What a user with this token may ask for; `parameters` follow the path.
    pub(crate) fn ask(
        &self,
        path: &str,
        parameters: &[(&str, &str)],
        token: &str,
    ) -> Result<Answer, HttpError> {
        answer(self.requested(path, parameters, token)?, MAX_TABLE_BYTES)
    }

    /// The same with a question in JSON.
    pub(crate) fn ask_json(
        &self,
        path: &str,
        json: &str,
        token: &str,
    ) -> Result<Answer, HttpError> {
        let request = patient(self.agent.post(format!("{}{path}", self.url)));
        let request = request.header("Authorization", format!("Bearer {token}"));
        answer(request.header("Content-Type", "application/json").send(json)?, MAX_TABLE_BYTES)
    }

    /// Removes what a path names.
    pub(crate) fn delete(&self, path: &str, token: &str) -> Result<Answer, HttpError> {
        let request = self.agent.delete(format!("{}{path}", self.url));
        let request = request.header("Authorization", format!("Bearer {token}"));
        answer(request.call()?, MAX_ANSWER_BYTES)
    }

    /// A long answer as it comes in; or what was answered in its place.
    pub(crate) fn download(
        &self,
        path: &str,
        token: &str,
        max_bytes: u64,
    ) -> Result<Result<impl Read + use<>, Answer>, HttpError> {
        let response = self.requested(path, &[], token)?;
        if response.status() != 200 {
            return answer(response, MAX_ANSWER_BYTES).map(Err);
        }
        Ok(Ok(response.into_body().into_with_config().limit(max_bytes).reader()))
    }

    fn requested(
        &self,
        path: &str,
        parameters: &[(&str, &str)],
        token: &str,
    ) -> Result<Response<Body>, HttpError> {
        let request = patient(self.agent.get(format!("{}{path}", self.url)));
        let request = request.header("Authorization", format!("Bearer {token}"));
        Ok(request.query_pairs(parameters.iter().copied()).call()?)
    }

    pub(crate) fn post(&self, path: &str, json: &str) -> Result<Answer, HttpError> {
        let request = self.agent.post(format!("{}{path}", self.url));
        answer(request.header("Content-Type", "application/json").send(json)?, MAX_ANSWER_BYTES)
    }

    /// Sends a window of this many bytes. The token says which host sends it.
    pub(crate) fn put(
        &self,
        path: &str,
        token: &str,
        bytes: u64,
        window: impl Read + Send + 'static,
    ) -> Result<Answer, HttpError> {
        let request = self.agent.put(format!("{}{path}", self.url));
        let request = request.header("Authorization", format!("Bearer {token}"));
        let request = request.header("Content-Type", "application/x-tar");
        let request = request.header("Content-Length", bytes.to_string());
        answer(request.send(SendBody::from_owned_reader(window))?, MAX_ANSWER_BYTES)
    }
}

/// Waits for as long as a query may take.
fn patient<Any>(request: RequestBuilder<Any>) -> RequestBuilder<Any> {
    let limit = Some(REQUEST_LIMIT);
    request.config().timeout_recv_response(limit).timeout_recv_body(limit).build()
}

fn tls() -> ureq::tls::TlsConfigBuilder {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    TlsConfig::builder().provider(TlsProvider::Rustls).unversioned_rustls_crypto_provider(provider)
}

/// The certificates in a PEM file; at least one.
pub(crate) fn certificates(pem: &str) -> Result<Vec<Certificate<'static>>, HttpError> {
    let items = parse_pem(pem.as_bytes());
    let certificates = items.filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = certificates.collect();
    if certificates.is_empty() { Err(HttpError::NoCertificate) } else { Ok(certificates) }
}

fn answer(mut response: Response<Body>, max_bytes: u64) -> Result<Answer, HttpError> {
    let after = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
    let retry_after = after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
    let body = response.body_mut().with_config().limit(max_bytes).lossy_utf8(true);
    // Its status counts, whatever it says besides.
    let text = body.read_to_string().unwrap_or_default();
    Ok(Answer { status: response.status().as_u16(), text, retry_after })
}

/// An error's JSON.
#[derive(serde::Deserialize)]
struct ErrorReply {
    error: String,
    #[serde(default)]
    reason: Option<String>,
}

/// The reason in an error's JSON; else the beginning of what was answered.
pub(crate) fn reason(answer: &Answer) -> String {
    let text = match serde_json::from_str::<ErrorReply>(&answer.text) {
        Ok(ErrorReply { error, .. }) => error,
        Err(_) => answer.text.clone(),
    };
    text.chars().take(300).filter(|c| !c.is_control()).collect()
}

/// Whether the server refused this window because of a wrong clock. It may still take others.
pub(crate) fn is_about_clocks(answer: &Answer) -> bool {
    let reply = serde_json::from_str::<ErrorReply>(&answer.text);
    reply.is_ok_and(|reply| reply.reason.as_deref() == Some("clock"))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn reasons_are_short_lines() {
        let check = |text: &str, expected: &str| {
            let answer = Answer { status: 400, text: text.to_owned(), retry_after: None };
            assert_eq!(reason(&answer), expected);
        };
        check("{\"error\": \"not a\\nwindow\"}", "not awindow");
        check("<html>", "<html>");
        check(&"x".repeat(1000), &"x".repeat(300));
    }

    #[test]
    fn what_is_no_certificate_is_refused() {
        assert!(matches!(certificates("hello"), Err(HttpError::NoCertificate)));
        assert!(matches!(Server::known_by("https://x", ""), Err(HttpError::NoCertificate)));
    }
}
