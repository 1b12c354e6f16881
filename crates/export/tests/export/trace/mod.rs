//! Exports of drawn traces, read back.

pub(crate) mod drawn;

pub(crate) mod make;

mod folded;
mod page;
mod perfetto;
