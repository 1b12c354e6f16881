//! SHA-256 of a certificate: programs identify each other by it.

use std::fmt;
use std::str::FromStr;

/// SHA-256 of a certificate (DER).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 32]);

/// It does not have 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadFingerprint;

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for BadFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the fingerprint must have 64 hexadecimal digits")
    }
}

impl std::error::Error for BadFingerprint {}

impl FromStr for Fingerprint {
    type Err = BadFingerprint;

    /// In hexadecimal digits of either case; colons and blanks between them do not count.
    fn from_str(text: &str) -> Result<Self, BadFingerprint> {
        let is_digit = |c: &char| !c.is_whitespace() && *c != ':';
        let digits: Option<Vec<u8>> = text
            .chars()
            .filter(is_digit)
            .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect();
        let digits: [u8; 64] = digits.and_then(|d| d.try_into().ok()).ok_or(BadFingerprint)?;
        Ok(Self(std::array::from_fn(|n| digits[2 * n] << 4 | digits[2 * n + 1])))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn fingerprints_are_written_in_several_ways() {
        let digits = "0a".repeat(32);
        let fingerprint: Fingerprint = digits.parse().unwrap();
        assert_eq!((fingerprint, fingerprint.to_string()), (Fingerprint([10; 32]), digits.clone()));
        assert_eq!(vec!["0A"; 32].join(":").parse(), Ok(fingerprint));
        assert_eq!(digits[1..].parse::<Fingerprint>(), Err(BadFingerprint));
        assert_eq!(format!("{}xy", &digits[2..]).parse::<Fingerprint>(), Err(BadFingerprint));
        assert_eq!("".parse::<Fingerprint>(), Err(BadFingerprint));
    }
}
