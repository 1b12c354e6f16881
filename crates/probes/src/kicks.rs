//! Marks vCPUs that their VMM took out of `KVM_RUN` (bpf/kicks.bpf.c): their next samples say so.

use libbpf_rs::{Link, Object};

use crate::{ProbeError, Sampler, object, vcpus};

/// The attached program; vCPUs are marked until this is dropped.
#[derive(Debug)]
pub struct KickMarks {
    _links: Vec<Link>,
    _object: Object,
}

impl KickMarks {
    /// Begins to mark the vCPUs that `sampler` watches.
    ///
    /// # Errors
    /// When the kernel refuses, or KVM is not there.
    pub fn start(sampler: &Sampler) -> Result<Self, ProbeError> {
        let mut open = object::open(bpf::KICKS)?;
        object::share(&mut open, vcpus::MAP, sampler.vcpus().fd())?;
        let object = object::load(open)?;
        let attach = |program: libbpf_rs::ProgramMut<'_>| program.attach();
        let links = object.progs_mut().map(attach).collect::<Result<_, _>>();
        Ok(Self { _links: links.map_err(ProbeError::Trace)?, _object: object })
    }
}
