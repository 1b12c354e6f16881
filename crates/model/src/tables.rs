//! The tables that go with the samples. Rows refer to each other by index (`VmId`, `ImageId`, ...).

use std::collections::BTreeMap;

use crate::{
    BootId, Clock, CpuId, Cr3, GuestVirt, HostNs, HostVirt, ImageId, KernelStack, ModuleId, Pid,
    StackEnd, Tid, VcpuId, VmId,
};

/// Everything a recording holds besides its samples.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tables {
    /// Virtual machines seen while recording.
    pub vms: Vec<Vm>,
    pub vcpus: Vec<Vcpu>,
    /// Program images and kernels, host's and guests'.
    pub images: Vec<Image>,
    pub threads: Vec<Thread>,
    /// Executable mappings of those images.
    pub mappings: Vec<Mapping>,
    /// Files and kernels that hold code.
    pub modules: Vec<Module>,
    /// Names of the addresses that samples hit.
    pub symbols: Vec<Symbol>,
    /// Host call stacks, each different one once.
    pub stacks: Vec<Stack>,
    /// What CPU quotas held back whose queues were not watched, in time order for each VM.
    pub throttling: Vec<Throttling>,
    /// The VMs that are under CPU quotas whose queues were watched.
    pub quota_members: Vec<QuotaMember>,
    /// When quotas throttled queues, in time order for each quota and CPU.
    pub throttled_queues: Vec<ThrottledQueue>,
    /// VM exits, where they were counted.
    pub exits: Vec<ExitCount>,
    /// The NUMA node of each CPU, of hosts that have several.
    pub cpu_nodes: Vec<CpuNode>,
    /// Where VMs' memory was, of such hosts: a reading has a row for each node.
    pub memory: Vec<VmMemory>,
}

/// Facts about the recording as a whole (`recording.json`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Version of vmscope that wrote it.
    pub vmscope_version: String,
    pub hostname: String,
    /// The host's kernel release.
    pub kernel: String,
    /// Which boot of the host; absent in recordings of version 0.2 and before.
    pub boot: Option<BootId>,
    /// CPU vendor: says how to read exit reasons.
    pub vendor: Vendor,
    /// What made the sampling interrupts.
    pub trigger: Trigger,
    /// Nominal time between samples of one CPU, ns.
    pub period_ns: u64,
    /// How the edges of a vCPU's gaps were recorded.
    pub off_cpu_source: OffCpuSource,
    /// The CPUs that were sampled.
    pub cpus: Vec<u32>,
    /// First instant covered.
    pub start: HostNs,
    /// Last instant covered.
    pub end: HostNs,
    /// `CLOCK_REALTIME` at `start`, ns since 1970, to place the recording in the world's time.
    pub start_unix_ns: u64,
    /// Whether the writer finished; false in a recording whose writer was killed.
    pub complete: bool,
    /// Everything dropped, truncated or missed, by name (`samples_dropped_cpu0`, ...).
    pub counters: BTreeMap<String, u64>,
    /// What the user should know about this recording, one sentence each.
    pub notes: Vec<Note>,
}

/// Something that was not as it should be, and whom it concerns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// A VM's name, a file, a process, or `host`.
    pub subject: String,
    /// One sentence, lower case, no full stop.
    pub text: String,
}

/// CPU vendor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Vendor {
    /// AMD: exit codes are SVM's.
    Amd,
    /// Intel: exit reasons are VMX's.
    Intel,
    Other,
}

/// What made the sampling interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// The kernel's cpu-clock software event (a timer per CPU).
    CpuClock,
    /// The hardware's cycle counter.
    Cycles,
}

/// How the edges of the gaps between a vCPU's samples are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OffCpuSource {
    /// By the samples themselves: to one period.
    #[default]
    Samples,
    /// By the scheduler's switches of vCPU threads: to the nanosecond.
    Switches,
}

/// How long the CPU quotas that a VM's process is under have held it back so far, summed over CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttling {
    pub vm: VmId,
    /// When it was read. Readings that say the same as the one before are left out.
    pub time: HostNs,
    /// Since the quota exists (`throttled_usec` of its cgroup and those above it), ns.
    pub throttled_ns: u64,
}

/// A VM, or one of its vCPUs, that a control group's CPU quota can hold back. The quota may be one above its own group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QuotaMember {
    /// The quota: a number that means nothing outside the recording.
    pub quota: u32,
    pub vm: VmId,
    /// `None`: all of its vCPUs.
    pub vcpu: Option<VcpuId>,
    /// From then on `ThrottledQueue`s are known.
    pub since: HostNs,
    /// From then on the quota can't hold it back: it was lifted, or the VM left its group or ended.
    pub until: Option<HostNs>,
}

/// The queue of a control group on a CPU was throttled: the quota was used up, and its next period had not begun there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThrottledQueue {
    /// As in `QuotaMember`.
    pub quota: u32,
    pub cpu: CpuId,
    pub from: HostNs,
    /// First instant after it.
    pub to: HostNs,
}

/// How often a vCPU exited for one reason while recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitCount {
    pub vcpu: VcpuId,
    /// AMD exit code or Intel basic exit reason, see `Header::vendor`.
    pub reason: u32,
    pub count: u64,
}

/// A CPU's NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuNode {
    pub cpu: CpuId,
    pub node: u32,
}

/// Memory of a VMM's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmMemory {
    pub vm: VmId,
    pub time: HostNs,
    pub found: NumaReading,
}

/// A reading of a VM's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NumaReading {
    /// How much lies on one node.
    OnNode { node: u32, bytes: u64 },
    /// It could not be read; the text says why.
    Unknown(String),
}

/// A virtual machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vm {
    /// Its name. Only a VM that ended and started again has several rows of one name.
    pub name: String,
    /// The VMM's host process.
    pub pid: Pid,
    /// When it was first seen; `None`: it ran before the recording began.
    pub started: Option<HostNs>,
    /// When it went away; `None`: it outlived the recording.
    pub ended: Option<HostNs>,
    pub guest: Guest,
    pub labels: VmLabels,
}

/// What a VM's manager knows of it. Managers and users choose these texts: they are for showing and choosing, no proof.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VmLabels {
    pub uuid: Option<String>,
    /// `libvirt`, `openstack`, `kubevirt`, `proxmox`, `incus`, `lxd`, or the program of a VMM without one.
    pub manager: Option<String>,
    /// The manager's number of the VM.
    pub id: Option<String>,
    /// What the manager's users call the VM.
    pub instance: Option<String>,
    pub project: Option<String>,
    pub owner: Option<String>,
    pub namespace: Option<String>,
    pub pod: Option<String>,
    /// The systemd unit that it runs in.
    pub unit: Option<String>,
    pub tags: Option<String>,
}

impl VmLabels {
    /// Names of the labels, in their order.
    pub const NAMES: [&str; 10] = [
        "uuid",
        "manager",
        "manager_id",
        "instance",
        "project",
        "owner",
        "namespace",
        "pod",
        "unit",
        "tags",
    ];

    /// Of labels in the order of their names.
    #[must_use]
    pub fn from_values(values: [Option<String>; 10]) -> Self {
        let [uuid, manager, id, instance, project, owner, namespace, pod, unit, tags] = values;
        Self { uuid, manager, id, instance, project, owner, namespace, pod, unit, tags }
    }

    /// The labels, in the order of their names.
    #[must_use]
    pub fn values(&self) -> [Option<&str>; 10] {
        let Self { uuid, manager, id, instance, project, owner, namespace, pod, unit, tags } = self;
        [uuid, manager, id, instance, project, owner, namespace, pod, unit, tags]
            .map(Option::as_deref)
    }
}

/// Where a VM's guest map came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guest {
    /// The guest gave its map.
    Mapped {
        /// `vsock`, `virtio-serial` or `file`.
        via: String,
        /// The guest's clock on the host's.
        clock: Clock,
    },
    /// It did not: the guest's functions have no names.
    Unmapped {
        /// Why, one clause ("no vsock device and no vmscope serial port").
        reason: String,
    },
}

/// One vCPU of one VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vcpu {
    pub vm: VmId,
    /// Its number inside the VM.
    pub number: u32,
    /// The host thread that runs it.
    pub tid: Tid,
    /// When it was first seen, if it was plugged in; `None`: it is as old as its VM.
    pub started: Option<HostNs>,
    /// When it was unplugged; `None`: it was there as long as its VM. Plugged in again it is another row.
    pub ended: Option<HostNs>,
}

impl Tables {
    /// Whether two rows are the same VM: it may have ended and started again.
    #[must_use]
    pub fn is_same_vm(&self, one: VmId, other: VmId) -> bool {
        let name = |vm: VmId| self.vms.get(vm.index()).map(|vm| &vm.name);
        one == other || (name(one).is_some() && name(one) == name(other))
    }

    /// When a vCPU was there, within the recording; `None`: it is in no table.
    #[must_use]
    pub fn vcpu_span(&self, vcpu: VcpuId, header: &Header) -> Option<(HostNs, HostNs)> {
        let row = self.vcpus.get(vcpu.index())?;
        let vm = self.vms.get(row.vm.index());
        let started = row.started.max(vm.and_then(|vm| vm.started));
        let ends = [row.ended, vm.and_then(|vm| vm.ended)];
        let ended = ends.into_iter().flatten().min();
        let from = started.map_or(header.start, |time| time.max(header.start));
        let to = ended.map_or(header.end, |time| time.min(header.end));
        Some((from, to))
    }
}

/// The machine that a row's numbers and addresses belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    Host,
    /// The guest of this VM.
    Vm(VmId),
}

/// One program image: a process from one exec to the next (or to its end), or a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub owner: Owner,
    pub kind: ImageKind,
    /// Process id in the owner's numbering; 0 for a kernel.
    pub pid: Pid,
    /// Process name (`comm`); the kernel's release for a kernel.
    pub name: String,
    /// Guest page-table base (guests only).
    pub cr3: Option<Cr3>,
    /// The kernel stack of a guest's kernel thread, which has no page tables of its own.
    pub kernel_stack: Option<KernelStack>,
    /// Whether it is one of the host kernel's own threads, by the kernel's word. `None`: a guest's, or in a recording of
    /// version 0.2 and before.
    pub kernel_thread: Option<bool>,
    /// Whether it is the recording's COMMAND or descends from it, on the host. `None`: a guest's, or in a recording of
    /// version 0.2 and before.
    pub of_command: Option<bool>,
    /// Valid from; `None`: since before the recording.
    pub start: Option<HostNs>,
    /// Valid until; `None`: to after the recording.
    pub end: Option<HostNs>,
}

/// What an image is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ImageKind {
    /// The owner's kernel; at most one per owner at a time.
    Kernel,
    Process,
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    pub image: ImageId,
    /// Thread id in the owner's numbering.
    pub tid: Tid,
    /// Thread name (`comm`).
    pub name: String,
    /// Guest FS base (guests only).
    pub fs_base: Option<GuestVirt>,
}

/// A range of an image's addresses that holds a module's code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    pub image: ImageId,
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Offset in the module of `start`: file offset for a file, 0 at the text's begin for a kernel.
    pub offset: u64,
    pub module: ModuleId,
}

/// A file, kernel, kernel module or vDSO that holds code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Whose file system or kernel.
    pub owner: Owner,
    /// Absolute path, or a bracketed name: `[kernel]`, `[kvm_amd]`, `[vdso]`, `[anon]`.
    pub path: String,
    /// GNU build id, when it has one.
    pub build_id: Option<BuildId>,
}

/// A GNU build id, at most 20 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildId(Vec<u8>);

impl BuildId {
    /// `None` when empty, all zero, or longer than the 20 bytes a SHA-1 build id has.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let usable = !bytes.is_empty() && bytes.len() <= 20 && bytes.iter().any(|b| *b != 0);
        usable.then(|| Self(bytes.to_vec()))
    }

    /// From lower- or upper-case hexadecimal.
    #[must_use]
    pub fn from_hex(hex: &str) -> Option<Self> {
        // The standard library takes a sign for a digit.
        hex.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(())?;
        let digits: Option<Vec<u8>> = hex
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        (hex.len().is_multiple_of(2)).then_some(())?;
        Self::new(&digits?)
    }

    /// The build id's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Display for BuildId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The name of one address of one module. There is one row for each address that a sample hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    pub module: ModuleId,
    /// Offset in the module, as `Mapping::offset` counts.
    pub offset: u64,
    /// Its function, or why there is none.
    pub name: SymbolName,
}

/// A function's name, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SymbolName {
    /// Demangled function name.
    Function(String),
    /// The module was read and has no symbol there.
    Stripped,
    /// The module could not be read; the text says why.
    Unreadable(String),
}

/// A call stack: of the host, and of the guest that a vCPU's thread ran.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Stack {
    /// Kernel return addresses, innermost first.
    pub kernel: Vec<HostVirt>,
    /// User return addresses, innermost first.
    pub user: Vec<HostVirt>,
    /// Of a vCPU's sample: that of its guest.
    pub guest: GuestStack,
}

/// A guest's call stack, innermost first: addresses of the instructions that called, without the one that was sampled.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct GuestStack {
    pub kernel: Vec<GuestVirt>,
    /// Why the kernel's part ends; `None`: it was in user mode, or its stack was not taken.
    pub kernel_end: Option<StackEnd>,
    /// Where it entered its kernel comes first, if it was there.
    pub user: Vec<GuestVirt>,
    /// Why the user's part ends; `None`: it is a kernel thread's, or its stack was not taken.
    pub user_end: Option<StackEnd>,
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn build_ids_are_pairs_of_digits() {
        let check = |hex: &str, expected: Option<&[u8]>| {
            assert_eq!(BuildId::from_hex(hex).as_ref().map(BuildId::bytes), expected, "{hex}");
        };
        check("0aFf", Some(&[0x0a, 0xff]));
        for odd in ["", "00", "abc", "+f", "+fff", "f+", "-1", " f", "0x", "fg", "\u{e9}f"] {
            check(odd, None);
        }
    }
}
