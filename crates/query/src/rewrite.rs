//! Rewriting results: those of many windows as one file, in longer slices if they are to be.

use std::fs::File;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::cast;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use chrono::{Days, NaiveDate};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_writer::ArrowWriterOptions;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::errors::ParquetError;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::prelude::SessionContext;
use futures_util::StreamExt;

use crate::catalog::{Scope, Windows};
use crate::packs::Pack;
use crate::statement::invalid;
use crate::table::schemas;
use crate::{Engine, QueryError};

/// Length of the time slices of a window's own results.
pub const SLICE_S: u32 = 10;
/// Rows that are written at once.
const GROUP_ROWS: usize = 1 << 17;
/// Columns that are added up.
const SUMS: [&str; 12] = [
    "ns",
    "corrected_ns",
    "samples",
    "exits",
    "length_ns",
    "samples_lost",
    "samples_missed",
    "vcpu_ns",
    "steal_outside_ns",
    "steal_vmm_ns",
    "throttled_ns",
    "count",
];
/// Those that are absent in longer slices: most of their values are met once.
const DETAILS: [&str; 4] = ["pid", "tid", "stack", "kernel_frames"];

/// What is to be one file: results of a day and host.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    pub day: NaiveDate,
    pub host: &'a str,
    /// Windows, `BOOT-START`, with results of their own.
    pub windows: &'a [String],
    pub packs: &'a [Arc<Pack>],
    /// Length of the slices they are to have.
    pub slice_s: u32,
}

impl Engine {
    /// Writes a table's rows of these results into a file, and says how many they are.
    ///
    /// # Errors
    /// When results are missing or damaged, which it names, or can't be written.
    pub async fn rewrite(
        &self,
        table: &'static str,
        inputs: Inputs<'_>,
        file: File,
    ) -> Result<u64, QueryError> {
        let Inputs { day, host, windows, packs, slice_s } = inputs;
        let scope = Scope::of_day(day, host);
        let windows = Windows::chosen(day, host, windows, packs);
        if let Err(error) = self.catalog.files(table, &scope, &windows).await {
            return Err(match error {
                object_store::Error::NotFound { path, .. } => QueryError::Damaged(path),
                error => QueryError::Store(error.to_string()),
            });
        }
        let context = self.context(&scope, &Arc::new(windows))?;
        let schema = schemas().find(|(name, _)| *name == table).map(|(_, schema)| schema);
        let schema = schema.ok_or_else(|| QueryError::Invalid(format!("no table {table:?}")))?;
        let statements = if slice_s == SLICE_S {
            vec![format!("SELECT * FROM {table}")]
        } else {
            hours(day).map(|hour| rolled_up(table, &schema, slice_s, &hour)).collect()
        };
        let Some(threads) = &self.threads else { return Err(QueryError::Busy) };
        let work = async move {
            let mut writer = writer(file, &schema).map_err(|error| invalid(error.into()))?;
            for statement in statements {
                append(&context, &statement, &schema, &mut writer).await?;
            }
            let written = writer.close().map_err(|error| invalid(error.into()))?;
            Ok(u64::try_from(written.file_metadata().num_rows()).unwrap_or(0))
        };
        let done = threads.spawn(work).await;
        done.unwrap_or_else(|error| Err(QueryError::Invalid(format!("it failed: {error}"))))
    }
}

/// Conditions that together hold for every row once: a day's hours, of which the first and the last have what lies outside.
fn hours(day: NaiveDate) -> impl Iterator<Item = String> {
    (0..24).map(move |hour| {
        let from = format!("slice >= '{day}T{hour:02}:00:00Z'");
        let to = format!("slice < '{day}T{:02}:00:00Z'", hour + 1);
        match hour {
            0 => to,
            23 => from,
            _ => format!("{from} AND {to}"),
        }
    })
}

fn rolled_up(table: &str, schema: &SchemaRef, slice_s: u32, condition: &str) -> String {
    let (mut columns, mut keys) = (Vec::new(), Vec::new());
    for field in schema.fields() {
        let name = field.name();
        columns.push(match name.as_str() {
            "window_ns" => "min(window_ns) AS window_ns".to_owned(),
            "slice" => {
                keys.push("1".to_owned());
                format!("date_bin(INTERVAL '{slice_s} seconds', slice) AS slice")
            }
            sum if SUMS.contains(&sum) => format!("sum(\"{sum}\") AS \"{sum}\""),
            detail if DETAILS.contains(&detail) && field.is_nullable() => {
                format!("NULL AS \"{detail}\"")
            }
            key => {
                keys.push(format!("\"{key}\""));
                format!("\"{key}\"")
            }
        });
    }
    // `GROUP BY 1` is the slice, which has a name that columns of the table have, too.
    columns.sort_by_key(|column| !column.ends_with("AS slice"));
    let (columns, keys) = (columns.join(", "), keys.join(", "));
    format!("SELECT {columns} FROM {table} WHERE {condition} GROUP BY {keys} ORDER BY {keys}")
}

fn writer(file: File, schema: &SchemaRef) -> Result<ArrowWriter<File>, ParquetError> {
    let properties = WriterProperties::builder()
        .set_created_by(concat!("vmscope ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .build();
    // The same columns as in a window's own results.
    let options =
        ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
    ArrowWriter::try_new_with_options(file, Arc::clone(schema), options)
}

async fn append(
    context: &SessionContext,
    statement: &str,
    schema: &SchemaRef,
    writer: &mut ArrowWriter<File>,
) -> Result<(), QueryError> {
    let frame = context.sql(statement).await.map_err(invalid)?;
    let mut stream = frame.execute_stream().await.map_err(invalid)?;
    while let Some(batch) = stream.next().await {
        let batch = fitted(&batch.map_err(invalid)?, schema);
        let batch = batch.map_err(|error| invalid(error.into()))?;
        writer.write(&batch).map_err(|error| invalid(error.into()))?;
    }
    Ok(())
}

/// The columns of a schema, in its order and with its types.
fn fitted(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let column = |field: &Arc<arrow::datatypes::Field>| {
        let column = batch.column_by_name(field.name());
        let lacks = || ArrowError::SchemaError(format!("there is no column {}", field.name()));
        cast(column.ok_or_else(lacks)?, field.data_type())
    };
    let columns = schema.fields().iter().map(column).collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new(Arc::clone(schema), columns)
}

impl Scope {
    /// Of one day and host.
    fn of_day(day: NaiveDate, host: &str) -> Self {
        let midnight = |day: NaiveDate| day.and_time(chrono::NaiveTime::MIN).and_utc();
        // A scope begins with the windows of the day before.
        let next = day.checked_add_days(Days::new(1)).unwrap_or(day);
        Self { from: Some(midnight(next)), to: Some(midnight(day)), host: Some(host.to_owned()) }
    }
}
