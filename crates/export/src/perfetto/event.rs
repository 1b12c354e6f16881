//! An event of a track, before it is a packet.

use model::HostNs;

/// An event of a track.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) time: HostNs,
    pub(crate) kind: Kind,
    /// Empty for an end and for a count.
    pub(crate) name: String,
    pub(crate) category: &'static str,
    pub(crate) facts: Vec<(&'static str, Fact)>,
    pub(crate) flows_out: Vec<u64>,
    pub(crate) flows_in: Vec<u64>,
}

/// A fact about an event.
#[derive(Debug)]
pub(crate) enum Fact {
    Number(u64),
    Text(String),
}

/// In the order of events at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    End,
    BeginVictim,
    Begin,
    Instant,
    /// A slice that an arrow leads to: comes after the arrow's begin.
    BeginWoken,
    Count(i64),
}

/// A slice begins.
pub(crate) fn begin(time: HostNs, name: String, category: &'static str) -> Event {
    let (flows_out, flows_in) = (Vec::new(), Vec::new());
    Event { time, kind: Kind::Begin, name, category, facts: Vec::new(), flows_out, flows_in }
}

/// The innermost slice ends.
pub(crate) fn end(time: HostNs) -> Event {
    Event { kind: Kind::End, ..begin(time, String::new(), "") }
}

/// A counter has this value from now on.
pub(crate) fn count(time: HostNs, value: i64) -> Event {
    Event { kind: Kind::Count(value), ..begin(time, String::new(), "") }
}
