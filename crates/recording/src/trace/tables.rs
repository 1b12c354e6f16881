//! `model::TraceTables` to and from files.

use std::path::{Path, PathBuf};

use model::{
    FileKind, HostNs, LostEvents, Machine, MachineId, Pid, Tid, TraceEventTag, TraceFile,
    TraceStack, TraceTables, TraceTask,
};

use super::events::Events;
use crate::columns::{Table, Text, table, write_table};
use crate::error::Error;
use crate::manifest::FileEntry;
use crate::schema::TableSchema;
use crate::tables::{Folder, check_id};

const MACHINES: &str = "machines.parquet";
const LOST: &str = "lost.parquet";
const MISSING: &str = "missing.parquet";
const TASKS: &str = "tasks.parquet";
const DISKS: &str = "disks.parquet";
const STACKS: &str = "stacks.parquet";
const FILES: &str = "files.parquet";

/// The tables of a trace.
pub const SCHEMAS: &[TableSchema] = &[
    Machines::SCHEMA,
    Lost::SCHEMA,
    Missing::SCHEMA,
    Tasks::SCHEMA,
    Disks::SCHEMA,
    Stacks::SCHEMA,
    Files::SCHEMA,
    Events::SCHEMA,
];

type DiskRow = (MachineId, u32, String);
type StackRow = (MachineId, TraceStack, Vec<String>);
/// A probe of a machine, and why it could not be used.
type MissingRow = (MachineId, (String, String));

/// Whether a trace may lack the table: it has no rows, or is older than the table.
pub(super) fn is_optional(table: &TableSchema) -> bool {
    table.file == FILES
}

/// Writes the tables into a folder, each after those it refers to.
pub(super) fn write(
    dir: &Path,
    tables: &TraceTables,
) -> Result<Vec<(&'static str, FileEntry)>, Error> {
    let machines = || (0..).map(MachineId).zip(&tables.machines);
    let lost: Vec<_> =
        machines().flat_map(|(id, row)| row.lost.iter().map(move |lost| (id, *lost))).collect();
    let missing: Vec<_> = machines()
        .flat_map(|(id, row)| row.missing.iter().map(move |missing| (id, missing.clone())))
        .collect();
    // In the order that readers may search them in, whatever order they came in.
    let mut stacks: Vec<_> = tables.stacks.iter().collect();
    stacks.sort_by_key(|(machine, number, _)| (*machine, *number));
    let mut written = vec![
        write_table::<Machines>(dir, &tables.machines)?,
        write_table::<Lost>(dir, &lost)?,
        write_table::<Missing>(dir, &missing)?,
        write_table::<Tasks>(dir, &tables.tasks)?,
        write_table::<Disks>(dir, &tables.disks)?,
        write_table::<Stacks>(dir, stacks)?,
    ];
    if !tables.files.is_empty() {
        written.push(write_table::<Files>(dir, &tables.files)?);
    }
    Ok(written)
}

/// Reads the tables of a folder. Those whose files are not there are empty, and named.
pub(super) fn read(dir: &Path) -> Result<(TraceTables, Vec<PathBuf>), Error> {
    let mut folder = Folder::new(dir);
    let machines = folder.rows::<Machines>()?;
    let (lost, missing) = (folder.rows::<Lost>()?, folder.rows::<Missing>()?);
    let mut tables = TraceTables {
        machines,
        tasks: folder.rows::<Tasks>()?,
        disks: folder.rows::<Disks>()?,
        stacks: folder.rows::<Stacks>()?,
        files: folder.rows_if_any::<Files>()?,
        command: None,
    };
    let dangling =
        |table: &str| Error::damaged(&dir.join(table), "a row refers to a row that does not exist");
    if !tables.stacks.is_sorted_by_key(|(machine, number, _)| (*machine, *number)) {
        return Err(Error::damaged(&dir.join(STACKS), "its rows are not in order"));
    }
    let count = tables.machines.len();
    let known = |machine: &MachineId| machine.index() < count;
    let whole = [
        (TASKS, tables.tasks.iter().all(|task| known(&task.machine))),
        (DISKS, tables.disks.iter().all(|(machine, ..)| known(machine))),
        (STACKS, tables.stacks.iter().all(|(machine, ..)| known(machine))),
        (FILES, tables.files.iter().all(|file| known(&file.machine))),
    ];
    if let Some((table, _)) = whole.into_iter().find(|(_, whole)| !whole) {
        return Err(dangling(table));
    }
    for (machine, lost) in lost {
        let row = tables.machines.get_mut(machine.index()).ok_or_else(|| dangling(LOST))?;
        row.lost.push(lost);
    }
    for (machine, missing) in missing {
        let row = tables.machines.get_mut(machine.index()).ok_or_else(|| dangling(MISSING))?;
        row.missing.push(missing);
    }
    Ok((tables, folder.missing))
}

table! {
    // Without what is lost and missing.
    Machines of Machine, whole MACHINES;
    write |number, machine| {
        id: u32 = number,
        name: Text = machine.name.as_str().into(),
        kernel: Text = machine.kernel.as_str().into(),
        cpus: Vec<u64> = machine.cpus.iter().map(|cpu| u64::from(*cpu)).collect(),
        begin_ns: HostNs = machine.begin,
        end_ns: HostNs = machine.end,
        fault_estimate_ns: Option<u64> = machine.fault_estimate_ns,
        vm_pid: Option<Pid> = machine.vm_process,
        vcpu_tids: Vec<u64> = machine.vcpu_threads.iter().map(|tid| tid.0.into()).collect(),
        clock_error_ns: Option<u64> = machine.clock_error_ns,
        path: Text = machine.path.as_str().into(),
        ended_early: Option<Text> = Text::from_text(machine.ended_early.as_deref()),
    }
    read |row, columns| {
        check_id(*id, row)?;
        Ok(Machine {
            name: name.to_string(),
            kernel: kernel.to_string(),
            cpus: narrow(cpus)?,
            begin: *begin_ns,
            end: *end_ns,
            lost: Vec::new(),
            missing: Vec::new(),
            fault_estimate_ns: *fault_estimate_ns,
            vm_process: *vm_pid,
            vcpu_threads: narrow(vcpu_tids)?.into_iter().map(Tid).collect(),
            clock_error_ns: *clock_error_ns,
            path: path.to_string(),
            ended_early: ended_early.as_ref().map(Text::to_string),
        })
    }
}

fn narrow(row: &[u64]) -> Result<Vec<u32>, &'static str> {
    let row: Result<_, _> = row.iter().map(|value| u32::try_from(*value)).collect();
    row.map_err(|_| "a CPU or thread has a number beyond 32 bits")
}

table! {
    Lost of (MachineId, LostEvents), whole LOST;
    write |number, row| {
        machine: MachineId = row.0,
        cpu: u32 = row.1.cpu,
        kind: Text = Text::word(row.1.kind_name()),
        count: u64 = row.1.count,
    }
    read |row, columns| {
        let kind = TraceEventTag::from_name(kind.as_str());
        Ok((*machine, LostEvents { cpu: *cpu, kind, count: *count }))
    }
}

table! {
    Missing of MissingRow, whole MISSING;
    write |number, row| {
        machine: MachineId = row.0,
        probe: Text = row.1.0.as_str().into(),
        reason: Text = row.1.1.as_str().into(),
    }
    read |row, columns| Ok((*machine, (probe.to_string(), reason.to_string())))
}

table! {
    Tasks of TraceTask, whole TASKS;
    write |number, task| {
        machine: MachineId = task.machine,
        tid: Tid = task.tid,
        pid: Pid = task.pid,
        parent_pid: Pid = task.parent,
        name: Text = task.name.as_str().into(),
        kernel: bool = task.kernel,
        asleep_in: Option<Text> = Text::from_text(task.asleep_in.as_deref()),
        in_call: Option<u32> [added] = task.in_call.map(u32::from),
    }
    read |row, columns| Ok(TraceTask {
        machine: *machine,
        tid: *tid,
        pid: *pid,
        parent: *parent_pid,
        name: name.to_string(),
        kernel: *kernel,
        asleep_in: asleep_in.as_ref().map(Text::to_string),
        in_call: in_call.map(u16::try_from).transpose().map_err(|_| "invalid system call")?,
    })
}

table! {
    Disks of DiskRow, whole DISKS;
    write |number, row| {
        machine: MachineId = row.0,
        dev: u32 = row.1,
        name: Text = row.2.as_str().into(),
    }
    read |row, columns| Ok((*machine, *dev, name.to_string()))
}

table! {
    Stacks of StackRow, whole STACKS;
    write |row, stack| {
        machine: MachineId = stack.0,
        number: TraceStack = stack.1,
        functions: Vec<Text> = stack.2.iter().map(|name| name.as_str().into()).collect(),
    }
    read |row, columns| {
        Ok((*machine, *number, functions.iter().map(Text::to_string).collect()))
    }
}

table! {
    Files of TraceFile, whole FILES;
    write |number, file| {
        machine: MachineId = file.machine,
        file: u32 = file.number,
        dev: u32 = file.device,
        inode: u64 = file.inode,
        generation: u32 = file.generation,
        kind: Text = Text::word(file.kind.word()),
        links: u32 = file.links,
        path: Option<Text> = Text::from_text(file.path.as_deref()),
    }
    read |row, columns| Ok(TraceFile {
        machine: *machine,
        number: *file,
        device: *dev,
        inode: *inode,
        generation: *generation,
        kind: FileKind::from_word(kind.as_str()).ok_or("invalid kind of file")?,
        links: *links,
        path: path.as_ref().map(Text::to_string),
    })
}
