//! Results that are damaged or missing are made again, from the windows.
//!
//! ```text
//!  a query, the sums, detection --damaged or missing object--> query::Damage --> here
//!   of a window: is the window stored? --> its results are removed, `hosts` first --> it is analysed again
//!   of a pack:   the next list of packs says that it is damaged --> its windows count as not packed --> the same
//! ```
//! Until then, and where the window is stored no longer, answers say how many windows' results can't be read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::path::Path;
use query::packs::PACK;
use recording::seal;
use tracing::warn;

use crate::Server;
use crate::auth::unix_s;
use crate::compact::CompactError;
use crate::object_names::{DayWindow, RESULTS};
use crate::results::{LAST, tables};

/// How often the same object is looked at in a period: whatever is wrong with it, no queries make a server work for ever.
const MAX_LOOKS: u32 = 8;
const PERIOD: Duration = Duration::from_secs(3600);
/// Objects that are remembered for that.
const MAX_OBJECTS: usize = 10_000;

/// What became of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repaired {
    /// It is as it should be, or nothing needs it.
    NotNeeded,
    /// Its windows are analysed again.
    Again,
    /// Its window is stored no longer.
    Lost,
}

impl Server {
    /// Repairs what is found damaged, for ever.
    pub(crate) async fn repair_for_ever(self: Arc<Self>) {
        let mut looks = Looks::default();
        loop {
            for object in self.engine.damage().next().await {
                let Some(look) = looks.next(&object, Instant::now()) else { continue };
                match self.repair(&object).await {
                    // One that stays lost is found again every few minutes.
                    Ok(Repaired::Lost) if 1 < look => {}
                    Ok(repaired) => self.note_repaired(&object, repaired),
                    Err(error) => {
                        self.metrics.store_error("repair");
                        warn!("{object} is damaged and was not made again: {error}");
                    }
                }
            }
        }
    }

    fn note_repaired(&self, object: &Path, repaired: Repaired) {
        match repaired {
            Repaired::NotNeeded => {}
            Repaired::Again => {
                self.metrics.results_damaged.inc();
                warn!("{object} is damaged or missing: its windows are analysed again");
            }
            Repaired::Lost => {
                self.metrics.results_damaged.inc();
                self.metrics.results_lost.inc();
                let text = "is damaged or missing, and its window is stored no longer";
                warn!("{object} {text}: answers say that it can't be read");
            }
        }
    }

    /// Has the windows of a damaged object analysed again.
    pub(crate) async fn repair(&self, object: &Path) -> Result<Repaired, CompactError> {
        let Some((table, rest)) = parts(object) else { return Ok(Repaired::NotNeeded) };
        let parent = format!("{RESULTS}/{table}");
        let is_pack = rest.rsplit('/').next().is_some_and(|name| name.starts_with(PACK));
        if is_pack {
            return self.repair_pack(object, rest).await;
        }
        let Some(window) = DayWindow::from_path(object, &parent, ".parquet") else {
            return Ok(Repaired::NotNeeded);
        };
        let packs = self.engine.packs(window.day, Some(window.id.host.as_str())).await?;
        let is_in_use = self.store.size(&window.result(LAST)).await?.is_some()
            && !packs.contains(&window.folder(), &window.name());
        if !is_in_use {
            self.engine.damage().forget(&window.stem());
            return Ok(Repaired::NotNeeded);
        }
        if self.is_sealed_and_whole(object).await? {
            self.engine.damage().forget(&window.stem());
            return Ok(Repaired::NotNeeded);
        }
        if self.store.size(&window.raw()).await?.is_none() {
            return Ok(Repaired::Lost);
        }
        // Without its rows in the last table the window has no results: no query sees a part of them.
        self.store.delete(&window.result(LAST)).await?;
        for (table, _) in tables() {
            self.store.delete(&window.result(table)).await?;
        }
        self.queue.add_found(unix_s(), window);
        Ok(Repaired::Again)
    }

    async fn repair_pack(&self, object: &Path, stem: &str) -> Result<Repaired, CompactError> {
        let mut parts = stem.split('/');
        let day = parts.next().and_then(|part| part.strip_prefix("day=")?.parse().ok());
        let host = parts.next().and_then(|part| part.strip_prefix("host="));
        let (Some(day), Some(host), Some(name)) = (day, host, parts.next()) else {
            return Ok(Repaired::NotNeeded);
        };
        let given_up = match self.is_sealed_and_whole(object).await? {
            true => None,
            false => self.give_up_pack(day, host, name).await?,
        };
        // If it is given up, the list says so from now on.
        self.engine.damage().forget(stem);
        Ok(match given_up {
            None => Repaired::NotNeeded,
            Some(0) => Repaired::Lost,
            Some(_) => Repaired::Again,
        })
    }

    /// Another server, or a second look at the same damage, may have made it anew.
    async fn is_sealed_and_whole(&self, object: &Path) -> object_store::Result<bool> {
        let Some(bytes) = self.store.get(object).await? else { return Ok(false) };
        let found = seal::Seal::find(&bytes, bytes.len() as u64);
        Ok(found != seal::Found::Unsealed && seal::is_intact(&bytes))
    }
}

/// How often each object was looked at, and since when.
#[derive(Debug, Default)]
struct Looks(HashMap<Path, (Instant, u32)>);

impl Looks {
    /// The number of the next look at an object in its period, from 1 on; `None`: it is not allowed.
    fn next(&mut self, object: &Path, now: Instant) -> Option<u32> {
        self.0.retain(|_, (since, _)| now.duration_since(*since) < PERIOD);
        if MAX_OBJECTS <= self.0.len() && !self.0.contains_key(object) {
            return None;
        }
        let (_, n) = self.0.entry(object.clone()).or_insert((now, 0));
        *n += 1;
        (*n <= MAX_LOOKS).then_some(*n)
    }
}

/// An object's table, and what follows.
fn parts(object: &Path) -> Option<(&str, &str)> {
    let rest = object.as_ref().strip_prefix(RESULTS)?.strip_prefix('/')?;
    let (table, rest) = rest.strip_suffix(".parquet")?.split_once('/')?;
    Some((table, rest))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_object_is_looked_at_so_often_in_a_period() {
        let (mut looks, began) = (Looks::default(), Instant::now());
        let mut allowed = |name: &str, s: u64| {
            let now = began + Duration::from_secs(s);
            (0..20).filter_map(|_| looks.next(&Path::from(name), now)).max()
        };
        assert_eq!(
            [allowed("a", 0), allowed("b", 1800), allowed("a", 3599)],
            [Some(8), Some(8), None]
        );
        assert_eq!([allowed("a", 3600), allowed("b", 3601)], [Some(8), None]);
    }
}
