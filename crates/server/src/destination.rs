//! Receivers of the server's own messages: where, how it proves who it is, and one bounded request.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use model::error_chain;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Certificate, Client, StatusCode, redirect};
use ring::hmac;
use serde::Deserialize;
use url::{Host, Url};

use crate::alerts::Format;

const CONNECT_TIME: Duration = Duration::from_secs(5);
/// For a request and the head of its answer.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// A token's or a secret's file.
const MAX_FILE_BYTES: u64 = 1 << 14;
/// Of an answer that says why not.
const MAX_REASON: usize = 200;
/// Before a secret, and before a signature, as <https://www.standardwebhooks.com> has it.
const SECRET: &str = "whsec_";
const SIGNATURE: &str = "v1,";

/// Where something is sent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Destination {
    pub url: String,
    /// The certificate authorities that its certificate may be of, PEM. Absent: those of this machine.
    pub ca: Option<PathBuf>,
    /// A file with a token for `Authorization: Bearer`.
    pub token_file: Option<PathBuf>,
    /// A file with the secret that a webhook's messages are signed with.
    pub secret_file: Option<PathBuf>,
    /// What a webhook takes.
    #[serde(default)]
    pub format: Format,
}

impl Destination {
    /// Says what can't be.
    pub(crate) fn check(&self) -> Result<()> {
        let url = Url::parse(&self.url)?;
        ensure!(["http", "https"].contains(&url.scheme()), "not a web address");
        ensure!(url.username().is_empty() && url.password().is_none(), "use token_file instead");
        // The address of a Teams workflow is signed in its query.
        let has_query = url.query().is_some() && self.format != Format::Teams;
        ensure!(!has_query && url.fragment().is_none(), "it has more than a path");
        let is_safe = url.scheme() == "https" || is_loopback(&url);
        ensure!(is_safe || self.token_file.is_none(), "a token is sent by https only");
        Ok(())
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Why a message did not arrive.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostError {
    /// It never will.
    #[error("{0} refused the message: {1} {2}")]
    Refused(String, StatusCode, String),
    /// It may later.
    #[error("{0}")]
    Later(String),
}

/// Sends messages to a destination.
#[derive(Debug)]
pub(crate) struct Poster {
    client: Client,
    pub(crate) url: Url,
    token_file: Option<PathBuf>,
    secret_file: Option<PathBuf>,
}

impl Poster {
    /// `path` follows the destination's own.
    pub(crate) fn new(destination: &Destination, path: &str) -> Result<Self> {
        let mut client = Client::builder()
            .connect_timeout(CONNECT_TIME)
            .timeout(REQUEST_TIME)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .pool_max_idle_per_host(1)
            .user_agent(concat!("vmscope-server/", env!("CARGO_PKG_VERSION")));
        if let Some(file) = &destination.ca {
            let pem = std::fs::read(file)
                .with_context(|| format!("failed to read {}", file.display()))?;
            let authorities = Certificate::from_pem_bundle(&pem)
                .with_context(|| format!("{} has no certificates", file.display()))?;
            client = client.tls_built_in_root_certs(false);
            client =
                authorities.into_iter().fold(client, |client, ca| client.add_root_certificate(ca));
        }
        let Destination { url, token_file, secret_file, .. } = destination;
        let url = Url::parse(&format!("{}{path}", url.trim_end_matches('/')))?;
        let client = client.build().context("failed to make an HTTP client")?;
        Ok(Self { client, url, token_file: token_file.clone(), secret_file: secret_file.clone() })
    }

    /// Where it sends to, without the path: a chat's is a secret.
    pub(crate) fn place(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    /// Sends a message, once. `id`: the same for the same message.
    pub(crate) async fn post(
        &self,
        kind: &'static str,
        id: &str,
        now_s: u64,
        body: Bytes,
    ) -> Result<(), PostError> {
        let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
        if let Some(file) = &self.secret_file {
            let secret = secret(&text_of(file)?).ok_or_else(|| {
                PostError::Later(format!("{}: no {SECRET}BASE64 in it", file.display()))
            })?;
            let signed = [id.as_bytes(), b".", now_s.to_string().as_bytes(), b".", &body].concat();
            let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret), &signed);
            let signature = format!("{SIGNATURE}{}", BASE64_STANDARD.encode(signature));
            add(&mut headers, "webhook-signature", &signature)?;
        }
        add(&mut headers, "webhook-id", id)?;
        add(&mut headers, "webhook-timestamp", &now_s.to_string())?;
        let mut request = self.client.post(self.url.clone()).headers(headers).body(body);
        if let Some(file) = &self.token_file {
            request = request.bearer_auth(text_of(file)?);
        }
        let failed = |error: reqwest::Error| {
            PostError::Later(format!("{}: {}", self.place(), error_chain(&error.without_url())))
        };
        let answer = request.send().await.map_err(failed)?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let reason = reason(answer).await;
        let may_pass = status.is_server_error()
            || [
                StatusCode::UNAUTHORIZED,
                StatusCode::FORBIDDEN,
                StatusCode::NOT_FOUND,
                StatusCode::REQUEST_TIMEOUT,
                StatusCode::TOO_MANY_REQUESTS,
            ]
            .contains(&status);
        match may_pass {
            true => Err(PostError::Later(format!("{}: {status} {reason}", self.place()))),
            false => Err(PostError::Refused(self.place(), status, reason)),
        }
    }
}

fn add(headers: &mut HeaderMap, name: &'static str, value: &str) -> Result<(), PostError> {
    let value =
        HeaderValue::from_str(value).map_err(|error| PostError::Later(error.to_string()))?;
    headers.insert(name, value);
    Ok(())
}

/// A file's text. It is read for each message, so it can be exchanged.
fn text_of(file: &Path) -> Result<String, PostError> {
    use std::io::Read;
    let failed = |error: std::io::Error| PostError::Later(format!("{}: {error}", file.display()));
    let mut text = String::new();
    let opened = std::fs::File::open(file).map_err(failed)?;
    opened.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(text.trim().to_owned())
}

fn secret(text: &str) -> Option<Vec<u8>> {
    let secret = BASE64_STANDARD.decode(text.strip_prefix(SECRET)?).ok()?;
    (!secret.is_empty()).then_some(secret)
}

/// The beginning of what was answered.
async fn reason(mut answer: reqwest::Response) -> String {
    let mut bytes = Vec::new();
    while let Ok(Some(chunk)) = answer.chunk().await {
        bytes.extend_from_slice(&chunk);
        if MAX_REASON <= bytes.len() {
            break;
        }
    }
    bytes.truncate(MAX_REASON);
    table::clean(String::from_utf8_lossy(&bytes).trim()).into_owned()
}

#[cfg(test)]
mod test {
    use super::*;

    fn destination(url: &str) -> Destination {
        Destination {
            url: url.to_owned(),
            ca: None,
            token_file: None,
            secret_file: None,
            format: Format::Generic,
        }
    }

    #[test]
    fn what_can_not_be_sent_to_is_refused() {
        let check = |destination: Destination, expected: &str| {
            let error = destination.check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(destination("alertmanager:9093"), "not a web address");
        check(destination("file:///etc/passwd"), "not a web address");
        check(destination("https://me:secret@there"), "use token_file");
        check(destination("https://there/?a=b"), "more than a path");
        let teams = Destination { format: Format::Teams, ..destination("https://there/?sig=a") };
        teams.check().unwrap();
        let with_token = |url| Destination { token_file: Some("token".into()), ..destination(url) };
        check(with_token("http://there:9093"), "https only");
        for good in
            ["https://there", "http://127.0.0.1:9093/am", "http://[::1]", "http://localhost"]
        {
            with_token(good).check().unwrap();
        }
        destination("http://there").check().unwrap();
    }

    #[test]
    fn a_secret_has_its_mark() {
        assert_eq!(secret("whsec_AAEC"), Some(vec![0, 1, 2]));
        assert_eq!(secret("AAEC"), None);
        assert_eq!(secret("whsec_"), None);
    }
}
