//! A captured packet, and the TCP segment in it.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    EtherType, LaxIpPayloadSlice, LaxNetSlice, LaxSlicedPacket, TcpSlice, TransportSlice,
};

use crate::{CaptureNs, Counter};

/// A packet as it was captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    pub at: CaptureNs,
    /// Where: a number for each interface.
    pub interface: u32,
    /// What its bytes begin with.
    pub link: Link,
    /// What was kept of it.
    pub data: &'a [u8],
    pub length: u32,
}

/// What the bytes of a packet begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// An Ethernet header, perhaps with VLAN tags.
    Ethernet,
    /// An IPv4 or IPv6 header.
    Ip,
    /// Four bytes of an address family, then an IP header.
    Null,
    /// The header of Linux' "any" interface.
    Cooked,
    /// Its second version.
    Cooked2,
}

impl Link {
    /// By its number in a capture file; `None`: no IP packets can be expected there.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        match number {
            1 => Some(Self::Ethernet),
            101 | 228 | 229 => Some(Self::Ip),
            0 | 108 => Some(Self::Null),
            113 => Some(Self::Cooked),
            276 => Some(Self::Cooked2),
            _ => None,
        }
    }
}

/// A TCP segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    pub(crate) at: CaptureNs,
    pub(crate) interface: u32,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) seq: u32,
    pub(crate) ack: Option<u32>,
    pub(crate) flags: Flags,
    pub(crate) payload: &'a [u8],
    /// Bytes after `payload` that were not kept.
    pub(crate) cut: u32,
}

/// The flags that matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flags {
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
}

impl<'a> Segment<'a> {
    /// The segment in a packet, or the counter of packets that have none.
    pub(crate) fn in_packet(packet: &Packet<'a>) -> Result<Self, Counter> {
        let layers = layers(packet).ok_or(Counter::BadHeaders)?;
        let Some(net) = &layers.net else {
            return Err(if layers.stop_err.is_some() {
                Counter::BadHeaders
            } else {
                Counter::NotTcp
            });
        };
        let (from, to, ip_payload, declared) = addresses(net).ok_or(Counter::NotTcp)?;
        if ip_payload.fragmented {
            return Err(Counter::Fragments);
        }
        let tcp = match &layers.transport {
            Some(TransportSlice::Tcp(tcp)) => tcp,
            None if ip_payload.ip_number == etherparse::IpNumber::TCP => {
                return Err(Counter::BadHeaders);
            }
            _ => return Err(Counter::NotTcp),
        };
        let kept = ip_payload.payload.len();
        let whole = match declared {
            // A segment that was captured before the network card cut it, longer than IP can say.
            None => kept + (packet.length as usize).saturating_sub(packet.data.len()),
            Some(declared) => declared,
        };
        let cut = u32::try_from(whole.saturating_sub(kept)).unwrap_or(u32::MAX).min(MAX_CUT);
        Ok(Self::new(packet, (from, to), tcp, cut))
    }

    fn new(
        packet: &Packet<'a>,
        (from, to): (IpAddr, IpAddr),
        tcp: &TcpSlice<'a>,
        cut: u32,
    ) -> Self {
        Self {
            at: packet.at,
            interface: packet.interface,
            from: SocketAddr::new(from, tcp.source_port()),
            to: SocketAddr::new(to, tcp.destination_port()),
            seq: tcp.sequence_number(),
            ack: tcp.ack().then(|| tcp.acknowledgment_number()),
            flags: Flags { syn: tcp.syn(), fin: tcp.fin(), rst: tcp.rst() },
            payload: tcp.payload(),
            cut,
        }
    }
}

/// More than a packet can have, so that a damaged length skips no more.
const MAX_CUT: u32 = 1 << 20;

fn layers<'a>(packet: &Packet<'a>) -> Option<LaxSlicedPacket<'a>> {
    let data = packet.data;
    let after = |header: usize| data.get(header..);
    match packet.link {
        Link::Ethernet => LaxSlicedPacket::from_ethernet(data).ok(),
        Link::Ip => LaxSlicedPacket::from_ip(data).ok(),
        Link::Null => LaxSlicedPacket::from_ip(after(4)?).ok(),
        Link::Cooked => Some(LaxSlicedPacket::from_ether_type(ether_type(data, 14)?, after(16)?)),
        Link::Cooked2 => Some(LaxSlicedPacket::from_ether_type(ether_type(data, 0)?, after(20)?)),
    }
}

fn ether_type(data: &[u8], at: usize) -> Option<EtherType> {
    let bytes = data.get(at..at + 2)?;
    Some(EtherType(u16::from_be_bytes([bytes[0], bytes[1]])))
}

/// From, to, what IP carries, and how long it says that is.
fn addresses<'n, 'a>(
    net: &'n LaxNetSlice<'a>,
) -> Option<(IpAddr, IpAddr, &'n LaxIpPayloadSlice<'a>, Option<usize>)> {
    match net {
        LaxNetSlice::Ipv4(ip) => {
            let header = ip.header();
            let (total, own) = (usize::from(header.total_len()), header.slice().len());
            let extension = ip.extensions().auth.map_or(0, |auth| auth.slice().len());
            let declared = (own <= total).then(|| (total - own).saturating_sub(extension));
            Some((
                header.source_addr().into(),
                header.destination_addr().into(),
                ip.payload(),
                declared,
            ))
        }
        LaxNetSlice::Ipv6(ip) => {
            let header = ip.header();
            let total = usize::from(header.payload_length());
            let extensions = ip.extensions().slice().len();
            let declared = (total != 0).then(|| total.saturating_sub(extensions));
            Some((
                header.source_addr().into(),
                header.destination_addr().into(),
                ip.payload(),
                declared,
            ))
        }
        LaxNetSlice::Arp(_) => None,
    }
}
