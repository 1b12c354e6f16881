//! A guest's rings, read by its host.
//!
//! ```text
//!  guest says: ring heads lie in pages 5, 9; slots in 17, 18, 40 ...    (claims: nothing of them is believed)
//!    |  every page must lie in a memory slot that the guest can write
//!    v
//!  GuestRings: host addresses --/proc/PID/mem--> TakenSlots --> Consumer --> events, at the guest's times
//!    |  tails                                                                   |
//!    '--/proc/PID/mem--> guest                                                  v   GuestClock: guest ns -> TSC -> host TSC
//!                                                                           events at the host's times         -> host ns
//! ```
//! `GuestRings` may wait for ever, so a child process has them, which hands copies to the recorder. Where memory can't be
//! read, the guest sends its slots, and `SentRings` takes the place of both.
//!
//! Design constraints: whatever a guest says or writes is hostile. It may cost its own trace, with a reason; no more than
//! the bounds below of time and memory; and nothing is ever written but 8 bytes of the guest's own writable memory.

mod clock;
mod layout;
mod memory;
mod sent;
mod taken;

pub use clock::{ClockError, ClockSample, GuestClock, TscScale, sample_clock};
pub use layout::{Addresses, Claim, LayoutError, MAX_PAGES, MAX_RINGS, MAX_SLOTS, Region};
pub use memory::{GuestRings, HeadWords, MemoryError, ProcessMemory, lost, mark};
pub use sent::{SentError, SentRings};
pub use taken::TakenSlots;
