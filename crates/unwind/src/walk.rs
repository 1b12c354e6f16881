//! From frame to frame.

use std::fmt;

use model::StackEnd;

use crate::cfi::Workspace;
use crate::rule::register::{BP, SP};
use crate::rule::{Block, INTERRUPT, KEPT, Kind, NOT_SAVED, NOT_STORED, PT_REGS, Rule, SIGNAL};

/// Most frames of a stack: as many as `perf record` keeps.
pub const MAX_FRAMES: usize = 127;
/// Stacks left for another one, by interrupts and signals: without end where bytes lead round in a circle.
const MAX_SWITCHES: usize = 8;
/// The last frames of a stack may be so far beyond the bytes that were copied.
const MAX_STACK_BYTES: u64 = 64 << 20;
/// A stack pointer that is not known.
const UNKNOWN: u64 = 0;
/// Rules that are kept, as a power of 2.
const CACHE_BITS: u32 = 15;
/// Code that runs in user mode has this privilege level in `cs`.
const USER_LEVEL: u64 = 3;

/// Registers of x86-64, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registers {
    pub ip: u64,
    values: [u64; 16],
    /// Which of them are known: a bit each.
    known: u16,
}

impl Registers {
    /// The three that most stacks need.
    #[must_use]
    pub fn new(ip: u64, sp: u64, bp: u64) -> Self {
        Self { ip, ..Self::default() }.with(SP, sp).with(BP, bp)
    }

    /// Enough where code keeps a frame pointer.
    #[must_use]
    pub fn without_sp(ip: u64, bp: u64) -> Self {
        Self { ip, ..Self::default() }.with(BP, bp)
    }

    /// With the callee-saved ones: bx, r12, r13, r14, r15.
    #[must_use]
    pub fn with_callee_saved(self, values: [u64; 5]) -> Self {
        let pairs = KEPT.into_iter().skip(1).zip(values);
        pairs.fold(self, |registers, (register, value)| registers.with(register, value))
    }

    /// With one more, by its DWARF number.
    #[must_use]
    pub fn with(mut self, register: u8, value: u64) -> Self {
        if let Some(place) = self.values.get_mut(usize::from(register)) {
            *place = value;
            self.known |= 1 << register;
        }
        self
    }

    /// Where they stand: ip, sp, bp.
    #[must_use]
    pub fn main(&self) -> (u64, Option<u64>, Option<u64>) {
        (self.ip, self.get(SP), self.get(BP))
    }

    pub(crate) fn get(&self, register: u8) -> Option<u64> {
        let is_known = self.known.checked_shr(register.into()).is_some_and(|bits| bits & 1 == 1);
        self.values.get(usize::from(register)).copied().filter(|_| is_known)
    }
}

/// Bytes of a stack, as they were when the registers were.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StackCopy {
    /// Address of the first one.
    pub start: u64,
    pub bytes: Vec<u8>,
}

/// What the frames of a stack follow from, besides its code, its first address and its stack pointer: where all of this
/// is the same, so are the frames.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Basis {
    /// Addresses and values of words.
    pub words: Vec<(u64, u64)>,
    /// Whether the frame pointer matters that the stack began with.
    pub needs_bp: bool,
    /// Whether anything else matters.
    pub is_partial: bool,
}

/// Where a frame's frame pointer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BpOrigin {
    First,
    Word(u64),
}

/// What is executed: of a process, or of a kernel.
pub trait Code {
    /// Differs from that of any other code, and of the same code before it changed. Not 0.
    fn number(&self) -> u32;

    /// The rule of an address.
    ///
    /// # Errors
    /// Why there is none.
    fn rule(&mut self, address: u64, workspace: &mut Workspace) -> Result<Rule, StackEnd>;
}

/// Unwinds stacks of any number of processes, and remembers their rules.
pub struct Unwinder {
    cache: Box<[Cached]>,
    /// For tables.
    pub workspace: Workspace,
    /// Of the frames so far.
    trail: Vec<SavedRegisters>,
    basis: Basis,
}

impl fmt::Debug for Unwinder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Unwinder").field("workspace", &self.workspace).finish_non_exhaustive()
    }
}

/// Where a frame saved registers: as its rule has it, and the address that this is relative to.
struct SavedRegisters {
    words: [i16; KEPT.len()],
    from: u64,
}

#[derive(Clone, Copy)]
struct Cached {
    address: u64,
    code: u32,
    rule: Rule,
}

impl Default for Unwinder {
    fn default() -> Self {
        Self {
            cache: vec![Cached { address: 0, code: 0, rule: Rule::START }; 1 << CACHE_BITS].into(),
            workspace: Workspace::default(),
            trail: Vec::with_capacity(MAX_FRAMES),
            basis: Basis::default(),
        }
    }
}

impl Unwinder {
    /// Of the last stack.
    #[must_use]
    pub fn basis(&self) -> &Basis {
        &self.basis
    }

    /// Adds the frames of a stack, the innermost first, until there are `MAX_FRAMES`. A frame is the address of the
    /// instruction that it executes: of the call, not the one behind it. With it are the registers where the stack ends:
    /// the user's, if that is the entry from user mode.
    pub fn unwind(
        &mut self,
        code: &mut dyn Code,
        registers: &Registers,
        copies: &[StackCopy],
        frames: &mut Vec<u64>,
    ) -> (StackEnd, Registers) {
        self.trail.clear();
        self.basis.words.clear();
        (self.basis.needs_bp, self.basis.is_partial) = (false, false);
        let number = code.number();
        let mut walk = Walk::new(registers, copies, &mut self.trail, &mut self.basis);
        let n_before = frames.len();
        let end = loop {
            let address = walk.address();
            if frames.len() >= MAX_FRAMES {
                break StackEnd::TooDeep;
            }
            let slot = &mut self.cache[slot(number, address)];
            if (slot.address, slot.code) != (address, number) {
                match code.rule(address, &mut self.workspace) {
                    Ok(rule) => *slot = Cached { address, code: number, rule },
                    // Stubs of linkers and other assembly: mostly before anything is pushed.
                    Err(StackEnd::NoRule) if walk.is_interrupted => {
                        frames.push(address);
                        match walk.step(&Rule::RETURN) {
                            Ok(()) => continue,
                            Err(end) => break end,
                        }
                    }
                    Err(end) => {
                        if end != StackEnd::Outside || frames.len() == n_before {
                            frames.push(address);
                        }
                        break end;
                    }
                }
            }
            frames.push(address);
            if let Err(end) = walk.step(&slot.rule) {
                break end;
            }
        };
        (end, walk.into_registers())
    }
}

fn slot(code: u32, address: u64) -> usize {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (address ^ u64::from(code) << 40).wrapping_mul(FACTOR);
    usize::try_from(mixed >> (u64::BITS - CACHE_BITS)).unwrap_or(0)
}

/// One stack.
struct Walk<'a> {
    copies: &'a [StackCopy],
    basis: &'a mut Basis,
    ip: u64,
    sp: u64,
    bp: u64,
    bp_origin: BpOrigin,
    /// The code at `ip` did not call, it was interrupted.
    is_interrupted: bool,
    /// As they were before the frames of the trail.
    before: Registers,
    trail: &'a mut Vec<SavedRegisters>,
    switches_left: usize,
}

impl<'a> Walk<'a> {
    fn new(
        registers: &Registers,
        copies: &'a [StackCopy],
        trail: &'a mut Vec<SavedRegisters>,
        basis: &'a mut Basis,
    ) -> Self {
        Self {
            copies,
            basis,
            bp_origin: BpOrigin::First,
            ip: registers.ip,
            sp: registers.get(SP).unwrap_or(UNKNOWN),
            bp: registers.get(BP).unwrap_or(0),
            is_interrupted: true,
            before: *registers,
            trail,
            switches_left: MAX_SWITCHES,
        }
    }

    /// Of the instruction that this frame executes: a call that is the last instruction of its function returns to the
    /// next function.
    fn address(&self) -> u64 {
        if self.is_interrupted { self.ip } else { self.ip.wrapping_sub(1) }
    }

    fn into_registers(self) -> Registers {
        Registers { ip: self.ip, ..self.before }.with(SP, self.sp).with(BP, self.bp)
    }

    #[inline]
    fn step(&mut self, rule: &Rule) -> Result<(), StackEnd> {
        if rule.kind == Kind::Start {
            return Err(StackEnd::Start);
        }
        let base = match rule.base {
            BP => self.use_bp(),
            SP if self.sp == UNKNOWN => return Err(StackEnd::NoRegister),
            SP => self.sp,
            other => {
                self.basis.is_partial = true;
                self.register(other).ok_or(StackEnd::NoRegister)?
            }
        };
        let mut place = base.wrapping_add_signed(rule.offset.into());
        if let Some(more) = rule.indirect {
            place = self.use_word(place)?.wrapping_add_signed(more.into());
        }
        match rule.kind {
            Kind::Call => self.call(rule, base, place),
            Kind::Start => Err(StackEnd::Start),
            Kind::PtRegs => self.block(&PT_REGS, place),
            Kind::Interrupt => self.block(&INTERRUPT, place),
            Kind::Signal => self.block(&SIGNAL, place),
        }
    }

    #[inline]
    fn call(&mut self, rule: &Rule, base: u64, place: u64) -> Result<(), StackEnd> {
        // Frame pointers end so.
        if rule.base == BP && base == 0 {
            return Err(StackEnd::Start);
        }
        if place <= self.sp {
            // Code for interrupts goes back to the stack that was interrupted.
            rule.indirect.ok_or(StackEnd::Astray)?;
            self.switch()?;
        }
        let ip = self.use_word(place.wrapping_sub(8))?;
        let from = if rule.is_saved_from_base { base } else { place };
        let [saved_bp, ..] = rule.saved;
        if saved_bp != NOT_SAVED {
            let at = word_at(from, saved_bp);
            if !self.trail.is_empty() || self.is_on_stack(at) {
                self.bp = self.word(at)?;
                self.bp_origin = BpOrigin::Word(at);
            }
        }
        self.trail.push(SavedRegisters { words: rule.saved, from });
        (self.ip, self.sp, self.is_interrupted) = (ip, place, rule.is_interrupted);
        // A thread's first function has nothing to return to.
        if ip == 0 { Err(StackEnd::Start) } else { Ok(()) }
    }

    #[cold]
    fn block(&mut self, block: &Block, place: u64) -> Result<(), StackEnd> {
        self.switch()?;
        let at = |offset: u16| place.wrapping_add(offset.into());
        let ip = self.use_word(at(block.ip))?;
        let is_user = match block.segment {
            Some(segment) => self.use_word(at(segment))? & USER_LEVEL == USER_LEVEL,
            None => false,
        };
        let word = |offset: u16| self.word(at(offset));
        // What is not stored is as it was.
        let mut registers = Registers { ip, ..Registers::default() };
        for (register, offset) in (0_u8..).zip(block.registers) {
            let value = match offset {
                NOT_STORED => self.register(register),
                offset => Some(word(offset)?),
            };
            registers = value.map_or(registers, |value| registers.with(register, value));
        }
        self.sp = registers.get(SP).unwrap_or(UNKNOWN);
        self.bp = registers.get(BP).unwrap_or(0);
        let [sp_at, bp_at] = [SP, BP].map(|register| block.registers[usize::from(register)]);
        if sp_at != NOT_STORED {
            self.use_word(at(sp_at))?;
        }
        if bp_at != NOT_STORED {
            self.bp_origin = BpOrigin::Word(at(bp_at));
        }
        (self.ip, self.before, self.is_interrupted) = (ip, registers, true);
        self.trail.clear();
        if is_user { Err(StackEnd::UserMode) } else { Ok(()) }
    }

    fn switch(&mut self) -> Result<(), StackEnd> {
        self.switches_left = self.switches_left.checked_sub(1).ok_or(StackEnd::Astray)?;
        Ok(())
    }

    /// A register as this frame has it. Few frames need another one than the stack's and the frame's pointers, so that
    /// where it was saved is looked up only then.
    #[cold]
    fn register(&self, register: u8) -> Option<u64> {
        match register {
            SP => return Some(self.sp),
            BP => return Some(self.bp),
            _ => {}
        }
        let Some(kept) = KEPT.iter().position(|kept| *kept == register) else {
            // A call may change it.
            return self.before.get(register).filter(|_| self.trail.is_empty());
        };
        for (n, SavedRegisters { words, from }) in self.trail.iter().enumerate().rev() {
            let saved = words.get(kept).copied().filter(|saved| *saved != NOT_SAVED);
            let at = saved.map(|saved| word_at(*from, saved));
            if let Some(at) = at.filter(|at| 0 < n || self.is_on_stack(*at)) {
                return self.word(at).ok();
            }
        }
        self.before.get(register)
    }

    /// The frame pointer, which the frames follow from.
    #[inline]
    fn use_bp(&mut self) -> u64 {
        match self.bp_origin {
            BpOrigin::First => self.basis.needs_bp = true,
            BpOrigin::Word(at) => self.basis.words.push((at, self.bp)),
        }
        self.bp
    }

    /// A word that the frames follow from.
    #[inline]
    fn use_word(&mut self, at: u64) -> Result<u64, StackEnd> {
        let value = self.word(at)?;
        self.basis.words.push((at, value));
        Ok(value)
    }

    /// Whether the innermost frame still has what it saved there: what it popped already is below the stack's end. Without a
    /// stack pointer it has a frame pointer, which is saved as long as that is set.
    fn is_on_stack(&self, at: u64) -> bool {
        self.before.get(SP).is_none_or(|sp| sp <= at)
    }

    #[inline]
    fn word(&self, at: u64) -> Result<u64, StackEnd> {
        for copy in self.copies {
            let offset = usize::try_from(at.wrapping_sub(copy.start)).unwrap_or(usize::MAX);
            if let Some(bytes) = copy.bytes.get(offset..).and_then(|rest| rest.first_chunk()) {
                return Ok(u64::from_le_bytes(*bytes));
            }
        }
        Err(self.not_copied(at))
    }

    #[cold]
    fn not_copied(&self, at: u64) -> StackEnd {
        let is_beyond = |copy: &StackCopy| at.wrapping_sub(copy.start) < MAX_STACK_BYTES;
        if self.copies.iter().any(is_beyond) { StackEnd::Cut } else { StackEnd::Astray }
    }
}

fn word_at(from: u64, words: i16) -> u64 {
    from.wrapping_add_signed(i64::from(words) << 3)
}
