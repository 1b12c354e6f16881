//! Expressions over the columns `i` and `t`: numbers, texts and conditions.

use super::Random;

const NUMBERS: [&str; 12] = [
    "0",
    "1",
    "-1",
    "7",
    "1000",
    "65536",
    "1000000",
    "2147483647",
    "-2147483648",
    "9223372036854775807",
    "CAST(NULL AS bigint)",
    "CAST(1e15 AS bigint)",
];
const TEXTS: [&str; 9] = [
    "''",
    "'a'",
    "'%'",
    "'guest_user'",
    "'\u{202e}\u{10ffff}'",
    "repeat('ab', 1000)",
    "repeat('x', 1000000)",
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!'",
    "CAST(NULL AS varchar)",
];
const PATTERNS: [&str; 9] = [
    "'a'",
    "'(a+)+$'",
    r"'\w{200}'",
    "'[a-z]{1,50}{1,20}'",
    "'^(.*a.*)*b$'",
    r"'(\p{L}|\d)*?x'",
    "'((((((((a{0,9}){0,9}){0,9}){0,9}))))){1,3}'",
    r"repeat('\w{50}', 20)",
    "t",
];
/// Times that something is done.
const TIMES: [&str; 8] = ["0", "1", "9", "100", "i % 1000", "10000", "1000000", "2147483647"];
impl Random {
    pub(super) fn number(&mut self, depth: u32) -> String {
        if depth == 0 {
            let literal = self.of(&NUMBERS);
            return self.of(&["i", "i", "length(t)", literal]).to_owned();
        }
        let depth = depth - 1;
        match self.random.u32(..14) {
            0 => {
                let operator = self.of(&["+", "-", "*", "&", "|"]);
                format!("({} {operator} {})", self.number(depth), self.number(depth))
            }
            1 => format!("({} % {})", self.number(depth), self.random.u32(1..100_000)),
            2 => format!("length({})", self.text(depth)),
            3 => format!("levenshtein({}, {})", self.text(depth), self.text(depth)),
            4 => format!("strpos({}, {})", self.text(depth), self.text(depth)),
            5 => format!("regexp_count({}, {})", self.text(depth), self.of(&PATTERNS)),
            6 => {
                let condition = self.condition(depth);
                let (one, other) = (self.number(depth), self.number(depth));
                format!("CASE WHEN {condition} THEN {one} ELSE {other} END")
            }
            7 => format!("CAST(find_in_set({}, {}) AS bigint)", self.text(depth), self.text(depth)),
            8 => format!("coalesce({}, {})", self.number(depth), self.number(depth)),
            9 => {
                let kind = self.of(&["double", "decimal(38, 10)", "varchar", "timestamp", "real"]);
                format!("TRY_CAST(TRY_CAST({} AS {kind}) AS bigint)", self.number(depth))
            }
            10 => {
                let function = self.of(&["sqrt", "exp", "ln", "sin", "cbrt", "atan"]);
                format!("TRY_CAST({function}({}) AS bigint)", self.number(depth))
            }
            11 => {
                let name = self.of(&["bit_length", "octet_length", "ascii", "character_length"]);
                format!("{name}({})", self.text(depth))
            }
            _ => self.number(0),
        }
    }

    pub(super) fn text(&mut self, depth: u32) -> String {
        if depth == 0 {
            let literal = self.of(&TEXTS);
            return self.of(&["t", "t", literal]).to_owned();
        }
        let depth = depth - 1;
        match self.random.u32(..16) {
            0 => format!("repeat({}, {})", self.text(depth), self.of(&TIMES)),
            1 => format!("lpad({}, {}, {})", self.text(depth), self.of(&TIMES), self.text(depth)),
            2 => {
                format!("replace({}, {}, {})", self.text(depth), self.text(depth), self.text(depth))
            }
            3 => {
                let pattern = self.of(&PATTERNS);
                let by = self.of(&[r"'\1\1'", "'\\0\\0\\0'", "repeat(t, 100)", "''"]);
                format!("regexp_replace({}, {pattern}, {by}, 'g')", self.text(depth))
            }
            4 => {
                let (function, length) = (self.of(&["left", "right"]), self.of(&TIMES));
                format!("{function}({}, {length})", self.text(depth))
            }
            5 => {
                let function = self.of(&["reverse", "upper", "rtrim", "initcap", "btrim", "lower"]);
                format!("{function}({})", self.text(depth))
            }
            6 => format!("concat({}, {}, {})", self.text(depth), self.number(depth), self.text(0)),
            7 => format!("get_field(struct({}, {}), 'c1')", self.number(depth), self.text(depth)),
            8 => format!("concat_ws({}, t, {}, t)", self.text(0), self.text(depth)),
            9 => format!("encode(CAST({} AS bytea), 'base64')", self.text(depth)),
            10 => format!(
                "translate({}, {}, {})",
                self.text(depth),
                self.text(depth),
                self.text(depth)
            ),
            11 => format!("split_part({}, {}, 2)", self.text(depth), self.text(0)),
            12 => {
                let times = self.random.usize(1..60);
                format!("({}{})", self.text(depth), " || t".repeat(times))
            }
            13 => format!("CAST({} AS varchar)", self.number(depth)),
            14 => {
                let condition = self.condition(depth);
                format!("CASE WHEN {condition} THEN {} ELSE {} END", self.text(depth), self.text(0))
            }
            _ => self.text(0),
        }
    }

    pub(super) fn condition(&mut self, depth: u32) -> String {
        let inner = depth.saturating_sub(1);
        match self.random.u32(..10) {
            0 => format!("{} LIKE '%' || {} || '%'", self.text(inner), self.text(inner)),
            1 => format!("regexp_like({}, {})", self.text(inner), self.of(&PATTERNS)),
            2 => format!("regexp_like(t, CAST(i AS varchar) || {})", self.of(&PATTERNS)),
            3 => {
                let count = self.random.u32(1..600);
                let numbers: Vec<_> =
                    (0..count).map(|_| self.random.u32(..100_000).to_string()).collect();
                format!("{} IN ({})", self.number(inner), numbers.join(", "))
            }
            4 if 0 < depth => {
                let operator = self.of(&["AND", "OR", "IS DISTINCT FROM"]);
                format!("({} {operator} {})", self.condition(inner), self.condition(inner))
            }
            5 => format!("NOT ({} IS NULL)", self.text(inner)),
            6 => format!(
                "{} BETWEEN {} AND {}",
                self.number(inner),
                self.number(0),
                self.number(inner)
            ),
            7 => {
                let operator = self.of(&["=", "<", ">=", "<>"]);
                format!("{} {operator} {}", self.text(inner), self.text(inner))
            }
            _ => {
                let operator = self.of(&["=", "<", ">=", "<>"]);
                format!("{} {operator} {}", self.number(inner), self.number(inner))
            }
        }
    }
}
