//! Perf side-band records as bytes (see perf_event_open(2)), for events opened with
//! `sample_id_all` and the sample type `TID | TIME`: every record ends in `pid, tid, time`.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use model::BuildId;

use super::{Event, EventKind};

const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;
const RECORD_MMAP2: u32 = 10;
const MISC_COMM_EXEC: u16 = 1 << 13;
const MISC_MMAP_BUILD_ID: u16 = 1 << 14;
const PROT_EXEC: u32 = 4;
/// `u32 pid, tid; u64 time`.
const TRAILER_BYTES: usize = 16;

/// What one record says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A requested record.
    Event(Event),
    /// The kernel had no room for this many records.
    Lost(u64),
    /// Something else, or too short to be what it says it is.
    Other,
}

/// Parses one record without its header.
pub(super) fn parse_record(kind: u32, misc: u16, body: &[u8]) -> Record {
    if kind == RECORD_LOST {
        return u64_at(body, 8).map_or(Record::Other, Record::Lost);
    }
    parse_event(kind, misc, body).map_or(Record::Other, Record::Event)
}

fn parse_event(kind: u32, misc: u16, body: &[u8]) -> Option<Event> {
    let (body, trailer) = body.split_at_checked(body.len().checked_sub(TRAILER_BYTES)?)?;
    let kind = match kind {
        RECORD_COMM => {
            EventKind::Comm { name: text(body.get(8..)?), exec: misc & MISC_COMM_EXEC != 0 }
        }
        RECORD_FORK => EventKind::Fork { parent: u32_at(body, 4)? },
        RECORD_EXIT => EventKind::Exit,
        RECORD_MMAP2 => mmap2(misc, body)?,
        _ => return None,
    };
    // Fork and exit: `u32 pid, ppid, tid, ptid`; the others: `u32 pid, tid`.
    let tid_at = match kind {
        EventKind::Fork { .. } | EventKind::Exit => 8,
        EventKind::Comm { .. } | EventKind::Map { .. } => 4,
    };
    let (pid, tid) = (u32_at(body, 0)?, u32_at(body, tid_at)?);
    Some(Event { time_ns: u64_at(trailer, 8)?, pid, tid, kind })
}

/// `u32 pid, tid; u64 address, length, offset; 24 bytes of file or build id; u32 prot, flags; name`.
fn mmap2(misc: u16, body: &[u8]) -> Option<EventKind> {
    if u32_at(body, 56)? & PROT_EXEC == 0 {
        return None;
    }
    let build_id = if misc & MISC_MMAP_BUILD_ID == 0 {
        None
    } else {
        let length = usize::from(*body.get(32)?);
        body.get(36..)?.get(..length.min(20)).and_then(BuildId::new)
    };
    Some(EventKind::Map {
        start: u64_at(body, 8)?,
        length: u64_at(body, 16)?,
        offset: u64_at(body, 24)?,
        path: text(body.get(64..)?),
        build_id,
    })
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_ne_bytes)
}

#[cfg(test)]
mod test {
    use super::*;

    /// A record's body from 32-bit words, a name, and the trailer of time 9000.
    fn body(words: &[u32], name: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(name);
        while !bytes.len().is_multiple_of(8) {
            bytes.push(0);
        }
        bytes.extend([7u32.to_ne_bytes(), 8u32.to_ne_bytes()].concat());
        bytes.extend(9000u64.to_ne_bytes());
        bytes
    }

    fn check(kind: u32, misc: u16, body: &[u8], expected: Option<(u32, u32, EventKind)>) {
        let expected = expected.map_or(Record::Other, |(pid, tid, kind)| {
            Record::Event(Event { time_ns: 9000, pid, tid, kind })
        });
        assert_eq!(parse_record(kind, misc, body), expected);
        for cut in 0..body.len() {
            parse_record(kind, misc, &body[..cut]); // must not panic
        }
    }

    #[test]
    fn records_become_events() {
        let comm = body(&[10, 11], b"bash\0");
        check(3, 0, &comm, Some((10, 11, EventKind::Comm { name: "bash".into(), exec: false })));
        check(
            3,
            1 << 13,
            &comm,
            Some((10, 11, EventKind::Comm { name: "bash".into(), exec: true })),
        );
        let fork = body(&[20, 10, 21, 11, 5, 0], b"");
        check(7, 0, &fork, Some((20, 21, EventKind::Fork { parent: 10 })));
        check(4, 0, &fork, Some((20, 21, EventKind::Exit)));
        check(99, 0, &fork, None);
    }

    fn mmap(file: [u32; 6], protection: u32) -> Vec<u8> {
        let head = [10, 11, 0x1000, 0, 0x3000, 0, 0x2000, 0];
        body(&[&head[..], &file[..], &[protection, 2][..]].concat(), b"/usr/lib/libc.so.6\0")
    }

    fn mapped(build_id: Option<&[u8]>) -> EventKind {
        EventKind::Map {
            start: 0x1000,
            length: 0x3000,
            offset: 0x2000,
            path: "/usr/lib/libc.so.6".into(),
            build_id: build_id.and_then(BuildId::new),
        }
    }

    #[test]
    fn executable_mappings_come_with_their_build_id() {
        let id = [20, 0x0302_0100, 0x0706_0504, 0x0b0a_0908, 0x0f0e_0d0c, 0x1312_1110];
        let bytes: Vec<u8> = (0..20).collect();
        check(10, 1 << 14, &mmap(id, 5), Some((10, 11, mapped(Some(&bytes)))));
        check(10, 0, &mmap([8, 1, 1234, 0, 0, 0], 5), Some((10, 11, mapped(None))));
        check(10, 0, &mmap([8, 1, 1234, 0, 0, 0], 1), None);
    }

    #[test]
    fn losses_are_counted() {
        assert_eq!(parse_record(2, 0, &body(&[1, 0, 77, 0], b"")), Record::Lost(77));
    }
}
