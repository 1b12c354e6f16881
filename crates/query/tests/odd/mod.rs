//! Odd queries, made from a seed: they nest, join, group, recurse, make long texts and call functions with
//! arguments of all sizes.

const COLUMNS: [&str; 8] =
    ["ns", "corrected_ns", "samples", "vcpu", "function", "vm", "state", "slice"];
const NUMBERS: [&str; 10] =
    ["0", "1", "-1", "7", "1000", "1e6", "2147483647", "9223372036854775807", "1e308", "NULL"];
const TEXTS: [&str; 9] = [
    "''",
    "'a'",
    "'%'",
    "'(a+)+$'",
    r"'\w{200}'",
    "'[a-z]{1,500}{1,20}'",
    "'FixedSizeBinary(2147483647)'",
    "'List(Int64)'",
    "'\u{202e}\u{10ffff}'",
];
/// Functions and how many arguments each gets.
const FUNCTIONS: [(&str, u32); 40] = [
    ("repeat", 2),
    ("lpad", 3),
    ("rpad", 2),
    ("replace", 3),
    ("regexp_replace", 4),
    ("regexp_like", 2),
    ("regexp_match", 2),
    ("regexp_count", 2),
    ("levenshtein", 2),
    ("concat", 3),
    ("concat_ws", 4),
    ("overlay", 3),
    ("encode", 2),
    ("decode", 2),
    ("arrow_cast", 2),
    ("arrow_try_cast", 2),
    ("struct", 3),
    ("make_array", 3),
    ("array_repeat", 2),
    ("array_resize", 3),
    ("array_concat", 2),
    ("range", 3),
    ("generate_series", 2),
    ("array_to_string", 2),
    ("string_to_array", 2),
    ("split_part", 3),
    ("substr", 3),
    ("translate", 3),
    ("to_hex", 1),
    ("md5", 1),
    ("sha512", 1),
    ("factorial", 1),
    ("power", 2),
    ("log", 2),
    ("gcd", 2),
    ("date_bin", 2),
    ("date_trunc", 2),
    ("to_timestamp", 1),
    ("flatten", 1),
    ("cardinality", 1),
];
const AGGREGATES: [&str; 12] = [
    "sum",
    "count",
    "array_agg",
    "string_agg",
    "min",
    "max",
    "median",
    "approx_distinct",
    "stddev",
    "first_value",
    "count(DISTINCT",
    "array_agg(DISTINCT",
];

/// Where queries come from: the same seed, the same queries.
pub(crate) struct Random(fastrand::Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    pub(crate) fn query(&mut self) -> String {
        let mut sql = self.select(3);
        if self.one_in(12) {
            let bodies = (1..4).map(|n| format!("t{n} AS (SELECT a.* FROM t{0} a, t{0} b)", n - 1));
            let bodies: Vec<_> = bodies.collect();
            sql = format!("WITH t0 AS ({sql}), {} SELECT count(*) FROM t3", bodies.join(", "));
        }
        if self.one_in(25) {
            sql = format!(
                "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + {} FROM r) {sql}, r",
                self.of(&NUMBERS)
            );
        }
        // A text that was cut somewhere.
        if self.one_in(30) {
            let end = sql.floor_char_boundary(self.0.usize(..sql.len().max(1)));
            sql.truncate(end);
        }
        sql
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.0.u32(..n) == 0
    }

    fn of(&mut self, of: &[&str]) -> String {
        of[self.0.usize(..of.len())].to_owned()
    }

    fn select(&mut self, depth: u32) -> String {
        let source = self.source(depth);
        let mut sql = if self.one_in(2) {
            let (key, value) = (self.expression(depth), self.expression(depth));
            let aggregate = self.of(&AGGREGATES);
            let open = if aggregate.contains('(') { ' ' } else { '(' };
            let group = match self.0.u32(..4) {
                0 => {
                    let columns: Vec<_> =
                        (0..self.0.u32(1..12)).map(|n| format!("ns % {}", n + 2)).collect();
                    let kind = self.of(&["CUBE", "ROLLUP"]);
                    format!(" GROUP BY {kind}({})", columns.join(", "))
                }
                1 => String::new(),
                _ => format!(" GROUP BY {key}"),
            };
            format!("SELECT {aggregate}{open}{value}) AS ns FROM {source}{group}")
        } else {
            let (one, other) = (self.expression(depth), self.expression(depth));
            let over = match self.0.u32(..6) {
                0 => format!(", sum(ns) OVER (PARTITION BY {other} ORDER BY {one})"),
                _ => String::new(),
            };
            let distinct = self.of(&["", "", "DISTINCT "]);
            format!("SELECT {distinct}{one} AS ns, {other} AS function{over} FROM {source}")
        };
        if self.one_in(3) && !sql.contains("GROUP BY") {
            sql = format!("{sql} WHERE {} = {}", self.expression(depth), self.expression(depth));
        }
        if self.one_in(3) {
            sql = format!("{sql} ORDER BY 1");
        }
        if depth == 3 && self.one_in(5) {
            let other = self.select(1);
            sql = format!(
                "{sql} {} {other}",
                self.of(&["UNION ALL", "UNION", "EXCEPT", "INTERSECT"])
            );
        }
        sql
    }

    fn source(&mut self, depth: u32) -> String {
        match self.0.u32(..8) {
            0 | 1 if 0 < depth => format!("({}) s", self.select(depth - 1)),
            2 => "vcpu_time a, vcpu_time b".replace("vcpu_time a", "(SELECT ns FROM vcpu_time) a"),
            3 => {
                let end = self.of(&NUMBERS);
                format!("(SELECT value AS ns, value AS function FROM generate_series(1, {end})) g")
            }
            4 => {
                "vcpu_time JOIN (SELECT function AS f FROM vcpu_time) o ON vcpu_time.function = o.f"
                    .to_owned()
            }
            5 => self.of(&["hosts", "vms", "health", "nowhere", "cpu_time"]),
            _ => "vcpu_time".to_owned(),
        }
    }

    fn expression(&mut self, depth: u32) -> String {
        if depth == 0 {
            return match self.0.u32(..3) {
                0 => self.of(&NUMBERS),
                1 => self.of(&TEXTS),
                _ => self.of(&COLUMNS),
            };
        }
        match self.0.u32(..9) {
            0 | 1 => {
                let (name, arguments) = FUNCTIONS[self.0.usize(..FUNCTIONS.len())];
                let arguments: Vec<_> =
                    (0..arguments).map(|_| self.expression(depth - 1)).collect();
                format!("{name}({})", arguments.join(", "))
            }
            2 => {
                let operator =
                    self.of(&["||", "+", "*", "%", "<", "~", "LIKE", "IS DISTINCT FROM"]);
                format!(
                    "({} {operator} {})",
                    self.expression(depth - 1),
                    self.expression(depth - 1)
                )
            }
            3 => {
                let kind =
                    self.of(&["varchar", "bigint", "double", "timestamp", "decimal(38, 10)"]);
                format!("CAST({} AS {kind})", self.expression(depth - 1))
            }
            4 if self.one_in(3) => format!("(SELECT max(ns) FROM {})", self.source(depth - 1)),
            5 => {
                let times = self.0.usize(1..40);
                format!("({}{})", self.of(&COLUMNS), " || function".repeat(times))
            }
            _ => self.expression(0),
        }
    }
}
