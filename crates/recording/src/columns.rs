//! Tables of typed columns, to and from Parquet.
//!
//! `table!` declares a table once. Its schema, its writer and its reader follow from that.

mod budget;
mod cell;
mod file;
mod pages;

pub(crate) use budget::{Budget, WHOLE_TABLES};
pub(crate) use cell::{Cell, Column, Micros, Scalar, Text, scalar};
pub(crate) use file::{SLICE, TableReader, TableWriter, read_table, write_table};

use crate::schema::TableSchema;

/// The columns of some rows.
pub(crate) trait Table: Default {
    /// What a row becomes.
    type Row;
    /// The table's file and columns.
    const SCHEMA: TableSchema;
    /// Appends the values of a row, whose number in the table is `number`.
    fn push(&mut self, number: u32, row: &Self::Row);
    /// Makes a row again. An error says what is wrong with it.
    fn row(&self, number: u32) -> Result<Self::Row, &'static str>;
    /// What rows are read in order of. Without it they keep the file's order.
    fn time(&self, _number: usize) -> u64 {
        0
    }
    /// The columns, in the order of the schema.
    fn columns(&mut self) -> Vec<&mut dyn Column>;
}

/// Declares a table:
///
/// ```text
/// Name of Row, layout FILE, by time_column;          `by` is optional
/// write |number, row| let pattern = value; { column: Type [encoding added] = value, ... }
/// then |columns| statement;                          optional: fills in what the values left out
/// read |number, columns| row                         values are references under their columns' names
/// ```
macro_rules! table {
    (
        $(#[$doc:meta])*
        $name:ident of $row:ty, $layout:ident $file:ident $(, by $time:ident)?;
        write |$number:ident, $value:ident| $(let $pattern:pat = $prelude:expr;)* {
            $($column:ident: $type:ty $([$($option:ident)*])? = $cell:expr,)*
        }
        $(then |$filled:ident| $fill:expr;)?
        read |$n:ident, $columns:ident| $build:expr
    ) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub(crate) struct $name {
            $($column: Vec<$type>,)*
        }

        impl $crate::columns::Table for $name {
            type Row = $row;
            const SCHEMA: $crate::schema::TableSchema = $crate::schema::TableSchema::$layout(
                $file,
                &[$($crate::schema::ColumnSchema::new::<$type>(stringify!($column))
                    $($(.$option())*)?,)*],
            );

            fn push(&mut self, $number: u32, $value: &$row) {
                let _ = $number;
                $(let $pattern = $prelude;)*
                $(self.$column.push($cell);)*
                $(
                    let $filled = self;
                    $fill;
                )?
            }

            #[allow(unused_variables, reason = "most tables need only some of the names")]
            fn row(&self, $n: u32) -> Result<$row, &'static str> {
                let $columns = self;
                $(let $column = &self.$column[$n as usize];)*
                $build
            }

            $(fn time(&self, row: usize) -> u64 {
                self.$time[row].0
            })?

            fn columns(&mut self) -> Vec<&mut dyn $crate::columns::Column> {
                vec![$(&mut self.$column,)*]
            }
        }
    };
}

pub(crate) use table;
