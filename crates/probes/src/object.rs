//! What all BPF objects need: opening, setting constants, finding maps.

use std::os::fd::AsFd;
use std::path::Path;

use libbpf_rs::{MapCore, Object, ObjectBuilder, OpenObject};
use model::Vendor;

use crate::ProbeError;
use crate::abi::{MAX_CPUS, RING_BYTES, RINGS};
use bpf::Mapped;

/// Parses an object; nothing is in the kernel yet.
pub(crate) fn open(elf: &[u8]) -> Result<OpenObject, ProbeError> {
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(ProbeError::NoBtf);
    }
    libbpf_rs::set_print(None);
    ObjectBuilder::default().open_memory(elf).map_err(ProbeError::Load)
}

/// Whether the kernel tells this process modules' types: only who has CAP_SYS_ADMIN may list them.
pub(crate) fn may_see_modules() -> bool {
    libbpf_rs::query::BtfInfoIter::default().next().is_some()
}

/// Sets maps' sizes, and `config`, the words at the begin of the read-only data.
pub(crate) fn configure(
    open: &mut OpenObject,
    sizes: &[(&'static str, u32)],
    config: &[u32],
) -> Result<(), ProbeError> {
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name.ends_with(".rodata") {
            let bytes: Vec<u8> = config.iter().flat_map(|word| word.to_ne_bytes()).collect();
            if let Some(data) = map.initial_value_mut() {
                data[..bytes.len()].copy_from_slice(&bytes);
            }
        }
        for (_, entries) in sizes.iter().filter(|(sized, _)| *sized == name) {
            map.set_max_entries(*entries).map_err(|error| map_error("sizes", &error))?;
        }
    }
    Ok(())
}

/// Lets the object use another's map in place of its own of the same name.
pub(crate) fn share(
    open: &mut OpenObject,
    name: &'static str,
    with: impl AsFd,
) -> Result<(), ProbeError> {
    for mut map in open.maps_mut().filter(|map| map.name() == name) {
        map.reuse_fd(with.as_fd()).map_err(|error| map_error(name, &error))?;
    }
    Ok(())
}

/// Keeps a program of the object out of the kernel.
pub(crate) fn leave_out(open: &mut OpenObject, name: &'static str) {
    open.progs_mut()
        .filter(|program| program.name() == name)
        .for_each(|mut program| program.set_autoload(false));
}

/// Hands the object to the kernel.
pub(crate) fn load(open: OpenObject) -> Result<Object, ProbeError> {
    open.load().map_err(|error| {
        // That is also how the verifier refuses a program.
        let denied = error.kind() == libbpf_rs::ErrorKind::PermissionDenied;
        if denied && !rustix::process::geteuid().is_root() {
            return ProbeError::Privilege;
        }
        ProbeError::Load(error)
    })
}

/// Maps the memory of an object's map.
pub(crate) fn memory(
    object: &Object,
    name: &'static str,
    len: usize,
) -> Result<Mapped, ProbeError> {
    let map = find_map(object, name)?;
    Mapped::new(map.as_fd(), len).map_err(|source| ProbeError::Map { map: name, source })
}

pub(crate) fn find_map<'a>(
    object: &'a Object,
    name: &'static str,
) -> Result<libbpf_rs::Map<'a>, ProbeError> {
    object
        .maps()
        .find(|map| map.name() == name)
        .ok_or(ProbeError::Map { map: name, source: std::io::ErrorKind::NotFound.into() })
}

/// Bytes of all rings' heads.
pub(crate) const RING_HEADS_BYTES: usize = MAX_CPUS as usize * RING_BYTES;

/// How many rings there are, so that each CPU has the one of its number.
pub(crate) fn rings_for(cpus: &[u32]) -> Result<u32, ProbeError> {
    let rings = cpus.iter().max().map_or(1, |highest| highest + 1);
    if MAX_CPUS < rings {
        let source = std::io::Error::other(format!("there are more than {MAX_CPUS} CPUs"));
        return Err(ProbeError::Map { map: RINGS, source });
    }
    Ok(rings)
}

/// `VENDOR_*` of bpf/abi/sample.h.
pub(crate) fn vendor_word(vendor: Vendor) -> u32 {
    match vendor {
        Vendor::Amd => 1,
        Vendor::Intel => 2,
        Vendor::Other => 0,
    }
}

fn map_error(map: &'static str, error: &libbpf_rs::Error) -> ProbeError {
    ProbeError::Map { map, source: std::io::Error::other(error.to_string()) }
}

#[cfg(test)]
mod test {
    /// Where not even this loads, every test that asks `skip_if_refused` would be skipped: in CI that is a failure.
    #[test]
    fn one_bpf_program_loads() {
        if let Err(error) = super::open(bpf::EMPTY).and_then(super::load) {
            skip::skip(error);
        }
    }
}
