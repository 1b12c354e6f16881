//! Windows that were set aside: kept for a while, so that somebody can look why, and bounded, so that nobody can fill the
//! store with them.

use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::sync::{Mutex, PoisonError};

use chrono::NaiveDate;
use object_store::path::Path;
use recording::window::{HostName, WindowId};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::auth::{hex, unix_s};
use crate::names::{REFUSED, day_of};
use crate::store::{Created, Store};

/// Windows that are kept: of a host each day, and of all.
const MAX_OF_HOST: u32 = 10;
const MAX_OF_DAY: u32 = 500;
/// Days that they are kept.
pub(crate) const DAYS: u64 = 7;

/// How many are kept since midnight.
#[derive(Debug, Default)]
struct Today {
    day: NaiveDate,
    hosts: BTreeMap<HostName, u32>,
    all: u32,
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
        let day = day_of(unix_s().saturating_mul(1_000_000_000));
        if !self.has_room(day, &id.host) {
            return Ok(false);
        }
        let content = file.to_owned();
        let hashed = tokio::task::spawn_blocking(move || hash(&content)).await;
        let failed = |source| object_store::Error::Generic { store: "spool", source };
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

    fn has_room(&self, day: NaiveDate, host: &HostName) -> bool {
        let mut today = self.today.lock().unwrap_or_else(PoisonError::into_inner);
        if today.day != day {
            *today = Today { day, ..Today::default() };
        }
        let of_host = today.hosts.get(host).copied().unwrap_or(0);
        if MAX_OF_HOST <= of_host || MAX_OF_DAY <= today.all {
            return false;
        }
        today.hosts.insert(host.clone(), of_host + 1);
        today.all += 1;
        true
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
        let mut kept = 0;
        for number in 0..30 {
            let file = dir.path().join("file");
            std::fs::write(&file, number.to_string()).unwrap();
            kept += u32::from(refused.keep(&id("a", number), &file, "reason").await.unwrap());
        }
        assert_eq!(kept, MAX_OF_HOST);
        assert!(refused.keep(&id("b", 0), &dir.path().join("file"), "reason").await.unwrap());
        assert_eq!(refused.store.list(REFUSED).await.unwrap().len(), 22);
        let today = day_of(unix_s() * 1_000_000_000);
        let left = async |today| refused.store.remove_old(REFUSED, today, DAYS).await.unwrap();
        assert_eq!(left(today).await, 0);
        assert_eq!(left(today + chrono::Days::new(DAYS + 1)).await, 22);
    }
}
