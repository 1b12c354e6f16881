//! Alertmanager's API, version 2. It forgets an alert that is not repeated: open ones are sent every minute, and what
//! is over for a while.

use std::sync::Arc;

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat};
use serde_json::{Value, json};
use tracing::warn;

use super::{Alert, pause};
use crate::Server;
use crate::auth::unix_s;
use crate::destination::{PostError, Poster};
use crate::operator_notes::OperatorNotes;
use crate::watch::Found;

pub(super) const PATH: &str = "/api/v2/alerts";
/// An alert that is not sent again ends after this time: five repetitions.
const HOLDS_S: u64 = 300;
/// Time for which an end is sent.
const ENDED_S: u64 = 900;
/// Alerts in one request.
const MAX_AT_ONCE: usize = 64;
/// Alerts in all.
const MAX_ALERTS: usize = 4096;

impl Server {
    /// Sends open and resolved findings to an Alertmanager, for ever.
    pub(super) async fn tell_alertmanager(self: Arc<Self>, poster: Poster) {
        let mut changes = self.watch.changes.subscribe();
        let mut failures = 0_u32;
        loop {
            pause(&mut changes, failures).await;
            if *changes.borrow_and_update() == 0 {
                continue;
            }
            failures = match self.tell_all(&poster).await {
                Ok(()) => 0,
                Err(error) => {
                    warn!("alerts were not sent: {error}");
                    failures.saturating_add(1)
                }
            };
        }
    }

    async fn tell_all(&self, poster: &Poster) -> Result<(), PostError> {
        let now_s = unix_s();
        let said =
            self.handled.said().await.map_err(|error| PostError::Later(error.to_string()))?;
        let alerts = self.alerts(&said, now_s);
        let mut outcome = Ok(());
        for part in alerts.chunks(MAX_AT_ONCE) {
            let body = part.iter().map(|alert| json(alert, now_s)).collect::<Value>().to_string();
            let sent = poster.post("application/json", "alerts", now_s, Bytes::from(body)).await;
            self.count("alertmanager", &sent);
            match sent {
                // One alert that is refused does not keep those of others back.
                Err(PostError::Refused(..)) => outcome = sent,
                _ => sent?,
            }
        }
        outcome
    }

    /// Open findings, then those that were resolved or silenced a short time ago.
    fn alerts(&self, said: &OperatorNotes, now_s: u64) -> Vec<Alert> {
        let public_url = self.config.public_url.as_deref();
        let (found, ..) = self.watch.findings();
        let alert = |found: &Found| {
            let mut alert = Alert::new(found, public_url, said, now_s);
            alert.ends_s = alert.ends_s.or(alert.silenced_s);
            alert
        };
        let mut alerts: Vec<Alert> =
            found.iter().filter(|found| !found.is_late).map(alert).collect();
        alerts.retain(|alert| alert.ends_s.is_none_or(|ends_s| now_s <= ends_s + ENDED_S));
        alerts.sort_by_key(|alert| alert.ends_s.is_some());
        alerts.truncate(MAX_ALERTS);
        alerts
    }

    /// Counts what became of a message.
    pub(crate) fn count(&self, to: &'static str, sent: &Result<(), PostError>) {
        let outcome = match sent {
            Ok(()) => "sent",
            Err(PostError::Refused(..)) => "refused",
            Err(PostError::Later(_)) => "failed",
        };
        self.metrics.message(to, outcome);
    }
}

fn json(alert: &Alert, now_s: u64) -> Value {
    let mut annotations = json!({ "summary": alert.summary, "cause": alert.cause });
    if !alert.advice.is_empty() {
        annotations["advice"] = alert.advice.join("; ").into();
    }
    if let Some(by) = &alert.acknowledged {
        annotations["acknowledged"] = by.as_str().into();
    }
    // A window may begin in the server's future: what ends before it begins would be refused.
    let ends_s = alert.ends_s.unwrap_or(now_s + HOLDS_S).max(alert.starts_s + 1);
    let mut json = json!({
        "labels": alert.labels(),
        "annotations": annotations,
        "startsAt": time(alert.starts_s),
        "endsAt": time(ends_s),
    });
    if let Some(link) = &alert.link {
        json["generatorURL"] = link.as_str().into();
    }
    json
}

fn time(s: u64) -> String {
    let time = DateTime::from_timestamp(i64::try_from(s).unwrap_or(0), 0).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::alerts::test::found;

    #[test]
    fn it_is_what_alertmanager_expects() {
        let now_s = 1_800_000_300;
        let mut found = found(7, "db");
        let of = |found: &Found, url| {
            json(&Alert::new(found, url, &OperatorNotes::default(), now_s), now_s)
        };
        let alert = of(&found, Some("https://fleet"));
        assert_eq!(alert["startsAt"], "2027-01-15T08:00:00Z");
        assert_eq!(alert["endsAt"], "2027-01-15T08:10:00Z");
        assert_eq!(alert["generatorURL"], "https://fleet/#/finding/0000000000000007");
        assert_eq!(alert["annotations"]["cause"], "VM db took 90 % of the additional steal type 1");
        found.over_s = Some(now_s - 60);
        let over = of(&found, None);
        assert_eq!(over["endsAt"], "2027-01-15T08:04:00Z");
        assert_eq!(over["labels"], alert["labels"]);
        assert!(over["generatorURL"].is_null());
        found.over_s = Some(5);
        assert_eq!(of(&found, None)["endsAt"], "2027-01-15T08:00:01Z");
    }
}
