//! Changes of an input: bytes, numbers, and pieces of other inputs.

/// Xorshift: Marsaglia, "Xorshift RNGs" (2003).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        match self.below(3) {
            0 => [0, 1, 0x7f, 0x80, 0xff, b' ', b'0', b':'][self.below(8)],
            _ => self.next().to_le_bytes()[0],
        }
    }
}

/// Numbers at which something ends.
const EDGES: [u64; 14] = [
    0,
    1,
    u64::MAX,
    u64::MAX - 1,
    1 << 63,
    (1 << 63) - 1,
    1 << 62,
    1 << 53,
    1 << 47,
    1 << 32,
    (1 << 32) - 1,
    1 << 31,
    1 << 16,
    0x7f,
];

/// Changes `input` in one to four ways. `other` is another input, `words` what means something to the target.
pub(crate) fn mutate(
    random: &mut Random,
    input: &mut Vec<u8>,
    other: &[u8],
    words: &[&[u8]],
    longest: usize,
) {
    for _ in 0..=random.below(4) {
        let at = random.below(input.len() + 1);
        match random.below(10) {
            0 => flip(random, input),
            1 => set(random, input),
            2 => {
                let end = at + random.below(input.len() + 1 - at).min(64);
                input.drain(at..end);
            }
            3 => {
                let piece: Vec<u8> = (0..=random.below(8)).map(|_| random.byte()).collect();
                input.splice(at..at, piece);
            }
            4 => insert_part_of(random, input, other),
            5 => insert_part_of(random, input, &input.clone()),
            6 => repeat(random, input, at),
            7 => overwrite(
                input,
                at,
                &EDGES[random.below(EDGES.len())].to_le_bytes()[..1 << random.below(4)],
            ),
            8 => {
                let number = varint(EDGES[random.below(EDGES.len())]);
                let end = (at + random.below(3)).min(input.len());
                input.splice(at..end, number);
            }
            _ if words.is_empty() => flip(random, input),
            _ => {
                let word = words[random.below(words.len())];
                let end =
                    if random.below(2) == 0 { at } else { (at + word.len()).min(input.len()) };
                input.splice(at..end, word.iter().copied());
            }
        }
        input.truncate(longest);
    }
}

fn flip(random: &mut Random, input: &mut [u8]) {
    let at = random.below(input.len());
    if let Some(byte) = input.get_mut(at) {
        *byte ^= 1 << random.below(8);
    }
}

fn set(random: &mut Random, input: &mut [u8]) {
    let at = random.below(input.len());
    if let Some(byte) = input.get_mut(at) {
        *byte = if random.below(2) == 0 { random.byte() } else { byte.wrapping_add(1) };
    }
}

fn part<'a>(random: &mut Random, bytes: &'a [u8]) -> &'a [u8] {
    let begin = random.below(bytes.len() + 1);
    let length = random.below(bytes.len() + 1 - begin).min(1 << random.below(12));
    &bytes[begin..begin + length]
}

fn insert_part_of(random: &mut Random, input: &mut Vec<u8>, other: &[u8]) {
    let piece = part(random, other).to_vec();
    let at = random.below(input.len() + 1);
    let end = if random.below(2) == 0 { at } else { (at + piece.len()).min(input.len()) };
    input.splice(at..end, piece);
}

fn repeat(random: &mut Random, input: &mut Vec<u8>, at: usize) {
    let end = (at + 1 + random.below(16)).min(input.len());
    let piece = input[at..end].repeat(1 << random.below(9));
    input.splice(at..at, piece);
}

fn overwrite(input: &mut [u8], at: usize, bytes: &[u8]) {
    input[at..].iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while 0x7f < number {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}
