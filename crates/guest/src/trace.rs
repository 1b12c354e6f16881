//! The host's side of tracing a guest: questions, and what of the answers can be believed.

use api::guest::{
    Request, Response, TraceOptions, TraceSeen, TraceSlots, TraceStarted, TraceStopped,
};

use crate::check::{clean, clean_lines, is_pid};
use crate::session::Session;
use crate::session_error::{SessionError, unexpected};

/// Most characters of a name (a task's, a function's, a disk's), and of a reason.
const MAX_NAME: usize = 256;
const MAX_REASON: usize = 300;
/// Most characters of what a task sleeps in.
const MAX_STACK: usize = 4096;
/// Of the names of all stacks: deep ones of a kernel take some 40 MiB.
const MAX_STACKS_BYTES: usize = 64 << 20;

impl Session {
    /// Has the guest load and attach its probes. It has the time limit of one step, as each question below.
    ///
    /// # Errors
    /// If it does not answer, or not as it should.
    pub fn trace_start(&mut self, options: &TraceOptions) -> Result<TraceStarted, SessionError> {
        match self.ask_step(&Request::TraceStart(options.clone()))? {
            Response::TraceStarted(started) => {
                check_started(*started).and_then(|started| check_requested(started, options))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Lets the trace's command go.
    ///
    /// # Errors
    /// If it does not answer, or not as it should.
    pub fn trace_run(&mut self) -> Result<TraceSeen, SessionError> {
        self.seen(&Request::TraceRun, || ()).map(|(seen, ())| seen)
    }

    /// Reads the guest's clocks, and whether the command has ended; with what `note` says when the answer arrives.
    ///
    /// # Errors
    /// If it does not answer, or not as it should.
    pub fn trace_look<T>(&mut self, note: impl Fn() -> T) -> Result<(TraceSeen, T), SessionError> {
        self.seen(&Request::TraceLook, note)
    }

    fn seen<T>(
        &mut self,
        request: &Request,
        note: impl Fn() -> T,
    ) -> Result<(TraceSeen, T), SessionError> {
        match self.ask_step_noting(request, note)? {
            (Response::TraceSeen(seen), noted) => Ok((seen, noted)),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Has the guest send its rings' slots.
    ///
    /// # Errors
    /// If it does not answer, or not as it should.
    pub fn trace_drain(&mut self) -> Result<Vec<TraceSlots>, SessionError> {
        match self.ask_step(&Request::TraceDrain)? {
            Response::TraceSlots(slots) => Ok(slots),
            other => Err(unexpected(&other)),
        }
    }

    /// Has the guest detach its probes and name its stacks. Its rings stay until the session ends.
    ///
    /// # Errors
    /// If it does not answer, or not as it should.
    pub fn trace_stop(&mut self) -> Result<TraceStopped, SessionError> {
        match self.ask_step(&Request::TraceStop)? {
            Response::TraceStopped(stopped) => check_stopped(*stopped),
            other => Err(unexpected(&other)),
        }
    }
}

/// What the command wrote, safe to print.
#[must_use]
pub fn printable_output(stopped: &TraceStopped) -> String {
    clean_lines(&String::from_utf8_lossy(&stopped.output))
}

/// For tests that feed bytes: what an answer is worth.
pub(crate) fn check(response: Response) -> Option<Response> {
    match response {
        Response::TraceStarted(started) => {
            check_started(*started).ok().map(|started| Response::TraceStarted(Box::new(started)))
        }
        Response::TraceStopped(stopped) => {
            check_stopped(*stopped).ok().map(|stopped| Response::TraceStopped(Box::new(stopped)))
        }
        other => Some(other),
    }
}

fn check_started(mut started: TraceStarted) -> Result<TraceStarted, SessionError> {
    let nonsense = |what: &str| Err(SessionError::Nonsense(what.to_owned()));
    if started.cpus.is_empty() || !started.cpus.is_sorted_by(|one, next| one < next) {
        return nonsense("an invalid list of CPUs");
    }
    if started.cpus.last().is_some_and(|last| started.rings <= *last) {
        return nonsense("CPUs that have no ring");
    }
    started.kernel_release = clean(&started.kernel_release, MAX_NAME);
    started.pages_problem = started.pages_problem.map(|text| clean(&text, MAX_REASON));
    clean_missing(&mut started.missing);
    for tasks in [&mut started.before, &mut started.after] {
        tasks.retain(|task| is_pid(task.tid) && is_pid(task.pid));
        tasks.sort_by_key(|task| task.tid);
        tasks.dedup_by_key(|task| task.tid);
        for task in tasks {
            task.name = clean(&task.name, MAX_NAME);
            task.asleep_in = task.asleep_in.take().map(|stack| clean(&stack, MAX_STACK));
        }
    }
    Ok(started)
}

/// Its rings are no larger than requested: the host reads and keeps as much as they hold.
fn check_requested(
    started: TraceStarted,
    options: &TraceOptions,
) -> Result<TraceStarted, SessionError> {
    let (slots, requested) = (started.slots_per_ring, options.slots_per_cpu);
    if requested.checked_next_power_of_two().is_some_and(|requested| requested < slots) {
        return Err(SessionError::Nonsense(format!(
            "rings of {slots} slots instead of {requested}"
        )));
    }
    Ok(started)
}

fn check_stopped(mut stopped: TraceStopped) -> Result<TraceStopped, SessionError> {
    clean_missing(&mut stopped.missing);
    for name in &mut stopped.functions {
        *name = clean(name, MAX_NAME);
    }
    for (_, name) in &mut stopped.disks {
        *name = clean(name, MAX_NAME);
    }
    stopped.disks.sort();
    stopped.disks.dedup_by_key(|(disk, _)| *disk);
    let functions = stopped.functions.len();
    let named = |row: &u32| usize::try_from(*row).is_ok_and(|row| row < functions);
    if !stopped.stacks.iter().flat_map(|stack| &stack.functions).all(named) {
        return Err(SessionError::Nonsense("stacks with functions that it does not name".into()));
    }
    stopped.stacks.sort_by_key(|stack| stack.id);
    stopped.stacks.dedup_by_key(|stack| stack.id);
    leave_stacks_out(&mut stopped);
    Ok(stopped)
}

/// A function is named once however many stacks it is in; in the tables each stack has its names.
fn leave_stacks_out(stopped: &mut TraceStopped) {
    let TraceStopped { functions, stacks, missing, .. } = stopped;
    let name_bytes = |row: &u32| size_of::<String>() + functions[*row as usize].len();
    let mut bytes = 0;
    let fits = stacks.iter().take_while(|stack| {
        bytes += stack.functions.iter().map(name_bytes).sum::<usize>();
        bytes <= MAX_STACKS_BYTES
    });
    let fits = fits.count();
    if fits < stacks.len() {
        let reason = format!("{} stacks would take too much memory", stacks.len() - fits);
        missing.push(("stack names".to_owned(), reason));
        stacks.truncate(fits);
    }
}

fn clean_missing(missing: &mut [(String, String)]) {
    for (probe, reason) in missing {
        (*probe, *reason) = (clean(probe, MAX_NAME), clean(reason, MAX_REASON));
    }
}

#[cfg(test)]
mod test {
    use api::guest::{TraceScope, TraceStackRow, TraceTaskRow};

    use super::*;

    fn started() -> TraceStarted {
        TraceStarted { cpus: vec![0, 1], rings: 2, ..TraceStarted::default() }
    }

    #[test]
    fn a_begin_is_cleaned_and_its_cpus_have_rings() {
        let check = |change: &dyn Fn(&mut TraceStarted), expected: Result<(), &str>| {
            let mut started = started();
            change(&mut started);
            match (check_started(started), expected) {
                (Ok(_), Ok(())) => {}
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
                (got, expected) => panic!("{got:?} instead of {expected:?}"),
            }
        };
        check(&|_| (), Ok(()));
        check(&|started| started.cpus = vec![], Err("an invalid list of CPUs"));
        check(&|started| started.cpus = vec![1, 0], Err("an invalid list of CPUs"));
        check(&|started| started.cpus = vec![0, 2], Err("CPUs that have no ring"));
        let mut odd = started();
        odd.missing = vec![("p\x1b".into(), "r\n".into())];
        let task = |tid, name: &str| TraceTaskRow {
            tid,
            pid: tid,
            name: name.into(),
            ..TraceTaskRow::default()
        };
        odd.after = vec![task(7, "b\x07"), task(0, "x"), task(7, "c"), task(3, "a")];
        let checked = check_started(odd).unwrap();
        assert_eq!(checked.missing, [("p\\u{1b}".into(), "r\\u{a}".into())]);
        assert_eq!(checked.after, [task(3, "a"), task(7, "b\\u{7}")]);
    }

    #[test]
    fn rings_are_no_larger_than_requested() {
        let check = |requested, slots_per_ring, expected| {
            let options = TraceOptions {
                slots_per_cpu: requested,
                stacks: 0,
                scope: TraceScope::Everything,
                mark: 1,
                command: vec![],
            };
            let started = TraceStarted { slots_per_ring, ..started() };
            assert_eq!(
                check_requested(started, &options).is_ok(),
                expected,
                "{requested} {slots_per_ring}"
            );
        };
        check(4096, 4096, true);
        check(4096, 1024, true);
        check(5000, 8192, true);
        check(4096, 8192, false);
        check(4096, 1 << 31, false);
    }

    #[test]
    fn names_that_blow_up_are_left_out() {
        let stack = |id| TraceStackRow { id, functions: vec![0; 256] };
        let stopped = TraceStopped {
            functions: vec!["\u{200b}".repeat(200)],
            stacks: (0..2200).map(stack).collect(),
            ..TraceStopped::default()
        };
        let checked = check_stopped(stopped).unwrap();
        let bytes = checked.functions[0].len() * 256 * checked.stacks.len();
        assert!((MAX_STACKS_BYTES / 2..MAX_STACKS_BYTES).contains(&bytes), "{bytes}");
        assert!(checked.missing[0].1.ends_with("stacks would take too much memory"));
    }

    #[test]
    fn an_end_names_its_stacks() {
        let stack = |id, functions: &[u32]| TraceStackRow { id, functions: functions.to_vec() };
        let stopped = |stacks| TraceStopped {
            functions: vec!["schedule".into(), "f\u{202e}".into()],
            stacks,
            output: b"done\x1b[2J\n".to_vec(),
            ..TraceStopped::default()
        };
        let checked =
            check_stopped(stopped(vec![stack(9, &[1]), stack(3, &[0, 1]), stack(9, &[])]));
        let checked = checked.unwrap();
        assert_eq!(checked.stacks, [stack(3, &[0, 1]), stack(9, &[1])]);
        assert_eq!(checked.functions[1], "f\\u{202e}");
        assert_eq!(printable_output(&checked), "done\\u{1b}[2J\n");
        assert!(check_stopped(stopped(vec![stack(1, &[2])])).is_err());
    }
}
