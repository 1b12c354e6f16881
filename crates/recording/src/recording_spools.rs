//! The spools of a recording: of each CPU's samples, of the switch events of vCPUs' threads, and of call stacks.

use model::{GuestStack, GuestVirt, HostNs, HostVirt, Sample, Stack, StackEnd, Switch};

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

/// Stacks, which have no time: per stack the lengths of its parts and how the guest's end, then their addresses.
#[derive(Debug)]
pub(crate) enum StackCodec {}

/// Addresses of one part of a stack at most.
const DEPTH: usize = 512;
/// Of `Stack`: of the host's kernel and user, of the guest's kernel and user.
const PARTS: usize = 4;

impl Codec for StackCodec {
    type Record = Stack;
    type Item = Stack;
    type Before = ();
    const KIND: [u8; 4] = *b"VST3";
    const OLDER: &[[u8; 4]] = &[*b"VST1", *b"VST2"];
    const BYTES: usize = 8 * (2 + PARTS * DEPTH);
    const RECORDS: usize = 1024;

    fn encode(stack: &Stack, (): &mut (), room: &mut [u8]) -> usize {
        let GuestStack { kernel, kernel_end, user, user_end } = &stack.guest;
        let of_host = [&stack.kernel, &stack.user].map(|part| &part[..part.len().min(DEPTH)]);
        let of_guest = [kernel, user].map(|part| &part[..part.len().min(DEPTH)]);
        let lengths = of_host.map(<[_]>::len).into_iter().chain(of_guest.map(<[_]>::len));
        let lengths = lengths.zip(0..).map(|(length, n)| (length as u64) << (16 * n)).sum();
        let ends = u64::from(end_code(*kernel_end)) | u64::from(end_code(*user_end)) << 8;
        let addresses = of_host.into_iter().flatten().map(|address| address.0);
        let addresses = addresses.chain(of_guest.into_iter().flatten().map(|address| address.0));
        let words = [lengths, ends].into_iter().chain(addresses);
        let (places, _) = room.as_chunks_mut::<8>();
        let put = |(place, word): (&mut [u8; 8], u64)| *place = word.to_le_bytes();
        8 * places.iter_mut().zip(words).map(put).count()
    }

    fn decode(bytes: &mut &[u8], _: Place, (): &mut ()) -> Option<Stack> {
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let (lengths, ends) = (words.next()?, words.next()?.to_le_bytes());
        let mut n_words = 2;
        let mut part = |n: usize| -> Option<Vec<u64>> {
            let length = usize::try_from(lengths >> (16 * n) & 0xffff).ok()?;
            n_words += length;
            (0..length).map(|_| words.next()).collect()
        };
        let host = |part: Vec<u64>| part.into_iter().map(HostVirt).collect();
        let guest = |part: Vec<u64>| part.into_iter().map(GuestVirt).collect();
        let stack = Stack {
            kernel: host(part(0)?),
            user: host(part(1)?),
            guest: GuestStack {
                kernel: guest(part(2)?),
                kernel_end: end_of_code(ends[0])?,
                user: guest(part(3)?),
                user_end: end_of_code(ends[1])?,
            },
        };
        *bytes = &bytes[8 * n_words..];
        Some(stack)
    }

    fn record_time(_: &Stack) -> HostNs {
        HostNs(0)
    }

    fn time(_: &Stack) -> HostNs {
        HostNs(0)
    }
}

/// 0 stands for none.
fn end_code(end: Option<StackEnd>) -> u8 {
    let code = (1..).zip(StackEnd::ALL).find(|(_, known)| Some(*known) == end);
    code.map_or(0, |(code, _)| code)
}

/// `None`: there is no such code.
fn end_of_code(code: u8) -> Option<Option<StackEnd>> {
    match usize::from(code).checked_sub(1) {
        None => Some(None),
        Some(place) => StackEnd::ALL.get(place).copied().map(Some),
    }
}
