//! A webhook gets a message when a finding begins, and one when it is over.
//!
//! ```text
//!  told/v1/day=DAY/RECEIVER/ID-firing.claims/1    a server is at it since the second in it; others wait for a minute
//!                           ID-firing.claims/2 ...  it did not come to an end: the next one tries
//!                           ID-firing              reported
//! ```

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use serde_json::json;
use tracing::warn;

use super::{Alert, pause};
use crate::Server;
use crate::auth::{hash, unix_s};
use crate::destination::{PostError, Poster};
use crate::object_names::{MESSAGES, day_of};
use crate::store::Created;
use crate::watch::Found;

/// A server that began to tell something has so long to do it.
const CLAIM_S: u64 = 60;
/// Messages between two pauses.
const MAX_AT_ONCE: usize = 256;

/// Why there is still something to tell.
#[derive(Debug, thiserror::Error)]
enum TellError {
    #[error("{0}")]
    Post(#[from] PostError),
    #[error("the store failed: {0}")]
    Store(#[from] object_store::Error),
}

/// A finding's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Event {
    Firing,
    Resolved,
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Self::Firing => "firing",
            Self::Resolved => "resolved",
        }
    }
}

/// Messages that this server knows to be sent, by finding and event.
type SentMessages = HashSet<(String, Event)>;

impl Server {
    /// Tells a webhook of findings, for ever.
    pub(super) async fn tell_webhook(self: Arc<Self>, poster: Poster) {
        let mut changes = self.watch.changes.subscribe();
        let (mut failures, mut sent) = (0_u32, SentMessages::new());
        loop {
            pause(&mut changes, failures).await;
            if *changes.borrow_and_update() == 0 {
                continue;
            }
            failures = match self.tell_news(&poster, &mut sent).await {
                Ok(()) => 0,
                Err(error) => {
                    warn!("failed to send to a webhook: {error}");
                    failures.saturating_add(1)
                }
            };
        }
    }

    async fn tell_news(&self, poster: &Poster, sent: &mut SentMessages) -> Result<(), TellError> {
        let (found, ..) = self.watch.findings();
        let (said, now_s) = (self.handled.said().await?, unix_s());
        let public_url = self.config.public_url.as_deref();
        let alert = |found: &Found| Alert::new(found, public_url, &said, now_s);
        let alerts: Vec<Alert> = found.iter().filter(|found| !found.is_late).map(alert).collect();
        sent.retain(|(id, _)| alerts.iter().any(|alert| alert.id == *id));
        let mut left = MAX_AT_ONCE;
        for alert in &alerts {
            let event = if alert.ends_s.is_none() { Event::Firing } else { Event::Resolved };
            let is_sent = sent.contains(&(alert.id.clone(), event));
            if is_sent || left == 0 || event == Event::Firing && alert.silenced_s.is_some() {
                continue;
            }
            let prefix = prefix(alert, poster);
            if event == Event::Resolved {
                // A webhook that did not get its beginning does not get its end.
                let began = Path::from(format!("{prefix}-{}", Event::Firing.name()));
                if self.store.size(&began).await?.is_none() {
                    continue;
                }
            }
            left -= 1;
            if self.tell(poster, alert, event, &prefix).await? {
                sent.insert((alert.id.clone(), event));
            }
        }
        Ok(())
    }

    /// Whether its message is sent now, by any server.
    async fn tell(
        &self,
        poster: &Poster,
        alert: &Alert,
        event: Event,
        prefix: &str,
    ) -> Result<bool, TellError> {
        let done = Path::from(format!("{prefix}-{}", event.name()));
        if self.store.size(&done).await?.is_some() {
            return Ok(true);
        }
        let now_s = unix_s();
        if !self.claim(&done, now_s).await? {
            return Ok(false);
        }
        let id = format!("{}-{}", alert.id, event.name());
        let body = json(alert, event).to_string();
        let sent = poster.post("application/json", &id, now_s, Bytes::from(body)).await;
        self.count("webhook", &sent);
        match sent {
            Ok(()) => {}
            // It would be refused again.
            Err(error @ PostError::Refused(..)) => warn!("a webhook: {error}"),
            Err(error) => return Err(error.into()),
        }
        self.store.create(&done, Bytes::from(now_s.to_string())).await?;
        Ok(true)
    }

    /// Whether no other server is telling it.
    async fn claim(&self, done: &Path, now_s: u64) -> Result<bool, TellError> {
        let claims = format!("{done}.claims");
        let earlier = self.store.list(&claims).await?;
        let mut number = 0;
        if let Some(last) = earlier.last() {
            let since = self.store.get(&last.location).await?.unwrap_or_default();
            let since_s = std::str::from_utf8(&since).ok().and_then(|text| text.parse().ok());
            // One of another clock's future has no owner, either.
            if since_s.is_some_and(|since_s: u64| now_s.abs_diff(since_s) < CLAIM_S) {
                return Ok(false);
            }
            number = last.location.filename().and_then(|name| name.parse().ok()).unwrap_or(0);
        }
        let claim = Path::from(format!("{claims}/{:010}", number + 1_u64));
        if self.store.create(&claim, Bytes::from(now_s.to_string())).await? == Created::Before {
            return Ok(false);
        }
        // A reader sees the last one.
        for old in earlier {
            self.store.delete(&old.location).await?;
        }
        Ok(true)
    }
}

/// Of the names of what is stored of an alert for a receiver.
fn prefix(alert: &Alert, poster: &Poster) -> String {
    let day = day_of(alert.found_s.saturating_mul(1_000_000_000));
    format!("{MESSAGES}/day={day}/{}/{}", &hash(poster.url.as_str())[..16], alert.id)
}

fn json(alert: &Alert, event: Event) -> serde_json::Value {
    json!({
        "version": 1,
        "status": event.name(),
        "id": alert.id,
        "kind": alert.kind.name,
        "severity": alert.kind.severity,
        "host": alert.host,
        "vm": alert.vm,
        "labels": alert.vm_labels.iter().cloned().collect::<BTreeMap<_, _>>(),
        "began_unix_s": alert.starts_s,
        "over_unix_s": alert.ends_s,
        "summary": alert.summary,
        "cause": alert.cause,
        "advice": alert.advice,
        "link": alert.link,
    })
}
