//! Findings on their way to who looks after the fleet: Alertmanagers and webhooks.
//!
//! ```text
//!  watch --what is open, what is over--> Alert --+--> alertmanager: all of it again and again, so nothing is queued
//!                                                +--> webhook: each beginning and end once; the store has what was sent
//! ```
//! An alert has the name of its finding, and servers that share a store name findings alike: Alertmanager sees one alert,
//! and of a webhook's messages one server sends each. Names come from guests. They are cleaned and cut here.

mod alertmanager;
mod chat;
mod webhook;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use api::http::Acknowledgement;
use detect::Measure;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::Server;
use crate::destination::Poster;
use crate::operator_notes::OperatorNotes;
use crate::watch::Found;

pub use chat::Format;
pub(crate) use webhook::RefusedMessages;

/// Days for which the store keeps webhooks' messages.
pub(crate) const MESSAGE_DAYS: u64 = 14;
/// Interval at which open alerts are sent again.
const REPEAT: Duration = Duration::from_secs(60);
/// Between two attempts at a receiver, at least and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Bytes of a label, of a text.
const MAX_LABEL: usize = 160;
const MAX_TEXT: usize = 1000;
/// Advice that is passed on.
const MAX_ADVICE: usize = 3;

/// What a finding is called where alerts are routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    alert: &'static str,
    severity: &'static str,
}

/// The names of all kinds.
pub(crate) const KINDS: [&str; 11] = [
    "samples-missing",
    "windows",
    "demand",
    "throttled",
    "steal-outside",
    "steal-vmm",
    "useful",
    "exits",
    "halt-polling",
    "function",
    "process",
];

/// What changed first says the kind: it stays, whatever joins.
pub(crate) fn kind_of(measure: &Measure) -> Kind {
    let (name, alert, severity) = match measure {
        Measure::SamplesMissing => ("samples-missing", "VmscopeSamplesMissing", "warning"),
        Measure::Windows => ("windows", "VmscopeHostSilent", "warning"),
        Measure::Demand => ("demand", "VmscopeHostOvercommitted", "warning"),
        Measure::Throttled => ("throttled", "VmscopeThrottled", "warning"),
        Measure::StealOutside => ("steal-outside", "VmscopeStealOutside", "warning"),
        Measure::StealVmm => ("steal-vmm", "VmscopeStealVmm", "warning"),
        Measure::Useful => ("useful", "VmscopeLessUsefulWork", "warning"),
        Measure::Exits(_) => ("exits", "VmscopeExits", "info"),
        Measure::HaltPolling => ("halt-polling", "VmscopeHaltPolling", "info"),
        Measure::Function(_) => ("function", "VmscopeFunction", "info"),
        Measure::Process(_) => ("process", "VmscopeProcess", "info"),
    };
    Kind { name, alert, severity }
}

/// A finding as a message to operators.
#[derive(Debug, Clone, PartialEq)]
struct Alert {
    id: String,
    kind: Kind,
    host: Option<String>,
    vm: Option<String>,
    /// A few of what the VM's manager knows of it.
    vm_labels: Vec<(&'static str, String)>,
    /// What changed, from where to where.
    summary: String,
    cause: String,
    advice: Vec<String>,
    /// Who looks after it, and what he says.
    acknowledged: Option<String>,
    /// Its last message was sent then.
    silenced_s: Option<u64>,
    /// The page's view of it.
    link: Option<String>,
    starts_s: u64,
    /// It is over since then.
    ends_s: Option<u64>,
    /// When it was found: a part of the names of what is stored of it.
    found_s: u64,
}

impl Alert {
    fn new(found: &Found, public_url: Option<&str>, said: &OperatorNotes, now_s: u64) -> Self {
        let Found { finding, first, over_s, .. } = found;
        let id = finding.id.to_string();
        let label = |name: &Option<String>| name.as_deref().map(|name| short(name, MAX_LABEL));
        let text = |text: String| short(&text, MAX_TEXT);
        let action =
            |advice: &detect::Advice| text(detect::report::action_in_words(&advice.action));
        Self {
            kind: kind_of(&first.series.measure),
            host: label(&first.series.host),
            vm: label(&first.series.vm),
            vm_labels: vm_labels(&first.labels),
            summary: text(detect::report::symptom_in_words(first)),
            cause: text(detect::report::cause_in_words(&finding.cause)),
            advice: finding.advice.iter().take(MAX_ADVICE).map(action).collect(),
            acknowledged: said.acknowledged.get(&id).map(|Acknowledgement { by, note, .. }| {
                text(if note.is_empty() { by.clone() } else { format!("{by}: {note}") })
            }),
            silenced_s: said.silence(found, now_s).map(|silence| silence.unix_s),
            link: public_url.map(|url| format!("{}/#/finding/{id}", url.trim_end_matches('/'))),
            starts_s: first.began_s.into(),
            ends_s: *over_s,
            found_s: finding.found_s.into(),
            id,
        }
    }

    fn labels(&self) -> BTreeMap<&'static str, &str> {
        let Kind { name, alert, severity } = self.kind;
        let mut labels = BTreeMap::from([
            ("alertname", alert),
            ("id", self.id.as_str()),
            ("kind", name),
            ("severity", severity),
        ]);
        labels.extend(self.host.as_deref().map(|host| ("host", host)));
        labels.extend(self.vm.as_deref().map(|vm| ("vm", vm)));
        labels.extend(self.vm_labels.iter().map(|(name, value)| (*name, value.as_str())));
        labels
    }
}

/// Labels of VMs that alerts and metrics have: those that many VMs share.
const VM_LABELS: [&str; 4] = ["manager", "namespace", "owner", "project"];

/// Of a VM's labels those of alerts and metrics.
pub(crate) fn vm_labels(labels: &BTreeMap<String, String>) -> Vec<(&'static str, String)> {
    let label = |name: &'static str| Some((name, short(labels.get(name)?, MAX_LABEL)));
    VM_LABELS.into_iter().filter_map(label).collect()
}

/// The beginning of a text, without what steers a terminal or can't be seen.
pub(crate) fn short(text: &str, most: usize) -> String {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut cleaned = table::clean(&text[..end]).into_owned();
    // What can't be seen is longer once it can.
    if most < cleaned.len() {
        while !cleaned.is_char_boundary(end) {
            end -= 1;
        }
        cleaned.truncate(end);
    }
    cleaned
}

/// A task for each receiver: one that does not answer keeps no other waiting.
pub(crate) fn start(server: &Arc<Server>) -> Result<Vec<JoinHandle<()>>> {
    let mut tasks = Vec::new();
    for receiver in &server.config.alertmanager {
        let poster = Poster::new(receiver, alertmanager::PATH)?;
        server.metrics.sends_to("alertmanager");
        tasks.push(tokio::spawn(Arc::clone(server).tell_alertmanager(poster)));
    }
    for receiver in &server.config.webhook {
        let poster = Poster::new(receiver, "")?;
        server.metrics.sends_to("webhook");
        tasks.push(tokio::spawn(Arc::clone(server).tell_webhook(poster, receiver.format)));
    }
    Ok(tasks)
}

/// Waits until there is something to tell: news, or it is time to say it again. After failures it waits for longer and longer.
async fn pause(changes: &mut watch::Receiver<u64>, failures: u32) {
    let (shortest, longest) = PAUSES;
    let pause = shortest.saturating_mul(1 << failures.min(6)).min(longest);
    tokio::time::sleep(pause).await;
    if failures == 0 {
        // That no more changes come is no reason to stop.
        let _ = tokio::time::timeout(REPEAT, changes.changed()).await;
    }
}

#[cfg(test)]
pub(crate) mod test {
    use detect::{Advice, Cause, Finding, FindingId, Owner, SeriesName, Symptom};

    use super::*;

    pub(crate) fn found(id: u64, name: &str) -> Found {
        let series = SeriesName {
            host: Some("kvm1".to_owned()),
            vm: Some(name.to_owned()),
            measure: Measure::StealOutside,
        };
        let first = Symptom {
            labels: [
                ("project".to_owned(), "shop".to_owned()),
                ("unit".to_owned(), "x".to_owned()),
            ]
            .into(),
            series,
            began_s: 1_800_000_000,
            interval_s: (1_800_000_000, 1_800_000_060),
            before: 0.01,
            after: 0.25,
            score: 9.0,
            cpus: 0.5,
            is_over: false,
        };
        let owner = Owner::Vm(name.to_owned());
        let finding = Finding {
            id: FindingId(id),
            found_s: 1_800_000_120,
            cause: Cause::Thief {
                owner: owner.clone(),
                part: 0.9,
                functions: Vec::new(),
                is_new: false,
            },
            symptoms: vec![first.clone()],
            n_more: 0,
            advice: vec![Advice { action: detect::Action::Limit(owner), cpus: 0.5 }],
        };
        Found { finding, first, over_s: None, is_late: false }
    }

    #[test]
    fn an_alert_says_what_since_when_why_and_where_to_look() {
        let said = OperatorNotes::default();
        let alert = Alert::new(&found(7, "db"), Some("https://fleet.example/"), &said, 0);
        assert_eq!(alert.summary, "kvm1/db: steal type 1 changed from 1.0 % to 25.0 %");
        assert_eq!(alert.cause, "VM db took 90 % of the additional steal type 1");
        assert_eq!(alert.advice, ["limit VM db, or keep it off the VMs' CPUs"]);
        assert_eq!(alert.link.as_deref(), Some("https://fleet.example/#/finding/0000000000000007"));
        let labels: Vec<_> = alert.labels().into_iter().collect();
        let expected = [
            ("alertname", "VmscopeStealOutside"),
            ("host", "kvm1"),
            ("id", "0000000000000007"),
            ("kind", "steal-outside"),
            ("project", "shop"),
            ("severity", "warning"),
            ("vm", "db"),
        ];
        assert_eq!(labels, expected);
    }

    #[test]
    fn every_kind_has_its_name() {
        let code = detect::Code::default;
        let all = [
            Measure::SamplesMissing,
            Measure::Windows,
            Measure::Demand,
            Measure::Throttled,
            Measure::StealOutside,
            Measure::StealVmm,
            Measure::Useful,
            Measure::Exits(String::new()),
            Measure::HaltPolling,
            Measure::Function(code()),
            Measure::Process(String::new()),
        ];
        assert_eq!(all.map(|measure| kind_of(&measure).name), KINDS);
    }

    #[test]
    fn hostile_names_are_short_and_can_be_seen() {
        let evil = "<b>\u{1b}[31m\u{202e}exe\r\n".repeat(1000);
        let alert = Alert::new(&found(7, &evil), None, &OperatorNotes::default(), 0);
        for text in [alert.vm.as_deref().unwrap(), &alert.cause, &alert.summary, &alert.advice[0]] {
            assert!(!text.chars().any(model::is_unsafe), "{text:?}");
            assert!(text.len() <= MAX_TEXT, "{}", text.len());
        }
        assert!(alert.vm.is_some_and(|vm| vm.len() <= MAX_LABEL && vm.starts_with("<b>\\u{1b}")));
        assert_eq!(short("ä\u{202e}", 2), "ä");
        assert_eq!(short("ä", 1), "");
        assert_eq!(short("\u{202e}\u{202e}", 6), "\\u{202");
    }
}
