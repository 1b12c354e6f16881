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
pub(crate) const STACK_BYTES: usize = 8 + 2 * 8 * STACK_DEPTH;

/// A host call stack as the kernel wrote it (`struct stack`).
#[derive(Debug, Clone, Copy)]
pub struct RawStack<'a>(pub(crate) &'a [u8]);

impl RawStack<'_> {
    /// Kernel return addresses, innermost first.
    pub fn kernel(&self) -> impl Iterator<Item = u64> + '_ {
        self.addresses(0, 8)
    }

    /// User return addresses, innermost first.
    pub fn user(&self) -> impl Iterator<Item = u64> + '_ {
        self.addresses(4, 8 + 8 * STACK_DEPTH)
    }

    /// Whether either half filled its buffer, so that outer frames are missing.
    #[must_use]
    pub fn truncated(&self) -> bool {
        self.frames(0) == STACK_DEPTH || self.frames(4) == STACK_DEPTH
    }

    fn frames(&self, length_at: usize) -> usize {
        let bytes = i32::from_le_bytes(field(self.0, length_at));
        usize::try_from(bytes).unwrap_or(0).min(8 * STACK_DEPTH) / 8
    }

    fn addresses(&self, length_at: usize, at: usize) -> impl Iterator<Item = u64> + '_ {
        (0..self.frames(length_at)).map(move |i| u64::from_le_bytes(field(self.0, at + 8 * i)))
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
        let stack = RawStack(&bytes);
        assert_eq!(stack.kernel().collect::<Vec<_>>(), [7, 9]);
        assert_eq!(stack.user().count(), 0);
        assert!(!stack.truncated());
        bytes[4..8].copy_from_slice(&i32::MAX.to_le_bytes());
        assert!(RawStack(&bytes).truncated());
    }
}
