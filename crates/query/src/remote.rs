//! The store as a child that answers queries sees it: its parent reads ranges of the query's objects for it.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use api::query::{FromChild, Object};
use async_trait::async_trait;
use bytes::Bytes;
use chrono::DateTime;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use sandbox::Channel;
use tokio::sync::oneshot;

use crate::table::Files;

/// Bytes that are read at once.
pub(crate) const PIECE: u64 = 4 << 20;

/// The parent, which reads.
#[derive(Debug, Default)]
pub(crate) struct Link {
    parent: OnceLock<Channel>,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Reply>>>,
}

/// An answer of the parent.
#[derive(Debug)]
pub(crate) enum Reply {
    Files(Result<Vec<Object>, String>),
    Bytes(Result<Bytes, String>),
}

impl Link {
    /// From now on there is a parent.
    pub(crate) fn connect(&self, parent: Channel) -> Option<&Channel> {
        self.parent.set(parent).ok()?;
        self.parent.get()
    }

    /// Says something, with bytes behind it; false: there is no parent any more.
    pub(crate) fn say(&self, message: &FromChild, bytes: &[u8]) -> bool {
        let Ok(mut content) = postcard::to_stdvec(message) else { return false };
        content.extend_from_slice(bytes);
        self.parent.get().is_some_and(|parent| parent.send(&content))
    }

    pub(crate) fn take(&self, id: u64, reply: Reply) {
        if let Some(waits) = self.waiting().remove(&id) {
            // The query may have ended.
            drop(waits.send(reply));
        }
    }

    async fn ask(&self, question: impl FnOnce(u64) -> FromChild) -> Result<Reply> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, reply) = oneshot::channel();
        self.waiting().insert(id, sender);
        if !self.say(&question(id), &[]) {
            return Err(failed("the server is gone"));
        }
        reply.await.map_err(|_| failed("the server does not answer"))
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Reply>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(&self, object: &Path, range: Range<u64>) -> Result<Bytes> {
        let Range { start, end } = range;
        let question = |id| FromChild::Read { id, object: object.to_string(), start, end };
        match self.ask(question).await? {
            Reply::Bytes(Ok(bytes)) if bytes.len() as u64 == end - start => Ok(bytes),
            Reply::Bytes(Ok(_)) => Err(failed(&format!("{object} ends too early"))),
            Reply::Bytes(Err(reason)) => Err(failed(&reason)),
            Reply::Files(_) => Err(failed("the server answers something else")),
        }
    }
}

#[async_trait]
impl Files for Link {
    async fn files(&self, table: &'static str) -> Result<Vec<ObjectMeta>> {
        let question = |id| FromChild::Files { id, table: table.to_owned() };
        let Reply::Files(found) = self.ask(question).await? else {
            return Err(failed("the server answers something else"));
        };
        let object = |object: Object| ObjectMeta {
            location: Path::from(object.name),
            last_modified: DateTime::from_timestamp_micros(object.made_us).unwrap_or_default(),
            size: object.bytes,
            e_tag: None,
            version: None,
        };
        found.map(|found| found.into_iter().map(object).collect()).map_err(|reason| failed(&reason))
    }
}

fn failed(reason: &str) -> Error {
    Error::Generic { store: "fleet", source: reason.into() }
}

fn only_reads(operation: &str) -> Error {
    Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: "a store that is only read".to_owned(),
    }
}

/// A store, of which ranges of known objects can be read.
#[derive(Debug)]
pub(crate) struct RemoteStore(pub(crate) Arc<Link>);

impl fmt::Display for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the fleet's store")
    }
}

#[async_trait]
impl ObjectStore for RemoteStore {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let Some(GetRange::Bounded(range)) = options.range else {
            return Err(only_reads("reading without a range"));
        };
        let mut pieces = Vec::new();
        for start in (range.start..range.end).step_by(usize::try_from(PIECE).unwrap_or(1)) {
            pieces.push(self.0.read(location, start..range.end.min(start + PIECE)).await?);
        }
        let meta = ObjectMeta {
            location: location.clone(),
            last_modified: DateTime::UNIX_EPOCH,
            size: range.end,
            e_tag: None,
            version: None,
        };
        let pieces = futures_util::stream::iter(pieces.into_iter().map(Ok)).boxed();
        let payload = GetResultPayload::Stream(pieces);
        Ok(GetResult { payload, meta, range, attributes: Default::default() })
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(only_reads("writing"))
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(only_reads("writing"))
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        futures_util::stream::iter([Err(only_reads("removing"))]).boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        futures_util::stream::iter([Err(only_reads("listing"))]).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(only_reads("listing"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(only_reads("copying"))
    }
}
