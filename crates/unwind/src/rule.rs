//! How one frame leads to the next, whatever table says so.

/// Numbers of registers as DWARF has them for x86-64.
pub(crate) mod register {
    pub(crate) const DX: u8 = 1;
    pub(crate) const BX: u8 = 3;
    pub(crate) const DI: u8 = 5;
    pub(crate) const BP: u8 = 6;
    pub(crate) const SP: u8 = 7;
    pub(crate) const R10: u8 = 10;
    pub(crate) const R12: u8 = 12;
    pub(crate) const R13: u8 = 13;
    pub(crate) const R14: u8 = 14;
    pub(crate) const R15: u8 = 15;
}
use register::{BP, BX, R12, R13, R14, R15, SP};

/// Registers that a function gives back as it got them, but for the stack pointer.
pub(crate) const KEPT: [u8; 6] = [BP, BX, R12, R13, R14, R15];
/// A register that the frame has not saved.
pub(crate) const NOT_SAVED: i16 = i16::MIN;

/// What the frame of an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    pub(crate) kind: Kind,
    /// The register that `offset` counts from.
    pub(crate) base: u8,
    pub(crate) offset: i32,
    /// The caller's stack pointer is not there, but this much above what is stored there.
    pub(crate) indirect: Option<i16>,
    /// Where `KEPT` registers are saved, in words from the caller's stack pointer, or from the base register.
    pub(crate) saved: [i16; KEPT.len()],
    pub(crate) is_saved_from_base: bool,
    /// The next address is not one that a call returns to, but where code was interrupted.
    pub(crate) is_interrupted: bool,
}

/// What lies at the place that a rule leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The caller's frame, below it the return address.
    Call,
    /// Nothing: it is the first function.
    Start,
    /// Registers, as `PT_REGS` has them.
    PtRegs,
    /// Registers, as `INTERRUPT` has them.
    Interrupt,
    /// Registers, as `SIGNAL` has them.
    Signal,
}

/// Where registers are in what an interrupt, exception, system call or signal has stored: byte offsets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) ip: u16,
    /// Where code is that ran: `cs`.
    pub(crate) segment: Option<u16>,
    /// In DWARF's order: ax, dx, cx, bx, si, di, bp, sp, r8 to r15.
    pub(crate) registers: [u16; 16],
}

/// A register that a block does not have.
pub(crate) const NOT_STORED: u16 = u16::MAX;

/// `struct pt_regs` (arch/x86/include/asm/ptrace.h).
pub(crate) const PT_REGS: Block = Block {
    ip: 128,
    segment: Some(136),
    registers: [80, 96, 88, 40, 104, 112, 32, 152, 72, 64, 56, 48, 24, 16, 8, 0],
};

/// What the CPU stores at an interrupt.
pub(crate) const INTERRUPT: Block = Block {
    ip: 0,
    segment: Some(8),
    registers: {
        let mut registers = [NOT_STORED; 16];
        registers[SP as usize] = 24;
        registers
    },
};

/// What the kernel stores for a signal's handler: `struct ucontext` (arch/x86/include/uapi/asm/sigcontext.h).
pub(crate) const SIGNAL: Block = Block {
    ip: 168,
    segment: None,
    registers: [144, 136, 152, 128, 112, 104, 120, 160, 40, 48, 56, 64, 72, 80, 88, 96],
};

impl Rule {
    /// A function that has pushed nothing yet.
    pub(crate) const RETURN: Self = Self {
        kind: Kind::Call,
        base: SP,
        offset: 8,
        indirect: None,
        saved: [NOT_SAVED; KEPT.len()],
        is_saved_from_base: false,
        is_interrupted: false,
    };

    /// A function that keeps a frame pointer.
    pub(crate) const FRAME_POINTER: Self = Self {
        base: BP,
        offset: 16,
        saved: [-2, NOT_SAVED, NOT_SAVED, NOT_SAVED, NOT_SAVED, NOT_SAVED],
        ..Self::RETURN
    };

    pub(crate) const START: Self = Self { kind: Kind::Start, ..Self::RETURN };

    /// Registers stored in place of a call.
    pub(crate) const fn block(kind: Kind, base: u8, offset: i32) -> Self {
        Self { kind, base, offset, is_interrupted: true, ..Self::RETURN }
    }
}
