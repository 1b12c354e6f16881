//! Loading the sampler, attaching it, and telling it which threads are vCPUs.

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{Link, Object};
use model::{GuestCode, Interpreter, Tid, Trigger, Vendor};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

use crate::abi::{CHUNK_BYTES, RINGS, RawStack, SAMPLE_BYTES, STACK_BYTES, chunks_of};
use crate::found::{self, FOUND_BYTES, FoundVcpu};
use crate::guest_views::{CODE_BYTES, CODE_SLOTS, GuestView, GuestViews, decode_code};
use crate::perf::Event;
use crate::ring::{RingCounters, Rings};
use crate::vcpus::VcpuTable;
use crate::{MemorySlot, ProbeError, iter, object};
use bpf::Mapped;

/// The sampling programs, of which one is loaded: with and without typed access to KVM's variables.
const TYPED: &str = "sample";
const PROBING: &str = "sample_probing";

/// All our programs, by their names in the kernel (15 characters at most).
const PROGRAMS: [&str; 9] = [
    TYPED,
    PROBING,
    "find_vcpus",
    "on_switch",
    "on_wakeup",
    "count_exit",
    "on_kick",
    "find_slots",
    "find_clocks",
];

/// `CHUNK_SLOTS` and `STACK_DEPTHS`.
const CHUNK_SLOTS: usize = 2048;
const STACK_DEPTHS: usize = 4096;
/// Chunks of a user stack beyond the first at most: 8 KiB.
const MAX_MORE_CHUNKS: u32 = 8;

/// `INTERPRETERS`, and the bytes of `struct interpreter`.
const INTERPRETERS: usize = 1024;
const INTERPRETER_BYTES: usize = 48;
/// The base of page tables in CR3. PTI sets bit 12 in user mode.
const ROOT: u64 = 0x000f_ffff_ffff_e000;

/// `STACK_DEPTH_OF`: the element of a thread.
fn stack_depth_of(cr3: u64, tid: u32) -> usize {
    (hash(cr3, tid) >> 20) as usize
}

/// `INTERPRETER_OF`: the element of a process.
fn interpreter_of(cr3: u64, vmm: u32) -> usize {
    (hash(cr3, vmm) >> 22) as usize
}

fn hash(cr3: u64, id: u32) -> u32 {
    let tables = u32::try_from((cr3 & ROOT) >> 13 & 0xffff_ffff).unwrap_or_default();
    tables.wrapping_mul(0x9e37_79b1) ^ id.wrapping_mul(0x85eb_ca6b)
}

/// What to sample, and how.
#[derive(Debug, Clone)]
pub struct Options {
    pub cpus: Vec<u32>,
    pub trigger: Trigger,
    /// ns between samples of a CPU for cpu-clock, cycles for the cycle counter.
    pub period: u64,
    /// Slots per CPU; rounded up to a power of two.
    pub slots: u32,
    /// Call stacks: the host's by frame pointers, and what guests' are unwound from.
    pub call_graph: bool,
    pub vendor: Vendor,
}

/// The loaded sampling program and its rings.
#[derive(Debug)]
pub struct Sampler {
    rings: Rings,
    stacks: Option<Stacks>,
    codes: Rings,
    vcpus: VcpuTable,
    views: GuestViews,
    object: Object,
    /// The sampling program that is loaded.
    program: &'static str,
    options: Options,
}

/// Call stacks of samples.
#[derive(Debug)]
struct Stacks {
    /// `struct stack`, a slot for each sample's.
    slots: Mapped,
    /// Pieces of guests' stacks.
    chunks: Rings,
    /// A byte for each element: how much of a thread's stack is copied.
    depths: Mapped,
    /// `struct interpreter`.
    interpreters: Mapped,
}

/// A run of consecutive records of one CPU.
#[derive(Debug)]
pub struct RecordBatch<'a> {
    /// The records (`struct sample` of bpf/abi/sample.h).
    pub records: &'a [u8],
    stacks: Option<StackBytes<'a>>,
}

/// The bytes of call stacks.
#[derive(Debug, Clone, Copy)]
pub struct StackBytes<'a> {
    /// `struct stack` for each record.
    pub stacks: &'a [u8],
    /// `struct stack_chunk`, in the records' order.
    pub chunks: &'a [u8],
}

impl<'a> StackBytes<'a> {
    /// Those of the first `n` records, and of the others.
    fn split_at(self, n: usize) -> (Self, Self) {
        let (stacks, later) = self.stacks.split_at(n * STACK_BYTES);
        let n_chunks: usize = stacks.chunks_exact(STACK_BYTES).map(chunks_of).sum();
        let (chunks, later_chunks) = self.chunks.split_at(n_chunks * CHUNK_BYTES);
        (Self { stacks, chunks }, Self { stacks: later, chunks: later_chunks })
    }
}

impl<'a> RecordBatch<'a> {
    /// Records and, when call graphs are on, the bytes of their stacks.
    #[must_use]
    pub fn new(records: &'a [u8], stacks: Option<StackBytes<'a>>) -> Self {
        Self { records, stacks }
    }

    /// The stacks' bytes, when call graphs are on.
    #[must_use]
    pub fn stacks(&self) -> Option<StackBytes<'a>> {
        self.stacks
    }

    /// The first `n` records, and the others.
    #[must_use]
    pub fn split_at(&self, n: usize) -> (Self, Self) {
        let (first, later) = self.records.split_at(n * SAMPLE_BYTES);
        let stacks = self.stacks.map(|stacks| stacks.split_at(n));
        (
            Self { records: first, stacks: stacks.map(|(first, _)| first) },
            Self { records: later, stacks: stacks.map(|(_, later)| later) },
        )
    }

    /// The call stacks of the records, in their order, when call graphs are on.
    pub fn each_stack(&self) -> impl Iterator<Item = RawStack<'a>> {
        let StackBytes { stacks, chunks: mut left } =
            self.stacks.unwrap_or(StackBytes { stacks: &[], chunks: &[] });
        stacks.chunks_exact(STACK_BYTES).map(move |stack| {
            let (chunks, rest) = left.split_at((chunks_of(stack) * CHUNK_BYTES).min(left.len()));
            left = rest;
            RawStack { stack, chunks }
        })
    }
}

/// Attached perf events; sampling stops when this is dropped.
#[derive(Debug)]
pub struct SamplingEvents {
    _links: Vec<Link>,
    events: Vec<OwnedFd>,
}

impl SamplingEvents {
    /// Samples with another period from the next interrupts on: ns for cpu-clock, cycles for the cycle counter.
    ///
    /// # Errors
    /// When the kernel refuses; some CPUs may have it then.
    pub fn set_period(&self, period: u64) -> Result<(), ProbeError> {
        let set = |event: &OwnedFd| set_period(event, period);
        self.events.iter().try_for_each(set).map_err(ProbeError::Period)
    }
}

impl Sampler {
    /// Loads the program; nothing is sampled yet.
    ///
    /// # Errors
    /// When the kernel refuses; the error says what to do.
    pub fn load(options: Options) -> Result<Self, ProbeError> {
        match Self::load_with(&options, TYPED) {
            // This kernel does not say where KVM keeps what the program reads without probes.
            Err(ProbeError::Load(_)) => Self::load_with(&options, PROBING),
            loaded => loaded,
        }
    }

    fn load_with(options: &Options, program: &'static str) -> Result<Self, ProbeError> {
        let slots = options.slots.next_power_of_two();
        let n_rings = object::rings_for(&options.cpus)?;
        let n_slots = n_rings * slots;
        let n_codes = n_rings as usize * CODE_SLOTS;
        let n_stacks = if options.call_graph { n_slots } else { 1 };
        let mut open = object::open(bpf::SAMPLER)?;
        let codes = u32::try_from(n_codes).unwrap_or(u32::MAX);
        let n_chunks = if options.call_graph { n_rings as usize * CHUNK_SLOTS } else { 1 };
        let chunks = u32::try_from(n_chunks).unwrap_or(u32::MAX);
        let sizes = [
            ("samples", n_slots),
            ("stacks", n_stacks),
            ("stack_chunks", chunks),
            ("guest_codes", codes),
        ];
        object::configure(&mut open, &sizes, &config(options, slots))?;
        object::leave_out(&mut open, if program == TYPED { PROBING } else { TYPED });
        let object = object::load(open)?;
        let stack_bytes = n_stacks as usize * STACK_BYTES;
        let stacks = || -> Result<Stacks, ProbeError> {
            let chunks = Rings {
                heads: object::memory(&object, ".bss.chunks", object::RING_HEADS_BYTES)?,
                records: object::memory(&object, "stack_chunks", n_chunks * CHUNK_BYTES)?,
                record_bytes: CHUNK_BYTES,
                slots: CHUNK_SLOTS,
            };
            let slots = object::memory(&object, "stacks", stack_bytes)?;
            let depths = object::memory(&object, ".bss.depths", STACK_DEPTHS)?;
            let interpreters =
                object::memory(&object, ".bss.interp", INTERPRETERS * INTERPRETER_BYTES)?;
            Ok(Stacks { slots, chunks, depths, interpreters })
        };
        let stacks = options.call_graph.then(stacks).transpose()?;
        let rings = Rings {
            heads: object::memory(&object, RINGS, object::RING_HEADS_BYTES)?,
            records: object::memory(&object, "samples", n_slots as usize * SAMPLE_BYTES)?,
            record_bytes: SAMPLE_BYTES,
            slots: slots as usize,
        };
        let codes = Rings {
            heads: object::memory(&object, ".bss.code_rings", object::RING_HEADS_BYTES)?,
            records: object::memory(&object, "guest_codes", n_codes * CODE_BYTES)?,
            record_bytes: CODE_BYTES,
            slots: CODE_SLOTS,
        };
        let vcpus = VcpuTable::from_object(&object)?;
        let views = GuestViews::from_object(&object)?;
        Ok(Self { rings, stacks, codes, vcpus, views, object, program, options: options.clone() })
    }

    /// Whether this kernel's BTF has the types that finding vCPUs needs: KVM's, in vmlinux or a module.
    #[must_use]
    pub fn knows_vcpus(&self) -> bool {
        let is_module = Path::new("/sys/module/kvm/initstate").exists();
        let is_reported = || Path::new("/sys/kernel/btf/kvm").exists() && object::may_see_modules();
        !is_module || is_reported()
    }

    /// Opens and enables one event per CPU.
    ///
    /// # Errors
    /// When an event can't be opened or attached; then none stays behind.
    pub fn start(&self) -> Result<SamplingEvents, ProbeError> {
        let event = Event {
            trigger: self.options.trigger,
            period: self.options.period,
            prepare_ip: self.options.vendor == Vendor::Intel,
        };
        let program = self.program(self.program)?;
        let mut links = Vec::with_capacity(self.options.cpus.len());
        let mut events = Vec::with_capacity(self.options.cpus.len());
        for &cpu in &self.options.cpus {
            let fd = event.open(cpu)?;
            events.push(fd.try_clone().map_err(ProbeError::Period)?);
            // libbpf's link closes the descriptor when it goes, and enables the event now.
            let link = program
                .attach_perf_event(fd.as_raw_fd())
                .map_err(|source| ProbeError::Attach { cpu, source })?;
            let _owned_by_link = fd.into_raw_fd();
            links.push(link);
        }
        Ok(SamplingEvents { _links: links, events })
    }

    /// All vCPUs of the machine, by walking all open files once.
    ///
    /// # Errors
    /// When the iterator can't be read.
    pub fn find_vcpus(&self) -> Result<Vec<FoundVcpu>, ProbeError> {
        let bytes = iter::read(&self.object, "find_vcpus", None)?;
        Ok(bytes.chunks_exact(FOUND_BYTES).map(found::decode).collect())
    }

    /// From now on samples of `tid` are samples of this vCPU, named `row` in the records.
    ///
    /// # Errors
    /// When the table is full.
    pub fn watch(&self, tid: Tid, vcpu: &FoundVcpu, row: u32) -> Result<(), ProbeError> {
        self.vcpus.insert(tid, vcpu, row)
    }

    /// Samples of the vCPU of thread `tid` say from now on which task of its guest runs, as the guest's kernel has it. False:
    /// `tid` is not watched, the view is not in the VM's memory, or there is no room for one more.
    pub fn set_guest_view(&self, tid: Tid, view: &GuestView, slots: &[MemorySlot]) -> bool {
        self.views.set(&self.vcpus, tid, view, slots)
    }

    /// The guest of this vCPU has booted again, or is not looked into any more.
    pub fn forget_guest_view(&self, tid: Tid) {
        self.views.forget(&self.vcpus, tid);
    }

    /// `tid` is gone, or was never watched.
    pub fn forget(&self, tid: Tid) {
        self.views.forget(&self.vcpus, tid);
        self.vcpus.remove(tid);
    }

    /// Hands out the records that `cpu` has published since the last call.
    ///
    /// # Errors
    /// Those of `take`; what it has not seen then is handed out again.
    pub fn drain<E>(
        &self,
        cpu: u32,
        mut take: impl FnMut(RecordBatch<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(Stacks { slots, chunks: rings, .. }) = &self.stacks else {
            return self
                .rings
                .drain(cpu as usize, |_, records| take(RecordBatch::new(records, None)));
        };
        let mut n_taken = 0;
        let mut chunks = Vec::new();
        self.rings.drain(cpu as usize, |slot, records| {
            let n = records.len() / SAMPLE_BYTES;
            // SAFETY: of the same slots as the records; a stack is written before the ring's head moves.
            let stacks = unsafe { slots.published(slot * STACK_BYTES, n * STACK_BYTES) };
            let n_chunks = stacks.chunks_exact(STACK_BYTES).map(chunks_of).sum();
            chunks.clear();
            rings.copy(cpu as usize, n_taken, n_chunks, &mut chunks);
            n_taken += n_chunks;
            take(RecordBatch::new(records, Some(StackBytes { stacks, chunks: &chunks })))
        })?;
        rings.release(cpu as usize, n_taken);
        Ok(())
    }

    /// Hands out the code of guests that samples on `cpu` hit first since the last call, with the number of the vCPU. What
    /// found no room comes again with a later sample.
    pub fn drain_guest_code(&self, cpu: u32, mut take: impl FnMut(u32, GuestCode)) {
        let Ok(()) = self.codes.drain(cpu as usize, |_, records| {
            for record in records.chunks_exact(CODE_BYTES) {
                let (vcpu, code) = decode_code(record);
                take(vcpu, code);
            }
            Ok::<(), std::convert::Infallible>(())
        });
    }

    /// From now on more is copied of the stack of this thread of a guest: the last one was cut short.
    pub fn copy_more(&self, cr3: u64, tid: u32) {
        let Some(stacks) = &self.stacks else { return };
        let element = stack_depth_of(cr3, tid);
        let word = stacks.depths.half_word(element & !3);
        let shift = 8 * (element & 3);
        let now = word.load(Ordering::Relaxed);
        let depth = now >> shift & 0xff;
        let more = (2 * depth).clamp(1, MAX_MORE_CHUNKS);
        word.store(now & !(0xff << shift) | more << shift, Ordering::Relaxed);
    }

    /// From now on samples of the process with these page tables, of the guest whose VMM is `vmm`, have the frames of its
    /// interpreter.
    pub fn copy_interpreter(&self, vmm: u32, cr3: u64, interpreter: &Interpreter) {
        let Some(stacks) = &self.stacks else { return };
        let memory = &stacks.interpreters;
        let at = interpreter_of(cr3, vmm) * INTERPRETER_BYTES;
        let Interpreter { runtime, threads, next, thread, frame, inner, code, caller, mark } =
            *interpreter;
        // It is not looked at while it changes.
        memory.word(at).store(0, Ordering::Release);
        memory.word(at + 8).store(runtime, Ordering::Relaxed);
        let offsets = [vmm, threads, next, thread, frame, inner.unwrap_or(u32::MAX)];
        for (n, offset) in offsets.into_iter().enumerate() {
            memory.half_word(at + 16 + 4 * n).store(offset, Ordering::Relaxed);
        }
        let shift = 8 * (mark & 7);
        let bytes = u32::from_le_bytes([code, caller, shift, 0]);
        memory.half_word(at + 40).store(bytes, Ordering::Relaxed);
        memory.word(at).store(cr3 & ROOT, Ordering::Release);
    }

    /// What `cpu`'s ring has seen so far.
    #[must_use]
    pub fn counters(&self, cpu: u32) -> RingCounters {
        self.rings.counters(cpu as usize)
    }

    fn program(&self, name: &'static str) -> Result<libbpf_rs::ProgramMut<'_>, ProbeError> {
        self.object.progs_mut().find(|program| program.name() == name).ok_or_else(|| {
            ProbeError::Find {
                program: name,
                reason: std::io::Error::other("the object does not contain it"),
            }
        })
    }

    pub(crate) fn vcpus(&self) -> &VcpuTable {
        &self.vcpus
    }
}

/// `config` of the program: slot mask, call graph, vendor, trigger.
fn config(options: &Options, slots: u32) -> [u32; 4] {
    let trigger = match options.trigger {
        Trigger::CpuClock => 0,
        // Counters' interrupts are NMIs.
        Trigger::Cycles => 1,
    };
    [slots - 1, u32::from(options.call_graph), object::vendor_word(options.vendor), trigger]
}

/// Names of our programs that are loaded in this kernel: none must be left after a run.
#[must_use]
pub fn loaded_programs() -> Vec<String> {
    ProgInfoIter::default()
        .filter_map(|info| info.name.to_str().map(str::to_owned))
        .filter(|name| PROGRAMS.contains(&name.as_str()))
        .collect()
}

/// Gives an event another period, in the unit of `Event::period`. cpu-clock takes it at its next interrupt.
fn set_period(event: &OwnedFd, period: u64) -> std::io::Result<()> {
    /// `PERF_EVENT_IOC_PERIOD`.
    const PERIOD: Opcode = opcode::write::<u64>(b'$', 4);
    // SAFETY: the descriptor is a perf event's, from which the kernel reads one u64 for this request.
    let period = unsafe { Setter::<PERIOD, u64>::new(period) };
    // SAFETY: as above.
    Ok(unsafe { ioctl(event, period) }?)
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::SwitchTracer;

    #[test]
    fn the_programs_load_and_sample() {
        let options = Options {
            cpus: vec![0],
            trigger: Trigger::CpuClock,
            period: 1_000_000,
            slots: 1024,
            call_graph: true,
            vendor: Vendor::Amd,
        };
        let sampler = match Sampler::load(options) {
            Ok(sampler) => sampler,
            Err(error) => return skip::skip_if_refused(error),
        };
        SwitchTracer::load(&sampler, &[0], 16, Vendor::Amd).unwrap();
        let events = sampler.start().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
        drop(events);
        let mut bytes = 0;
        let Ok(()) = sampler.drain(0, |drained| {
            bytes += drained.records.len();
            Ok::<(), std::convert::Infallible>(())
        });
        let counters = sampler.counters(0);
        assert!(0 < counters.written, "{counters:?}");
        assert_eq!(bytes as u64, counters.written * SAMPLE_BYTES as u64);
        assert_eq!(counters.unknown_vcpus, 0);
    }
}
