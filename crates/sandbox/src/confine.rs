//! What a child gives up. Everything here is for good, whatever the child does later.
//!
//! Namespaces would add nothing: no system call is left that names a file, a socket, a process or a user.

use std::collections::BTreeMap;
use std::ffi::c_long;
use std::fmt::Display;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, getpid, getrlimit, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities,
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use rustix::{fs::Gid, fs::Uid};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter_all_threads,
};

use crate::MAX_CHILD_BYTES;

/// These user ids are free: they lie between those that systemd gives to containers and those that many programs take
/// for negative (UIDS-GIDS of systemd). A child's is this and its process id: no other user's process can send it a
/// signal.
const FIRST_USER: u32 = 0x7000_0000;

/// Where there is no such user: a user namespace with few.
const OVERFLOW_UID: u32 = 65534;

/// Processor time of a child, over all questions: it ends some time, whatever happens to its parent.
const MAX_CPU_SECONDS: u64 = 3600;

/// What a process that works in one folder may take.
#[derive(Debug, Clone, Copy)]
pub struct FolderLimits {
    /// Address space.
    pub memory_bytes: u64,
    pub cpu_seconds: u64,
    pub file_bytes: u64,
}

/// Gives up everything but standard input and output and the files in `folder`: for a program that unpacks and parses what
/// a peer sent. Called first, while there is one thread only; later there can be no other. The user stays: the folder
/// is that user's.
///
/// # Errors
/// When the kernel does not let it. One without Landlock leaves files to the user's rights.
pub fn confine_to_folder(folder: &Path, limits: FolderLimits) -> Result<(), String> {
    close_all()?;
    limit(limits.memory_bytes, limits.cpu_seconds, limits.file_bytes, 64)?;
    give_up_capabilities()?;
    give_up_files(Some(folder)).map(drop).map_err(|error| failed("landlock", error))?;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Nproc, none).map_err(|error| failed("setrlimit", error))?;
    let rules = allowed().map_err(seccompiler::Error::from).map(|mut rules| {
        rules.extend(FILES.map(any));
        rules
    });
    rules
        .and_then(|rules| apply(rules, SeccompAction::KillProcess, SeccompAction::Allow))
        .map_err(|error| failed("seccomp", error))
}

/// Limits of a child's whole life.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    /// Memory that it may write to: for a child with threads of its own, beyond what it has once they run.
    pub memory_bytes: u64,
    pub cpu_seconds: u64,
}

/// Whether this kernel has Landlock. Without it, seccomp and the user's rights alone keep a child from files.
#[must_use]
pub fn has_landlock() -> bool {
    // A thread's restrictions end with it.
    let tried = std::thread::spawn(|| give_up_files(None)).join();
    matches!(tried, Ok(Ok(status)) if status != RulesetStatus::NotEnforced)
}

/// The first part of a child that answers questions, while there is one thread only.
pub(crate) fn give_up_rights() -> Result<(), String> {
    close_all()?;
    give_up_rights_but(Allowance { memory_bytes: MAX_CHILD_BYTES, cpu_seconds: MAX_CPU_SECONDS })
}

/// The same but for memory, which `limit_memory` limits, and for open descriptors.
pub(crate) fn give_up_rights_but(allowed: Allowance) -> Result<(), String> {
    limit(allowed.memory_bytes, allowed.cpu_seconds, 0, 16)?;
    change_user()?;
    give_up_capabilities()?;
    give_up_files(None).map(drop).map_err(|error| failed("landlock", error))
}

/// Closes all descriptors but standard input, output and error.
pub(crate) fn close_all() -> Result<(), String> {
    // SAFETY: the owners of those descriptors are gone since `exec`.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    if closed != 0 {
        return Err(failed("close_range", std::io::Error::last_os_error()));
    }
    Ok(())
}

fn limit(memory: u64, cpu_seconds: u64, file_bytes: u64, files: u64) -> Result<(), String> {
    for (resource, most) in [
        (Resource::As, memory),
        (Resource::Cpu, cpu_seconds),
        (Resource::Nofile, files),
        (Resource::Core, 0),
        (Resource::Fsize, file_bytes),
        (Resource::Memlock, 0),
    ] {
        // A lower one stays.
        let most = getrlimit(resource).maximum.map_or(most, |hard| hard.min(most));
        // A process that reaches the soft limit gets SIGXCPU, unlike one that others killed.
        let soft = if resource == Resource::Cpu { most.saturating_sub(1).max(1) } else { most };
        let limit = Rlimit { current: Some(soft), maximum: Some(most) };
        setrlimit(resource, limit).map_err(|error| failed("setrlimit", error))?;
    }
    Ok(())
}

/// From here on a process may have so much memory that it can write to; addresses without memory behind them may be more.
pub(crate) fn limit_memory(bytes: u64, addresses: u64) -> Result<(), String> {
    for (resource, most) in [(Resource::Data, bytes), (Resource::As, addresses)] {
        let most = getrlimit(resource).maximum.map_or(most, |hard| hard.min(most));
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, limit).map_err(|error| failed("setrlimit", error))?;
    }
    Ok(())
}

fn give_up_capabilities() -> Result<(), String> {
    let nothing = CapabilitySet::empty();
    let sets = CapabilitySets { effective: nothing, permitted: nothing, inheritable: nothing };
    clear_ambient_capability_set().map_err(|error| failed("capabilities", error))?;
    set_capabilities(None, sets).map_err(|error| failed("capabilities", error))?;
    // A change of user resets these two.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| failed("PR_SET_PDEATHSIG", error))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| failed("PR_SET_DUMPABLE", error))?;
    set_no_new_privs(true).map_err(|error| failed("PR_SET_NO_NEW_PRIVS", error))
}

/// Becomes a user of its own, where it may.
fn change_user() -> Result<(), String> {
    let own = FIRST_USER + getpid().as_raw_nonzero().get().unsigned_abs();
    let become_user = |id: u32| {
        let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
        set_thread_groups(&[])?;
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user)
    };
    let result = match become_user(own) {
        Err(Errno::INVAL) => become_user(OVERFLOW_UID),
        result => result,
    };
    match result {
        // Who has no right to change users has few others.
        Ok(()) | Err(Errno::PERM) => Ok(()),
        Err(error) => Err(failed("setresuid", error)),
    }
}

/// No file can be opened, by no name, but in the folder. Kernels without Landlock leave that to seccomp.
fn give_up_files(but: Option<&Path>) -> Result<RulesetStatus, landlock::RulesetError> {
    let abi = ABI::V6;
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?;
    // A folder that can't be opened is not opened later, either.
    if let Some(folder) = but.and_then(|path| PathFd::new(path).ok()) {
        rules = rules.add_rule(PathBeneath::new(folder, AccessFs::from_all(abi)))?;
    }
    Ok(rules.restrict_self()?.ruleset)
}

/// Step two, for all threads: leaves only memory calls, reads and writes of open descriptors, and `further` ones.
pub(crate) fn give_up_system_calls(further: &[c_long]) -> Result<(), String> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Nproc, none).map_err(|error| failed("setrlimit", error))?;
    apply(
        DENIED.map(any).into(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EACCES.unsigned_abs()),
    )
    .and_then(|()| {
        let mut rules = allowed()?;
        rules.extend(further.iter().copied().map(any));
        apply(rules, SeccompAction::KillProcess, SeccompAction::Allow)
    })
    .map_err(|error| failed("seccomp", error))
}

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

fn apply(
    rules: Rules,
    otherwise: SeccompAction,
    matching: SeccompAction,
) -> Result<(), seccompiler::Error> {
    let arch = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, otherwise, matching, arch)?;
    let program = BpfProgram::try_from(filter)?;
    apply_filter_all_threads(&program)
}

/// What libraries try and do without, none of which tells anybody anything: the C library asks whether memory is
/// overcommitted when it gives some back, the standard library how much of a file is left to read (by path, too).
const DENIED: [c_long; 3] = [libc::SYS_newfstatat, libc::SYS_openat, libc::SYS_statx];

/// What reading and writing files in a folder takes.
const FILES: [c_long; 17] = [
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getdents64,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_rename,
    libc::SYS_renameat2,
    libc::SYS_rmdir,
    libc::SYS_statx,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_writev,
];

const ALLOWED: [c_long; 27] = [
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_sigaltstack,
    libc::SYS_write,
];

/// Whatever the arguments.
fn any(call: c_long) -> (c_long, Vec<SeccompRule>) {
    (call, Vec::new())
}

fn allowed() -> Result<Rules, seccompiler::BackendError> {
    let mut rules = Rules::from(ALLOWED.map(any));
    // The other filter has the last word on those.
    rules.extend(DENIED.map(any));
    // Memory, but no code.
    let bits = |argument, mask: i32, value: i32| {
        let mask = SeccompCmpOp::MaskedEq(mask.unsigned_abs().into());
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, mask, value.unsigned_abs().into())
    };
    let no_code = bits(2, libc::PROT_EXEC, 0)?;
    let anonymous = bits(3, libc::MAP_ANONYMOUS, libc::MAP_ANONYMOUS)?;
    rules.insert(libc::SYS_mmap, vec![SeccompRule::new(vec![no_code.clone(), anonymous])?]);
    rules.insert(libc::SYS_mprotect, vec![SeccompRule::new(vec![no_code])?]);
    // Debug builds look whether a descriptor is open before they close it.
    let looks = bits(1, i32::MAX, libc::F_GETFD)?;
    rules.insert(libc::SYS_fcntl, vec![SeccompRule::new(vec![looks])?]);
    // How a process aborts.
    let itself = bits(0, i32::MAX, getpid().as_raw_nonzero().get())?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![itself])?]);
    Ok(rules)
}

fn failed(what: &str, error: impl Display) -> String {
    format!("{what}: {error}")
}

/// Large blocks of memory go back to the kernel when they are freed. Without this, glibc keeps them once it has seen some:
/// after eight answers of 28 MB that were freed, a server had 110 MB more than before.
pub fn return_large_blocks() {
    const LARGE: libc::c_int = 128 << 10;
    // SAFETY: `mallopt` only sets a parameter of the allocator, under its lock.
    let is_set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
    debug_assert_eq!(is_set, 1, "glibc knows the parameter");
}

#[cfg(test)]
mod test {
    use super::*;

    /// A thread's own, so the other tests keep their files.
    #[test]
    fn without_seccomp_landlock_keeps_files_shut() {
        let tried = std::thread::spawn(|| {
            let status = give_up_files(None).unwrap();
            (status, std::fs::File::open("/proc/self/status"), std::fs::read_dir("/"))
        });
        let (status, file, folder) = tried.join().unwrap();
        assert_eq!(has_landlock(), status != RulesetStatus::NotEnforced);
        assert!(std::fs::read_dir("/").is_ok(), "only that thread gave up its files");
        if status == RulesetStatus::NotEnforced {
            return skip::skip("this kernel has no Landlock");
        }
        assert_eq!(file.unwrap_err().raw_os_error(), Some(libc::EACCES));
        assert_eq!(folder.map(drop).unwrap_err().raw_os_error(), Some(libc::EACCES));
    }
}
