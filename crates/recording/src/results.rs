//! Result tables: what the analysis of windows found, as Parquet that any engine reads.

use std::path::Path;
use std::sync::Arc;

use model::{
    CpuTimeRow, ExitsRow, HealthRow, HostRow, ResultCode, ResultRow, ResultStack, ResultThief,
    Results, ThiefKind, VcpuTimeRow, VmRow, WindowKey,
};

use crate::columns::{Budget, Micros, Table, Text, WHOLE_TABLES, read_table, table, write_table};
use crate::error::Error;
use crate::schema::TableSchema;

const VCPU_TIME: &str = "vcpu_time.parquet";
const CPU_TIME: &str = "cpu_time.parquet";
const EXITS: &str = "exits.parquet";
const HOSTS: &str = "hosts.parquet";
const VMS: &str = "vms.parquet";
const HEALTH: &str = "health.parquet";

/// The result tables; a table's name is that of its file without its ending.
pub const SCHEMAS: &[TableSchema] = &[
    VcpuTimes::SCHEMA,
    CpuTimes::SCHEMA,
    Exits::SCHEMA,
    Hosts::SCHEMA,
    Vms::SCHEMA,
    Health::SCHEMA,
];

/// Writes all tables into a folder; the files are durable then.
///
/// # Errors
/// When one can't be written.
pub fn write(dir: &Path, results: &Results) -> Result<(), Error> {
    write_table::<VcpuTimes>(dir, &results.vcpu_time)?;
    write_table::<CpuTimes>(dir, &results.cpu_time)?;
    write_table::<Exits>(dir, &results.exits)?;
    write_table::<Hosts>(dir, &results.hosts)?;
    write_table::<Vms>(dir, &results.vms)?;
    write_table::<Health>(dir, &results.health)?;
    Ok(())
}

/// Reads the tables of a folder.
///
/// # Errors
/// When one can't be read, or holds what no window can.
pub fn read(dir: &Path) -> Result<Results, Error> {
    fn rows<T: Table>(dir: &Path, budget: &Budget) -> Result<Vec<T::Row>, Error> {
        read_table::<T>(&dir.join(T::SCHEMA.file), budget)
    }
    let budget = &Budget::new(WHOLE_TABLES);
    Ok(Results {
        vcpu_time: rows::<VcpuTimes>(dir, budget)?,
        cpu_time: rows::<CpuTimes>(dir, budget)?,
        exits: rows::<Exits>(dir, budget)?,
        hosts: rows::<Hosts>(dir, budget)?,
        vms: rows::<Vms>(dir, budget)?,
        health: rows::<Health>(dir, budget)?,
    })
}

fn result<T>(
    (host, boot, window_ns, slice): (&Text, &Text, &u64, &Micros),
    row: T,
) -> ResultRow<T> {
    let (host, boot) = (host.to_string(), boot.to_string());
    let window = Arc::new(WindowKey { host, boot, window_ns: *window_ns });
    ResultRow { window, slice_unix_us: slice.0, row }
}

fn text(text: &Option<Text>) -> Option<String> {
    text.as_ref().map(Text::to_string)
}

fn code(texts: [&Option<Text>; 5], [pid, tid]: [&Option<u32>; 2]) -> ResultCode {
    let [process, thread, function, module, build_id] = texts.map(text);
    ResultCode { process, pid: *pid, thread, tid: *tid, function, module, build_id }
}

table! {
    VcpuTimes of ResultRow<VcpuTimeRow>, whole VCPU_TIME;
    write |number, result|
    let ResultRow { window, slice_unix_us, row } = result;
    let (code, thief_is) = (&row.code, row.thief_is.as_ref()); {
        host: Text = window.host.as_str().into(),
        boot: Text = window.boot.as_str().into(),
        window_ns: u64 = window.window_ns,
        slice: Micros = Micros(*slice_unix_us),
        vm: Text = row.vm.as_str().into(),
        vcpu: u32 = row.vcpu,
        state: Text = row.state.as_str().into(),
        process: Option<Text> = Text::from_text(code.process.as_deref()),
        pid: Option<u32> = code.pid,
        thread: Option<Text> = Text::from_text(code.thread.as_deref()),
        tid: Option<u32> = code.tid,
        function: Option<Text> = Text::from_text(code.function.as_deref()),
        module: Option<Text> = Text::from_text(code.module.as_deref()),
        thief: Option<Text> = Text::from_text(row.thief.as_deref()),
        thief_vm: Option<Text> = Text::from_text(row.thief_vm.as_deref()),
        exit_reason: Option<Text> = Text::from_text(row.exit_reason.as_deref()),
        ns: u64 = row.ns,
        corrected_ns: u64 = row.corrected_ns,
        samples: u64 = row.samples,
        build_id: Option<Text> [added] = Text::from_text(code.build_id.as_deref()),
        thief_kind: Option<Text> [added] = Text::from_text(thief_is.map(|thief| thief.kind.name())),
        thief_name: Option<Text> [added] = Text::from_text(thief_is.and_then(|it| it.name.as_deref())),
        thief_pid: Option<u32> [added] = thief_is.and_then(|thief| thief.pid),
        stack: Option<Text> [added] = Text::from_text(row.stack.as_ref().map(|it| it.functions.as_str())),
        kernel_frames: Option<u32> [added] = row.stack.as_ref().map(|stack| stack.n_kernel),
    }
    read |number, columns| Ok(result((host, boot, window_ns, slice), VcpuTimeRow {
        vm: vm.to_string(),
        vcpu: *vcpu,
        state: state.to_string(),
        code: code([process, thread, function, module, build_id], [pid, tid]),
        stack: text(stack).map(|functions| ResultStack {
            functions,
            n_kernel: kernel_frames.unwrap_or(0),
        }),
        thief: text(thief),
        thief_vm: text(thief_vm),
        thief_is: text(thief_kind).map(|kind| ResultThief {
            kind: ThiefKind::from_name(&kind),
            name: text(thief_name),
            pid: *thief_pid,
        }),
        exit_reason: text(exit_reason),
        ns: *ns,
        corrected_ns: *corrected_ns,
        samples: *samples,
    }))
}

table! {
    CpuTimes of ResultRow<CpuTimeRow>, whole CPU_TIME;
    write |number, result|
    let ResultRow { window, slice_unix_us, row } = result;
    let code = &row.code; {
        host: Text = window.host.as_str().into(),
        boot: Text = window.boot.as_str().into(),
        window_ns: u64 = window.window_ns,
        slice: Micros = Micros(*slice_unix_us),
        cpu: u32 = row.cpu,
        level: Text = row.level.as_str().into(),
        vm: Option<Text> = Text::from_text(row.vm.as_deref()),
        process: Option<Text> = Text::from_text(code.process.as_deref()),
        pid: Option<u32> = code.pid,
        thread: Option<Text> = Text::from_text(code.thread.as_deref()),
        tid: Option<u32> = code.tid,
        function: Option<Text> = Text::from_text(code.function.as_deref()),
        module: Option<Text> = Text::from_text(code.module.as_deref()),
        stack: Option<Text> = Text::from_text(row.stack.as_deref()),
        ns: u64 = row.ns,
        samples: u64 = row.samples,
        build_id: Option<Text> [added] = Text::from_text(code.build_id.as_deref()),
    }
    read |number, columns| Ok(result((host, boot, window_ns, slice), CpuTimeRow {
        cpu: *cpu,
        level: level.to_string(),
        vm: text(vm),
        code: code([process, thread, function, module, build_id], [pid, tid]),
        stack: text(stack),
        ns: *ns,
        samples: *samples,
    }))
}

table! {
    Exits of ResultRow<ExitsRow>, whole EXITS;
    write |number, result|
    let ResultRow { window, slice_unix_us, row } = result; {
        host: Text = window.host.as_str().into(),
        boot: Text = window.boot.as_str().into(),
        window_ns: u64 = window.window_ns,
        slice: Micros = Micros(*slice_unix_us),
        vm: Text = row.vm.as_str().into(),
        vcpu: u32 = row.vcpu,
        exit_reason: Text = row.exit_reason.as_str().into(),
        exits: u64 = row.exits,
    }
    read |number, columns| Ok(result((host, boot, window_ns, slice), ExitsRow {
        vm: vm.to_string(),
        vcpu: *vcpu,
        exit_reason: exit_reason.to_string(),
        exits: *exits,
    }))
}

table! {
    Hosts of ResultRow<HostRow>, whole HOSTS;
    write |number, result|
    let ResultRow { window, slice_unix_us, row } = result; {
        host: Text = window.host.as_str().into(),
        boot: Text = window.boot.as_str().into(),
        window_ns: u64 = window.window_ns,
        slice: Micros = Micros(*slice_unix_us),
        length_ns: u64 = row.length_ns,
        hostname: Text = row.hostname.as_str().into(),
        kernel: Text = row.kernel.as_str().into(),
        vmscope_version: Text = row.vmscope_version.as_str().into(),
        period_ns: u64 = row.period_ns,
        cpus: u32 = row.cpus,
        vms: u32 = row.vms,
        samples: u64 = row.samples,
        samples_lost: u64 = row.samples_lost,
        samples_missed: u64 = row.samples_missed,
    }
    read |number, columns| Ok(result((host, boot, window_ns, slice), HostRow {
        length_ns: *length_ns,
        hostname: hostname.to_string(),
        kernel: kernel.to_string(),
        vmscope_version: vmscope_version.to_string(),
        period_ns: *period_ns,
        cpus: *cpus,
        vms: *vms,
        samples: *samples,
        samples_lost: *samples_lost,
        samples_missed: *samples_missed,
    }))
}

table! {
    Vms of ResultRow<VmRow>, whole VMS;
    write |number, result|
    let ResultRow { window, slice_unix_us, row } = result; {
        host: Text = window.host.as_str().into(),
        boot: Text = window.boot.as_str().into(),
        window_ns: u64 = window.window_ns,
        slice: Micros = Micros(*slice_unix_us),
        vm: Text = row.vm.as_str().into(),
        pid: u32 = row.pid,
        vcpus: u32 = row.vcpus,
        vcpu_ns: u64 = row.vcpu_ns,
        steal_outside_ns: Option<u64> [added] = row.steal_outside_ns,
        steal_vmm_ns: Option<u64> [added] = row.steal_vmm_ns,
        throttled_ns: Option<u64> [added] = row.throttled_ns,
        map_via: Option<Text> = Text::from_text(row.map_via.as_deref()),
        no_map_reason: Option<Text> = Text::from_text(row.no_map_reason.as_deref()),
        uuid: Option<Text> [added] = Text::from_text(row.labels.uuid.as_deref()),
        manager: Option<Text> [added] = Text::from_text(row.labels.manager.as_deref()),
        manager_id: Option<Text> [added] = Text::from_text(row.labels.id.as_deref()),
        instance: Option<Text> [added] = Text::from_text(row.labels.instance.as_deref()),
        project: Option<Text> [added] = Text::from_text(row.labels.project.as_deref()),
        owner: Option<Text> [added] = Text::from_text(row.labels.owner.as_deref()),
        namespace: Option<Text> [added] = Text::from_text(row.labels.namespace.as_deref()),
        pod: Option<Text> [added] = Text::from_text(row.labels.pod.as_deref()),
        unit: Option<Text> [added] = Text::from_text(row.labels.unit.as_deref()),
        tags: Option<Text> [added] = Text::from_text(row.labels.tags.as_deref()),
    }
    read |number, columns| Ok(result((host, boot, window_ns, slice), VmRow {
        vm: vm.to_string(),
        pid: *pid,
        vcpus: *vcpus,
        vcpu_ns: *vcpu_ns,
        steal_outside_ns: *steal_outside_ns,
        steal_vmm_ns: *steal_vmm_ns,
        throttled_ns: *throttled_ns,
        map_via: text(map_via),
        no_map_reason: text(no_map_reason),
        labels: crate::tables::labels([
            uuid, manager, manager_id, instance, project, owner, namespace, pod, unit, tags,
        ]),
    }))
}

table! {
    Health of ResultRow<HealthRow>, whole HEALTH;
    write |number, result|
    let ResultRow { window, slice_unix_us, row } = result; {
        host: Text = window.host.as_str().into(),
        boot: Text = window.boot.as_str().into(),
        window_ns: u64 = window.window_ns,
        slice: Micros = Micros(*slice_unix_us),
        subject: Text = row.subject.as_str().into(),
        what: Text = row.what.as_str().into(),
        count: Option<u64> = row.count,
    }
    read |number, columns| Ok(result((host, boot, window_ns, slice), HealthRow {
        subject: subject.to_string(),
        what: what.to_string(),
        count: *count,
    }))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_written_comes_back() {
        let window =
            Arc::new(WindowKey { host: "h1".into(), boot: "0f".into(), window_ns: u64::MAX });
        fn result<T>(window: &Arc<WindowKey>, row: T) -> ResultRow<T> {
            ResultRow { window: Arc::clone(window), slice_unix_us: -1, row }
        }
        let some = |text: &str| Some(text.to_owned());
        let code = ResultCode {
            process: some("shor"),
            pid: Some(7),
            thread: None,
            tid: Some(8),
            function: some("quantum_cnot"),
            module: None,
            build_id: some("0a1b"),
        };
        let vcpu_time = VcpuTimeRow {
            vm: "db".into(),
            vcpu: 1,
            state: "steal_outside".into(),
            code: code.clone(),
            stack: Some(ResultStack { functions: "main;quantum_cnot".into(), n_kernel: 1 }),
            thief: some("web vcpu0"),
            thief_vm: some("web"),
            thief_is: Some(ResultThief { kind: ThiefKind::Vcpu, name: None, pid: None }),
            exit_reason: None,
            ns: u64::MAX,
            corrected_ns: 0,
            samples: 3,
        };
        let of_idle = VcpuTimeRow {
            state: "halt".into(),
            code: ResultCode::default(),
            stack: None,
            thief: None,
            thief_vm: None,
            thief_is: None,
            ..vcpu_time.clone()
        };
        let cpu_time = CpuTimeRow {
            cpu: 3,
            level: "host_kernel".into(),
            vm: None,
            code,
            stack: some("a;b"),
            ns: 1,
            samples: 1,
        };
        let exits = ExitsRow { vm: "db".into(), vcpu: 0, exit_reason: "io".into(), exits: 1 << 40 };
        let host = HostRow {
            length_ns: 60,
            hostname: "h".into(),
            kernel: "6.1".into(),
            vmscope_version: "0.2".into(),
            period_ns: 1,
            cpus: 2,
            vms: 1,
            samples: 5,
            samples_lost: 6,
            samples_missed: 7,
        };
        let vm = VmRow {
            vm: "db".into(),
            pid: 9,
            vcpus: 2,
            vcpu_ns: 120,
            steal_outside_ns: Some(7),
            steal_vmm_ns: Some(0),
            throttled_ns: None,
            map_via: None,
            no_map_reason: some("silent"),
            labels: model::VmLabels {
                project: some("shop"),
                id: some("100"),
                ..Default::default()
            },
        };
        let counter = HealthRow { subject: "host".into(), what: "lost".into(), count: Some(1) };
        let note = HealthRow { count: None, ..counter.clone() };
        let results = Results {
            vcpu_time: vec![result(&window, vcpu_time), result(&window, of_idle)],
            cpu_time: vec![result(&window, cpu_time)],
            exits: vec![result(&window, exits)],
            hosts: vec![result(&window, host)],
            vms: vec![result(&window, vm)],
            health: vec![result(&window, counter), result(&window, note)],
        };
        for results in [results, Results::default()] {
            let folder = tempfile::tempdir().unwrap();
            write(folder.path(), &results).unwrap();
            assert_eq!(read(folder.path()).unwrap(), results);
        }
    }
}
