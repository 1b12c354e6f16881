//! Loading the sampler, attaching it, and telling it which threads are vCPUs.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::path::Path;

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{Iter, Link, MapCore, MapFlags, Object, ObjectBuilder, OpenObject};
use model::{Pid, Tid, Trigger, Vendor};

use crate::ProbeError;
use crate::abi::{FOUND_BYTES, RING_BYTES, SAMPLE_BYTES, STACK_BYTES, field};
use crate::mapped::Mapped;
use crate::perf::Event;
use crate::ring::{Drained, RingCounters, Rings};

static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/sampler.bpf.o")));

/// ELF parsers want their input aligned.
#[repr(align(8))]
struct Aligned<T: ?Sized>(T);

/// What to sample, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The CPUs to sample.
    pub cpus: Vec<u32>,
    /// What makes the interrupts.
    pub trigger: Trigger,
    /// ns between samples of a CPU for cpu-clock, cycles for the cycle counter.
    pub period: u64,
    /// Slots per CPU; rounded up to a power of two.
    pub slots: u32,
    /// Host call stacks by frame pointers.
    pub call_graph: bool,
    /// CPU vendor.
    pub vendor: Vendor,
}

/// A vCPU the finder met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundVcpu {
    /// The VMM's process.
    pub pid: Pid,
    /// The thread that runs it; `None`: it has not run yet.
    pub tid: Option<Tid>,
    /// Its number in its VM.
    pub number: u32,
    /// Its registers are encrypted (SEV-ES, SEV-SNP, TDX).
    pub protected: bool,
    /// Kernel address of the VM: tells VMs of one process apart.
    pub kvm: u64,
    /// Kernel address of the vCPU.
    pub vcpu: u64,
}

/// The loaded sampling program and its rings.
#[derive(Debug)]
pub struct Sampler {
    object: Object,
    rings: Rings,
    options: Options,
}

/// Attached perf events; sampling stops when this is dropped.
#[derive(Debug)]
pub struct SamplingEvents {
    _links: Vec<Link>,
}

impl Sampler {
    /// Loads the program; nothing is sampled yet.
    ///
    /// # Errors
    /// When the kernel refuses; the error says what to do.
    pub fn load(options: Options) -> Result<Self, ProbeError> {
        if !Path::new("/sys/kernel/btf/vmlinux").exists() {
            return Err(ProbeError::NoBtf);
        }
        libbpf_rs::set_print(None);
        let slots = options.slots.next_power_of_two();
        let n_rings = options.cpus.iter().max().map_or(1, |highest| highest + 1);
        let mut open = ObjectBuilder::default().open_memory(&OBJECT.0).map_err(ProbeError::Load)?;
        configure(&mut open, n_rings, slots, options.call_graph, options.vendor)?;
        let object = open.load().map_err(load_error)?;
        let n_slots = n_rings as usize * slots as usize;
        let stacks = if options.call_graph {
            Some(map_memory(&object, "stacks", n_slots * STACK_BYTES)?)
        } else {
            None
        };
        let rings = Rings {
            heads: map_memory(&object, "rings", n_rings as usize * RING_BYTES)?,
            samples: map_memory(&object, "samples", n_slots * SAMPLE_BYTES)?,
            stacks,
            slots: slots as usize,
        };
        Ok(Self { object, rings, options })
    }

    /// Whether this kernel tells the types by which vCPUs are found: KVM's, in vmlinux or a module.
    #[must_use]
    pub fn knows_vcpus(&self) -> bool {
        Path::new("/sys/kernel/btf/kvm").exists()
            || !Path::new("/sys/module/kvm/initstate").exists()
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
        let program = self.program("sample")?;
        let mut links = Vec::with_capacity(self.options.cpus.len());
        for &cpu in &self.options.cpus {
            let fd = event.open(cpu)?;
            // libbpf's link closes the descriptor when it goes, and enables the event now.
            let link = program
                .attach_perf_event(fd.as_raw_fd())
                .map_err(|source| ProbeError::Attach { cpu, source })?;
            let _owned_by_link = fd.into_raw_fd();
            links.push(link);
        }
        Ok(SamplingEvents { _links: links })
    }

    /// All vCPUs of the machine, by walking all open files once.
    ///
    /// # Errors
    /// When the iterator can't be read.
    pub fn find_vcpus(&self) -> Result<Vec<FoundVcpu>, ProbeError> {
        let link = self
            .program("find_vcpus")?
            .attach_iter_with_opts(libbpf_rs::IterOpts::None)
            .map_err(|error| ProbeError::Find(error.to_string()))?;
        let mut iter = Iter::new(&link).map_err(|error| ProbeError::Find(error.to_string()))?;
        let mut bytes = Vec::new();
        read_all(&mut iter, &mut bytes).map_err(|error| ProbeError::Find(error.to_string()))?;
        Ok(bytes.chunks_exact(FOUND_BYTES).map(found_vcpu).collect())
    }

    /// From now on samples of `tid` are samples of this vCPU, named `row` in the records.
    ///
    /// # Errors
    /// When the table is full.
    pub fn watch(&self, tid: Tid, vcpu: &FoundVcpu, row: u32) -> Result<(), ProbeError> {
        let mut value = Vec::with_capacity(16);
        value.extend(vcpu.vcpu.to_ne_bytes());
        value.extend(row.to_ne_bytes());
        value.extend(u32::from(vcpu.protected).to_ne_bytes());
        self.map("vcpus")?
            .update(&tid.0.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(|error| map_error("vcpus", &error))
    }

    /// `tid` is gone.
    ///
    /// # Errors
    /// Never for a thread that was not watched.
    pub fn forget(&self, tid: Tid) -> Result<(), ProbeError> {
        match self.map("vcpus")?.delete(&tid.0.to_ne_bytes()) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(map_error("vcpus", &error))
            }
            _ => Ok(()),
        }
    }

    /// Hands out the records that `cpu` has published since the last call.
    ///
    /// # Errors
    /// Those of `take`; what it has not seen then is handed out again.
    pub fn drain<E>(
        &self,
        cpu: u32,
        take: impl FnMut(Drained<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.rings.drain(cpu as usize, take)
    }

    /// What `cpu`'s ring has seen so far.
    #[must_use]
    pub fn counters(&self, cpu: u32) -> RingCounters {
        self.rings.counters(cpu as usize)
    }

    fn program(&self, name: &'static str) -> Result<libbpf_rs::ProgramMut<'_>, ProbeError> {
        self.object
            .progs_mut()
            .find(|program| program.name() == name)
            .ok_or_else(|| ProbeError::Find(format!("program {name} is missing")))
    }

    fn map(&self, name: &'static str) -> Result<libbpf_rs::Map<'_>, ProbeError> {
        find_map(&self.object, name)
    }
}

fn configure(
    open: &mut OpenObject,
    n_rings: u32,
    slots: u32,
    call_graph: bool,
    vendor: Vendor,
) -> Result<(), ProbeError> {
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let entries = match name.as_str() {
            "rings" => n_rings,
            "samples" => n_rings * slots,
            "stacks" if call_graph => n_rings * slots,
            _ => {
                if name.ends_with(".rodata") {
                    set_config(&mut map, slots - 1, call_graph, vendor);
                }
                continue;
            }
        };
        map.set_max_entries(entries).map_err(|error| map_error("rings", &error))?;
    }
    Ok(())
}

/// `config` is the first variable of the read-only data: slot mask, call graph, vendor.
fn set_config(
    map: &mut libbpf_rs::OpenMapMut<'_>,
    slot_mask: u32,
    call_graph: bool,
    vendor: Vendor,
) {
    let vendor: u32 = match vendor {
        Vendor::Amd => 1,
        Vendor::Intel => 2,
        Vendor::Other => 0,
    };
    if let Some(data) = map.initial_value_mut() {
        data[0..4].copy_from_slice(&slot_mask.to_ne_bytes());
        data[4..8].copy_from_slice(&u32::from(call_graph).to_ne_bytes());
        data[8..12].copy_from_slice(&vendor.to_ne_bytes());
    }
}

fn map_memory(object: &Object, name: &'static str, len: usize) -> Result<Mapped, ProbeError> {
    let map = find_map(object, name)?;
    Mapped::new(map.as_fd(), len).map_err(|source| ProbeError::Map { map: name, source })
}

fn find_map<'a>(object: &'a Object, name: &'static str) -> Result<libbpf_rs::Map<'a>, ProbeError> {
    object
        .maps()
        .find(|map| map.name() == name)
        .ok_or(ProbeError::Map { map: name, source: std::io::ErrorKind::NotFound.into() })
}

fn map_error(map: &'static str, error: &libbpf_rs::Error) -> ProbeError {
    ProbeError::Map { map, source: std::io::Error::other(error.to_string()) }
}

fn load_error(error: libbpf_rs::Error) -> ProbeError {
    match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => ProbeError::Privilege,
        _ => ProbeError::Load(error),
    }
}

/// The kernel gives up a read after a million objects without output, and goes on with the next.
fn read_all(iter: &mut Iter, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    loop {
        match iter.read_to_end(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            outcome => return outcome.map(|_| ()),
        }
    }
}

fn found_vcpu(bytes: &[u8]) -> FoundVcpu {
    let word = |at| u32::from_ne_bytes(field(bytes, at));
    FoundVcpu {
        vcpu: u64::from_ne_bytes(field(bytes, 0)),
        kvm: u64::from_ne_bytes(field(bytes, 8)),
        pid: Pid(word(16)),
        tid: (word(20) != 0).then(|| Tid(word(20))),
        number: word(24),
        protected: word(28) != 0,
    }
}

/// Names of our programs that are loaded in this kernel: none must be left after a run.
#[must_use]
pub fn loaded_programs() -> Vec<String> {
    ProgInfoIter::default()
        .filter_map(|info| info.name.to_str().map(str::to_owned))
        .filter(|name| name == "sample" || name == "find_vcpus")
        .collect()
}
