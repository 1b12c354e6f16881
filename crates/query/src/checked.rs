//! The store, with results as they were written: what is read of a sealed object is checked (`recording::seal`), and objects
//! that are damaged or missing are remembered, by name.
//!
//! ```text
//!  range of an object --> first time: its end --> seal --> the blocks around the range --> checksums --> the range
//!                                       no seal, of 0.2: as it is       damaged or not there: an error, and `Damage`
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use recording::seal::{Found, Seal};
use tokio::sync::Notify;

use crate::catalog::RESULTS;

/// What is read of an object's end at first.
const END_BYTES: u64 = 1 << 16;
/// Seals that are remembered.
const MAX_SEALS: usize = 1 << 16;
/// Objects that are remembered as damaged; of more, the others are found again.
const MAX_DAMAGED: usize = 10_000;
/// How long damage is remembered. By then the objects may have been made again.
const REMEMBERED: Duration = Duration::from_secs(300);

/// Objects that are missing, or damaged.
#[derive(Debug, Default)]
pub struct Damage {
    /// By `day=.../host=.../NAME`, which stands for all tables of a window or a pack.
    known: Mutex<BTreeMap<String, Known>>,
    news: Notify,
}

#[derive(Debug)]
struct Known {
    object: Path,
    found: Instant,
    /// It has been seen.
    is_old: bool,
}

impl Damage {
    /// Remembers an object of results.
    pub fn add(&self, object: &Path) {
        let Some(stem) = stem(object) else { return };
        let mut known = self.lock();
        known.retain(|_, known| known.found.elapsed() < REMEMBERED);
        if known.contains_key(stem) || MAX_DAMAGED <= known.len() {
            return;
        }
        let found = Known { object: object.clone(), found: Instant::now(), is_old: false };
        known.insert(stem.to_owned(), found);
        self.news.notify_one();
    }

    /// Forgets what is known of a window or a pack, `day=.../host=.../NAME`: it was made anew.
    pub fn forget(&self, stem: &str) {
        self.lock().remove(stem);
    }

    /// The objects that were found since the last call; waits until there are some.
    pub async fn next(&self) -> Vec<Path> {
        loop {
            let new = self.take_new();
            if !new.is_empty() {
                return new;
            }
            self.news.notified().await;
        }
    }

    fn take_new(&self) -> Vec<Path> {
        let mut known = self.lock();
        let new = known.values_mut().filter(|known| !known.is_old);
        let taken = new.map(|known| {
            known.is_old = true;
            known.object.clone()
        });
        taken.collect()
    }

    /// `day=.../host=.../NAME` of all.
    pub(crate) fn stems(&self) -> Vec<String> {
        let mut known = self.lock();
        known.retain(|_, known| known.found.elapsed() < REMEMBERED);
        known.keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `day=.../host=.../NAME` of an object of results.
fn stem(object: &Path) -> Option<&str> {
    let (_, stem) = object.as_ref().strip_prefix(RESULTS)?.strip_prefix('/')?.split_once('/')?;
    stem.strip_suffix(".parquet")
}

/// A store whose results are checked.
#[derive(Debug)]
pub(crate) struct Checked {
    objects: Arc<dyn ObjectStore>,
    /// `None`: an object without a seal.
    seals: Mutex<HashMap<Path, Option<Arc<Seal>>>>,
    pub(crate) damage: Arc<Damage>,
}

impl Checked {
    pub(crate) fn new(objects: Arc<dyn ObjectStore>) -> Self {
        Self { objects, seals: Mutex::default(), damage: Arc::default() }
    }

    /// Reads a range of an object of results.
    async fn read(&self, object: &Path, options: GetOptions) -> Result<GetResult> {
        loop {
            let known = self.lock().get(object).cloned();
            let is_known = known.is_some();
            let (seal, end) = match known {
                Some(seal) => (seal, None),
                None => self.find_seal(object).await?,
            };
            let Some(seal) = seal else { return self.objects.get_opts(object, options).await };
            let range = bounded(options.range.as_ref(), seal.size());
            if let Some(bytes) = self.read_sealed(object, &seal, &range, end).await? {
                return Ok(result(object, &seal, range, bytes));
            }
            self.lock().remove(object);
            // It may have been made anew, with another seal.
            if !is_known {
                return Err(self.damaged(object));
            }
        }
    }

    /// A range of a sealed object; `None`: it is not what was written.
    async fn read_sealed(
        &self,
        object: &Path,
        seal: &Seal,
        range: &Range<u64>,
        end: Option<Bytes>,
    ) -> Result<Option<Bytes>> {
        let around = seal.around(range);
        let end_at = |end: &Bytes| seal.size() - end.len() as u64;
        let bytes = match end.filter(|end| end_at(end) <= around.start) {
            Some(end) => {
                let skipped = around.start - end_at(&end);
                end.slice(at(skipped)..at(skipped + around.end - around.start))
            }
            None => {
                let got = self.get(object, GetRange::Bounded(around.clone())).await?;
                if got.meta.size != seal.size() {
                    return Ok(None);
                }
                got.bytes().await?
            }
        };
        let is_intact =
            bytes.len() as u64 == around.end - around.start && seal.is_intact(around.start, &bytes);
        let part = at(range.start - around.start)..at(range.end - around.start);
        Ok(is_intact.then(|| bytes.slice(part)))
    }

    /// An object's seal, and the bytes of its end.
    async fn find_seal(&self, object: &Path) -> Result<(Option<Arc<Seal>>, Option<Bytes>)> {
        let mut wanted = END_BYTES;
        loop {
            let got = self.get(object, GetRange::Suffix(wanted)).await?;
            let size = got.meta.size;
            let end = got.bytes().await?;
            match Seal::find(&end, size) {
                Found::Sealed(seal) => {
                    let seal = Some(Arc::new(seal));
                    self.remember(object, seal.clone());
                    return Ok((seal, Some(end)));
                }
                Found::Unsealed => {
                    self.remember(object, None);
                    return Ok((None, None));
                }
                Found::More(more) if wanted < more && (end.len() as u64) < size => wanted = more,
                Found::More(_) | Found::Damaged => return Err(self.damaged(object)),
            }
        }
    }

    fn remember(&self, object: &Path, seal: Option<Arc<Seal>>) {
        let mut seals = self.lock();
        if MAX_SEALS <= seals.len() {
            seals.clear();
        }
        seals.insert(object.clone(), seal);
    }

    async fn get(&self, object: &Path, range: GetRange) -> Result<GetResult> {
        let options = GetOptions { range: Some(range), ..GetOptions::default() };
        let got = self.objects.get_opts(object, options).await;
        if matches!(got, Err(Error::NotFound { .. })) {
            self.damage.add(object);
        }
        got
    }

    fn damaged(&self, object: &Path) -> Error {
        self.damage.add(object);
        let source = format!("{object} is not what was written: its checksum differs").into();
        Error::Generic { store: "results", source }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Path, Option<Arc<Seal>>>> {
        self.seals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn result(object: &Path, seal: &Seal, range: Range<u64>, bytes: Bytes) -> GetResult {
    let meta = ObjectMeta {
        location: object.clone(),
        last_modified: Default::default(),
        size: seal.size(),
        e_tag: None,
        version: None,
    };
    let payload = GetResultPayload::Stream(futures_util::stream::iter([Ok(bytes)]).boxed());
    GetResult { payload, meta, range, attributes: Default::default() }
}

/// What a range is of an object of this size.
fn bounded(range: Option<&GetRange>, size: u64) -> Range<u64> {
    match range {
        None => 0..size,
        Some(GetRange::Bounded(range)) => range.start.min(size)..range.end.min(size),
        Some(GetRange::Offset(start)) => (*start).min(size)..size,
        Some(GetRange::Suffix(length)) => size.saturating_sub(*length)..size,
    }
}

/// Of bytes that are in memory.
fn at(position: u64) -> usize {
    usize::try_from(position).unwrap_or(usize::MAX)
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with checksums", self.objects)
    }
}

#[async_trait]
impl ObjectStore for Checked {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.head || stem(location).is_none() {
            return self.objects.get_opts(location, options).await;
        }
        self.read(location, options).await
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.objects.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}
