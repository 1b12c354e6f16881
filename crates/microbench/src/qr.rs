//! The texts of the QR codes that a machine without a serial line shows (docs/boot.md):
//! `VMB1:<index>/<count>:<payload>:<CRC-32>`, and the payloads in their order are one text of records.
//!
//! ```text
//!  H+..*   C+..* O..* O..* F..*   C+..* O..*   E+..*   X+CRC
//!  header  condition, its results  the next     end     over all
//! ```
//!
//! They are photographed: they come in any order, more than once, or not at all. A record that lies in a missing
//! code, or reaches into one, is lost; results after it wait for the next condition.

mod record;

use std::collections::BTreeMap;
use std::fmt;

use self::record::Record;
use crate::bounded::{Notes, Outcomes};
use crate::catalogue;
use crate::condition::Condition;
use crate::results::{Ending, Machine, Measurement, Outcome, Results};

const MARK: &str = "VMB1:";
/// Nothing photographs more codes.
const CODES: u32 = 10_000;

/// Why there are no results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoResults {
    /// No text of a code.
    NoCodes,
    AllDamaged,
    SeveralRuns,
    /// What could be read has no result.
    NothingMeasured,
}

impl fmt::Display for NoResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoCodes => "no text of a benchmark QR code in this file",
            Self::AllDamaged => "every code has a wrong checksum: photograph them again",
            Self::SeveralRuns => "codes of several runs: read each run by itself",
            Self::NothingMeasured => "these codes hold no result: photograph the others, too",
        })
    }
}

impl std::error::Error for NoResults {}

/// Whether a file has texts of codes in it, and no lines of a log.
#[must_use]
pub fn is_in(file: &[u8]) -> bool {
    let has = |text: &str| file.windows(text.len()).any(|window| window == text.as_bytes());
    has(MARK) && !has("{\"vmscope_boot\"")
}

/// Reads the texts of codes, in whatever text they stand.
///
/// # Errors
/// Why there are no results in it.
pub fn parse(file: &[u8]) -> Result<Results, NoResults> {
    let text = String::from_utf8_lossy(file);
    let mut notes = Notes::default();
    let codes = codes(&text, &mut notes)?;
    let pieces = codes.pieces();
    if pieces.len() == 1 && !pieces[0].is_after_gap && codes.missing().is_empty() {
        codes.check_whole(pieces[0].text.as_str())?;
    } else {
        let missing = codes.missing();
        let list: Vec<String> = missing.iter().take(40).map(u32::to_string).collect();
        let (codes_are, them) =
            if missing.len() == 1 { ("codes is", "it") } else { ("codes are", "them") };
        notes.add(&format!(
            "{} of {} {codes_are} missing: {}; what is in {them} is lost",
            missing.len(),
            codes.count,
            list.join(", ")
        ));
    }
    let known = catalogue::all().map(|operation| (catalogue::hash(operation.name), operation.name));
    let mut reading = Reading { notes, names: known.collect(), ..Reading::default() };
    pieces.iter().for_each(|piece| reading.piece(piece));
    reading.results()
}

/// Codes by their numbers.
struct Codes<'t> {
    count: u32,
    payloads: BTreeMap<u32, &'t str>,
}

/// Payloads without a gap between them.
struct Piece {
    is_after_gap: bool,
    text: String,
}

fn codes<'t>(text: &'t str, notes: &mut Notes) -> Result<Codes<'t>, NoResults> {
    let (mut counts, mut payloads) = (None, BTreeMap::new());
    let (mut seen, mut damaged) = (0_usize, 0_usize);
    for (number, line) in text.lines().enumerate() {
        // A payload has no ':', thus no mark either.
        for after_mark in line.split(MARK).skip(1) {
            seen += 1;
            let code = after_mark.split(char::is_whitespace).next().unwrap_or_default();
            let Some((index, count, payload)) = code_of(code) else {
                damaged += 1;
                notes.add(&format!("line {}: a code with a wrong checksum", number + 1));
                continue;
            };
            if *counts.get_or_insert(count) != count
                || *payloads.entry(index).or_insert(payload) != payload
            {
                return Err(NoResults::SeveralRuns);
            }
        }
    }
    match counts {
        Some(count) => Ok(Codes { count, payloads }),
        None if seen == 0 => Err(NoResults::NoCodes),
        None => {
            debug_assert_eq!(seen, damaged);
            Err(NoResults::AllDamaged)
        }
    }
}

/// Hexadecimal digits only: `from_str_radix` would take a sign.
fn hex(digits: &str) -> Option<u32> {
    let are_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if are_digits { u32::from_str_radix(digits, 16).ok() } else { None }
}

/// Number, count and payload of a code that is whole; its mark is cut off.
fn code_of(code: &str) -> Option<(u32, u32, &str)> {
    let (framed, sum) = code.rsplit_once(':')?;
    let sum = hex(sum.get(..8)?)?;
    let mut found = crc32fast::Hasher::new();
    found.update(MARK.as_bytes());
    found.update(framed.as_bytes());
    if found.finalize() != sum {
        return None;
    }
    let (numbers, payload) = framed.split_once(':')?;
    let (index, count) = numbers.split_once('/')?;
    let (index, count) = (index.parse().ok()?, count.parse().ok()?);
    ((1..=count).contains(&index) && count <= CODES).then_some((index, count, payload))
}

impl Codes<'_> {
    fn missing(&self) -> Vec<u32> {
        (1..=self.count).filter(|index| !self.payloads.contains_key(index)).collect()
    }

    fn pieces(&self) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut expected = 1;
        for (&index, payload) in &self.payloads {
            match pieces.last_mut() {
                Some(piece) if index == expected => piece.text += payload,
                _ => {
                    let text = (*payload).to_owned();
                    pieces.push(Piece { is_after_gap: index != 1, text });
                }
            }
            expected = index + 1;
        }
        pieces
    }

    /// All of it has a check sum, too: each code may be whole, and of another run.
    fn check_whole(&self, text: &str) -> Result<(), NoResults> {
        let Some((before, sum)) = text.rsplit_once("X+") else {
            return Err(NoResults::SeveralRuns);
        };
        match hex(sum) {
            Some(sum) if sum == crc32fast::hash(before.as_bytes()) => Ok(()),
            _ => Err(NoResults::SeveralRuns),
        }
    }
}

/// What was read so far.
#[derive(Default)]
struct Reading {
    notes: Notes,
    /// Operations by their hashes.
    names: BTreeMap<u32, &'static str>,
    machine: Option<Machine>,
    conditions: Vec<crate::results::InForce>,
    outcomes: Outcomes,
    /// Under which the next results are; `None`: that is lost.
    condition: Option<Condition>,
    ending: Option<Ending>,
    unknown: usize,
    lost: usize,
    damaged: usize,
}

impl Reading {
    fn piece(&mut self, piece: &Piece) {
        let mut text = piece.text.as_str();
        if piece.is_after_gap {
            self.condition = None;
            // The rest of a record whose start is missing.
            text = text.split_once('*').map_or("", |(_, rest)| rest);
        }
        let mut records: Vec<&str> = text.split('*').collect();
        // Behind the last '*' there is the check sum, or a record whose end is missing.
        records.pop();
        records.into_iter().for_each(|text| match record::parse(text) {
            Some(record) => self.take(record),
            None => self.damaged += 1,
        });
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Header(machine) => self.machine = Some(*machine),
            Record::Condition(found) => {
                self.condition = Some(found.condition);
                self.conditions.retain(|known| known.condition != found.condition);
                self.conditions.push(found);
            }
            Record::Result(hash, outcome) => self.result(hash, outcome),
            Record::End { results, drift_ppm, backward_jumps } => {
                self.ending = Some(Ending::Complete);
                if let Some(machine) = &mut self.machine {
                    machine.tsc.drift_ppm = Some(drift_ppm);
                    machine.tsc.backward_jumps = Some(backward_jumps);
                }
                let came = self.outcomes.all().len() as u64;
                if came < results {
                    self.notes.add(&format!("{} of {results} results are lost", results - came));
                }
            }
        }
    }

    fn result(&mut self, hash: u32, mut outcome: Outcome) {
        let Some(condition) = self.condition else {
            self.lost += 1;
            return;
        };
        if let Outcome::Measured(figures) = &mut outcome
            && let Some(reason) = &mut figures.ineffective
            && reason.is_empty()
        {
            let found = self.conditions.last().and_then(|found| found.reason.clone());
            *reason = found.unwrap_or_else(|| "not in force".to_owned());
        }
        let known = self.names.get(&hash).map(|name| (*name).to_owned());
        let operation = known.unwrap_or_else(|| {
            self.unknown += 1;
            format!("unknown-{hash:06x}")
        });
        self.outcomes.add(Measurement { operation, condition, outcome });
    }

    fn results(mut self) -> Result<Results, NoResults> {
        if self.outcomes.all().is_empty() {
            return Err(NoResults::NothingMeasured);
        }
        self.outcomes.note_refused(&mut self.notes);
        for (n, what) in [
            (self.lost, "results whose condition is in a missing code: left out"),
            (self.damaged, "unreadable records: left out"),
            (self.unknown, "operations unknown to this vmscope"),
        ] {
            if 0 < n {
                self.notes.add(&format!("{n} {what}"));
            }
        }
        if self.machine.is_none() {
            self.notes.add("the header is lost: machine and clock are not known");
        }
        let ending = self.ending.unwrap_or(Ending::Cut);
        if ending == Ending::Cut {
            self.notes.add("the end is missing: some results may be lost");
        }
        Ok(Results {
            machine: self.machine.unwrap_or_default(),
            conditions: self.conditions,
            measurements: self.outcomes.into_all(),
            ending,
            notes: self.notes,
        })
    }
}

#[cfg(test)]
mod tests;
