//! Records in a spool: of each only the 8-byte words that differ from the record before.
//!
//! ```text
//!  | mask: bit i stands for word i | the words whose bits are set, in order |   next record ...
//! ```
//! The first record of a block follows one of zeros. Two samples of a guest that goes on running differ in
//! little more than their times and addresses, so most of what the sampler wrote need not be copied, allocated
//! and zeroed once more by the kernel: that costs more instructions than looking for it.

use crate::abi::RECORD_SIZE;

const WORDS: usize = RECORD_SIZE / 8;
const MASK: usize = 2;
/// Bytes of a packed record at most.
pub(crate) const PACKED_SIZE: usize = MASK + RECORD_SIZE;

/// Packs records to the begin of `packed`, which has room for the worst; how many bytes they take.
pub(crate) fn pack(records: &[[u8; RECORD_SIZE]], packed: &mut [u8]) -> usize {
    let mut before = &[0; RECORD_SIZE];
    let mut at = 0;
    for record in records {
        let room = packed[at..].first_chunk_mut().expect("there is room for the worst");
        at += pack_one(record, before, room);
        before = record;
    }
    at
}

fn pack_one(
    record: &[u8; RECORD_SIZE],
    before: &[u8; RECORD_SIZE],
    packed: &mut [u8; PACKED_SIZE],
) -> usize {
    let (words, _) = record.as_chunks::<8>();
    let (old, _) = before.as_chunks::<8>();
    let mut mask = 0_u16;
    let mut at = MASK;
    for i in 0..WORDS {
        let word = words[i];
        if u64::from_ne_bytes(word) != u64::from_ne_bytes(old[i]) {
            *packed[at..].first_chunk_mut().expect("a record has as many words") = word;
            at += 8;
            mask |= 1 << i;
        }
    }
    packed[..MASK].copy_from_slice(&mask.to_le_bytes());
    at
}

/// Appends `count` records to `records`; `None` when the bytes are not exactly those.
pub(crate) fn unpack(mut packed: &[u8], count: usize, records: &mut Vec<u8>) -> Option<()> {
    let mut record = [0; RECORD_SIZE];
    for _ in 0..count {
        let (mask, rest) = packed.split_first_chunk()?;
        let mask = u16::from_le_bytes(*mask);
        packed = rest;
        (mask >> WORDS == 0).then_some(())?;
        let (words, _) = record.as_chunks_mut::<8>();
        for (_, word) in words.iter_mut().enumerate().filter(|(i, _)| mask >> i & 1 != 0) {
            let (new, rest) = packed.split_first_chunk()?;
            *word = *new;
            packed = rest;
        }
        records.extend_from_slice(&record);
    }
    packed.is_empty().then_some(())
}

#[cfg(test)]
mod test {
    use super::*;

    /// Records given as (word, value) changes of the one before; how many bytes they take.
    fn check(changes: &[&[(usize, u64)]], bytes: usize) {
        let mut record = [0; RECORD_SIZE];
        let records: Vec<_> = changes
            .iter()
            .map(|changes| {
                for (word, value) in *changes {
                    record[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
                }
                record
            })
            .collect();
        let mut packed = vec![0xee; PACKED_SIZE * records.len()];
        let length = pack(&records, &mut packed);
        assert_eq!(length, bytes);
        let mut unpacked = Vec::new();
        assert_eq!(unpack(&packed[..length], records.len(), &mut unpacked), Some(()));
        assert_eq!(unpacked, records.as_flattened());
        for cut in 0..length {
            assert_eq!(unpack(&packed[..cut], records.len(), &mut Vec::new()), None, "{cut}");
        }
        assert_eq!(unpack(&packed[..length], records.len() + 1, &mut Vec::new()), None);
    }

    #[test]
    fn words_that_stay_are_left_out() {
        check(&[], 0);
        check(&[&[]], 2);
        check(&[&[(0, 7), (11, 9)], &[(0, 8)], &[], &[(0, 0), (5, 1)]], 18 + 10 + 2 + 18);
        let all: Vec<_> = (0..WORDS).map(|word| (word, !0)).collect();
        check(&[&all, &all], PACKED_SIZE + 2);
    }

    #[test]
    fn words_beyond_a_record_are_refused() {
        assert_eq!(unpack(&[0, 0x10], 1, &mut Vec::new()), None);
    }
}
