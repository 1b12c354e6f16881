//! Who may do what. Tokens are 256 random bits; the store keeps their SHA-256, so it can be read without being used.
//!
//! ```text
//!  token --sha256--> auth/tokens/SHA256.json   role, name, end: users, and who enrols hosts
//!  HOST~token -----> auth/hosts/HOST.json      sha256 of the whole: windows of that host
//! ```

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use api::http::{HostEntry, Role, TokenEntry, TokenReply, TokenRequest};
use bytes::Bytes;
use object_store::path::Path;
use recording::window::HostName;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::object_names::{HOSTS, TOKENS};
use crate::store::{Created, Store};

/// A change of tokens by another server counts after this time at the latest.
const REMEMBERED: Duration = Duration::from_secs(10);
/// What there is not is looked for again sooner.
const MISSED: Duration = Duration::from_secs(1);
/// Objects that are remembered.
const MAX_REMEMBERED: usize = 10_000;
/// Between a host's name and its secret: no name has it.
const SEPARATOR: char = '~';
/// Characters of a name of a token.
const MAX_NAME: usize = 100;
/// Days that a token is good for at most.
const MAX_DAYS: u32 = 36_500;

/// Why a request is turned away.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Denied {
    #[error("a token is needed: Authorization: Bearer TOKEN")]
    NoToken,
    #[error("the token is not known, has expired or was deleted")]
    Unknown,
    #[error("the token's role does not allow this")]
    Role,
    #[error("{0} is enrolled already: an admin has to delete it first")]
    Enrolled(HostName),
    #[error("{0}")]
    Invalid(String),
    #[error("the store does not answer")]
    Store(#[from] object_store::Error),
}

#[derive(Debug)]
pub(crate) struct Auth {
    store: Store,
    remembered: Mutex<HashMap<Path, (Instant, Option<Bytes>)>>,
}

impl Auth {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, remembered: Mutex::default() }
    }

    /// The host that has this token.
    pub(crate) async fn host(&self, token: &str) -> Result<HostName, Denied> {
        let (host, _) = token.split_once(SEPARATOR).ok_or(Denied::Unknown)?;
        let host: HostName = host.parse().map_err(|_| Denied::Unknown)?;
        let entry = self.look_up(&host_path(&host)).await?.ok_or(Denied::Unknown)?;
        let entry: HostEntry = parse(&entry)?;
        let is_it = entry.token_sha256.as_bytes().ct_eq(hash(token).as_bytes());
        if entry.host == host.as_str() && bool::from(is_it) {
            Ok(host)
        } else {
            Err(Denied::Unknown)
        }
    }

    pub(crate) async fn role(&self, token: &str) -> Result<Role, Denied> {
        Ok(self.user(token).await?.role)
    }

    /// Whose token this is. It is found by its hash, so the time that this takes tells nothing.
    pub(crate) async fn user(&self, token: &str) -> Result<TokenEntry, Denied> {
        let id = hash(token);
        let entry = self.look_up(&token_path(&id)).await?.ok_or(Denied::Unknown)?;
        let entry: TokenEntry = parse(&entry)?;
        match entry.expires_unix_s {
            Some(end) if end <= unix_s() => Err(Denied::Unknown),
            _ => Ok(entry),
        }
    }

    pub(crate) async fn make_token(&self, request: TokenRequest) -> Result<TokenReply, Denied> {
        let fits = (1..=MAX_NAME).contains(&request.name.len());
        if !fits || request.name.chars().any(model::is_unsafe) {
            let text = format!("a token's name must have 1 to {MAX_NAME} bytes, all printable");
            return Err(Denied::Invalid(text));
        }
        if request.days.is_some_and(|days| MAX_DAYS < days) {
            return Err(Denied::Invalid(format!("a token is good for at most {MAX_DAYS} days")));
        }
        let expires_unix_s = request.days.map(|days| unix_s() + u64::from(days) * 86_400);
        let token = secret()?;
        let id = hash(&token);
        let TokenRequest { role, name, .. } = request;
        let entry = TokenEntry { id: id.clone(), role, name, expires_unix_s };
        self.store.create(&token_path(&id), json(&entry)?).await?;
        Ok(TokenReply { token, id })
    }

    pub(crate) async fn tokens(&self) -> Result<Vec<TokenEntry>, Denied> {
        self.entries(TOKENS).await
    }

    /// Deletes a token; false: there is none.
    pub(crate) async fn delete_token(&self, id: &str) -> Result<bool, Denied> {
        let is_hash = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hash {
            return Err(Denied::Invalid(
                "a token is deleted by its id, 64 hexadecimal digits".into(),
            ));
        }
        self.delete(&token_path(id)).await
    }

    /// Makes a host's token.
    pub(crate) async fn enroll(&self, host: &HostName) -> Result<String, Denied> {
        let token = format!("{host}{SEPARATOR}{}", secret()?);
        let entry = HostEntry {
            host: host.to_string(),
            token_sha256: hash(&token),
            enrolled_unix_s: unix_s(),
        };
        let path = host_path(host);
        let created = self.store.create_own(&path, json(&entry)?).await?;
        self.forget(&path);
        match created {
            Created::Now => Ok(token),
            Created::Before => Err(Denied::Enrolled(host.clone())),
        }
    }

    pub(crate) async fn hosts(&self) -> Result<Vec<HostEntry>, Denied> {
        self.entries(HOSTS).await
    }

    /// A host's token is good no longer; false: there is none.
    pub(crate) async fn delete_host(&self, host: &HostName) -> Result<bool, Denied> {
        self.delete(&host_path(host)).await
    }

    async fn entries<T: serde::de::DeserializeOwned>(
        &self,
        prefix: &str,
    ) -> Result<Vec<T>, Denied> {
        let mut entries = Vec::new();
        for object in self.store.list(prefix).await? {
            // A token that was deleted or is damaged is skipped.
            let Some(bytes) = self.store.get(&object.location).await? else { continue };
            entries.extend(parse::<T>(&bytes).ok());
        }
        Ok(entries)
    }

    async fn delete(&self, path: &Path) -> Result<bool, Denied> {
        let deleted = self.store.delete(path).await?;
        self.forget(path);
        Ok(deleted)
    }

    async fn look_up(&self, path: &Path) -> Result<Option<Bytes>, Denied> {
        if let Some(found) = self.remembered(path) {
            return Ok(found);
        }
        let found = self.store.get(path).await?;
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if MAX_REMEMBERED <= remembered.len() {
            remembered.clear();
        }
        remembered.insert(path.clone(), (Instant::now(), found.clone()));
        Ok(found)
    }

    fn remembered(&self, path: &Path) -> Option<Option<Bytes>> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let (time, found) = remembered.get(path)?;
        let limit = if found.is_some() { REMEMBERED } else { MISSED };
        (time.elapsed() < limit).then(|| found.clone())
    }

    fn forget(&self, path: &Path) {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
    }
}

fn host_path(host: &HostName) -> Path {
    Path::from(format!("{HOSTS}/{host}.json"))
}

fn token_path(id: &str) -> Path {
    Path::from(format!("{TOKENS}/{id}.json"))
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Denied> {
    serde_json::from_slice(bytes).map_err(|_| Denied::Unknown)
}

fn json(entry: &impl serde::Serialize) -> Result<Bytes, Denied> {
    let text = serde_json::to_vec(entry).map_err(|error| Denied::Invalid(error.to_string()))?;
    Ok(text.into())
}

/// 256 bits, in hexadecimal.
fn secret() -> Result<String, Denied> {
    let mut bits = [0; 32];
    let provider = rustls::crypto::ring::default_provider();
    let filled = provider.secure_random.fill(&mut bits);
    filled.map_err(|_| Denied::Invalid("the kernel has no random numbers".to_owned()))?;
    Ok(hex(&bits))
}

pub(crate) fn hash(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unix_s() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod test {
    use super::*;

    fn auth() -> (tempfile::TempDir, Auth) {
        let dir = tempfile::tempdir().unwrap();
        let auth = Auth::new(Store::open(dir.path().to_str().unwrap()).unwrap());
        (dir, auth)
    }

    #[tokio::test]
    async fn a_host_has_one_token_until_it_is_deleted() {
        let (_dir, auth) = auth();
        let host: HostName = "kvm1".parse().unwrap();
        let token = auth.enroll(&host).await.unwrap();
        assert_eq!(auth.host(&token).await.unwrap(), host);
        assert!(matches!(auth.enroll(&host).await, Err(Denied::Enrolled(_))));
        for bad in ["", "kvm1", "kvm1~", "kvm2~x", "../a~x", &token[..token.len() - 1], &token[1..]]
        {
            assert!(matches!(auth.host(bad).await, Err(Denied::Unknown)), "{bad}");
        }
        assert!(matches!(auth.role(&token).await, Err(Denied::Unknown)));
        assert!(auth.delete_host(&host).await.unwrap());
        assert!(matches!(auth.host(&token).await, Err(Denied::Unknown)));
        let new = auth.enroll(&host).await.unwrap();
        assert_ne!(new, token);
        assert!(auth.host(&new).await.is_ok() && auth.host(&token).await.is_err());
    }

    #[tokio::test]
    async fn tokens_have_roles_and_ends() {
        let (dir, auth) = auth();
        let request = |role, days| TokenRequest { role, name: "me".into(), days };
        let read = auth.make_token(request(Role::Read, Some(1))).await.unwrap();
        assert_eq!(auth.role(&read.token).await.unwrap(), Role::Read);
        let ended = auth.make_token(request(Role::Admin, Some(0))).await.unwrap();
        assert!(matches!(auth.role(&ended.token).await, Err(Denied::Unknown)));
        assert_eq!(auth.tokens().await.unwrap().len(), 2);
        assert!(auth.delete_token(&read.id).await.unwrap());
        assert!(matches!(auth.role(&read.token).await, Err(Denied::Unknown)));
        let kept = std::fs::read_to_string(dir.path().join(format!("{TOKENS}/{}.json", ended.id)));
        assert!(!kept.unwrap().contains(&ended.token), "the store has the token itself");
        let name = "a\nb".into();
        let bad = auth.make_token(TokenRequest { name, ..request(Role::Read, None) }).await;
        assert!(matches!(bad, Err(Denied::Invalid(_))));
    }
}
