//! Rust twins of bpf/abi/sample.h.

/// `Sample::vcpu` of a thread that is no vCPU.
pub const VCPU_NONE: u32 = 0xffff_ffff;
/// `Sample::vcpu` of an interrupted guest whose vCPU is not in the table yet.
pub const VCPU_UNKNOWN: u32 = 0xffff_fffe;
/// Most frames of each half of a host call stack.
pub const STACK_DEPTH: usize = 64;
/// Bytes of a sample record.
pub(crate) const SAMPLE_BYTES: usize = 104;
/// Where a sample record holds its stack's row; the kernel leaves 0xffffffff there.
pub const STACK_FIELD: std::ops::Range<usize> = 84..88;

/// Where a record has the number of its vCPU (little-endian `u32`), or `VCPU_NONE` or `VCPU_UNKNOWN`.
pub const VCPU_FIELD: std::ops::Range<usize> = 72..76;
/// `MAX_CPUS`.
pub(crate) const MAX_CPUS: u32 = 2048;
/// Name of the map behind the rings' heads.
pub(crate) const RINGS: &str = ".bss.rings";
/// Bytes of a ring head, `struct ring`.
pub(crate) const RING_BYTES: usize = 128;
/// Byte offsets in `struct ring`.
pub(crate) const RING_HEAD: usize = 0;
pub(crate) const RING_DROPPED: usize = 8;
pub(crate) const RING_READ_ERRORS: usize = 16;
pub(crate) const RING_UNKNOWN: usize = 24;
pub(crate) const RING_TAIL: usize = 64;
/// Bytes of `struct stack`.
pub(crate) const STACK_BYTES: usize = ENTRY_AT + 8 * 21;
/// Where it has what is of the guest: flags and number of chunks, registers, registers at the kernel's entry.
const GUEST_AT: usize = 8 + 2 * 8 * STACK_DEPTH;
const REGISTERS_AT: usize = GUEST_AT + 8;
const ENTRY_AT: usize = REGISTERS_AT + 8 * 16;
/// `GUEST_*`.
const HAS_REGISTERS: u32 = 1;
const HAS_RSP: u32 = 2;
const HAS_ENTRY: u32 = 4;
/// Bytes of `struct stack_chunk`: an address, and what lies there.
pub(crate) const CHUNK_BYTES: usize = 8 + 1024;
/// Twice `KERNEL_CHUNKS`, `USER_CHUNKS` and `PYTHON_CHUNKS`.
const MAX_CHUNKS: usize = 2 * 5 + 9 + 1;

/// What a guest's call stack is unwound from: registers, and pieces of its stacks.
#[derive(Debug, Clone, Copy)]
pub struct RawGuestStack<'a> {
    stack: &'a [u8],
    chunks: &'a [u8],
}

/// Registers of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawRegisters {
    /// Of an entry from user mode only: the others' is the sample's.
    pub ip: u64,
    /// `None`: it can't be read.
    pub sp: Option<u64>,
    pub bp: u64,
    /// bx, r12, r13, r14, r15.
    pub callee_saved: [u64; 5],
}

impl<'a> RawGuestStack<'a> {
    /// Where the guest was interrupted; `None`: the registers could not be read.
    #[must_use]
    pub fn registers(&self) -> Option<RawRegisters> {
        // RBX is 3, RSP 4, RBP 5.
        let register = |n: usize| u64::from_le_bytes(field(self.stack, REGISTERS_AT + 8 * n));
        self.has(HAS_REGISTERS).then(|| RawRegisters {
            ip: 0,
            sp: self.has(HAS_RSP).then(|| register(4)),
            bp: register(5),
            callee_saved: [3, 12, 13, 14, 15].map(register),
        })
    }

    /// Where it entered its kernel from user mode; `None`: it is in user mode, or a kernel thread.
    #[must_use]
    pub fn entry(&self) -> Option<RawRegisters> {
        // r15, r14, r13, r12, bp, bx, six that calls may change, three more, ip, cs, flags, sp, ss.
        let register = |n: usize| u64::from_le_bytes(field(self.stack, ENTRY_AT + 8 * n));
        (self.has(HAS_ENTRY) && register(17) & 3 == 3).then(|| RawRegisters {
            ip: register(16),
            sp: Some(register(19)),
            bp: register(4),
            callee_saved: [5, 3, 2, 1, 0].map(register),
        })
    }

    /// Addresses and bytes of stacks, in the order in which they were copied: neighbours may overlap.
    pub fn chunks(&self) -> impl Iterator<Item = (u64, &'a [u8])> + Clone {
        let chunks = self.chunks.chunks_exact(CHUNK_BYTES);
        chunks.map(|chunk| (u64::from_le_bytes(field(chunk, 0)), &chunk[8..]))
    }

    fn has(&self, flag: u32) -> bool {
        u32::from_le_bytes(field(self.stack, GUEST_AT)) & flag != 0
    }
}

/// The number of chunks that belong to a stack.
pub(crate) fn chunks_of(stack: &[u8]) -> usize {
    let n = u32::from_le_bytes(field(stack, GUEST_AT + 4));
    usize::try_from(n).unwrap_or(0).min(MAX_CHUNKS)
}

/// The call stacks of a sample as the kernel wrote them (`struct stack`).
#[derive(Debug, Clone, Copy)]
pub struct RawStack<'a> {
    pub(crate) stack: &'a [u8],
    pub(crate) chunks: &'a [u8],
}

impl<'a> RawStack<'a> {
    /// The guest's, if it was taken.
    #[must_use]
    pub fn guest(&self) -> RawGuestStack<'a> {
        RawGuestStack { stack: self.stack, chunks: self.chunks }
    }

    /// Kernel return addresses of the host, innermost first.
    pub fn kernel(&self) -> impl Iterator<Item = u64> + Clone + '_ {
        self.addresses(0, 8)
    }

    /// User return addresses of the host, innermost first.
    pub fn user(&self) -> impl Iterator<Item = u64> + Clone + '_ {
        self.addresses(4, 8 + 8 * STACK_DEPTH)
    }

    /// Whether either half filled its buffer, so that outer frames are missing.
    #[must_use]
    pub fn truncated(&self) -> bool {
        self.frames(0) == STACK_DEPTH || self.frames(4) == STACK_DEPTH
    }

    fn frames(&self, length_at: usize) -> usize {
        let bytes = i32::from_le_bytes(field(self.stack, length_at));
        usize::try_from(bytes).unwrap_or(0).min(8 * STACK_DEPTH) / 8
    }

    fn addresses(&self, length_at: usize, at: usize) -> impl Iterator<Item = u64> + Clone + '_ {
        (0..self.frames(length_at)).map(move |i| u64::from_le_bytes(field(self.stack, at + 8 * i)))
    }
}

/// `N` bytes at `at`.
pub(crate) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes is an array of N bytes")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_stack_is_read_by_its_lengths() {
        let mut bytes = vec![0u8; STACK_BYTES];
        bytes[0..4].copy_from_slice(&16i32.to_le_bytes());
        bytes[4..8].copy_from_slice(&(-14i32).to_le_bytes()); // -EFAULT: no user stack
        bytes[8..16].copy_from_slice(&7u64.to_le_bytes());
        bytes[16..24].copy_from_slice(&9u64.to_le_bytes());
        let stack = RawStack { stack: &bytes, chunks: &[] };
        assert_eq!(stack.kernel().collect::<Vec<_>>(), [7, 9]);
        assert_eq!(stack.user().count(), 0);
        assert!(!stack.truncated());
        bytes[4..8].copy_from_slice(&i32::MAX.to_le_bytes());
        assert!(RawStack { stack: &bytes, chunks: &[] }.truncated());
    }

    #[test]
    fn a_guests_stack_is_read_by_its_flags() {
        let mut bytes = vec![0u8; STACK_BYTES];
        let mut put =
            |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        (0..16).for_each(|n| put(REGISTERS_AT + 8 * n, 100 + n as u64));
        (0..21).for_each(|n| put(ENTRY_AT + 8 * n, 200 + n as u64));
        put(GUEST_AT, 1 | 2 << 32);
        let chunks = vec![0; 2 * CHUNK_BYTES];
        let guest = |bytes: &[u8]| {
            let guest = RawStack { stack: bytes, chunks: &chunks }.guest();
            (guest.registers(), guest.entry(), guest.chunks().count())
        };
        let callee_saved = [103, 112, 113, 114, 115];
        let registers = RawRegisters { ip: 0, sp: None, bp: 105, callee_saved };
        assert_eq!(chunks_of(&bytes), 2);
        assert_eq!(guest(&bytes), (Some(registers), None, 2));
        bytes[GUEST_AT] = 7;
        let registers = RawRegisters { sp: Some(104), ..registers };
        assert_eq!(guest(&bytes).0, Some(registers));
        assert_eq!(guest(&bytes).1, None, "its code segment is the kernel's");
        bytes[ENTRY_AT + 8 * 17] = 0x33;
        let callee_saved = [205, 203, 202, 201, 200];
        let entry = RawRegisters { ip: 216, sp: Some(219), bp: 204, callee_saved };
        assert_eq!(guest(&bytes).1, Some(entry));
        bytes[GUEST_AT + 4] = 200;
        assert_eq!(chunks_of(&bytes), MAX_CHUNKS);
    }
}
