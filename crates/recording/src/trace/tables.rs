//! `model::TraceTables` to and from files.

use std::iter::zip;
use std::path::{Path, PathBuf};

use model::{
    HostNs, LostEvents, Machine, MachineId, Pid, Tid, TraceEventTag, TraceStack, TraceTables,
    TraceTask,
};

use crate::columns::{Column, TableReader, write_table};
use crate::error::Error;
use crate::manifest::FileEntry;
use crate::tables::{Folder, check_ids, id_column};

const MACHINES: &str = "machines.parquet";
const LOST: &str = "lost.parquet";
const MISSING: &str = "missing.parquet";
const TASKS: &str = "tasks.parquet";
const DISKS: &str = "disks.parquet";
const STACKS: &str = "stacks.parquet";

/// Names of the tables' files, each after those it refers to.
pub(super) const NAMES: [&str; 6] = [MACHINES, LOST, MISSING, TASKS, DISKS, STACKS];

/// A probe, and why it could not be used.
type Missing = (String, String);
type Stacks = [(MachineId, TraceStack, Vec<String>)];

/// Writes the tables into a folder.
pub(super) fn write(
    dir: &Path,
    tables: &TraceTables,
) -> Result<Vec<(&'static str, FileEntry)>, Error> {
    let write = |name: &'static str| {
        let columns = match name {
            MACHINES => machines_columns(&tables.machines),
            LOST => lost_columns(&tables.machines),
            MISSING => missing_columns(&tables.machines),
            TASKS => tasks_columns(&tables.tasks),
            DISKS => disks_columns(&tables.disks),
            _ => stacks_columns(&tables.stacks),
        };
        let (digest, rows) = write_table(&dir.join(name), &columns)?;
        Ok((name, FileEntry::new(rows, digest)))
    };
    NAMES.into_iter().map(write).collect()
}

/// Reads the tables of a folder. Those whose files are not there are empty, and named.
pub(super) fn read(dir: &Path) -> Result<(TraceTables, Vec<PathBuf>), Error> {
    let mut folder = Folder { dir, missing: Vec::new() };
    let machines = folder.rows(MACHINES, read_machines)?;
    let (lost, missing) = (folder.rows(LOST, read_lost)?, folder.rows(MISSING, read_missing)?);
    let mut tables = TraceTables {
        machines,
        tasks: folder.rows(TASKS, read_tasks)?,
        disks: folder.rows(DISKS, read_disks)?,
        stacks: folder.rows(STACKS, read_stacks)?,
        command: None,
    };
    let dangling =
        |table: &str| Error::damaged(&dir.join(table), "a row refers to a row that does not exist");
    let count = tables.machines.len();
    let known = |machine: &MachineId| machine.index() < count;
    let whole = [
        (TASKS, tables.tasks.iter().all(|task| known(&task.machine))),
        (DISKS, tables.disks.iter().all(|(machine, ..)| known(machine))),
        (STACKS, tables.stacks.iter().all(|(machine, ..)| known(machine))),
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

fn machines_columns(machines: &[Machine]) -> Vec<Column> {
    let cpus = widened(machines.iter().map(|machine| machine.cpus.iter().copied()));
    let threads =
        widened(machines.iter().map(|machine| machine.vcpu_threads.iter().map(|tid| tid.0)));
    let process = |machine: &Machine| machine.vm_process.map(|pid| pid.0);
    vec![
        id_column(machines.len()),
        Column::text("name", machines.iter().map(|machine| machine.name.as_str())),
        Column::text("kernel", machines.iter().map(|machine| machine.kernel.as_str())),
        Column::u64_list("cpus", cpus.iter().map(Vec::as_slice)),
        Column::u64("begin_ns", machines.iter().map(|machine| machine.begin.0)),
        Column::u64("end_ns", machines.iter().map(|machine| machine.end.0)),
        Column::optional_u64(
            "fault_estimate_ns",
            machines.iter().map(|machine| machine.fault_estimate_ns),
        ),
        Column::optional_u32("vm_pid", machines.iter().map(process)),
        Column::u64_list("vcpu_tids", threads.iter().map(Vec::as_slice)),
        Column::optional_u64(
            "clock_error_ns",
            machines.iter().map(|machine| machine.clock_error_ns),
        ),
        Column::text("path", machines.iter().map(|machine| machine.path.as_str())),
        Column::optional_text(
            "ended_early",
            machines.iter().map(|machine| machine.ended_early.as_deref()),
        ),
    ]
}

fn widened(rows: impl Iterator<Item = impl Iterator<Item = u32>>) -> Vec<Vec<u64>> {
    rows.map(|row| row.map(u64::from).collect()).collect()
}

/// Without what is lost and missing.
fn read_machines(table: &TableReader) -> Result<Vec<Machine>, Error> {
    check_ids(table)?;
    let texts = zip(table.text("name")?, zip(table.text("kernel")?, table.text("path")?));
    let cpus = zip(u32_lists(table, "cpus")?, u32_lists(table, "vcpu_tids")?);
    let times = zip(table.u64("begin_ns")?, table.u64("end_ns")?);
    let clocks =
        zip(table.optional_u64("fault_estimate_ns")?, table.optional_u64("clock_error_ns")?);
    let rest = zip(table.optional_u32("vm_pid")?, table.optional_text("ended_early")?);
    let rows = zip(zip(texts, cpus), zip(times, zip(clocks, rest)));
    let row = |(((name, (kernel, path)), (cpus, threads)), ((begin, end), (clocks, rest)))| {
        let ((fault_estimate_ns, clock_error_ns), (vm_process, ended_early)) = (clocks, rest);
        Machine {
            name,
            kernel,
            cpus,
            begin: HostNs(begin),
            end: HostNs(end),
            lost: Vec::new(),
            missing: Vec::new(),
            fault_estimate_ns,
            vm_process: Option::map(vm_process, Pid),
            vcpu_threads: Vec::into_iter(threads).map(Tid).collect(),
            clock_error_ns,
            path,
            ended_early,
        }
    };
    Ok(rows.map(row).collect())
}

fn u32_lists(table: &TableReader, name: &str) -> Result<Vec<Vec<u32>>, Error> {
    let narrow = |row: Vec<u64>| row.into_iter().map(u32::try_from).collect::<Result<_, _>>().ok();
    let rows: Option<_> = table.u64_list(name)?.into_iter().map(narrow).collect();
    rows.ok_or_else(|| table.damaged(&format!("column {name} has numbers beyond 32 bits")))
}

/// Rows that machines have several of, with their machine.
fn of_machines<'a, T: 'a>(
    machines: &'a [Machine],
    rows: fn(&Machine) -> &[T],
) -> impl Iterator<Item = (u32, &'a T)> + Clone {
    let machines = (0..).zip(machines);
    machines.flat_map(move |(id, machine)| rows(machine).iter().map(move |row| (id, row)))
}

fn lost_columns(machines: &[Machine]) -> Vec<Column> {
    let rows = of_machines(machines, |machine| &machine.lost);
    vec![
        Column::u32("machine", rows.clone().map(|(machine, _)| machine)),
        Column::u32("cpu", rows.clone().map(|(_, lost)| lost.cpu)),
        Column::text("kind", rows.clone().map(|(_, lost)| lost.kind_name())),
        Column::u64("count", rows.map(|(_, lost)| lost.count)),
    ]
}

fn read_lost(table: &TableReader) -> Result<Vec<(MachineId, LostEvents)>, Error> {
    let rows = zip(
        zip(table.u32("machine")?, table.u32("cpu")?),
        zip(table.text("kind")?, table.u64("count")?),
    );
    let row = |((machine, cpu), (kind, count)): ((u32, u32), (String, u64))| {
        (MachineId(machine), LostEvents { cpu, kind: TraceEventTag::from_name(&kind), count })
    };
    Ok(rows.map(row).collect())
}

fn missing_columns(machines: &[Machine]) -> Vec<Column> {
    let rows = of_machines(machines, |machine| &machine.missing);
    vec![
        Column::u32("machine", rows.clone().map(|(machine, _)| machine)),
        Column::text("probe", rows.clone().map(|(_, (probe, _))| probe.as_str())),
        Column::text("reason", rows.map(|(_, (_, reason))| reason.as_str())),
    ]
}

fn read_missing(table: &TableReader) -> Result<Vec<(MachineId, Missing)>, Error> {
    let rows = zip(table.u32("machine")?, zip(table.text("probe")?, table.text("reason")?));
    Ok(rows.map(|(machine, missing)| (MachineId(machine), missing)).collect())
}

fn tasks_columns(tasks: &[TraceTask]) -> Vec<Column> {
    vec![
        Column::u32("machine", tasks.iter().map(|task| task.machine.0)),
        Column::u32("tid", tasks.iter().map(|task| task.tid.0)),
        Column::u32("pid", tasks.iter().map(|task| task.pid.0)),
        Column::u32("parent_pid", tasks.iter().map(|task| task.parent.0)),
        Column::text("name", tasks.iter().map(|task| task.name.as_str())),
        Column::bool("kernel", tasks.iter().map(|task| task.kernel)),
        Column::optional_text("asleep_in", tasks.iter().map(|task| task.asleep_in.as_deref())),
        Column::optional_u32("in_call", tasks.iter().map(|task| task.in_call.map(u32::from))),
    ]
}

fn read_tasks(table: &TableReader) -> Result<Vec<TraceTask>, Error> {
    let ids = zip(table.u32("machine")?, zip(table.u32("tid")?, table.u32("pid")?));
    let named = zip(table.u32("parent_pid")?, table.text("name")?);
    let rest = zip(table.bool("kernel")?, zip(table.optional_text("asleep_in")?, calls(table)?));
    let row =
        |((machine, (tid, pid)), ((parent, name), (kernel, (asleep_in, in_call))))| TraceTask {
            machine: MachineId(machine),
            tid: Tid(tid),
            pid: Pid(pid),
            parent: Pid(parent),
            name,
            kernel,
            asleep_in,
            in_call,
        };
    Ok(zip(ids, zip(named, rest)).map(row).collect())
}

/// The system calls that tasks were in; traces of earlier writers don't say.
fn calls(table: &TableReader) -> Result<Vec<Option<u16>>, Error> {
    const NAME: &str = "in_call";
    if !table.has(NAME) {
        return Ok(vec![None; table.bool("kernel")?.len()]);
    }
    let narrow = |call: Option<u32>| call.map(u16::try_from).transpose();
    let calls: Result<_, _> = table.optional_u32(NAME)?.into_iter().map(narrow).collect();
    calls.map_err(|_| table.damaged(&format!("column {NAME} has numbers beyond 16 bits")))
}

fn disks_columns(disks: &[(MachineId, u32, String)]) -> Vec<Column> {
    vec![
        Column::u32("machine", disks.iter().map(|(machine, ..)| machine.0)),
        Column::u32("dev", disks.iter().map(|(_, dev, _)| *dev)),
        Column::text("name", disks.iter().map(|(.., name)| name.as_str())),
    ]
}

fn read_disks(table: &TableReader) -> Result<Vec<(MachineId, u32, String)>, Error> {
    let rows = zip(table.u32("machine")?, zip(table.u32("dev")?, table.text("name")?));
    Ok(rows.map(|(machine, (dev, name))| (MachineId(machine), dev, name)).collect())
}

/// In the order that readers may search them in, whatever order they came in.
fn stacks_columns(stacks: &Stacks) -> Vec<Column> {
    let mut rows: Vec<_> = stacks.iter().collect();
    rows.sort_by_key(|(machine, number, _)| (*machine, *number));
    vec![
        Column::u32("machine", rows.iter().map(|(machine, ..)| machine.0)),
        Column::u32("number", rows.iter().map(|(_, number, _)| number.0)),
        Column::text_list("functions", rows.iter().map(|(.., functions)| functions.as_slice())),
    ]
}

fn read_stacks(table: &TableReader) -> Result<Vec<(MachineId, TraceStack, Vec<String>)>, Error> {
    let rows = zip(table.u32("machine")?, zip(table.u32("number")?, table.text_list("functions")?));
    let row = |(machine, (number, functions))| (MachineId(machine), TraceStack(number), functions);
    let stacks: Vec<_> = rows.map(row).collect();
    if stacks.is_sorted_by_key(|(machine, number, _)| (*machine, *number)) {
        Ok(stacks)
    } else {
        Err(table.damaged("its rows are not in order"))
    }
}
