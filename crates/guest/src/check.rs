//! Checks of single values that a guest sent.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use model::is_unsafe;

/// First address above user space, with five-level page tables (LA57).
const USER_END: u64 = 1 << 56;
/// First address of the kernel half, with five-level page tables.
const KERNEL_START: u64 = 0xff00_0000_0000_0000;
/// The kernel's own limit on process ids (`PID_MAX_LIMIT`).
const MAX_PID: u32 = 1 << 22;

/// A text of at most `max_chars` characters that is safe to print: whatever controls a terminal,
/// breaks a line or turns the direction of writing is escaped.
pub(crate) fn clean(text: &str, max_chars: usize) -> String {
    let mut clean = String::with_capacity(text.len().min(max_chars));
    for (n, character) in text.chars().enumerate() {
        if max_chars <= n {
            clean.push('…');
            break;
        }
        if is_unsafe(character) {
            clean.extend(character.escape_unicode());
        } else {
            clean.push(character);
        }
    }
    clean
}

/// A text of lines that is safe to print, as `clean` has it, but for ends of lines and tabs.
pub(crate) fn clean_lines(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for character in text.chars() {
        if is_unsafe(character) && !matches!(character, '\n' | '\t') {
            clean.extend(character.escape_unicode());
        } else {
            clean.push(character);
        }
    }
    clean
}

/// Whether `start..end` is a range of user addresses.
pub(crate) fn is_user_range(start: u64, end: u64) -> bool {
    start < end && end <= USER_END
}

/// Whether `start..end` is a range of kernel addresses.
pub(crate) fn is_kernel_range(start: u64, end: u64) -> bool {
    KERNEL_START <= start && start < end
}

/// Whether it is an address of the kernel half.
pub(crate) fn is_kernel_address(address: u64) -> bool {
    KERNEL_START <= address
}

/// A user address that stands for something: not 0, not the kernel's.
pub(crate) fn is_user_address(address: u64) -> bool {
    0 < address && address < USER_END
}

/// Whether a process or thread can have this id.
pub(crate) fn is_pid(id: u32) -> bool {
    (1..=MAX_PID).contains(&id)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn texts_are_made_safe_to_print() {
        for (text, expected) in [
            ("python3", "python3"),
            ("köln 東京", "köln 東京"),
            ("a\x1b[31mb\n", "a\\u{1b}[31mb\\u{a}"),
            ("right\u{202e}tfel", "right\\u{202e}tfel"),
            ("0123456789x", "0123456789…"),
            ("", ""),
        ] {
            assert_eq!(clean(text, 10), expected, "{text:?}");
        }
    }

    #[test]
    fn ranges_lie_in_one_half() {
        for (start, end, user, kernel) in [
            (0x1000, 0x2000, true, false),
            (0x2000, 0x2000, false, false),
            (0x3000, 0x2000, false, false),
            (0x1000, u64::MAX, false, false),
            (0xffff_ffff_8000_0000, 0xffff_ffff_9000_0000, false, true),
            (0xffff_ffff_8000_0000, 0x1000, false, false),
        ] {
            assert_eq!(is_user_range(start, end), user, "{start:#x}");
            assert_eq!(is_kernel_range(start, end), kernel, "{start:#x}");
        }
    }
}
