//! The slow experiments.
fn main() {}
