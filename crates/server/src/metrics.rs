//! What the server counts, in Prometheus' words.

use std::fmt;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Why something was counted.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct Reason {
    reason: &'static str,
}

/// What became of a message.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct Message {
    to: &'static str,
    outcome: &'static str,
}

/// Everything that is counted.
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) windows_stored: Counter,
    pub(crate) windows_known: Counter,
    pub(crate) bytes_stored: Counter,
    windows_refused: Family<Reason, Counter>,
    pub(crate) refused_not_kept: Counter,
    pub(crate) windows_analyzed: Counter,
    pub(crate) analyses_failed: Counter,
    pub(crate) analyses_left: Gauge,
    pub(crate) analysis_seconds: Histogram,
    pub(crate) analysis_age_seconds: Histogram,
    store_errors: Family<Reason, Counter>,
    denied: Family<Reason, Counter>,
    pub(crate) objects_expired: Counter,
    pub(crate) expired_unanalysed: Counter,
    pub(crate) clock_doubted: Gauge,
    pub(crate) packs: Counter,
    pub(crate) results_damaged: Counter,
    pub(crate) results_lost: Counter,
    pub(crate) findings_open: Gauge,
    /// Windows with results that detection could not read.
    pub(crate) unwatched: Counter,
    messages: Family<Message, Counter>,
    pub(crate) messages_refused: Gauge,
    pub(crate) receiving: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("vmscope_server");
        let metrics = Self {
            windows_stored: Counter::default(),
            windows_known: Counter::default(),
            bytes_stored: Counter::default(),
            windows_refused: Family::default(),
            refused_not_kept: Counter::default(),
            windows_analyzed: Counter::default(),
            analyses_failed: Counter::default(),
            analyses_left: Gauge::default(),
            analysis_seconds: Histogram::new(exponential_buckets(0.01, 2.0, 14)),
            analysis_age_seconds: Histogram::new(exponential_buckets(1.0, 4.0, 9)),
            store_errors: Family::default(),
            denied: Family::default(),
            objects_expired: Counter::default(),
            expired_unanalysed: Counter::default(),
            clock_doubted: Gauge::default(),
            packs: Counter::default(),
            results_damaged: Counter::default(),
            results_lost: Counter::default(),
            findings_open: Gauge::default(),
            unwatched: Counter::default(),
            messages: Family::default(),
            messages_refused: Gauge::default(),
            receiving: Gauge::default(),
            registry: Registry::default(),
        };
        let m = &metrics;
        registry.register("windows_stored", "Windows stored", m.windows_stored.clone());
        registry.register("windows_known", "Windows that were sent again", m.windows_known.clone());
        registry.register("stored_bytes", "Bytes of windows stored", m.bytes_stored.clone());
        registry.register(
            "windows_refused",
            "Windows refused, by reason",
            m.windows_refused.clone(),
        );
        let help = "Refused windows for which there was no room";
        registry.register("refused_not_kept", help, m.refused_not_kept.clone());
        registry.register("windows_analyzed", "Windows analysed", m.windows_analyzed.clone());
        let help = "Windows that could not be analysed";
        registry.register("analyses_failed", help, m.analyses_failed.clone());
        registry.register("analyses_left", "Windows to analyse", m.analyses_left.clone());
        let help = "Time to analyse a window";
        registry.register("analysis_seconds", help, m.analysis_seconds.clone());
        let help = "Time from a window's end until its results were stored";
        registry.register("analysis_age_seconds", help, m.analysis_age_seconds.clone());
        registry.register(
            "store_errors",
            "Failed operations of the store, by purpose",
            m.store_errors.clone(),
        );
        registry.register("denied", "Requests denied, by reason", m.denied.clone());
        let help = "Objects removed because they expired";
        registry.register("objects_expired", help, m.objects_expired.clone());
        let help = "Windows removed because they expired although they were never analysed";
        registry.register("windows_expired_unanalysed", help, m.expired_unanalysed.clone());
        let help = "1: the clock may be wrong, and nothing expires";
        registry.register("clock_doubted", help, m.clock_doubted.clone());
        registry.register("packs", "Packs of results made", m.packs.clone());
        let help = "Objects with results that were found damaged or missing";
        registry.register("results_damaged", help, m.results_damaged.clone());
        let help = "Those of them whose windows are stored no longer";
        registry.register("results_lost", help, m.results_lost.clone());
        registry.register("findings_open", "Findings that are open", m.findings_open.clone());
        let help = "Windows whose results detection could not read";
        registry.register("windows_unwatched", help, m.unwatched.clone());
        let help = "Messages to Alertmanagers, webhooks and OpenTelemetry collectors, by what became of them";
        registry.register("messages", help, m.messages.clone());
        let help = "Webhooks' messages that were refused and wait for an operator";
        registry.register("messages_kept", help, m.messages_refused.clone());
        registry.register("receiving", "Windows being received", m.receiving.clone());
        Self { registry, ..metrics }
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.windows_refused.get_or_create(&Reason { reason }).inc();
    }

    pub(crate) fn store_error(&self, reason: &'static str) {
        self.store_errors.get_or_create(&Reason { reason }).inc();
    }

    pub(crate) fn denied(&self, reason: &'static str) {
        self.denied.get_or_create(&Reason { reason }).inc();
    }

    /// There will be messages: rates of counters begin at 0.
    pub(crate) fn sends_to(&self, to: &'static str) {
        for outcome in ["sent", "failed", "refused", "dropped"] {
            drop(self.messages.get_or_create(&Message { to, outcome }));
        }
    }

    /// `outcome`: `sent`, `failed` (it is tried again), `refused` (it is not), `dropped` (a profile is given up).
    pub(crate) fn message(&self, to: &'static str, outcome: &'static str) {
        self.messages.get_or_create(&Message { to, outcome }).inc();
    }

    /// In Prometheus' text format.
    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(plain(&text))
    }
}

/// OpenMetrics' text in the older format, which all tools read: what is said of a counter has its whole name.
pub(crate) fn plain(text: &str) -> String {
    let is_counter = |name: &str| {
        text.lines().any(|line| {
            line.strip_prefix("# TYPE ").and_then(|l| l.strip_suffix(" counter")) == Some(name)
        })
    };
    let mut plain = String::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(kind), Some(name), Some(rest)) if is_counter(name) => {
                plain.push_str(&format!("# {kind} {name}_total {rest}\n"));
            }
            _ => {
                plain.push_str(line);
                plain.push('\n');
            }
        }
    }
    plain
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn counters_have_their_whole_names() {
        let metrics = Metrics::new();
        metrics.packs.inc();
        metrics.denied("token");
        let text = metrics.text().unwrap();
        for line in [
            "# HELP vmscope_server_packs_total Packs of results made.",
            "# TYPE vmscope_server_packs_total counter",
            "vmscope_server_packs_total 1",
            "vmscope_server_denied_total{reason=\"token\"} 1",
            "# TYPE vmscope_server_receiving gauge",
            "# TYPE vmscope_server_analysis_seconds histogram",
        ] {
            assert!(text.lines().any(|said| said == line), "{line}: {text}");
        }
        assert!(!text.contains("# EOF"));
    }
}
