//! Windows that were set aside: kept for a while, so that an operator can see why, and bounded, so that no sender can
//! fill the store with them.

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use chrono::NaiveDate;
use object_store::path::Path;
use recording::window::{HostName, WindowId};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use crate::auth::{hex, unix_s};
use crate::object_names::{REFUSED, day_of};
use crate::store::{Created, Store};

/// What is kept of a host each day, and of all hosts.
const MAX_OF_HOST: Kept = Kept { windows: 10, bytes: 256 << 20 };
const MAX_OF_DAY: Kept = Kept { windows: 500, bytes: 1 << 30 };
/// Days that they are kept.
pub(crate) const DAYS: u64 = 7;

/// How much is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Kept {
    windows: u64,
    bytes: u64,
}

impl Kept {
    /// With another window; `None`: it would be too much.
    fn with(self, bytes: u64, most: Self) -> Option<Self> {
        let with = Self { windows: self.windows + 1, bytes: self.bytes.checked_add(bytes)? };
        (with.windows <= most.windows && with.bytes <= most.bytes).then_some(with)
    }
}

/// What is kept since midnight.
#[derive(Debug, Default)]
struct Today {
    day: NaiveDate,
    hosts: BTreeMap<String, Kept>,
    all: Kept,
}

impl Today {
    async fn of_store(day: NaiveDate, store: &Store) -> object_store::Result<Self> {
        let mut today = Self { day, ..Self::default() };
        for object in store.list(&format!("{REFUSED}/day={day}")).await? {
            let path = object.location.as_ref();
            let host = path.rsplit('/').nth(1).and_then(|folder| folder.strip_prefix("host="));
            let Some(host) = host.filter(|_| path.ends_with(".window")) else { continue };
            let of_host = today.hosts.entry(host.to_owned()).or_default();
            for kept in [of_host, &mut today.all] {
                kept.windows += 1;
                kept.bytes = kept.bytes.saturating_add(object.size);
            }
        }
        Ok(today)
    }
}

/// Keeps refused windows.
#[derive(Debug)]
pub(crate) struct Refused {
    store: Store,
    today: Mutex<Today>,
}

impl Refused {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, today: Mutex::default() }
    }

    /// Sets a window aside; false: there is no room, or it is there already.
    pub(crate) async fn keep(
        &self,
        id: &WindowId,
        file: &FilePath,
        reason: &str,
    ) -> object_store::Result<bool> {
        let failed = |source| object_store::Error::Generic { store: "spool", source };
        let day = day_of(unix_s().saturating_mul(1_000_000_000));
        let bytes = file.metadata().map_err(|error| failed(error.into()))?.len();
        if !self.has_room(day, &id.host, bytes).await? {
            return Ok(false);
        }
        let content = file.to_owned();
        let hashed = tokio::task::spawn_blocking(move || hash(&content)).await;
        let hash = hashed.map_err(|e| failed(e.into()))?.map_err(|e| failed(e.into()))?;
        let stem = format!(
            "{REFUSED}/day={day}/host={}/{}-{}-{}",
            id.host,
            id.boot,
            id.start_text(),
            &hash[..16]
        );
        let note = json!({ "window": id.to_string(), "reason": reason, "sha256": hash });
        let created = self.store.create_from(&Path::from(format!("{stem}.window")), file).await?;
        self.store.create(&Path::from(format!("{stem}.json")), note.to_string().into()).await?;
        Ok(created == Created::Now)
    }

    async fn has_room(
        &self,
        day: NaiveDate,
        host: &HostName,
        bytes: u64,
    ) -> object_store::Result<bool> {
        let mut today = self.today.lock().await;
        if today.day != day {
            // Earlier lives of this server and other servers have kept some, too.
            *today = Today::of_store(day, &self.store).await?;
        }
        let of_host = today.hosts.get(host.as_str()).copied().unwrap_or_default();
        let (of_host, all) = (of_host.with(bytes, MAX_OF_HOST), today.all.with(bytes, MAX_OF_DAY));
        let (Some(of_host), Some(all)) = (of_host, all) else { return Ok(false) };
        today.hosts.insert(host.to_string(), of_host);
        today.all = all;
        Ok(true)
    }
}

fn hash(file: &FilePath) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    std::io::copy(&mut std::fs::File::open(file)?, &mut HashWriter(&mut hasher))?;
    Ok(hex(&hasher.finalize()))
}

struct HashWriter<'a>(&'a mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[tokio::test]
    async fn a_host_can_not_fill_the_store() {
        let dir = tempfile::tempdir().unwrap();
        let refused = Refused::new(Store::open(dir.path().to_str().unwrap()).unwrap());
        let id = |host: &str, start: u32| -> WindowId {
            format!("{host}/{}/{start:020}", "0".repeat(32)).parse().unwrap()
        };
        let mut kept = 0_u64;
        for number in 0..30 {
            let file = dir.path().join("file");
            std::fs::write(&file, number.to_string()).unwrap();
            kept += u64::from(refused.keep(&id("a", number), &file, "reason").await.unwrap());
        }
        assert_eq!(kept, MAX_OF_HOST.windows);
        assert!(refused.keep(&id("b", 0), &dir.path().join("file"), "reason").await.unwrap());
        assert_eq!(refused.store.list(REFUSED).await.unwrap().len(), 22);
        // Large ones are fewer. What was kept before a restart counts.
        let large = dir.path().join("large");
        let file = std::fs::File::create(&large).unwrap();
        let mut kept = Vec::new();
        for number in 0..5 {
            file.set_len((100 << 20) + number).unwrap();
            let refused = Refused::new(refused.store.clone());
            kept.push(refused.keep(&id("c", 0), &large, "reason").await.unwrap());
        }
        assert_eq!(kept, [true, true, false, false, false]);
        let refused = Refused::new(refused.store.clone());
        assert!(!refused.keep(&id("a", 31), &dir.path().join("file"), "reason").await.unwrap());
        let today = day_of(unix_s() * 1_000_000_000);
        let old = async |today| refused.store.old_days(REFUSED, today, DAYS).await.unwrap();
        assert!(old(today).await.is_empty());
        let (day, prefix) = &old(today + chrono::Days::new(DAYS + 1)).await[0];
        assert_eq!(*day, today);
        assert_eq!(refused.store.remove(prefix, |_| false).await.unwrap().objects, 26);
    }
}
