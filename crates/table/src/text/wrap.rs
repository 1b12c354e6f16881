//! Sentences broken into lines.

use super::Width;

/// Lines no longer than the terminal's, broken between words but not before a `%`; continuation lines are indented.
#[must_use]
pub fn wrapped(text: &str, width: Width) -> String {
    let columns = width.columns().unwrap_or(usize::MAX);
    text.lines().map(|line| broken(line, columns)).collect()
}

/// The same two columns to the right.
#[must_use]
pub fn indented(text: &str, width: Width) -> String {
    let columns = width.columns().map_or(usize::MAX, |columns| columns - 2);
    let lines: String = text.lines().map(|line| broken(line, columns)).collect();
    lines.lines().map(|line| format!("  {line}\n")).collect()
}

fn broken(text: &str, columns: usize) -> String {
    let mut out = String::new();
    let mut line = String::new();
    let text = text.replace(" %", "\u{a0}%");
    for word in text.split(' ') {
        if !line.is_empty() && columns < line.chars().count() + 1 + word.chars().count() {
            out += &format!("{line}\n");
            line = format!("  {word}");
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    (out + &line + "\n").replace('\u{a0}', " ")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn long_lines_are_broken_between_words() {
        let check = |text: &str, columns, expected| {
            assert_eq!(broken(text, columns), expected);
        };
        check("", 8, "\n");
        check("a b", 8, "a b\n");
        check("xxxx yyyy b", 8, "xxxx\n  yyyy b\n");
        check("xxxx 5 %", 6, "xxxx\n  5 %\n");
        assert_eq!(wrapped("a b\n\nc", Width::Columns(80)), "a b\n\nc\n");
        assert_eq!(wrapped(&"word ".repeat(99), Width::Unlimited).lines().count(), 1);
        assert_eq!(indented("a\nb", Width::Columns(80)), "  a\n  b\n");
    }
}
