//! Waits as folded stacks: an off-CPU flame graph.
//!
//! ```text
//! make;main;reap_children;wait4;__x64_sys_wait4;kernel_wait4;do_wait;schedule;[child] 31872210045
//! process;its functions, outermost first;kernel functions;[cause] ns
//! ```

use std::io::{self, Write};

use trace_analysis::waits::stacks;

use super::Run;
use crate::folded::write_stacks;

/// Writes the waits of the command's tasks, or of everybody where no command ran. Their sum is the lives of those tasks
/// less what they ran. Of several machines each line begins with its machine.
///
/// # Errors
/// Only the writer's.
pub fn write(run: Run<'_>, mut out: impl Write) -> io::Result<()> {
    let findings = run.findings();
    let mut named = Vec::new();
    for found in &findings {
        let machine = run.tables.machines[found.timeline.machine.index()].name.as_str();
        let of_machine = stacks(run.tables, found.timeline, &found.classifier, &found.tasks);
        for (stack, sum) in of_machine {
            named.push((machine, format!("[{}]", stack.cause.name()), stack, sum.ns));
        }
    }
    let has_one = findings.len() == 1;
    let lines = named.iter().map(|(machine, cause, stack, ns)| {
        let root = (!has_one).then_some(*machine).into_iter().chain([stack.process.as_str()]);
        let functions = stack.user.iter().chain(&stack.kernel).copied();
        (root.chain(functions).chain([cause.as_str()]).collect(), *ns)
    });
    write_stacks(lines, &mut out)
}
