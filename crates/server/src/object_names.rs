//! Names of objects. They follow from the window alone: stored by any server, any number of times, it is one object.

use std::str::FromStr;

use chrono::{DateTime, NaiveDate};
use object_store::path::Path;
use recording::window::{BadName, WindowId};

/// Windows as they came.
pub(crate) const RAW: &str = "raw/v1";
/// Tables made from them.
pub(crate) const RESULTS: &str = "results/v1";
/// Windows that were set aside, and why.
pub(crate) const REFUSED: &str = "refused/v1";
/// Windows that are stored and could not be analysed, and why.
pub(crate) const FAILED: &str = "failed/v1";
/// The last day whose clock was believed.
pub(crate) const CLOCK: &str = "clock/v1";
/// What operators said about findings.
pub(crate) const HANDLED: &str = "handled/v1";
/// Messages that webhooks got.
pub(crate) const MESSAGES: &str = "told/v1";
/// What detection has learned.
pub(crate) const LEARNED: &str = "learned/v1";
/// Hosts' tokens.
pub(crate) const HOSTS: &str = "auth/hosts";
/// Users' tokens.
pub(crate) const TOKENS: &str = "auth/tokens";

/// A window at its place in time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DayWindow {
    pub(crate) day: NaiveDate,
    pub(crate) id: WindowId,
}

impl TryFrom<String> for DayWindow {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::from_path(&Path::from(text), RAW, ".window").ok_or("not the name of a window")
    }
}

/// A stored window, by its name or by that of its object, which says on which day it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredWindow {
    pub(crate) day: Option<NaiveDate>,
    pub(crate) id: WindowId,
}

impl FromStr for StoredWindow {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        match DayWindow::from_path(&Path::from(text), RAW, ".window") {
            Some(DayWindow { day, id }) => Ok(Self { day: Some(day), id }),
            None => Ok(Self { day: None, id: text.parse()? }),
        }
    }
}

/// The day of a time of the world, UTC.
pub(crate) fn day_of(unix_ns: u64) -> NaiveDate {
    let seconds = i64::try_from(unix_ns / 1_000_000_000).unwrap_or(0);
    DateTime::from_timestamp(seconds, 0).unwrap_or_default().date_naive()
}

impl DayWindow {
    /// `day=.../host=.../BOOT-START`.
    pub(crate) fn stem(&self) -> String {
        format!("{}/{}", self.folder(), self.name())
    }

    /// `day=.../host=...`.
    pub(crate) fn folder(&self) -> String {
        format!("day={}/host={}", self.day, self.id.host)
    }

    /// `BOOT-START`.
    pub(crate) fn name(&self) -> String {
        format!("{}-{}", self.id.boot, self.id.start_text())
    }

    pub(crate) fn raw(&self) -> Path {
        Path::from(format!("{RAW}/{}.window", self.stem()))
    }

    pub(crate) fn result(&self, table: &str) -> Path {
        Path::from(format!("{RESULTS}/{table}/{}.parquet", self.stem()))
    }

    pub(crate) fn failed(&self) -> Path {
        Path::from(format!("{FAILED}/{}.json", self.stem()))
    }

    /// From the name of one of its objects: under `prefix`, with `end`.
    pub(crate) fn from_path(path: &Path, prefix: &str, end: &str) -> Option<Self> {
        let rest = path.as_ref().strip_prefix(prefix)?.strip_prefix('/')?.strip_suffix(end)?;
        let mut parts = rest.split('/');
        let day = parts.next()?.strip_prefix("day=")?.parse().ok()?;
        let host = parts.next()?.strip_prefix("host=")?;
        let (boot, start) = parts.next()?.split_once('-')?;
        let id = WindowId::parse(host, boot, start).ok()?;
        parts.next().is_none().then_some(Self { day, id })
    }
}

/// The day that a prefix `PARENT/day=YYYY-MM-DD` stands for.
pub(crate) fn day_of_prefix(path: &Path) -> Option<NaiveDate> {
    path.filename()?.strip_prefix("day=")?.parse().ok()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_are_read_again() {
        let id = "kvm-1.x/0123456789abcdef0123456789abcdef/00000000000000000042".parse().unwrap();
        let window = DayWindow { day: day_of(1_760_000_000_000_000_000), id };
        let raw = window.raw();
        assert_eq!(
            raw.as_ref(),
            "raw/v1/day=2025-10-09/host=kvm-1.x/0123456789abcdef0123456789abcdef-00000000000000000042.window"
        );
        assert_eq!(DayWindow::from_path(&raw, RAW, ".window"), Some(window.clone()));
        assert_eq!(DayWindow::try_from(String::from(window.raw())), Ok(window.clone()));
        let stored: StoredWindow = raw.as_ref().parse().unwrap();
        assert_eq!((stored.day, &stored.id), (Some(window.day), &window.id));
        let stored: StoredWindow = window.id.to_string().parse().unwrap();
        assert_eq!((stored.day, &stored.id), (None, &window.id));
        let result = window.result("hosts");
        let prefix = format!("{RESULTS}/hosts");
        assert_eq!(DayWindow::from_path(&result, &prefix, ".parquet"), Some(window));
        for other in
            ["raw/v1/x", "raw/v1/day=1/host=a/b-1.window", "raw/v1/day=2025-10-09/a.window"]
        {
            assert_eq!(DayWindow::from_path(&Path::from(other), RAW, ".window"), None, "{other}");
        }
    }
}
