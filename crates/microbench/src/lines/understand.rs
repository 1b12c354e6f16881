//! One JSON object of the program, checked.

use serde_json::Value;

use crate::bounded::text;
use crate::condition::Condition;
use crate::results::{Batch, Ending, Figures, InForce, Machine, Measurement, Outcome, Spread, Tsc};

/// Nothing takes longer: 10^15 ticks are days.
const MAX_TICKS: f64 = 1e15;
const NAME_CHARS: usize = 40;
const CHOICES: usize = 1024;

/// What an object says.
pub(super) enum Said {
    Header(Box<Header>),
    Condition(InForce),
    Begin(String, Condition),
    Result(Measurement),
    Warning(String),
    Error(String, Vec<String>),
    End(End),
}

/// The first line.
pub(super) struct Header {
    pub(super) version: u64,
    pub(super) machine: Machine,
}

/// The last line.
pub(super) struct End {
    pub(super) ending: Ending,
    pub(super) results: Option<u64>,
    pub(super) drift_ppm: Option<i64>,
    pub(super) backward_jumps: Option<u64>,
}

/// Our objects begin with one of these; what it means stands beside it. An object with a `condition` has it second
/// unless it is about the condition itself.
const KINDS: [(&str, Reader); 7] = [
    ("vmscope_boot", |value| Ok(Said::Header(Box::new(header(value)?)))),
    ("result", |value| result(value).map(Said::Result)),
    ("begin", |value| Ok(Said::Begin(name(value, "begin")?, condition(value)?))),
    ("condition", |value| in_force(value).map(Said::Condition)),
    ("warning", |value| Ok(Said::Warning(string(value, "warning")?))),
    ("error", |value| Ok(Said::Error(string(value, "error")?, choices(value)))),
    ("end", |value| Ok(Said::End(end(value)?))),
];

type Reader = fn(&Value) -> Result<Said, String>;

/// Whether a text, at least at its start, looks like one of our objects.
pub(super) fn is_ours(start: &str) -> bool {
    let first = start.strip_prefix("{\"").and_then(|rest| rest.split_once('"'));
    first.is_some_and(|(key, _)| KINDS.iter().any(|(kind, _)| *kind == key))
}

/// What an object of ours says, or what is wrong with it; `None`: it is another program's.
pub(super) fn understand(value: &Value) -> Option<Result<Said, String>> {
    let (_, read) = KINDS.iter().find(|(kind, _)| value.get(kind).is_some())?;
    Some(read(value))
}

fn header(value: &Value) -> Result<Header, String> {
    let version = count(value, "vmscope_boot").ok_or("a header without a version")?;
    let (cpu, tsc) = (&value["cpu"], &value["tsc"]);
    let word = |value: &Value, key| optional(value, key).unwrap_or_default();
    let machine = Machine {
        program_version: word(value, "version"),
        vendor: word(cpu, "vendor"),
        brand: word(cpu, "brand").trim().to_owned(),
        family: small(cpu, "family"),
        model: small(cpu, "model"),
        stepping: small(cpu, "stepping"),
        hypervisor: optional(cpu, "hypervisor").filter(|name| !name.is_empty()),
        tsc: Tsc {
            hz: number(tsc, "hz").filter(|hz| 0.0 < *hz),
            invariant: tsc["invariant"].as_bool(),
            calibrated_by: optional(tsc, "calibrated_by"),
            spread_ppm: count(tsc, "spread_ppm"),
            drift_ppm: None,
            backward_jumps: None,
        },
        memory_bytes: count(value, "memory_bytes"),
        cpus: small(value, "cpus"),
        apic: value["apic"].as_bool(),
        watchdog: optional(value, "watchdog"),
        loader: optional(value, "loader"),
        firmware: optional(value, "firmware"),
        plan: word(value, "plan"),
        command_line: optional(value, "command_line"),
        planned: small(value, "operations"),
    };
    Ok(Header { version, machine })
}

fn in_force(value: &Value) -> Result<InForce, String> {
    Ok(InForce {
        condition: condition(value)?,
        effective: value["effective"].as_bool().ok_or("a condition without its effect")?,
        reason: optional(value, "reason"),
        cr0: count(value, "cr0"),
        cr4: count(value, "cr4"),
        chase_ticks: number(value, "chase_ticks"),
        empty_ticks: number(value, "empty_ticks"),
    })
}

fn result(value: &Value) -> Result<Measurement, String> {
    let operation = name(value, "result")?;
    let condition = condition(value)?;
    let outcome = outcome(value).map_err(|why| format!("{operation} at {condition}: {why}"))?;
    Ok(Measurement { operation, condition, outcome })
}

fn outcome(value: &Value) -> Result<Outcome, String> {
    match value["status"].as_str() {
        Some("ok") => figures(value).map(Outcome::Measured),
        Some("fault") => Ok(Outcome::Fault {
            vector: count(value, "vector").and_then(|n| n.try_into().ok()).ok_or("no vector")?,
            name: optional(value, "name").unwrap_or_default(),
        }),
        Some("missing") => Ok(Outcome::Missing {
            reason: optional(value, "reason").unwrap_or_else(|| "no reason given".to_owned()),
        }),
        Some("timeout") => Ok(Outcome::Timeout { after_ms: count(value, "after_ms") }),
        Some(other) => Err(format!("unknown status {:?}", text(other))),
        None => Err("no status".to_owned()),
    }
}

fn figures(value: &Value) -> Result<Figures, String> {
    if value["unit"].as_str().is_some_and(|unit| unit != "ticks") {
        return Err("figures that are not in ticks".to_owned());
    }
    let present = |key| value.get(key).filter(|part| !part.is_null());
    let figures = Figures {
        single: present("single").map(spread).transpose()?,
        batch: present("batch").map(batch).transpose()?,
        bytes: count(value, "bytes").unwrap_or(0),
        done: count(value, "done"),
        reliable: value["reliable"].as_bool().ok_or("not said whether it is reliable")?,
        ineffective: optional(value, "ineffective"),
    };
    if figures.ticks().is_none() {
        return Err("no figures".to_owned());
    }
    Ok(figures)
}

fn spread(value: &Value) -> Result<Spread, String> {
    let of = |key| number(value, key).ok_or_else(|| format!("single shots without {key}"));
    let spread = Spread {
        min: of("min")?,
        median: of("median")?,
        p99: of("p99")?,
        max: of("max")?,
        n: count(value, "n").ok_or("single shots without n")?,
    };
    let is_sorted =
        spread.min <= spread.median && spread.median <= spread.p99 && spread.p99 <= spread.max;
    if is_sorted { Ok(spread) } else { Err("single shots out of order".to_owned()) }
}

fn batch(value: &Value) -> Result<Batch, String> {
    let of = |key| number(value, key).ok_or_else(|| format!("batches without {key}"));
    Ok(Batch {
        of: count(value, "of").ok_or("batches without of")?,
        min: of("min")?,
        median: of("median")?,
    })
}

fn end(value: &Value) -> Result<End, String> {
    let ending = match string(value, "end")?.as_str() {
        "complete" => Ending::Complete,
        other => Ending::Said(other.to_owned()),
    };
    Ok(End {
        ending,
        results: count(value, "results"),
        drift_ppm: value["tsc_drift_ppm"].as_i64(),
        backward_jumps: count(value, "backward_jumps"),
    })
}

fn condition(value: &Value) -> Result<Condition, String> {
    string(value, "condition")?.parse()
}

/// An operation's name: nothing that could be anything else.
fn name(value: &Value, key: &str) -> Result<String, String> {
    let name = string(value, key)?;
    if is_name(&name) { Ok(name) } else { Err(format!("{name:?} is not an operation")) }
}

pub(crate) fn is_name(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.+".contains(c);
    !name.is_empty() && name.len() <= NAME_CHARS && name.chars().all(is_word)
}

fn choices(value: &Value) -> Vec<String> {
    let all = value["choices"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter_map(Value::as_str).take(CHOICES).map(text).collect()
}

fn string(value: &Value, key: &str) -> Result<String, String> {
    optional(value, key).ok_or_else(|| format!("{key} is no text"))
}

fn optional(value: &Value, key: &str) -> Option<String> {
    value[key].as_str().map(text)
}

fn number(value: &Value, key: &str) -> Option<f64> {
    value[key].as_f64().filter(|n| (0.0..=MAX_TICKS).contains(n))
}

fn count(value: &Value, key: &str) -> Option<u64> {
    value[key].as_u64()
}

fn small(value: &Value, key: &str) -> Option<u32> {
    count(value, key).and_then(|n| n.try_into().ok())
}
