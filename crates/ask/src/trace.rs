//! What a traced job waited for.

use std::path::Path;

use analysis::ProcessFilter;
use model::{MachineId, error_chain};
use recording::trace::Trace;
use serde_json::Map;
use table::{Table, figure as in_digits, length};
use trace_analysis::findings::Findings;
use trace_analysis::report::{categories, causes, details, improvements};
use trace_analysis::timeline::{Survey, Timeline};

use crate::answer::Answer;
use crate::missing;
use crate::question::{Arguments, Question};
use crate::source::AskError;

/// A trace, read once for all questions.
#[derive(Debug)]
pub struct TraceSource {
    trace: Trace,
    timeline: Timeline,
}

impl TraceSource {
    /// Opens the trace at `folder`: the machine on which the command ran, or the first.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn open(folder: &Path) -> Result<Self, AskError> {
        let failed = |error: recording::Error| AskError::Source(error_chain(&error));
        let trace = Trace::open(folder).map_err(failed)?;
        let rows = (0..).map(MachineId).zip(&trace.tables.machines);
        let mut traced = rows.filter(|(_, row)| !row.cpus.is_empty()).map(|(machine, _)| machine);
        let command = trace.tables.command.as_ref().map(|command| command.machine);
        let machine = traced.clone().find(|machine| Some(*machine) == command);
        let machine = machine.or_else(|| traced.next());
        let machine =
            machine.ok_or_else(|| AskError::Source("no machine was traced".to_owned()))?;
        let mut survey = Survey::new(&trace.tables, machine);
        if trace.header.leaves_out_switches(machine) {
            survey.switches_left_out();
        }
        trace.for_each_batch(&mut |batch| survey.see(batch)).map_err(failed)?;
        let mut builder = survey.builder();
        trace.for_each_batch(&mut |batch| builder.see(batch)).map_err(failed)?;
        let timeline = builder.finish();
        Ok(Self { trace, timeline })
    }

    /// Answers `job-waits`, the question that a trace answers.
    ///
    /// # Errors
    /// When it is another one, or there is no such process.
    pub fn answer(&self, question: Question, given: &Arguments) -> Result<Answer, AskError> {
        question.check(given)?;
        if question != Question::JobWaits {
            let text = "a trace answers job-waits only: give a recording or a server";
            return Err(AskError::Arguments(text.to_owned()));
        }
        let mut findings = Findings::new(&self.trace.tables, &self.timeline, None);
        if let Some(process) = &given.process {
            let filter = ProcessFilter::new(process);
            let is_meant = |key: &trace_analysis::group::Key| {
                filter.matches(&key.name, key.pid.map(|pid| pid.0))
            };
            findings = findings.of_processes("the process", is_meant).map_err(|_| {
                AskError::Arguments("no such process in this trace: leave `process` out".to_owned())
            })?;
        }
        let life = findings.life();
        let (waiting, unknown) = (life.waiting().ns, life.unknown().ns);
        let share = 100.0 * unknown as f64 / waiting.max(1) as f64;
        let mut summary = format!(
            "{} ran {} and waited {}. The cause of {share:.1} % of the waiting is unknown.",
            table::counted(findings.tasks.len() as u64, "task"),
            length(life.running.ns),
            length(waiting),
        );
        let mut tables = vec![titled("What was waited for", causes(&life, None))];
        if let Some(path) = findings.path() {
            let wall_s = path.summary.wall_ns as f64 / 1e9;
            summary += &format!(" The critical path is {} s long.", in_digits(wall_s));
            let path = &path.summary;
            tables.insert(0, titled("What the critical path is made of", categories(path, None)));
            tables.insert(1, titled("What would make the job faster", improvements(path, None)));
        }
        tables.push(titled("Waits in detail", details(&findings, None)));
        let header = &self.trace.header;
        let mut missing = missing::table();
        let mut add = |what: &str, amount: table::Cell, reason: &str| {
            missing.row([what.into(), amount, "".into(), "trace".into(), reason.into()]);
        };
        if !header.complete {
            add("end", table::Cell::NONE, "the recorder did not finish");
        }
        for (name, n) in header.counters.iter().filter(|(_, n)| 0 < **n) {
            add("counter", (*n).into(), name);
        }
        for note in &header.notes {
            add("note", table::Cell::NONE, &note.text);
        }
        let mut about = Map::new();
        about.insert("source".to_owned(), "trace".into());
        about.insert("host".to_owned(), header.hostname.as_str().into());
        about.insert("length_s".to_owned(), (self.timeline.length_ns() as f64 / 1e9).into());
        Ok(Answer { question, about, summary, tables, missing, next: Vec::new() })
    }
}

fn titled(title: &str, table: Table) -> Table {
    Table { title: title.to_owned(), ..table }
}
