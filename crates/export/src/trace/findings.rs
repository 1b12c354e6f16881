//! What `trace-analysis` finds out about one machine of a run: of a command that ran on it, else of everybody.

use trace_analysis::critical_path::{self, CriticalPath, Scope, Summary};
use trace_analysis::gantt::Subject;
use trace_analysis::group::{By, Key};
use trace_analysis::kernel::KernelTime;
use trace_analysis::profile::{Profile, profile_within};
use trace_analysis::states::{States, states};
use trace_analysis::timeline::{TaskId, Timeline};
use trace_analysis::tree;
use trace_analysis::waits::{self, Classifier, Life};

use super::Run;
use super::host_side::OnHost;
use super::names::{Names, short};

/// A machine and what was found out about it.
#[derive(Debug)]
pub(super) struct Findings<'a> {
    pub(super) names: Names<'a>,
    /// The command's tasks, or all.
    pub(super) who: Vec<TaskId>,
    /// The command's.
    pub(super) scope: Option<Scope>,
    /// While the command ran, or of the whole trace.
    pub(super) profile: Profile,
    pub(super) states: States,
    pub(super) classifier: Classifier,
    /// Of every task.
    pub(super) lives: Vec<Life>,
    /// Of the whole trace.
    pub(super) kernel: KernelTime,
    pub(super) path: Option<(CriticalPath, Summary)>,
    /// Of a VM whose host was traced, too.
    pub(super) on_host: Option<OnHost<'a>>,
}

/// All machines of a run.
pub(super) fn findings<'a>(run: Run<'a>) -> Vec<Findings<'a>> {
    let of = |timeline: &'a Timeline| Findings::new(run, timeline);
    run.timelines.iter().map(of).collect()
}

impl<'a> Findings<'a> {
    fn new(run: Run<'a>, timeline: &'a Timeline) -> Self {
        let names = Names { tables: run.tables, timeline };
        let scope = Scope::command(names.tables, timeline);
        let who = match scope {
            Some(scope) => tree::tree(timeline, scope.task),
            None => tree::all(timeline),
        };
        let range = scope.map_or(timeline.begin..timeline.end, |scope| scope.begin..scope.end);
        let classifier = Classifier::new(names.tables, timeline.machine);
        let path = scope.map(|scope| critical_path::critical_path(timeline, scope));
        let path = path.map(|path| {
            let summary = critical_path::summary(timeline, &path);
            (path, summary)
        });
        Self {
            names,
            on_host: OnHost::of(run, timeline),
            profile: profile_within(timeline, &range),
            states: states(timeline, &who),
            lives: waits::lives(timeline, &classifier),
            kernel: KernelTime::new(timeline),
            classifier,
            who,
            scope,
            path,
        }
    }

    pub(super) fn timeline(&self) -> &'a Timeline {
        self.names.timeline
    }

    /// Whose lanes to draw.
    pub(super) fn subject(&self) -> Subject<'_> {
        let host_side = self.on_host.as_ref().map(|host| &host.side);
        Subject { timeline: self.timeline(), host_side }
    }

    /// Waits of those who are looked at, in one.
    pub(super) fn life(&self) -> Life {
        waits::total(&self.lives, &self.who)
    }

    pub(super) fn waits_by(&self, by: By) -> Vec<waits::Row> {
        waits::rows(self.timeline(), &self.lives, by, &self.who)
    }
}

/// `cc1`, `cc1 (812)`.
pub(super) fn key_name(key: &Key) -> String {
    match key.tid.map(|tid| tid.0).or(key.pid.map(|pid| pid.0)) {
        Some(id) => format!("{} ({id})", short(&key.name)),
        None => short(&key.name),
    }
}
