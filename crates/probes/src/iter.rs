//! Reading BPF iterators over open files: of all processes, or of one.
//!
//! libbpf-rs can't limit an iterator to a process, so this uses libbpf's own calls for the link and the iterator.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::Object;
use libbpf_rs::libbpf_sys as sys;
use model::Pid;

use crate::ProbeError;

/// No machine has more VMs, memory slots and vCPUs than fit into this.
const MAX_BYTES: u64 = 128 << 20;

/// All that the iterator `program` writes about the open files of `process`, or of all processes.
pub(crate) fn read(
    object: &Object,
    program: &'static str,
    process: Option<Pid>,
) -> Result<Vec<u8>, ProbeError> {
    let loaded = object.progs_mut().find(|loaded| loaded.name() == program).ok_or_else(|| {
        ProbeError::Find { program, reason: io::Error::other("the object does not contain it") }
    })?;
    open(loaded.as_fd(), process)
        .and_then(read_all)
        .map_err(|reason| ProbeError::Find { program, reason })
}

/// A process that does not exist has no open files: this is no error. Linux 6.1 and later can limit an iterator.
fn open(program: BorrowedFd<'_>, process: Option<Pid>) -> io::Result<File> {
    let limit = sys::bpf_iter_link_info__bindgen_ty_3 {
        pid: process.map_or(0, |pid| pid.0),
        ..Default::default()
    };
    let mut info = sys::bpf_iter_link_info { task: limit };
    let options = sys::bpf_link_create_opts {
        sz: size_of::<sys::bpf_link_create_opts>() as sys::size_t,
        iter_info: &raw mut info,
        iter_info_len: u32::try_from(size_of_val(&info)).expect("the union is small"),
        ..Default::default()
    };
    // SAFETY: the descriptor is open, and `options` and what it points to live during the call.
    let link = unsafe {
        sys::bpf_link_create(program.as_raw_fd(), 0, sys::BPF_TRACE_ITER, &raw const options)
    };
    let link = owned(link)?;
    // SAFETY: the call takes an open descriptor and no pointers.
    let iterator = unsafe { sys::bpf_iter_create(link.as_raw_fd()) };
    owned(iterator).map(File::from)
}

/// libbpf returns a new descriptor, or a negative error number.
fn owned(result: i32) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

fn read_all(iterator: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut iterator = iterator.take(MAX_BYTES);
    loop {
        match iterator.read_to_end(&mut bytes) {
            // The kernel ends a read after a million objects without output. The next read continues there.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            outcome => return outcome.map(|_| bytes),
        }
    }
}
