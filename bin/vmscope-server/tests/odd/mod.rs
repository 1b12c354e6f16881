//! Odd queries, made from a seed: most of them are valid SQL, and take what they can get.
//!
//! Each relation is a SELECT with two columns, `i` (a whole number) and `t` (a text), and is made of smaller relations: so
//! joins, groups, windows, recursion and long texts nest in any way. Expressions have types.

mod expressions;
mod relations;

/// Bytes of a query that the server takes.
const MAX_TEXT: usize = 1 << 13;

/// Where queries come from: the same seed, the same queries.
pub(crate) struct Random {
    random: fastrand::Rng,
    /// Of the next alias.
    number: u32,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), number: 0 }
    }

    pub(crate) fn query(&mut self) -> String {
        self.number = 0;
        let mut sql = loop {
            let depth = self.random.u32(0..4);
            let sql = self.whole(depth);
            if sql.len() <= MAX_TEXT {
                break sql;
            }
        };
        if self.one_in(50) {
            let end = sql.floor_char_boundary(self.random.usize(..sql.len()));
            sql.truncate(end);
        }
        sql
    }

    fn whole(&mut self, depth: u32) -> String {
        let relation = self.relation(depth);
        match self.random.u32(..8) {
            0 => format!("SELECT count(*), sum(i), max(t) FROM ({relation}) w"),
            1 => {
                // Wide rows are sorted.
                let columns: Vec<_> =
                    (0..60).map(|n| format!("t || '{n}' AS c{n}, i + {n} AS d{n}")).collect();
                let columns = columns.join(", ");
                format!("SELECT {columns} FROM ({relation}) w ORDER BY c7 DESC, d9, c0")
            }
            2 => {
                let value = self.number(2);
                format!("SELECT i, t, {value} AS v FROM ({relation}) w ORDER BY v, t")
            }
            3 => format!("SELECT count(DISTINCT t), count(DISTINCT i) FROM ({relation}) w"),
            _ => relation,
        }
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.random.u32(..n) == 0
    }

    fn of<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.random.usize(..of.len())]
    }

    /// A name that no other relation of the query has.
    fn alias(&mut self) -> String {
        self.number += 1;
        format!("a{}", self.number)
    }
}
