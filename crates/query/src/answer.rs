//! An answer as a child gave it. Its rows stay text, which is sent on as it is.

use api::http::{Answer, AnswerColumn};
use api::query::Found;
use bytes::Bytes;
use serde_json::value::RawValue;

use crate::QueryError;

/// An answer. Its rows are JSON.
#[derive(Debug, Clone)]
pub struct AnswerText {
    columns: Vec<AnswerColumn>,
    n_rows: usize,
    rows: Bytes,
    pub(crate) partial: Vec<String>,
    windows: u64,
}

impl AnswerText {
    /// From what a child said.
    pub(crate) fn new(
        found: Found,
        rows: Bytes,
        windows: u64,
        lacks: Vec<String>,
    ) -> Result<Self, QueryError> {
        let is_json = serde_json::from_slice::<&RawValue>(&rows).is_ok();
        if !is_json {
            return Err(QueryError::Ended("sent no valid answer".to_owned()));
        }
        let partial = lacks.into_iter().chain(found.partial).collect();
        Ok(Self { columns: found.columns, n_rows: found.rows, rows, partial, windows })
    }

    /// How many rows it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.n_rows
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.n_rows == 0
    }

    /// As the HTTP API says it: an `Answer`.
    ///
    /// # Errors
    /// Never, of texts.
    pub fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        let columns = serde_json::to_vec(&self.columns)?;
        let partial = serde_json::to_vec(&self.partial)?;
        let windows = self.windows.to_string();
        let parts: [&[u8]; 9] = [
            br#"{"columns":"#,
            &columns,
            br#","rows":"#,
            &self.rows,
            br#","partial":"#,
            &partial,
            br#","windows":"#,
            windows.as_bytes(),
            b"}",
        ];
        Ok(parts.concat())
    }

    /// Its rows as values.
    ///
    /// # Errors
    /// When the rows are none.
    pub fn parse(self) -> Result<Answer, QueryError> {
        let rows = serde_json::from_slice(&self.rows);
        let rows = rows.map_err(|_| QueryError::Ended("sent no valid answer".to_owned()))?;
        let Self { columns, partial, windows, .. } = self;
        Ok(Answer { columns, rows, partial, windows })
    }
}
