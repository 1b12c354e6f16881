//! Users of a server: who asks for what agents have sent.
//!
//! ```text
//!  FOLDER/server   https://HOST[:PORT]
//!  FOLDER/ca.pem   its certificate authority
//!  FOLDER/token    mode 0600
//! ```

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use model::error_chain;
use recording::window::{MAX_WINDOW_BYTES, WindowId, unpack};

use crate::enroll::{EnrollError, refused, trusted, unreachable};
use crate::http::{Answer, HttpError, Server};
use crate::state::{self, StateError};

const SERVER: &str = "server";
const AUTHORITY: &str = "ca.pem";
const TOKEN: &str = "token";

/// A user with a token.
#[derive(Debug)]
pub struct User {
    server: Server,
    url: String,
    token: String,
}

/// Checks the server's fingerprint and that it knows the token, and keeps both in `folder`.
///
/// # Errors
/// When the server is another one, can't be reached or does not know the token, or nothing can be kept.
pub fn login(url: &str, fingerprint: &str, token: &str, folder: &Path) -> Result<(), EnrollError> {
    let (server, authority) = trusted(url, fingerprint)?;
    let user = User { server, url: url.to_owned(), token: token.to_owned() };
    user.get("/v1/hosts", &[])?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|source| StateError::new("create", folder, source))?;
    // The token comes last: where it is, the others are.
    for (name, text) in [(SERVER, url), (AUTHORITY, &authority), (TOKEN, token)] {
        state::write(&folder.join(name), text)?;
    }
    Ok(())
}

/// The folder of a login: the given one, or `vmscope/server` in the user's configuration. `None`: the environment names
/// none.
#[must_use]
pub fn login_folder(given: Option<&Path>) -> Option<PathBuf> {
    if let Some(folder) = given {
        return Some(folder.to_owned());
    }
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let config = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")));
    Some(config?.join("vmscope/server"))
}

impl User {
    /// Who logged in with this folder; `None`: no login.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn open(folder: &Path) -> Result<Option<Self>, EnrollError> {
        if !folder.join(TOKEN).exists() {
            return Ok(None);
        }
        let read = |name: &str| state::read(&folder.join(name));
        let (url, authority, token) = (read(SERVER)?, read(AUTHORITY)?, read(TOKEN)?);
        let damaged = |error: HttpError| {
            let path = folder.join(AUTHORITY);
            EnrollError::State(format!("{}: {error}: log in again", path.display()))
        };
        let server = Server::known_by(&url, &authority).map_err(damaged)?;
        Ok(Some(Self { server, url, token }))
    }

    /// The address of the server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The JSON at a path.
    ///
    /// # Errors
    /// When the server can't be reached or refuses.
    pub fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Result<String, EnrollError> {
        self.text(self.server.ask(path, parameters, &self.token))
    }

    /// The answer to a question in JSON.
    ///
    /// # Errors
    /// When the server can't be reached or refuses.
    pub fn post(&self, path: &str, json: &str) -> Result<String, EnrollError> {
        self.text(self.server.ask_json(path, json, &self.token))
    }

    /// Removes what a path names.
    ///
    /// # Errors
    /// When the server can't be reached or refuses.
    pub fn delete(&self, path: &str) -> Result<(), EnrollError> {
        self.text(self.server.delete(path, &self.token)).map(drop)
    }

    /// Downloads a window as the recording `folder`, which must not exist yet.
    ///
    /// # Errors
    /// When the server can't be reached or refuses, or the recording can't be written.
    pub fn download(&self, window: &WindowId, folder: &Path) -> Result<(), EnrollError> {
        let path = format!("/v1/windows/{window}");
        let body = self.server.download(&path, &self.token, MAX_WINDOW_BYTES);
        match body.map_err(|error| unreachable(&self.url, &error))? {
            Ok(body) => unpack(body, folder, MAX_WINDOW_BYTES).map_err(|error| {
                let reason = error_chain(&error);
                EnrollError::State(format!("{}: {reason}", folder.display()))
            }),
            Err(answer) => Err(refused(&self.url, &answer)),
        }
    }

    fn text(&self, answer: Result<Answer, HttpError>) -> Result<String, EnrollError> {
        let answer = answer.map_err(|error| unreachable(&self.url, &error))?;
        let is_done = (200..300).contains(&answer.status);
        if is_done { Ok(answer.text) } else { Err(refused(&self.url, &answer)) }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_damaged_login_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        assert!(User::open(dir.path()).unwrap().is_none());
        for (name, text) in [(SERVER, "https://a"), (AUTHORITY, "x"), (TOKEN, "t")] {
            state::write(&dir.path().join(name), text).unwrap();
        }
        let error = User::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("ca.pem: ") && error.ends_with(": log in again"), "{error}");
    }
}
