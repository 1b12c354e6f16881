//! Two traces side by side.

/// Rows of figures of two traces, in groups.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Comparison {
    /// The groups: wall time, four-way profile, states, waits, kernel, critical path.
    pub groups: Vec<Group>,
}

/// Rows that belong together.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Group {
    /// Its heading.
    pub name: String,
    /// Its rows.
    pub rows: Vec<Row>,
}

/// A figure of both.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Row {
    /// What.
    pub name: String,
    /// In the first, in ns.
    pub a_ns: u64,
    /// In the second, in ns.
    pub b_ns: u64,
}

impl Row {
    /// The second less the first, in ns.
    #[must_use]
    pub fn difference_ns(&self) -> i128 {
        i128::from(self.b_ns) - i128::from(self.a_ns)
    }

    /// The second over the first; `None` when the first is 0.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        (0 < self.a_ns).then(|| self.b_ns as f64 / self.a_ns as f64)
    }
}
