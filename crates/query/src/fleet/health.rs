//! What an agent collected and noted.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use api::http::{HealthAnswer, HealthNote, HostHealth};
use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{UInt32Type, UInt64Type};

use super::{
    Fresh, Keys, MINUTE_S, MINUTES_KEPT_S, MOST_HOSTS, Range, State, TEN_MINUTES_S, numbers, texts,
};

/// Notes of an answer.
pub(super) const MOST_NOTES: usize = 2000;
/// Different notes of a host, further ones are counted; how long they are kept, by ten minutes; and bytes of one's texts.
const KEPT_NOTES: usize = 256;
const NOTES_KEPT_S: i64 = 24 * 3600;
const MOST_TEXT: usize = 512;

/// Of a host.
#[derive(Debug, Default)]
pub(super) struct Health {
    minutes: BTreeMap<i64, Collected>,
    tens: BTreeMap<i64, Collected>,
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

impl Collected {
    fn and(self, other: Self) -> Self {
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

impl Noted {
    fn and(self, other: Self) -> Self {
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
        let keys = Keys::of(rows)?;
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
            for (slots, length_s) in
                [(&mut health.minutes, MINUTE_S), (&mut health.tens, TEN_MINUTES_S)]
            {
                let slot = slots.entry(slot(first_us, length_s)).or_insert(Collected {
                    windows: 0,
                    covered_ns: 0,
                    samples: 0,
                    lost: 0,
                    missed: 0,
                    ..collected
                });
                *slot = slot.and(collected);
            }
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
        let keys = Keys::of(rows)?;
        let (subject, what) = (texts(rows, "subject")?, texts(rows, "what")?);
        let count = numbers::<UInt64Type>(rows, "count")?;
        for (row, host, began_us) in keys.of_new_windows(self, fresh) {
            let health = &mut self.hosts.entry(host.to_owned()).or_default().health;
            let note = (cut(subject.value(row)), cut(what.value(row)));
            if KEPT_NOTES <= health.notes.len() && !health.notes.contains_key(&note) {
                health.no_room += 1;
                continue;
            }
            let slots = health.notes.entry(note).or_default();
            let slot = slots.entry(slot(began_us, TEN_MINUTES_S)).or_default();
            let count = (!count.is_null(row)).then(|| count.value(row));
            *slot = slot.and(Noted { windows: 1, count });
        }
        Some(())
    }
}

impl Health {
    /// Forgets what is too old.
    pub(super) fn forget(&mut self, now: i64, oldest: i64) {
        self.minutes = self.minutes.split_off(&(now - MINUTES_KEPT_S));
        self.tens = self.tens.split_off(&oldest);
        for slots in self.notes.values_mut() {
            *slots = slots.split_off(&(now - NOTES_KEPT_S));
        }
        self.notes.retain(|_, slots| !slots.is_empty());
    }

    /// What was collected in a range; `None`: nothing.
    pub(super) fn collected(&self, host: &str, range: &Range) -> Option<HostHealth> {
        let slots = if range.is_recent { &self.minutes } else { &self.tens };
        let length = if range.is_recent { MINUTE_S } else { TEN_MINUTES_S };
        let slots = slots.range(range.from.div_euclid(length) * length..range.to);
        let all = slots.map(|(_, collected)| *collected).reduce(Collected::and)?;
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
        let from = range.from.div_euclid(TEN_MINUTES_S) * TEN_MINUTES_S;
        let noted = self.notes.iter().filter_map(move |((subject, what), slots)| {
            let slots = slots.range(from..range.to.max(from));
            let all = slots.map(|(_, noted)| *noted).reduce(Noted::and)?;
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
pub(super) fn lacks(from: i64, now: i64, answer: &HealthAnswer) -> Vec<String> {
    let mut reasons = Vec::new();
    if from < now - NOTES_KEPT_S {
        reasons.push(format!("notes are those of the last {} hours", NOTES_KEPT_S / 3600));
    }
    if MOST_HOSTS < answer.hosts.len() {
        reasons.push(format!("there are more than {MOST_HOSTS} hosts"));
    }
    if MOST_NOTES < answer.notes.len() {
        reasons.push(format!("there are more than {MOST_NOTES} notes"));
    }
    reasons
}

/// Those of most windows first.
pub(super) fn by_windows(a: &HealthNote, b: &HealthNote) -> Ordering {
    let name = |note: &HealthNote| (note.host.clone(), note.subject.clone(), note.what.clone());
    b.windows.cmp(&a.windows).then_with(|| name(a).cmp(&name(b)))
}

fn slot(us: i64, length_s: i64) -> i64 {
    us.div_euclid(1_000_000 * length_s) * length_s
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MOST_TEXT)].to_owned()
}
