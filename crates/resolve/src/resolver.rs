//! The look-ups of a recording's tables.
//!
//! ```text
//!  host sample:  (pid, time) -> image;  kernel mode -> the host kernel's mappings, else the image's
//!  guest sample: (vm, process id, CR3, time) -> image, where the guest's kernel says who runs;
//!                else (vm, kernel stack, time) -> kernel thread, else (vm, CR3, time) -> image;
//!                CPL 0 or upper-half address -> the guest kernel's, else the image's
//!  then:         (image, address) -> module, offset -> symbol
//! ```
//!
//! A guest kernel thread runs on the page tables of the process before it: its samples carry that
//! process' CR3, but no other task has its stack.

use model::{
    Cr3, Guest, GuestStack, GuestTask, HostMode, HostNs, HostVirt, Image, ImageId, ImageKind,
    KernelStack, ModuleId, Owner, Pid, Sample, StackEnd, StackId, SymbolName, Tables, Tid,
    VcpuSample, VcpuState, VmId,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::span::{Lifetimes, Spaces};

/// How far a lifetime may miss a sample that nothing else covers, besides the clock's error: a start
/// or end is noted a little after it happened.
const LIFETIME_SLACK_NS: u64 = 50_000_000;

/// VMs that are looked at for one process id: a recording may say that all have the same.
const MAX_VMS_OF_PID: usize = 16;

/// Turns samples into places. Immutable and cheap to share; consumers keep caches of `code`.
#[derive(Debug)]
pub struct Resolver<'t> {
    tables: &'t Tables,
    host_images: Lifetimes<Pid, ImageId>,
    guest_images: Lifetimes<(VmId, Cr3), ImageId>,
    kernel_threads: Lifetimes<(VmId, KernelStack), ImageId>,
    guest_tasks: Lifetimes<(VmId, Pid, Option<Cr3>), ImageId>,
    /// Whatever their page tables.
    guest_pids: Lifetimes<(VmId, Pid), ImageId>,
    vms: Lifetimes<Pid, VmId>,
    /// The VM whose VMM an image is, for every image.
    vm_of_image: Vec<Option<VmId>>,
    kernels: Lifetimes<Owner, ImageId>,
    spaces: Spaces,
    symbols: FxHashMap<(ModuleId, u64), u32>,
    guest_error_ns: Vec<u64>,
}

/// Where a sample belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleSite {
    pub level: Level,
    /// The VM: of a guest sample, or of a host sample in a VM's own (VMM) process.
    pub vm: Option<VmRef>,
    /// The process, of the guest for a guest sample.
    pub process: ProcessRef,
    /// Where to look for the code.
    pub code: CodeRef,
}

/// What the sampling interrupt interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The host's idle task.
    Idle,
    HostKernel,
    HostUser,
    GuestKernel,
    GuestUser,
    /// A guest whose registers are not known.
    GuestUnknown,
}

impl Level {
    /// Whether a guest was interrupted.
    pub fn is_guest(self) -> bool {
        matches!(self, Self::GuestKernel | Self::GuestUser | Self::GuestUnknown)
    }
}

/// A VM, or the process of one that is not in the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VmRef {
    /// In the tables.
    Known(VmId),
    /// Only its VMM's host process is known.
    OfProcess(Pid),
}

/// A process, or what stands for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProcessRef {
    /// An image of the tables; a kernel image stands for the kernel's own threads.
    Image(ImageId),
    /// The host's idle task.
    Idle,
    /// A VM that can't be looked into, or that the view shows as one line.
    Vm(VmRef),
    /// A host process without an image.
    UnknownHost(Pid),
    /// A guest process without an image.
    UnknownGuest(VmId, UnresolvedReason),
}

/// Where to look for a sample's code: what caches are keyed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CodeRef {
    /// An address in an image's mappings.
    Image(ImageId, u64),
    /// Nowhere: the view shows the whole VM as one line.
    Vm(VmRef),
    /// Nowhere, because.
    Nowhere(UnresolvedReason),
}

/// A piece of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code {
    /// Its module, when the address is mapped.
    pub module: Option<ModuleId>,
    /// Offset of the address in the module.
    pub offset: u64,
    pub name: CodeName,
}

/// A function, or what stands for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CodeName {
    /// The function of this row of `Tables::symbols`: the same row for all addresses of a function.
    Function(u32),
    /// The module was read and has no symbol there.
    Stripped,
    /// The view shows the whole VM as one line.
    Vm(VmRef),
    /// It has no name, because.
    Unknown(UnresolvedReason),
}

/// Why something has no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnresolvedReason {
    /// In the place of the frames that a guest's call stack lacks.
    StackEnds(StackEnd),
    /// The VM gave no map.
    NoGuestMap(VmId),
    /// The guest runs a guest of its own.
    Nested,
    /// A guest was interrupted whose vCPU the collector had not found yet.
    VcpuUnknown,
    /// The guest's page-table base could not be read.
    Cr3Unreadable,
    /// The guest's map has no process with this page-table base at that time.
    Cr3Unknown,
    /// The guest's map has no process with this id at that time.
    TaskUnknown,
    /// No map of the kernel.
    NoKernel,
    /// The host process was not seen, or ended before its maps were read.
    NoProcess,
    /// The process is known, its mappings are not.
    NoMappings,
    /// Nothing is mapped at the address.
    NotMapped,
    /// The module could not be read: row of `Tables::symbols` that says why.
    Unreadable(u32),
    /// The address was not looked up while recording.
    NotLookedUp,
}

impl<'t> Resolver<'t> {
    /// Builds the look-ups. `Tables::symbols` may still be empty.
    #[must_use]
    pub fn new(tables: &'t Tables) -> Self {
        let images = || tables.images.iter().enumerate().map(|(n, i)| (ImageId::from_index(n), i));
        let host = images().filter(|(_, i)| i.owner == Owner::Host && i.kind == ImageKind::Process);
        let guest = images().filter_map(|(id, i)| match (i.owner, i.cr3) {
            (Owner::Vm(vm), Some(cr3)) => Some(((vm, cr3), i.start, i.end, id)),
            _ => None,
        });
        let threads = images().filter_map(|(id, i)| match (i.owner, i.kernel_stack) {
            (Owner::Vm(vm), Some(stack)) => Some(((vm, stack), i.start, i.end, id)),
            _ => None,
        });
        let tasks = || {
            images().filter_map(|(id, i)| match i.owner {
                Owner::Vm(vm) if i.kind == ImageKind::Process => Some((vm, i, id)),
                _ => None,
            })
        };
        let guest_tasks = tasks().map(|(vm, i, id)| ((vm, i.pid, i.cr3), i.start, i.end, id));
        let guest_pids = tasks().map(|(vm, i, id)| ((vm, i.pid), i.start, i.end, id));
        let vms = tables.vms.iter().enumerate();
        let kernels = images().filter(|(_, i)| i.kind == ImageKind::Kernel);
        let error = |guest: &Guest| match guest {
            // Without a clock nothing in the map has times but its own end.
            Guest::Mapped { clock, .. } if u64::MAX / 2 <= clock.error_ns => 0,
            Guest::Mapped { clock, .. } => clock.error_ns,
            Guest::Unmapped { .. } => 0,
        };
        Self {
            tables,
            host_images: Lifetimes::new(host.map(|(id, i)| (i.pid, i.start, i.end, id))),
            guest_images: Lifetimes::new(guest),
            kernel_threads: Lifetimes::new(threads),
            guest_tasks: Lifetimes::new(guest_tasks),
            guest_pids: Lifetimes::new(guest_pids),
            vms: Lifetimes::new(vms.map(|(n, v)| (v.pid, v.started, v.ended, VmId::from_index(n)))),
            vm_of_image: vms_of_images(tables),
            kernels: Lifetimes::new(kernels.map(|(id, i)| (i.owner, i.start, i.end, id))),
            spaces: Spaces::new(tables.images.len(), &tables.mappings),
            symbols: canonical_symbols(tables),
            guest_error_ns: tables.vms.iter().map(|vm| error(&vm.guest)).collect(),
        }
    }

    /// The tables it looks into.
    pub fn tables(&self) -> &'t Tables {
        self.tables
    }

    /// Where a sample belongs. Never fails: what is not known says why.
    pub fn locate(&self, sample: &Sample) -> SampleSite {
        match &sample.vcpu {
            VcpuState::Guest(vcpu) => self.locate_guest(sample, vcpu),
            VcpuState::Unknown => self.locate_unknown_guest(sample),
            VcpuState::None | VcpuState::Vmm(_) => self.locate_host(sample),
        }
    }

    /// The code at a place.
    pub fn code(&self, at: CodeRef) -> Code {
        let nowhere = |name| Code { module: None, offset: 0, name };
        let (image, ip) = match at {
            CodeRef::Image(image, ip) => (image, ip),
            CodeRef::Vm(vm) => return nowhere(CodeName::Vm(vm)),
            CodeRef::Nowhere(why) => return nowhere(CodeName::Unknown(why)),
        };
        let Some((module, offset)) = self.spaces.find(image, ip) else {
            let known = self.spaces.knows(image);
            let why =
                if known { UnresolvedReason::NotMapped } else { UnresolvedReason::NoMappings };
            return nowhere(CodeName::Unknown(why));
        };
        Code { module: Some(module), offset, name: self.name(module, offset) }
    }

    /// The call stack of a sample, innermost first, beginning with the sampled address: a guest's where the guest was
    /// interrupted, else the host's. A guest's stack that is not whole has the reason in the place of what is missing.
    ///
    /// A caller is looked up at its return address - 1: the call may be a function's last
    /// instruction. The innermost user address below a kernel stack is not a return address (it is
    /// where the system call or fault happened) and is taken as it is.
    pub fn call_stack(&self, sample: &Sample, located: &SampleSite) -> Vec<CodeRef> {
        let mut frames = vec![located.code];
        let Some(stack) = sample.stack.and_then(|id| self.tables.stacks.get(id.index())) else {
            return frames;
        };
        if let VcpuState::Guest(_) = sample.vcpu {
            self.add_guest_callers(&mut frames, sample, located, &stack.guest);
            return frames;
        }
        let kernel = sample.host_mode == HostMode::Kernel;
        let user = |ip| user_code(located.process, ip);
        let caller = |ip: &HostVirt| HostVirt(ip.0.wrapping_sub(1));
        if kernel {
            let callers = without_leaf(&stack.kernel, sample.host_ip).iter().map(caller);
            frames.extend(callers.map(|ip| self.kernel_code(Owner::Host, ip.0, sample.time)));
            frames.extend(stack.user.first().map(|ip| user(ip.0)));
            frames.extend(stack.user.iter().skip(1).map(caller).map(|ip| user(ip.0)));
        } else {
            let callers = without_leaf(&stack.user, sample.host_ip).iter().map(caller);
            frames.extend(callers.map(|ip| user(ip.0)));
        }
        frames
    }

    fn add_guest_callers(
        &self,
        frames: &mut Vec<CodeRef>,
        sample: &Sample,
        located: &SampleSite,
        stack: &GuestStack,
    ) {
        let Some(VmRef::Known(vm)) = located.vm else { return };
        let end = |end: Option<StackEnd>| {
            let end = end.filter(|end| !end.is_whole())?;
            Some(CodeRef::Nowhere(UnresolvedReason::StackEnds(end)))
        };
        let kernel = stack.kernel.iter();
        frames.extend(kernel.map(|ip| self.kernel_code(Owner::Vm(vm), ip.0, sample.time)));
        frames.extend(end(stack.kernel_end));
        frames.extend(stack.user.iter().map(|ip| user_code(located.process, ip.0)));
        frames.extend(end(stack.user_end));
    }

    /// What tells two samples' call stacks apart: equal keys, equal `call_stack`.
    pub fn call_stack_key(sample: &Sample, located: &SampleSite) -> CallStackKey {
        CallStackKey {
            leaf: sample.host_ip,
            code: located.code,
            mode: sample.host_mode,
            stack: sample.stack,
            process: located.process,
        }
    }

    /// Why a function has no name; `None` when it has one, or the view does not ask.
    pub fn why_unnamed(&self, code: Code) -> Option<String> {
        match code.name {
            CodeName::Function(_) | CodeName::Vm(_) => None,
            // Its own name says so.
            CodeName::Unknown(UnresolvedReason::Nested) => None,
            CodeName::Stripped => Some("no symbol at the address".to_owned()),
            CodeName::Unknown(why) => Some(self.why(why)),
        }
    }

    /// A reason in words.
    pub fn why(&self, why: UnresolvedReason) -> String {
        let text = match why {
            UnresolvedReason::NoGuestMap(vm) => match &self.tables.vms[vm.index()].guest {
                Guest::Unmapped { reason } => return format!("no guest map: {reason}"),
                Guest::Mapped { .. } => "no guest map",
            },
            UnresolvedReason::Unreadable(row) => match &self.tables.symbols[row as usize].name {
                SymbolName::Unreadable(reason) => return reason.clone(),
                SymbolName::Function(_) | SymbolName::Stripped => "could not be read",
            },
            UnresolvedReason::Nested => "the guest runs a guest of its own",
            UnresolvedReason::VcpuUnknown => "a vCPU that was not found yet",
            UnresolvedReason::Cr3Unreadable => {
                "the guest's page-table base (CR3) cannot be read on this host"
            }
            UnresolvedReason::Cr3Unknown => "page-table base (CR3) not in the guest's map",
            UnresolvedReason::TaskUnknown => "process not in the guest's map",
            UnresolvedReason::NoKernel => "no map of the kernel",
            UnresolvedReason::NoProcess => "process not seen",
            UnresolvedReason::NoMappings => "the process' mappings are not known",
            UnresolvedReason::NotMapped => "no module mapped at the address",
            UnresolvedReason::NotLookedUp => "address not looked up while recording",
            UnresolvedReason::StackEnds(end) => return format!("callers are missing: {end}"),
        };
        text.to_owned()
    }

    /// The look-up of threads.
    pub fn threads(&self) -> Threads {
        Threads::new(self.tables)
    }

    fn locate_host(&self, sample: &Sample) -> SampleSite {
        let (level, process) = match (sample.pid, sample.host_mode) {
            (Pid(0), _) => (Level::Idle, ProcessRef::Idle),
            (pid, HostMode::Kernel) => (Level::HostKernel, self.host_process(pid, sample)),
            (pid, HostMode::User) => (Level::HostUser, self.host_process(pid, sample)),
        };
        let code = match sample.host_mode {
            HostMode::Kernel => self.kernel_code(Owner::Host, sample.host_ip.0, sample.time),
            HostMode::User => user_code(process, sample.host_ip.0),
        };
        let vm = match (&sample.vcpu, process) {
            (VcpuState::Vmm(vcpu), _) => self.vm_of(vcpu),
            (_, ProcessRef::Image(image)) => self.vm_of_image[image.index()],
            _ => None,
        };
        SampleSite { level, vm: vm.map(VmRef::Known), process, code }
    }

    fn locate_guest(&self, sample: &Sample, vcpu: &VcpuSample) -> SampleSite {
        let Some(vm) = self.vm_of(vcpu) else {
            return self.locate_unknown_guest(sample);
        };
        let level = match vcpu.cpl {
            0 => Level::GuestKernel,
            1..=3 => Level::GuestUser,
            _ => Level::GuestUnknown,
        };
        let known = Some(VmRef::Known(vm));
        if matches!(self.tables.vms[vm.index()].guest, Guest::Unmapped { .. }) {
            let code = CodeRef::Nowhere(UnresolvedReason::NoGuestMap(vm));
            return SampleSite {
                level,
                vm: known,
                process: ProcessRef::Vm(VmRef::Known(vm)),
                code,
            };
        }
        let process = self.guest_process(vm, vcpu, sample);
        if vcpu.is_nested() {
            let code = CodeRef::Nowhere(UnresolvedReason::Nested);
            return SampleSite { level, vm: known, process, code };
        }
        let in_kernel = level == Level::GuestKernel || vcpu.ip.0 >> 63 == 1;
        let code = match process {
            _ if in_kernel => self.kernel_code(Owner::Vm(vm), vcpu.ip.0, sample.time),
            ProcessRef::Image(image) => CodeRef::Image(image, vcpu.ip.0),
            ProcessRef::UnknownGuest(_, why) => CodeRef::Nowhere(why),
            _ => CodeRef::Nowhere(UnresolvedReason::NoProcess),
        };
        SampleSite { level, vm: known, process, code }
    }

    /// A guest was interrupted; only the VMM's process is known. It may well be before the VM was
    /// first seen, so the nearest in time is taken, however far.
    fn locate_unknown_guest(&self, sample: &Sample) -> SampleSite {
        let known = self.vms.at(&sample.pid, sample.time, u64::MAX);
        let vm = known.map_or(VmRef::OfProcess(sample.pid), VmRef::Known);
        let unmapped =
            known.filter(|vm| matches!(self.tables.vms[vm.index()].guest, Guest::Unmapped { .. }));
        SampleSite {
            level: Level::GuestUnknown,
            vm: Some(vm),
            process: ProcessRef::Vm(vm),
            code: CodeRef::Nowhere(
                unmapped.map_or(UnresolvedReason::VcpuUnknown, UnresolvedReason::NoGuestMap),
            ),
        }
    }

    fn vm_of(&self, vcpu: &VcpuSample) -> Option<VmId> {
        let vm = self.tables.vcpus.get(vcpu.vcpu.index())?.vm;
        (vm.index() < self.tables.vms.len()).then_some(vm)
    }

    fn host_process(&self, pid: Pid, sample: &Sample) -> ProcessRef {
        let image = self.host_images.at(&pid, sample.time, LIFETIME_SLACK_NS);
        image.map_or(ProcessRef::UnknownHost(pid), ProcessRef::Image)
    }

    fn guest_process(&self, vm: VmId, vcpu: &VcpuSample, sample: &Sample) -> ProcessRef {
        let error_ns = self.guest_error_ns[vm.index()];
        let slack = LIFETIME_SLACK_NS.saturating_add(error_ns);
        // Only their stacks distinguish idle tasks.
        if let Some(GuestTask { pid, .. }) = vcpu.task.filter(|task| task.tid != Tid(0)) {
            return self.guest_task(vm, pid, vcpu.cr3, (sample.time, slack));
        }
        // A stack is soon another task's. A kernel thread runs neither before its start nor after its end.
        let thread = vcpu
            .kernel_stack
            .and_then(|stack| self.kernel_threads.at(&(vm, stack), sample.time, error_ns));
        if let Some(thread) = thread {
            return ProcessRef::Image(thread);
        }
        if vcpu.is_nested() {
            return ProcessRef::UnknownGuest(vm, UnresolvedReason::Nested);
        }
        let Some(cr3) = vcpu.cr3 else {
            return ProcessRef::UnknownGuest(vm, UnresolvedReason::Cr3Unreadable);
        };
        let image = self.guest_images.at(&(vm, cr3), sample.time, slack);
        image.map_or(ProcessRef::UnknownGuest(vm, UnresolvedReason::Cr3Unknown), ProcessRef::Image)
    }

    /// The process or kernel thread of an id. When it began and ended is known only roughly, but not which it was: the one
    /// with these page tables, however far away in time; else, as of a kernel thread, which has borrowed them, the one that was
    /// there.
    fn guest_task(
        &self,
        vm: VmId,
        pid: Pid,
        cr3: Option<Cr3>,
        (time, slack_ns): (HostNs, u64),
    ) -> ProcessRef {
        let with_tables = cr3.and_then(|_| self.guest_tasks.at(&(vm, pid, cr3), time, u64::MAX));
        let image = with_tables.or_else(|| self.guest_pids.at(&(vm, pid), time, slack_ns));
        let unknown = ProcessRef::UnknownGuest(vm, UnresolvedReason::TaskUnknown);
        image.map_or(unknown, ProcessRef::Image)
    }

    /// The kernel of that time: a guest that boots again has another one. One whose bounds the sample just misses will do.
    fn kernel_code(&self, owner: Owner, ip: u64, time: HostNs) -> CodeRef {
        let kernel = self.kernels.at(&owner, time, LIFETIME_SLACK_NS);
        kernel
            .map_or(CodeRef::Nowhere(UnresolvedReason::NoKernel), |image| CodeRef::Image(image, ip))
    }

    fn name(&self, module: ModuleId, offset: u64) -> CodeName {
        let Some(row) = self.symbols.get(&(module, offset)) else {
            return CodeName::Unknown(UnresolvedReason::NotLookedUp);
        };
        match &self.tables.symbols[*row as usize].name {
            SymbolName::Function(_) => CodeName::Function(*row),
            SymbolName::Stripped => CodeName::Stripped,
            SymbolName::Unreadable(_) => CodeName::Unknown(UnresolvedReason::Unreadable(*row)),
        }
    }
}

impl Code {
    /// What is counted together: all of a function's addresses, or one address of a stripped module.
    pub fn counted_as(self) -> Self {
        let keep = self.name == CodeName::Stripped;
        Self { offset: if keep { self.offset } else { 0 }, ..self }
    }
}

/// See `Resolver::call_stack_key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallStackKey {
    leaf: HostVirt,
    code: CodeRef,
    mode: HostMode,
    stack: Option<StackId>,
    process: ProcessRef,
}

/// Threads by what samples know of them.
#[derive(Debug)]
pub struct Threads {
    by_tid: FxHashMap<(ImageId, Tid), u32>,
    by_fs_base: FxHashMap<(ImageId, u64), u32>,
    only: FxHashMap<ImageId, Option<u32>>,
    of_kernel: FxHashSet<ImageId>,
}

impl Threads {
    fn new(tables: &Tables) -> Self {
        let mut threads = Self {
            by_tid: FxHashMap::default(),
            by_fs_base: FxHashMap::default(),
            only: FxHashMap::default(),
            of_kernel: FxHashSet::default(),
        };
        let images = tables.images.iter().enumerate();
        let of_kernel = images.filter(|(_, image)| image.kernel_stack.is_some());
        threads.of_kernel = of_kernel.map(|(row, _)| ImageId::from_index(row)).collect();
        for (row, thread) in (0_u32..).zip(&tables.threads) {
            threads.by_tid.insert((thread.image, thread.tid), row);
            threads.only.entry(thread.image).and_modify(|only| *only = None).or_insert(Some(row));
            if let Some(fs_base) = thread.fs_base {
                threads.by_fs_base.insert((thread.image, fs_base.0), row);
            }
        }
        threads
    }

    /// The thread of a sample. A guest's FS base is its thread's in user code; in the kernel only
    /// when it matches (an interrupt of a kernel thread has borrowed page tables).
    pub fn thread_of_sample(&self, sample: &Sample, located: &SampleSite) -> Option<u32> {
        let ProcessRef::Image(image) = located.process else {
            return None;
        };
        let VcpuState::Guest(vcpu) = &sample.vcpu else {
            return self.by_tid.get(&(image, sample.tid)).copied();
        };
        if let Some(task) = vcpu.task {
            return self.by_tid.get(&(image, task.tid)).copied();
        }
        let matching = self.by_fs_base.get(&(image, vcpu.fs_base.0)).copied();
        let has_image = located.level == Level::GuestUser || self.of_kernel.contains(&image);
        matching.or_else(|| self.only.get(&image).copied().flatten().filter(|_| has_image))
    }
}

/// The VM that a host process image is the VMM of, for every image: same process id at overlapping times.
fn vms_of_images(tables: &Tables) -> Vec<Option<VmId>> {
    let mut by_pid: FxHashMap<Pid, Vec<VmId>> = FxHashMap::default();
    for (row, vm) in tables.vms.iter().enumerate() {
        by_pid.entry(vm.pid).or_default().push(VmId::from_index(row));
    }
    let is_before = |end: Option<HostNs>, start: Option<HostNs>| matches!((end, start), (Some(end), Some(start)) if end < start);
    let vm_of_image = |image: &Image| {
        let is_process = (image.owner, image.kind) == (Owner::Host, ImageKind::Process);
        let vms = by_pid.get(&image.pid).filter(|_| is_process)?;
        let overlaps = |vm: &&VmId| {
            let vm = &tables.vms[vm.index()];
            !is_before(image.end, vm.started) && !is_before(vm.ended, image.start)
        };
        vms.iter().take(MAX_VMS_OF_PID).find(overlaps).copied()
    };
    tables.images.iter().map(vm_of_image).collect()
}

/// The row of the first symbol of the same name in the same module, for every symbol.
fn canonical_symbols(tables: &Tables) -> FxHashMap<(ModuleId, u64), u32> {
    let mut first: FxHashMap<(ModuleId, &SymbolName), u32> = FxHashMap::default();
    let rows = (0_u32..).zip(&tables.symbols);
    rows.map(|(row, s)| ((s.module, s.offset), *first.entry((s.module, &s.name)).or_insert(row)))
        .collect()
}

fn user_code(process: ProcessRef, ip: u64) -> CodeRef {
    match process {
        ProcessRef::Image(image) => CodeRef::Image(image, ip),
        _ => CodeRef::Nowhere(UnresolvedReason::NoProcess),
    }
}

/// The kernel's stack walk begins with the interrupted address itself.
fn without_leaf(stack: &[HostVirt], leaf: HostVirt) -> &[HostVirt] {
    match stack {
        [first, rest @ ..] if *first == leaf => rest,
        _ => stack,
    }
}
