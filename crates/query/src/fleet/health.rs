//! What an agent collected and noted.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Add;

use api::http::{HealthAnswer, HealthNote, HostHealth};
use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{UInt32Type, UInt64Type};
use chrono::{DateTime, Utc};

use super::{
    Fresh, Keys, MAX_HOSTS, Range, Series, State, TEN_MINUTES_S, add, numbers, slot, texts,
};

/// Notes of an answer.
pub(super) const MAX_NOTES: usize = 2000;
/// Different notes that are kept of a host and of all; further ones are counted.
const KEPT_OF_HOST: usize = 256;
const KEPT_NOTES: usize = 20_000;
/// How long they are kept, by ten minutes.
const NOTES_KEPT_S: i64 = 24 * 3600;
/// Bytes of a note's subject, and of its text.
const MAX_TEXT: usize = 512;

/// What a host's windows lost, and their remarks.
#[derive(Debug, Default)]
pub(super) struct Health {
    collected: Series<Collected>,
    /// Of its last window.
    kernel: String,
    version: String,
    end_us: i64,
    /// By subject and text.
    notes: BTreeMap<(String, String), BTreeMap<i64, Noted>>,
    /// Notes that found no room.
    no_room: u64,
}

/// What windows that begin in the same slot say.
#[derive(Debug, Clone, Copy)]
struct Collected {
    windows: u64,
    cpus: u32,
    covered_ns: u64,
    samples: u64,
    lost: u64,
    missed: u64,
    first_us: i64,
    end_us: i64,
}

impl Add for Collected {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            windows: self.windows + other.windows,
            cpus: self.cpus.max(other.cpus),
            covered_ns: self.covered_ns.saturating_add(other.covered_ns),
            samples: self.samples.saturating_add(other.samples),
            lost: self.lost.saturating_add(other.lost),
            missed: self.missed.saturating_add(other.missed),
            first_us: self.first_us.min(other.first_us),
            end_us: self.end_us.max(other.end_us),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Noted {
    windows: u64,
    /// `None`: it is no counter.
    count: Option<u64>,
}

impl Add for Noted {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let count = match (self.count, other.count) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
        Self { windows: self.windows + other.windows, count }
    }
}

impl State {
    /// `None`: a column is missing, which is never so.
    pub(super) fn take_hosts(&mut self, rows: &RecordBatch, fresh: &mut Fresh) -> Option<()> {
        let keys = Keys::from_batch(rows)?;
        let number = |name| numbers::<UInt64Type>(rows, name);
        let (length, samples) = (number("length_ns")?, number("samples")?);
        let (lost, missed) = (number("samples_lost")?, number("samples_missed")?);
        let cpus = numbers::<UInt32Type>(rows, "cpus")?;
        let (kernel, version) = (texts(rows, "kernel")?, texts(rows, "vmscope_version")?);
        for (row, host, first_us) in keys.of_new_windows(self, fresh) {
            let covered_ns = length.value(row);
            let length_us = i64::try_from(covered_ns / 1000).unwrap_or(i64::MAX);
            let collected = Collected {
                windows: 1,
                cpus: cpus.value(row),
                covered_ns,
                samples: samples.value(row),
                lost: lost.value(row),
                missed: missed.value(row),
                first_us,
                end_us: first_us.saturating_add(length_us),
            };
            let health = &mut self.hosts.entry(host.to_owned()).or_default().health;
            health.collected.add(first_us.div_euclid(1_000_000), collected);
            if health.end_us <= collected.end_us {
                health.end_us = collected.end_us;
                health.kernel = cut(kernel.value(row));
                health.version = cut(version.value(row));
            }
        }
        Some(())
    }

    /// `None`: a column is missing, which is never so.
    pub(super) fn take_notes(&mut self, rows: &RecordBatch, fresh: &mut Fresh) -> Option<()> {
        let keys = Keys::from_batch(rows)?;
        let (subject, what) = (texts(rows, "subject")?, texts(rows, "what")?);
        let count = numbers::<UInt64Type>(rows, "count")?;
        for (row, host, began_us) in keys.of_new_windows(self, fresh) {
            let health = &mut self.hosts.entry(host.to_owned()).or_default().health;
            let note = (cut(subject.value(row)), cut(what.value(row)));
            if !health.notes.contains_key(&note) {
                if KEPT_OF_HOST <= health.notes.len() || KEPT_NOTES <= self.n_notes {
                    health.no_room += 1;
                    continue;
                }
                self.n_notes += 1;
            }
            let count = (!count.is_null(row)).then(|| count.value(row));
            let slot = slot(began_us.div_euclid(1_000_000), TEN_MINUTES_S);
            add(health.notes.entry(note).or_default(), slot, Noted { windows: 1, count });
        }
        Some(())
    }
}

impl Health {
    /// Forgets what is too old.
    pub(super) fn forget(&mut self, now: i64, oldest: i64) {
        self.collected.forget(now, oldest);
        for slots in self.notes.values_mut() {
            *slots = slots.split_off(&(now - NOTES_KEPT_S));
        }
        self.notes.retain(|_, slots| !slots.is_empty());
    }

    pub(super) fn n_notes(&self) -> usize {
        self.notes.len()
    }

    /// What was collected in a range; `None`: nothing.
    pub(super) fn collected(&self, host: &str, range: &Range) -> Option<HostHealth> {
        let slots = self.collected.range(range);
        let all = slots.map(|(_, collected)| *collected).reduce(Add::add)?;
        let unix_ms = |us: i64| u64::try_from(us / 1000).unwrap_or(0);
        Some(HostHealth {
            host: host.to_owned(),
            windows: all.windows,
            cpus: all.cpus,
            covered_ns: all.covered_ns,
            first_unix_ms: unix_ms(all.first_us),
            end_unix_ms: unix_ms(all.end_us),
            samples: all.samples,
            samples_lost: all.lost,
            samples_missed: all.missed,
            kernel: self.kernel.clone(),
            vmscope_version: self.version.clone(),
        })
    }

    /// What was noted in a range, and what found no room.
    pub(super) fn notes<'h>(
        &'h self,
        host: &'h str,
        range: &'h Range,
    ) -> impl Iterator<Item = HealthNote> {
        let from = slot(range.from, TEN_MINUTES_S);
        let noted = self.notes.iter().filter_map(move |((subject, what), slots)| {
            let slots = slots.range(from..range.to);
            let all = slots.map(|(_, noted)| *noted).reduce(Add::add)?;
            Some((subject.as_str(), what.as_str(), all))
        });
        let further = Noted { windows: 0, count: Some(self.no_room) };
        let further = (0 < self.no_room).then_some(("server", "further notes not shown", further));
        noted.chain(further).map(move |(subject, what, Noted { windows, count })| HealthNote {
            host: host.to_owned(),
            subject: subject.to_owned(),
            what: what.to_owned(),
            count,
            windows,
        })
    }
}

/// Why an answer is not all there is.
pub(super) fn lacks(range: &Range, now: DateTime<Utc>, answer: &HealthAnswer) -> Vec<String> {
    let mut reasons = Vec::new();
    if range.from < now.timestamp() - NOTES_KEPT_S {
        reasons.push(format!("notes are those of the last {} hours", NOTES_KEPT_S / 3600));
    }
    if MAX_HOSTS < answer.hosts.len() {
        reasons.push(format!("there are more than {MAX_HOSTS} hosts"));
    }
    if MAX_NOTES < answer.notes.len() {
        reasons.push(format!("there are more than {MAX_NOTES} notes"));
    }
    reasons
}

/// Those of most windows first.
pub(super) fn by_windows(a: &HealthNote, b: &HealthNote) -> Ordering {
    b.windows.cmp(&a.windows).then_with(|| name(a).cmp(&name(b)))
}

fn name(note: &HealthNote) -> [&str; 3] {
    [&note.host, &note.subject, &note.what]
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned()
}
