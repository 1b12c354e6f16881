//! A recording as a source.

use std::path::Path;
use std::sync::Arc;

use analysis::Resolver;
use analysis::results::ResultsBuilder;
use analysis::steal::{AttributionLevel, TimelineInput, Window, victims};
use analysis::vcpu_timeline::VcpuTimelinesBuilder;
use detect::Summary;
use model::{HostNs, ResultRow, ResultStack, Results, VmId, WindowKey, error_chain};
use recording::Recording;

use crate::answer::shown;
use crate::facts::sums;
use crate::source::{AskError, Part, Source, Span, instant};

/// Times are exact to a slice. Few of a long recording, as each has all functions again.
const SLICES_NS: [(u64, u64); 4] = [
    (2_000_000_000, 1_000_000),
    (60_000_000_000, 100_000_000),
    (600_000_000_000, 1_000_000_000),
    (u64::MAX, 10_000_000_000),
];

/// A recording, analysed once for all questions.
#[derive(Debug)]
pub struct RecordingSource {
    recording: Recording,
    results: Results,
    slice_us: i64,
}

impl RecordingSource {
    /// Opens and analyses the recording at `folder`.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn open(folder: &Path) -> Result<Self, AskError> {
        let failed = |error: recording::Error| AskError::Source(error_chain(&error));
        let recording = Recording::open(folder).map_err(failed)?;
        let header = &recording.header;
        let length_ns = header.end.since(header.start);
        let slice = SLICES_NS.into_iter().find(|(longest_ns, _)| length_ns <= *longest_ns);
        let slice_ns = slice.map_or(10_000_000_000, |(_, slice_ns)| slice_ns);
        let results = {
            let resolver = Resolver::new(&recording.tables);
            let mut builder = ResultsBuilder::new(&resolver, header);
            recording.replay(&mut [&mut builder]).map_err(failed)?;
            builder.finish(&Arc::new(WindowKey::new(header.hostname.clone(), header)), slice_ns)
        };
        let slice_us = i64::try_from(slice_ns / 1000).unwrap_or(i64::MAX);
        Ok(Self { recording, results, slice_us })
    }

    /// Nanoseconds since 1970 to those of the recording's clock.
    fn host_ns(&self, unix_us: i64) -> HostNs {
        let begin_us = self.whole().from_us;
        let after_ns = u64::try_from(unix_us.saturating_sub(begin_us)).unwrap_or(0);
        let header = &self.recording.header;
        HostNs(header.start.0.saturating_add(after_ns.saturating_mul(1000))).min(header.end)
    }

    fn within<T: Clone>(&self, rows: &[ResultRow<T>], span: Span) -> Vec<ResultRow<T>> {
        let first_us = span.from_us.div_euclid(self.slice_us) * self.slice_us;
        let is_in = |row: &&ResultRow<T>| (first_us..span.to_us).contains(&row.slice_unix_us);
        rows.iter().filter(is_in).cloned().collect()
    }
}

impl Source for RecordingSource {
    fn kind(&self) -> &'static str {
        "recording"
    }

    fn whole(&self) -> Span {
        let header = &self.recording.header;
        let us = |ns: u64| i64::try_from(ns / 1000).unwrap_or(i64::MAX);
        let from_us = us(header.start_unix_ns);
        Span { from_us, to_us: from_us.saturating_add(us(header.end.since(header.start)).max(1)) }
    }

    fn instant(&self, text: &str) -> Result<i64, AskError> {
        instant(text, self.whole().from_us, i64::saturating_add)
    }

    fn time(&self, unix_us: i64) -> String {
        let after_us = unix_us.saturating_sub(self.whole().from_us);
        format!("{:.6}", after_us as f64 / 1e6)
    }

    fn host(&self, host: Option<&str>, _: Option<&str>, _: Span) -> Result<String, AskError> {
        let own = &self.recording.header.hostname;
        match host {
            Some(host) if host != own && host != shown(own) => {
                let text = "this recording is of another host: leave `host` out".to_owned();
                Err(AskError::Arguments(text))
            }
            _ => Ok(own.clone()),
        }
    }

    fn part(&self, host: &str, span: Span) -> Result<Part, AskError> {
        let whole = self.whole();
        // Whole slices, so that figures are of the time that the answer names.
        let slice_us = self.slice_us;
        let from_us = (span.from_us.div_euclid(slice_us) * slice_us).max(whole.from_us);
        let to_us = span.to_us.saturating_add(slice_us - 1).div_euclid(slice_us) * slice_us;
        let to_us = to_us.min(whole.to_us);
        if to_us <= from_us {
            let length_s = whole.seconds();
            let text = format!("nothing was recorded then: the recording has {length_s:.3} s");
            return Err(AskError::Arguments(text));
        }
        let span = Span { from_us, to_us };
        let mut results = Results {
            vcpu_time: self.within(&self.results.vcpu_time, span),
            cpu_time: self.within(&self.results.cpu_time, span),
            ..self.results.clone()
        };
        let mut partial = Vec::new();
        if span != whole {
            let slice_s = self.slice_us as f64 / 1e6;
            partial.push(format!(
                "times are rounded to {slice_s} s; lost samples are those of the whole recording"
            ));
            if !results.exits.is_empty() {
                partial.push("VM exits were counted for the whole recording only".to_owned());
                results.exits.clear();
            }
            let length_ns = u64::try_from(to_us - from_us).unwrap_or(0).saturating_mul(1000);
            results.hosts.iter_mut().for_each(|host| host.row.length_ns = length_ns);
        }
        let summary = Summary::from_results(&results);
        let mut summary =
            summary.ok_or_else(|| AskError::Source("the recording has no host".to_owned()))?;
        summary.take_quotas(&self.recording.tables);
        Ok(Part { host: host.to_owned(), span, results, summary, partial })
    }

    fn paths(&self, vm: Option<&str>, part: &Part) -> Result<Vec<(String, u64)>, AskError> {
        let tables = &self.recording.tables;
        if tables.stacks.is_empty() {
            let text =
                "the recording has no call paths: leave `paths` out, or record with --call-graph";
            return Err(AskError::Arguments(text.to_owned()));
        }
        let Some(vm) = vm else {
            return Ok(sums(part.cpu_rows().filter_map(|row| Some((row.stack.clone()?, row.ns)))));
        };
        let header = &self.recording.header;
        let resolver = Resolver::new(tables);
        let builder = VcpuTimelinesBuilder::new(&resolver, header, header.off_cpu_source);
        let mut builder = builder.with_callers();
        let failed = |error: recording::Error| AskError::Source(error_chain(&error));
        self.recording.replay(&mut [&mut builder]).map_err(failed)?;
        let axis = builder.finish();
        let evidence = TimelineInput { axis: &axis, tables, header };
        let window =
            Window { from: self.host_ns(part.span.from_us), to: self.host_ns(part.span.to_us) };
        let vms = (0..tables.vms.len()).map(VmId::from_index);
        let vms = vms.filter(|id| tables.vms[id.index()].name == vm);
        let rows = vms.flat_map(|vm| victims(&evidence, vm, AttributionLevel::Stack, window).rows);
        Ok(sums(rows.map(|(victim, time)| {
            let callers = victim.callers.iter().rev().map(AsRef::as_ref);
            (ResultStack::join(callers.chain(victim.function.as_deref())), time.own_ns)
        })))
    }
}
