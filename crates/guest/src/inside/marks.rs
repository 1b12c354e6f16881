//! Marks for the host: port writes by this guest's kernel, at which the vCPU always leaves the guest.
//!
//! Reading a register of the PCI host bridge is, in the kernel, to write the register's address to a port and to read
//! another: harmless, whereas one may not write to any port of a machine, and the kernels of cloud images have no
//! `/dev/port`. Each mark is a system call, which the probes see as everybody's; so they are made by a process of their
//! own, as those of `vmscope-guest` are left out.
//!
//! ```text
//!  vmscope-guest                      vmscope-guest marker
//!    count (a byte)  --------------->   reads that many registers
//!                    <---------------   the clock just before and after each (two words)
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use api::guest::MAX_MARKS;

/// The hidden subcommand of `vmscope-guest`.
pub const MARKER: &str = "marker";

const HOST_BRIDGE: &str = "/sys/bus/pci/devices/0000:00:00.0/config";
/// Bytes of a register, and of what the marker says of a mark.
const REGISTER: usize = 4;
const TIMES: usize = 16;

/// The process that makes marks. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Marker {
    process: Child,
    orders: ChildStdin,
    times: ChildStdout,
}

impl Marker {
    pub(crate) fn start() -> io::Result<Self> {
        // So that the error is known here.
        File::open(HOST_BRIDGE)?;
        let mut process = Command::new("/proc/self/exe")
            .arg(MARKER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        match (process.stdin.take(), process.stdout.take()) {
            (Some(orders), Some(times)) => Ok(Self { process, orders, times }),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    pub(crate) fn task(&self) -> u32 {
        self.process.id()
    }

    /// Makes so many marks, numbered from 0. The clock just before and after each, ns.
    pub(crate) fn make(&mut self, count: u8) -> io::Result<Vec<(u64, u64)>> {
        let count = count.min(MAX_MARKS);
        self.orders.write_all(&[count])?;
        let mut bytes = vec![0; usize::from(count) * TIMES];
        self.times.read_exact(&mut bytes)?;
        let (words, _) = bytes.as_chunks::<8>();
        let (pairs, _) = words.as_chunks::<2>();
        Ok(pairs
            .iter()
            .map(|pair| (u64::from_ne_bytes(pair[0]), u64::from_ne_bytes(pair[1])))
            .collect())
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        // It has nothing to lose, and may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What the marker's process does, until nobody orders marks any more.
///
/// # Errors
/// When it can't read the host bridge's registers, or tell its times.
pub fn make_marks() -> io::Result<()> {
    let bridge = File::open(HOST_BRIDGE)?;
    let mut count = [0];
    while io::stdin().read_exact(&mut count).is_ok() {
        let mut times = io::stdout().lock();
        times.write_all(&read_registers(&bridge, count[0])?)?;
        times.flush()?;
    }
    Ok(())
}

/// Says nothing before it has read them all: whoever hears of it would run.
fn read_registers(bridge: &File, count: u8) -> io::Result<Vec<u8>> {
    let mut times = Vec::with_capacity(usize::from(count) * TIMES);
    for number in 0..count {
        let before = super::now_ns();
        bridge.read_exact_at(&mut [0; REGISTER], u64::from(number) * REGISTER as u64)?;
        let after = super::now_ns();
        times.extend(before.to_ne_bytes());
        times.extend(after.to_ne_bytes());
    }
    Ok(times)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn each_mark_lies_between_two_readings_of_the_clock() {
        let bridge = tempfile::tempfile().unwrap();
        bridge.set_len(u64::from(MAX_MARKS) * REGISTER as u64).unwrap();
        let times = read_registers(&bridge, MAX_MARKS).unwrap();
        let words: Vec<u64> =
            times.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        assert_eq!(words.len(), 2 * usize::from(MAX_MARKS));
        assert!(words.is_sorted() && 0 < words[0]);
        assert!(read_registers(&bridge, MAX_MARKS + 1).is_err(), "there is no such register");
    }
}
