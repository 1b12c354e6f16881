//! The work for an answer ends when its host has hung up: a host that gives a busy guest up and tries again would have it
//! work for answers that go nowhere.

/// No host waits for the answer any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HungUp;

/// Whether the asking host is still there.
#[derive(Clone, Copy)]
pub(crate) struct Waiting<'a>(&'a dyn Fn() -> bool);

impl<'a> Waiting<'a> {
    /// `is_there` takes no longer than a system call.
    pub(crate) fn new(is_there: &'a dyn Fn() -> bool) -> Self {
        Self(is_there)
    }

    /// A place at which work can end.
    pub(crate) fn check(self) -> Result<(), HungUp> {
        if (self.0)() { Ok(()) } else { Err(HungUp) }
    }
}

impl Waiting<'static> {
    /// Of work that is done whatever happens.
    pub(crate) fn always() -> Self {
        Self(&|| true)
    }
}
