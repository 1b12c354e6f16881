//! Where a window's records go: to a recording's spools, or into memory.

use std::collections::BTreeSet;

use api::guest::UnwoundStack;
use model::{CpuId, HostVirt, Pid, Sample, Stack, StackId, Switch, SwitchEvent};
use probes::{RecordBatch, STACK_FIELD};
use recording::{RECORD_SIZE, Spool, StackSpool, SwitchSpool, Writer};

use crate::guest_stacks::{self, Origin, WaitingStack};
use crate::known_stacks::KnownStacks;
use crate::stacks::StackTable;

/// Unwinds guests' stacks, in the same order; `None`: no answer came in time.
pub(crate) type Unwind<'a> = dyn FnMut(Vec<WaitingStack>) -> Vec<Option<UnwoundStack>> + 'a;

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
    fn polled(&mut self, _unwind: &mut Unwind<'_>) -> Result<(), recording::Error> {
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
    held: Held,
    pub(crate) hit: HitProcesses,
    /// Those that the window before hit, until its images are taken.
    pub(crate) hit_before: BTreeSet<Pid>,
}

/// Records of one look at the rings, until guests' stacks are unwound.
#[derive(Debug, Default)]
struct Held {
    /// By CPU.
    records: Vec<Vec<u8>>,
    /// The call stack of each record that has one.
    stacks: Vec<HeldStack>,
    /// Guests' stacks.
    waiting: Vec<WaitingStack>,
    known: KnownStacks,
    /// By CPU: the last stack of the host alone, kernel and user. Most idle for long.
    last: Vec<Option<([Vec<u64>; 2], StackId)>>,
}

/// The call stack of a record: so far that of the host.
#[derive(Debug)]
struct HeldStack {
    cpu_idx: usize,
    /// Where the record begins.
    at: usize,
    stack: Stack,
    /// Its guest's: where it begins, and its place among those that wait.
    guest: Option<(Origin, usize)>,
}

impl Held {
    /// Holds records with their call stacks.
    fn add(&mut self, cpu_idx: usize, drained: &RecordBatch<'_>, table: &mut StackTable) {
        let records = &mut self.records[cpu_idx];
        let each = drained.records.as_chunks::<RECORD_SIZE>().0.iter().zip(drained.each_stack());
        for (record, raw) in each {
            let at = records.len();
            records.extend_from_slice(record);
            if raw.truncated() {
                table.count_truncated();
            }
            // The CPU does not matter here.
            let sample = recording::decode(record, CpuId(0));
            let origin = guest_stacks::origin(&sample, &raw.guest());
            let host = raw.kernel().chain(raw.user());
            let known = origin
                .as_ref()
                .and_then(|origin| self.known.find(origin, host, raw.guest().chunks()));
            let is_last = |last: &&([Vec<u64>; 2], StackId)| {
                let ([kernel, user], _) = last;
                origin.is_none()
                    && raw.kernel().eq(kernel.iter().copied())
                    && raw.user().eq(user.iter().copied())
            };
            let last = self.last[cpu_idx].as_ref().filter(is_last).map(|(_, id)| *id);
            if let Some(id) = known.or(last) {
                records[at..][STACK_FIELD].copy_from_slice(&id.0.to_le_bytes());
                continue;
            }
            let stack = Stack {
                kernel: raw.kernel().map(HostVirt).collect(),
                user: raw.user().map(HostVirt).collect(),
                ..Stack::default()
            };
            let guest = origin.map(|origin| (origin, self.waiting.len()));
            self.waiting.extend(origin.map(|origin| WaitingStack::new(origin, &raw.guest())));
            self.stacks.push(HeldStack { cpu_idx, at, stack, guest });
        }
    }

    /// Gives each record its stack, which the table holds.
    fn finish(&mut self, unwind: &mut Unwind<'_>, table: &mut StackTable) {
        let waiting = std::mem::take(&mut self.waiting);
        let mut unwound = if waiting.is_empty() { Vec::new() } else { unwind(waiting) };
        for HeldStack { cpu_idx, at, mut stack, guest } in std::mem::take(&mut self.stacks) {
            let id = match guest {
                None => {
                    let [kernel, user] = [&stack.kernel, &stack.user]
                        .map(|part| part.iter().map(|address| address.0).collect());
                    let id = table.intern(stack);
                    self.last[cpu_idx] = id.map(|id| ([kernel, user], id));
                    id
                }
                Some((origin, place)) => {
                    let answer = unwound.get_mut(place).and_then(Option::take);
                    stack.guest = guest_stacks::guest_stack(origin.is_kernel, answer.as_ref());
                    let host = stack.kernel.iter().chain(&stack.user).map(|address| address.0);
                    let host = host.collect();
                    let id = table.intern_of(origin.vcpu, stack);
                    if let Some((id, bases)) = id.zip(answer.and_then(guest_stacks::bases)) {
                        self.known.add(&origin, host, bases, id);
                    }
                    id
                }
            };
            if let Some(id) = id {
                self.records[cpu_idx][at..][STACK_FIELD].copy_from_slice(&id.0.to_le_bytes());
            }
        }
    }
}

impl SpoolSink {
    pub(crate) fn create(writer: &Writer, cpus: &[u32]) -> Result<Self, recording::Error> {
        let samples = cpus.iter().map(|cpu| writer.spool(CpuId(*cpu))).collect::<Result<_, _>>()?;
        Ok(Self {
            samples,
            stacks: writer.stack_spool()?,
            switches: writer.switch_spool()?,
            stack_table: StackTable::default(),
            held: Held {
                records: vec![Vec::new(); cpus.len()],
                last: vec![None; cpus.len()],
                ..Held::default()
            },
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
        if drained.stacks().is_none() {
            return self.samples[cpu_idx].append(drained.records);
        }
        self.held.add(cpu_idx, drained, &mut self.stack_table);
        Ok(())
    }

    fn switches(&mut self, switches: &[Switch]) -> Result<(), recording::Error> {
        switches.iter().filter_map(neighbour).for_each(|pid| self.hit.add(pid));
        self.switches.append(switches)
    }

    fn is_hit(&self, process: Pid) -> bool {
        self.hit.pids.contains(&process) || self.hit_before.contains(&process)
    }

    fn polled(&mut self, unwind: &mut Unwind<'_>) -> Result<(), recording::Error> {
        self.held.finish(unwind, &mut self.stack_table);
        for (spool, records) in self.samples.iter_mut().zip(&mut self.held.records) {
            if !records.is_empty() {
                spool.append(records)?;
                records.clear();
            }
        }
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

    fn polled(&mut self, unwind: &mut Unwind<'_>) -> Result<(), recording::Error> {
        self.store(|sink| sink.polled(unwind))
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
