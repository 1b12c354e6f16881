//! A kernel that is drawn: tables in each format, and stacks as an interrupt of a system call leaves them.

use std::collections::BTreeMap;

use super::*;
use crate::walk::{Registers, StackCopy, Unwinder};

const TEXT: u64 = 0xffff_ffff_8100_0000;
const ADDRESSES: u64 = 0xffff_ffff_8200_0000;
const ENTRIES: u64 = 0xffff_ffff_8210_0000;
const STACK: u64 = 0xffff_c900_0000_4000;
const IRQ_STACK: u64 = 0xffff_c900_0010_0000;
const FORMATS: [OrcFormat; 3] = [OrcFormat::End, OrcFormat::SignalAndEnd, OrcFormat::Signal];

const UNDEFINED: u16 = 0;
const PREVIOUS_SP: u16 = 1;
const FROM_BP: u16 = 4;
const FROM_SP: u16 = 5;
const BP_INDIRECT: u16 = 8;
const SP_INDIRECT: u16 = 9;

#[derive(Clone, Copy, PartialEq)]
enum Type {
    Call,
    Registers,
    Interrupt,
    End,
}

/// Bits of an entry's last word.
fn bits(kind: Type, sp: u16, bp: u16, format: OrcFormat) -> u16 {
    let is_interrupted = matches!(kind, Type::Registers | Type::Interrupt);
    let number = match kind {
        Type::Call => 0,
        Type::Registers => 1,
        Type::Interrupt => 2,
        Type::End => 0,
    };
    let end = u16::from(kind == Type::End);
    let signal = u16::from(is_interrupted);
    let rest = match format {
        OrcFormat::End => number | (end << 2),
        OrcFormat::SignalAndEnd => number | (signal << 2) | (end << 3),
        OrcFormat::Signal if kind == Type::End => 1,
        OrcFormat::Signal => (number + 2) | (signal << 3),
    };
    sp | (bp << 4) | (rest << 8)
}

struct Memory(BTreeMap<u64, u8>);

impl KernelMemory for Memory {
    fn read(&self, address: GuestVirt, buffer: &mut [u8]) -> Option<()> {
        for (at, byte) in (address.0..).zip(buffer) {
            *byte = *self.0.get(&at)?;
        }
        Some(())
    }
}

/// A function of 16 bytes for each entry.
fn kernel(format: OrcFormat, functions: &[(Type, u16, i16, u16, i16)]) -> Kernel {
    let mut memory = Memory(BTreeMap::new());
    let mut put = |at: u64, bytes: &[u8]| memory.0.extend((at..).zip(bytes.iter().copied()));
    for (n, (kind, sp, sp_offset, bp, bp_offset)) in (0..).zip(functions) {
        let place = ADDRESSES + n * 4;
        let relative = i32::try_from((TEXT + n * 16).cast_signed() - place.cast_signed()).unwrap();
        put(place, &relative.to_le_bytes());
        let [s0, s1] = sp_offset.to_le_bytes();
        let [b0, b1] = bp_offset.to_le_bytes();
        let [low, high] = bits(*kind, *sp, *bp, format).to_le_bytes();
        put(ENTRIES + n * 6, &[s0, s1, b0, b1, low, high]);
    }
    let count = functions.len() as u64;
    let table = OrcTable::read(&memory, GuestVirt(ADDRESSES), GuestVirt(ENTRIES), count).unwrap();
    Kernel { number: 1, format, tables: vec![(TEXT..TEXT + count * 16, table)] }
}

fn copy(start: u64, words: &[u64]) -> StackCopy {
    StackCopy { start, bytes: words.iter().flat_map(|word| word.to_le_bytes()).collect() }
}

/// `n`-th function, as a return address into it.
fn within(n: u64) -> u64 {
    TEXT + n * 16 + 5
}

fn pt_regs(ip: u64, sp: u64, bp: u64, segment: u64) -> Vec<u64> {
    // r15 r14 r13 r12 bp bx r11 r10 r9 r8 ax cx dx si di orig_ax ip cs flags sp ss
    [&[15, 14, 13, 12, bp, 3][..], &[0; 10], &[ip, segment, 0, sp, 0]].concat()
}

fn unwind(
    kernel: &mut Kernel,
    registers: Registers,
    copies: &[StackCopy],
) -> (Vec<u64>, StackEnd, Registers) {
    let (mut frames, mut unwinder) = (Vec::new(), Unwinder::default());
    let (end, registers) = unwinder.unwind(kernel, &registers, copies, &mut frames);
    (frames, end, registers)
}

/// ```text
///   IRQ stack:   handler | dispatch (pushes) | word at the top: the task's stack
///   task stack:  common_interrupt: pt_regs of `deep` | deep | middle (frame pointer) | pt_regs of the system call
/// ```
#[test]
fn an_interrupted_system_call_leads_to_user_mode() {
    const USER: [u64; 3] = [0x40_1000, 0x7fff_0000_1000, 0x77];
    for format in FORMATS {
        let mut kernel = kernel(
            format,
            &[
                (Type::Call, FROM_SP, 24, PREVIOUS_SP, -16), // 0: handler, has pushed bp and a word
                (Type::Call, SP_INDIRECT, 8, UNDEFINED, 0),  // 1: dispatch, on the IRQ stack
                (Type::Registers, FROM_SP, 0, UNDEFINED, 0), // 2: common_interrupt
                (Type::Call, FROM_SP, 8, UNDEFINED, 0),      // 3: deep, at its first instruction
                (Type::Call, FROM_BP, 16, PREVIOUS_SP, -16), // 4: middle
                (Type::Registers, FROM_SP, 0, UNDEFINED, 0), // 5: entry_SYSCALL_64
            ],
        );
        // The task's stack, downwards.
        let task = [
            &[within(2)][..],
            &pt_regs(TEXT + 3 * 16, STACK + 8 * 22, STACK + 8 * 24, 0x10),
            &[within(4)],
            &[0xaa, USER[2], within(5)],
            &pt_regs(USER[0], USER[1], USER[2], 0x33),
        ]
        .concat();
        let irq = [0xbb, STACK + 8 * 24, within(1), STACK];
        let copies = [copy(IRQ_STACK, &irq), copy(STACK, &task)];
        let start = Registers::new(TEXT + 4, IRQ_STACK, 0x99);
        let (frames, end, registers) = unwind(&mut kernel, start, &copies);
        let before = |n| within(n) - 1;
        let expected = [TEXT + 4, before(1), before(2), TEXT + 48, before(4), before(5)];
        assert_eq!((frames.as_slice(), end), (&expected[..], StackEnd::UserMode), "{format:?}");
        let user = Registers::new(USER[0], USER[1], USER[2]);
        assert_eq!(registers.ip, user.ip);
        assert_eq!(
            [6, 7, 3, 12].map(|n| registers.get(n)),
            [Some(USER[2]), Some(USER[1]), Some(3), Some(12)]
        );
    }
}

#[test]
fn a_kernel_thread_ends_at_its_start() {
    for format in FORMATS {
        let mut kernel = kernel(
            format,
            &[
                (Type::Call, BP_INDIRECT, -8, FROM_BP, 0), // a realigned stack
                (Type::End, UNDEFINED, 0, UNDEFINED, 0),   // ret_from_fork
            ],
        );
        // *(bp - 8) is the caller's stack pointer, *bp its frame pointer.
        let words = [STACK + 8 * 4, 0x1234, 0, within(1)];
        let start = Registers::new(TEXT, STACK, STACK + 8);
        let (frames, end, registers) = unwind(&mut kernel, start, &[copy(STACK, &words)]);
        assert_eq!((frames, end), (vec![TEXT, within(1) - 1], StackEnd::Start), "{format:?}");
        assert_eq!(registers.get(BP), Some(0x1234));
    }
}

#[test]
fn an_exception_in_user_mode_is_an_entry() {
    for format in FORMATS {
        let mut kernel = kernel(format, &[(Type::Interrupt, FROM_SP, 8, UNDEFINED, 0)]);
        let words = [0, 0x40_1000, 0x33, 0x202, 0x7fff_0000_0000, 0x2b];
        let start = Registers::new(TEXT, STACK, 0x88);
        let (frames, end, user) = unwind(&mut kernel, start, &[copy(STACK, &words)]);
        assert_eq!((frames, end), (vec![TEXT], StackEnd::UserMode), "{format:?}");
        assert_eq!(user, Registers::new(0x40_1000, 0x7fff_0000_0000, 0x88));
    }
}

#[test]
fn lies_end() {
    for (functions, words, expected) in [
        // A frame that is its own caller.
        (&[(Type::Call, FROM_SP, 0, UNDEFINED, 0)][..], vec![within(0); 8], StackEnd::Astray),
        (&[(Type::Call, FROM_SP, -8, UNDEFINED, 0)], vec![within(0); 8], StackEnd::Astray),
        // Each word leads to the stack's begin.
        (&[(Type::Call, SP_INDIRECT, 0, UNDEFINED, 0)], vec![STACK; 8], StackEnd::Astray),
        (
            &[(Type::Registers, FROM_SP, 0, UNDEFINED, 0)],
            pt_regs(TEXT, STACK, 0, 0x10),
            StackEnd::Astray,
        ),
        // More frames than are kept.
        (&[(Type::Call, FROM_SP, 8, UNDEFINED, 0)], vec![within(0); 1000], StackEnd::TooDeep),
        (&[(Type::Call, FROM_SP, 8, UNDEFINED, 0)], vec![0xdead; 8], StackEnd::Outside),
        (&[(Type::Call, FROM_SP, 8, UNDEFINED, 0)], vec![within(0); 8], StackEnd::Cut),
        (&[(Type::Call, 6, 8, UNDEFINED, 0)], vec![within(0); 8], StackEnd::NoRegister),
        (&[(Type::Call, FROM_BP, 8, UNDEFINED, 0)], vec![within(0); 8], StackEnd::Astray),
    ] {
        for format in FORMATS {
            let mut kernel = kernel(format, functions);
            let start = Registers::new(TEXT, STACK, u64::MAX);
            let (_, end, _) = unwind(&mut kernel, start, &[copy(STACK, &words)]);
            assert_eq!(end, expected, "{format:?} {words:x?}");
        }
    }
}

#[test]
fn formats_are_known_by_their_fields() {
    let formats = [(false, true), (true, true), (true, false), (false, false)]
        .map(|(signal, end)| OrcFormat::from_fields(signal, end));
    assert_eq!(
        formats,
        [Some(OrcFormat::End), Some(OrcFormat::SignalAndEnd), Some(OrcFormat::Signal), None]
    );
}

#[test]
fn absurd_tables_are_refused() {
    let memory = Memory(BTreeMap::new());
    for count in [1, MAX_ENTRIES, MAX_ENTRIES + 1, u64::MAX] {
        assert_eq!(OrcTable::read(&memory, GuestVirt(0), GuestVirt(u64::MAX - 4), count), None);
    }
}
