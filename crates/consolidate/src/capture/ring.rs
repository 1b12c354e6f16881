//! A packet socket with a ring that the kernel fills (`TPACKET_V3`, Documentation/networking/packet_mmap.rst).

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use split::CaptureNs;

use super::interface::Interface;
use super::{Options, RETIRE};

/// A packet must fit into a block.
const BLOCK: usize = 1 << 20;
/// Means nothing with version 3, but must divide a block.
const FRAME: usize = 1 << 11;
/// Where a block's header has its state; whose block it is.
const STATE_AT: usize = 8;
const TO_USER: u32 = 1;
const TO_KERNEL: u32 = 0;
const VLAN_VALID: u32 = 1 << 4;
const VLAN_TPID_VALID: u32 = 1 << 6;
const VLAN: u16 = 0x8100;

#[derive(Debug)]
pub(crate) struct Ring {
    socket: OwnedFd,
    memory: NonNull<c_void>,
    n_blocks: usize,
    /// The block that the kernel fills next.
    next: std::cell::Cell<usize>,
}

// SAFETY: the mapping is the ring's own until it is dropped, and nothing of it belongs to a thread.
unsafe impl Send for Ring {}

impl Ring {
    pub(crate) fn open(interface: &Interface, options: &Options) -> io::Result<Self> {
        // No protocol yet: packets of other interfaces must not get in before it is bound.
        let socket =
            socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        set(&socket, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V3 as c_int))?;
        if interface.is_loopback {
            set(&socket, libc::PACKET_IGNORE_OUTGOING, &1)?;
        }
        keep(&socket, options.snapshot_length)?;
        let n_blocks = (options.ring_bytes / BLOCK).max(2);
        let number = |n: usize| u32::try_from(n).map_err(|_| io::ErrorKind::InvalidInput);
        let request = libc::tpacket_req3 {
            tp_block_size: number(BLOCK)?,
            tp_block_nr: number(n_blocks)?,
            tp_frame_size: number(FRAME)?,
            tp_frame_nr: number(n_blocks * (BLOCK / FRAME))?,
            tp_retire_blk_tov: u32::try_from(RETIRE.as_millis()).unwrap_or(1),
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set(&socket, libc::PACKET_RX_RING, &request)?;
        let (read_write, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe {
            mmap(std::ptr::null_mut(), n_blocks * BLOCK, read_write, shared, &socket, 0)
        }?;
        let memory = NonNull::new(memory).ok_or(io::ErrorKind::OutOfMemory)?;
        let ring = Self { socket, memory, n_blocks, next: std::cell::Cell::new(0) };
        bind(&ring.socket, interface.index)?;
        Ok(ring)
    }

    /// Hands out each packet of the blocks that are there: time, bytes that were kept, and how many there were.
    pub(crate) fn take(&self, mut packet: impl FnMut(CaptureNs, Vec<u8>, u32)) {
        for _ in 0..self.n_blocks {
            let at = self.next.get();
            if self.state(at).load(Ordering::Acquire) & TO_USER == 0 {
                return;
            }
            packets(self.block(at), &mut packet);
            self.state(at).store(TO_KERNEL, Ordering::Release);
            self.next.set((at + 1) % self.n_blocks);
        }
    }

    /// Packets that the kernel dropped so far; it forgets them with this.
    pub(crate) fn dropped(&self) -> u64 {
        let mut statistics =
            libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
        let mut length = libc::socklen_t::try_from(size_of_val(&statistics)).unwrap_or(0);
        // SAFETY: the kernel writes no more than `length` bytes to `statistics`, and how many to `length`.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        };
        if result == 0 { statistics.tp_drops.into() } else { 0 }
    }

    fn state(&self, block: usize) -> &AtomicU32 {
        debug_assert!(block < self.n_blocks, "a block of this ring");
        let offset = block % self.n_blocks * BLOCK + STATE_AT;
        // SAFETY: inside of the mapping, which is as long as all blocks.
        let state = unsafe { self.memory.byte_add(offset) };
        // SAFETY: aligned, mapped as long as `self` is, and only accessed as an atomic number.
        unsafe { AtomicU32::from_ptr(state.cast().as_ptr()) }
    }

    /// A block that the kernel has handed over: it does not write there until its state says so.
    fn block(&self, block: usize) -> &[u8] {
        debug_assert!(block < self.n_blocks, "a block of this ring");
        // SAFETY: inside of the mapping, which is as long as all blocks.
        let start = unsafe { self.memory.byte_add(block % self.n_blocks * BLOCK) };
        // SAFETY: mapped as long as `self` is. It has no writer: its state was `TO_USER`, and `take` hands it back
        // after its last use. The state itself is never looked at through this.
        unsafe { std::slice::from_raw_parts(start.cast().as_ptr(), BLOCK) }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of which no reference is left.
        let _ = unsafe { munmap(self.memory.as_ptr(), self.n_blocks * BLOCK) };
    }
}

/// The packets of a block (`struct tpacket_block_desc`, then a `struct tpacket3_hdr` before each packet).
fn packets(block: &[u8], packet: &mut impl FnMut(CaptureNs, Vec<u8>, u32)) {
    let u32_at = |at: usize| block.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    let u16_at = |at: usize| block.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes));
    let n_packets = u32_at(12).unwrap_or(0);
    let mut at = u32_at(16).unwrap_or(0) as usize;
    let mut one = || {
        let next = u32_at(at)? as usize;
        let time = u64::from(u32_at(at + 4)?) * 1_000_000_000 + u64::from(u32_at(at + 8)?);
        let (kept, length, status) =
            (u32_at(at + 12)? as usize, u32_at(at + 16)?, u32_at(at + 20)?);
        let begin = at + usize::from(u16_at(at + 24)?);
        let mut data = block.get(begin..begin.checked_add(kept)?)?.to_vec();
        let mut length = length;
        if status & VLAN_VALID != 0 && 12 <= data.len() {
            // The kernel has taken the tag out.
            let tag = u16_at(at + 32)?.to_be_bytes();
            let known = status & VLAN_TPID_VALID != 0;
            let protocol = if known { u16_at(at + 36)? } else { VLAN }.to_be_bytes();
            data.splice(12..12, [protocol, tag].concat());
            length += 4;
        }
        packet(CaptureNs(time), data, length);
        at += next;
        Some(())
    };
    for _ in 0..n_packets {
        if one().is_none() {
            return;
        }
    }
}

/// The kernel copies no more than this of each packet.
fn keep(socket: &OwnedFd, bytes: u32) -> io::Result<()> {
    let code = u16::try_from(libc::BPF_RET | libc::BPF_K).unwrap_or(0);
    let mut filter = [libc::sock_filter { code, jt: 0, jf: 0, k: bytes }];
    let program = libc::sock_fprog { len: 1, filter: filter.as_mut_ptr() };
    set_at(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

fn bind(socket: &OwnedFd, index: i32) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).unwrap_or(0),
        sll_protocol: u16::try_from(libc::ETH_P_ALL).unwrap_or(0).to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or(0);
    // SAFETY: the kernel reads `length` bytes of `address`.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    checked(result)
}

fn set<T>(socket: &OwnedFd, option: c_int, value: &T) -> io::Result<()> {
    set_at(socket, libc::SOL_PACKET, option, value)
}

fn set_at<T>(socket: &OwnedFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    let value: *const T = value;
    // SAFETY: the kernel reads `length` bytes of `value`, and what a filter points to, which lives as long.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value.cast(), length) };
    checked(result)
}

fn checked(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
