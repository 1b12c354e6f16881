//! Records of fixed size in a spool: of each only the 8-byte words that differ from the record before.
//!
//! ```text
//!  | mask: bit i stands for word i | the words whose bits are set, in order |   next record ...
//! ```
//! The first record of a block follows one of zeros. Two samples of a guest that goes on running differ in
//! little more than their times and addresses, so most of what the sampler wrote need not be copied, allocated
//! and zeroed once more by the kernel: that costs more instructions than looking for it.

const MASK: usize = 2;
/// Bytes of the largest record.
const RECORD: usize = 104;
/// Bytes of a packed record at most.
pub(crate) const PACKED: usize = MASK + RECORD;

/// The record before; of zeros where there is none.
#[derive(Debug)]
pub(crate) struct Last<const N: usize>(pub(crate) [u8; N]);

impl<const N: usize> Default for Last<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

/// Writes a record that follows `before` to the start of `room`, and makes it the one before the next. Returns its packed
/// length.
#[inline]
pub(crate) fn pack<const N: usize>(
    record: &[u8; N],
    before: &mut Last<N>,
    room: &mut [u8],
) -> usize {
    const { assert!(N <= RECORD && N.is_multiple_of(8)) };
    let room: &mut [u8; PACKED] = room.first_chunk_mut().expect("there is room");
    let (mut mask, mut at) = (0_u16, MASK);
    let (words, old) = (record.as_chunks::<8>().0, before.0.as_chunks_mut::<8>().0);
    // By index: a compiler unrolls this loop, not one over iterators.
    for i in 0..N / 8 {
        if u64::from_ne_bytes(words[i]) != u64::from_ne_bytes(old[i]) {
            *room[at..].first_chunk_mut().expect("a record has as many words") = words[i];
            old[i] = words[i];
            at += 8;
            mask |= 1 << i;
        }
    }
    [room[0], room[1]] = mask.to_le_bytes();
    at
}

/// `pack` undone: makes `before` the next record. `None` when the bytes are none.
pub(crate) fn unpack<const N: usize>(bytes: &mut &[u8], before: &mut Last<N>) -> Option<()> {
    let (mask, mut rest) = bytes.split_first_chunk()?;
    let mask = u16::from_le_bytes(*mask);
    let (words, _) = before.0.as_chunks_mut::<8>();
    (u32::from(mask) >> words.len() == 0).then_some(())?;
    for (_, word) in words.iter_mut().enumerate().filter(|(i, _)| mask >> i & 1 != 0) {
        let (new, after) = rest.split_first_chunk()?;
        *word = *new;
        rest = after;
    }
    *bytes = rest;
    Some(())
}

#[cfg(test)]
mod test {
    use super::*;

    const WORDS: usize = RECORD / 8;

    fn unpack_all(mut packed: &[u8], count: usize) -> Option<Vec<[u8; RECORD]>> {
        let mut record = Last::default();
        let records = (0..count).map(|_| unpack(&mut packed, &mut record).map(|()| record.0));
        let records = records.collect();
        if packed.is_empty() { records } else { None }
    }

    /// Records given as (word, value) changes of the one before; how many bytes they take.
    fn check(changes: &[&[(usize, u64)]], bytes: usize) {
        let mut record = [0; RECORD];
        let records: Vec<_> = changes
            .iter()
            .map(|changes| {
                for (word, value) in *changes {
                    record[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
                }
                record
            })
            .collect();
        let (mut packed, mut before) = (Vec::new(), Last::default());
        for record in &records {
            let mut room = [0; PACKED];
            let length = pack(record, &mut before, &mut room);
            packed.extend_from_slice(&room[..length]);
        }
        assert_eq!(packed.len(), bytes);
        assert_eq!(unpack_all(&packed, records.len()), Some(records.clone()));
        for cut in 0..packed.len() {
            assert_eq!(unpack_all(&packed[..cut], records.len()), None, "{cut}");
        }
        assert_eq!(unpack_all(&packed, records.len() + 1), None);
    }

    #[test]
    fn words_that_stay_are_left_out() {
        check(&[], 0);
        check(&[&[]], 2);
        check(&[&[(0, 7), (11, 9)], &[(0, 8)], &[], &[(0, 0), (5, 1)]], 18 + 10 + 2 + 18);
        let all: Vec<_> = (0..WORDS).map(|word| (word, !0)).collect();
        check(&[&all, &all], PACKED + 2);
    }

    #[test]
    fn words_beyond_a_record_are_refused() {
        assert_eq!(unpack_all(&[0, 0x10], 1), None);
        assert_eq!(unpack(&mut &[0x80, 0][..], &mut Last::<56>::default()), None);
    }
}
