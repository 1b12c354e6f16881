//! Packets of network interfaces, by one clock, into a pcapng file.
//!
//! ```text
//!  interface --> ring (TPACKET_V3) --+
//!  interface --> ring ---------------+--> in order of time --> split::Writer
//! ```
//! Each interface has a ring of blocks that the kernel fills and hands over when they are full, or after some
//! milliseconds. All packets have the kernel's `CLOCK_REALTIME`, so that times of different interfaces can be compared.
//! Blocks arrive one after the other: packets are held until no earlier one can come.
//!
//! Design constraints: memory is the rings and what is held. What the kernel drops is counted and written to the file.
//! Packets are what anybody sends: nothing here looks into them. Must never change the interface (no promiscuous mode:
//! a tap sees its guest's packets without it).

mod interface;
mod order;
mod ring;

use std::io::{self, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use split::{CaptureNs, Writer};

pub use interface::{Interface, InterfaceError, named, taps, taps_of};
use order::Order;
use ring::Ring;

/// Options of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Bytes that are kept of each packet.
    pub snapshot_length: u32,
    /// Bytes of each interface's ring.
    pub ring_bytes: usize,
    /// When the file has as many, the capture is over.
    pub most_bytes: u64,
}

impl Options {
    /// Longer than any packet.
    pub const WHOLE: u32 = 256 << 10;
}

/// What came of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Captured {
    /// Packets in the file.
    pub packets: u64,
    /// Bytes of the file, almost.
    pub bytes: u64,
    /// Packets that the kernel dropped because a ring was full.
    pub dropped: u64,
    /// Whether it stopped because the file was large enough.
    pub is_full: bool,
}

/// Why nothing is captured, or no more.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// It takes root, or `CAP_NET_RAW`.
    #[error("failed to open a packet socket: run as root")]
    Forbidden,
    /// The kernel says no.
    #[error("failed to capture on {0}: {1}")]
    Interface(String, io::Error),
    /// The file can't be written.
    #[error("failed to write the capture: {0}")]
    Write(io::Error),
}

/// After this time the kernel hands over a block that is not full.
const RETIRE: Duration = Duration::from_millis(10);
/// By then packets of all interfaces have been handed over, also on a busy host.
const HELD_NS: u64 = 200_000_000;

/// Interfaces whose packets are being captured.
#[derive(Debug)]
pub struct Capture {
    names: Vec<String>,
    rings: Vec<Ring>,
    options: Options,
}

impl Capture {
    /// From now on, packets go to the rings.
    ///
    /// # Errors
    /// When the kernel does not let us.
    pub fn open(interfaces: &[Interface], options: Options) -> Result<Self, CaptureError> {
        let open = |interface: &Interface| {
            Ring::open(interface, &options).map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => CaptureError::Forbidden,
                _ => CaptureError::Interface(interface.name.clone(), error),
            })
        };
        let names = interfaces.iter().map(|interface| interface.name.clone()).collect();
        Ok(Self { names, rings: interfaces.iter().map(open).collect::<Result<_, _>>()?, options })
    }

    /// Writes packets until `stop` says so.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn run(
        self,
        out: impl Write,
        mut stop: impl FnMut(&Captured) -> bool,
    ) -> Result<Captured, CaptureError> {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let mut writer =
            Writer::new(out, &names, self.options.snapshot_length).map_err(CaptureError::Write)?;
        let mut order = Order::default();
        let mut captured = Captured::default();
        loop {
            let is_last = stop(&captured) || captured.is_full;
            if is_last {
                // What is in blocks that are not full comes, too.
                std::thread::sleep(4 * RETIRE);
            } else {
                self.wait();
            }
            self.take(&mut order);
            let until = if is_last { u64::MAX } else { now().0.saturating_sub(HELD_NS) };
            while let Some(packet) = order.next_before(CaptureNs(until)) {
                writer
                    .packet(packet.interface, packet.at, &packet.data, packet.length)
                    .map_err(CaptureError::Write)?;
                captured.packets += 1;
                captured.bytes += 36 + packet.data.len() as u64;
            }
            captured.is_full = self.options.most_bytes <= captured.bytes;
            if is_last {
                break;
            }
        }
        for (n, ring) in (0..).zip(&self.rings) {
            let dropped = ring.dropped();
            captured.dropped += dropped;
            writer.dropped(n, now(), dropped).map_err(CaptureError::Write)?;
        }
        writer.finish().map_err(CaptureError::Write)?;
        Ok(captured)
    }

    /// Until a ring has a block, but not for long.
    fn wait(&self) {
        let mut fds: Vec<PollFd<'_>> =
            self.rings.iter().map(|ring| PollFd::new(ring, PollFlags::IN)).collect();
        // A signal ends it, and the caller looks whether to stop.
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 }));
    }

    fn take(&self, order: &mut Order) {
        for (n, ring) in (0..).zip(&self.rings) {
            ring.take(|at, data, length| order.add(n, at, data, length));
        }
    }
}

fn now() -> CaptureNs {
    let time = clock_gettime(ClockId::Realtime);
    let [seconds, ns] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    CaptureNs(seconds * 1_000_000_000 + ns)
}
