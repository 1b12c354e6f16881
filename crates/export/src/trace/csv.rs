//! Every stretch of every task's life as CSV (RFC 4180).

use std::io::{self, Write};

use model::HostNs;
use table::field;
use trace_analysis::group::{By, grouped};
use trace_analysis::timeline::{State, Timeline};
use trace_analysis::tree::all;
use trace_analysis::waits::{Classifier, waker_name};

use super::Run;

const TITLES: &str = "machine,process_name,pid,thread_name,tid,begin_ns,end_ns,state,cause,function,cpu,woken_by\r\n";

/// Writes a line per stretch; instants are ns after `begin`.
///
/// # Errors
/// Only the writer's.
pub fn write(run: Run<'_>, begin: HostNs, mut out: impl Write) -> io::Result<()> {
    out.write_all(TITLES.as_bytes())?;
    for timeline in run.timelines {
        let tables = run.tables;
        let classifier = Classifier::new(tables, timeline.machine);
        let machine = field(&tables.machines[timeline.machine.index()].name);
        let processes = process_names(timeline);
        for (task, process) in timeline.tasks.iter().zip(&processes) {
            let (name, pid, tid) = (field(task.name()), task.pid, task.tid);
            for segment in &task.segments {
                let (from, to) = (segment.begin.since(begin), segment.end.since(begin));
                let wait = classifier.wait(timeline, task, &segment);
                let cause = wait.as_ref().map_or("", |wait| wait.cause.name());
                let function = field(wait.as_ref().map_or("", |wait| wait.function));
                let (state, cpu, by) = state_fields(timeline, &segment.state);
                let by = field(&by);
                let line = format!(
                    "{machine},{process},{pid},{name},{tid},{from},{to},{state},{cause},{function},{cpu},{by}\r\n"
                );
                out.write_all(line.as_bytes())?;
            }
        }
    }
    out.flush()
}

/// Of each task.
fn process_names(timeline: &Timeline) -> Vec<String> {
    let mut names = vec![String::new(); timeline.tasks.len()];
    for (key, tasks) in grouped(timeline, By::Process, &all(timeline)) {
        let name = field(&key.name);
        tasks.iter().for_each(|id| names[id.index()].clone_from(&name));
    }
    names
}

/// The state's name, its CPU, and who ended it.
fn state_fields(timeline: &Timeline, state: &State) -> (&'static str, String, String) {
    let none = String::new;
    match state {
        State::Running { cpu } => ("running", cpu.to_string(), none()),
        State::Runnable { .. } => ("runnable", none(), none()),
        State::Asleep(sleep) => {
            let by = sleep.woken_by.and_then(|waker| waker_name(timeline, waker.by));
            ("asleep", none(), by.unwrap_or_default())
        }
        State::Stopped { .. } => ("stopped", none(), none()),
        State::Unknown => ("unknown", none(), none()),
    }
}
