//! The spools of a recording: of each CPU's samples, of the switch events of vCPUs' threads, and of call stacks.

use model::{HostNs, HostVirt, Sample, Stack, Switch};

use crate::abi::{RECORD_SIZE, decode, time_of};
use crate::error::Error;
use crate::spool::{Codec, Place, SpoolWriter};
use crate::switches::{SWITCH_SIZE, decode_switch, encode_switch};
use crate::words::{Last, PACKED, pack, unpack};

/// Takes the records of one CPU while sampling.
#[derive(Debug)]
pub struct Spool(pub(crate) SpoolWriter<SampleCodec>);

impl Spool {
    /// Appends records as the sampler wrote them, in time order. They are in the file when this
    /// returns; after an error none of the block that failed is.
    ///
    /// # Errors
    /// When `records` is not a whole number of records, or can't be written.
    pub fn append(&mut self, records: &[u8]) -> Result<(), Error> {
        let (records, rest) = records.as_chunks::<RECORD_SIZE>();
        if !rest.is_empty() {
            let reason = format!("{} bytes are no whole record of {RECORD_SIZE}", rest.len());
            return Err(Error::Encode { path: self.0.path().to_owned(), reason });
        }
        self.0.append(records)
    }
}

/// Takes the call stacks while sampling, so that a killed recording has them. Optional: the tables
/// given to `Writer::finish` are what a complete recording holds.
#[derive(Debug)]
pub struct StackSpool(pub(crate) SpoolWriter<StackCodec>);

impl StackSpool {
    /// Appends the next rows of `Tables::stacks`. Addresses beyond 1024 per half are left out.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn append(&mut self, stacks: &[Stack]) -> Result<(), Error> {
        self.0.append(stacks)
    }
}

/// Takes the events of vCPUs' threads while recording; all CPUs' in one file.
#[derive(Debug)]
pub struct SwitchSpool(pub(crate) SpoolWriter<SwitchCodec>);

impl SwitchSpool {
    /// Appends events in any order. They are in the file when this returns; after an error none of the
    /// block that failed is.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn append(&mut self, switches: &[Switch]) -> Result<(), Error> {
        self.0.append(switches)
    }
}

/// Samples as the sampler wrote them.
#[derive(Debug)]
pub(crate) enum SampleCodec {}

impl Codec for SampleCodec {
    type Record = [u8; RECORD_SIZE];
    type Item = Sample;
    type Before = Last<RECORD_SIZE>;
    const KIND: [u8; 4] = *b"VSP3";
    const OLDER: &[[u8; 4]] = &[*b"VSP1", *b"VSP2"];
    const BYTES: usize = PACKED;

    #[inline]
    fn encode(record: &Self::Record, before: &mut Self::Before, room: &mut [u8]) -> usize {
        pack(record, before, room)
    }

    fn decode(bytes: &mut &[u8], place: Place, before: &mut Self::Before) -> Option<Sample> {
        unpack(bytes, before)?;
        Some(decode(&before.0, model::CpuId(place.1)))
    }

    fn record_time(record: &Self::Record) -> HostNs {
        time_of(record)
    }

    fn time(sample: &Sample) -> HostNs {
        sample.time
    }
}

#[derive(Debug)]
pub(crate) enum SwitchCodec {}

impl Codec for SwitchCodec {
    type Record = Switch;
    type Item = Switch;
    type Before = Last<SWITCH_SIZE>;
    const KIND: [u8; 4] = *b"VSW3";
    const OLDER: &[[u8; 4]] = &[*b"VSW1", *b"VSW2"];
    const BYTES: usize = PACKED;

    fn encode(switch: &Switch, before: &mut Self::Before, room: &mut [u8]) -> usize {
        pack(&encode_switch(switch), before, room)
    }

    fn decode(bytes: &mut &[u8], _: Place, before: &mut Self::Before) -> Option<Switch> {
        unpack(bytes, before)?;
        decode_switch(&before.0)
    }

    fn record_time(switch: &Switch) -> HostNs {
        switch.time
    }

    fn time(switch: &Switch) -> HostNs {
        switch.time
    }
}

/// Stacks, which have no time: per stack the lengths of its halves, then their addresses.
#[derive(Debug)]
pub(crate) enum StackCodec {}

/// Addresses of one half of a stack at most.
const DEPTH: usize = 1024;

impl Codec for StackCodec {
    type Record = Stack;
    type Item = Stack;
    type Before = ();
    const KIND: [u8; 4] = *b"VST2";
    const OLDER: &[[u8; 4]] = &[*b"VST1"];
    const BYTES: usize = 8 * (1 + 2 * DEPTH);
    const RECORDS: usize = 1024;

    fn encode(stack: &Stack, (): &mut (), room: &mut [u8]) -> usize {
        let halves = [&stack.kernel, &stack.user].map(|half| &half[..half.len().min(DEPTH)]);
        let [kernel, user] = halves.map(|half| u64::from(crate::blocks::length(half.len())));
        let addresses = halves.into_iter().flatten().map(|address| address.0);
        let words = std::iter::once(kernel | user << 32).chain(addresses);
        let (places, _) = room.as_chunks_mut::<8>();
        let put = |(place, word): (&mut [u8; 8], u64)| *place = word.to_le_bytes();
        8 * places.iter_mut().zip(words).map(put).count()
    }

    fn decode(bytes: &mut &[u8], _: Place, (): &mut ()) -> Option<Stack> {
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let lengths = words.next()?;
        let mut half = |length: u64| -> Option<Vec<HostVirt>> {
            (0..length).map(|_| words.next().map(HostVirt)).collect()
        };
        let (kernel, user) = (half(lengths & 0xffff_ffff)?, half(lengths >> 32)?);
        *bytes = &bytes[8 * (1 + kernel.len() + user.len())..];
        Some(Stack { kernel, user })
    }

    fn record_time(_: &Stack) -> HostNs {
        HostNs(0)
    }

    fn time(_: &Stack) -> HostNs {
        HostNs(0)
    }
}
