//! Marks that a guest makes by writing numbers to a port, stamped by the host (`bpf/marks.bpf.c`): instants seen from
//! both sides.

use std::sync::atomic::Ordering;

use libbpf_rs::{Link, Object};
use model::{HostNs, Pid};

use crate::object::Aligned;
use crate::{ProbeError, object};
use bpf_memory::Mapped;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/marks.bpf.o")));

/// `MARKS`.
const MARKS: usize = 64;
/// `struct mark_seen`: time, count.
const MARK_BYTES: usize = 16;

/// Notes when marks of one VM arrive; stops when this is dropped.
#[derive(Debug)]
pub struct MarkWatch {
    seen: Mapped,
    _links: Vec<Link>,
    _object: Object,
}

impl MarkWatch {
    /// Begins to note marks of the VM of a process.
    ///
    /// # Errors
    /// When the kernel refuses, or KVM is not there.
    pub fn start(vm: Pid) -> Result<Self, ProbeError> {
        let mut open = object::open(OBJECT)?;
        object::configure(&mut open, &[], &[vm.0])?;
        let object = object::load(open)?;
        let seen = object::memory(&object, "marks", (MARKS + 1) * MARK_BYTES)?;
        let attach = |program: libbpf_rs::ProgramMut<'_>| program.attach();
        let links = object.progs_mut().map(attach).collect::<Result<_, _>>();
        Ok(Self { seen, _links: links.map_err(ProbeError::Trace)?, _object: object })
    }

    /// When each mark arrived, by its number, and how much else was written to the port, since the last time that this was
    /// asked. `None`: a mark did not arrive, or more than once.
    pub fn take(&mut self) -> (Vec<Option<HostNs>>, u64) {
        let mut take = |number: usize| {
            let [time, count] = [0, 8].map(|at| self.seen.word(number * MARK_BYTES + at));
            (HostNs(time.load(Ordering::Acquire)), count.swap(0, Ordering::AcqRel))
        };
        let times = (0..MARKS).map(&mut take);
        let times = times.map(|(time, count)| (count == 1).then_some(time)).collect();
        (times, take(MARKS).1)
    }
}
