//! Relations: SELECTs with the columns `i` and `t`.

use super::Random;

/// Rows that a series has.
const COUNTS: [&str; 6] = ["10", "100", "3000", "100000", "10000000", "9223372036854775807"];
const SMALL_COUNTS: [&str; 4] = ["1", "10", "1000", "100000"];
const JOINS: [&str; 6] =
    ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"];

impl Random {
    pub(super) fn relation(&mut self, depth: u32) -> String {
        let Some(depth) = depth.checked_sub(1) else { return self.leaf() };
        match self.random.u32(..20) {
            0 | 1 => self.projected(depth),
            2 => self.joined(depth),
            3 => self.crossed(depth),
            4 | 5 => self.grouped(depth),
            6 => self.in_sets(depth),
            7 | 8 => self.windowed(depth),
            9 => self.combined(depth),
            10 => self.collected(depth),
            11 => self.recursive(depth),
            12 => self.doubled(depth),
            13 => self.nested(depth),
            14 => self.correlated(depth),
            15 => self.lateral(depth),
            16 => self.unnested(depth),
            17 => self.sorted(depth),
            _ => {
                let (condition, alias) = (self.condition(2), self.alias());
                format!("SELECT i, t FROM ({}) {alias} WHERE {condition}", self.relation(depth))
            }
        }
    }

    fn leaf(&mut self) -> String {
        match self.random.u32(..9) {
            0 => format!(
                "SELECT value AS i, CAST(value AS varchar) AS t FROM generate_series(1, {})",
                self.of(&COUNTS)
            ),
            1 => format!(
                "SELECT CAST(value AS bigint) AS i, 'u' AS t FROM range(0, {})",
                self.of(&SMALL_COUNTS)
            ),
            2 => {
                let rows = (0..self.random.u32(1..60)).map(|n| format!("({n}, 'v{n}')"));
                let rows: Vec<_> = rows.collect();
                format!("SELECT column1 AS i, column2 AS t FROM (VALUES {}) v", rows.join(", "))
            }
            3 => {
                let column = self.of(&["vm", "host", "map_via"]);
                format!("SELECT CAST(vcpu_ns AS bigint) AS i, {column} AS t FROM vms")
            }
            4 => "SELECT CAST(length_ns AS bigint) AS i, hostname AS t FROM hosts".to_owned(),
            _ => {
                let number = self.of(&["ns", "corrected_ns", "samples", "vcpu", "window_ns"]);
                let text = self.of(&["function", "state", "vm", "module", "thief"]);
                format!("SELECT CAST({number} AS bigint) AS i, {text} AS t FROM vcpu_time")
            }
        }
    }

    fn projected(&mut self, depth: u32) -> String {
        let (number, text, alias) = (self.number(3), self.text(3), self.alias());
        let distinct = self.of(&["", "", "DISTINCT "]);
        format!(
            "SELECT {distinct}{number} AS i, {text} AS t FROM ({}) {alias}",
            self.relation(depth)
        )
    }

    fn joined(&mut self, depth: u32) -> String {
        let (a, b) = (self.alias(), self.alias());
        let join = self.of(&JOINS);
        let on = self.of(&[
            "A.i = B.i",
            "A.t = B.t",
            "A.i < B.i",
            "A.i % 7 = B.i % 7",
            "A.t LIKE '%' || B.t || '%'",
            "regexp_like(A.t, B.t)",
            "levenshtein(A.t, B.t) < 3",
        ]);
        let on = on.replace("A.", &format!("{a}.")).replace("B.", &format!("{b}."));
        let (one, other) = (self.relation(depth), self.relation(depth.min(1)));
        format!("SELECT {a}.i AS i, {a}.t AS t FROM ({one}) {a} {join} ({other}) {b} ON {on}")
    }

    fn crossed(&mut self, depth: u32) -> String {
        let count = self.random.usize(2..5);
        let aliases: Vec<_> = (0..count).map(|_| self.alias()).collect();
        let from: Vec<_> = aliases
            .iter()
            .map(|alias| {
                let depth = self.random.u32(..=depth.min(1));
                format!("({}) {alias}", self.relation(depth))
            })
            .collect();
        let (first, last) = (&aliases[0], &aliases[count - 1]);
        let from = from.join(", ");
        format!("SELECT {first}.i + {last}.i AS i, {first}.t || {last}.t AS t FROM {from}")
    }

    fn grouped(&mut self, depth: u32) -> String {
        let number = match self.of(&["count", "distinct", "median", "stddev", "sum"]) {
            "count" => "count(*)".to_owned(),
            "distinct" => format!("count(DISTINCT {})", self.text(1)),
            "median" => format!("CAST(median({}) AS bigint)", self.number(1)),
            "stddev" => format!("TRY_CAST(stddev({}) AS bigint)", self.number(1)),
            _ => format!("sum({})", self.number(1)),
        };
        let text = match self.of(&["max", "string_agg", "first_value", "array", "distinct"]) {
            "string_agg" => format!("string_agg({}, {} ORDER BY i)", self.text(1), "','"),
            "first_value" => format!("first_value({} ORDER BY t)", self.text(1)),
            "array" => format!("string_agg(DISTINCT {}, ',')", self.text(1)),
            "distinct" => "CAST(array_agg(DISTINCT t) AS varchar)".to_owned(),
            _ => format!("max({})", self.text(2)),
        };
        let (key, alias) = (self.of(&["none", "number", "text", "mod"]), self.alias());
        let group = match key {
            "none" => String::new(),
            "number" => format!(" GROUP BY {}", self.number(2)),
            "text" => format!(" GROUP BY {}", self.text(2)),
            _ => " GROUP BY i % 1000, t".to_owned(),
        };
        format!("SELECT {number} AS i, {text} AS t FROM ({}) {alias}{group}", self.relation(depth))
    }

    fn in_sets(&mut self, depth: u32) -> String {
        let keys: Vec<_> = (0..self.random.u32(2..13)).map(|n| format!("i % {}", n + 2)).collect();
        let sets = match self.of(&["CUBE", "ROLLUP", "GROUPING SETS"]) {
            "GROUPING SETS" => {
                let sets: Vec<_> =
                    (0..keys.len()).map(|n| format!("({})", keys[n..].join(", "))).collect();
                format!("GROUPING SETS ({})", sets.join(", "))
            }
            kind => format!("{kind}({})", keys.join(", ")),
        };
        let alias = self.alias();
        format!(
            "SELECT count(*) AS i, max(t) AS t FROM ({}) {alias} GROUP BY {sets}",
            self.relation(depth)
        )
    }

    fn windowed(&mut self, depth: u32) -> String {
        let function = self.of(&[
            "sum(i)",
            "count(*)",
            "row_number()",
            "dense_rank()",
            "lag(i, 3)",
            "max(length(t))",
            "nth_value(i, 7)",
        ]);
        let partition = self.of(&["", "PARTITION BY t ", "PARTITION BY i % 3, t "]);
        let order = self.of(&["i", "t", "t DESC, i", "i % 10"]);
        let frame = match function {
            "row_number()" | "dense_rank()" | "lag(i, 3)" => "",
            _ => self.of(&[
                "",
                " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
                " ROWS BETWEEN 100000 PRECEDING AND 100000 FOLLOWING",
                " ROWS BETWEEN 3 PRECEDING AND CURRENT ROW",
                " GROUPS BETWEEN 9 PRECEDING AND 9 FOLLOWING",
            ]),
        };
        let alias = self.alias();
        format!(
            "SELECT CAST({function} OVER ({partition}ORDER BY {order}{frame}) AS bigint) AS i, t FROM ({}) {alias}",
            self.relation(depth)
        )
    }

    fn combined(&mut self, depth: u32) -> String {
        let operator = self.of(&["UNION ALL", "UNION ALL", "UNION", "EXCEPT", "INTERSECT"]);
        let depth = depth.min(1);
        let mut parts = vec![self.relation(depth)];
        if self.one_in(2) {
            parts = vec![self.leaf(); self.random.usize(20..60)];
        } else {
            (0..self.random.u32(1..4)).for_each(|_| parts.push(self.relation(depth)));
        }
        let parts: Vec<_> = parts
            .iter()
            .map(|part| format!("SELECT i, t FROM ({part}) {}", self.alias()))
            .collect();
        parts.join(&format!(" {operator} "))
    }

    /// All rows in lists.
    fn collected(&mut self, depth: u32) -> String {
        let (a, b) = (self.alias(), self.alias());
        let list = self.of(&["i", "t", "DISTINCT t", "struct(i, t)", "t ORDER BY i"]);
        let group = self.of(&["", " GROUP BY i", " GROUP BY i % 100"]);
        format!(
            "SELECT count(*) AS i, max(t) AS t FROM (SELECT array_agg({list}) AS l, max(t) AS t \
             FROM ({}) {a}{group}) {b} GROUP BY l",
            self.relation(depth)
        )
    }

    fn recursive(&mut self, depth: u32) -> String {
        let name = self.alias();
        let (start, count) = (self.relation(depth.min(1)), self.of(&COUNTS));
        let alias = self.alias();
        let step = match self.random.u32(..4) {
            0 => format!("SELECT i + 1, t FROM {name} WHERE i < {count}"),
            1 => format!("SELECT i + 1, t || t FROM {name} WHERE i < {count}"),
            2 => format!(
                "SELECT x.i + 1, x.t FROM {name} x, generate_series(1, 10) y WHERE x.i < {count}"
            ),
            _ => format!(
                "SELECT x.i + 1, x.t FROM {name} x JOIN vcpu_time y ON x.t = y.state WHERE x.i < {count}"
            ),
        };
        format!(
            "WITH RECURSIVE {name} AS (SELECT i % 5 AS i, t FROM ({start}) {alias} UNION ALL {step}) \
             SELECT i, t FROM {name}"
        )
    }

    /// Each step has the rows of the one before, and joins them with themselves.
    fn doubled(&mut self, depth: u32) -> String {
        let names: Vec<_> = (0..self.random.usize(2..30)).map(|_| self.alias()).collect();
        let first = self.relation(depth.min(1));
        let (kind, on) = match self.random.u32(..3) {
            0 => (" JOIN ", " ON x.i = y.i"),
            1 => (" JOIN ", " ON x.t = y.t"),
            _ => (", ", ""),
        };
        let mut parts = vec![format!("{} AS ({first})", names[0])];
        parts.extend(names.windows(2).map(|pair| {
            let (before, name) = (&pair[0], &pair[1]);
            format!("{name} AS (SELECT x.i AS i, x.t AS t FROM {before} x{kind}{before} y{on})")
        }));
        format!("WITH {} SELECT i, t FROM {}", parts.join(", "), names[names.len() - 1])
    }

    /// Many levels.
    fn nested(&mut self, depth: u32) -> String {
        let (number, text) = (
            self.of(&["i", "i + i", "i * i", "length(t)"]),
            self.of(&["t", "t || t", "upper(t)", "replace(t, 'a', t)", "reverse(t)"]),
        );
        let levels = self.random.u32(2..20);
        let inner = self.relation(depth);
        (0..levels).fold(inner, |inner, _| {
            format!("SELECT {number} AS i, {text} AS t FROM ({inner}) {}", self.alias())
        })
    }

    fn correlated(&mut self, depth: u32) -> String {
        let (a, b) = (self.alias(), self.alias());
        let (one, other) = (self.relation(depth), self.relation(depth.min(1)));
        match self.random.u32(..4) {
            0 => format!(
                "SELECT i, t FROM ({one}) {a} WHERE EXISTS (SELECT 1 FROM ({other}) {b} WHERE {b}.i = {a}.i)"
            ),
            1 => format!(
                "SELECT i, t FROM ({one}) {a} WHERE i NOT IN (SELECT {b}.i FROM ({other}) {b})"
            ),
            2 => format!(
                "SELECT (SELECT max({b}.i) FROM ({other}) {b} WHERE {b}.t = {a}.t) AS i, t FROM ({one}) {a}"
            ),
            _ => {
                format!("SELECT i + (SELECT count(*) FROM ({other}) {b}) AS i, t FROM ({one}) {a}")
            }
        }
    }

    fn lateral(&mut self, depth: u32) -> String {
        let (a, b, c) = (self.alias(), self.alias(), self.alias());
        let (one, other) = (self.relation(depth.min(1)), self.relation(depth.min(1)));
        format!(
            "SELECT {a}.i AS i, {b}.t AS t FROM ({one}) {a}, LATERAL (SELECT max({c}.t) AS t FROM ({other}) {c} \
             WHERE {c}.i = {a}.i) {b}"
        )
    }

    fn unnested(&mut self, depth: u32) -> String {
        let (a, b) = (self.alias(), self.alias());
        let one = self.relation(depth);
        let list = self.of(&["array_agg(i)", "array_agg(i ORDER BY t)", "array_agg(DISTINCT i)"]);
        let group = self.of(&["t", "i", "i % 7, t"]);
        format!(
            "SELECT unnest(l) AS i, t FROM (SELECT {list} AS l, max(t) AS t FROM ({one}) {a} GROUP BY {group}) {b}"
        )
    }

    fn sorted(&mut self, depth: u32) -> String {
        let (order, alias) = (self.text(2), self.alias());
        let limit = self.of(&["", " LIMIT 10", " LIMIT 100000", " LIMIT 5 OFFSET 1000000"]);
        format!(
            "SELECT i, t FROM (SELECT i, t FROM ({}) {alias} ORDER BY {order}{limit}) s{alias}",
            self.relation(depth)
        )
    }
}
