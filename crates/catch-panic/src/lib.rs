//! Calls into libraries that panic over bytes they should refuse.
//!
//! Design constraints: nothing but this. It wraps the program's panic hook, so it must stay small enough to be
//! sure of.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// What `work` returns, or nothing if it panicked.
///
/// Such a panic prints nothing: to the caller it is an error like any other, and the caller says so in its own
/// words. The first call wraps the program's panic hook; other panics still reach it.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !CATCHING.get() {
                usual(info);
            }
        }));
    });
    let outer = CATCHING.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(outer);
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_nothing() {
        assert_eq!(catch_panic(|| 1), Some(1));
        assert_eq!(catch_panic(|| panic!("not to be seen")), None::<()>);
        assert!(!CATCHING.get());
    }

    #[test]
    fn calls_may_nest() {
        assert_eq!(
            catch_panic(|| (catch_panic(|| panic!("not to be seen")), 2)),
            Some((None::<()>, 2))
        );
        assert_eq!(catch_panic(|| catch_panic(|| 3)), Some(Some(3)));
        assert!(!CATCHING.get());
    }
}
