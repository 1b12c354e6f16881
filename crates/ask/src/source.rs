//! Where answers come from.

use api::http::FleetAnswer;
use cli::duration_in_seconds;
use detect::{Finding, Summary};
use model::Results;

use crate::answer::shown;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The caller can mend it.
    #[error("{0}")]
    Arguments(String),
    /// The caller can't.
    #[error("{0}")]
    Source(String),
}

/// A stretch of time, us since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub from_us: i64,
    /// The instant after the last.
    pub to_us: i64,
}

/// What is known of a host in a span.
#[derive(Debug)]
pub struct Part {
    pub host: String,
    pub span: Span,
    /// Rows of the span; the table of hosts has one.
    pub results: Results,
    /// The same summed up.
    pub summary: Summary,
    /// Why rows are incomplete.
    pub partial: Vec<String>,
}

/// A recording or a fleet.
pub trait Source {
    /// What it is, for callers.
    fn kind(&self) -> &'static str;

    /// The time that is meant when none is given.
    fn whole(&self) -> Span;

    /// An instant as callers write it, us since 1970.
    ///
    /// # Errors
    /// When it is none.
    fn instant(&self, text: &str) -> Result<i64, AskError>;

    /// An instant as callers can write it.
    fn time(&self, unix_us: i64) -> String;

    /// The host that is meant.
    ///
    /// # Errors
    /// When there is none, or more than one.
    fn host(&self, host: Option<&str>, vm: Option<&str>, span: Span) -> Result<String, AskError>;

    /// What is known of a host in a span.
    ///
    /// # Errors
    /// When nothing is.
    fn part(&self, host: &str, span: Span) -> Result<Part, AskError>;

    /// Findings; `None`: they need a past, which this source does not have.
    ///
    /// # Errors
    /// When they can't be read.
    fn findings(
        &self,
        host: Option<&str>,
        vm: Option<&str>,
        is_over_too: IsOverToo,
    ) -> Result<Option<Vec<Finding>>, AskError> {
        let _ = (host, vm, is_over_too);
        Ok(None)
    }

    /// The address of the web page that shows this VM, host or fleet in this time; `None`: the source has no page.
    fn page(&self, host: Option<&str>, vm: Option<&str>, span: Span) -> Option<String> {
        let _ = (host, vm, span);
        None
    }

    /// What the VMs of all hosts lost; `None`: there is one host.
    ///
    /// # Errors
    /// When it can't be read.
    fn lost(&self, span: Span) -> Result<Option<FleetAnswer>, AskError> {
        let _ = span;
        Ok(None)
    }

    /// Call paths of a VM's guest or of the host, outermost function first, with ns.
    ///
    /// # Errors
    /// When there are none.
    fn paths(&self, vm: Option<&str>, part: &Part) -> Result<Vec<(String, u64)>, AskError>;
}

/// Which findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsOverToo {
    /// Open ones.
    No,
    /// Those that are over, too.
    Yes,
}

impl Span {
    /// Between two instants as callers write them.
    ///
    /// # Errors
    /// When one is none, or nothing is between them.
    pub fn parse(
        source: &dyn Source,
        from: Option<&str>,
        to: Option<&str>,
    ) -> Result<Self, AskError> {
        let whole = source.whole();
        let to_us = to.map_or(Ok(whole.to_us), |text| source.instant(text))?;
        let length_us = whole.to_us.saturating_sub(whole.from_us);
        // Where `to` lies in the past, the time before it is as long as usual.
        let usual_us = if to_us < whole.from_us { to_us - length_us } else { whole.from_us };
        let from_us = from.map_or(Ok(usual_us), |text| source.instant(text))?;
        if to_us <= from_us {
            return Err(AskError::Arguments("`from` must be before `to`".to_owned()));
        }
        Ok(Self { from_us, to_us })
    }

    /// Its length.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.to_us.saturating_sub(self.from_us) as f64 / 1e6
    }
}

impl Part {
    /// The VM that a caller means. The caller may have its name from an answer.
    ///
    /// # Errors
    /// When there is none, with the names that there are.
    pub fn vm(&self, name: &str) -> Result<&str, AskError> {
        let vms = &self.summary.vms;
        let exact = vms.get_key_value(name).map(|(vm, _)| vm.as_str());
        let found = exact.or_else(|| vms.keys().find(|vm| shown(vm) == name).map(String::as_str));
        found.ok_or_else(|| {
            let names: Vec<_> = vms.keys().take(10).map(|vm| shown(vm)).collect();
            let names = serde_json::Value::from(names);
            AskError::Arguments(format!(
                "no VM of this name on the host in this time; the first of {}: {names}",
                vms.len()
            ))
        })
    }
}

/// An instant: RFC 3339, or an offset from `base_us`.
pub(crate) fn instant(
    text: &str,
    base_us: i64,
    offset: fn(i64, i64) -> i64,
) -> Result<i64, AskError> {
    if let Ok(time) = chrono::DateTime::parse_from_rfc3339(text) {
        return Ok(time.timestamp_micros());
    }
    let length = duration_in_seconds(text).map_err(|_| {
        let text = shown(text);
        AskError::Arguments(format!(
            "{text:?} is not a time: write one like 2026-01-31T12:00:00Z, 12.5 or 2h"
        ))
    })?;
    Ok(offset(base_us, i64::try_from(length.as_micros()).unwrap_or(i64::MAX)))
}
