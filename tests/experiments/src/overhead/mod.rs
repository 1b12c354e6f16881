//! What sampling costs: instructions per sample of vmscope, of perf and of an empty BPF program, counted by
//! a virtual host whose time is its own instructions.

mod boot;
mod configuration;
mod figures;

pub use boot::measure;
pub use configuration::{
    COLLECTORS, COMPARED, Collector, Configuration, PERIODS, Period, RECORDED, RECORDED_S, RIVAL,
    WINDOWS, all,
};
pub use figures::{MAX_ABOVE_FLOOR, Measured, broken_promises, find, regressions, spread, table};
