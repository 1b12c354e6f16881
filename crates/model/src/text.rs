//! Text in messages: characters that don't show as what they are, and errors with their causes.

use std::error::Error;
use std::iter::successors;

/// Whether a character steers a terminal, ends or reorders a line, or can't be seen: a name from elsewhere that has one
/// is shown without it.
#[must_use]
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// A text from elsewhere as one line that steers nothing.
#[must_use]
pub fn replace_unsafe(text: &str) -> String {
    text.chars().map(|c| if is_unsafe(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// An error and its causes. A cause that the error names itself is left out.
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut last = text.clone();
    for cause in successors(error.source(), |cause| (*cause).source()).map(ToString::to_string) {
        if !last.contains(&cause) {
            text += ": ";
            text += &cause;
        }
        last = cause;
    }
    text
}

#[cfg(test)]
mod test {
    use super::*;

    /// A text, and its cause.
    #[derive(Debug)]
    struct Failed(&'static str, Option<Box<Failed>>);

    impl std::fmt::Display for Failed {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Failed {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn each_cause_is_named_once() {
        let check = |texts: &[&'static str], expected: &str| {
            let chained =
                texts.iter().rev().fold(None, |cause, text| Some(Box::new(Failed(text, cause))));
            assert_eq!(error_chain(&chained.unwrap()), expected);
        };
        check(&["gone"], "gone");
        check(&["failed to read x: gone", "gone"], "failed to read x: gone");
        check(&["no plan", "failed to read x: gone", "gone"], "no plan: failed to read x: gone");
        check(&["failed to read y", "gone"], "failed to read y: gone");
    }

    #[test]
    fn what_can_not_be_seen_is_unsafe() {
        let unsafe_ones = "\u{1b}\n\t\u{7f}\u{9b}\u{ad}\u{61c}\u{115f}\u{180e}\u{200b}\u{2028}\u{202e}\u{2066}\u{3164}\
            \u{feff}\u{fffb}\u{e0041}";
        assert!(unsafe_ones.chars().all(is_unsafe));
        assert!(!" aÄ漢字é€😀ـي".chars().any(is_unsafe));
    }
}
