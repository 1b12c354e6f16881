//! Expiry, and whether the clock can be believed that it goes by: one that jumps ahead by years would make everything old.
//!
//! ```text
//!  clock/v1/DAY: the day of the last expiry
//!  today is within 3 days of it -----------------------------------> believed: expire, DAY = today
//!  else: for 24 h nothing expires; are there windows of today then? -> believed
//! ```
//! So a clock that is wrong deletes nothing unless the hosts' clocks are wrong in the same way, and they were not set
//! for a day. A server that was off for weeks expires a day later than it would have.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use chrono::{NaiveDate, Utc};
use object_store::path::Path;
use tracing::warn;

use crate::auth::unix_s;
use crate::object_names::{
    CLOCK, DayWindow, FAILED, MESSAGES, RAW, REFUSED, RESULTS, day_of_prefix,
};
use crate::results::LAST;
use crate::{Server, alerts, refused};

/// Days that windows are kept longer until they are analysed.
const UNANALYSED_DAYS: u64 = 7;
const EXPIRE_EVERY: Duration = Duration::from_secs(3600);
/// Days that a clock may differ from the last known time.
const NEAR_DAYS: i64 = 3;
/// How long nothing expires by a clock that differs more.
const DOUBT: Duration = Duration::from_secs(24 * 3600);

/// Since when the clock has been doubted.
#[derive(Debug, Default)]
pub(crate) struct ClockTrust(Mutex<Option<Instant>>);

impl ClockTrust {
    /// Whether the clock is believed. `is_near`: to the last expiry; `has_windows`: of its day.
    fn believes(&self, is_near: bool, has_windows: bool, now: Instant) -> bool {
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if is_near {
            *since = None;
            return true;
        }
        let since = *since.get_or_insert(now);
        has_windows && DOUBT <= now.saturating_duration_since(since)
    }
}

impl Server {
    /// Whether what cannot be undone may be done by this clock.
    pub(crate) async fn believes(&self, today: NaiveDate) -> object_store::Result<bool> {
        let (marks, windows) = (self.marks().await?, self.window_days().await?);
        let is_near = |days: &[NaiveDate]| {
            days.iter().any(|day| (today - *day).num_days().abs() <= NEAR_DAYS)
        };
        let known = if marks.is_empty() { &windows } else { &marks };
        // An empty store has nothing to lose.
        let is_known = known.is_empty() || is_near(known);
        let believed = self.doubt.believes(is_known, is_near(&windows), Instant::now());
        self.metrics.clock_doubted.set((!believed).into());
        Ok(believed)
    }

    /// Days of earlier expiries: one, unless a server was killed.
    async fn marks(&self) -> object_store::Result<Vec<NaiveDate>> {
        let day = |path: &Path| path.filename()?.parse().ok();
        let found = self.store.list(CLOCK).await?;
        Ok(found.iter().filter_map(|object| day(&object.location)).collect())
    }

    /// Days of stored windows.
    async fn window_days(&self) -> object_store::Result<Vec<NaiveDate>> {
        let mut days = self.store.prefixes(RAW).await?;
        days.extend(self.store.prefixes(&format!("{RESULTS}/{LAST}")).await?);
        Ok(days.iter().filter_map(day_of_prefix).collect())
    }

    async fn mark(&self, today: NaiveDate) -> object_store::Result<()> {
        let path = |day: NaiveDate| Path::from(format!("{CLOCK}/{day}"));
        let marks = self.marks().await?;
        if !marks.contains(&today) {
            self.store.create(&path(today), Bytes::new()).await?;
        }
        for day in marks.into_iter().filter(|day| *day != today) {
            self.store.delete(&path(day)).await?;
        }
        Ok(())
    }

    /// Removes windows that are older than the retention time.
    async fn expire(&self, today: NaiveDate) -> object_store::Result<()> {
        if !self.believes(today).await? {
            warn!("nothing expires: this server's clock says {today}, and may be wrong");
            return Ok(());
        }
        let (raw, results) = (self.config.raw_days.into(), self.config.result_days.into());
        self.expire_windows(today, raw).await;
        self.expire_under(FAILED, today, raw).await;
        // Windows count by their rows in one table: without them the other tables are not missed.
        let last = Path::from(format!("{RESULTS}/{LAST}"));
        self.expire_under(last.as_ref(), today, results).await;
        for table in self.store.prefixes(RESULTS).await? {
            self.expire_under(table.as_ref(), today, results).await;
        }
        self.expire_under(query::packs::LISTS, today, results).await;
        self.expire_under(REFUSED, today, refused::DAYS).await;
        self.expire_messages(today).await;
        match self.handled.expire(unix_s()).await {
            Ok(removed) => drop(self.metrics.objects_expired.inc_by(removed)),
            Err(error) => self.not_expired(&error),
        }
        self.mark(today).await
    }

    /// Removes old days under a prefix. What can't be removed keeps nothing else.
    async fn expire_under(&self, parent: &str, today: NaiveDate, days: u64) {
        self.expire_but(parent, today, days, |_| false).await;
    }

    async fn expire_but(
        &self,
        parent: &str,
        today: NaiveDate,
        days: u64,
        is_kept: impl Fn(&Path) -> bool,
    ) {
        match self.store.old_days(parent, today, days).await {
            Ok(old) => {
                for (_, prefix) in old {
                    self.expire_day(&prefix, &is_kept).await;
                }
            }
            Err(error) => self.not_expired(&error),
        }
    }

    async fn expire_day(&self, prefix: &Path, is_kept: impl Fn(&Path) -> bool) {
        match self.store.remove(prefix, is_kept).await {
            Ok(removed) => {
                self.metrics.objects_expired.inc_by(removed.objects);
                if let Some(error) = removed.failed {
                    self.not_expired(&error);
                }
            }
            Err(error) => self.not_expired(&error),
        }
    }

    /// Removes old windows. Windows without results stay some days longer: they came late, or analysis failed.
    async fn expire_windows(&self, today: NaiveDate, days: u64) {
        let old = match self.store.old_days(RAW, today, days).await {
            Ok(old) => old,
            Err(error) => return self.not_expired(&error),
        };
        for (day, prefix) in old {
            let mut left = HashSet::new();
            let mut add = |_, window: DayWindow| {
                left.insert(window.raw());
            };
            if let Err(error) = self.without_results_of(day, &mut add).await {
                self.not_expired(&error);
                continue;
            }
            let waited = u64::try_from((today - day).num_days()).unwrap_or(0);
            if !left.is_empty() && days + UNANALYSED_DAYS < waited {
                let n = left.len();
                warn!("{n} windows of {day} expire that were never analysed");
                self.metrics.expired_unanalysed.inc_by(n as u64);
                left.clear();
            }
            self.expire_day(&prefix, |path| left.contains(path)).await;
        }
    }

    /// Removes what is known to be sent, but not of open findings: their end must be sent, too.
    async fn expire_messages(&self, today: NaiveDate) {
        // Open findings are not known yet.
        if *self.watch.changes.borrow() == 0 {
            return;
        }
        let open = self.watch.open();
        let is_open = |path: &Path| {
            path.parts().any(|part| open.iter().any(|id| part.as_ref().starts_with(id)))
        };
        self.expire_but(MESSAGES, today, alerts::MESSAGE_DAYS, is_open).await;
    }

    fn not_expired(&self, error: &object_store::Error) {
        self.metrics.store_error("expire");
        warn!("failed to remove old objects: {error}");
    }

    pub(crate) async fn expire_for_ever(self: Arc<Self>) {
        loop {
            if let Err(error) = self.expire(Utc::now().date_naive()).await {
                self.not_expired(&error);
            }
            self.store.clean();
            tokio::time::sleep(EXPIRE_EVERY).await;
        }
    }
}

#[cfg(test)]
mod test {
    use chrono::Days;

    use super::*;
    use crate::Config;

    fn day(text: &str) -> NaiveDate {
        text.parse().unwrap()
    }

    async fn put(server: &Server, prefix: &str, day: &str) {
        let path = Path::from(format!("{prefix}/day={day}/host=kvm1/x"));
        server.store.create(&path, "x".into()).await.unwrap();
    }

    async fn days(server: &Server) -> Vec<String> {
        let days = server.store.prefixes(RAW).await.unwrap();
        days.iter().filter_map(day_of_prefix).map(|day| day.to_string()).collect()
    }

    #[tokio::test]
    async fn a_clock_that_jumps_ahead_deletes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let store = dir.path().join("store").display().to_string();
            let state = dir.path().join("state");
            Server::open(Config { store, state, ..Config::default() }).unwrap()
        };
        let server = open();
        put(&server, RAW, "2026-01-10").await;
        put(&server, RAW, "2026-01-31").await;
        // Of an earlier version: there is no mark, but there are windows.
        server.expire(day("2027-06-01")).await.unwrap();
        assert_eq!(days(&server).await, ["2026-01-10", "2026-01-31"]);
        assert_eq!(server.metrics.clock_doubted.get(), 1);
        server.expire(day("2026-01-31")).await.unwrap();
        assert_eq!(days(&server).await, ["2026-01-31"]);
        assert_eq!(server.marks().await.unwrap(), [day("2026-01-31")]);
        assert_eq!(server.metrics.clock_doubted.get(), 0);
        // Without windows, day after day.
        for later in 1..5 {
            server.expire(day("2026-01-31") + Days::new(3 * later)).await.unwrap();
        }
        assert_eq!(server.marks().await.unwrap(), [day("2026-02-12")]);
        for wrong in ["2026-02-16", "2099-01-01", "1970-01-01"] {
            for server in [&server, &open()] {
                server.expire(day(wrong)).await.unwrap();
                assert_eq!(days(server).await, ["2026-01-31"], "{wrong}");
                assert_eq!(server.marks().await.unwrap(), [day("2026-02-12")]);
            }
        }
        // It was off for months: windows come, but they may be wrong, too, until a day has passed.
        put(&server, RAW, "2026-06-01").await;
        server.expire(day("2026-06-01")).await.unwrap();
        assert_eq!(days(&server).await.len(), 2);
        *server.doubt.0.lock().unwrap() = Instant::now().checked_sub(DOUBT);
        server.expire(day("2026-06-01")).await.unwrap();
        assert_eq!(days(&server).await, ["2026-06-01"]);
        assert_eq!(server.marks().await.unwrap(), [day("2026-06-01")]);
    }

    #[tokio::test]
    async fn windows_that_are_to_be_analysed_are_kept_for_a_week() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store").display().to_string();
        let state = dir.path().join("state");
        let server = Server::open(Config { store, state, ..Config::default() }).unwrap();
        let window = |start: u32| {
            let id = format!("kvm1/{}/{start:020}", "0".repeat(32)).parse().unwrap();
            DayWindow { day: day("2026-01-10"), id }
        };
        let (left, failed) = (window(1), window(2));
        for path in [left.raw(), failed.raw(), failed.failed()] {
            server.store.create(&path, "x".into()).await.unwrap();
        }
        let names = async || {
            let listed = server.store.list(RAW).await.unwrap();
            listed.into_iter().map(|object| object.location).collect::<Vec<_>>()
        };
        let expire = async |at: &str| {
            server.store.create(&Path::from(format!("{CLOCK}/{at}")), Bytes::new()).await.unwrap();
            server.expire(day(at)).await.unwrap();
        };
        expire("2026-01-24").await;
        assert_eq!(names().await, [left.raw(), failed.raw()]);
        expire("2026-01-25").await;
        assert_eq!(names().await, [left.raw()]);
        assert!(server.store.size(&failed.failed()).await.unwrap().is_none());
        expire("2026-01-31").await;
        assert_eq!(names().await, [left.raw()]);
        expire("2026-02-01").await;
        assert_eq!(names().await, []);
        assert_eq!(server.metrics.expired_unanalysed.get(), 1);
    }

    #[test]
    fn doubt_lasts_a_day_and_ends_with_its_cause() {
        let (doubt, now) = (ClockTrust::default(), Instant::now());
        assert!(!doubt.believes(false, true, now));
        assert!(!doubt.believes(false, false, now + DOUBT));
        assert!(doubt.believes(false, true, now + DOUBT));
        assert!(doubt.believes(true, false, now));
        assert!(!doubt.believes(false, true, now + DOUBT));
    }
}
