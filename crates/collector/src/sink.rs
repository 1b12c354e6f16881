//! Where a window's records go: to a recording's spools, or into memory.

use std::collections::BTreeSet;

use model::{CpuId, Pid, Sample, Stack, Switch, SwitchEvent};
use probes::{RecordBatch, STACK_FIELD};
use recording::{RECORD_SIZE, Spool, StackSpool, SwitchSpool, Writer};

use crate::stacks::StackTable;

/// Takes what comes in during a window.
pub(crate) trait Sink {
    /// Records of the session's `cpu_idx`-th CPU, in time order.
    ///
    /// # Errors
    /// When they can't be stored.
    fn samples(
        &mut self,
        cpu_idx: usize,
        drained: &RecordBatch<'_>,
    ) -> Result<(), recording::Error>;

    /// Events of vCPUs' threads, in no order.
    ///
    /// # Errors
    /// When they can't be stored.
    fn switches(&mut self, switches: &[Switch]) -> Result<(), recording::Error>;

    /// Whether anything that came in refers to this host process.
    fn is_hit(&self, _process: Pid) -> bool {
        true
    }

    /// All rings were looked at.
    ///
    /// # Errors
    /// When something can't be stored.
    fn polled(&mut self) -> Result<(), recording::Error> {
        Ok(())
    }
}

/// The spools of a recording, and what is learned while records go there.
#[derive(Debug)]
pub(crate) struct SpoolSink {
    samples: Vec<Spool>,
    stacks: StackSpool,
    switches: SwitchSpool,
    pub(crate) stack_table: StackTable,
    pub(crate) hit: HitProcesses,
    /// Those that the window before hit, until its images are taken.
    pub(crate) hit_before: BTreeSet<Pid>,
}

impl SpoolSink {
    pub(crate) fn create(writer: &Writer, cpus: &[u32]) -> Result<Self, recording::Error> {
        let samples = cpus.iter().map(|cpu| writer.spool(CpuId(*cpu))).collect::<Result<_, _>>()?;
        Ok(Self {
            samples,
            stacks: writer.stack_spool()?,
            switches: writer.switch_spool()?,
            stack_table: StackTable::default(),
            hit: HitProcesses::default(),
            hit_before: BTreeSet::new(),
        })
    }
}

impl Sink for SpoolSink {
    fn samples(
        &mut self,
        cpu_idx: usize,
        drained: &RecordBatch<'_>,
    ) -> Result<(), recording::Error> {
        let (each, _) = drained.records.as_chunks::<RECORD_SIZE>();
        each.iter().for_each(|record| self.hit.add(recording::pid_of(record)));
        let spool = &mut self.samples[cpu_idx];
        if drained.stacks().is_none() {
            return spool.append(drained.records);
        }
        let mut records = drained.records.to_vec();
        for (i, record) in records.chunks_exact_mut(RECORD_SIZE).enumerate() {
            let id = drained.stack(i).and_then(|stack| self.stack_table.intern(&stack));
            if let Some(id) = id {
                record[STACK_FIELD].copy_from_slice(&id.0.to_le_bytes());
            }
        }
        spool.append(&records)
    }

    fn switches(&mut self, switches: &[Switch]) -> Result<(), recording::Error> {
        switches.iter().filter_map(neighbour).for_each(|pid| self.hit.add(pid));
        self.switches.append(switches)
    }

    fn is_hit(&self, process: Pid) -> bool {
        self.hit.pids.contains(&process) || self.hit_before.contains(&process)
    }

    fn polled(&mut self) -> Result<(), recording::Error> {
        // A writer killed just here leaves samples whose stack has no row; the reader counts them.
        let fresh: Vec<Stack> = self.stack_table.take_fresh();
        if fresh.is_empty() { Ok(()) } else { self.stacks.append(&fresh) }
    }
}

/// The host processes that samples hit, and those that took a vCPU's CPU or left it to one.
#[derive(Debug, Default)]
pub(crate) struct HitProcesses {
    pids: BTreeSet<Pid>,
    last: Option<Pid>,
}

impl HitProcesses {
    /// Most records are of the same process as the one before.
    fn add(&mut self, pid: Pid) {
        if self.last != Some(pid) {
            self.pids.insert(pid);
            self.last = Some(pid);
        }
    }

    pub(crate) fn pids(&self) -> &BTreeSet<Pid> {
        &self.pids
    }
}

/// The process that had the CPU before the vCPU or has it after it.
fn neighbour(switch: &Switch) -> Option<Pid> {
    match switch.event {
        SwitchEvent::Out { pid, .. } | SwitchEvent::In { pid, .. } => Some(pid),
        SwitchEvent::Wake { .. } | SwitchEvent::Seen { .. } => None,
    }
}

/// Stores nothing: of a window that is lost.
#[derive(Debug)]
pub(crate) struct NoSink;

impl Sink for NoSink {
    fn samples(&mut self, _cpu: usize, _drained: &RecordBatch<'_>) -> Result<(), recording::Error> {
        Ok(())
    }

    fn switches(&mut self, _switches: &[Switch]) -> Result<(), recording::Error> {
        Ok(())
    }

    fn is_hit(&self, _process: Pid) -> bool {
        false
    }
}

/// Stores as long as that is possible, and never fails itself.
pub(crate) struct UntilError<'a> {
    pub(crate) sink: &'a mut dyn Sink,
    pub(crate) error: Option<recording::Error>,
}

impl UntilError<'_> {
    fn store(
        &mut self,
        store: impl FnOnce(&mut dyn Sink) -> Result<(), recording::Error>,
    ) -> Result<(), recording::Error> {
        if self.error.is_none() {
            self.error = store(self.sink).err();
        }
        Ok(())
    }
}

impl Sink for UntilError<'_> {
    fn samples(
        &mut self,
        cpu_idx: usize,
        drained: &RecordBatch<'_>,
    ) -> Result<(), recording::Error> {
        self.store(|sink| sink.samples(cpu_idx, drained))
    }

    fn switches(&mut self, switches: &[Switch]) -> Result<(), recording::Error> {
        self.store(|sink| sink.switches(switches))
    }

    fn is_hit(&self, process: Pid) -> bool {
        self.sink.is_hit(process)
    }

    fn polled(&mut self) -> Result<(), recording::Error> {
        self.store(|sink| sink.polled())
    }
}

/// Samples and switches in memory.
#[derive(Debug, Default)]
pub(crate) struct MemorySink {
    /// By CPU, as they came.
    pub(crate) samples: Vec<Sample>,
    pub(crate) switches: Vec<Switch>,
    cpus: Vec<u32>,
}

impl MemorySink {
    /// For a session on these CPUs.
    pub(crate) fn new(cpus: &[u32]) -> Self {
        Self { cpus: cpus.to_vec(), ..Self::default() }
    }
}

impl Sink for MemorySink {
    fn samples(
        &mut self,
        cpu_idx: usize,
        drained: &RecordBatch<'_>,
    ) -> Result<(), recording::Error> {
        let cpu = CpuId(self.cpus[cpu_idx]);
        let (records, _) = drained.records.as_chunks();
        self.samples.extend(records.iter().map(|record| recording::decode(record, cpu)));
        Ok(())
    }

    fn switches(&mut self, switches: &[Switch]) -> Result<(), recording::Error> {
        self.switches.extend_from_slice(switches);
        Ok(())
    }
}
