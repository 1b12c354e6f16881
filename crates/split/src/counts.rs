//! Counters of what was dissected, and what could not be.

/// A counter of the dissector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Packets in all.
    Packets,
    /// Packets that are not TCP over IP.
    NotTcp,
    /// Packets of link types that are not read.
    LeftOut,
    /// Packets without a time, or with one that can't be.
    WithoutTime,
    /// Packets of interfaces that the file does not describe.
    UnknownInterface,
    /// Blocks of a file whose type is not known.
    UnknownBlocks,
    /// Packets with headers that are damaged, or cut off by the snapshot length.
    BadHeaders,
    /// Packets that IP has cut into fragments.
    Fragments,
    /// Packets of a connection that were seen on another interface than the connection's first packet.
    OtherInterface,
    /// Packets of a connection that were seen on another side of an address translation (NAT).
    Translated,
    /// Packets whose time is before that of an earlier packet of their connection.
    TimeWentBack,
    /// Packets that the capture itself has dropped, as it says.
    DroppedByCapture,
    /// Segments that bring nothing new.
    Retransmitted,
    /// Segments that came before earlier ones.
    Reordered,
    /// Bytes that a receiver acknowledged and the capture lacks.
    LostBytes,
    /// Places at which bytes are lacking.
    LostPlaces,
    /// Bytes that the snapshot length has cut off.
    CutBytes,
    /// TCP connections.
    Connections,
    /// Those that began before the capture.
    BeganBefore,
    /// Those that were given up for want of memory.
    Evicted,
    /// Those that speak none of the protocols.
    OtherProtocol,
    /// Those that begin with a header of the PROXY protocol, which is left out.
    ProxyHeaders,
    HttpConnections,
    /// HTTP/2 connections, which can't be split.
    Http2,
    /// Encrypted connections that are not known to be a database's.
    Encrypted,
    /// Connections to databases.
    DbConnections,
    /// Those that are encrypted.
    DbEncrypted,
    /// Those that are compressed, or speak a protocol that is not known.
    DbUndecoded,
    /// Requests to cancel a query.
    Cancels,
    /// Times at which a connection's messages could no longer be followed.
    LostMessages,
    /// Requests with a response that is not completely in the capture.
    WithoutResponse,
    /// Responses whose request is not in the capture.
    WithoutRequest,
    /// Requests, or trips to databases, beyond what memory is for.
    TooMany,
    /// Trips to databases by guests' traces.
    Traced,
    /// Trips to databases.
    Trips,
    /// Those that were during one request only.
    ByTime,
    /// Those whose transaction was during one request only.
    ByTransaction,
    /// Those whose connection was opened and closed during one request only.
    ByConnection,
    /// Those that may be of any of several requests.
    Ambiguous,
    /// Those that were during no request.
    Outside,
    /// Those during which the response was finished.
    Outlasting,
}

/// The name in reports, and what it says to people.
const NAMES: [(&str, &str); Counter::Outlasting as usize + 1] = [
    ("packets", "packets"),
    ("not_tcp", "packets other than TCP"),
    ("left_out", "packets of a link type that is not read"),
    ("without_time", "packets without a valid time"),
    ("unknown_interface", "packets of an interface that the file does not describe"),
    ("unknown_blocks", "blocks of an unknown type, which may have packets"),
    ("bad_headers", "packets with damaged or cut headers"),
    ("fragments", "IP fragments, which are not put together"),
    ("other_interface", "packets seen again on another interface"),
    ("translated", "packets seen again with translated addresses (NAT)"),
    ("time_went_back", "packets with a time before an earlier packet of their connection"),
    ("dropped_by_capture", "packets dropped by the capture"),
    ("retransmitted", "segments sent again"),
    ("reordered", "segments out of order"),
    ("lost_bytes", "bytes acknowledged by their receiver but not in the capture"),
    ("lost_places", "places at which the capture lacks bytes"),
    ("cut_bytes", "bytes cut off by the snapshot length"),
    ("connections", "TCP connections"),
    ("began_before", "connections that began before the capture"),
    ("evicted", "connections given up for want of memory"),
    ("other_protocol", "connections of another protocol"),
    ("proxy_headers", "connections with a PROXY protocol header, which is skipped"),
    ("http_connections", "HTTP connections"),
    ("http2", "HTTP/2 connections, which can't be split"),
    ("encrypted", "encrypted connections (TLS), whose requests can't be read"),
    ("db_connections", "database connections"),
    ("db_encrypted", "encrypted database connections (TLS), whose queries can't be read"),
    ("db_undecoded", "database connections that are compressed or of an unknown protocol"),
    ("cancels", "requests to cancel a query"),
    ("lost_messages", "times that the messages of a connection could not be followed"),
    ("without_response", "requests without a whole response"),
    ("without_request", "responses without a request"),
    ("too_many", "requests or database trips beyond the memory for them"),
    ("traced", "database trips by traces of guests"),
    ("trips", "database trips"),
    ("by_time", "trips during one request"),
    ("by_transaction", "trips whose transaction was during one request"),
    ("by_connection", "trips whose connection was opened and closed during one request"),
    ("ambiguous", "database trips that may be of several requests"),
    ("outside", "trips during no request"),
    ("outlasting", "trips that ended after the response"),
];

/// How often each was counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts([u64; NAMES.len()]);

impl Default for Counts {
    fn default() -> Self {
        Self([0; NAMES.len()])
    }
}

impl Counts {
    /// The value of a counter.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Each with its key, what it says to people, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        NAMES.iter().zip(self.0).map(|((key, words), n)| (*key, *words, n))
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        for (count, n) in self.0.iter_mut().zip(other.0) {
            *count = count.saturating_add(n);
        }
    }

    pub(crate) fn add(&mut self, counter: Counter, n: u64) {
        let count = &mut self.0[counter as usize];
        *count = count.saturating_add(n);
    }

    /// What was counted is no such thing.
    pub(crate) fn take_back(&mut self, counter: Counter) {
        let count = &mut self.0[counter as usize];
        *count = count.saturating_sub(1);
    }

    pub(crate) fn one(&mut self, counter: Counter) {
        self.add(counter, 1);
    }
}
