//! A result table as the engine sees it: an exact list of objects.

use std::fmt::Debug;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::TableType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::CachedParquetFileReaderFactory;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use object_store::ObjectMeta;
use recording::schema::{Presence, TableSchema, ValueType};

use crate::catalog::{Catalog, Scope, Windows};

/// Knows which objects hold a table's rows.
#[async_trait]
pub(crate) trait Files: Debug + Send + Sync {
    async fn files(&self, table: &'static str) -> object_store::Result<Vec<ObjectMeta>>;
}

/// Those with the results of these windows.
#[derive(Debug)]
pub(crate) struct FilesOf {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) scope: Scope,
    pub(crate) windows: Arc<Windows>,
}

#[async_trait]
impl Files for FilesOf {
    async fn files(&self, table: &'static str) -> object_store::Result<Vec<ObjectMeta>> {
        self.catalog.files(table, &self.scope, &self.windows).await
    }
}

/// The name of the store for the engine.
pub(crate) const STORE: &str = "fleet://results";

/// A table, of the windows of a query.
#[derive(Debug)]
pub(crate) struct ResultTable {
    pub(crate) name: &'static str,
    pub(crate) schema: SchemaRef,
    pub(crate) files: Arc<dyn Files>,
    pub(crate) environment: Arc<RuntimeEnv>,
}

/// The tables' names and schemas.
pub(crate) fn schemas() -> impl Iterator<Item = (&'static str, SchemaRef)> {
    let named = |table: &'static TableSchema| {
        (table.file.trim_end_matches(".parquet"), Arc::new(schema(table)))
    };
    recording::results::SCHEMAS.iter().map(named)
}

fn schema(table: &TableSchema) -> Schema {
    let field = |column: &recording::schema::ColumnSchema| {
        let kind = match column.value {
            ValueType::Bool => DataType::Boolean,
            ValueType::U8 => DataType::UInt8,
            ValueType::U32 => DataType::UInt32,
            ValueType::U64 => DataType::UInt64,
            ValueType::I64 => DataType::Int64,
            ValueType::UnixMicros => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            ValueType::Text => DataType::Utf8View,
        };
        let kind = match column.presence {
            Presence::List => DataType::new_list(kind, false),
            Presence::Required | Presence::Optional => kind,
        };
        Field::new(column.name, kind, column.presence != Presence::Required)
    };
    Schema::new(table.columns.iter().map(field).collect::<Vec<_>>())
}

#[async_trait]
impl TableProvider for ResultTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let files = self.files.files(self.name).await;
        let files = files.map_err(|error| DataFusionError::ObjectStore(Box::new(error)))?;
        let files: Vec<_> = files.into_iter().map(PartitionedFile::new_from_meta).collect();
        let groups = FileGroup::new(files).split_files(state.config().target_partitions());
        // Most questions are about one VM of many: its rows are found first, the other columns read for those.
        let url = ObjectStoreUrl::parse(STORE)?;
        let store = self.environment.object_store(&url)?;
        let metadata = self.environment.cache_manager.get_file_metadata_cache();
        let source = ParquetSource::new(Arc::clone(&self.schema))
            .with_parquet_file_reader_factory(Arc::new(CachedParquetFileReaderFactory::new(
                store, metadata,
            )))
            .with_pushdown_filters(true)
            .with_reorder_filters(true);
        let scan = FileScanConfigBuilder::new(url, Arc::new(source))
            .with_file_groups(groups)
            .with_projection_indices(projection.cloned())?
            .with_limit(limit)
            .build();
        Ok(DataSourceExec::from_data_source(scan))
    }
}
