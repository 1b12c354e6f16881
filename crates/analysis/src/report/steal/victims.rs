//! Victims, and time without a known victim.

use table::{Cell, Column, Keep, Scale, Table, clean, cleaned, short_module, with_id};

use super::{StealBy, VmTime};
use crate::report::calls::joined;
use crate::report::vcpu_time::VcpuTime;
use crate::steal::{Stolen, Victim, VictimTime, Victims};

/// Where CSV names those that a line stands for.
const PROCESS: usize = 1;

pub(super) fn columns(by: StealBy) -> Vec<Column> {
    // In CSV only where they are known.
    let thread = if by == StealBy::Thread { Column::data } else { Column::json_only };
    let time = |title: &str| Column::number(title).scale(Scale::Ms).adds_up();
    let mut columns = vec![
        Column::csv_only("vm"),
        Column::data("process"),
        Column::data("pid"),
        thread("thread"),
        thread("tid"),
        Column::data("function"),
        Column::data("module"),
        Column::data("own_ns").adds_up(),
        Column::data("not_sampled_ns").adds_up(),
        time("own"),
        time("steal\ntype 1").csv("steal_outside_ns").json("stolen.outside_ns"),
        time("steal\ntype 2").csv("steal_vmm_ns").json("stolen.vmm_ns"),
        time("throttled").csv("throttled_ns").json("stolen.throttled_ns"),
        Column::data("samples").adds_up(),
    ];
    let names: &[&str] = match by {
        StealBy::Function => &["Function", "Process", "Module"],
        StealBy::Stack => &["Process", "Module"],
        StealBy::Thread => &["Thread", "Process"],
        _ => &["Process"],
    };
    if by == StealBy::Stack {
        columns.push(Column::json_only("callers"));
        columns.push(Column::name("Stack").csv("stack").keep(Keep::Start, 3));
    }
    columns.extend(names.iter().map(|name| Column::name(*name)));
    columns
}

pub(super) fn table(
    source: &VcpuTime<'_>,
    vm: &VmTime,
    victims: &Victims,
    by: StealBy,
    limit: Option<usize>,
) -> Table {
    let vm = source.vm(vm.vm).name.as_str();
    let (kind, why_unattributed) = match by {
        StealBy::Function => {
            ("functions", "functions before and after; --by process attributes more")
        }
        StealBy::Stack => ("stacks", "stacks before and after; --by function attributes more"),
        StealBy::Thread => {
            ("threads", "or unknown threads before and after; --by process attributes more")
        }
        _ => ("processes", "processes before and after"),
    };
    let title = format!("Which {kind} of {} it was taken from, in ms", clean(vm));
    let mut table = Table::new(title, columns(by));
    for (victim, time) in &victims.rows {
        table.row(row(vm, by, victim, time));
    }
    table.limit(limit);
    if let Some(other) = table.rest.first_mut() {
        (other[0], other[PROCESS]) = (vm.into(), other.last().cloned().unwrap_or(Cell::NONE));
    }
    let unattributed = Cell::from("(unattributed)");
    let names =
        [vm.into(), unattributed.clone()].into_iter().chain(std::iter::repeat_n(Cell::NONE, 8));
    let callers = (by == StealBy::Stack).then_some(Cell::NONE);
    let times = stolen(&victims.unattributed).into_iter().chain([Cell::NONE]);
    table.rest.push(names.chain(times).chain(callers).chain([unattributed]).collect());
    if 0 < victims.unattributed.total_ns() {
        table.notes.push(format!("(unattributed): different {why_unattributed}"));
    }
    table
}

fn row<'a>(
    vm: &str,
    by: StealBy,
    victim: &'a Victim,
    time: &VictimTime,
) -> impl Iterator<Item = Cell> + use<'a> {
    let Victim { process, pid, thread, tid, function, module, callers } = victim;
    let who = [vm.into(), process.as_str().into(), (*pid).into(), thread.clone().into()];
    let who =
        who.into_iter().chain([(*tid).into(), function.clone().into(), module.clone().into()]);
    let own = [time.own_ns, time.not_sampled_ns, time.run_ns()].map(Cell::ns);
    let times = own.into_iter().chain(stolen(&time.stolen)).chain([time.samples.into()]);
    let process = with_id(process, *pid);
    let names = match (function, by) {
        (Some(function), _) => {
            vec![
                joined(function, callers),
                process,
                module.as_deref().map_or("-", short_module).to_owned(),
            ]
        }
        (None, StealBy::Thread) => {
            let thread =
                thread.as_deref().map_or("[unknown]".to_owned(), |name| with_id(name, *tid));
            vec![thread, process]
        }
        (None, _) => vec![process],
    };
    let callers = Cell::Json(callers.iter().map(|caller| cleaned(caller)).collect());
    let callers = (by == StealBy::Stack).then_some(callers);
    who.chain(times).chain(callers).chain(names.into_iter().map(Cell::Text))
}

fn stolen(stolen: &Stolen) -> [Cell; 3] {
    [stolen.outside_ns, stolen.vmm_ns, stolen.throttled_ns].map(Cell::ns)
}
