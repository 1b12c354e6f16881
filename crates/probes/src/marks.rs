//! Marks that a guest makes by leaving itself, stamped by the host (`bpf/marks.bpf.c`): instants seen from both sides.

use libbpf_rs::{Link, Object};
use model::{HostNs, Pid};

use crate::mapped::Mapped;
use crate::object::Aligned;
use crate::{ProbeError, object};

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/marks.bpf.o")));

/// `MARKS`.
const MARKS: usize = 1024;

/// Notes when marks of one VM arrive; stops when this is dropped.
#[derive(Debug)]
pub struct MarkWatch {
    times: Mapped,
    _links: Vec<Link>,
    _object: Object,
}

impl MarkWatch {
    /// Begins to note marks of the VM of a process. Marks are told from each other's by the bits of `nonce` above their
    /// number's.
    ///
    /// # Errors
    /// When the kernel refuses, or KVM is not there.
    pub fn start(vm: Pid, nonce: u32) -> Result<Self, ProbeError> {
        let mut open = object::open(OBJECT)?;
        let mask = u32::try_from(MARKS - 1).unwrap_or(0);
        object::configure(&mut open, &[], &[vm.0, nonce & !mask])?;
        let object = object::load(open)?;
        let times = object::memory(&object, "marks", MARKS * 8)?;
        let attach = |program: libbpf_rs::ProgramMut<'_>| program.attach();
        let links = object.progs_mut().map(attach).collect::<Result<_, _>>();
        Ok(Self { times, _links: links.map_err(ProbeError::Trace)?, _object: object })
    }

    /// When each mark arrived, by its number; `None`: it did not.
    #[must_use]
    pub fn times(&self) -> Vec<Option<HostNs>> {
        let time = |mark: usize| Some(self.times.load(mark * 8)).filter(|time| *time != 0);
        (0..MARKS).map(|mark| time(mark).map(HostNs)).collect()
    }
}
