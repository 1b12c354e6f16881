//! What a sleeper's stack says.
//!
//! Read from the innermost function outwards; the first that is known decides. Two kinds of function pass the question
//! on to their callers: locks (which one?) and waits for disks and pages (what for?).
//!
//! ```text
//!  schedule                   sleeps                       schedule
//!  rwsem_down_write_slowpath  a semaphore: which?          io_schedule             a disk: what for?
//!  down_write                                              folio_wait_bit_common   a page: what for?
//!  do_unlinkat                --> inode lock               filemap_get_pages       --> disk read
//!  __x64_sys_unlinkat                                      filemap_read
//! ```
//!
//! A page fault is a border: what the task did before it touched the page is not what it waits for.

use super::callers::{MUTEXES, SEMAPHORES};
use super::cause::Cause;
use super::functions::{SAYS, Says};
use super::names::{Names, plain};

/// Functions looked at: more than any kernel stack has, so that a guest's made-up one costs no more.
const MAX_DEPTH: usize = 128;
/// Bytes of a function's name that are kept.
const MAX_NAME: usize = 80;
/// Functions of a stack that is not recognised that are shown.
const SHOWN: usize = 5;

/// The tables, ready to be asked.
#[derive(Debug, Clone)]
pub(super) struct Functions {
    says: Names<Says>,
    semaphores: Names<Cause>,
    mutexes: Names<Cause>,
}

/// What a stack says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) finding: Finding,
    /// The function that tells; if none does, the innermost that does not merely sleep.
    pub(super) function: String,
    /// The innermost functions, for a stack that is not recognised.
    pub(super) innermost: String,
    /// Who waits for a lock, if this is one: the first function that neither sleeps nor takes locks.
    pub(super) caller: Option<String>,
    /// Whether it sleeps within a page fault.
    pub(super) in_fault: bool,
    /// Of a kernel task, and not in a wait that is known: how many functions of its own are on the stack.
    pub(super) kernel_loop: Option<usize>,
    /// The system call, if a function is named after it.
    pub(super) syscall: Option<String>,
}

/// What a stack says of the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// This is it.
    Is(Cause),
    /// A lock of this class.
    Lock(Cause),
    /// A disk; whether to read or write is not said.
    Disk,
    /// A page; why is not said.
    Page,
    /// Nothing but where it happened.
    Within(Cause),
    /// Nothing.
    Nothing,
}

/// Which locks a function may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Semaphore,
    Mutex,
    Either,
}

impl Functions {
    pub(super) fn new() -> Self {
        Self {
            says: Names::new(SAYS),
            semaphores: Names::new(SEMAPHORES),
            mutexes: Names::new(MUTEXES),
        }
    }

    /// Which lock a function waits for that calls a lock of this family.
    pub(super) fn lock_of(&self, family: Family, caller: &str) -> Option<Cause> {
        match family {
            Family::Semaphore => self.semaphores.get(caller),
            Family::Mutex => self.mutexes.get(caller),
            Family::Either => self.semaphores.get(caller).or_else(|| self.mutexes.get(caller)),
        }
    }

    /// Reads a stack, innermost function first.
    pub(super) fn read(&self, stack: &[String]) -> Reading {
        let stack: Vec<&str> = stack.iter().take(MAX_DEPTH).map(|name| plain(name)).collect();
        let telling: Vec<(&str, Option<Says>)> = stack
            .iter()
            .map(|name| (*name, self.says.get(name)))
            .filter(|(_, says)| *says != Some(Says::Sleeps))
            .collect();
        let found = self.find(&telling);
        let caller =
            telling.iter().find(|(_, says)| !is_lock(*says)).map(|(name, _)| clipped(name));
        let function = match (found.by, &caller) {
            (_, Some(caller)) if matches!(found.finding, Finding::Lock(_)) => caller.clone(),
            (Some(by), _) => clipped(by),
            (None, _) => telling.first().map_or(String::new(), |(name, _)| clipped(name)),
        };
        Reading {
            finding: found.finding,
            function,
            innermost: innermost(&telling),
            caller,
            in_fault: found.in_fault,
            kernel_loop: kernel_loop(&telling),
            syscall: stack.iter().find_map(|name| syscall_of(name)).map(str::to_owned),
        }
    }

    fn find<'a>(&self, telling: &[(&'a str, Option<Says>)]) -> Found<'a> {
        let mut found = Found { finding: Finding::Nothing, by: None, in_fault: false };
        for (depth, (name, says)) in telling.iter().enumerate() {
            match says {
                Some(Says::Fault) => {
                    found.in_fault = true;
                    break;
                }
                Some(Says::Semaphore | Says::Mutex) if found.finding == Finding::Nothing => {
                    let family =
                        if *says == Some(Says::Mutex) { Family::Mutex } else { Family::Semaphore };
                    return found
                        .is(Finding::Lock(self.lock_above(family, &telling[depth..])), name);
                }
                Some(says) => found.hear(*says, name, depth == 0),
                None => {}
            }
        }
        found
    }

    /// The lock that the first caller outside of lock functions waits for.
    fn lock_above(&self, family: Family, from: &[(&str, Option<Says>)]) -> Cause {
        let caller = from.iter().find(|(_, says)| !is_lock(*says));
        let cause = caller.and_then(|(name, _)| self.lock_of(family, name));
        cause.unwrap_or(Cause::Lock(super::LockClass::Other))
    }
}

struct Found<'a> {
    finding: Finding,
    by: Option<&'a str>,
    in_fault: bool,
}

impl<'a> Found<'a> {
    fn is(mut self, finding: Finding, by: &'a str) -> Self {
        (self.finding, self.by) = (finding, Some(by));
        self
    }

    /// One more function, further out than all before.
    fn hear(&mut self, says: Says, name: &'a str, innermost: bool) {
        let finding = match (says, self.finding) {
            (Says::Is(cause), Finding::Nothing | Finding::Within(_)) => Finding::Is(cause),
            (Says::Is(cause) | Says::Refines(cause), Finding::Disk | Finding::Page)
                if cause.is_storage() =>
            {
                Finding::Is(cause)
            }
            // What is read or written, a server has.
            (Says::Is(Cause::FileServer), Finding::Is(cause))
                if cause.is_storage() && cause != Cause::FileServer =>
            {
                Finding::Is(Cause::FileServer)
            }
            (Says::IsInnermost(cause), Finding::Nothing) if innermost => Finding::Is(cause),
            (Says::Disk, Finding::Nothing | Finding::Within(_)) => Finding::Disk,
            (Says::Page, Finding::Nothing | Finding::Within(_) | Finding::Disk) => Finding::Page,
            (Says::Within(cause), Finding::Nothing) => Finding::Within(cause),
            _ => return,
        };
        (self.finding, self.by) = (finding, Some(name));
    }
}

fn is_lock(says: Option<Says>) -> bool {
    matches!(says, Some(Says::Semaphore | Says::Mutex))
}

/// How many functions stand within `kthread < ret_from_fork`.
fn kernel_loop(telling: &[(&str, Option<Says>)]) -> Option<usize> {
    let is_start = |name: &str| matches!(name, "kthread" | "ret_from_fork" | "ret_from_fork_asm");
    let depth = telling.iter().position(|(name, _)| is_start(name))?;
    let waits = matches!(telling[0].1, Some(Says::Disk | Says::Page));
    (!waits).then_some(depth)
}

/// `__x64_sys_NAME` and its like.
fn syscall_of(function: &str) -> Option<&str> {
    const BEGINNINGS: [&str; 4] = ["__x64_sys_", "__do_sys_", "__se_sys_", "__ia32_sys_"];
    BEGINNINGS.iter().find_map(|beginning| function.strip_prefix(beginning))
}

fn innermost(telling: &[(&str, Option<Says>)]) -> String {
    let names: Vec<String> = telling.iter().take(SHOWN).map(|(name, _)| clipped(name)).collect();
    names.join(" < ")
}

fn clipped(name: &str) -> String {
    name.chars().take(MAX_NAME).collect()
}
