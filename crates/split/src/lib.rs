//! Turnaround of web requests, split by packets: what the web server took before, between and after its database
//! queries, and what the database took.
//!
//! ```text
//!  pcap files --> Packet --> Segment --> bytes in order --> HTTP        --> requests --+
//!                 (link, IP, TCP)  (tcp, per direction) --> PostgreSQL  --> trips -----+--> assign --> parts
//!                                                       --> MySQL       --> trips -----+
//! ```
//!
//! A *trip* is a time in which a database owes an answer on one connection. Trips that can belong to one request only
//! are its own; where more than one request could have made a query, the parts of all of them are unknown, with the
//! reason. Parts add up to the turnaround exactly, which `Parts::new` asserts. `TimeAxis` says what the VM that worked
//! in a part did meanwhile, by a recording. `GuestTrips` finds trips in the trace of a guest, where web server and
//! database share one.
//!
//! Design constraints: pure. No I/O beyond the `Read` and `Write` that the caller gives, no clock, no `unsafe`. Packets
//! are hostile: memory is bounded per connection and in all, and what could not be followed is counted.
//! `docs/lab.md` explains parts, rules and limits.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

mod assign;
mod axis;
mod capture_file;
mod connection;
mod counts;
pub mod drawn;
mod framing;
mod guess;
mod guest_trace;
mod http;
mod mysql;
mod nat;
mod packet;
mod parts;
mod pcapng;
mod postgres;
mod proxy;
pub mod report;
mod roles;
mod sink;
mod splitter;
mod tcp;

pub use axis::{PartSum, TimeAxis, TimeSpent, WorkTime};
pub use capture_file::{CaptureError, CaptureFile, Interface};
pub use counts::{Counter, Counts};
pub use guest_trace::{GuestTrips, TracedGuest};
pub use packet::{Link, Packet};
pub use parts::{Part, PartTime, Parts, Unknown};
pub use pcapng::Writer;
pub use roles::{Endpoint, Roles};
pub use splitter::{Assigned, Database, Outcome, Protocol, Request, Split, Splitter};

/// Nanoseconds since 1970 on the capture's clock, which is the host's `CLOCK_REALTIME` where the kernel took the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CaptureNs(pub u64);

impl CaptureNs {
    /// Later than all.
    pub(crate) const LAST: Self = Self(u64::MAX);

    /// Nanoseconds from `earlier` to `self`; 0 when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
