//! What detection has learned, in the store.
//!
//! ```text
//!  learned/v1/SECOND.cbor.zst   each hour by one server, and by each that stops; the last two are kept
//! ```
//! What the detector knows has names of its fields, so that another version can read it, or sees that it can't and
//! begins anew.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use detect::{Finding, FindingId};
use model::error_chain;
use object_store::ObjectMeta;
use object_store::path::Path;
use tracing::warn;

use super::{Found, State};
use crate::Server;
use crate::object_names::{DayWindow, LEARNED};

/// It is stored when what is there is so old.
pub(super) const EVERY: Duration = Duration::from_secs(3600);
const KEPT: usize = 2;
/// Of an object, and of what is in it.
const MAX_BYTES: u64 = 1 << 30;
const MAX_UNPACKED: u64 = 4 << 30;
const LEVEL: i32 = 3;

impl Server {
    /// Restores the last stored state, if there is one.
    pub(super) async fn recall(&self) {
        let found = match self.stored_learned().await {
            Ok(found) => found,
            Err(error) => return warn!("what was learned is not known: {error}"),
        };
        for object in found.into_iter().rev() {
            let path = object.location;
            match self.read_learned(&path, object.size).await {
                Ok(state) => {
                    *self.watch.lock() = state;
                    return;
                }
                Err(error) => {
                    self.metrics.store_error("learned");
                    warn!("{path} is passed over: {}", error_chain(error.as_ref()));
                }
            }
        }
    }

    /// The oldest first; those of a clock that was ahead before them.
    async fn stored_learned(&self) -> object_store::Result<Vec<ObjectMeta>> {
        let mut found = self.store.list(LEARNED).await?;
        let latest_s = crate::auth::unix_s() + EVERY.as_secs();
        found.sort_by_key(|object| second_of(&object.location) <= Some(latest_s));
        Ok(found)
    }

    async fn read_learned(&self, path: &Path, size: u64) -> Result<State> {
        ensure!(size <= MAX_BYTES, "it has {size} bytes");
        let packed = self.store.get(path).await?.context("it is not there any more")?;
        tokio::task::spawn_blocking(move || unpack(&packed)).await?
    }

    /// Stores what is known, unless another server did so a shorter time than `every` ago.
    pub(crate) async fn store_learned(self: &Arc<Self>, every: Duration) {
        // Nothing was looked at: what is stored knows more.
        if *self.watch.changes.borrow() == 0 {
            return;
        }
        if let Err(error) = self.try_to_store(every).await {
            self.metrics.store_error("learned");
            warn!("what was learned is not stored: {}", error_chain(error.as_ref()));
        }
    }

    async fn try_to_store(self: &Arc<Self>, every: Duration) -> Result<()> {
        let now_s = crate::auth::unix_s();
        let stored = self.stored_learned().await?;
        let last_s = stored.last().and_then(|object| second_of(&object.location));
        let is_recent = |last_s: u64| now_s.abs_diff(last_s) < every.as_secs();
        if last_s.is_some_and(is_recent) {
            return Ok(());
        }
        let server = Arc::clone(self);
        let packed = tokio::task::spawn_blocking(move || pack(&server.watch.lock())).await??;
        let path = Path::from(format!("{LEARNED}/{now_s:020}{END}"));
        self.store.create(&path, packed.into()).await?;
        for old in stored.iter().rev().skip(KEPT - 1) {
            self.store.delete(&old.location).await?;
        }
        Ok(())
    }
}

const END: &str = ".cbor.zst";

fn second_of(path: &Path) -> Option<u64> {
    path.filename()?.strip_suffix(END)?.parse().ok()
}

fn pack(state: &State) -> Result<Vec<u8>> {
    let State { detector, findings, windows, seen, .. } = state;
    let late = findings.values().filter(|found| found.is_late).map(|found| found.finding.id);
    let late: Vec<FindingId> = late.collect();
    let findings: Vec<_> =
        findings.values().map(|found| (&found.finding, &found.first, found.over_s)).collect();
    let seen: Vec<String> = seen.iter().map(|window| window.raw().into()).collect();
    let mut packer = zstd::Encoder::new(Vec::new(), LEVEL)?;
    packer.include_checksum(true)?;
    ciborium::into_writer(&(windows, seen, findings, detector), &mut packer)?;
    ciborium::into_writer(&late, &mut packer)?;
    Ok(packer.finish()?)
}

fn unpack(packed: &[u8]) -> Result<State> {
    let mut unpacked = BufReader::new(zstd::Decoder::with_buffer(packed)?.take(MAX_UNPACKED));
    let (windows, seen, findings, detector): (_, Vec<String>, Vec<_>, _) =
        ciborium::from_reader(&mut unpacked)?;
    // Version 0.2 did not say which are late.
    let has_late = !unpacked.fill_buf()?.is_empty();
    let late: Vec<FindingId> =
        if has_late { ciborium::from_reader(&mut unpacked)? } else { Vec::new() };
    // The checksum is the last thing that is read.
    ensure!(io::copy(&mut unpacked, &mut io::sink())? == 0, "there is more in it");
    let named = |name| DayWindow::try_from(name).map_err(Error::msg);
    let found = |(finding, first, over_s): (Finding, _, _)| {
        let is_late = late.contains(&finding.id);
        Found { finding, first, over_s, is_late }
    };
    let findings = findings.into_iter().map(found).map(|found| (found.finding.id, found));
    Ok(State {
        detector,
        findings: findings.collect(),
        windows,
        seen: seen.into_iter().map(named).collect::<Result<_>>()?,
        ..State::default()
    })
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::alerts::test::found;

    #[tokio::test]
    async fn what_a_clock_that_was_ahead_stored_does_not_stay() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store").display().to_string();
        let config = crate::Config { store, state: dir.path().join("state"), ..Default::default() };
        let server = Arc::new(Server::open(config).unwrap());
        let ahead = pack(&State { windows: 3, ..State::default() }).unwrap();
        let path = Path::from(format!("{LEARNED}/{:020}{END}", crate::auth::unix_s() + 100_000));
        server.store.create(&path, ahead.into()).await.unwrap();
        server.recall().await;
        assert_eq!(server.watch.lock().windows, 3);
        server.watch.lock().windows = 4;
        server.watch.changes.send_modify(|n| *n += 1);
        server.store_learned(EVERY).await;
        server.watch.lock().windows = 0;
        server.recall().await;
        assert_eq!(server.watch.lock().windows, 4);
        server.store_learned(Duration::ZERO).await;
        assert!(server.store.size(&path).await.unwrap().is_none());
    }

    #[test]
    fn what_is_stored_is_read_again_and_damage_is_seen() {
        let mut state = State { windows: 7, ..State::default() };
        let found = found(7, "db");
        state.findings.insert(found.finding.id, found);
        let window = "raw/v1/day=2026-01-02/host=a/0123456789abcdef0123456789abcdef-00000000000000000042.window";
        state.seen.insert(window.to_owned().try_into().unwrap());
        let packed = pack(&state).unwrap();
        let again = unpack(&packed).unwrap();
        assert_eq!((again.windows, &again.seen), (7, &state.seen));
        let first = |state: &State| state.findings.values().next().unwrap().finding.clone();
        assert_eq!(first(&again), first(&state));
        for damaged in 0..packed.len() {
            let mut packed = packed.clone();
            packed[damaged] ^= 1;
            // Some bits of the header only say how much memory unpacking takes.
            let is_the_same = |state: State| first(&state) == first(&again);
            assert!(unpack(&packed).map_or(true, is_the_same), "byte {damaged}");
            assert!(unpack(&packed[..damaged]).is_err(), "{damaged} bytes");
        }
    }
}
