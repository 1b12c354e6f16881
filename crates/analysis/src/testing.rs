//! What unit tests share.

use model::{Header, HostNs, Trigger, Vendor};

/// A recording of two CPUs that begins at 0.
pub(crate) fn header(period_ns: u64, end: u64) -> Header {
    Header {
        vmscope_version: String::new(),
        hostname: String::new(),
        kernel: String::new(),
        boot: None,
        vendor: Vendor::Amd,
        trigger: Trigger::CpuClock,
        period_ns,
        off_cpu_source: model::OffCpuSource::Samples,
        cpus: vec![0, 1],
        start: HostNs(0),
        end: HostNs(end),
        start_unix_ns: 0,
        complete: true,
        counters: [].into(),
        notes: Vec::new(),
    }
}
