//! Loads a BPF object of raw tracepoints, by bpf(2) alone. aya's own loader reads and parses the kernel's BTF when it is
//! made, whether an object needs it or not: 30 s in a busy emulated guest, and 19 MB.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use aya_obj::generated::bpf_insn;
use aya_obj::{Map, Object, ParseError, relocation::EbpfRelocationError};

// enum bpf_cmd, bpf_map_type, bpf_prog_type and flags of linux/bpf.h
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_int = 17;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
/// Bytes of the verifier's log that are requested when it refuses a program.
const LOG_BYTES: usize = 1 << 16;

/// Why an object can't be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("invalid BPF object: {0}")]
    Object(#[from] ParseError),
    #[error("invalid BPF object: {0}")]
    Relocation(#[from] EbpfRelocationError),
    #[error("the BPF object has no {0}: build vmscope-guest again")]
    Missing(&'static str),
    #[error("the kernel refused BPF map {name}: {reason}")]
    Map { name: String, reason: io::Error },
    #[error("the kernel refused BPF program {name}: {reason} {log}")]
    Program { name: &'static str, reason: io::Error, log: String },
}

/// An object's maps, and its programs, which can refer to them.
pub(crate) struct Loading {
    object: Object,
    maps: Vec<(String, OwnedFd)>,
}

impl Loading {
    /// Makes the maps of `object`, with these values for its constants.
    pub(crate) fn maps(object: &[u8], constants: &[(&str, u64)]) -> Result<Self, LoadError> {
        let mut object = Object::parse(object)?;
        let values: Vec<(&str, [u8; 8])> =
            constants.iter().map(|(name, value)| (*name, value.to_ne_bytes())).collect();
        object.patch_map_data(
            values.iter().map(|(name, value)| (*name, (&value[..], true))).collect(),
        )?;
        let described: Vec<(String, Map)> = object.maps.drain().collect();
        let mut maps = Vec::new();
        for (name, map) in &described {
            let made =
                create_map(map).map_err(|reason| LoadError::Map { name: name.clone(), reason })?;
            maps.push((name.clone(), made));
        }
        let texts: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        let places = described.iter().zip(&maps);
        object.relocate_maps(
            places.map(|((name, map), (_, made))| (name.as_str(), made.as_raw_fd(), map)),
            &texts,
        )?;
        object.relocate_calls(&texts)?;
        Ok(Self { object, maps })
    }

    pub(crate) fn take_map(&mut self, name: &'static str) -> Result<OwnedFd, LoadError> {
        let place = self.maps.iter().position(|(of, _)| of == name);
        let place = place.ok_or(LoadError::Missing(name))?;
        Ok(self.maps.swap_remove(place).1)
    }

    pub(crate) fn program(&self, name: &'static str) -> Result<OwnedFd, LoadError> {
        let program = self.object.programs.get(name).ok_or(LoadError::Missing(name))?;
        let function = self.object.functions.get(&program.function_key());
        let function = function.ok_or(LoadError::Missing(name))?;
        let (code, license) = (&function.instructions, &program.license);
        load_program(code, license, &mut []).or_else(|_| {
            let mut log = vec![0; LOG_BYTES];
            load_program(code, license, &mut log).map_err(|reason| LoadError::Program {
                name,
                reason,
                log: last_line(&log),
            })
        })
    }
}

/// Runs `program` at a raw tracepoint for as long as the descriptor is open.
pub(crate) fn attach(program: BorrowedFd<'_>, tracepoint: &CStr) -> io::Result<OwnedFd> {
    let attributes = OpenRawTracepoint {
        name: tracepoint.as_ptr().addr() as u64,
        program: number(program.as_raw_fd()),
        pad: 0,
    };
    // SAFETY: `name` is a C string that outlives the call.
    unsafe { bpf(BPF_RAW_TRACEPOINT_OPEN, &attributes) }.and_then(owned)
}

fn create_map(map: &Map) -> io::Result<OwnedFd> {
    let attributes = CreateMap {
        kind: map.map_type(),
        key_bytes: map.key_size(),
        value_bytes: map.value_size(),
        max_entries: map.max_entries(),
        flags: map.map_flags(),
    };
    // SAFETY: the attributes hold no pointers.
    let made = unsafe { bpf(BPF_MAP_CREATE, &attributes) }.and_then(owned)?;
    if map.data().is_empty() {
        return Ok(made);
    }
    if map.data().len() != attributes.value_bytes as usize {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let key = 0u32;
    let attributes = SetElement {
        map: number(made.as_raw_fd()),
        pad: 0,
        key: std::ptr::from_ref(&key).addr() as u64,
        value: map.data().as_ptr().addr() as u64,
        flags: 0,
    };
    // SAFETY: `key` has the 4 bytes of an array's key, and `value` the bytes of the map's values; both outlive the call.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &attributes) }?;
    Ok(made)
}

fn load_program(code: &[bpf_insn], license: &CStr, log: &mut [u8]) -> io::Result<OwnedFd> {
    let attributes = LoadProgram {
        kind: BPF_PROG_TYPE_RAW_TRACEPOINT,
        n_instructions: u32::try_from(code.len()).unwrap_or(u32::MAX),
        instructions: code.as_ptr().addr() as u64,
        license: license.as_ptr().addr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_bytes: u32::try_from(log.len()).unwrap_or(0),
        log: if log.is_empty() { 0 } else { log.as_mut_ptr().addr() as u64 },
    };
    // SAFETY: `instructions` and `log` are as long as said, `license` is a C string; all outlive the call.
    unsafe { bpf(BPF_PROG_LOAD, &attributes) }.and_then(owned)
}

/// The begin of `union bpf_attr` for a command; the kernel takes the rest as zeros.
#[repr(C)]
struct CreateMap {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    max_entries: u32,
    flags: u32,
}

#[repr(C)]
struct SetElement {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct LoadProgram {
    kind: u32,
    n_instructions: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
}

#[repr(C)]
struct OpenRawTracepoint {
    name: u64,
    program: u32,
    pad: u32,
}

/// # Safety
/// `attributes` are those of the command, and what they point to lives and is as long as they say.
unsafe fn bpf<A>(command: libc::c_int, attributes: &A) -> io::Result<libc::c_long> {
    // SAFETY: the kernel reads `attributes`, whose size is given; the caller vouches for what they point to.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<A>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(descriptor: libc::c_long) -> io::Result<OwnedFd> {
    let descriptor = RawFd::try_from(descriptor).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: the kernel has just opened it for this process, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn number(descriptor: RawFd) -> u32 {
    u32::try_from(descriptor).unwrap_or(u32::MAX)
}

/// Where the verifier says why.
fn last_line(log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log.split(|byte| *byte == 0).next().unwrap_or_default());
    let reason = text.lines().rev().find(|line| !line.starts_with("processed"));
    reason.map(|line| format!("({line})")).unwrap_or_default()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_verifiers_reason_is_the_line_before_its_counts() {
        let log = b"0: (95) exit\nR0 !read_ok\nprocessed 1 insns (limit 1000000)\n\0\0rest";
        assert_eq!(last_line(log), "(R0 !read_ok)");
        assert_eq!(last_line(b"\0"), "");
    }

    #[test]
    fn a_program_that_the_kernel_refuses_is_named() {
        let mut loading = match Loading::maps(bpf::GUEST_PROCESSES, &[("task_mm", 8)]) {
            Ok(loading) => loading,
            Err(error) => return skip::skip_if_refused(error),
        };
        assert!(matches!(loading.program("on_nothing"), Err(LoadError::Missing("on_nothing"))));
        assert!(matches!(loading.take_map("nothing"), Err(LoadError::Missing("nothing"))));
        assert!(Loading::maps(bpf::GUEST_PROCESSES, &[("no_constant", 8)]).is_err());
        for function in loading.object.functions.values_mut() {
            // Without its first instructions: it uses registers that nothing has set.
            function.instructions.drain(..function.instructions.len() - 1);
        }
        let error = loading.program("on_exit").map(drop).unwrap_err().to_string();
        assert!(error.contains("on_exit") && error.contains("!read_ok"), "{error}");
    }
}
