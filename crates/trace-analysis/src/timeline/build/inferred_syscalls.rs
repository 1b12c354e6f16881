//! System calls of tasks that neither enter nor leave one during the trace, so that no event shows them.
//!
//! What is known of one moment then holds for the whole trace:
//!
//! ```text
//!  found in a call       | runs | asleep | runs | preempted | runs |     the tables name the call
//!                        | runs | asleep | runs |                        its kernel stack there names the call
//!  a vCPU's thread       | runs | preempted | runs |                     its guest has an event: in `ioctl`, which runs guests
//! ```
//!
//! This needs a trace without lost events. Tasks whose system calls were filtered out are not affected: the tables
//! have no call and no stack of theirs.

use model::{HostNs, MachineId, Tid, TraceEvent, TraceStack, TraceTables};
use rustc_hash::{FxHashMap, FxHashSet};

use super::tasks::{Mode, Tracked};
use super::{Builder, IOCTL};
use crate::kernel::syscall_number;

/// Evidence for the system call that a task is in for the whole trace.
#[derive(Debug)]
pub(super) struct SyscallEvidence<'a> {
    tables: &'a TraceTables,
    machine: MachineId,
    /// Found in a call.
    found: FxHashMap<Tid, u16>,
    /// Threads of vCPUs whose guests have events.
    ran_guests: FxHashSet<Tid>,
}

impl<'a> SyscallEvidence<'a> {
    pub(super) fn new(tables: &'a TraceTables, machine: MachineId) -> Self {
        let rows = tables.tasks.iter().filter(|task| task.machine == machine);
        let found = rows.filter_map(|task| Some((task.tid, task.in_call?))).collect();
        Self { tables, machine, found, ran_guests: FxHashSet::default() }
    }

    /// An event of another machine: the host's thread of that vCPU ran the guest, if the event certainly lies in the
    /// host's trace.
    pub(super) fn see_other(&mut self, event: &TraceEvent) {
        let guest = self.tables.machines.get(event.machine.index());
        let threads = guest.map_or(&[][..], |guest| &guest.vcpu_threads);
        let (Some(thread), MachineId::HOST) = (threads.get(event.cpu as usize), self.machine)
        else {
            return;
        };
        let error = guest.and_then(|guest| guest.clock_error_ns).unwrap_or(u64::MAX);
        let Some(host) = self.tables.machines.first() else { return };
        let sure =
            HostNs(host.begin.0.saturating_add(error))..HostNs(host.end.0.saturating_sub(error));
        if sure.contains(&event.time) {
            self.ran_guests.insert(*thread);
        }
    }

    /// The call of a task without system call events.
    fn call(&self, task: &Tracked) -> Option<u16> {
        let sleeps = task.sleeps().filter(|sleep| sleep.syscall.is_none());
        let by_stack = || sleeps.filter_map(|sleep| self.call_of_stack(sleep.stack?)).next();
        let tid = task.task.tid;
        let found = self.found.get(&tid).copied().filter(|_| task.task.before);
        found.or_else(by_stack).or_else(|| self.ran_guests.contains(&tid).then_some(IOCTL))
    }

    fn call_of_stack(&self, stack: TraceStack) -> Option<u16> {
        let stacks = &self.tables.stacks;
        let key = (self.machine, stack);
        let row = stacks.binary_search_by_key(&key, |(machine, stack, _)| (*machine, *stack));
        let functions = &stacks.get(row.ok()?)?.2;
        functions.iter().find_map(|name| syscall_number(name.strip_prefix("__x64_sys_")?))
    }
}

impl Builder<'_> {
    /// Assigns inferred calls; to be called after the last event.
    pub(super) fn infer_syscalls(&mut self) {
        if !self.scope.lossless {
            return;
        }
        for task in self
            .tasks
            .iter_mut()
            .filter(|task| task.is_mode_unknown() || !task.unknown_slices.is_empty())
        {
            let Some(number) = self.evidence.call(task) else { continue };
            task.slept_in(number);
            let work = task.executes(Mode::Syscall(number));
            for (cpu, slice) in std::mem::take(&mut task.unknown_slices) {
                self.cpus[cpu].did(slice, work);
            }
        }
    }
}

#[cfg(test)]
mod test {
    use model::{Interrupt, LostEvents, Machine, Pid, PrevState, TraceEventKind, Vector};

    use super::super::testing::{Scene, enter, exit, irq, irq_end, leave, switch, wakeup};
    use super::*;

    const TIMER: Interrupt = Interrupt::Vector(Vector::LocalTimer);

    /// Thread 5 runs, sleeps, runs, and is pushed aside for thread 1, which reads.
    fn scene(first: &[(u64, u32, TraceEventKind)]) -> Scene {
        let rest = [
            (40, 0, switch(5, PrevState::Sleep, 0)),
            (48, 0, wakeup(5)),
            (50, 0, switch(0, PrevState::Runnable, 5)),
            (60, 0, irq(TIMER)),
            (65, 0, irq_end(TIMER)),
            (70, 0, switch(5, PrevState::Runnable, 1)),
            (75, 0, enter(1, 0)),
        ];
        Scene::new(&[first, &rest].concat()).task(5, "thread")
    }

    fn found_in(mut scene: Scene, call: u16) -> Scene {
        scene.tables.tasks.last_mut().unwrap().in_call = Some(call);
        scene
    }

    fn slept_in(mut scene: Scene, functions: &[&str]) -> Scene {
        let functions = functions.iter().map(|&name| name.to_owned()).collect();
        scene.tables.stacks = vec![(MachineId::HOST, TraceStack(7), functions)];
        scene
    }

    /// A VM with one vCPU, thread 5, whose guest has an event.
    fn ran_guest(mut scene: Scene, time: u64, clock_error_ns: Option<u64>) -> Scene {
        let (vm_process, vcpu_threads) = (Some(Pid(5)), vec![Tid(5)]);
        let vm = Machine { vm_process, vcpu_threads, clock_error_ns, ..Machine::default() };
        scene.tables.machines.push(vm);
        let what = switch(0, PrevState::Runnable, 9);
        scene.events.push(TraceEvent {
            time: HostNs(time),
            machine: MachineId(1),
            cpu: 0,
            kind: what,
        });
        scene
    }

    fn slept(how: &str) -> String {
        let after = "48-50 queued, 50-70 cpu0, 70-100 preempted";
        format!("0-40 cpu0, 40-48 asleep {how} by=unknown@48, {after}")
    }

    const ALL_IN_IT: &str = "0-40 5:call16, 40-50 idle, 50-60 5:call16, 60-65 5:Vector(LocalTimer), 65-70 5:call16, \
         70-75 1:user, 75-100 1:call0";
    const NOT_KNOWN: &str = "0-40 5:?, 40-50 idle, 50-60 5:?, 60-65 5:Vector(LocalTimer), 65-70 5:?, 70-75 1:user, 75-100 1:call0";
    const A_VCPU: &str = "0-40 5:vcpu, 40-50 idle, 50-60 5:vcpu, 60-65 5:Vector(LocalTimer), 65-70 5:vcpu, \
         70-75 1:user, 75-100 1:call0";
    const KVM: [&str; 3] = ["kvm_vcpu_block", "kvm_vcpu_ioctl", "__x64_sys_ioctl"];

    #[test]
    fn what_is_known_of_one_moment_holds_for_all() {
        scene(&[]).check_cpu(0, NOT_KNOWN);
        scene(&[]).check_task(5, &slept("stack7"));
        found_in(scene(&[]), 16).check_cpu(0, ALL_IN_IT);
        found_in(scene(&[]), 16).check_task(5, &slept("stack7 call16"));
        slept_in(scene(&[]), &KVM).check_cpu(0, ALL_IN_IT);
        slept_in(scene(&[]), &["asm_exc_page_fault"]).check_cpu(0, NOT_KNOWN);
        slept_in(scene(&[]), &["__x64_sys_nosuch"]).check_cpu(0, NOT_KNOWN);
    }

    #[test]
    fn a_thread_runs_its_guest_in_a_call() {
        ran_guest(scene(&[]), 30, Some(0)).check_cpu(0, A_VCPU);
        found_in(ran_guest(scene(&[]), 200, Some(0)), 16).check_cpu(0, A_VCPU);
        // Another call of such a thread is a call.
        found_in(ran_guest(scene(&[]), 200, Some(0)), 1)
            .check_cpu(0, &ALL_IN_IT.replace("16", "1"));
        // An event that may lie outside the host's trace tells nothing.
        for (time, error) in [(30, Some(31)), (200, Some(0)), (30, None)] {
            ran_guest(scene(&[]), time, error).check_cpu(0, NOT_KNOWN);
        }
    }

    #[test]
    fn events_say_it_better() {
        let expected = "0-20 5:call3, 20-30 5:user, 30-40 5:call4, 40-50 idle, 50-60 5:call4, 60-65 5:Vector(LocalTimer), \
             65-70 5:call4, 70-75 1:user, 75-100 1:call0";
        let events = [(20, 0, leave(5, 3)), (30, 0, enter(5, 4))];
        let all = found_in(slept_in(ran_guest(scene(&events), 30, Some(0)), &KVM), 16);
        all.check_cpu(0, expected);
        // Who is killed was in its call until then.
        let killed = Scene::new(&[(10, 0, exit(5)), (20, 0, switch(5, PrevState::Dead, 0))]);
        found_in(killed.task(5, "killed"), 16)
            .check_cpu(0, "0-10 5:call16, 10-20 5:call231, 20-100 idle");
    }

    #[test]
    fn nothing_is_concluded_where_events_are_lost() {
        let lost = LostEvents { cpu: 0, kind: Some(model::TraceEventTag::SyscallExit), count: 1 };
        let scene = found_in(ran_guest(scene(&[]), 30, Some(0)), 16);
        let scene = scene.machine(|machine| machine.lost.push(lost));
        scene.check_cpu(0, &NOT_KNOWN.replace("0-40 5:?", "0-40 ?").replace("1:user", "1:?"));
    }
}
