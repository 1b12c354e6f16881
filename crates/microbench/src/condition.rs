//! What a measurement was made under.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// `MODE.cplR[.2m][.nocache][.cold]`, as the command line and the results write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Condition {
    pub mode: Mode,
    /// Privilege level, 0 to 3.
    pub ring: u8,
    /// Pages of 2 MiB (4 MiB without PAE), not of 4 KiB.
    pub large_pages: bool,
    pub no_cache: bool,
    /// The TLB is emptied before.
    pub cold: bool,
}

/// Mode of the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// 32 bits, paging off.
    Flat,
    /// 32 bits, two levels of page tables.
    Paging,
    /// 32 bits, three levels.
    Pae,
    /// 64 bits.
    Long,
}

impl Mode {
    /// Every mode, plainest first.
    pub const ALL: [Self; 4] = [Self::Flat, Self::Paging, Self::Pae, Self::Long];

    /// As in a condition's id.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Paging => "paging",
            Self::Pae => "pae",
            Self::Long => "long",
        }
    }
}

impl Condition {
    /// A mode and a privilege level, small pages, caches on, a warm TLB.
    #[must_use]
    pub fn plain(mode: Mode, ring: u8) -> Self {
        Self { mode, ring, large_pages: false, no_cache: false, cold: false }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.cpl{}", self.mode.name(), self.ring)?;
        for (is_so, word) in
            [(self.large_pages, ".2m"), (self.no_cache, ".nocache"), (self.cold, ".cold")]
        {
            if is_so {
                f.write_str(word)?;
            }
        }
        Ok(())
    }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).ok_or_else(|| {
            let start: String = text.chars().take(40).collect();
            format!(
                "{start:?} is not a condition: MODE.cplR[.2m][.nocache][.cold], as long.cpl3.cold"
            )
        })
    }
}

impl From<Condition> for String {
    fn from(condition: Condition) -> Self {
        condition.to_string()
    }
}

impl TryFrom<String> for Condition {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

fn parse(text: &str) -> Option<Condition> {
    let mut words = text.split('.');
    let mode = words.next()?;
    let mode = Mode::ALL.into_iter().find(|known| known.name() == mode)?;
    let ring = words.next()?.strip_prefix("cpl")?.parse().ok().filter(|ring| *ring <= 3)?;
    let mut condition = Condition::plain(mode, ring);
    for word in words {
        match word {
            "4k" => condition.large_pages = false,
            "2m" => condition.large_pages = true,
            "nocache" => condition.no_cache = true,
            "cold" => condition.cold = true,
            _ => return None,
        }
    }
    Some(condition)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids() {
        let check = |text: &str, expected: Option<&str>| {
            let parsed = text.parse::<Condition>().ok().map(|condition| condition.to_string());
            assert_eq!(parsed.as_deref(), expected, "{text}");
        };
        for text in ["flat.cpl0", "paging.cpl1.2m", "pae.cpl2.nocache", "long.cpl3.2m.nocache.cold"]
        {
            check(text, Some(text));
        }
        check("long.cpl3.4k.cold", Some("long.cpl3.cold"));
        for text in
            ["", "long", "long.cpl4", "real.cpl0", "long.cpl0.", "long.cpl0.hot", "long.cpl"]
        {
            check(text, None);
        }
    }
}
