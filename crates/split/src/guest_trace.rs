//! Trips to a database in the web server's own guest, by that guest's trace: no tap sees what they say to each other.
//!
//! ```text
//!  who asks          sends ..........................| woken
//!  database's thread  woken | receives | works | sends |
//!  trip               |--------------------------------|
//! ```
//! A database's thread reads questions from a socket and writes answers to one, whatever is in them: a question is there
//! when the thread is woken for it (or when it is sent, if the thread did not sleep), and has been answered by the last
//! thing that the thread sends before it receives the next one.
//!
//! A guest chose all of this: any events in any order give some trips, and memory is bounded.

use std::net::IpAddr;

use model::{HostNs, MachineId, Pid, PrevState, Tid, TraceEvent, TraceEventKind, TraceEventTag};
use model::{TaskName, TraceTables};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::CaptureNs;

/// Names of databases' processes.
const DATABASES: [&str; 4] = ["postgres", "postmaster", "mariadbd", "mysqld"];
/// System calls of x86-64 by which a database receives: recvfrom, recvmsg.
const RECEIVES: [u16; 2] = [45, 47];
/// And by which it sends: sendto, sendmsg.
const SENDS: [u16; 2] = [44, 46];
/// By which others may: write, writev, sendto, sendmsg, sendmmsg.
const ASKS: [u16; 5] = [1, 20, 44, 46, 307];
/// Threads of databases that are followed.
const MAX_THREADS: usize = 1 << 16;
const MAX_TRIPS: usize = 4_000_000;
/// Events without which a trip may be missing.
const NEEDED: [TraceEventTag; 7] = [
    TraceEventTag::Switch,
    TraceEventTag::Waking,
    TraceEventTag::Fork,
    TraceEventTag::Exec,
    TraceEventTag::Exit,
    TraceEventTag::SyscallEnter,
    TraceEventTag::SyscallExit,
];

/// What a guest's trace says of its database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedGuest {
    /// The address of its web server.
    pub web: IpAddr,
    /// Times in which the database owed an answer.
    pub trips: Vec<(CaptureNs, CaptureNs)>,
    /// From when to when it was traced.
    pub traced: (CaptureNs, CaptureNs),
    /// Events are lacking from which trips follow.
    pub has_losses: bool,
    /// Whether a database's process was there.
    pub has_database: bool,
}

/// Finds trips in the events of a guest.
#[derive(Debug)]
pub struct GuestTrips {
    machine: MachineId,
    threads: FxHashMap<Tid, Thread>,
    /// Who talks to databases, and when it last began to send.
    askers: FxHashMap<Tid, Option<HostNs>>,
    trips: Vec<(HostNs, HostNs)>,
    traced: (HostNs, HostNs),
    has_losses: bool,
    has_database: bool,
}

/// A thread of a database.
#[derive(Debug, Clone, Copy, Default)]
struct Thread {
    /// The system call that it is in, and since when.
    call: Option<(u16, HostNs)>,
    /// When it woke a task in that call.
    woke: Option<HostNs>,
    /// It lost its CPU in that call.
    was_preempted: bool,
    asker: Option<Tid>,
    /// When it was woken since its last answer, and whether a sender did that.
    woken: Option<(HostNs, bool)>,
    /// Since when it owes an answer.
    requested: Option<HostNs>,
    /// When it last sent some of it.
    answered: Option<HostNs>,
}

impl GuestTrips {
    /// Of one machine of a trace.
    #[must_use]
    pub fn new(tables: &TraceTables, machine: MachineId) -> Self {
        let row = tables.machines.get(machine.index());
        let tasks = || tables.tasks.iter().filter(|task| task.machine == machine);
        let leaders = tasks().filter(|task| task.tid.0 == task.pid.0);
        let databases: FxHashSet<Pid> = leaders
            .filter(|task| DATABASES.contains(&task.name.as_str()))
            .map(|task| task.pid)
            .collect();
        let threads = tasks().filter(|task| databases.contains(&task.pid));
        let threads = threads.take(MAX_THREADS).map(|task| (task.tid, Thread::default()));
        let is_needed =
            |kind: Option<TraceEventTag>| kind.is_none_or(|kind| NEEDED.contains(&kind));
        Self {
            machine,
            threads: threads.collect(),
            askers: FxHashMap::default(),
            trips: Vec::new(),
            traced: row.map_or_else(Default::default, |row| (row.begin, row.end)),
            has_losses: row.is_some_and(|row| {
                row.lost.iter().any(|lost| 0 < lost.count && is_needed(lost.kind))
            }),
            has_database: !databases.is_empty(),
        }
    }

    /// More events, in the order of their times.
    pub fn see(&mut self, events: &[TraceEvent]) {
        let machine = self.machine;
        for event in events.iter().filter(|event| event.machine == machine) {
            self.event(event.time, &event.kind);
        }
    }

    /// There are no more. `to_capture` turns the host's times into those of the capture.
    #[must_use]
    pub fn finish(mut self, web: IpAddr, to_capture: impl Fn(HostNs) -> CaptureNs) -> TracedGuest {
        let threads: Vec<Thread> = self.threads.values().copied().collect();
        threads.into_iter().for_each(|thread| self.emit(thread));
        self.trips.sort_unstable();
        let (begin, end) = self.traced;
        TracedGuest {
            web,
            trips: self
                .trips
                .iter()
                .map(|(from, to)| (to_capture(*from), to_capture(*to)))
                .collect(),
            traced: (to_capture(begin), to_capture(end)),
            has_losses: self.has_losses,
            has_database: self.has_database,
        }
    }

    fn event(&mut self, at: HostNs, event: &TraceEventKind) {
        match *event {
            TraceEventKind::SyscallEnter { task, number } => self.begins(task, number, at),
            TraceEventKind::SyscallExit { task, number, failed } => {
                self.ends(task, number, failed, at);
            }
            TraceEventKind::Waking { task, by } => self.wakes(task, by, at),
            TraceEventKind::Switch { prev, prev_state: PrevState::Runnable, .. } => {
                if let Some(thread) = self.threads.get_mut(&prev) {
                    thread.was_preempted = true;
                }
            }
            TraceEventKind::Fork { parent, child, .. } => {
                self.ended(child);
                // A process for a new connection: its client woke the one that accepts them.
                if let Some(Thread { woken, asker, .. }) = self.threads.get(&parent).copied() {
                    self.follow(child, Thread { woken, asker, ..Thread::default() });
                }
            }
            TraceEventKind::Exec { task, name } => self.executes(task, name),
            TraceEventKind::Exit { task } => self.ended(task),
            _ => {}
        }
    }

    fn follow(&mut self, task: Tid, thread: Thread) {
        self.has_database = true;
        if self.threads.len() < MAX_THREADS {
            self.threads.insert(task, thread);
        } else {
            self.has_losses = true;
        }
    }

    fn executes(&mut self, task: Tid, name: TaskName) {
        self.ended(task);
        if DATABASES.contains(&name.text().as_str()) {
            self.follow(task, Thread::default());
        }
    }

    fn ended(&mut self, task: Tid) {
        self.askers.remove(&task);
        if let Some(thread) = self.threads.remove(&task) {
            self.emit(thread);
        }
    }

    fn begins(&mut self, task: Tid, number: u16, at: HostNs) {
        if let Some(thread) = self.threads.get_mut(&task) {
            thread.call = Some((number, at));
            (thread.woke, thread.was_preempted) = (None, false);
        } else if ASKS.contains(&number)
            && let Some(sent) = self.askers.get_mut(&task)
        {
            *sent = Some(at);
        }
    }

    fn ends(&mut self, task: Tid, number: u16, failed: bool, at: HostNs) {
        let Some(thread) = self.threads.get_mut(&task) else { return };
        let call = thread.call.take().filter(|(entered, _)| *entered == number);
        if failed {
            return;
        }
        if SENDS.contains(&number) && thread.requested.is_some() {
            // If the client went on before this call returned, that is when the answer was there.
            let entered = call.map_or(at, |(_, entered)| entered);
            let returned = if thread.was_preempted { entered } else { at };
            thread.answered = Some(thread.woke.unwrap_or(returned));
            thread.woken = None;
        } else if RECEIVES.contains(&number)
            && (thread.requested.is_none() || thread.answered.is_some())
        {
            let sent = thread.asker.and_then(|asker| self.askers.get(&asker).copied().flatten());
            let before = *thread;
            thread.requested = Some(before.question(sent, at));
            (thread.answered, thread.woken) = (None, None);
            self.emit(before);
        }
    }

    fn wakes(&mut self, task: Tid, by: Tid, at: HostNs) {
        let is_database = self.threads.contains_key(&by);
        if let Some(thread) = self.threads.get_mut(&task) {
            let is_asker = !is_database && by.0 != 0;
            if thread.requested.is_none() || thread.answered.is_some() {
                if is_asker {
                    thread.asker = Some(by);
                }
                thread.woken = Some((at, is_asker));
            }
            if is_asker && self.askers.len() < MAX_THREADS {
                self.askers.entry(by).or_default();
            }
        } else if let Some(thread) = self.threads.get_mut(&by)
            && thread.call.is_some_and(|(number, _)| SENDS.contains(&number))
        {
            (thread.woke, thread.asker) = (Some(at), Some(task));
            if self.askers.len() < MAX_THREADS {
                self.askers.entry(task).or_default();
            }
        }
    }

    fn emit(&mut self, thread: Thread) {
        let (Some(requested), Some(answered)) = (thread.requested, thread.answered) else { return };
        if self.trips.len() < MAX_TRIPS {
            self.trips.push((requested, answered.max(requested)));
        } else {
            self.has_losses = true;
        }
    }
}

impl Thread {
    /// When the question was there that it received at `at`; who asks it last began to send at `sent`.
    fn question(&self, sent: Option<HostNs>, at: HostNs) -> HostNs {
        let since = self.answered.unwrap_or_default();
        let sent = sent.filter(|sent| since <= *sent && *sent <= at);
        match self.woken {
            Some((woken, true)) => woken,
            Some((woken, false)) => sent.unwrap_or(woken),
            None => sent.unwrap_or(at),
        }
    }
}

#[cfg(test)]
mod test {
    use model::{Machine, TraceTask};

    use super::*;

    const DB: u32 = 10;
    const WEB: u32 = 20;

    fn tables() -> TraceTables {
        let machine = MachineId(1);
        let task = |tid: u32, pid: u32, name: &str| TraceTask {
            machine,
            tid: Tid(tid),
            pid: Pid(pid),
            parent: Pid(1),
            name: name.to_owned(),
            kernel: false,
            asleep_in: None,
            in_call: None,
        };
        let row = Machine { begin: HostNs(5), end: HostNs(900), ..Machine::default() };
        TraceTables {
            machines: vec![Machine::default(), row],
            tasks: vec![
                task(9, 9, "mariadbd"),
                task(DB, 9, "one_connection"),
                task(WEB, WEB, "gunicorn"),
            ],
            ..TraceTables::default()
        }
    }

    /// Events as words: `enter TASK NUMBER`, `exit TASK NUMBER`, `fail TASK NUMBER`, `wake TASK BY`, `off TASK`.
    fn trips(events: &[(u64, &str)]) -> TracedGuest {
        let mut found = GuestTrips::new(&tables(), MachineId(1));
        let events: Vec<TraceEvent> = events
            .iter()
            .map(|(at, text)| {
                let words: Vec<&str> = text.split(' ').collect();
                let n = |at: usize| words[at].parse::<u32>().unwrap();
                let task = Tid(n(1));
                let number = || u16::try_from(n(2)).unwrap();
                let kind = match words[0] {
                    "enter" => TraceEventKind::SyscallEnter { task, number: number() },
                    "exit" => TraceEventKind::SyscallExit { task, number: number(), failed: false },
                    "fail" => TraceEventKind::SyscallExit { task, number: number(), failed: true },
                    "wake" => TraceEventKind::Waking { task, by: Tid(n(2)) },
                    "fork" => TraceEventKind::Fork {
                        parent: task,
                        child: Tid(n(2)),
                        pid: Pid(n(2)),
                        kernel: false,
                    },
                    "off" => TraceEventKind::Switch {
                        prev: task,
                        prev_state: PrevState::Runnable,
                        stack: None,
                        user_stack: None,
                        next: Tid(0),
                    },
                    "ended" => TraceEventKind::Exit { task },
                    other => panic!("{other}"),
                };
                TraceEvent { time: HostNs(*at), machine: MachineId(1), cpu: 0, kind }
            })
            .collect();
        found.see(&events);
        let web = IpAddr::from([10, 0, 0, 2]);
        found.finish(web, |time| CaptureNs(time.0 + 1000))
    }

    fn check(events: &[(u64, &str)], expected: &[(u64, u64)]) {
        let expected: Vec<_> = expected
            .iter()
            .map(|(from, to)| (CaptureNs(1000 + from), CaptureNs(1000 + to)))
            .collect();
        assert_eq!(trips(events).trips, expected);
    }

    #[test]
    fn from_waking_the_database_to_its_waking_the_client() {
        let asleep = [
            (100, "enter 20 44"),
            (101, "wake 10 20"),
            (102, "exit 20 44"),
            (103, "exit 10 45"),
            (110, "enter 10 44"),
            (112, "wake 20 10"),
            (114, "exit 10 44"),
            (115, "enter 10 45"),
            (116, "fail 10 45"),
        ];
        check(&asleep, &[(101, 112)]);
        // The next question comes before it sleeps, and the web server has a CPU before the answer's call returns.
        let awake = [
            (120, "enter 20 44"),
            (122, "exit 20 44"),
            (125, "exit 10 45"),
            (130, "enter 10 44"),
            (131, "off 10"),
            (139, "exit 10 44"),
        ];
        check(&[&asleep[..], &awake].concat(), &[(101, 112), (120, 130)]);
    }

    #[test]
    fn an_answer_is_what_is_sent_before_the_next_question() {
        let events = [
            (101, "wake 10 20"),
            (103, "exit 10 45"),
            // A question in two pieces, an answer in three, one of which finds no room.
            (104, "fail 10 45"),
            (106, "exit 10 45"),
            (110, "enter 10 44"),
            (111, "exit 10 44"),
            (112, "enter 10 44"),
            (113, "fail 10 44"),
            (114, "enter 10 232"),
            (118, "wake 10 20"),
            (119, "exit 10 232"),
            (120, "enter 10 44"),
            (121, "exit 10 44"),
            (130, "wake 10 20"),
            (131, "exit 10 45"),
            (140, "ended 10"),
        ];
        check(&events, &[(101, 121)]);
    }

    #[test]
    fn threads_that_databases_make_are_databases_and_others_are_not() {
        let events = [
            (48, "wake 9 20"),
            (50, "fork 9 30"),
            (61, "exit 30 45"),
            (70, "exit 30 44"),
            (80, "fork 20 30"),
            (81, "exit 30 45"),
            (90, "exit 30 44"),
            (91, "exit 20 45"),
            (92, "exit 20 44"),
        ];
        check(&events, &[(48, 70)]);
        assert!(trips(&events).has_database);
        let none = GuestTrips::new(&TraceTables::default(), MachineId(1));
        assert!(!none.finish([10, 0, 0, 2].into(), |time| CaptureNs(time.0)).has_database);
    }

    #[test]
    fn what_was_lost_is_said() {
        let mut tables = tables();
        let lost = |kind| model::LostEvents { cpu: 0, kind: Some(kind), count: 1 };
        let has_losses = |tables: &TraceTables| GuestTrips::new(tables, MachineId(1)).has_losses;
        tables.machines[1].lost.push(lost(TraceEventTag::BlockIssue));
        assert!(!has_losses(&tables));
        tables.machines[1].lost.push(lost(TraceEventTag::SyscallExit));
        assert!(has_losses(&tables));
    }
}
