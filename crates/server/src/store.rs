//! The object store: a folder of this machine or an S3-compatible service. It is the truth; everything else here can be
//! made again from it.
//!
//! Reading goes through `object_store` for both. A folder is written here: an object appears under its name with all of its
//! bytes on the disk, or not at all, and only once (`link` fails when the name is taken).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, lchown};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use chrono::{Days, NaiveDate};
use futures_util::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    ClientOptions, Error, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, Result,
    RetryConfig,
};
use tokio::sync::Semaphore;
use url::Url;

use crate::object_names::day_of_prefix;

/// For one request to a service.
const REQUEST_TIME: Duration = Duration::from_secs(30);
/// For a request and its repetitions.
const RETRY_TIME: Duration = Duration::from_secs(60);
/// Windows in memory on their way to a service.
const MAX_SENDING: usize = 4;
/// Where a folder's objects lie before they have their names.
const STAGING: &str = ".staging";

/// Whether an object was made now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Created {
    Now,
    /// There was one of this name. It is durable, too.
    Before,
}

/// What was removed: how many objects, and what failed last.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    pub(crate) objects: u64,
    pub(crate) failed: Option<Error>,
}

impl Removed {
    fn add(&mut self, other: Result<u64>) {
        match other {
            Ok(objects) => self.objects += objects,
            Err(error) => self.failed = Some(error),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Store {
    objects: Arc<dyn ObjectStore>,
    root: Option<Arc<Folder>>,
    /// Windows that are sent to a service at the same time: each is in memory meanwhile.
    sending: Arc<Semaphore>,
    /// Changes until it fails, as if its server had been killed.
    #[cfg(test)]
    pub(crate) changes_left: Arc<AtomicU64>,
}

impl Store {
    /// Opens a folder, which it makes if it is not there, or a service by `s3://BUCKET/PREFIX`, whose keys and
    /// address come from `AWS_*` in the environment.
    pub(crate) fn open(place: &str) -> anyhow::Result<Self> {
        if place.starts_with("s3://") {
            return Self::open_service(&Url::parse(place)?);
        }
        anyhow::ensure!(!place.contains("://"), "{place}: give a folder or s3://BUCKET/PREFIX");
        let folder = Folder::open(FilePath::new(place))?;
        let objects = Arc::new(LocalFileSystem::new_with_prefix(&folder.root)?);
        Ok(Self::with(objects, Some(Arc::new(folder))))
    }

    fn open_service(url: &Url) -> anyhow::Result<Self> {
        let retry = RetryConfig { retry_timeout: RETRY_TIME, ..RetryConfig::default() };
        let insecure = std::env::var("AWS_ALLOW_HTTP").is_ok_and(|value| value == "true");
        let client = ClientOptions::new().with_timeout(REQUEST_TIME).with_allow_http(insecure);
        let bucket = AmazonS3Builder::from_env()
            .with_url(url.as_str())
            .with_retry(retry)
            .with_client_options(client)
            .build()?;
        let prefix = Path::parse(url.path())?;
        let objects: Arc<dyn ObjectStore> = match prefix.as_ref() {
            "" => Arc::new(bucket),
            _ => Arc::new(PrefixStore::new(bucket, prefix)),
        };
        Ok(Self::with(objects, None))
    }

    fn with(objects: Arc<dyn ObjectStore>, root: Option<Arc<Folder>>) -> Self {
        Self {
            objects,
            root,
            sending: Arc::new(Semaphore::new(MAX_SENDING)),
            #[cfg(test)]
            changes_left: Arc::new(AtomicU64::new(u64::MAX)),
        }
    }

    #[cfg(test)]
    pub(crate) fn of_service(objects: Arc<dyn ObjectStore>) -> Self {
        Self::with(objects, None)
    }

    #[cfg(test)]
    fn count_change(&self) -> Result<()> {
        let one_less = |left: u64| left.checked_sub(1);
        let left = self.changes_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        left.map(drop).map_err(|_| Error::NotImplemented {
            operation: "living".to_owned(),
            implementer: "test".to_owned(),
        })
    }

    /// For who reads only.
    pub(crate) fn objects(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.objects)
    }

    /// Makes an object of these bytes, unless there is one of this name; durable when this returns.
    pub(crate) async fn create(&self, path: &Path, bytes: Bytes) -> Result<Created> {
        #[cfg(test)]
        self.count_change()?;
        let Some(root) = self.root.clone() else { return self.create_remote(path, bytes).await };
        self.blocking(path, move |path| {
            let staged = Staged::write(&root.root, &bytes)?;
            root.link(&staged.0, path)
        })
        .await
    }

    /// The same with unique bytes: where a service's answer was lost, a second write finds what it
    /// wrote.
    pub(crate) async fn create_own(&self, path: &Path, bytes: Bytes) -> Result<Created> {
        match self.create(path, bytes.clone()).await? {
            Created::Before if self.get(path).await? == Some(bytes) => Ok(Created::Now),
            created => Ok(created),
        }
    }

    /// The same with a file's content.
    pub(crate) async fn create_from(&self, path: &Path, file: &FilePath) -> Result<Created> {
        #[cfg(test)]
        self.count_change()?;
        let file = file.to_owned();
        let Some(root) = self.root.clone() else {
            // It is never closed.
            let _turn = self.sending.acquire().await;
            let bytes = self.blocking(path, move |_| fs::read(file)).await?;
            return self.create_remote(path, bytes.into()).await;
        };
        self.blocking(path, move |path| {
            File::open(&file)?.sync_all()?;
            match root.link(&file, path) {
                Err(error) if error.kind() == ErrorKind::CrossesDevices => {
                    let staged = Staged::copy(&root.root, &file)?;
                    root.link(&staged.0, path)
                }
                result => result,
            }
        })
        .await
    }

    async fn create_remote(&self, path: &Path, bytes: Bytes) -> Result<Created> {
        let options = PutOptions::from(PutMode::Create);
        match self.objects.put_opts(path, bytes.into(), options).await {
            Ok(_) => Ok(Created::Now),
            // Services say the same of conflicts with a writer that may fail.
            Err(error @ Error::AlreadyExists { .. }) => match self.size(path).await? {
                Some(_) => Ok(Created::Before),
                None => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let path = path.clone();
        let done = tokio::task::spawn_blocking(move || work(&path)).await;
        done.unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(|source| Error::Generic { store: "folder", source: Box::new(source) })
    }

    /// An object's bytes; `None`: there is none.
    pub(crate) async fn get(&self, path: &Path) -> Result<Option<Bytes>> {
        match self.objects.get(path).await {
            Ok(found) => found.bytes().await.map(Some),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// An object's size; `None`: there is none.
    pub(crate) async fn size(&self, path: &Path) -> Result<Option<u64>> {
        match self.objects.head(path).await {
            Ok(found) => Ok(Some(found.size)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All objects under a prefix, ordered by name.
    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        let prefix = Path::from(prefix);
        let mut found: Vec<_> = self.objects.list(Some(&prefix)).try_collect().await?;
        found.sort_by(|a, b| a.location.cmp(&b.location));
        Ok(found)
    }

    /// Objects under a prefix without runs of names: of a name in such a run, `last_of_run` says the last one. A service is not
    /// queried for what is left out, but at its begin.
    pub(crate) async fn list_without(
        &self,
        prefix: &str,
        last_of_run: impl Fn(&Path) -> Option<Path>,
    ) -> Result<Vec<ObjectMeta>> {
        let prefix = Path::from(prefix);
        let (mut found, mut after) = (Vec::new(), prefix.clone());
        loop {
            let mut listed = self.objects.list_with_offset(Some(&prefix), &after);
            after = loop {
                let Some(object) = listed.try_next().await? else { return Ok(found) };
                match last_of_run(&object.location).filter(|last| object.location <= *last) {
                    // A folder is listed as a whole, in no order.
                    Some(last) if self.root.is_none() => break last,
                    Some(_) => {}
                    None => found.push(object),
                }
            };
        }
    }

    /// What lies directly under a prefix: names of further prefixes, ordered.
    pub(crate) async fn prefixes(&self, prefix: &str) -> Result<Vec<Path>> {
        let found = self.objects.list_with_delimiter(Some(&Path::from(prefix))).await?;
        let mut prefixes = found.common_prefixes;
        prefixes.sort();
        Ok(prefixes)
    }

    /// Removes an object; false: there was none.
    pub(crate) async fn delete(&self, path: &Path) -> Result<bool> {
        #[cfg(test)]
        self.count_change()?;
        match self.objects.delete(path).await {
            Ok(()) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the objects under a prefix but those to keep. One that can't be removed keeps no other.
    pub(crate) async fn remove(
        &self,
        prefix: &Path,
        is_kept: impl Fn(&Path) -> bool,
    ) -> Result<Removed> {
        let mut removed = Removed::default();
        for object in self.list(prefix.as_ref()).await? {
            if !is_kept(&object.location) {
                removed.add(self.delete(&object.location).await.map(u64::from));
            }
        }
        if let Some(root) = self.root.clone() {
            self.blocking(prefix, move |prefix| {
                remove_empty(&root.root.join(prefix.as_ref()));
                Ok(())
            })
            .await?;
        }
        Ok(removed)
    }

    /// Prefixes directly under `parent` of days before the last so many.
    pub(crate) async fn old_days(
        &self,
        parent: &str,
        today: NaiveDate,
        days: u64,
    ) -> Result<Vec<(NaiveDate, Path)>> {
        let Some(first) = today.checked_sub_days(Days::new(days)) else { return Ok(Vec::new()) };
        let prefixes = self.prefixes(parent).await?.into_iter();
        let dated = prefixes.filter_map(|prefix| Some((day_of_prefix(&prefix)?, prefix)));
        Ok(dated.filter(|(day, _)| *day < first).collect())
    }

    /// Removes what servers that were killed left of unfinished objects.
    pub(crate) fn clean(&self) {
        const OLD: Duration = Duration::from_secs(3600);
        let Some(root) = &self.root else { return };
        for entry in fs::read_dir(root.root.join(STAGING)).into_iter().flatten().flatten() {
            let age = entry.metadata().and_then(|data| data.modified()).map(|time| time.elapsed());
            if matches!(age, Ok(Ok(age)) if OLD < age) {
                // Another server may have done it.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// A durable file that has no name in the store yet.
struct Staged(PathBuf);

impl Staged {
    fn write(root: &FilePath, bytes: &[u8]) -> io::Result<Self> {
        let (staged, mut file) = Self::create(root)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(staged)
    }

    fn copy(root: &FilePath, from: &FilePath) -> io::Result<Self> {
        let (staged, mut file) = Self::create(root)?;
        io::copy(&mut File::open(from)?, &mut file)?;
        file.sync_all()?;
        Ok(staged)
    }

    fn create(root: &FilePath) -> io::Result<(Self, File)> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = root.join(STAGING).join(format!("{}-{number}", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                // Another machine's, or that of a server that was killed.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                opened => return Ok((Self(path), opened?)),
            }
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // What stays is removed by `Store::clean`.
        let _ = fs::remove_file(&self.0);
    }
}

/// A store that is a folder.
#[derive(Debug)]
struct Folder {
    root: PathBuf,
    /// Whose it is, if root writes there by hand: the server, which is not root, must be able to read that.
    owner: Option<(u32, u32)>,
}

impl Folder {
    fn open(path: &FilePath) -> io::Result<Self> {
        make_folders(path)?;
        let root = path.canonicalize()?;
        let owner = fs::metadata(&root)?;
        let is_others = rustix::process::geteuid().is_root() && owner.uid() != 0;
        let folder = Self { root, owner: is_others.then(|| (owner.uid(), owner.gid())) };
        let staging = folder.root.join(STAGING);
        make_folders(&staging)?;
        folder.give_away(&staging)?;
        Ok(folder)
    }

    /// Gives a durable file its name, durably.
    fn link(&self, file: &FilePath, name: &Path) -> io::Result<Created> {
        let target = self.root.join(name.as_ref());
        let parent = target.parent().unwrap_or(&self.root);
        let mut tries = 0;
        let created = loop {
            make_folders(parent)?;
            match fs::hard_link(file, &target) {
                Ok(()) => break Created::Now,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => break Created::Before,
                // The folder was empty, and old ones that are empty are removed.
                Err(error) if error.kind() == ErrorKind::NotFound && tries < 3 => tries += 1,
                Err(error) => return Err(error),
            }
        };
        for folder in parent.ancestors().take_while(|folder| folder.starts_with(&self.root)) {
            File::open(folder)?.sync_all()?;
            self.give_away(folder)?;
        }
        self.give_away(&target)?;
        Ok(created)
    }

    fn give_away(&self, path: &FilePath) -> io::Result<()> {
        self.owner.map_or(Ok(()), |(user, group)| lchown(path, Some(user), Some(group)))
    }
}

fn make_folders(path: &FilePath) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Removes a folder and those in it, unless something was put there.
fn remove_empty(folder: &FilePath) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod test {
    use std::io::Read;

    use super::*;

    #[tokio::test]
    async fn an_object_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("s").to_str().unwrap()).unwrap();
        let path = Path::from("raw/v1/a=b/c");
        assert_eq!(store.create(&path, "1".into()).await.unwrap(), Created::Now);
        assert_eq!(store.create(&path, "2".into()).await.unwrap(), Created::Before);
        let file = dir.path().join("file");
        fs::write(&file, "3").unwrap();
        assert_eq!(store.create_from(&path, &file).await.unwrap(), Created::Before);
        assert_eq!(store.get(&path).await.unwrap().unwrap(), "1");
        let other = Path::from("raw/v1/a=b/d");
        assert_eq!(store.create_from(&other, &file).await.unwrap(), Created::Now);
        let names: Vec<_> =
            store.list("raw").await.unwrap().into_iter().map(|o| o.location).collect();
        assert_eq!(names, [path, other]);
        assert!(fs::read_dir(dir.path().join("s").join(STAGING)).unwrap().next().is_none());
        let removed = store.remove(&Path::from("raw/v1/a=b"), |_| false).await.unwrap();
        assert!(removed.objects == 2 && removed.failed.is_none());
        assert!(!dir.path().join("s/raw/v1/a=b").exists());
    }

    #[tokio::test]
    async fn what_root_makes_is_the_folders_owners() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        lchown(dir.path(), Some(7443), Some(7443)).unwrap();
        let store = Store::open(dir.path().to_str().unwrap()).unwrap();
        store.create(&Path::from("auth/tokens/a"), "1".into()).await.unwrap();
        for path in [".staging", "auth", "auth/tokens", "auth/tokens/a"] {
            assert_eq!(fs::metadata(dir.path().join(path)).unwrap().uid(), 7443, "{path}");
        }
    }

    /// A service that answers each request of a method with a status.
    fn service(answers: &'static [(&'static str, &'static str)]) -> Store {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for mut client in listener.incoming().map_while(io::Result::ok) {
                let mut request = [0; 4096];
                let read = client.read(&mut request).unwrap_or(0);
                let method = String::from_utf8_lossy(&request[..read]);
                let answer = answers.iter().find(|(known, _)| method.starts_with(known));
                let status = answer.map_or("501 Not Implemented", |(_, status)| status);
                let head =
                    format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n");
                let etag = "ETag: \"1\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n";
                let _ = client.write_all([head.as_str(), etag].concat().as_bytes());
            }
        });
        let bucket = AmazonS3Builder::new()
            .with_endpoint(format!("http://{address}"))
            .with_allow_http(true)
            .with_bucket_name("b")
            .with_access_key_id("a")
            .with_secret_access_key("s")
            .build();
        Store::with(Arc::new(bucket.unwrap()), None)
    }

    #[tokio::test]
    async fn a_conflict_is_no_object() {
        let path = Path::from("raw/x");
        let conflict = service(&[("PUT", "409 Conflict"), ("HEAD", "404 Not Found")]);
        assert!(conflict.create(&path, "1".into()).await.is_err());
        let known = service(&[("PUT", "409 Conflict"), ("HEAD", "200 OK")]);
        assert_eq!(known.create(&path, "1".into()).await.unwrap(), Created::Before);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn of_many_that_make_it_at_once_one_does() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().to_str().unwrap().to_owned();
        let tasks = (0..32).map(|number| {
            let store = Store::open(&place).unwrap();
            tokio::spawn(async move {
                let bytes = Bytes::from(vec![number; 100_000]);
                store.create(&Path::from("raw/x"), bytes).await.unwrap()
            })
        });
        let mut now = 0;
        for task in tasks.collect::<Vec<_>>() {
            now += u32::from(task.await.unwrap() == Created::Now);
        }
        assert_eq!(now, 1);
        let store = Store::open(&place).unwrap();
        let bytes = store.get(&Path::from("raw/x")).await.unwrap().unwrap();
        assert!(bytes.len() == 100_000 && bytes.iter().all(|byte| *byte == bytes[0]));
    }

    #[test]
    fn other_places_are_refused() {
        let error = Store::open("ftp://host/folder").unwrap_err().to_string();
        assert!(error.contains("s3://BUCKET/PREFIX"), "{error}");
    }
}
