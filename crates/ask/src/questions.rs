//! The answers to all questions but those to traces.

mod changes;
mod details;
mod losses;
#[cfg(test)]
pub(crate) mod test;

use serde_json::{Map, Value};
use table::Table;

use crate::answer::{Answer, Next, PAGE, figure, name, percent, seconds, shown_end};
use crate::facts::{function_id, sums};
use crate::missing;
use crate::question::{Arguments, Question};
use crate::source::{AskError, Part, Source, Span};

/// Answers a question.
///
/// # Errors
/// When the arguments don't fit, or there is no data.
pub fn answer(
    source: &dyn Source,
    question: Question,
    arguments: &Arguments,
) -> Result<Answer, AskError> {
    question.check(arguments)?;
    match question {
        Question::WhatIsWrong => losses::what_is_wrong(source, arguments),
        Question::WhySlow => losses::why_slow(&View::open(source, arguments)?),
        Question::WhoTookCpu => losses::who_took_cpu(&View::open(source, arguments)?),
        Question::WhatHelps => losses::what_helps(source, arguments),
        Question::WhatChanged => changes::what_changed(source, arguments),
        Question::Compare => changes::compare(source, arguments),
        Question::HotFunctions => hot_functions(source, arguments),
        Question::Details => details::details(source, arguments),
        Question::JobWaits => {
            Err(AskError::Arguments("job-waits needs a trace: this is none".to_owned()))
        }
    }
}

/// A VM in a time.
struct View<'a> {
    source: &'a dyn Source,
    part: Part,
    vm: String,
}

impl<'a> View<'a> {
    fn open(source: &'a dyn Source, arguments: &Arguments) -> Result<Self, AskError> {
        let span = Span::parse(source, arguments.from.as_deref(), arguments.to.as_deref())?;
        Self::open_in(source, arguments, span)
    }

    fn open_in(
        source: &'a dyn Source,
        arguments: &Arguments,
        span: Span,
    ) -> Result<Self, AskError> {
        let vm = arguments.vm.as_deref().unwrap_or_default();
        let host = source.host(arguments.host.as_deref(), Some(vm), span)?;
        let part = source.part(&host, span)?;
        let vm = part.vm(vm)?.to_owned();
        Ok(Self { source, part, vm })
    }

    fn answer(&self, question: Question, summary: String) -> Answer {
        let about = about(self.source, &self.part, Some(&self.vm));
        let missing = missing::of_part(&self.part, Some(&self.vm));
        Answer { question, about, summary, tables: Vec::new(), missing, next: Vec::new() }
    }

    /// The same VM and time in another question.
    fn next(&self, question: Question, because: &'static str) -> Next {
        let arguments = arguments(self.source, &self.part, Some(&self.vm));
        Next { question, because, arguments }
    }

    /// The same for a row.
    fn details(&self, id: String, because: &'static str) -> Next {
        let mut next = self.next(Question::Details, because);
        next.arguments.insert("id".to_owned(), id.into());
        next
    }

    fn total_ns(&self) -> u64 {
        self.part.summary.vms.get(&self.vm).map_or(0, detect::VmSummary::total_ns)
    }

    /// CPUs on average.
    fn cpus(&self, ns: u64) -> f64 {
        ns as f64 / self.part.summary.length_ns.max(1) as f64
    }
}

/// Host, VM and time of an answer.
fn about(source: &dyn Source, part: &Part, vm: Option<&str>) -> Map<String, Value> {
    let mut about = about_time(source, Some(&part.host), vm, part.span);
    about.insert("host".to_owned(), part.host.as_str().into());
    about.insert("length_s".to_owned(), ((part.span.seconds() * 1e3).round() / 1e3).into());
    if let Some(vm) = vm {
        about.insert("vm".to_owned(), vm.into());
    }
    about
}

/// Source, page and time of an answer.
fn about_time(
    source: &dyn Source,
    host: Option<&str>,
    vm: Option<&str>,
    span: Span,
) -> Map<String, Value> {
    let mut about = Map::from_iter([("source".to_owned(), Value::from(source.kind()))]);
    about.extend(span_arguments(source, span));
    about.extend(source.page(host, vm, span).map(|page| (PAGE.to_owned(), page.into())));
    about
}

/// Host, VM and time as arguments.
fn arguments(source: &dyn Source, part: &Part, vm: Option<&str>) -> Map<String, Value> {
    let mut arguments = Map::new();
    arguments.insert("host".to_owned(), part.host.as_str().into());
    arguments.extend(vm.map(|vm| ("vm".to_owned(), vm.into())));
    arguments.extend(span_arguments(source, part.span));
    arguments
}

fn span_arguments(source: &dyn Source, span: Span) -> [(String, Value); 2] {
    [
        ("from".to_owned(), source.time(span.from_us).into()),
        ("to".to_owned(), source.time(span.to_us).into()),
    ]
}

fn hot_functions(source: &dyn Source, given: &Arguments) -> Result<Answer, AskError> {
    if given.vm.is_none() {
        return hot_on_host(source, given);
    }
    let view = View::open(source, given)?;
    let total: u64 = view.part.vcpu_rows(&view.vm).map(|row| row.corrected_ns).sum();
    let summary = format!(
        "The guest ran {:.3} s. Apparent time is with time lost meanwhile, corrected time without.",
        total as f64 / 1e9
    );
    let mut answer = view.answer(Question::HotFunctions, summary);
    let columns = vec![
        name("id"),
        figure("apparent_s"),
        figure("corrected_s"),
        figure("corrected_percent"),
        figure("samples"),
        name("function"),
        name("module"),
        name("process"),
    ];
    let mut table = Table::new("Functions, most apparent time first", columns);
    for (code, time) in view.part.functions(&view.vm) {
        table.row([
            function_id(&view.vm, &code).into(),
            seconds(time.apparent_ns),
            seconds(time.corrected_ns),
            percent(time.corrected_ns, total),
            time.samples.into(),
            code.function.into(),
            code.module.into(),
            code.process.into(),
        ]);
    }
    answer.tables.push(table);
    if given.paths {
        answer.tables.push(paths(source, Some(&view.vm), &view.part)?);
    }
    if let Some((code, _)) = view.part.functions(&view.vm).first() {
        let because = "the function with most time: its threads, and who took its time";
        answer.next.push(view.details(function_id(&view.vm, code), because));
    }
    answer.next.push(view.next(Question::WhySlow, "time that the guest did not get"));
    Ok(answer)
}

/// Call paths, outermost function first.
fn paths(source: &dyn Source, vm: Option<&str>, part: &Part) -> Result<Table, AskError> {
    let mut table = Table::new(
        "Call paths, innermost functions last; the begin of long ones is cut off",
        vec![figure("time_s"), name("path")],
    );
    for (path, ns) in source.paths(vm, part)? {
        table.row([seconds(ns), shown_end(&path).into()]);
    }
    Ok(table)
}

fn hot_on_host(source: &dyn Source, given: &Arguments) -> Result<Answer, AskError> {
    let span = Span::parse(source, given.from.as_deref(), given.to.as_deref())?;
    let host = source.host(given.host.as_deref(), None, span)?;
    let part = source.part(&host, span)?;
    let rows = part.cpu_rows().filter(|row| !matches!(row.level.as_str(), "idle" | "not_sampled"));
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let by_code = sums(rows.map(|row| {
        let code = &row.code;
        let names = [&code.function, &code.module, &code.process, &row.vm].map(text);
        ((row.level.clone(), names), row.ns)
    }));
    let total: u64 = by_code.iter().map(|(_, ns)| ns).sum();
    let cpus = total as f64 / part.summary.length_ns.max(1) as f64;
    let summary =
        format!("{cpus:.2} of the host's {} CPUs were used on average.", part.summary.cpus);
    let columns = vec![
        figure("time_s"),
        figure("used_percent"),
        name("level"),
        name("function"),
        name("module"),
        name("process"),
        name("vm"),
    ];
    let mut table = Table::new("Functions of the host and of guests", columns);
    for ((level, names), ns) in by_code {
        let figures = [seconds(ns), percent(ns, total), level.into()];
        table.row(figures.into_iter().chain(names.map(Into::into)));
    }
    let mut tables = vec![table];
    if given.paths {
        tables.push(paths(source, None, &part)?);
    }
    let next = arguments(source, &part, None);
    let because = "which VMs lose time on this host";
    let next = vec![Next { question: Question::WhatIsWrong, because, arguments: next }];
    let (about, missing) = (about(source, &part, None), missing::of_part(&part, None));
    let question = Question::HotFunctions;
    Ok(Answer { question, about, summary, tables, missing, next })
}

/// A figure of a VM's time for people.
fn share(ns: u64, total_ns: u64) -> String {
    format!("{:.1} %", 100.0 * ns as f64 / total_ns.max(1) as f64)
}
