//! A webhook gets a message when a finding begins, and one when it is over.
//!
//! ```text
//!  told/v1/day=DAY/RECEIVER/ID-firing.claims/1    a server is at it since the second in it; others wait for a minute
//!                           ID-firing.claims/2 ...  it did not come to an end: the next one tries
//!                           ID-firing              reported
//!                           ID-firing.refused      the receiver does not take it, and why; until an operator sends it again
//! ```

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use api::http::RefusedMessage;
use bytes::Bytes;
use object_store::path::Path;
use serde_json::json;
use tracing::warn;

use super::{Alert, Format, pause};
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
pub(super) enum Event {
    Firing,
    Resolved,
}

impl Event {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Firing => "firing",
            Self::Resolved => "resolved",
        }
    }
}

/// What became of a message.
enum Delivery {
    Yes,
    Refused(RefusedMessage),
    /// Perhaps: another server is at it.
    ByAnother,
}

/// Messages that this server knows to be sent, by finding and event.
type SentMessages = HashSet<(String, Event)>;

/// Messages that receivers refused, as of each receiver's last pass; the store has them, too.
#[derive(Debug, Default)]
pub(crate) struct RefusedMessages {
    /// By their objects, which begin with those of their receiver.
    all: Mutex<BTreeMap<String, RefusedMessage>>,
}

impl RefusedMessages {
    /// Those of a finding.
    pub(crate) fn of(&self, finding: &str) -> Vec<RefusedMessage> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().filter(|message| message.finding == finding).cloned().collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// A receiver's are these.
    fn replace(&self, receiver: &str, refused: BTreeMap<String, RefusedMessage>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|name, _| !name.contains(&format!("/{receiver}/")));
        all.extend(refused);
    }

    fn objects_of(&self, finding: &str) -> Vec<String> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let of = all.iter().filter(|(_, message)| message.finding == finding);
        of.map(|(name, _)| name.clone()).collect()
    }

    fn forget(&self, name: &str) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

impl Server {
    /// Has a finding's refused messages sent again: how many.
    pub(crate) async fn resend(&self, finding: &str) -> Result<usize, object_store::Error> {
        let names = self.refused_messages.objects_of(finding);
        for name in &names {
            // Without its last claim it is sent at once.
            for claim in self.store.list(&format!("{name}.claims")).await? {
                self.store.delete(&claim.location).await?;
            }
            self.store.delete(&Path::from(format!("{name}.refused"))).await?;
            self.refused_messages.forget(name);
        }
        Ok(names.len())
    }

    /// Why a message was refused before, if it was.
    async fn refusal(&self, done: &str) -> Result<Option<RefusedMessage>, TellError> {
        let kept = self.store.get(&Path::from(format!("{done}.refused"))).await?;
        Ok(kept.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// Tells a webhook of findings, for ever.
    pub(super) async fn tell_webhook(self: Arc<Self>, poster: Poster, format: Format) {
        let mut changes = self.watch.changes.subscribe();
        let (mut failures, mut sent) = (0_u32, SentMessages::new());
        loop {
            pause(&mut changes, failures).await;
            if *changes.borrow_and_update() == 0 {
                continue;
            }
            failures = match self.tell_news(&poster, format, &mut sent).await {
                Ok(()) => 0,
                Err(error) => {
                    warn!("failed to send to a webhook: {error}");
                    failures.saturating_add(1)
                }
            };
        }
    }

    async fn tell_news(
        &self,
        poster: &Poster,
        format: Format,
        sent: &mut SentMessages,
    ) -> Result<(), TellError> {
        let (found, ..) = self.watch.findings();
        let (said, now_s) = (self.handled.said().await?, unix_s());
        let public_url = self.config.public_url.as_deref();
        let alert = |found: &Found| Alert::new(found, public_url, &said, now_s);
        let alerts: Vec<Alert> = found.iter().filter(|found| !found.is_late).map(alert).collect();
        sent.retain(|(id, _)| alerts.iter().any(|alert| alert.id == *id));
        let mut left = MAX_AT_ONCE;
        let mut refused = BTreeMap::new();
        for alert in &alerts {
            let event = if alert.ends_s.is_none() { Event::Firing } else { Event::Resolved };
            if sent.contains(&(alert.id.clone(), event)) {
                continue;
            }
            let prefix = prefix(alert, poster);
            let began = format!("{prefix}-{}", Event::Firing.name());
            let done = format!("{prefix}-{}", event.name());
            // Of a beginning that was refused there is no end.
            let unsent = self.refusal(&began).await?.map(|message| (began.clone(), message));
            let unsent = match unsent {
                None if event == Event::Resolved => {
                    self.refusal(&done).await?.map(|message| (done.clone(), message))
                }
                unsent => unsent,
            };
            if let Some(unsent) = unsent {
                refused.extend([unsent]);
                continue;
            }
            if left == 0 || event == Event::Firing && alert.silenced_s.is_some() {
                continue;
            }
            // A webhook that did not get its beginning does not get its end.
            if event == Event::Resolved && self.store.size(&Path::from(began)).await?.is_none() {
                continue;
            }
            left -= 1;
            match self.tell(poster, format, alert, event, &done).await? {
                Delivery::Yes => {
                    sent.insert((alert.id.clone(), event));
                }
                Delivery::Refused(message) => {
                    refused.insert(done, message);
                }
                Delivery::ByAnother => {}
            }
        }
        self.refused_messages.replace(&receiver(poster), refused);
        Ok(())
    }

    /// Sends its message, if no server has done so or is at it.
    async fn tell(
        &self,
        poster: &Poster,
        format: Format,
        alert: &Alert,
        event: Event,
        name: &str,
    ) -> Result<Delivery, TellError> {
        let done = Path::from(name);
        if self.store.size(&done).await?.is_some() {
            return Ok(Delivery::Yes);
        }
        let now_s = unix_s();
        if !self.claim(&done, now_s).await? {
            return Ok(Delivery::ByAnother);
        }
        let id = format!("{}-{}", alert.id, event.name());
        let body = format.message(alert, event).to_string();
        let sent = poster.post("application/json", &id, now_s, Bytes::from(body)).await;
        self.count("webhook", &sent);
        match sent {
            Ok(()) => {}
            // It would be refused again: it is kept until an operator has it sent.
            Err(PostError::Refused(receiver, status, reason)) => {
                warn!("the webhook {receiver} refused {id}: {status} {reason}");
                let message = RefusedMessage {
                    finding: alert.id.clone(),
                    event: event.name().to_owned(),
                    receiver,
                    unix_s: now_s,
                    reason: format!("{status} {reason}").trim_end().to_owned(),
                };
                let kept = serde_json::to_vec(&message).unwrap_or_default();
                let path = Path::from(format!("{name}.refused"));
                self.store.create(&path, Bytes::from(kept)).await?;
                return Ok(Delivery::Refused(message));
            }
            Err(error) => return Err(error.into()),
        }
        self.store.create(&done, Bytes::from(now_s.to_string())).await?;
        Ok(Delivery::Yes)
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
    format!("{MESSAGES}/day={day}/{}/{}", receiver(poster), alert.id)
}

fn receiver(poster: &Poster) -> String {
    hash(poster.url.as_str())[..16].to_owned()
}

pub(super) fn json(alert: &Alert, event: Event) -> serde_json::Value {
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
