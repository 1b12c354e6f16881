//! Why the kernel refused a probe.

/// The kernel refused something the sampler needs; the text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No privilege.
    #[error("sampling needs root (or CAP_BPF and CAP_PERFMON): run it with sudo")]
    Privilege,
    #[error(
        "this kernel has no type information (/sys/kernel/btf/vmlinux): use a kernel built with CONFIG_DEBUG_INFO_BTF"
    )]
    NoBtf,
    /// libbpf or the verifier refused the program.
    #[error("the kernel refused the sampling program: {0}; `vmscope doctor` says more")]
    Load(#[source] libbpf_rs::Error),
    /// A map could not be written or mapped.
    #[error("failed to set up BPF map {map}")]
    Map {
        /// Its name in the BPF object.
        map: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// `perf_event_open` refused.
    #[error("failed to open the {event} event on CPU {cpu}")]
    PerfEvent {
        /// cpu-clock or cycles.
        event: &'static str,
        cpu: u32,
        #[source]
        source: std::io::Error,
    },
    /// `perf_event_open` refused a counter of a thread.
    #[error("failed to count {event} of thread {tid}: {source}")]
    Counter {
        /// The event's name, as perf calls it.
        event: &'static str,
        tid: u32,
        source: std::io::Error,
    },
    /// Attaching the program to an event failed.
    #[error("failed to attach the sampling program on CPU {cpu}: {source}")]
    Attach { cpu: u32, source: libbpf_rs::Error },
    /// The events did not take another period.
    #[error("failed to change the sampling period")]
    Period(#[source] std::io::Error),
    /// The kernel did not attach a tracing program.
    #[error("the kernel did not attach a tracing program: {0}")]
    Trace(#[source] libbpf_rs::Error),
    /// An iterator over open files failed.
    #[error("failed to look for VMs and vCPUs with BPF program {program}: {reason}")]
    Find { program: &'static str, reason: std::io::Error },
}
