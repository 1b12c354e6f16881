//! Marks for the host: writes to an I/O port that is nobody's, which make the vCPU leave the guest.

use std::arch::asm;

use api::guest::MAX_MARKS;

/// `MARK_PORT` of bpf/abi/vm.h.
const PORT: u16 = 0xeb;
const PORTS: u64 = 4;

/// Writes so many marks, each one more than the one before. The clock just before and after each, ns.
pub(crate) fn write(first: u32, count: u32) -> Result<Vec<(u64, u64)>, String> {
    let count = count.min(u32::try_from(MAX_MARKS).unwrap_or(0));
    // SAFETY: it lets this thread write the four ports from there on, which are no device's.
    let allowed = unsafe { libc::ioperm(u64::from(PORT), PORTS, 1) };
    if allowed != 0 {
        let error = std::io::Error::last_os_error();
        return Err(format!("it may not write I/O ports: {error}"));
    }
    let mark = |n: u32| {
        let before = super::now_ns();
        write_port(first.wrapping_add(n));
        (before, super::now_ns())
    };
    Ok((0..count).map(mark).collect())
}

fn write_port(value: u32) {
    // SAFETY: `ioperm` has allowed it, and no device listens there.
    unsafe { asm!("out dx, eax", in("dx") PORT, in("eax") value, options(nomem, nostack)) };
}
