//! Sizes on the command line.

/// `64K`, `4M`, `1G`; plain numbers are bytes.
///
/// # Errors
/// The reason, when it is no size or too large.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        other => return Err(format!("unknown unit {other:?}: use K, M or G")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is not a size"))?;
    let bytes = number.checked_shl(shift).filter(|bytes| bytes >> shift == number);
    bytes.ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn sizes() {
        let check = |text, expected: Option<u64>| assert_eq!(size(text).ok(), expected, "{text}");
        check("0", Some(0));
        check("4M", Some(4 << 20));
        check("64k", Some(64 << 10));
        check("2G", Some(2 << 30));
        check("1048576", Some(1 << 20));
        check("18446744073709551615G", None);
        check("4X", None);
        check("", None);
    }
}
