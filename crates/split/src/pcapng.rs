//! Writes pcapng files: <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-03.html>.

use std::io::{self, Write};

use crate::CaptureNs;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const END_OF_OPTIONS: (u16, &[u8]) = (0, &[]);
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const ISB_IFDROP: u16 = 5;
const ETHERNET: u16 = 1;

/// A file of Ethernet packets with times in nanoseconds, of one or more interfaces.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
}

impl<W: Write> Writer<W> {
    /// Begins the file.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn new(out: W, interfaces: &[&str], snapshot_length: u32) -> io::Result<Self> {
        let mut writer = Self { out };
        let version = [&1_u16.to_le_bytes()[..], &0_u16.to_le_bytes()].concat();
        let magic = 0x1a2b_3c4d_u32.to_le_bytes();
        // The section's length is not known yet.
        writer.block(SECTION_HEADER, &[&magic, &version, &[0xff; 8]])?;
        for name in interfaces {
            let link = u32::from(ETHERNET).to_le_bytes();
            let options = [(IF_NAME, name.as_bytes()), (IF_TSRESOL, &[9]), END_OF_OPTIONS];
            let options = options.map(|(code, value)| option(code, value)).concat();
            let length = snapshot_length.to_le_bytes();
            writer.block(INTERFACE_DESCRIPTION, &[&link, &length, &options])?;
        }
        Ok(writer)
    }

    /// Adds a packet of the n-th interface; `length` is what it had before it was cut.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn packet(
        &mut self,
        interface: u32,
        at: CaptureNs,
        data: &[u8],
        length: u32,
    ) -> io::Result<()> {
        let kept = u32::try_from(data.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let [upper, lower] = halves(at);
        let header = [interface, upper, lower, kept, length].map(u32::to_le_bytes).concat();
        self.block(ENHANCED_PACKET, &[&header, data])
    }

    /// Adds how many packets of the n-th interface were dropped so far.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn dropped(&mut self, interface: u32, at: CaptureNs, packets: u64) -> io::Result<()> {
        let [upper, lower] = halves(at);
        let header = [interface, upper, lower].map(u32::to_le_bytes).concat();
        let options = [option(ISB_IFDROP, &packets.to_le_bytes()), option(0, &[])].concat();
        self.block(INTERFACE_STATISTICS, &[&header, &options])
    }

    /// Ends the file.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn block(&mut self, kind: u32, parts: &[&[u8]]) -> io::Result<()> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let padding = length.next_multiple_of(4) - length;
        let total =
            u32::try_from(12 + length + padding).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&total.to_le_bytes())?;
        for part in parts {
            self.out.write_all(part)?;
        }
        self.out.write_all(&[0; 4][..padding])?;
        self.out.write_all(&total.to_le_bytes())
    }
}

fn halves(at: CaptureNs) -> [u32; 2] {
    let half = |ns: u64| u32::try_from(ns & u64::from(u32::MAX)).unwrap_or(0);
    [half(at.0 >> 32), half(at.0)]
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap_or(0);
    let value = &value[..usize::from(length)];
    let mut bytes = [code.to_le_bytes(), length.to_le_bytes()].concat();
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::{CaptureFile, Counter};

    #[test]
    fn what_is_written_is_read() {
        let at = CaptureNs(1_700_000_000_123_456_789);
        let mut writer = Writer::new(Vec::new(), &["tap0", "tap-web1"], 64).unwrap();
        writer.packet(1, at, b"abcde", 7).unwrap();
        writer.packet(0, CaptureNs(at.0 + 1), b"", 0).unwrap();
        writer.dropped(0, at, 3).unwrap();
        let bytes = writer.finish().unwrap();
        let mut file = CaptureFile::new(bytes.as_slice(), 10).unwrap();
        assert_eq!(file.advance(), Ok(true));
        let packet = file.packet().unwrap();
        assert_eq!((packet.interface, packet.at, packet.length), (11, at, 7));
        assert_eq!(packet.data, b"abcde");
        assert_eq!(file.advance(), Ok(true));
        assert_eq!(file.packet().unwrap().at, CaptureNs(at.0 + 1));
        assert_eq!((file.advance(), file.is_cut()), (Ok(false), false));
        assert_eq!(file.counts().get(Counter::DroppedByCapture), 3);
        let names: Vec<&str> = file.interfaces().iter().map(|one| &*one.name).collect();
        assert_eq!(names, ["tap0", "tap-web1"]);
        let mut cut = CaptureFile::new(&bytes[..bytes.len() - 3], 0).unwrap();
        while cut.advance().unwrap() {}
        assert!(cut.is_cut());
        assert_eq!(
            CaptureFile::new(b"abc".as_slice(), 0).unwrap_err(),
            crate::CaptureError::NotCapture
        );
    }
}
