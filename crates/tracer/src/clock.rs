//! `CLOCK_MONOTONIC`, also together with the CPU's time-stamp counter at the same moment.

// The only CPU instruction of this crate that other architectures lack; the crate `bpf` refuses to build for them.
use std::arch::x86_64::_rdtsc;

use rustix::time::{ClockId, clock_gettime};

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ClockPair {
    /// The time-stamp counter, in the middle of `width`.
    pub tsc: u64,
    /// `CLOCK_MONOTONIC`, ns: read somewhere within `width`.
    pub ns: u64,
    /// Ticks of the counter while `ns` was read.
    pub width: u64,
    /// The CPU whose counter it is.
    pub cpu: u32,
}

impl ClockPair {
    /// The tightest of `readings` readings, at least one.
    #[must_use]
    pub fn tightest(readings: u32) -> Self {
        let pairs = (0..readings.max(1)).map(|_| Self::read());
        pairs.min_by_key(|pair| pair.width).unwrap_or_default()
    }

    /// The tightest of `readings` readings on one CPU. The calling thread stays on that CPU, so it should be a short-lived one.
    ///
    /// # Errors
    /// If this thread may not run there.
    pub fn tightest_on(cpu: u32, readings: u32) -> std::io::Result<Self> {
        move_to(cpu)?;
        Ok(Self::tightest(readings))
    }

    fn read() -> Self {
        let before = read_tsc();
        let ns = now_ns();
        let width = read_tsc().saturating_sub(before);
        Self { tsc: before.wrapping_add(width / 2), ns, width, cpu: current_cpu() }
    }
}

fn read_tsc() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction; reading the counter has no other effect.
    unsafe { _rdtsc() }
}

/// If the thread moves to another CPU during a reading, the reading is wide and not the tightest.
fn current_cpu() -> u32 {
    // SAFETY: the call takes no arguments and only returns a number, or -1.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).unwrap_or(0)
}

fn move_to(cpu: u32) -> std::io::Result<()> {
    const WORD_BITS: u32 = u64::BITS;
    let mut set = vec![0u64; (cpu / WORD_BITS + 1) as usize];
    set[(cpu / WORD_BITS) as usize] = 1 << (cpu % WORD_BITS);
    // SAFETY: the kernel reads as many bytes of the set as its size says.
    let outcome = unsafe { libc::sched_setaffinity(0, size_of_val(&set[..]), set.as_ptr().cast()) };
    if outcome == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Now, `CLOCK_MONOTONIC`, ns.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn pairs_go_forward() {
        let (first, second) = (ClockPair::tightest(100), ClockPair::tightest(0));
        assert!(first.tsc < second.tsc && first.ns < second.ns);
        assert!(0 < first.width);
    }

    #[test]
    fn a_pair_says_whose_counter_it_is() {
        let pair = std::thread::spawn(|| ClockPair::tightest_on(0, 10)).join().unwrap();
        match pair {
            Ok(pair) => assert_eq!(pair.cpu, 0),
            Err(error) => skip::skip(error),
        }
        assert!(ClockPair::tightest_on(1 << 14, 1).is_err());
    }
}
