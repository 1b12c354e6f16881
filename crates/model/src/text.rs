//! Characters that don't show as what they are.

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

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_can_not_be_seen_is_unsafe() {
        let unsafe_ones = "\u{1b}\n\t\u{7f}\u{9b}\u{ad}\u{61c}\u{115f}\u{180e}\u{200b}\u{2028}\u{202e}\u{2066}\u{3164}\
            \u{feff}\u{fffb}\u{e0041}";
        assert!(unsafe_ones.chars().all(is_unsafe));
        assert!(!" aÄ漢字é€😀ـي".chars().any(is_unsafe));
    }
}
