//! Capture files of every kind: byte orders, units of time, blocks and options, and damaged ones.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use split::drawn::{self, Drawing, DrawnPacket};
use split::{CaptureError, CaptureFile, CaptureNs, Counter, Roles, Split, Splitter};

/// 2023-11-14.
const BEGIN_S: u64 = 1_700_000_000;

/// Bytes of a file in one byte order.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn u16(self, n: u16) -> Vec<u8> {
        if self == Self::Little { n.to_le_bytes() } else { n.to_be_bytes() }.to_vec()
    }

    fn u32(self, n: u32) -> Vec<u8> {
        if self == Self::Little { n.to_le_bytes() } else { n.to_be_bytes() }.to_vec()
    }

    fn u64(self, n: u64) -> Vec<u8> {
        if self == Self::Little { n.to_le_bytes() } else { n.to_be_bytes() }.to_vec()
    }

    fn words(self, words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| self.u32(*word)).collect()
    }

    fn block(self, kind: u32, body: &[u8]) -> Vec<u8> {
        let length = self.u32(12 + body.len().next_multiple_of(4) as u32);
        [&self.u32(kind)[..], &length, &padded(body), &length].concat()
    }

    fn option(self, code: u16, value: &[u8]) -> Vec<u8> {
        [self.u16(code), self.u16(value.len() as u16), padded(value)].concat()
    }

    fn section(self) -> Vec<u8> {
        let version = [self.u16(1), self.u16(0)].concat();
        self.block(0x0a0d_0d0a, &[self.u32(0x1a2b_3c4d), version, vec![0xff; 8]].concat())
    }

    fn interface(self, link: u16, options: &[Vec<u8>]) -> Vec<u8> {
        self.block(1, &[self.u16(link), self.u16(0), self.u32(0), options.concat()].concat())
    }

    fn enhanced(self, interface: u32, units: u64, data: &[u8], options: &[Vec<u8>]) -> Vec<u8> {
        let length = data.len() as u32;
        let header = self.words(&[interface, (units >> 32) as u32, units as u32, length, length]);
        self.block(6, &[header, padded(data), options.concat()].concat())
    }

    fn obsolete(self, interface: u16, dropped: u16, units: u64, data: &[u8]) -> Vec<u8> {
        let length = data.len() as u32;
        let time = self.words(&[(units >> 32) as u32, units as u32, length, length]);
        self.block(2, &[self.u16(interface), self.u16(dropped), time, padded(data)].concat())
    }

    fn pcap(self, magic: u32, version: (u16, u16), records: &[Vec<u8>]) -> Vec<u8> {
        let version = [self.u16(version.0), self.u16(version.1)].concat();
        [self.u32(magic), version, self.words(&[0, 0, 65_535, 1]), records.concat()].concat()
    }

    fn record(self, seconds: u32, fraction: u32, more: &[u8], data: &[u8]) -> Vec<u8> {
        let length = data.len() as u32;
        [&self.words(&[seconds, fraction, length, length])[..], more, data].concat()
    }
}

const ORDERS: [Order; 2] = [Order::Little, Order::Big];

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A request of 62.5 ms, a sixteenth of a second: every unit of time that is used here can say it.
fn request() -> Vec<DrawnPacket> {
    let mut drawing = Drawing::default();
    let line = drawing.open(0, "10.0.0.9:40000", "10.0.0.2:80");
    drawing.client(line, 125_000, b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    drawing.server(line, 187_500, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    drawing.packets
}

/// A file with that request: packets at units that are `per_s` to a second.
fn packets(per_s: u128, block: impl Fn(u64, &[u8]) -> Vec<u8>) -> Vec<u8> {
    let units = |us: u64| {
        let us = u128::from(BEGIN_S) * 1_000_000 + u128::from(us);
        (us * per_s / 1_000_000) as u64
    };
    request().iter().flat_map(|drawn| block(units(drawn.at_us), &drawn.frame)).collect()
}

struct Read {
    split: Split,
    end: Result<(), CaptureError>,
    is_cut: bool,
    tick_ns: u64,
}

impl Read {
    fn count(&self, counter: Counter) -> u64 {
        self.split.counts.get(counter)
    }
}

fn read(bytes: &[u8]) -> Read {
    let mut file = CaptureFile::new(bytes, 0).unwrap();
    let mut splitter = Splitter::new(Roles::default());
    let end = loop {
        match file.advance() {
            Ok(true) => splitter.packet(&file.packet().unwrap()),
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    splitter.file(&file.counts());
    Read { split: splitter.finish(), end, is_cut: file.is_cut(), tick_ns: file.tick_ns() }
}

/// The file has the request, at its time.
fn check(bytes: &[u8]) -> Read {
    let read = read(bytes);
    assert_eq!((&read.end, read.is_cut), (&Ok(()), false));
    assert_eq!(read.count(Counter::Packets), request().len() as u64);
    let [request] = &read.split.requests[..] else { panic!("{:?}", read.split.counts) };
    let begin = CaptureNs(BEGIN_S * 1_000_000_000 + 125_000_000);
    assert_eq!((request.begin, request.turnaround_ns()), (begin, 62_500_000));
    read
}

#[test]
fn units_of_time_in_both_byte_orders() {
    for order in ORDERS {
        let with = |options: &[Vec<u8>], per_s, offset_s: u64| {
            let file = [
                order.section(),
                order.interface(1, options),
                packets(per_s, |units, data| {
                    let offset = (u128::from(offset_s) * per_s) as u64;
                    order.enhanced(0, units.wrapping_sub(offset), data, &[])
                }),
            ];
            check(&file.concat()).tick_ns
        };
        let unit = |resolution| order.option(9, &[resolution]);
        assert_eq!(with(&[], 1_000_000, 0), 1000);
        assert_eq!(with(&[unit(6)], 1_000_000, 0), 1000);
        assert_eq!(with(&[unit(9)], 1_000_000_000, 0), 1);
        assert_eq!(with(&[unit(4)], 10_000, 0), 100_000);
        assert_eq!(with(&[unit(10)], 10_000_000_000, 0), 0);
        for bits in [4, 10, 20, 30] {
            assert_eq!(with(&[unit(0x80 | bits)], 1 << bits, 0), 1_000_000_000 >> bits);
        }
        // Times since another instant than 1970: before it, and after it.
        let offset = |seconds: i64| order.option(14, &order.u64(seconds.cast_unsigned()));
        with(&[unit(9), offset(1_699_999_000)], 1_000_000_000, 1_699_999_000);
        with(&[unit(0x80 | 32), offset(1_699_999_000)], 1 << 32, 1_699_999_000);
        with(&[offset(-5)], 1_000_000, (-5_i64).cast_unsigned());
    }
}

#[test]
fn pcap_files_in_both_byte_orders() {
    for order in ORDERS {
        let file = |magic, per_s: u64, more: &[u8]| {
            let records = packets(u128::from(per_s), |units, data| {
                order.record((units / per_s) as u32, (units % per_s) as u32, more, data)
            });
            check(&order.pcap(magic, (2, 4), &[records])).tick_ns
        };
        assert_eq!(file(0xa1b2_c3d4, 1_000_000, &[]), 1000);
        assert_eq!(file(0xa1b2_3c4d, 1_000_000_000, &[]), 1);
        // With an interface and a protocol in each record.
        assert_eq!(file(0xa1b2_cd34, 1_000_000, &[0; 8]), 1000);
    }
}

#[test]
fn obsolete_packet_blocks_and_dropped_packets() {
    for order in ORDERS {
        let start = [order.section(), order.interface(1, &[])].concat();
        let obsolete = packets(1_000_000, |units, data| order.obsolete(0, 2, units, data));
        let n = request().len() as u64;
        let read = check(&[&start[..], &obsolete].concat());
        assert_eq!(read.count(Counter::DroppedByCapture), 2 * n);
        // How many is not known.
        let unknown = packets(1_000_000, |units, data| order.obsolete(0, u16::MAX, units, data));
        assert_eq!(check(&[&start[..], &unknown].concat()).count(Counter::DroppedByCapture), 0);
        let lost = [order.option(4, &order.u64(3))];
        let enhanced = packets(1_000_000, |units, data| order.enhanced(0, units, data, &lost));
        let read = check(&[&start[..], &enhanced].concat());
        assert_eq!(read.count(Counter::DroppedByCapture), 3 * n);
        // Statistics count the same ones again. The system's are others.
        let dropped = [order.option(5, &order.u64(3 * n)), order.option(7, &order.u64(1))].concat();
        let statistics = order.block(5, &[order.words(&[0, 0, 0]), dropped].concat());
        let read = check(&[&start[..], &enhanced, &statistics].concat());
        assert_eq!(read.count(Counter::DroppedByCapture), 3 * n + 1);
        // Of both sections.
        let twice = [&start[..], &enhanced, &statistics, &start, &statistics].concat();
        assert_eq!(check(&twice).count(Counter::DroppedByCapture), 2 * (3 * n + 1));
    }
}

#[test]
fn what_is_left_out_is_counted_by_its_reason() {
    for order in ORDERS {
        let known = packets(1_000_000, |units, data| order.enhanced(0, units, data, &[]));
        let simple = order.block(3, &[order.u32(4), vec![0; 4]].concat());
        let read = check(
            &[
                order.section(),
                order.interface(1, &[]),
                // No IP packets are on a USB bus.
                order.interface(189, &[]),
                // Its times are in the year 293,000.
                order.interface(1, &[order.option(9, &[0x80 | 1])]),
                known.clone(),
                simple.clone(),
                simple,
                order.enhanced(1, 5, b"usb", &[]),
                order.enhanced(2, u64::MAX, b"late", &[]),
                order.enhanced(9, 5, b"none", &[]),
                // Names, a custom block and one that no reader knows.
                order.block(4, &order.words(&[0])),
                order.block(0xbad, &order.words(&[1, 2])),
                order.block(0x7777, b"abc"),
            ]
            .concat(),
        );
        let counted = [
            Counter::LeftOut,
            Counter::WithoutTime,
            Counter::UnknownInterface,
            Counter::UnknownBlocks,
        ];
        assert_eq!(counted.map(|counter| read.count(counter)), [1, 3, 1, 1]);
        // Nanoseconds in a file that says microseconds.
        let late = order.record(5, 1_000_000, &[], b"late");
        let read = read_all(&order.pcap(0xa1b2_c3d4, (2, 4), &[late]));
        assert_eq!((read.count(Counter::Packets), read.count(Counter::WithoutTime)), (0, 1));
    }
}

fn read_all(bytes: &[u8]) -> Read {
    let read = read(bytes);
    assert_eq!((&read.end, read.is_cut), (&Ok(()), false));
    read
}

#[test]
fn damaged_files_are_errors() {
    for order in ORDERS {
        let start = [order.section(), order.interface(1, &[])].concat();
        let good = order.enhanced(0, 1, b"good", &[]);
        let fails = |what: &[u8], expected: CaptureError| {
            let read = read(&[&start[..], &good, what, &good].concat());
            assert_eq!((&read.end, read.is_cut), (&Err(expected), false));
            assert_eq!(read.count(Counter::Packets), 1);
        };
        let damaged = CaptureError::Damaged(1);
        // A packet that is longer than its block. It is not the file's end that it lacks.
        let long = order.words(&[0, 0, 1, 5000, 5000, 0]);
        fails(&order.block(6, &long), damaged.clone());
        fails(&order.block(6, &order.words(&[0, 0, 1, u32::MAX, 9])), damaged.clone());
        fails(&order.block(6, &order.words(&[0, 0])), damaged.clone());
        fails(&order.block(2, &long), damaged.clone());
        fails(&order.block(3, &[]), damaged.clone());
        fails(&order.enhanced(0, 1, b"", &[order.option(4, &[1])]), damaged.clone());
        // Lengths of blocks.
        for length in [0, 8, 11, (16 << 20) + 4, u32::MAX] {
            fails(&order.words(&[6, length, 0, 0]), damaged.clone());
        }
        fails(&order.words(&[6, 16, 0, 20]), damaged.clone());
        // Options of an interface that a time can't be read without.
        for (code, value) in [(9, &[][..]), (9, &[6, 6]), (14, &[0; 4])] {
            fails(&order.interface(1, &[order.option(code, value)]), damaged.clone());
        }
        fails(&order.interface(1, &[order.words(&[u32::MAX])]), damaged.clone());
        // Another section, without a byte order and of another version.
        let section = order.section();
        fails(&[&section[..8], &[0; 20]].concat(), damaged.clone());
        let mut version = section.clone();
        version[12..14].copy_from_slice(&order.u16(2));
        fails(&version, CaptureError::Version(2, 0));
        assert_eq!(CaptureFile::new(&version[..], 0).unwrap_err(), CaptureError::Version(2, 0));

        let good = order.record(1, 1, &[], b"good");
        let long = order.words(&[1, 1, (16 << 20) + 1, 4]);
        let read = read(&order.pcap(0xa1b2_c3d4, (2, 4), &[good.clone(), long]));
        assert_eq!((read.end, read.is_cut), (Err(damaged), false));
        let old = order.pcap(0xa1b2_c3d4, (2, 2), &[good]);
        assert_eq!(CaptureFile::new(&old[..], 0).unwrap_err(), CaptureError::Version(2, 2));
        let other = order.pcap(0xa1b2_c3d5, (2, 4), &[]);
        assert_eq!(CaptureFile::new(&other[..], 0).unwrap_err(), CaptureError::NotCapture);
    }
}

/// However much of a file is there: its packets up to there, and that it is cut.
#[test]
fn files_that_end_anywhere() {
    let order = Order::Big;
    let start = [order.section(), order.interface(1, &[])].concat();
    let packet = order.enhanced(0, 1, b"abc", &[]);
    let pcapng = [&start[..], &packet, &packet].concat();
    let record = order.record(1, 1, &[], b"abc");
    let pcap = order.pcap(0xa1b2_c3d4, (2, 4), &[record.clone(), record.clone()]);
    for (file, first, packet) in [(pcapng, start.len(), packet.len()), (pcap, 24, record.len())] {
        for length in first..=file.len() {
            let read = read(&file[..length]);
            assert_eq!(read.end, Ok(()));
            assert_eq!(read.count(Counter::Packets), ((length - first) / packet) as u64);
            assert_eq!(read.is_cut, !(length - first).is_multiple_of(packet), "{length}");
        }
        for length in 0..24 {
            let error = CaptureFile::new(&file[..length], 0).unwrap_err();
            assert_eq!(error, CaptureError::NotCapture, "{length}");
        }
    }
}

/// Whatever the system refuses is said, after what could be read.
#[test]
fn a_disk_that_fails() {
    struct Failing;
    impl std::io::Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StaleNetworkFileHandle.into())
        }
    }
    let order = Order::Little;
    let bytes =
        [order.section(), order.interface(1, &[]), order.enhanced(0, 1, b"abc", &[])].concat();
    let mut file = CaptureFile::new(std::io::Read::chain(&bytes[..], Failing), 0).unwrap();
    assert_eq!(file.advance(), Ok(true));
    let error = file.advance().unwrap_err();
    assert_eq!(error.to_string(), "it can't be read: stale network file handle");
}

/// Sections of either byte order, whose interfaces are the same ones; more than a file may have.
#[test]
fn sections_and_interfaces() {
    let section = |order: Order, names: &[&str]| {
        let names =
            names.iter().map(|name| order.interface(1, &[order.option(2, name.as_bytes())]));
        [order.section(), names.collect::<Vec<_>>().concat()].concat()
    };
    let packet = |order: Order, interface| order.enhanced(interface, 1, b"abc", &[]);
    let (little, big) = ORDERS.into();
    let bytes = [
        section(little, &["a", "b", "b"]),
        packet(little, 2),
        section(big, &["b", "a", "c", "b"]),
        [0, 1, 2, 3].map(|interface| packet(big, interface)).concat(),
        section(little, &[]),
        packet(little, 0),
    ]
    .concat();
    let mut file = CaptureFile::new(&bytes[..], 100).unwrap();
    let mut numbers = Vec::new();
    while file.advance().unwrap() {
        numbers.push(file.packet().unwrap().interface);
    }
    assert_eq!(numbers, [102, 101, 100, 103, 102]);
    let names: Vec<_> = file.interfaces().iter().map(|interface| &*interface.name).collect();
    assert_eq!(names, ["a", "b", "b", "c"]);
    assert_eq!(file.counts().get(Counter::UnknownInterface), 1);
    let many = vec!["same"; 5000];
    let bytes = [section(big, &many), packet(big, 4095), packet(big, 4096)].concat();
    let read = read_all(&bytes);
    assert_eq!((read.count(Counter::Packets), read.count(Counter::UnknownInterface)), (1, 1));
}

#[test]
fn our_own_files() {
    let read = read_all(&drawn::pcapng(&request()));
    assert_eq!((read.split.requests.len(), read.tick_ns), (1, 1));
}
