//! Names cut to a width, the part that tells most kept.

/// What stands for the part cut away.
const CUT: char = '…';

/// Which part of a long name is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    Start,
    /// The end of a path, the start of anything else.
    PathEnd,
    /// The start, and the end from the last of this mark: `qemu-sys… (151)`.
    StartAndFrom(&'static str),
}

/// `text` in at most `width` characters.
#[must_use]
pub fn cut(text: &str, width: usize, keep: Keep) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    match keep {
        Keep::PathEnd if text.starts_with('/') => path_end(text, width),
        Keep::Start | Keep::PathEnd => start(text, width),
        Keep::StartAndFrom(mark) => {
            let (name, end) = text.rfind(mark).map_or((text, ""), |at| text.split_at(at));
            match width.checked_sub(end.chars().count()) {
                Some(left @ 2..) => start(name, left) + end,
                _ => start(text, width),
            }
        }
    }
}

fn start(text: &str, width: usize) -> String {
    text.chars().take(width.saturating_sub(1)).chain([CUT]).collect()
}

/// As many whole components from the end as fit; at least a part of the last.
fn path_end(path: &str, width: usize) -> String {
    let room = width.saturating_sub(1);
    let skipped = path.chars().count().saturating_sub(room);
    let from = path.char_indices().nth(skipped).map_or(path.len(), |(at, _)| at);
    let component = path[from..].find('/').map_or(from, |at| from + at);
    format!("{CUT}{}", &path[component..])
}

#[cfg(test)]
mod test {
    use super::*;

    fn check(text: &str, width: usize, keep: Keep, expected: &str) {
        let short = cut(text, width, keep);
        assert_eq!(short, expected, "{text} in {width}");
        assert!(short.chars().count() <= width.max(1), "{short}");
    }

    #[test]
    fn what_fits_is_left_alone() {
        for keep in [Keep::Start, Keep::PathEnd, Keep::StartAndFrom(" (")] {
            check("日本", 2, keep, "日本");
            check("/a (b", 5, keep, "/a (b");
        }
    }

    #[test]
    fn the_start_of_a_function() {
        check("std::vector<int>::push_back", 12, Keep::Start, "std::vector…");
        check("日本語", 2, Keep::Start, "日…");
        check("abc", 0, Keep::Start, "…");
    }

    #[test]
    fn the_end_of_a_path() {
        check("/usr/lib/rust/librustc.so", 25, Keep::PathEnd, "/usr/lib/rust/librustc.so");
        check("/usr/lib/rust/librustc.so", 20, Keep::PathEnd, "…/rust/librustc.so");
        check("/usr/lib/rust/librustc.so", 17, Keep::PathEnd, "…/librustc.so");
        check("/usr/lib/rust/librustc.so", 8, Keep::PathEnd, "…ustc.so");
        check("[kernel_module]", 8, Keep::PathEnd, "[kernel…");
    }

    #[test]
    fn the_id_of_a_process() {
        check("qemu-system-x86 (151)", 15, Keep::StartAndFrom(" ("), "qemu-sys… (151)");
        check("qemu-system-x86", 8, Keep::StartAndFrom(" ("), "qemu-sy…");
        check("a name (1234567)", 6, Keep::StartAndFrom(" ("), "a nam…");
        check("libc.so.6+0x1234", 12, Keep::StartAndFrom("+0x"), "libc…+0x1234");
    }
}
