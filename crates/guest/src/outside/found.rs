//! A kernel that was found in a guest's memory, and what is read by it.

use api::guest::{
    CpuTask, CurrentTasks, GuestKernel, GuestMapping, KernelModule, KernelSymbol, MAX_OTHERS,
    MAX_SYMBOLS,
};
use linux::cpus;
use linux::files::{self, File, Place};
use linux::kernel::Kernel;
use linux::mappings::{self, Mapping};
use linux::memory::{KernelMemory as _, PhysicalMemory};
use linux::modules::{self, ModuleLayout, OrcPlace};
use linux::page_cache::{CachedFile, PageCache};
use linux::paging::{AddressSpace, PagingLevels};
use linux::tasks::{self, Process, TaskKey, Walk};
use linux::types::{MissingField, Types};
use linux::vmcoreinfo::KERNEL_MAP;
use model::{GuestCode, GuestPhys, GuestVirt, TaskOffsets};
use unwind::{OrcFormat, OrcTable};

use super::memory::VmMemory;

/// A kernel's types have some 5 MB.
const MAX_TYPE_BYTES: u64 = 32 << 20;

/// Why a guest's memory says nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotFound {
    #[error(transparent)]
    Kernel(#[from] linux::kernel::NotFound),
    #[error("its kernel has no BTF, which says where its processes are")]
    NoTypes,
    #[error("its kernel's types lack {0}")]
    Field(MissingField),
    #[error("its kernel's symbols lack {0}")]
    Symbol(&'static str),
    #[error("it has ended or booted again")]
    Rebooted,
    #[error("a guest without vmscope-guest can't be traced")]
    Trace,
}

impl From<MissingField> for NotFound {
    fn from(missing: MissingField) -> Self {
        Self::Field(missing)
    }
}

/// A kernel, and where its structs have what.
#[derive(Debug)]
pub(super) struct Found {
    kernel: Kernel,
    /// Different at each boot.
    pub(super) boot_id: String,
    /// Where the kernel maps physical address 0.
    page_offset: u64,
    init_task: GuestVirt,
    tasks: tasks::Layout,
    mappings: mappings::Layout,
    files: files::Layout,
    page_cache: PageCache,
    module_layout: Option<ModuleLayout>,
    modules: Vec<modules::KernelModule>,
    /// How it says how its stacks are unwound.
    orc_format: Option<OrcFormat>,
    /// Offset of `hardirq_stack_ptr` in `struct pcpu_hot`.
    irq_stack_in_hot: Option<u64>,
    /// In `mm_struct`: pages of code, and mappings.
    exec_pages: u64,
    map_count: u64,
    /// What the host reads at a sample.
    offsets: TaskOffsets,
}

/// A kernel's memory during one look.
pub(super) struct View<'f> {
    found: &'f Found,
    memory: &'f VmMemory,
    pub(super) space: AddressSpace<'f>,
}

impl Found {
    /// Searches a guest's memory for its kernel.
    pub(super) fn search(memory: &dyn PhysicalMemory) -> Result<Self, NotFound> {
        let kernel = Kernel::find(memory, &[])?;
        let space = kernel.address_space(memory);
        let bytes = read_types(&space, &kernel).ok_or(NotFound::NoTypes)?;
        let types = Types::parse(&bytes).ok_or(NotFound::NoTypes)?;
        let symbol = |name| kernel.symbols.address(name).ok_or(NotFound::Symbol(name));
        let init_task = symbol("init_task")?;
        let canary = types.field("task_struct", "stack_canary");
        let canary = canary.and_then(|at| space.read_u64(GuestVirt(init_task.0.wrapping_add(at))));
        let page_offset = kernel.page_offset.ok_or(NotFound::Symbol("page_offset_base"))?;
        let vmemmap = space.read_u64(symbol("vmemmap_base")?).ok_or(NotFound::NoTypes)?;
        let (tasks, mappings) =
            (tasks::Layout::from_types(&types)?, mappings::Layout::from_types(&types)?);
        let files = files::Layout::from_types(&types)?;
        let mut found = Self {
            // Both are random.
            boot_id: format!("{page_offset:x}-{:x}", canary.unwrap_or(0)),
            init_task,
            offsets: task_offsets(&tasks, &mappings, &files, kernel.layout.levels),
            tasks,
            mappings,
            files,
            page_cache: PageCache::from_types(&types, vmemmap, page_offset)?,
            page_offset,
            module_layout: module_layout(&types).ok(),
            modules: Vec::new(),
            orc_format: orc_format(&types),
            irq_stack_in_hot: types.field("pcpu_hot", "hardirq_stack_ptr"),
            exec_pages: types.require("mm_struct", "exec_vm")?,
            map_count: types.require("mm_struct", "map_count")?,
            kernel,
        };
        found.update_modules(memory);
        Ok(found)
    }

    pub(super) fn release(&self) -> &str {
        &self.kernel.release
    }

    /// Whether a sample says what is mapped where it hit.
    pub(super) fn has_tree_of_mappings(&self) -> bool {
        self.offsets.tree != 0
    }

    pub(super) fn view<'f>(&'f self, memory: &'f VmMemory) -> View<'f> {
        View { found: self, memory, space: self.kernel.address_space(memory) }
    }

    /// Reads which modules the kernel has loaded; whether others than before.
    pub(super) fn update_modules(&mut self, memory: &dyn PhysicalMemory) -> bool {
        let (Some(layout), Some(list)) =
            (&self.module_layout, self.kernel.symbols.address("modules"))
        else {
            return false;
        };
        let loaded = modules::read_modules(&self.kernel.address_space(memory), list, layout);
        let has_changed = loaded != self.modules;
        self.modules = loaded;
        has_changed
    }

    /// Its code, for the host.
    pub(super) fn kernel_map(&self) -> GuestKernel {
        let of_modules = self.modules.iter().flat_map(|module| module.symbols.iter());
        let symbols = self.kernel.symbols.iter().chain(of_modules);
        let is_text = |kind: u8| matches!(kind.to_ascii_lowercase(), b't' | b'w' | b'i');
        let code = symbols
            .filter(|symbol| is_text(symbol.kind))
            .map(|symbol| KernelSymbol { address: symbol.address.0, name: symbol.name.to_owned() });
        let mut symbols: Vec<KernelSymbol> = code.take(MAX_SYMBOLS).collect();
        symbols.sort_by_key(|symbol| symbol.address);
        let module = |module: &modules::KernelModule| KernelModule {
            name: module.name.clone(),
            start: module.text.start,
            size: module.text.end.saturating_sub(module.text.start),
        };
        GuestKernel {
            text_start: self.kernel.text.start,
            text_end: self.kernel.text.end,
            cr3: self.kernel.layout.physical(self.kernel.layout.init_top_pgt).0,
            symbols,
            modules: self.modules.iter().take(MAX_OTHERS).map(module).collect(),
        }
    }
}

impl View<'_> {
    /// Whether the guest still runs this kernel.
    pub(super) fn is_same_boot(&self) -> bool {
        self.found.kernel.is_same_boot(self.memory)
    }

    /// How many tasks were made since the boot.
    pub(super) fn forks(&self) -> Option<u64> {
        self.space.read_u64(self.found.kernel.symbols.address("total_forks")?)
    }

    pub(super) fn walk(&self) -> Walk {
        let Found { tasks, init_task, page_offset, .. } = self.found;
        tasks::walk(&self.space, tasks, *init_task, *page_offset)
    }

    /// Tasks that were made last, until one that `is_known`.
    pub(super) fn walk_new(&self, is_known: &dyn Fn(TaskKey) -> bool) -> Walk {
        let Found { tasks, init_task, page_offset, .. } = self.found;
        tasks::walk_new(&self.space, tasks, *init_task, *page_offset, is_known)
    }

    /// What changes when a process maps or unmaps code.
    pub(super) fn mappings_mark(&self, process: &Process) -> Option<u64> {
        let field = |offset: u64| GuestVirt(process.mm.0.wrapping_add(offset));
        let pages = self.space.read_u64(field(self.found.exec_pages))?;
        let count = self.space.read_u32(field(self.found.map_count))?;
        Some(pages.rotate_left(24) ^ u64::from(count))
    }

    /// The executable mappings of a process, and whether these are all. `number` is that of a file, or of what else is mapped.
    pub(super) fn mappings(
        &self,
        process: &Process,
        mut number: impl FnMut(Mapped<'_>) -> Option<u32>,
    ) -> (Vec<GuestMapping>, bool) {
        let found = mappings::executable(&self.space, &self.found.mappings, process.mm);
        let mapping = |mapping: &Mapping| {
            let module = match mapping.file {
                Some(file) => {
                    let file = files::read_file(&self.space, &self.found.files, file).ok()?;
                    number(Mapped::File(&file))
                }
                None => {
                    let by = self.found.kernel.symbols.address("special_mapping_name");
                    let files = &self.found.files;
                    let name =
                        files::name_without_file(&self.space, files, process.mm, mapping, by);
                    number(Mapped::Memory(&name, process, mapping))
                }
            }?;
            let Mapping { start, end, offset, .. } = *mapping;
            Some(GuestMapping { start, end, offset, module })
        };
        let mapped: Vec<GuestMapping> = found.executable.iter().filter_map(mapping).collect();
        let is_whole = found.problem.is_none()
            && found.n_dropped == 0
            && mapped.len() == found.executable.len();
        (mapped, is_whole)
    }

    /// The file that a sample hit, which its process may have closed meanwhile.
    pub(super) fn file_of(&self, code: &GuestCode) -> Option<File> {
        let GuestCode { inode, pages, dentry, mount, .. } = *code;
        let place = Place { inode, pages, dentry, mount };
        let files = &self.found.files;
        let open = || files::read_file(&self.space, files, GuestVirt(code.file)).ok();
        // That of an overlay is another one than the file itself, and only the open file knows.
        let open = open().filter(|file| file.pages.0 == pages);
        open.or_else(|| files::read_closed_file(&self.space, files, &place).ok())
    }

    /// A file as far as the guest has it in memory.
    pub(super) fn cached(&self, pages: GuestVirt) -> Option<CachedFile<'_>> {
        CachedFile::open(&self.space, &self.found.page_cache, pages)
    }

    /// Its kernel's code, for unwinding; `None`: it has no tables, or they are not in memory.
    pub(super) fn kernel_code(&self, number: u32) -> Option<unwind::Kernel> {
        let Kernel { symbols, text, .. } = &self.found.kernel;
        let [addresses, addresses_end, entries] =
            ["__start_orc_unwind_ip", "__stop_orc_unwind_ip", "__start_orc_unwind"]
                .map(|name| symbols.address(name));
        let addresses = addresses?;
        let image = OrcPlace {
            addresses,
            entries: entries?,
            count: addresses_end?.0.checked_sub(addresses.0)? / 4,
        };
        let table =
            |orc: OrcPlace| OrcTable::read(&self.space, orc.addresses, orc.entries, orc.count);
        let mut tables = vec![(text.clone(), table(image)?)];
        let modules = self.found.modules.iter();
        tables.extend(modules.filter_map(|it| Some((it.text.clone(), table(it.orc?)?))));
        tables.sort_by_key(|(text, _)| text.start);
        Some(unwind::Kernel { number, format: self.found.orc_format?, tables })
    }

    /// Fills `buffer` from an address of a process on.
    pub(super) fn read_process(&self, cr3: u64, address: u64, buffer: &mut [u8]) -> Option<()> {
        self.space.with_root(GuestPhys(cr3)).read(GuestVirt(address), buffer)
    }

    /// Where CPUs say which task runs.
    pub(super) fn current_tasks(&self) -> Result<CurrentTasks, NotFound> {
        let Found { kernel, offsets, .. } = self.found;
        let cpu = |cpu: cpus::KernelCpu| CpuTask {
            apic_id: cpu.apic_id,
            address: cpu.current_task.0,
            irq_stack: cpu.irq_stack.map(|at| at.0),
        };
        let in_hot = self.found.irq_stack_in_hot;
        let cpus = cpus::read_cpus(&self.space, &kernel.symbols, in_hot).into_iter();
        Ok(CurrentTasks {
            direct_map: self.found.page_offset,
            image: KERNEL_MAP.wrapping_sub(kernel.layout.phys_base),
            offsets: *offsets,
            cpus: cpus.take(MAX_OTHERS).map(cpu).collect(),
        })
    }
}

/// What a mapping shows.
pub(super) enum Mapped<'m> {
    File(&'m File),
    /// No file: its name, and where it is.
    Memory(&'m str, &'m Process, &'m Mapping),
}

fn read_types(space: &AddressSpace<'_>, kernel: &Kernel) -> Option<Vec<u8>> {
    let start = kernel.symbols.address("__start_BTF")?;
    let end = kernel.symbols.address("__stop_BTF")?;
    let bytes = end.0.checked_sub(start.0).filter(|bytes| *bytes <= MAX_TYPE_BYTES)?;
    let mut types = vec![0; usize::try_from(bytes).ok()?];
    space.read(start, &mut types)?;
    Some(types)
}

/// Offsets by which BPF finds the running task at a sample, and the mapping of its code.
fn task_offsets(
    tasks: &tasks::Layout,
    mappings: &mappings::Layout,
    files: &files::Layout,
    levels: PagingLevels,
) -> TaskOffsets {
    /// The longest field: a name.
    const FIELD_BYTES: u64 = 16;
    // The host refuses what does not fit.
    let word = |offset: u64| u32::try_from(offset).unwrap_or(u32::MAX);
    let tasks::Layout { mm, stack, fs_base, pid, comm, start_time, .. } = *tasks;
    let last = [mm, stack, fs_base, pid, comm, start_time].into_iter().max().unwrap_or(0);
    let is_pair = |first: u64, second: u64, bytes: u64| second == first.wrapping_add(bytes);
    // Else the host only reads who runs.
    let is_usual = is_pair(mappings.start, mappings.end, 8)
        && is_pair(files.mount, files.dentry, 8)
        && mappings.has_usual_nodes();
    let tree = mappings.root.filter(|_| is_usual).unwrap_or(0);
    TaskOffsets {
        mm: word(mm),
        stack: word(stack),
        fs_base: word(fs_base),
        pid: if is_pair(pid, tasks.tgid, 4) { word(pid) } else { u32::MAX },
        comm: word(comm),
        start_time: word(start_time),
        pgd: word(tasks.pgd),
        tree: word(tree),
        area_start: word(mappings.start),
        area_offset: word(mappings.page_offset),
        area_file: word(mappings.file),
        file_path: word(files.mount),
        file_inode: word(files.inode),
        file_pages: word(files.pages),
        task_bytes: word(last + FIELD_BYTES),
        paging_levels: match levels {
            PagingLevels::Four => 4,
            PagingLevels::Five => 5,
        },
    }
}

fn orc_format(types: &Types<'_>) -> Option<OrcFormat> {
    let has = |field| types.field("orc_entry", field).is_some();
    OrcFormat::from_fields(has("signal"), has("end"))
}

fn module_layout(types: &Types<'_>) -> Result<ModuleLayout, MissingField> {
    // Before Linux 6.4 a module's memory was one piece.
    let (text_base, text_size) = match types.field("module", "core_layout.base") {
        Some(base) => (base, types.require("module", "core_layout.text_size")?),
        None => {
            // `mem[MOD_TEXT]`
            let memory = types.require("module", "mem")?;
            let base = types.require("module_memory", "base")?;
            (memory + base, memory + types.require("module_memory", "size")?)
        }
    };
    let orc = ["arch.num_orcs", "arch.orc_unwind_ip", "arch.orc_unwind"]
        .map(|path| types.require("module", path));
    let orc = match orc {
        [Ok(count), Ok(addresses), Ok(entries)] => Some([count, addresses, entries]),
        _ => None,
    };
    Ok(ModuleLayout {
        list: types.require("module", "list")?,
        name: types.require("module", "name")?,
        state: types.require("module", "state")?,
        kallsyms: types.require("module", "kallsyms")?,
        text_base,
        text_size,
        orc,
        symtab: types.require("mod_kallsyms", "symtab")?,
        num_symtab: types.require("mod_kallsyms", "num_symtab")?,
        strtab: types.require("mod_kallsyms", "strtab")?,
        typetab: types.require("mod_kallsyms", "typetab")?,
    })
}
