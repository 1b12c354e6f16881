//! One record: a letter, then fields that each begin with `+`.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::str::Split;

use crate::bounded;
use crate::condition::{Condition, Mode};
use crate::results::{Batch, Figures, InForce, Machine, Outcome, Spread, Tsc};

/// What a record says.
pub(super) enum Record {
    Header(Box<Machine>),
    Condition(InForce),
    /// An operation's hash; an empty reason for being ineffective is the condition's.
    Result(u32, Outcome),
    End {
        results: u64,
        drift_ppm: i64,
        backward_jumps: u64,
    },
}

/// Understands a record without its `*`.
pub(super) fn parse(text: &str) -> Option<Record> {
    let mut words = text.split('+');
    let kind = words.next()?;
    let mut fields = Fields(words);
    match kind {
        "H" => header(&mut fields).map(|machine| Record::Header(Box::new(machine))),
        "C" => condition(&mut fields).map(Record::Condition),
        "E" => Some(Record::End {
            results: fields.number()?,
            drift_ppm: fields.signed()?,
            backward_jumps: fields.number()?,
        }),
        _ => {
            let (letter, hash) = kind.split_at_checked(1)?;
            let hash = u32::try_from(base36(hash)?).ok()?;
            outcome(letter, &mut fields).map(|outcome| Record::Result(hash, outcome))
        }
    }
}

fn header(fields: &mut Fields<'_>) -> Option<Machine> {
    // In the order of the fields: an expression's fields are evaluated as they are written.
    Some(Machine {
        program_version: fields.string()?.unwrap_or_default(),
        vendor: fields.string()?.unwrap_or_default(),
        brand: fields.string()?.unwrap_or_default().trim().to_owned(),
        family: fields.small(),
        model: fields.small(),
        stepping: fields.small(),
        hypervisor: fields.string()?,
        tsc: Tsc {
            hz: fields.optional()?.map(|hz| hz as f64).filter(|hz| 0.0 < *hz),
            invariant: Some(fields.flag()?),
            calibrated_by: fields.string()?,
            spread_ppm: Some(fields.number()?),
            drift_ppm: None,
            backward_jumps: None,
        },
        memory_bytes: Some(fields.number()?),
        cpus: fields.small(),
        apic: Some(fields.flag()?),
        watchdog: fields.string()?,
        loader: fields.string()?,
        firmware: fields.string()?,
        plan: fields.string()?.unwrap_or_default(),
        command_line: fields.string()?,
        planned: fields.small(),
    })
}

fn condition(fields: &mut Fields<'_>) -> Option<InForce> {
    let condition = unpacked(fields.number()?)?;
    let effective = fields.flag()?;
    let reason = fields.string()?;
    let (cr0, cr4) = (fields.number()?, fields.number()?);
    // The level that was read back; where it is another, it is not effective.
    let _ring = fields.number()?;
    Some(InForce {
        condition,
        effective,
        reason,
        cr0: Some(cr0),
        cr4: Some(cr4),
        chase_ticks: Some(fields.ticks()?),
        empty_ticks: Some(fields.ticks()?),
    })
}

fn unpacked(bits: u64) -> Option<Condition> {
    let mode = Mode::ALL[usize::try_from(bits & 3).ok()?];
    let ring = u8::try_from(bits >> 2 & 3).ok()?;
    let is = |bit: u32| bits >> bit & 1 == 1;
    (bits < 1 << 7).then(|| Condition {
        mode,
        ring,
        large_pages: is(4),
        no_cache: is(5),
        cold: is(6),
    })
}

fn outcome(letter: &str, fields: &mut Fields<'_>) -> Option<Outcome> {
    match letter {
        "F" => {
            let vector = u8::try_from(fields.number()?).ok()?;
            Some(Outcome::Fault { vector, name: fault_name(vector).to_owned() })
        }
        "T" => Some(Outcome::Timeout { after_ms: Some(fields.number()?) }),
        "M" => Some(Outcome::Missing { reason: fields.string()?.unwrap_or_default() }),
        "O" | "U" => figures(fields, letter == "O", false),
        "I" | "J" => figures(fields, letter == "I", true),
        _ => None,
    }
}

fn figures(fields: &mut Fields<'_>, reliable: bool, is_ineffective: bool) -> Option<Outcome> {
    let single = match fields.optional()? {
        Some(n) => {
            let [min, median, p99, max] = fields.rising()?;
            Some(Spread { min, median, p99, max, n })
        }
        None => None,
    };
    let batch = match fields.optional()? {
        Some(of) => {
            let [min, median] = fields.rising()?;
            Some(Batch { of, min, median })
        }
        None => None,
    };
    // Left out where there are none, and nothing follows.
    let bytes = if is_ineffective { fields.number()? } else { fields.number().unwrap_or(0) };
    let ineffective =
        if is_ineffective { Some(fields.string()?.unwrap_or_default()) } else { None };
    let figures = Figures { single, batch, bytes, done: None, reliable, ineffective };
    figures.ticks().map(|_| Outcome::Measured(figures))
}

/// As the program names them in its lines.
fn fault_name(vector: u8) -> &'static str {
    const NAMES: [&str; 32] = [
        "#DE", "#DB", "NMI", "#BP", "#OF", "#BR", "#UD", "#NM", "#DF", "", "#TS", "#NP", "#SS",
        "#GP", "#PF", "", "#MF", "#AC", "#MC", "#XM", "#VE", "#CP", "", "", "", "", "", "", "#HV",
        "#VC", "#SX", "",
    ];
    NAMES.get(usize::from(vector)).copied().unwrap_or_default()
}

struct Fields<'t>(Split<'t, char>);

impl Fields<'_> {
    /// A number, or nothing where there is none.
    fn optional(&mut self) -> Option<Option<u64>> {
        match self.0.next()? {
            "" => Some(None),
            digits => base36(digits).map(Some),
        }
    }

    fn number(&mut self) -> Option<u64> {
        self.optional().flatten()
    }

    fn small(&mut self) -> Option<u32> {
        self.number().and_then(|n| n.try_into().ok())
    }

    fn flag(&mut self) -> Option<bool> {
        self.number().map(|n| n != 0)
    }

    fn signed(&mut self) -> Option<i64> {
        let field = self.0.next()?;
        let (sign, digits) = match field.strip_prefix('-') {
            Some(digits) => (-1, digits),
            None => (1, field),
        };
        i64::try_from(base36(digits)?).ok()?.checked_mul(sign)
    }

    fn ticks(&mut self) -> Option<f64> {
        self.thousandths().map(in_ticks)
    }

    /// Ticks, of which each but the first is a difference from the one before.
    fn rising<const N: usize>(&mut self) -> Option<[f64; N]> {
        let mut all = [0.0; N];
        let mut sum = 0_i64;
        for ticks in &mut all {
            sum = sum.checked_add(self.thousandths()?)?;
            *ticks = in_ticks(sum);
        }
        all.iter().all(|ticks| 0.0 <= *ticks).then_some(all)
    }

    /// Whole ticks; or thousandths, and a point behind them.
    fn thousandths(&mut self) -> Option<i64> {
        let field = self.0.next()?;
        let (sign, digits) = match field.strip_prefix('-') {
            Some(digits) => (-1, digits),
            None => (1, field),
        };
        let (digits, times) = match digits.strip_suffix('.') {
            Some(digits) => (digits, 1),
            None => (digits, 1000),
        };
        i64::try_from(base36(digits)?).ok()?.checked_mul(times)?.checked_mul(sign)
    }

    /// A text, or `None` where it is empty.
    fn string(&mut self) -> Option<Option<String>> {
        let field = self.0.next()?;
        if field.is_empty() {
            return Some(None);
        }
        let mut bytes = Vec::with_capacity(field.len());
        let mut rest = field.bytes();
        while let Some(byte) = rest.next() {
            bytes.push(match byte {
                b'0'..=b'9' | b'.' => byte,
                b'A'..=b'Z' => byte.to_ascii_lowercase(),
                b'-' => b' ',
                b'$' => rest.next()?,
                b'%' => {
                    let digits = [rest.next()?, rest.next()?];
                    digits.iter().all(u8::is_ascii_hexdigit).then_some(())?;
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                _ => return None,
            });
        }
        Some(Some(bounded::text(&String::from_utf8_lossy(&bytes))))
    }
}

fn in_ticks(thousandths: i64) -> f64 {
    thousandths as f64 / 1000.0
}

/// Capital letters and digits only: `from_str_radix` would take a sign and small letters.
fn base36(digits: &str) -> Option<u64> {
    let is_digit = |c: char| c.is_ascii_digit() || c.is_ascii_uppercase();
    let are_digits = digits.chars().all(is_digit);
    if are_digits { u64::from_str_radix(digits, 36).ok() } else { None }
}
