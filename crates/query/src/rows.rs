//! Rows as JSON.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::http::AnswerColumn;
use api::query::Found;
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{
    DataType, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Schema, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;
use arrow::util::display::array_value_to_string;
use serde_json::Value;

/// Bytes of an answer's rows at most.
pub(crate) const MAX_BYTES: usize = 32 << 20;

/// An answer's rows, until they are taken.
#[derive(Debug)]
pub(crate) struct Taken(Mutex<Option<Rows>>);

impl Taken {
    pub(crate) fn new(rows: Rows) -> Self {
        Self(Mutex::new(Some(rows)))
    }

    /// The rows so far, for the answer. They can be taken once.
    pub(crate) fn take(&self) -> Option<Rows> {
        self.lock().take()
    }

    pub(crate) fn begin(&self, schema: &Schema) {
        self.lock().iter_mut().for_each(|rows| rows.begin(schema));
    }

    /// Adds rows; false: no more are wanted.
    pub(crate) fn add(&self, batch: &RecordBatch) -> Result<bool, ArrowError> {
        self.lock().as_mut().map_or(Ok(false), |rows| rows.add(batch))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Rows>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rows of an answer, bounded in bytes.
#[derive(Debug)]
pub(crate) struct Rows {
    limit: usize,
    /// JSON, without the bracket at the end.
    text: Vec<u8>,
    found: Found,
}

impl Rows {
    pub(crate) fn new(limit: usize) -> Self {
        let found = Found { columns: Vec::new(), rows: 0, partial: Vec::new() };
        Self { limit, text: b"[".to_vec(), found }
    }

    fn begin(&mut self, schema: &Schema) {
        let column = |field: &arrow::datatypes::FieldRef| AnswerColumn {
            name: field.name().clone(),
            kind: field.data_type().to_string(),
        };
        self.found.columns = schema.fields().iter().map(column).collect();
    }

    /// Adds rows; false: there is room for no more.
    fn add(&mut self, batch: &RecordBatch) -> Result<bool, ArrowError> {
        for row in 0..batch.num_rows() {
            if self.limit <= self.found.rows {
                self.lacks(format!("there are more than {} rows", self.limit));
                return Ok(false);
            }
            let before = self.text.len();
            self.text.extend_from_slice(if self.is_empty() { b"[" } else { b",[" });
            for (at, column) in batch.columns().iter().enumerate() {
                let comma: &[u8] = if at == 0 { b"" } else { b"," };
                self.text.write_all(comma)?;
                let value = value(column, row)?;
                serde_json::to_writer(&mut self.text, &value).map_err(std::io::Error::from)?;
                if MAX_BYTES < self.text.len() {
                    self.text.truncate(before);
                    self.lacks(format!("the rows take more than {} MiB", MAX_BYTES >> 20));
                    return Ok(false);
                }
            }
            self.text.push(b']');
            self.found.rows += 1;
        }
        Ok(true)
    }

    pub(crate) fn lacks(&mut self, reason: String) {
        self.found.partial.push(reason);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.rows == 0
    }

    /// All but the rows, and these as JSON.
    pub(crate) fn finish(mut self) -> (Found, Vec<u8>) {
        self.text.push(b']');
        (self.found, self.text)
    }
}

fn value(column: &dyn Array, row: usize) -> Result<Value, ArrowError> {
    if column.is_null(row) {
        return Ok(Value::Null);
    }
    Ok(match column.data_type() {
        DataType::Boolean => column.as_boolean().value(row).into(),
        DataType::Int8 => column.as_primitive::<Int8Type>().value(row).into(),
        DataType::Int16 => column.as_primitive::<Int16Type>().value(row).into(),
        DataType::Int32 => column.as_primitive::<Int32Type>().value(row).into(),
        DataType::Int64 => column.as_primitive::<Int64Type>().value(row).into(),
        DataType::UInt8 => column.as_primitive::<UInt8Type>().value(row).into(),
        DataType::UInt16 => column.as_primitive::<UInt16Type>().value(row).into(),
        DataType::UInt32 => column.as_primitive::<UInt32Type>().value(row).into(),
        DataType::UInt64 => column.as_primitive::<UInt64Type>().value(row).into(),
        DataType::Float32 => column.as_primitive::<Float32Type>().value(row).into(),
        DataType::Float64 => column.as_primitive::<Float64Type>().value(row).into(),
        // Sums of unsigned and signed numbers.
        DataType::Decimal128(_, 0) => {
            let number = column.as_primitive::<Decimal128Type>().value(row);
            match (u64::try_from(number), i64::try_from(number)) {
                (Ok(number), _) => number.into(),
                (_, Ok(number)) => number.into(),
                _ => number.to_string().into(),
            }
        }
        _ => array_value_to_string(column, row)?.into(),
    })
}
