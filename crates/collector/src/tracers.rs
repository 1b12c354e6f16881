//! What is traced beside the samples, when it is asked for: switches of vCPUs' threads, VM exits.

use model::{ExitCount, Header, Note, OffCpuSource, Switch};
use probes::{ExitCounter, ExitLink, ProbeError, Sampler, SwitchLinks, SwitchTracer};

use crate::plan::{Exits, Plan};

/// Events per CPU between two drains: 2 MiB.
const SWITCH_SLOTS: u32 = 1 << 16;

/// The loaded programs.
#[derive(Debug)]
pub(crate) struct Tracers {
    switches: Option<SwitchTracer>,
    exits: Option<ExitCounter>,
}

/// The attached programs; they stop when this is dropped.
#[derive(Debug)]
pub(crate) struct TracerLinks {
    _switches: Option<SwitchLinks>,
    _exits: Option<ExitLink>,
}

impl Tracers {
    /// Loads what the plan asks for. Switches are needed then; that exits can't be counted is noted.
    pub(crate) fn load(
        plan: &Plan,
        sampler: &Sampler,
        header: &mut Header,
    ) -> Result<Self, ProbeError> {
        let switches = (plan.off_cpu_source == OffCpuSource::Switches)
            .then(|| SwitchTracer::load(sampler, &header.cpus, SWITCH_SLOTS, header.vendor))
            .transpose()?;
        let exits = (plan.exits == Exits::Counted)
            .then(|| ExitCounter::load(sampler, header.vendor))
            .and_then(|loaded| or_note(loaded, header));
        Ok(Self { switches, exits })
    }

    /// Attaches what is loaded.
    pub(crate) fn start(&mut self, header: &mut Header) -> Result<TracerLinks, ProbeError> {
        let switches = self.switches.as_ref().map(SwitchTracer::start).transpose()?;
        let exits = self.exits.as_ref().and_then(|exits| or_note(exits.start(), header));
        Ok(TracerLinks { _switches: switches, _exits: exits })
    }

    pub(crate) fn trace_switches(&self) -> bool {
        self.switches.is_some()
    }

    pub(crate) fn drain_switches(&self, cpu: u32, switches: &mut Vec<Switch>) {
        if let Some(tracer) = &self.switches {
            tracer.drain(cpu, switches);
        }
    }

    /// `None`: they are not traced.
    pub(crate) fn switches_dropped(&self, cpu: u32) -> Option<u64> {
        self.switches.as_ref().map(|tracer| tracer.dropped(cpu))
    }

    /// The exits of the first `vcpus` vCPUs so far.
    pub(crate) fn exits(&self, vcpus: usize) -> Vec<ExitCount> {
        let vcpus = u32::try_from(vcpus).unwrap_or(u32::MAX);
        self.exits.as_ref().map(|exits| exits.counts(vcpus)).unwrap_or_default()
    }
}

/// A recording without counts of exits is worth having.
fn or_note<T>(outcome: Result<T, ProbeError>, header: &mut Header) -> Option<T> {
    outcome
        .map_err(|error| {
            let text = format!("VM exits are not counted: {error}");
            header.notes.push(Note { subject: "host".to_owned(), text });
        })
        .ok()
}
