//! Marks that a guest makes by writing numbers to a port and reading the answers, stamped by the host
//! (`bpf/marks.bpf.c`): instants seen from both sides.

use std::sync::atomic::Ordering;

use libbpf_rs::{Link, Object};
use model::{HostNs, Pid};

use crate::{ProbeError, object};
use bpf::Mapped;

/// `MARKS`.
const MARKS: usize = 64;
/// `struct mark_seen`: when it was written and answered, and how often.
const MARK_BYTES: usize = 24;

/// When the host saw a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkSeen {
    /// The guest had left, by writing to the port.
    pub written: HostNs,
    /// It was to go on, with an answer.
    pub answered: HostNs,
}

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
        let mut open = object::open(bpf::MARKS)?;
        object::configure(&mut open, &[], &[vm.0])?;
        let object = object::load(open)?;
        let seen = object::memory(&object, "marks", (MARKS + 1) * MARK_BYTES)?;
        let attach = |program: libbpf_rs::ProgramMut<'_>| program.attach();
        let links = object.progs_mut().map(attach).collect::<Result<_, _>>();
        Ok(Self { seen, _links: links.map_err(ProbeError::Trace)?, _object: object })
    }

    /// When each mark was seen, by its number, and how much else was written to the port, since the last time that this was
    /// asked. `None`: a mark was not seen, or more than once.
    pub fn take(&mut self) -> (Vec<Option<MarkSeen>>, u64) {
        let word = |number: usize, at: usize| self.seen.word(number * MARK_BYTES + at);
        let count = |number| word(number, 16).swap(0, Ordering::AcqRel);
        let seen = |number| {
            let [written, answered] =
                [0, 8].map(|at| HostNs(word(number, at).swap(0, Ordering::AcqRel)));
            let is_one = count(number) == 1 && written < answered;
            is_one.then_some(MarkSeen { written, answered })
        };
        ((0..MARKS).map(seen).collect(), count(MARKS))
    }
}
