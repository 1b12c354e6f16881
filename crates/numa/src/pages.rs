//! `move_pages(2)`: where pages of another process are, and moving them.

use std::io;

use libc::{c_int, c_ulong, c_void};
use model::Pid;

/// Pages of one call.
pub(crate) const BATCH: usize = 1024;

/// From the kernel's `uapi/linux/mempolicy.h`: pages that other processes have mapped, too.
const MPOL_MF_MOVE_ALL: c_int = 1 << 2;

/// The node of each page; `None`: there is no page, or it is unknown.
pub(crate) fn nodes(pid: Pid, addresses: &[u64]) -> io::Result<Vec<Option<u32>>> {
    let status = call(pid, addresses, None)?;
    Ok(status.into_iter().map(|status| u32::try_from(status).ok()).collect())
}

/// Asks the kernel to move pages to a node, those that are shared with other processes, too. It may not move all: ask for
/// their nodes afterwards.
pub(crate) fn move_to(pid: Pid, addresses: &[u64], node: u32) -> io::Result<()> {
    let node = c_int::try_from(node).map_err(|_| io::ErrorKind::InvalidInput)?;
    call(pid, addresses, Some(node)).map(drop)
}

fn call(pid: Pid, addresses: &[u64], node: Option<c_int>) -> io::Result<Vec<c_int>> {
    let page =
        |address: &u64| usize::try_from(*address).map(std::ptr::without_provenance::<c_void>);
    let pages: Result<Vec<*const c_void>, _> = addresses.iter().map(page).collect();
    let pages = pages.map_err(|_| io::ErrorKind::InvalidInput)?;
    let nodes = node.map(|node| vec![node; pages.len()]);
    let mut status = vec![-libc::ENOENT; pages.len()];
    let nodes = nodes.as_ref().map_or(std::ptr::null(), Vec::as_ptr);
    let pid = libc::pid_t::try_from(pid.0).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `pages`, `nodes` (null or not) and `status` have as many elements as the call's count, and outlive it.
    // The kernel writes to `status` only; the addresses are the other process's, and are never followed here.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            pages.len() as c_ulong,
            pages.as_ptr(),
            nodes,
            status.as_mut_ptr(),
            MPOL_MF_MOVE_ALL,
        )
    };
    // A positive result is the number of pages that were not moved.
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(status) }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn pages_of_this_process_have_a_node() {
        let memory = vec![1_u8; 64 << 10];
        let first = (memory.as_ptr() as u64).next_multiple_of(4096);
        let addresses: Vec<u64> = (0..8).map(|n| first + 4096 * n).collect();
        match nodes(Pid(std::process::id()), &addresses) {
            Ok(found) => {
                let node = found[0].unwrap();
                assert!(found.iter().all(|other| *other == Some(node)), "{found:?}");
                match move_to(Pid(std::process::id()), &addresses, node) {
                    Ok(()) => {
                        assert_eq!(nodes(Pid(std::process::id()), &addresses).unwrap(), found)
                    }
                    Err(error) => skip::skip_if_refused(error),
                }
            }
            Err(error) => skip::skip_if_refused(error),
        }
        assert_eq!(nodes(Pid(std::process::id()), &[0]).map(|n| n[0]).unwrap_or(None), None);
    }
}
