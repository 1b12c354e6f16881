//! Loading the programs and attaching them.

use model::{HostNs, LostEvents, MachineId, Pid, TraceEvent, TraceStack};

use crate::mapped::LocalRings;
use crate::ring::Consumer;
use crate::slots::Base;
use crate::{RingMemory, TracerError};

/// What to trace, and with how much memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// CPUs whose rings will be drained. All CPUs are traced.
    pub cpus: Vec<u32>,
    /// Slots of 16 bytes per CPU, rounded up to a power of two, at least 1024.
    pub slots_per_cpu: u32,
    /// How many different kernel stacks can be kept; 0 for none.
    pub stacks: u32,
    /// Whose events.
    pub filter: Filter,
    /// A process whose system calls, page faults and waits for locks are left out: the recorder itself. Its switches stay.
    pub exclude: Option<Pid>,
}

/// Whose switches, wake-ups, system calls, page faults and lock waits are kept. A switch or a wake-up is kept when one of
/// its tasks is traced. Tasks' begins, names and ends, interrupts and requests to disks are always kept: they say
/// what traced tasks waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// Everybody's.
    None,
    /// Those given to `Tracer::follow`, and all tasks they make from then on.
    Tree,
    /// One process's (a VM's).
    Process(Pid),
    /// A control group's and those below it.
    Cgroup {
        /// Its id: the inode number of its folder.
        id: u64,
        /// How many folders it lies below the root of the hierarchy; the root is 0.
        level: u32,
    },
}

/// Where the rings lie, for a reader outside of this kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Slots of each CPU's ring.
    pub slots_per_cpu: usize,
    /// Rings: the highest CPU's number and one.
    pub rings: usize,
    /// Address and bytes of the mapping of `struct trace_ring`s (whole pages).
    pub heads: (usize, usize),
    /// Address and bytes of the mapping of slots (whole pages).
    pub slots: (usize, usize),
}

/// The loaded programs and their rings. They leave the kernel when this is dropped.
#[derive(Debug)]
pub struct Tracer {
    rings: LocalRings,
    consumers: Vec<(u32, Consumer)>,
    missing: Vec<(String, String)>,
    /// `CLOCK_MONOTONIC` that the programs' times begin at, ns.
    base_ns: u64,
}

impl Tracer {
    /// Loads the programs; nothing is traced yet.
    ///
    /// # Errors
    /// When the kernel refuses them all, or the options make no sense; the error says what to do.
    pub fn load(options: &Options) -> Result<Self, TracerError> {
        let _ = (options, Consumer::new(Base { machine: MachineId::HOST, cpu: 0 }, 1));
        Err(TracerError::Privilege)
    }

    /// Attaches the programs. Returns when the trace begins: when all of them were.
    ///
    /// # Errors
    /// When none could be.
    pub fn start(&mut self) -> Result<HostNs, TracerError> {
        Err(TracerError::Privilege)
    }

    /// With `Filter::Tree`: traces this process's threads, its descendants, and all that they make from now on.
    ///
    /// # Errors
    /// If the map can't be written.
    pub fn follow(&self, process: Pid) -> Result<(), TracerError> {
        let _ = process;
        Ok(())
    }

    /// Appends the events of `cpu` that came since the last call, in time order.
    pub fn drain(&mut self, cpu: u32, events: &mut Vec<TraceEvent>) {
        let _ = (cpu, events);
    }

    /// How full the ring of `cpu` is, from 0 to 1.
    #[must_use]
    pub fn fill(&self, cpu: u32) -> f64 {
        let _ = cpu;
        0.0
    }

    /// Detaches the programs. Returns when the trace ends: before the first of them was. What is left in the rings can
    /// still be drained.
    pub fn stop(&mut self) -> HostNs {
        HostNs(0)
    }

    /// Probes that could not be used, and why. After `stop` also those that missed events because they were interrupted
    /// by themselves.
    #[must_use]
    pub fn missing(&self) -> &[(String, String)] {
        &self.missing
    }

    /// Events that found no room, by CPU and kind.
    #[must_use]
    pub fn lost(&self) -> Vec<LostEvents> {
        let Ok(_) = self.rings.lost(self.consumers.len());
        Vec::new()
    }

    /// The kernel stacks that events name: addresses, innermost first. Ask after `stop`.
    ///
    /// # Errors
    /// If the map can't be read.
    pub fn stacks(&self) -> Result<Vec<(TraceStack, Vec<u64>)>, TracerError> {
        Ok(Vec::new())
    }

    /// `CLOCK_MONOTONIC` that the programs' times begin at, ns.
    #[must_use]
    pub fn base_ns(&self) -> u64 {
        self.base_ns
    }

    /// Where the rings lie in this process's memory.
    #[must_use]
    pub fn layout(&self) -> Layout {
        let mapping = |mapped: &crate::Mapped| (mapped.address(), mapped.bytes());
        let slots_per_cpu = self.rings.slots_per_cpu;
        Layout {
            slots_per_cpu,
            rings: 0,
            heads: mapping(&self.rings.heads),
            slots: mapping(&self.rings.slots),
        }
    }
}
