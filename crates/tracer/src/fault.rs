//! How long a page fault takes, where its end can't be traced.

use std::time::Instant;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Pages to try it with.
const PAGES: usize = 512;

/// Times of page faults this many times as long as the median had something else in them: an interrupt, another task.
const INTERRUPTED: u64 = 10;

/// Mean time of a minor page fault on this machine, in ns: fresh pages of our own are touched one by one. Measure it
/// before a trace: probes make faults slower. `None`: no memory to try it with.
#[must_use]
pub fn fault_estimate() -> Option<u64> {
    let page = rustix::param::page_size();
    let bytes = PAGES * page;
    // SAFETY: a fresh private mapping at an address of the kernel's choice aliases nothing of ours.
    let start = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }
    .ok()?;
    // Else one fault would bring 512 pages. Where there are no huge pages, this fails.
    // SAFETY: exactly the range that was mapped above; the advice changes no contents.
    let _ = unsafe { madvise(start, bytes, Advice::LinuxNoHugepage) };
    let times: Vec<u64> = (0..PAGES)
        .map(|n| {
            // SAFETY: page n lies inside the mapping.
            let at = unsafe { start.cast::<u8>().add(n * page) };
            let begin = Instant::now();
            // SAFETY: inside the mapping, which is writable and not shared.
            unsafe { at.write_volatile(1) };
            u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
        })
        .collect();
    // SAFETY: exactly the range that was mapped above; nothing refers to it any more.
    let _ = unsafe { munmap(start, bytes) };
    mean(times)
}

/// The mean of those that were not interrupted: many faults add up to it, and not to the median, which is lower.
fn mean(mut times: Vec<u64>) -> Option<u64> {
    times.sort_unstable();
    let median = times.get(times.len() / 2)?;
    let plain = &times[..times.partition_point(|ns| *ns < median.saturating_mul(INTERRUPTED))];
    plain.iter().sum::<u64>().checked_div(plain.len() as u64)
}

#[cfg(test)]
mod test {
    #[test]
    fn a_mean_without_what_was_interrupted() {
        assert_eq!(super::mean(vec![]), None);
        assert_eq!(super::mean(vec![900]), Some(900));
        assert_eq!(super::mean(vec![900, 1500, 100_000, 900, 900]), Some(1050));
    }

    #[test]
    fn a_fault_takes_longer_than_reading_the_clock_and_less_than_a_disk() {
        let estimate = super::fault_estimate().unwrap();
        assert!((50..1_000_000).contains(&estimate), "{estimate} ns");
    }
}
