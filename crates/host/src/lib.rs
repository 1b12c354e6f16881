//! host

pub mod procfs;
pub mod sideband;
