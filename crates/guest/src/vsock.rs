//! AF_VSOCK sockets, as far as the protocol needs them.

use std::mem;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

/// Ports below may be bound by privileged processes only (`LAST_RESERVED_PORT` in af_vsock.c).
pub(crate) const UNPRIVILEGED_PORTS: u32 = 1024;

/// `struct sockaddr_vm` of linux/vm_sockets.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VsockAddress {
    family: u16,
    reserved: u16,
    port: u32,
    cid: u32,
    flags: u8,
    zero: [u8; 3],
}
const ADDRESS_BYTES: SocketAddrLen = 16;
const _: () = assert!(mem::size_of::<VsockAddress>() == ADDRESS_BYTES as usize);

impl VsockAddress {
    pub(crate) fn new(cid: u32, port: u32) -> Self {
        let family = AddressFamily::VSOCK.as_raw();
        Self { family, reserved: 0, port, cid, flags: 0, zero: [0; 3] }
    }
}

// SAFETY: the pointer is to a live `sockaddr_vm` of the length given with it, for the call's duration.
unsafe impl SocketAddrArg for VsockAddress {
    unsafe fn with_sockaddr<R>(
        &self,
        f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R,
    ) -> R {
        f(std::ptr::from_ref(self).cast(), ADDRESS_BYTES)
    }
}

/// A non-blocking socket that begins to connect to `port` of the guest `cid`, from a privileged port
/// where this process may have one: the guest answers no other process.
pub(crate) fn connect(cid: u32, port: u32) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::VSOCK, SocketType::STREAM, flags, None)?;
    bind_privileged(&socket)?;
    match net::connect(&socket, &VsockAddress::new(cid, port)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

fn bind_privileged(socket: impl AsFd) -> Result<(), Errno> {
    const ANY_CID: u32 = u32::MAX;
    let mut last = Errno::ADDRINUSE;
    for port in (1..UNPRIVILEGED_PORTS).rev() {
        match net::bind(&socket, &VsockAddress::new(ANY_CID, port)) {
            Err(error @ Errno::ADDRINUSE) => last = error,
            done => return done,
        }
    }
    Err(last)
}

/// A listening socket and who may talk to it.
#[cfg(feature = "inside")]
pub(crate) mod listen {
    use super::*;
    use rustix::net::SocketAddrAny;

    /// A blocking socket that listens on `port`.
    pub(crate) fn listen(port: u32) -> Result<OwnedFd, Errno> {
        const ANY_CID: u32 = u32::MAX;
        let flags = SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::VSOCK, SocketType::STREAM, flags, None)?;
        net::bind(&socket, &VsockAddress::new(ANY_CID, port))?;
        net::listen(&socket, 4)?;
        Ok(socket)
    }

    /// Of the host's processes those that may ask.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum HostProcesses {
        /// Those of root, by the port that they come from.
        Root,
        /// Also those for which the VMM connects: it has no way to say who they are. Who may use its Unix socket is the VMM's
        /// and the host's to decide.
        OfTheVmm,
    }

    /// Waits for the next connection of a process that may know about this system's processes: one of the host, or root of
    /// the guest itself. Others are turned away.
    pub(crate) fn accept(listener: &OwnedFd, processes: HostProcesses) -> Result<OwnedFd, Errno> {
        loop {
            let (socket, peer) = net::acceptfrom_with(listener, SocketFlags::CLOEXEC)?;
            if peer.and_then(|peer| decode(&peer)).is_some_and(|peer| may_ask(peer, processes)) {
                return Ok(socket);
            }
        }
    }

    fn may_ask(peer: VsockAddress, processes: HostProcesses) -> bool {
        const LOCAL: u32 = 1;
        const HOST: u32 = 2;
        /// Firecracker and cloud-hypervisor connect from these.
        const OF_VMM: std::ops::Range<u32> = 1 << 30..1 << 31;
        match peer.cid {
            LOCAL | HOST if peer.port < UNPRIVILEGED_PORTS => true,
            HOST => processes == HostProcesses::OfTheVmm && OF_VMM.contains(&peer.port),
            _ => false,
        }
    }

    fn decode(peer: &SocketAddrAny) -> Option<VsockAddress> {
        let known =
            peer.address_family() == AddressFamily::VSOCK && ADDRESS_BYTES <= peer.addr_len();
        if !known {
            return None;
        }
        let address: *const VsockAddress = peer.as_ptr().cast();
        // SAFETY: `peer` holds at least as many initialised bytes as the struct, which has no
        // invalid values; the read does not ask for alignment.
        Some(unsafe { address.read_unaligned() })
    }

    #[cfg(test)]
    mod test {
        use super::*;

        #[test]
        fn only_privileged_processes_of_host_and_guest_may_ask() {
            for (cid, port, expected) in
                [(2, 1023, true), (1, 5, true), (2, 1024, false), (3, 5, false)]
            {
                let peer = VsockAddress::new(cid, port);
                assert_eq!(may_ask(peer, HostProcesses::Root), expected, "{cid}:{port}");
            }
        }

        #[test]
        fn a_vmm_may_ask_for_processes_of_the_host_if_the_guest_says_so() {
            use HostProcesses::{OfTheVmm, Root};
            for (cid, port, processes, expected) in [
                (2, 1 << 30, OfTheVmm, true),
                (2, 1 << 30, Root, false),
                (2, 1 << 31, OfTheVmm, false),
                (1, 1 << 30, OfTheVmm, false),
                (2, 1023, OfTheVmm, true),
            ] {
                let may = may_ask(VsockAddress::new(cid, port), processes);
                assert_eq!(may, expected, "{cid}:{port} {processes:?}");
            }
        }
    }
}
