//! The header of the PROXY protocol, with which a proxy tells a server whose connection it passes on:
//! <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>.
//!
//! Addresses in it are not read: both ends of a connection are those of its packets.

/// What a connection's first bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Header {
    None,
    /// Perhaps one: more bytes would tell.
    TooShort,
    /// One of so many bytes.
    Length(usize),
}

const TEXT: [&[u8]; 3] = [b"PROXY TCP4 ", b"PROXY TCP6 ", b"PROXY UNKNOWN"];
/// Of a line, with its end.
const MAX_TEXT: usize = 107;
const BINARY: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The signature, version and command, family, and how many bytes follow.
const BINARY_HEADER: usize = 16;
/// Longer ones are no header: extensions have certificates' names, not more.
const MAX_BINARY: usize = 4000;

/// Whether a client's first bytes are a header.
pub(crate) fn header(start: &[u8]) -> Header {
    if begins(start, BINARY) {
        return binary(start);
    }
    if !TEXT.iter().any(|text| begins(start, text)) {
        return Header::None;
    }
    let line = &start[..start.len().min(MAX_TEXT)];
    match line.windows(2).position(|pair| pair == b"\r\n") {
        Some(end) => Header::Length(end + 2),
        None if line.len() < MAX_TEXT => Header::TooShort,
        None => Header::None,
    }
}

/// As far as there are bytes.
fn begins(start: &[u8], word: &[u8]) -> bool {
    let n = start.len().min(word.len());
    start[..n] == word[..n]
}

fn binary(start: &[u8]) -> Header {
    // Version 2, and the commands LOCAL and PROXY.
    if start.get(BINARY.len()).is_some_and(|byte| !matches!(byte, 0x20 | 0x21)) {
        return Header::None;
    }
    let Some(&[high, low]) = start.get(BINARY_HEADER - 2..BINARY_HEADER) else {
        return Header::TooShort;
    };
    let length = BINARY_HEADER + usize::from(u16::from_be_bytes([high, low]));
    match length {
        _ if MAX_BINARY < length => Header::None,
        _ if start.len() < length => Header::TooShort,
        _ => Header::Length(length),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn headers_of_both_versions() {
        let check = |start: &[u8], expected| assert_eq!(header(start), expected, "{start:?}");
        let text = b"PROXY TCP4 192.0.2.1 192.0.2.2 5 80\r\nGET / HTTP/1.1\r\n";
        check(text, Header::Length(37));
        check(b"PROXY UNKNOWN\r\n", Header::Length(15));
        check(b"PROXY /cache HTTP/1.1\r\n", Header::None);
        check(b"GET / HTTP/1.1\r\n", Header::None);
        check(&[&b"PROXY TCP6 "[..], &[b'f'; 96]].concat(), Header::None);
        let v2 = |command, body: &[u8]| {
            let length = u16::try_from(body.len()).unwrap().to_be_bytes();
            [BINARY, &[command, 0x11], &length, body].concat()
        };
        check(&v2(0x21, &[7; 12]), Header::Length(28));
        check(&v2(0x20, b""), Header::Length(16));
        check(&v2(0x31, b""), Header::None);
        check(&v2(0x21, &[0; 5000]), Header::None);
        for whole in [&text[..37], &v2(0x21, &[7; 12])] {
            for n in 0..whole.len() {
                check(&whole[..n], Header::TooShort);
            }
        }
    }
}
