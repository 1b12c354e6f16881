//! Ready-made queries: the SQL texts in `queries/`, which other engines run, too. A parameter is written `:name`.

use std::collections::{BTreeMap, BTreeSet};

use api::query::Value;
use chrono::{DateTime, Utc};

use crate::QueryError;

/// A ready-made query.
#[derive(Debug, Clone, Copy)]
pub struct ReadyQuery {
    pub name: &'static str,
    /// Its text: a comment that says what it is for, and one `SELECT`.
    pub sql: &'static str,
    /// Rows that it answers with at most, as its text says; `None`: no limit of its own.
    pub rows: Option<usize>,
}

macro_rules! queries {
    ($($name:literal: $rows:expr),* $(,)?) => {
        &[$(ReadyQuery {
            name: $name,
            sql: include_str!(concat!("../queries/", $name, ".sql")),
            rows: $rows,
        }),*]
    };
}

/// The ready-made queries.
pub const READY: &[ReadyQuery] = queries! {
    "top-functions": Some(100),
    "compare": Some(200),
    "thieves": Some(100),
    "hosts-by-steal": None,
    "noisy-neighbours": Some(100),
    "function-over-time": None,
    "metering": None,
};

/// The end of the names of parameters that are instants.
const INSTANTS: [&str; 2] = ["from", "to"];

impl ReadyQuery {
    /// The query of a name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        READY.iter().find(|query| query.name == name)
    }

    /// What it is for.
    #[must_use]
    pub fn purpose(&self) -> &'static str {
        self.sql.lines().next().and_then(|line| line.strip_prefix("-- ")).unwrap_or_default()
    }

    /// Names of its parameters.
    #[must_use]
    pub fn parameters(&self) -> BTreeSet<&'static str> {
        let after = |part: &'static str| {
            let end = part.find(|c: char| !(c.is_ascii_lowercase() || c == '_'));
            &part[..end.unwrap_or(part.len())]
        };
        self.sql.split(':').skip(1).map(after).filter(|name| !name.is_empty()).collect()
    }

    /// Its text and its parameters' values for the engine. Hosts may be left out, and the other range and VM of a
    /// comparison: they are then the same.
    pub(crate) fn bind(
        &self,
        given: &BTreeMap<String, String>,
    ) -> Result<(String, Vec<(String, Value)>), QueryError> {
        let known = self.parameters();
        if let Some(other) = given.keys().find(|name| !known.contains(name.as_str())) {
            let known: Vec<_> = known.into_iter().collect();
            let text = format!("{} has no parameter {other}, but {}", self.name, known.join(", "));
            return Err(QueryError::Invalid(text));
        }
        let value = |name: &str| {
            let same = name.strip_prefix("other_").and_then(|name| given.get(name));
            given.get(name).or(same).cloned().or(name.ends_with("host").then(String::new))
        };
        let mut values = Vec::new();
        for name in &known {
            let missing = || QueryError::Invalid(format!("{} needs {name}", self.name));
            let text = value(name).ok_or_else(missing)?;
            let value_of = if INSTANTS.iter().any(|end| name.rsplit('_').next() == Some(end)) {
                Value::Instant(parse_instant(&text)?.timestamp_micros())
            } else {
                Value::Text(text)
            };
            values.push(((*name).to_owned(), value_of));
        }
        Ok((self.sql.replace(':', "$"), values))
    }
}

/// An instant, RFC 3339.
///
/// # Errors
/// When it is none.
pub fn parse_instant(text: &str) -> Result<DateTime<Utc>, QueryError> {
    let parsed = DateTime::parse_from_rfc3339(text).map(|time| time.with_timezone(&Utc));
    let bad = |_| {
        QueryError::Invalid(format!("{text:?} is not a time: write one like 2026-01-31T12:00:00Z"))
    };
    parsed.map_err(bad)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn each_says_what_it_is_for_and_what_it_needs() {
        for query in READY {
            assert!(query.purpose().ends_with('.'), "{}", query.name);
            let limit =
                query.sql.rsplit_once("LIMIT ").map(|(_, rows)| rows.trim().parse().unwrap());
            assert_eq!(query.rows, limit, "{}", query.name);
            // In the comment there is a colon at times, with a blank behind.
            assert!(query.sql.lines().skip(1).all(|line| !line.contains(": ")), "{}", query.name);
            assert!(query.parameters().is_superset(&["host", "from", "to"].into()));
        }
        let all: Vec<_> =
            ReadyQuery::find("function-over-time").unwrap().parameters().into_iter().collect();
        assert_eq!(all, ["from", "function", "host", "to", "vm"]);
    }

    #[test]
    fn what_is_missing_or_wrong_is_said() {
        let check = |given: &[(&str, &str)], expected: &str| {
            let given = given.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            let error = ReadyQuery::find("thieves").unwrap().bind(&given.collect()).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        };
        check(&[("vmm", "x")], "no parameter vmm, but from, host, to, vm");
        check(&[("vm", "x")], "needs from");
        check(&[("vm", "x"), ("from", "yesterday"), ("to", "x")], "is not a time");
    }
}
