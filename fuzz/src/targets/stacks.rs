//! Stacks that lie, by tables that lie.

use linux::memory::KernelMemory as _;
use model::{GuestVirt, StackEnd};
use unwind::{
    Area, AreaCode, Code, Files, FrameTable, Kernel, MAX_FRAMES, OrcFormat, OrcTable, Process,
    Registers, StackCopy, Unwinder,
};

use super::inside::{BASE, Memory, seed_programs};
use super::{MIB, Numbers, Target};

pub(super) fn targets() -> Vec<Target> {
    let target = |name, run, seeds| Target { longest: 1 << 16, ..Target::new(name, run, seeds) };
    vec![
        Target { budget: 256 * MIB, ..target("stacks-user", user, seed_user) },
        target("stacks-kernel", kernel, || vec![seed_kernel()]),
    ]
}

/// Where the file is mapped.
const START: u64 = 0x40_0000;

struct One<'a>(&'a FrameTable);

impl Files for One<'_> {
    fn table(&mut self, _: u32) -> Result<&FrameTable, StackEnd> {
        Ok(self.0)
    }
}

/// Registers, then a program; the stack is the same bytes.
fn user(bytes: &[u8]) {
    let mut input = Numbers(bytes);
    let registers: [u64; 3] = std::array::from_fn(|_| input.u64());
    let kept: [u64; 5] = std::array::from_fn(|_| input.u64());
    let Ok(table) = FrameTable::read(&input.0) else { return };
    let end = START + input.0.len() as u64;
    let code = AreaCode::File { file: 0, offset: 0 };
    let areas = [
        Area { start: START, end, code },
        Area { start: end, end: u64::MAX, code: AreaCode::Generated },
    ];
    let mut unwinder = Unwinder::default();
    unwinder.workspace.allow(1 << 20);
    let mut process = Process { number: 1, areas: &areas, files: &mut One(&table) };
    // Every part of the code is come to.
    for at in (0..input.0.len()).step_by(input.0.len() / 64 + 1) {
        let ip = registers[0].wrapping_add(START + at as u64);
        let start = Registers::new(ip, registers[1], registers[2]).with_callee_saved(kept);
        walk(&mut unwinder, &mut process, &start, input.0, registers[1]);
    }
}

fn walk(unwinder: &mut Unwinder, code: &mut dyn Code, start: &Registers, bytes: &[u8], stack: u64) {
    let copies = [StackCopy { start: stack, bytes: bytes.to_vec() }];
    let mut frames = Vec::new();
    let (end, _) = unwinder.unwind(code, start, &copies, &mut frames);
    assert!((1..=MAX_FRAMES).contains(&frames.len()), "{}", frames.len());
    // Other bytes, but for the words that the frames follow from.
    let basis = unwinder.basis().clone();
    let mut others: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    for (at, value) in &basis.words {
        let place = usize::try_from(at.wrapping_sub(stack)).unwrap_or(usize::MAX);
        if let Some(word) = others.get_mut(place..).and_then(|rest| rest.first_chunk_mut()) {
            *word = value.to_le_bytes();
        }
    }
    if end.is_whole() && !basis.is_partial {
        let copies = [StackCopy { start: stack, bytes: others }];
        let mut same = Vec::new();
        let again = unwinder.unwind(code, start, &copies, &mut same);
        assert_eq!((same, again.0), (frames, end), "{basis:x?}");
    }
}

/// Registers that have the stack's begin.
fn seed_user() -> Vec<Vec<u8>> {
    let words = [0, 0x7fff_0000_0000, 0x7fff_0000_0040, 1, 2, 3, 4, 5].map(u64::to_le_bytes);
    seed_programs().into_iter().map(|file| [words.concat(), file].concat()).collect()
}

/// Registers, two tables of `ENTRIES` entries, then the stack.
fn kernel(bytes: &[u8]) {
    let memory = Memory(bytes);
    let word = |n: u64| memory.read_u64(GuestVirt(BASE + n * 8)).unwrap_or(0);
    let at = |offset: u64| GuestVirt(BASE + offset);
    let Some(table) = OrcTable::read(&memory, at(0x40), at(0x40 + 4 * ENTRIES), ENTRIES) else {
        return;
    };
    for format in [OrcFormat::End, OrcFormat::SignalAndEnd, OrcFormat::Signal] {
        let tables = vec![(BASE..BASE + 0x1000, table.clone())];
        let mut kernel = Kernel { number: 1, format, tables };
        let start = Registers::new(word(0), word(1), word(2));
        let mut unwinder = Unwinder::default();
        walk(&mut unwinder, &mut kernel, &start, bytes, BASE);
    }
}

const ENTRIES: u64 = 16;

/// Functions of 16 bytes that push a word each, and a stack of calls.
fn seed_kernel() -> Vec<u8> {
    let mut bytes: Vec<u8> =
        [BASE + 4, BASE + 0xe0, BASE + 0xe8, 0, 0, 0, 0, 0].map(u64::to_le_bytes).concat();
    for n in 0..16_i32 {
        bytes.extend((n * 16 - (0x40 + n * 4)).to_le_bytes());
    }
    for n in 0..16_u16 {
        // sp + 16, bp at the caller's sp - 16, a call; every fourth has registers.
        let kind = if n % 4 == 3 { 0xb } else { 2 };
        bytes.extend([16, 0xfff0, (kind << 8) | 0x15].map(u16::to_le_bytes).concat());
    }
    for n in 0..64 {
        bytes.extend((BASE + n * 4).to_le_bytes());
    }
    bytes
}
