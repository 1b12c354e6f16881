//! The compiled BPF programs (`bpf/*.bpf.c`), and the memory of the maps that they share with user space.
//!
//! Design constraints: one build script compiles all programs; a loader takes its object from here. Must know
//! neither a BPF loader nor what the programs do.

// The rings of the programs rely on x86's order of stores, `bpf/vmcb.bpf.h` on AMD's layout, and the trace on x86's
// system call numbers and interrupt vectors.
#[cfg(not(target_arch = "x86_64"))]
compile_error!("vmscope's BPF programs support x86-64 only (see bpf/arch.bpf.h)");

mod memory;

pub use memory::Mapped;

/// Parsers of ELF files want aligned input.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

macro_rules! object {
    ($(#[$doc:meta])* $name:ident, $file:literal) => {
        $(#[$doc])*
        pub static $name: &[u8] = {
            static OBJECT: &Aligned<[u8]> =
                &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/", $file, ".bpf.o")));
            &OBJECT.0
        };
    };
}

object!(
    /// The sampler, and the finder of vCPUs.
    SAMPLER,
    "sampler"
);
object!(
    /// Switches and wake-ups of vCPU threads.
    SWITCHES,
    "switches"
);
object!(
    /// Counts of VM exits.
    EXITS,
    "exits"
);
object!(
    /// Marks of vCPUs that their VMM took out of KVM_RUN.
    KICKS,
    "kicks"
);
object!(
    /// For how long CPU quotas throttled queues.
    QUOTAS,
    "quotas"
);
object!(
    /// Memory slots and clocks of VMs.
    VMS,
    "vms"
);
object!(
    /// A program that does nothing: the lowest possible cost of a sample.
    EMPTY,
    "empty"
);
object!(
    /// The trace probes.
    TRACER,
    "tracer"
);
object!(
    /// The log of processes inside a guest.
    GUEST_PROCESSES,
    "guest_processes"
);
object!(
    /// No program: the types of `bpf/abi/`, for a test of their layouts.
    LAYOUTS,
    "layouts"
);
