//! `model::Tables` to and from files.

use std::path::{Path, PathBuf};

use model::{
    BuildId, Clock, CpuId, CpuNode, Cr3, ExitCount, Guest, GuestStack, GuestVirt, HostNs, HostVirt,
    Image, ImageId, ImageKind, KernelStack, Mapping, Module, ModuleId, NumaReading, Owner, Pid,
    QuotaMember, Stack, StackEnd, Symbol, SymbolName, Tables, Thread, ThrottledQueue, Throttling,
    Tid, Vcpu, VcpuId, Vm, VmId, VmLabels, VmMemory,
};

use crate::columns::{Budget, Table, Text, WHOLE_TABLES, read_table, table, write_table};
use crate::error::Error;
use crate::manifest::FileEntry;
use crate::samples::Samples;
use crate::schema::TableSchema;
use crate::switches::Switches;

const VMS: &str = "vms.parquet";
const VCPUS: &str = "vcpus.parquet";
const IMAGES: &str = "images.parquet";
const THREADS: &str = "threads.parquet";
const MODULES: &str = "modules.parquet";
const MAPPINGS: &str = "mappings.parquet";
const SYMBOLS: &str = "symbols.parquet";
const STACKS: &str = "stacks.parquet";
const THROTTLING: &str = "throttling.parquet";
const EXITS: &str = "exits.parquet";
const QUOTA_MEMBERS: &str = "quota_members.parquet";
const THROTTLED_QUEUES: &str = "throttled_queues.parquet";
const CPU_NODES: &str = "cpu_nodes.parquet";
const MEMORY: &str = "memory.parquet";

/// The tables of a recording.
pub const SCHEMAS: &[TableSchema] = &[
    Vms::SCHEMA,
    Vcpus::SCHEMA,
    Images::SCHEMA,
    Threads::SCHEMA,
    Modules::SCHEMA,
    Mappings::SCHEMA,
    Symbols::SCHEMA,
    Stacks::SCHEMA,
    Samples::SCHEMA,
    Throttlings::SCHEMA,
    Exits::SCHEMA,
    Switches::SCHEMA,
    CpuNodes::SCHEMA,
    Memory::SCHEMA,
    QuotaMembers::SCHEMA,
    ThrottledQueues::SCHEMA,
];
/// Tables that every recording has; those after them are not in the oldest.
pub(crate) const FIRST: usize = 9;
/// Those and the tables that every recording has since; those after them are there when they have rows.
pub(crate) const ALWAYS: usize = 12;

/// Writes the tables into a folder, each after those it refers to: a writer killed between two leaves no
/// reference into nothing.
pub(crate) fn write(dir: &Path, tables: &Tables) -> Result<Vec<(&'static str, FileEntry)>, Error> {
    let mut written = vec![
        write_table::<Vms>(dir, &tables.vms)?,
        write_table::<Vcpus>(dir, &tables.vcpus)?,
        write_table::<Images>(dir, &tables.images)?,
        write_table::<Threads>(dir, &tables.threads)?,
        write_table::<Modules>(dir, &tables.modules)?,
        write_table::<Mappings>(dir, &tables.mappings)?,
        write_table::<Symbols>(dir, &tables.symbols)?,
        write_table::<Stacks>(dir, &tables.stacks)?,
        write_table::<Throttlings>(dir, &tables.throttling)?,
        write_table::<Exits>(dir, &tables.exits)?,
    ];
    if !tables.cpu_nodes.is_empty() {
        written.push(write_table::<CpuNodes>(dir, &tables.cpu_nodes)?);
    }
    if !tables.memory.is_empty() {
        written.push(write_table::<Memory>(dir, &tables.memory)?);
    }
    if !tables.quota_members.is_empty() {
        written.push(write_table::<QuotaMembers>(dir, &tables.quota_members)?);
    }
    if !tables.throttled_queues.is_empty() {
        written.push(write_table::<ThrottledQueues>(dir, &tables.throttled_queues)?);
    }
    Ok(written)
}

/// Reads the tables of a folder. Those whose files are not there are empty, and named if they should be there.
pub(crate) fn read(dir: &Path) -> Result<(Tables, Vec<PathBuf>), Error> {
    let mut folder = Folder::new(dir);
    let tables = Tables {
        vms: folder.rows::<Vms>()?,
        vcpus: folder.rows::<Vcpus>()?,
        images: folder.rows::<Images>()?,
        threads: folder.rows::<Threads>()?,
        modules: folder.rows::<Modules>()?,
        mappings: folder.rows::<Mappings>()?,
        symbols: folder.rows::<Symbols>()?,
        stacks: folder.rows::<Stacks>()?,
        throttling: folder.rows::<Throttlings>()?,
        exits: folder.rows::<Exits>()?,
        cpu_nodes: folder.rows_if_any::<CpuNodes>()?,
        memory: folder.rows_if_any::<Memory>()?,
        quota_members: folder.rows_if_any::<QuotaMembers>()?,
        throttled_queues: folder.rows_if_any::<ThrottledQueues>()?,
    };
    match dangling(&tables) {
        None => Ok((tables, folder.missing)),
        Some(table) => {
            Err(Error::damaged(&dir.join(table), "a row refers to a row that does not exist"))
        }
    }
}

/// A folder whose tables are read.
pub(crate) struct Folder<'a> {
    pub(crate) dir: &'a Path,
    /// Tables whose files are not there.
    pub(crate) missing: Vec<PathBuf>,
    budget: Budget,
}

impl<'a> Folder<'a> {
    pub(crate) fn new(dir: &'a Path) -> Self {
        Self { dir, missing: Vec::new(), budget: Budget::new(WHOLE_TABLES) }
    }

    pub(crate) fn rows<T: Table>(&mut self) -> Result<Vec<T::Row>, Error> {
        let path = self.dir.join(T::SCHEMA.file);
        if !path.is_file() {
            self.missing.push(path);
        }
        self.rows_if_any::<T>()
    }

    pub(crate) fn rows_if_any<T: Table>(&self) -> Result<Vec<T::Row>, Error> {
        let path = self.dir.join(T::SCHEMA.file);
        if path.is_file() { read_table::<T>(&path, &self.budget) } else { Ok(Vec::new()) }
    }
}

/// The first table with a reference to a row that is not there.
fn dangling(tables: &Tables) -> Option<&'static str> {
    let vm = |owner: Owner| match owner {
        Owner::Host => true,
        Owner::Vm(vm) => vm.index() < tables.vms.len(),
    };
    let image = |image: ImageId| image.index() < tables.images.len();
    let module = |module: ModuleId| module.index() < tables.modules.len();
    let whole = [
        (VCPUS, tables.vcpus.iter().all(|row| vm(Owner::Vm(row.vm)))),
        (IMAGES, tables.images.iter().all(|row| vm(row.owner))),
        (THREADS, tables.threads.iter().all(|row| image(row.image))),
        (MODULES, tables.modules.iter().all(|row| vm(row.owner))),
        (MAPPINGS, tables.mappings.iter().all(|row| image(row.image) && module(row.module))),
        (THROTTLING, tables.throttling.iter().all(|row| vm(Owner::Vm(row.vm)))),
        (QUOTA_MEMBERS, tables.quota_members.iter().all(|row| vm(Owner::Vm(row.vm)))),
        (
            QUOTA_MEMBERS,
            tables
                .quota_members
                .iter()
                .all(|row| row.vcpu.is_none_or(|vcpu| vcpu.index() < tables.vcpus.len())),
        ),
        (EXITS, tables.exits.iter().all(|row| row.vcpu.index() < tables.vcpus.len())),
        (SYMBOLS, tables.symbols.iter().all(|row| module(row.module))),
        (MEMORY, tables.memory.iter().all(|row| vm(Owner::Vm(row.vm)))),
    ];
    whole.into_iter().find(|(_, whole)| !whole).map(|(table, _)| table)
}

/// A VM's labels, by their columns.
pub(crate) fn labels(columns: [&Option<Text>; 10]) -> VmLabels {
    VmLabels::from_values(columns.map(|column| column.as_ref().map(Text::to_string)))
}

/// Row numbers have to be row numbers: everything refers to rows by them.
pub(crate) fn check_id(id: u32, row: u32) -> Result<(), &'static str> {
    if id == row { Ok(()) } else { Err("its rows are not in order") }
}

table! {
    Vms of Vm, whole VMS;
    write |number, vm|
    let (via, clock, reason) = match &vm.guest {
        Guest::Mapped { via, clock } => (Some(via.as_str()), Some(clock), None),
        Guest::Unmapped { reason } => (None, None, Some(reason.as_str())),
    }; {
        id: u32 = number,
        name: Text = vm.name.as_str().into(),
        pid: Pid = vm.pid,
        started_ns: Option<HostNs> = vm.started,
        ended_ns: Option<HostNs> = vm.ended,
        map_via: Option<Text> = Text::from_text(via),
        host_minus_guest_ns: Option<i64> = clock.map(|clock| clock.host_minus_guest_ns),
        clock_error_ns: Option<u64> = clock.map(|clock| clock.error_ns),
        no_map_reason: Option<Text> = Text::from_text(reason),
        uuid: Option<Text> [added] = Text::from_text(vm.labels.uuid.as_deref()),
        manager: Option<Text> [added] = Text::from_text(vm.labels.manager.as_deref()),
        manager_id: Option<Text> [added] = Text::from_text(vm.labels.id.as_deref()),
        instance: Option<Text> [added] = Text::from_text(vm.labels.instance.as_deref()),
        project: Option<Text> [added] = Text::from_text(vm.labels.project.as_deref()),
        owner: Option<Text> [added] = Text::from_text(vm.labels.owner.as_deref()),
        namespace: Option<Text> [added] = Text::from_text(vm.labels.namespace.as_deref()),
        pod: Option<Text> [added] = Text::from_text(vm.labels.pod.as_deref()),
        unit: Option<Text> [added] = Text::from_text(vm.labels.unit.as_deref()),
        tags: Option<Text> [added] = Text::from_text(vm.labels.tags.as_deref()),
    }
    read |row, columns| {
        check_id(*id, row)?;
        let labels = labels([
            uuid, manager, manager_id, instance, project, owner, namespace, pod, unit, tags,
        ]);
        let guest = match (map_via, host_minus_guest_ns, clock_error_ns, no_map_reason) {
            (Some(via), &Some(host_minus_guest_ns), &Some(error_ns), None) => {
                let clock = Clock { host_minus_guest_ns, error_ns };
                Guest::Mapped { via: via.to_string(), clock }
            }
            (None, None, None, Some(reason)) => Guest::Unmapped { reason: reason.to_string() },
            _ => return Err("a guest is neither mapped nor unmapped"),
        };
        let (started, ended) = (*started_ns, *ended_ns);
        Ok(Vm { name: name.to_string(), pid: *pid, started, ended, guest, labels })
    }
}

table! {
    Vcpus of Vcpu, whole VCPUS;
    write |number, vcpu| {
        id: u32 = number,
        vm: VmId = vcpu.vm,
        number: u32 = vcpu.number,
        tid: Tid = vcpu.tid,
        started_ns: Option<HostNs> [added] = vcpu.started,
        ended_ns: Option<HostNs> [added] = vcpu.ended,
    }
    read |row, columns| {
        check_id(*id, row)?;
        let (started, ended) = (*started_ns, *ended_ns);
        Ok(Vcpu { vm: *vm, number: *number, tid: *tid, started, ended })
    }
}

table! {
    Images of Image, whole IMAGES;
    write |number, image| {
        id: u32 = number,
        vm: Owner = image.owner,
        kind: ImageKind = image.kind,
        pid: Pid = image.pid,
        name: Text = image.name.as_str().into(),
        guest_cr3: Option<Cr3> = image.cr3,
        start_ns: Option<HostNs> = image.start,
        end_ns: Option<HostNs> = image.end,
        guest_stack: Option<KernelStack> [added] = image.kernel_stack,
        kernel_thread: Option<bool> [added] = image.kernel_thread,
        of_command: Option<bool> [added] = image.of_command,
    }
    read |row, columns| {
        check_id(*id, row)?;
        let (name, start, end) = (name.to_string(), *start_ns, *end_ns);
        let (cr3, kernel_stack, kernel_thread) = (*guest_cr3, *guest_stack, *kernel_thread);
        let (owner, kind, pid, of_command) = (*vm, *kind, *pid, *of_command);
        Ok(Image { owner, kind, pid, name, cr3, kernel_stack, kernel_thread, of_command, start, end })
    }
}

table! {
    Threads of Thread, whole THREADS;
    write |number, thread| {
        image: ImageId = thread.image,
        tid: Tid = thread.tid,
        name: Text = thread.name.as_str().into(),
        guest_fs_base: Option<GuestVirt> = thread.fs_base,
    }
    read |row, columns| {
        let fs_base = *guest_fs_base;
        Ok(Thread { image: *image, tid: *tid, name: name.to_string(), fs_base })
    }
}

table! {
    Modules of Module, whole MODULES;
    write |number, module| {
        id: u32 = number,
        vm: Owner = module.owner,
        path: Text = module.path.as_str().into(),
        build_id: Option<BuildId> = module.build_id.clone(),
    }
    read |row, columns| {
        check_id(*id, row)?;
        Ok(Module { owner: *vm, path: path.to_string(), build_id: build_id.clone() })
    }
}

table! {
    Mappings of Mapping, whole MAPPINGS;
    write |number, mapping| {
        image: ImageId = mapping.image,
        start: u64 = mapping.start,
        end: u64 = mapping.end,
        offset: u64 = mapping.offset,
        module: ModuleId = mapping.module,
    }
    read |row, columns| {
        let (start, end, offset) = (*start, *end, *offset);
        Ok(Mapping { image: *image, start, end, offset, module: *module })
    }
}

table! {
    Symbols of Symbol, whole SYMBOLS;
    write |number, symbol|
    let (name, reason) = match &symbol.name {
        SymbolName::Function(name) => (Some(name.as_str()), None),
        SymbolName::Stripped => (None, None),
        SymbolName::Unreadable(reason) => (None, Some(reason.as_str())),
    }; {
        module: ModuleId = symbol.module,
        offset: u64 = symbol.offset,
        function: Option<Text> = Text::from_text(name),
        unreadable_reason: Option<Text> = Text::from_text(reason),
    }
    read |row, columns| {
        let name = match (function, unreadable_reason) {
            (Some(function), None) => SymbolName::Function(function.to_string()),
            (None, None) => SymbolName::Stripped,
            (None, Some(reason)) => SymbolName::Unreadable(reason.to_string()),
            (Some(_), Some(_)) => return Err("a symbol is named and unreadable"),
        };
        Ok(Symbol { module: *module, offset: *offset, name })
    }
}

table! {
    Stacks of Stack, whole STACKS;
    write |number, stack| {
        id: u32 = number,
        kernel: Vec<HostVirt> = stack.kernel.clone(),
        user: Vec<HostVirt> = stack.user.clone(),
        guest_kernel: Vec<GuestVirt> [added] = stack.guest.kernel.clone(),
        guest_kernel_end: Option<StackEnd> [added] = stack.guest.kernel_end,
        guest_user: Vec<GuestVirt> [added] = stack.guest.user.clone(),
        guest_user_end: Option<StackEnd> [added] = stack.guest.user_end,
    }
    read |row, columns| {
        check_id(*id, row)?;
        let guest = GuestStack {
            kernel: guest_kernel.clone(),
            kernel_end: *guest_kernel_end,
            user: guest_user.clone(),
            user_end: *guest_user_end,
        };
        Ok(Stack { kernel: kernel.clone(), user: user.clone(), guest })
    }
}

table! {
    Throttlings of Throttling, whole THROTTLING;
    write |number, reading| {
        vm: VmId = reading.vm,
        time_ns: HostNs = reading.time,
        throttled_ns: u64 = reading.throttled_ns,
    }
    read |row, columns| Ok(Throttling { vm: *vm, time: *time_ns, throttled_ns: *throttled_ns })
}

table! {
    Exits of ExitCount, whole EXITS;
    write |number, exit| {
        vcpu: VcpuId = exit.vcpu,
        exit_reason: u32 = exit.reason,
        count: u64 = exit.count,
    }
    read |row, columns| Ok(ExitCount { vcpu: *vcpu, reason: *exit_reason, count: *count })
}

table! {
    QuotaMembers of QuotaMember, whole QUOTA_MEMBERS;
    write |number, row| {
        quota: u32 = row.quota,
        vm: VmId = row.vm,
        vcpu: Option<VcpuId> = row.vcpu,
        since_ns: HostNs = row.since,
        until_ns: Option<HostNs> = row.until,
    }
    read |row, columns| {
        let (since, until) = (*since_ns, *until_ns);
        Ok(QuotaMember { quota: *quota, vm: *vm, vcpu: *vcpu, since, until })
    }
}

table! {
    ThrottledQueues of ThrottledQueue, whole THROTTLED_QUEUES;
    write |number, row| {
        quota: u32 = row.quota,
        cpu: CpuId = row.cpu,
        from_ns: HostNs = row.from,
        to_ns: HostNs = row.to,
    }
    read |row, columns| {
        Ok(ThrottledQueue { quota: *quota, cpu: *cpu, from: *from_ns, to: *to_ns })
    }
}

table! {
    CpuNodes of CpuNode, whole CPU_NODES;
    write |number, row| {
        cpu: CpuId = row.cpu,
        node: u32 = row.node,
    }
    read |row, columns| Ok(CpuNode { cpu: *cpu, node: *node })
}

table! {
    Memory of VmMemory, whole MEMORY;
    write |number, row|
    let (on, of, reason) = match &row.found {
        NumaReading::OnNode { node, bytes } => (Some(*node), Some(*bytes), None),
        NumaReading::Unknown(reason) => (None, None, Some(reason.as_str())),
    }; {
        vm: VmId = row.vm,
        time_ns: HostNs = row.time,
        node: Option<u32> = on,
        bytes: Option<u64> = of,
        unknown_reason: Option<Text> = Text::from_text(reason),
    }
    read |row, columns| {
        let found = match (node, bytes, unknown_reason) {
            (&Some(node), &Some(bytes), None) => NumaReading::OnNode { node, bytes },
            (None, None, Some(reason)) => NumaReading::Unknown(reason.to_string()),
            _ => return Err("memory is neither on a node nor unknown"),
        };
        Ok(VmMemory { vm: *vm, time: *time_ns, found })
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::fit;

    #[test]
    fn rows_that_take_too_much_memory_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let name = SymbolName::Function("x".repeat(2000));
        let symbol = Symbol { module: ModuleId(0), offset: 0, name };
        let (file, _) = write_table::<Symbols>(folder.path(), &vec![symbol; 3000]).unwrap();
        let path = folder.path().join(file);
        assert!(std::fs::metadata(&path).unwrap().len() < 10_000);
        let read = |bytes| read_table::<Symbols>(&path, &Budget::new(bytes)).map(|rows| rows.len());
        assert_eq!(read(16 << 20).unwrap(), 3000);
        let refused = read(5 << 20).unwrap_err().to_string();
        assert!(
            refused.contains("column function: Parquet error: it takes more than 5 MiB"),
            "{refused}"
        );
    }

    #[test]
    fn pages_that_unpack_to_too_much_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let name = SymbolName::Function("x".repeat(65 << 20));
        let symbol = Symbol { module: ModuleId(0), offset: 0, name };
        let (file, _) = write_table::<Symbols>(folder.path(), [&symbol]).unwrap();
        let path = folder.path().join(file);
        assert!(std::fs::metadata(&path).unwrap().len() < 20_000);
        let refused =
            read_table::<Symbols>(&path, &Budget::new(WHOLE_TABLES)).map(|rows| rows.len());
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("a page of 65 MiB is too large"), "{refused}");
    }

    #[test]
    fn more_rows_than_bytes_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let reading = Throttling { vm: VmId(0), time: HostNs(0), throttled_ns: 0 };
        let rows = std::iter::repeat_n(&reading, 1_100_000);
        let (file, _) = write_table::<Throttlings>(folder.path(), rows).unwrap();
        let path = folder.path().join(file);
        let refused = read_table::<Throttlings>(&path, &Budget::new(WHOLE_TABLES));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("more rows than its bytes can hold"), "{refused}");
    }

    /// What the writer lets through is what the reader takes.
    #[test]
    fn a_writers_limit_is_within_a_readers() {
        let folder = tempfile::tempdir().unwrap();
        let module = |_| Module { owner: Owner::Host, path: "/bin/a".into(), build_id: None };
        let image = |_| Image {
            owner: Owner::Host,
            kind: ImageKind::Process,
            pid: Pid(1),
            name: "a".into(),
            cr3: Some(Cr3::new(0x1000)),
            kernel_stack: Some(KernelStack(7)),
            kernel_thread: None,
            of_command: None,
            start: Some(HostNs(1)),
            end: Some(HostNs(1)),
        };
        let symbol = |n: u64| {
            let name = match n % 3 {
                0 => SymbolName::Stripped,
                1 => SymbolName::Unreadable("x".repeat(60)),
                _ => SymbolName::Function("x".repeat(60)),
            };
            Symbol { module: ModuleId(0), offset: n, name }
        };
        let thread = |n| {
            let (name, fs_base) = ("a".to_owned(), Some(GuestVirt(7)));
            Thread { image: ImageId(0), tid: Tid(n), name, fs_base }
        };
        let mapping = |start| Mapping {
            image: ImageId(0),
            start,
            end: start,
            offset: 0,
            module: ModuleId(0),
        };
        let guest = GuestStack::default();
        let stack = |n| Stack {
            kernel: vec![HostVirt(n); 30],
            user: vec![HostVirt(n)],
            guest: guest.clone(),
        };
        let tables = Tables {
            modules: (0..1000).map(module).collect(),
            images: (0..1000).map(image).collect(),
            symbols: (0..3000).map(symbol).collect(),
            threads: (0..1000).map(thread).collect(),
            mappings: (0..1000).map(mapping).collect(),
            stacks: (0..1000).map(stack).collect(),
            ..Tables::default()
        };
        write(folder.path(), &tables).unwrap();
        let mut written =
            Folder { dir: folder.path(), missing: Vec::new(), budget: Budget::new(0) };
        written.budget = Budget::new(fit::cost(&tables));
        let read = (
            written.rows::<Modules>().unwrap().len() + written.rows::<Images>().unwrap().len(),
            written.rows::<Symbols>().unwrap().len() + written.rows::<Threads>().unwrap().len(),
            written.rows::<Mappings>().unwrap().len() + written.rows::<Stacks>().unwrap().len(),
        );
        assert_eq!(read, (2000, 4000, 2000));
    }
}
