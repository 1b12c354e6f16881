//! The tables of kernel functions: what each means on the stack of a sleeping task, and which lock each takes.
//!
//! Adding a cause for a function is adding a line to `stack_rules.tsv` or `lock_callers.tsv`; they describe their format.

use super::cause::Cause;
use super::names::Names;

const STACK_RULES: &str = include_str!("stack_rules.tsv");
const LOCK_CALLERS: &str = include_str!("lock_callers.tsv");

/// What a function on a stack means. `stack_rules.tsv` explains each rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StackRule {
    Sleeps,
    Is(Cause),
    IsInnermost(Cause),
    Within(Cause),
    Disk,
    Page,
    Refines(Cause),
    Semaphore,
    Mutex,
    Fault,
}

/// The functions that have a rule.
pub(super) fn stack_rules() -> Names<StackRule> {
    Names::new(rows(STACK_RULES).filter_map(stack_rule))
}

/// The callers of semaphore functions.
pub(super) fn semaphore_callers() -> Names<Cause> {
    lock_callers("semaphore")
}

/// The callers of mutex functions.
pub(super) fn mutex_callers() -> Names<Cause> {
    lock_callers("mutex")
}

fn lock_callers(kind: &str) -> Names<Cause> {
    let callers = rows(LOCK_CALLERS).filter_map(lock_caller);
    Names::new(callers.filter(|(_, of, _)| *of == kind).map(|(name, _, cause)| (name, cause)))
}

fn rows(table: &'static str) -> impl Iterator<Item = &'static str> {
    table.lines().filter(|line| !line.starts_with('#'))
}

fn stack_rule(row: &'static str) -> Option<(&'static str, StackRule)> {
    let mut columns = row.split('\t');
    let (name, rule) = (columns.next()?, columns.next()?);
    let cause = columns.next().map(Cause::from_name);
    let rule = match (rule, cause) {
        ("sleeps", None) => StackRule::Sleeps,
        ("is", Some(cause)) => StackRule::Is(cause?),
        ("is-innermost", Some(cause)) => StackRule::IsInnermost(cause?),
        ("within", Some(cause)) => StackRule::Within(cause?),
        ("disk", None) => StackRule::Disk,
        ("page", None) => StackRule::Page,
        ("refines", Some(cause)) => StackRule::Refines(cause?),
        ("semaphore", None) => StackRule::Semaphore,
        ("mutex", None) => StackRule::Mutex,
        ("fault", None) => StackRule::Fault,
        _ => return None,
    };
    Some((name, rule))
}

fn lock_caller(row: &'static str) -> Option<(&'static str, &'static str, Cause)> {
    let mut columns = row.split('\t');
    Some((columns.next()?, columns.next()?, Cause::from_name(columns.next()?)?))
}

#[cfg(test)]
mod test {
    use super::super::names::plain;
    use super::*;

    fn check_names(mut names: Vec<(&str, &str)>) {
        names.sort_unstable();
        let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        assert!(twice.is_empty(), "{twice:?}");
        for (_, name) in names {
            let prefix = name.strip_suffix('*').unwrap_or(name);
            assert!(!prefix.contains('*') && 2 < prefix.len(), "{name}");
            assert_eq!(plain(prefix), prefix);
        }
    }

    #[test]
    fn every_stack_rule_parses_and_every_function_has_one() {
        let named = rows(STACK_RULES).map(|row| {
            let rule = stack_rule(row);
            ("", rule.unwrap_or_else(|| panic!("malformed: {row}")).0)
        });
        check_names(named.collect());
    }

    #[test]
    fn every_lock_caller_parses_and_has_one_lock_of_a_kind() {
        let named = rows(LOCK_CALLERS).map(|row| {
            let (name, kind, _) = lock_caller(row).unwrap_or_else(|| panic!("malformed: {row}"));
            assert!(matches!(kind, "semaphore" | "mutex"), "{row}");
            (kind, name)
        });
        check_names(named.collect());
    }
}
