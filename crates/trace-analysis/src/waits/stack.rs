//! Why a task sleeps, from its kernel stack.
//!
//! The stack is read from the innermost function outwards; the first function that has a rule decides. Two kinds of
//! function leave the decision to their callers: locks (which lock?) and waits for disks and pages (what for?).
//!
//! ```text
//!  schedule                   sleeps                       schedule
//!  rwsem_down_write_slowpath  a semaphore: which?          io_schedule             a disk: what for?
//!  down_write                                              folio_wait_bit_common   a page: what for?
//!  do_unlinkat                --> inode lock               filemap_get_pages       --> disk read
//!  __x64_sys_unlinkat                                      filemap_read
//! ```
//!
//! Reading stops at a page fault: what the task did before it touched the page is not what it waits for.

use super::cause::Cause;
use super::names::{Names, plain};
use super::rules::{StackRule, mutex_callers, semaphore_callers, stack_rules};

/// Functions of a stack that are read. No kernel stack is deeper; a forged stack of a guest costs no more than this.
const MAX_DEPTH: usize = 128;
/// Characters of a function's name that are kept.
const MAX_NAME: usize = 80;
/// Functions shown of a stack that is not recognised.
const SHOWN: usize = 5;

/// The tables of kernel functions.
#[derive(Debug, Clone)]
pub(super) struct Functions {
    rules: Names<StackRule>,
    semaphores: Names<Cause>,
    mutexes: Names<Cause>,
}

/// What is known from a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) finding: Finding,
    /// The function that decided; without one, the innermost that does more than sleep.
    pub(super) function: String,
    /// The innermost functions, to show a stack that is not recognised.
    pub(super) innermost: String,
    /// The first function that neither sleeps nor takes a lock: of a wait for a lock, the one that wants it.
    pub(super) caller: Option<String>,
    /// Whether it sleeps within a page fault.
    pub(super) in_fault: bool,
    /// Of a kernel thread that waits for no disk or page: how many functions of its own are on the stack.
    pub(super) kernel_loop: Option<usize>,
    /// The system call, if a function on the stack is named after one.
    pub(super) syscall: Option<String>,
}

/// What a stack rule about the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// The cause is known.
    Is(Cause),
    /// A lock of this class.
    Lock(Cause),
    /// A disk, to read or to write.
    Disk,
    /// A page, for whatever reason.
    Page,
    /// Only the surrounding operation is known.
    Within(Cause),
    Nothing,
}

/// The kinds of lock that a function may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Semaphore,
    Mutex,
    Either,
}

impl Functions {
    pub(super) fn new() -> Self {
        Self { rules: stack_rules(), semaphores: semaphore_callers(), mutexes: mutex_callers() }
    }

    /// The lock that `caller` takes when it calls a lock function of this family.
    pub(super) fn lock_of(&self, family: Family, caller: &str) -> Option<Cause> {
        match family {
            Family::Semaphore => self.semaphores.get(caller),
            Family::Mutex => self.mutexes.get(caller),
            Family::Either => self.semaphores.get(caller).or_else(|| self.mutexes.get(caller)),
        }
    }

    /// Reads a stack, innermost function first.
    pub(super) fn read(&self, stack: &[impl AsRef<str>]) -> Reading {
        let stack: Vec<&str> =
            stack.iter().take(MAX_DEPTH).map(|name| plain(name.as_ref())).collect();
        let ruled: Vec<(&str, Option<StackRule>)> = stack
            .iter()
            .map(|name| (*name, self.rules.get(name)))
            .filter(|(_, rule)| *rule != Some(StackRule::Sleeps))
            .collect();
        let found = self.find(&ruled);
        let caller = ruled.iter().find(|(_, rule)| !is_lock(*rule)).map(|(name, _)| clipped(name));
        let function = match (found.function, &caller) {
            (_, Some(caller)) if matches!(found.finding, Finding::Lock(_)) => caller.clone(),
            (Some(name), _) => clipped(name),
            (None, _) => ruled.first().map_or(String::new(), |(name, _)| clipped(name)),
        };
        Reading {
            finding: found.finding,
            function,
            innermost: innermost(&ruled),
            caller,
            in_fault: found.in_fault,
            kernel_loop: kernel_loop(&ruled),
            syscall: stack.iter().find_map(|name| syscall_of(name)).map(str::to_owned),
        }
    }

    fn find<'a>(&self, ruled: &[(&'a str, Option<StackRule>)]) -> Found<'a> {
        let mut found = Found { finding: Finding::Nothing, function: None, in_fault: false };
        for (depth, (name, rule)) in ruled.iter().enumerate() {
            match rule {
                Some(StackRule::Fault) => {
                    found.in_fault = true;
                    break;
                }
                Some(StackRule::Semaphore | StackRule::Mutex)
                    if found.finding == Finding::Nothing =>
                {
                    let family = if *rule == Some(StackRule::Mutex) {
                        Family::Mutex
                    } else {
                        Family::Semaphore
                    };
                    return found
                        .with(Finding::Lock(self.lock_above(family, &ruled[depth..])), name);
                }
                Some(rule) => found.apply(*rule, name, depth == 0),
                None => {}
            }
        }
        found
    }

    /// The lock that the first caller outside the lock functions waits for.
    fn lock_above(&self, family: Family, from: &[(&str, Option<StackRule>)]) -> Cause {
        let caller = from.iter().find(|(_, rule)| !is_lock(*rule));
        let cause = caller.and_then(|(name, _)| self.lock_of(family, name));
        cause.unwrap_or(Cause::Lock(super::LockClass::Other))
    }
}

struct Found<'a> {
    finding: Finding,
    function: Option<&'a str>,
    in_fault: bool,
}

impl<'a> Found<'a> {
    fn with(mut self, finding: Finding, name: &'a str) -> Self {
        (self.finding, self.function) = (finding, Some(name));
        self
    }

    /// Applies the rule of the next function outwards.
    fn apply(&mut self, rule: StackRule, name: &'a str, innermost: bool) {
        let finding = match (rule, self.finding) {
            (StackRule::Is(cause), Finding::Nothing | Finding::Within(_)) => Finding::Is(cause),
            (StackRule::Is(cause) | StackRule::Refines(cause), Finding::Disk | Finding::Page)
                if cause.is_storage() =>
            {
                Finding::Is(cause)
            }
            // The file that is read or written is on a server.
            (StackRule::Is(Cause::FileServer), Finding::Is(cause))
                if cause.is_storage() && cause != Cause::FileServer =>
            {
                Finding::Is(Cause::FileServer)
            }
            (StackRule::IsInnermost(cause), Finding::Nothing) if innermost => Finding::Is(cause),
            (StackRule::Disk, Finding::Nothing | Finding::Within(_)) => Finding::Disk,
            (StackRule::Page, Finding::Nothing | Finding::Within(_) | Finding::Disk) => {
                Finding::Page
            }
            (StackRule::Within(cause), Finding::Nothing) => Finding::Within(cause),
            _ => return,
        };
        (self.finding, self.function) = (finding, Some(name));
    }
}

fn is_lock(rule: Option<StackRule>) -> bool {
    matches!(rule, Some(StackRule::Semaphore | StackRule::Mutex))
}

/// How many functions `kthread` or `ret_from_fork` has on the stack.
fn kernel_loop(ruled: &[(&str, Option<StackRule>)]) -> Option<usize> {
    let is_start = |name: &str| matches!(name, "kthread" | "ret_from_fork" | "ret_from_fork_asm");
    let depth = ruled.iter().position(|(name, _)| is_start(name))?;
    let waits = matches!(ruled[0].1, Some(StackRule::Disk | StackRule::Page));
    (!waits).then_some(depth)
}

/// `__x64_sys_NAME` and its like.
fn syscall_of(function: &str) -> Option<&str> {
    const BEGINNINGS: [&str; 4] = ["__x64_sys_", "__do_sys_", "__se_sys_", "__ia32_sys_"];
    BEGINNINGS.iter().find_map(|beginning| function.strip_prefix(beginning))
}

/// The functions of `TraceTask::asleep_in`, innermost first, whatever stands between them.
pub(crate) fn split_stack(text: &str) -> impl Iterator<Item = &str> {
    let names = text.split(|c: char| c.is_whitespace() || matches!(c, ';' | ',' | '<'));
    names.filter(|name| !name.is_empty())
}

fn innermost(ruled: &[(&str, Option<StackRule>)]) -> String {
    let names: Vec<String> = ruled.iter().take(SHOWN).map(|(name, _)| clipped(name)).collect();
    names.join(" < ")
}

fn clipped(name: &str) -> String {
    name.chars().take(MAX_NAME).collect()
}
