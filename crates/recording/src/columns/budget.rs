//! How much memory tables may take while they are read, whatever wrote them: a small file can blow up to any size.

use parquet::errors::ParquetError;

/// Bytes of the tables of a folder that are read as a whole: their rows, and the columns that these are made from. The
/// writer leaves out names before it exceeds this.
pub(crate) const WHOLE_TABLES: usize = 900 << 20;
/// The same of one row group of a long table.
const ROW_GROUP: usize = 384 << 20;

/// What is left; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    all: usize,
    left: model::Budget,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { all: bytes, left: model::Budget::new(bytes) }
    }

    pub(crate) fn of_row_group() -> Self {
        Self::new(ROW_GROUP)
    }

    /// Takes room for `count` things of `size` bytes.
    ///
    /// # Errors
    /// When there is not so much left.
    pub(crate) fn take(&self, count: usize, size: usize) -> Result<(), ParquetError> {
        if self.left.take(count.saturating_mul(size)) {
            return Ok(());
        }
        Err(ParquetError::General(format!("it takes more than {} MiB of memory", self.all >> 20)))
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.left.left()
    }
}
