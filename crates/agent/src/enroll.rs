//! Makes this host one of a fleet: once.

use std::path::PathBuf;

use api::Fingerprint;
use model::error_chain;
use recording::window::HostName;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::config::check_server;
use crate::http::{Answer, HttpError, Server, certificates, reason};
use crate::state::{self, State, StateError};

/// Which host is to be one of which fleet.
#[derive(Debug, Clone)]
pub struct Enrollment {
    /// `https://HOST[:PORT]`.
    pub server: String,
    /// Allows it, once or for a while.
    pub token: String,
    /// SHA-256 of the certificate authority's certificate, hexadecimal: as the server printed it.
    pub fingerprint: String,
    /// This host's name in the fleet.
    pub host: String,
    /// The agent's folder.
    pub state: PathBuf,
}

/// Why this host is not enrolled.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    #[error("{0}")]
    Server(String),
    #[error("{0}")]
    Host(#[from] recording::window::BadName),
    /// No SHA-256.
    #[error("the fingerprint must have 64 hexadecimal digits")]
    Fingerprint,
    /// Another server answers, or a machine between.
    #[error(
        "the server's certificate authority has the fingerprint {found}, not the one given: this is another \
         server, or a machine between intercepts the connection"
    )]
    OtherServer { found: String },
    /// The server can't be reached.
    #[error("failed to reach {server}: {reason}")]
    Unreachable { server: String, reason: String },
    /// It does not want to.
    #[error("{server} refused ({status}): {reason}")]
    Refused { server: String, status: u16, reason: String },
    /// A file can't be read or written.
    #[error("{0}")]
    State(String),
}

impl From<StateError> for EnrollError {
    fn from(error: StateError) -> Self {
        Self::State(error_chain(&error))
    }
}

/// Fetches the server's certificate authority, checks its fingerprint, and exchanges the token for one of this host.
///
/// # Errors
/// When the server is another one, can't be reached or refuses, or nothing can be kept.
pub fn enroll(enrollment: &Enrollment) -> Result<(), EnrollError> {
    let Enrollment { server: url, token, fingerprint, host, state } = enrollment;
    let host: HostName = host.parse()?;
    let (server, authority) = trusted(url, fingerprint)?;
    // First: a host is enrolled once, and a caller that may not write here must not use that up.
    let state = State::create(state)?;
    let host_token = ask_host_token(&server, url, token, &host)?;
    state::write(&state.authority(), &authority)?;
    state::write(&state.host(), host.as_str())?;
    Ok(state::write(&state.host_token(), &host_token)?)
}

/// Exchanges a token for one of a host.
pub(crate) fn ask_host_token(
    server: &Server,
    url: &str,
    token: &str,
    host: &HostName,
) -> Result<String, EnrollError> {
    let request = serde_json::json!({ "token": token, "host": host.as_str() });
    let answer =
        server.post("/v1/enroll", &request.to_string()).map_err(|e| unreachable(url, &e))?;
    host_token(&answer).ok_or_else(|| refused(url, &answer))
}

/// The server at an address, if its certificate authority has this fingerprint; and that authority (PEM).
pub(crate) fn trusted(url: &str, fingerprint: &str) -> Result<(Server, String), EnrollError> {
    check_server(url).map_err(EnrollError::Server)?;
    let expected: Fingerprint = fingerprint.parse().map_err(|_| EnrollError::Fingerprint)?;
    let failed = |error: HttpError| unreachable(url, &error);
    let authority = Server::unknown(url).get("/v1/ca").map_err(failed)?;
    if authority.status != 200 {
        return Err(refused(url, &authority));
    }
    let found = certificates(&authority.text).map_err(failed)?;
    let found = Fingerprint(Sha256::digest(found[0].der()).into());
    if found != expected {
        return Err(EnrollError::OtherServer { found: found.to_string() });
    }
    Ok((Server::known_by(url, &authority.text).map_err(failed)?, authority.text))
}

pub(crate) fn unreachable(url: &str, error: &HttpError) -> EnrollError {
    EnrollError::Unreachable { server: url.to_owned(), reason: error_chain(error) }
}

pub(crate) fn refused(url: &str, answer: &Answer) -> EnrollError {
    EnrollError::Refused { server: url.to_owned(), status: answer.status, reason: reason(answer) }
}

/// The token in an answer; `None`: it has none that could be one.
pub(crate) fn host_token(answer: &Answer) -> Option<String> {
    #[derive(Deserialize)]
    struct Enrolled {
        host_token: String,
    }
    let is_good = (200..300).contains(&answer.status);
    let enrolled: Enrolled = serde_json::from_str(&answer.text).ok().filter(|_| is_good)?;
    let is_token = |text: &str| {
        (16..=256).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    Some(enrolled.host_token).filter(|token| is_token(token))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn only_a_token_is_a_token() {
        let check = |status, text: &str, expected: Option<&str>| {
            let answer = Answer { status, text: text.to_owned(), retry_after: None };
            assert_eq!(host_token(&answer).as_deref(), expected, "{status} {text}");
        };
        let token = "0123456789abcdef0123456789abcdef";
        check(201, &format!("{{\"host_token\": \"{token}\"}}"), Some(token));
        check(409, &format!("{{\"host_token\": \"{token}\"}}"), None);
        check(200, "{\"host_token\": \"short\"}", None);
        check(200, "{\"host_token\": \"0123456789abcdef\\r\\nX: y\"}", None);
        check(200, "[]", None);
    }
}
