//! What operators said about findings: who looks after one, and which are not to be sent for a while. The store is the truth:
//! several servers see the same.
//!
//! ```text
//!  handled/v1/acknowledged/FINDING.json   kept for 30 days
//!  handled/v1/silences/ID.json            kept until it is over
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::http::{Acknowledgement, SilenceEntry, SilenceRequest};
use bytes::Bytes;
use detect::FindingId;
use object_store::path::Path;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use crate::alerts::{KINDS, kind_of};
use crate::auth::hash;
use crate::object_names::HANDLED;
use crate::store::{Created, Store};
use crate::watch::Found;

/// What other servers wrote is seen after this time.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Silences and acknowledgements at most: so many are looked at, and no more are made.
const MAX_SILENCES: usize = 500;
const MAX_ACKNOWLEDGED: usize = 2000;
/// Of a note, a host's or a VM's name.
const MAX_TEXT: usize = 500;
const ACKNOWLEDGED_S: u64 = 30 * 86_400;
/// 366 days.
const MAX_MINUTES: u32 = 366 * 1440;

/// Why something was not kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandleError {
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Conflict(String),
    #[error(transparent)]
    Store(#[from] object_store::Error),
}

/// What is said now.
#[derive(Debug, Clone, Default)]
pub(crate) struct OperatorNotes {
    /// By finding.
    pub(crate) acknowledged: BTreeMap<String, Acknowledgement>,
    pub(crate) silences: Vec<SilenceEntry>,
}

impl OperatorNotes {
    /// The silence of a finding that lasts longest.
    pub(crate) fn silence(&self, found: &Found, now_s: u64) -> Option<&SilenceEntry> {
        let (id, series) = (found.finding.id.to_string(), &found.first.series);
        let kind = kind_of(&series.measure).name;
        let fits = |wanted: &Option<String>, own: Option<&str>| {
            wanted.is_none() || wanted.as_deref() == own
        };
        let is_of = |silence: &&SilenceEntry| {
            now_s < silence.until_unix_s
                && fits(&silence.finding, Some(&id))
                && fits(&silence.host, series.host.as_deref())
                && fits(&silence.vm, series.vm.as_deref())
                && fits(&silence.kind, Some(kind))
        };
        self.silences.iter().filter(is_of).max_by_key(|silence| silence.until_unix_s)
    }
}

/// Knows what is said.
#[derive(Debug)]
pub(crate) struct Handled {
    store: Store,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    looked: Option<Instant>,
    said: Arc<OperatorNotes>,
    /// Objects that were read, with the time when they were made.
    read: HashMap<Path, (chrono::DateTime<chrono::Utc>, Bytes)>,
}

impl Handled {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, known: Mutex::default() }
    }

    /// What is said, some seconds ago at most.
    pub(crate) async fn said(&self) -> object_store::Result<Arc<OperatorNotes>> {
        let mut known = self.known.lock().await;
        if known.looked.is_none_or(|looked| LOOK_EVERY <= looked.elapsed()) {
            let mut read = HashMap::new();
            let acknowledged =
                self.entries(ACKNOWLEDGED, MAX_ACKNOWLEDGED, &known.read, &mut read).await?;
            let silences = self.entries(SILENCES, MAX_SILENCES, &known.read, &mut read).await?;
            let silences = silences.into_iter().map(|(_, silence)| silence).collect();
            let acknowledged = acknowledged.into_iter().collect();
            let said = Arc::new(OperatorNotes { acknowledged, silences });
            *known = Known { looked: Some(Instant::now()), said, read };
        }
        Ok(Arc::clone(&known.said))
    }

    /// All of one kind, by name. One that is damaged is none.
    async fn entries<T: DeserializeOwned>(
        &self,
        of: &str,
        most: usize,
        before: &HashMap<Path, (chrono::DateTime<chrono::Utc>, Bytes)>,
        read: &mut HashMap<Path, (chrono::DateTime<chrono::Utc>, Bytes)>,
    ) -> object_store::Result<Vec<(String, T)>> {
        let mut entries = Vec::new();
        for object in self.store.list(&format!("{HANDLED}/{of}")).await?.into_iter().take(most) {
            let made = object.last_modified;
            let bytes = match before.get(&object.location) {
                Some((then, bytes)) if *then == made => bytes.clone(),
                _ => match self.store.get(&object.location).await? {
                    Some(bytes) => bytes,
                    None => continue,
                },
            };
            let name = object.location.filename().and_then(|name| name.strip_suffix(".json"));
            if let (Some(name), Ok(entry)) = (name, serde_json::from_slice(&bytes)) {
                entries.push((name.to_owned(), entry));
            }
            read.insert(object.location, (made, bytes));
        }
        Ok(entries)
    }

    pub(crate) async fn acknowledge(
        &self,
        finding: FindingId,
        entry: &Acknowledgement,
    ) -> Result<(), HandleError> {
        checked("note", &entry.note)?;
        let said = self.said().await?;
        if MAX_ACKNOWLEDGED <= said.acknowledged.len() {
            let text = format!("there are {MAX_ACKNOWLEDGED} acknowledgements already");
            return Err(HandleError::Conflict(text));
        }
        let path = acknowledged(finding);
        match self.create(&path, entry).await? {
            Created::Now => Ok(()),
            Created::Before => {
                Err(HandleError::Conflict(format!("{finding} is acknowledged already")))
            }
        }
    }

    /// Withdraws an acknowledgement; false: there was none.
    pub(crate) async fn forget_acknowledgement(
        &self,
        finding: FindingId,
    ) -> Result<bool, HandleError> {
        self.delete(&acknowledged(finding)).await
    }

    pub(crate) async fn silence(
        &self,
        request: SilenceRequest,
        by: String,
        now_s: u64,
    ) -> Result<SilenceEntry, HandleError> {
        let SilenceRequest { finding, host, vm, kind, minutes, note } = request;
        let invalid = |text: &str| Err(HandleError::Invalid(text.to_owned()));
        let given = [&finding, &host, &vm, &kind];
        if given.iter().all(|given| given.is_none()) {
            return invalid("a silence needs a finding, a host, a VM or a kind");
        }
        if let Some(id) = &finding {
            finding_id(id)?;
        }
        if kind.as_deref().is_some_and(|kind| !KINDS.contains(&kind)) {
            return Err(HandleError::Invalid(format!("kind must be one of {}", KINDS.join(", "))));
        }
        if !(1..=MAX_MINUTES).contains(&minutes) {
            return Err(HandleError::Invalid(format!("minutes must be from 1 to {MAX_MINUTES}")));
        }
        checked("note", &note)?;
        let too_long = |name: &&&Option<String>| name.as_ref().is_some_and(|n| MAX_TEXT < n.len());
        if given.iter().any(|name| too_long(&name)) {
            return Err(HandleError::Invalid(format!("a name has at most {MAX_TEXT} bytes")));
        }
        if MAX_SILENCES <= self.said().await?.silences.len() {
            let text = format!("there are {MAX_SILENCES} silences already: delete some");
            return Err(HandleError::Conflict(text));
        }
        let until_unix_s = now_s + 60 * u64::from(minutes);
        let mut entry = SilenceEntry {
            id: String::new(),
            finding,
            host,
            vm,
            kind,
            by,
            unix_s: now_s,
            until_unix_s,
            note,
        };
        // The same, said twice at a time, is one.
        entry.id = hash(&serde_json::to_string(&entry).unwrap_or_default())[..16].to_owned();
        self.create(&silence_path(&entry.id), &entry).await?;
        Ok(entry)
    }

    /// Ends a silence; false: there is none.
    pub(crate) async fn end_silence(&self, id: &str) -> Result<bool, HandleError> {
        // Silences are named like findings.
        if id.parse::<FindingId>().is_err() {
            let text = "a silence's id has 16 hexadecimal digits (0-9, a-f)";
            return Err(HandleError::Invalid(text.to_owned()));
        }
        self.delete(&silence_path(id)).await
    }

    /// Removes what is over: how many objects.
    pub(crate) async fn expire(&self, now_s: u64) -> object_store::Result<u64> {
        let mut removed = 0;
        let said = self.said().await?;
        let silences = said.silences.iter().filter(|silence| silence.until_unix_s <= now_s);
        let silences = silences.map(|silence| silence_path(&silence.id));
        let is_old = |entry: &Acknowledgement| entry.unix_s + ACKNOWLEDGED_S <= now_s;
        let acknowledged = said.acknowledged.iter().filter(|(_, entry)| is_old(entry));
        let acknowledged =
            acknowledged.filter_map(|(id, _)| Some(self::acknowledged(id.parse().ok()?)));
        for path in silences.chain(acknowledged) {
            removed += u64::from(self.store.delete(&path).await?);
        }
        Ok(removed)
    }

    async fn create(
        &self,
        path: &Path,
        entry: &impl serde::Serialize,
    ) -> Result<Created, HandleError> {
        let text = serde_json::to_vec(entry).map_err(|e| HandleError::Invalid(e.to_string()))?;
        let created = self.store.create_own(path, text.into()).await?;
        self.known.lock().await.looked = None;
        Ok(created)
    }

    async fn delete(&self, path: &Path) -> Result<bool, HandleError> {
        let deleted = self.store.delete(path).await?;
        self.known.lock().await.looked = None;
        Ok(deleted)
    }
}

const ACKNOWLEDGED: &str = "acknowledged";
const SILENCES: &str = "silences";

fn acknowledged(finding: FindingId) -> Path {
    Path::from(format!("{HANDLED}/{ACKNOWLEDGED}/{finding}.json"))
}

fn silence_path(id: &str) -> Path {
    Path::from(format!("{HANDLED}/{SILENCES}/{id}.json"))
}

/// The finding of this name.
pub(crate) fn finding_id(text: &str) -> Result<FindingId, HandleError> {
    text.parse().map_err(|error: detect::BadFindingId| HandleError::Invalid(error.to_string()))
}

fn checked(name: &str, text: &str) -> Result<(), HandleError> {
    if MAX_TEXT < text.len() || text.chars().any(model::is_unsafe) {
        let text = format!("{name} has at most {MAX_TEXT} bytes, all printable");
        return Err(HandleError::Invalid(text));
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::alerts::test::found;

    fn request() -> SilenceRequest {
        SilenceRequest {
            finding: None,
            host: None,
            vm: None,
            kind: None,
            minutes: 10,
            note: "deploy".to_owned(),
        }
    }

    fn handled() -> (tempfile::TempDir, Handled) {
        let dir = tempfile::tempdir().unwrap();
        let handled = Handled::new(Store::open(dir.path().to_str().unwrap()).unwrap());
        (dir, handled)
    }

    #[tokio::test]
    async fn silences_fit_what_they_name_until_they_are_over() {
        let (_dir, handled) = handled();
        let found = found(7, "db");
        let some = |text: &str| Some(text.to_owned());
        for (requested, fits) in [
            (SilenceRequest { finding: some("0000000000000007"), ..request() }, true),
            (SilenceRequest { finding: some("0000000000000008"), ..request() }, false),
            (SilenceRequest { vm: some("db"), kind: some("steal-outside"), ..request() }, true),
            (SilenceRequest { vm: some("db"), kind: some("exits"), ..request() }, false),
            (SilenceRequest { host: some("kvm1"), ..request() }, true),
            (SilenceRequest { host: some("kvm2"), ..request() }, false),
        ] {
            let entry = handled.silence(requested.clone(), "ann".to_owned(), 1000).await.unwrap();
            assert_eq!(entry.until_unix_s, 1600);
            let is_silent =
                async |now_s| handled.said().await.unwrap().silence(&found, now_s).is_some();
            assert_eq!(is_silent(1599).await, fits, "{requested:?}");
            assert!(!is_silent(1600).await);
            assert!(handled.end_silence(&entry.id).await.unwrap());
            assert!(!is_silent(1599).await);
            assert!(!handled.end_silence(&entry.id).await.unwrap());
        }
    }

    #[tokio::test]
    async fn what_can_not_be_is_refused_and_what_is_over_is_removed() {
        let (_dir, handled) = handled();
        let some = |text: &str| Some(text.to_owned());
        for (requested, text) in [
            (request(), "needs a finding"),
            (SilenceRequest { finding: some("x"), ..request() }, "16 hexadecimal"),
            (SilenceRequest { kind: some("steal"), ..request() }, "kind must be one of"),
            (SilenceRequest { host: some("a"), minutes: 0, ..request() }, "minutes must be"),
            (SilenceRequest { host: some("a"), note: "\u{1b}".into(), ..request() }, "note has"),
            (SilenceRequest { host: Some("a".repeat(501)), ..request() }, "a name has"),
        ] {
            let error = handled.silence(requested, String::new(), 0).await.unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        let by = |unix_s| Acknowledgement { by: "ann".into(), unix_s, note: String::new() };
        handled.acknowledge(FindingId(7), &by(5)).await.unwrap();
        // As if the store's answer had been lost.
        handled.acknowledge(FindingId(7), &by(5)).await.unwrap();
        let again = handled.acknowledge(FindingId(7), &by(6)).await;
        assert!(matches!(again, Err(HandleError::Conflict(_))));
        let requested = SilenceRequest { host: some("a"), ..request() };
        handled.silence(requested, "ann".into(), 5).await.unwrap();
        assert_eq!(handled.expire(6).await.unwrap(), 0);
        assert_eq!(handled.expire(5 + ACKNOWLEDGED_S).await.unwrap(), 2);
        assert!(!handled.forget_acknowledgement(FindingId(7)).await.unwrap());
    }

    #[tokio::test]
    async fn another_server_sees_it() {
        let (_dir, handled) = handled();
        let other = Handled::new(handled.store.clone());
        assert!(other.said().await.unwrap().silences.is_empty());
        let requested = SilenceRequest { host: Some("a".into()), ..request() };
        handled.silence(requested, "ann".into(), 5).await.unwrap();
        other.known.lock().await.looked = None;
        assert_eq!(other.said().await.unwrap().silences.len(), 1);
    }

    #[tokio::test]
    async fn there_are_not_any_number_of_silences() {
        let (_dir, handled) = handled();
        let requested = SilenceRequest { host: Some("a".into()), ..request() };
        for number in 0..MAX_SILENCES as u64 {
            let entry = SilenceEntry {
                id: format!("{number:016x}"),
                finding: None,
                host: None,
                vm: None,
                kind: None,
                by: String::new(),
                unix_s: 0,
                until_unix_s: 1,
                note: String::new(),
            };
            let path = silence_path(&entry.id);
            let text = serde_json::to_vec(&entry).unwrap();
            handled.store.create(&path, text.into()).await.unwrap();
        }
        let refused = handled.silence(requested, "ann".into(), 5).await;
        assert!(matches!(refused, Err(HandleError::Conflict(_))));
    }
}
