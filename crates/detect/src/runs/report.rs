//! `vmscope ci compare`: the verdict, and what changed.

use serde_json::{Value, json};
use table::{Cell, Column, Part, Report, Table, cleaned};

use super::{Comparison, FunctionShift, Shift, Verdict};

/// Version of the JSON.
const VERSION: u32 = 1;

impl Verdict {
    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::NoChange => "no_change",
        }
    }
}

/// The comparison of two groups. `limit`: functions shown.
#[must_use]
pub fn comparison(found: &Comparison, limit: Option<usize>) -> Report {
    let mut report = Report::default();
    report.fact("Runs", format!("{} before, {} after", found.base_runs, found.new_runs));
    report.fact("Verdict", verdict(found));
    report.parts.push(times(found).into());
    let sure = found.functions.as_deref();
    let mut functions = functions(sure.unwrap_or_default());
    let members = sure.map(|_| functions.json());
    functions.limit(limit);
    report.parts.push(match sure {
        None => Part::Prose("More runs are needed to say which functions changed.".to_owned()),
        Some([]) => Part::Prose("No function's CPU time changed for certain.".to_owned()),
        Some(_) => functions.into(),
    });
    report.json = json!({
        "version": VERSION,
        "verdict": found.verdict.name(),
        "least_change": found.least,
        "base_runs": found.base_runs,
        "new_runs": found.new_runs,
        "cpu": shift_json(&found.cpu),
        "wall": shift_json(&found.wall),
        "functions": members,
    });
    report
}

fn verdict(found: &Comparison) -> String {
    let Comparison { cpu, least, .. } = found;
    let change = format!("{:.2} % (99 %: {})", cpu.change.abs() * 100.0, interval(cpu));
    let confidence = format!("confidence {:.2} %", floor(cpu.confidence * 100.0));
    match found.verdict {
        Verdict::Slower => format!("slower: CPU time grew by {change}, {confidence}"),
        Verdict::Faster => format!("faster: CPU time fell by {change}, {confidence}"),
        Verdict::NoChange if cpu.is_sure() => {
            let least = least * 100.0;
            format!("no change that counts: {change} is less than the {least} % of --least")
        }
        Verdict::NoChange => {
            format!("no change seen: CPU time may have changed by {}", interval(cpu))
        }
    }
}

/// To two decimals, so that 99.999 % is no certainty.
fn floor(percent: f64) -> f64 {
    (percent * 100.0).floor() / 100.0
}

fn interval(shift: &Shift) -> String {
    format!("{:+.2} to {:+.2} %", shift.low * 100.0, shift.high * 100.0)
}

fn shift_columns() -> [Column; 5] {
    [
        Column::number("before").json("base_ns"),
        Column::number("after").json("new_ns"),
        Column::number("change, %").decimals(2).json("change_percent"),
        Column::number("from, %").decimals(2).json("low_percent"),
        Column::number("to, %").decimals(2).json("high_percent"),
    ]
}

fn shift_cells(shift: &Shift) -> [Cell; 5] {
    let percent = |part: f64| Cell::RealChange(part * 100.0);
    let [base, new] = [shift.base_ns, shift.new_ns].map(Cell::ns);
    [base, new, percent(shift.change), percent(shift.low), percent(shift.high)]
}

fn times(found: &Comparison) -> Table {
    let title = "Median of the runs, and the change with its interval of 99 %";
    let columns = [Column::name("Time")].into_iter().chain(shift_columns());
    let mut table = Table::new(title, columns.collect());
    for (name, shift) in [("CPU", &found.cpu), ("wall", &found.wall)] {
        table.row([Cell::from(name)].into_iter().chain(shift_cells(shift)));
    }
    table
}

fn functions(found: &[FunctionShift]) -> Table {
    let title = "Functions that changed for certain, in per cent of the job's CPU time before";
    let names = [
        Column::name("Function").json("function"),
        Column::name("Process").json("process"),
        Column::name("Module").json("module"),
    ];
    let columns = names.into_iter().chain(shift_columns());
    let mut table = Table::new(title, columns.collect());
    for FunctionShift { function, shift } in found {
        let module = function.module.as_deref();
        let module = module.map_or(Cell::Unknown("not known"), |module| cleaned(module).into());
        let names = [cleaned(&function.function).into(), cleaned(&function.process).into(), module];
        table.row(names.into_iter().chain(shift_cells(shift)));
    }
    table
}

fn shift_json(shift: &Shift) -> Value {
    let percent = |part: f64| (part * 1e6).round() / 1e4;
    json!({
        "base_ns": shift.base_ns,
        "new_ns": shift.new_ns,
        "change_percent": percent(shift.change),
        "low_percent": percent(shift.low),
        "high_percent": percent(shift.high),
        "confidence": (shift.confidence * 1e6).floor() / 1e6,
    })
}
