//! Rows as JSON.

use api::http::{Answer, AnswerColumn};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{
    DataType, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Schema, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;
use arrow::util::display::array_value_to_string;
use serde_json::Value;

/// Bytes of an answer's rows at most.
const MAX_BYTES: usize = 128 << 20;

/// An answer that grows.
#[derive(Debug)]
pub(crate) struct Rows {
    limit: usize,
    bytes: usize,
    answer: Answer,
}

impl Rows {
    pub(crate) fn new(limit: usize) -> Self {
        let answer =
            Answer { columns: Vec::new(), rows: Vec::new(), partial: Vec::new(), windows: 0 };
        Self { limit, bytes: 0, answer }
    }

    pub(crate) fn begin(&mut self, schema: &Schema) {
        let column = |field: &arrow::datatypes::FieldRef| AnswerColumn {
            name: field.name().clone(),
            kind: field.data_type().to_string(),
        };
        self.answer.columns = schema.fields().iter().map(column).collect();
    }

    /// Adds rows; false: there is room for no more.
    pub(crate) fn add(&mut self, batch: &RecordBatch) -> Result<bool, ArrowError> {
        for row in 0..batch.num_rows() {
            if self.limit <= self.answer.rows.len() {
                self.lacks(format!("there are more than {} rows", self.limit));
                return Ok(false);
            }
            let values = batch.columns().iter().map(|column| value(column, row));
            let values = values.collect::<Result<Vec<_>, _>>()?;
            let texts = values.iter().filter_map(Value::as_str).map(str::len);
            let cells = size_of_val(values.as_slice());
            self.bytes = texts.fold(self.bytes.saturating_add(cells), usize::saturating_add);
            if MAX_BYTES < self.bytes {
                self.lacks(format!("the rows take more than {} MiB", MAX_BYTES >> 20));
                return Ok(false);
            }
            self.answer.rows.push(values);
        }
        Ok(true)
    }

    pub(crate) fn lacks(&mut self, reason: String) {
        self.answer.partial.push(reason);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.answer.rows.is_empty()
    }

    pub(crate) fn answer(self, windows: u64) -> Answer {
        Answer { windows, ..self.answer }
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
