//! Exports of drawn traces, read back.

pub(crate) mod drawn;

mod perfetto;
