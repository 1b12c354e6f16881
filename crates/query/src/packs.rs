//! Packs: the results of many windows of a day and host in one object of each table, and in longer slices when they are old.
//!
//! ```text
//!  results/v1/TABLE/day=.../host=.../BOOT-START.parquet        of one window
//!                                    pack-NUMBER-HASH.parquet  a pack
//!  packs/v1/day=.../host=.../NUMBER.json                       a list: which windows are in which packs
//! ```
//! Only the list with the highest number counts, and it makes its packs count: a window that it names is read from its pack,
//! every other one from its own object. Lists are made once and each has all windows of the one before, so a process
//! that dies between any two steps leaves objects that are never read.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use object_store::ObjectMeta;
use object_store::path::Path;
use serde::Deserialize;
use serde_json::json;

use crate::catalog::RESULTS;

/// Where the lists are.
pub const LISTS: &str = "packs/v1";
/// How the name of a pack's objects begins; that of a window's never does.
pub const PACK: &str = "pack-";

/// A list of packs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Packs {
    /// No window is in two.
    pub packs: Vec<Arc<Pack>>,
}

/// Results of several windows.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Pack {
    /// Of its objects, without ending.
    pub name: String,
    /// Length of its time slices.
    pub slice_s: u32,
    /// Its windows' starts, ascending, by boot.
    pub windows: BTreeMap<String, Vec<u64>>,
    /// Its objects' sizes, by table.
    pub bytes: BTreeMap<String, u64>,
    /// One of its objects is not what was written: its windows count as not packed, and are analysed again.
    #[serde(default)]
    pub is_damaged: bool,
}

impl Packs {
    /// As a list's content says.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(content: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(content)
    }

    /// The names of the packs, one on a line.
    #[must_use]
    pub fn content(&self) -> String {
        let pack = |pack: &Arc<Pack>| {
            let Pack { name, slice_s, windows, bytes, is_damaged } = pack.as_ref();
            let mut content =
                json!({ "name": name, "slice_s": slice_s, "windows": windows, "bytes": bytes });
            if *is_damaged {
                content["is_damaged"] = true.into();
            }
            content
        };
        json!({ "packs": self.packs.iter().map(pack).collect::<Vec<_>>() }).to_string()
    }

    /// Whether a window, `BOOT-START`, is in one of them that can be read.
    #[must_use]
    pub fn contains(&self, window: &str) -> bool {
        self.packs.iter().any(|pack| !pack.is_damaged && pack.contains(window))
    }
}

impl Pack {
    /// Of these windows and earlier packs, not stored yet.
    #[must_use]
    pub fn from_windows(
        slice_s: u32,
        windows: impl Iterator<Item = impl AsRef<str>>,
        earlier: &[Arc<Self>],
    ) -> Self {
        let mut all: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for pack in earlier {
            for (boot, starts) in &pack.windows {
                all.entry(boot.clone()).or_default().extend(starts);
            }
        }
        for window in windows {
            if let Some((boot, start)) = window_parts(window.as_ref()) {
                all.entry(boot.to_owned()).or_default().push(start);
            }
        }
        all.values_mut().for_each(|starts| starts.sort_unstable());
        Self {
            name: String::new(),
            slice_s,
            windows: all,
            bytes: BTreeMap::new(),
            is_damaged: false,
        }
    }

    /// Whether a window, `BOOT-START`, is in it.
    #[must_use]
    pub fn contains(&self, window: &str) -> bool {
        let Some((boot, start)) = window_parts(window) else { return false };
        self.windows.get(boot).is_some_and(|starts| starts.binary_search(&start).is_ok())
    }

    /// Its windows, `BOOT-START`.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        let of_boot = |(boot, starts): (&String, &Vec<u64>)| {
            let boot = boot.clone();
            starts.clone().into_iter().map(move |start| format!("{boot}-{start:020}"))
        };
        self.windows.iter().flat_map(of_boot)
    }

    /// The number of windows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.windows.values().map(Vec::len).sum()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// Its object of a table, in the folder `day=.../host=...`.
    pub(crate) fn object(&self, table: &str, folder: &str) -> ObjectMeta {
        ObjectMeta {
            location: Path::from(format!("{RESULTS}/{table}/{folder}/{}.parquet", self.name)),
            last_modified: DateTime::<Utc>::UNIX_EPOCH,
            size: self.bytes.get(table).copied().unwrap_or(0),
            e_tag: None,
            version: None,
        }
    }
}

/// Boot and start of a window, `BOOT-START`; `None`: it is none, but a pack perhaps.
fn window_parts(window: &str) -> Option<(&str, u64)> {
    let (boot, start) = window.split_once('-')?;
    (boot.len() == 32).then(|| start.parse().ok().map(|start| (boot, start)))?
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_list_says_which_windows_are_in_it() {
        let boot = "0".repeat(32);
        let window = |start: u64| format!("{boot}-{start:020}");
        let one = Arc::new(Pack::from_windows(10, [window(5), window(3)].iter(), &[]));
        let both = Pack::from_windows(60, [window(4)].iter(), &[one]);
        assert_eq!((both.len(), &both.windows[&boot]), (3, &vec![3, 4, 5]));
        let packs = Packs { packs: vec![Arc::new(both)] };
        assert!(packs.contains(&window(4)) && !packs.contains(&window(6)));
        assert!(!packs.contains("pack-00000001-ab"));
        assert_eq!(Packs::parse(packs.content().as_bytes()).unwrap(), packs);
        assert!(Packs::parse(b"{").is_err());
    }
}
