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

use crate::names::day_of_prefix;

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

/// An object store.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    objects: Arc<dyn ObjectStore>,
    /// Of a folder.
    root: Option<Arc<PathBuf>>,
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
        let path = FilePath::new(place);
        make_folders(path)?;
        make_folders(&path.join(STAGING))?;
        let root = path.canonicalize()?;
        let objects = Arc::new(LocalFileSystem::new_with_prefix(&root)?);
        Ok(Self::with(objects, Some(Arc::new(root))))
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

    fn with(objects: Arc<dyn ObjectStore>, root: Option<Arc<PathBuf>>) -> Self {
        Self {
            objects,
            root,
            sending: Arc::new(Semaphore::new(MAX_SENDING)),
            #[cfg(test)]
            changes_left: Arc::new(AtomicU64::new(u64::MAX)),
        }
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
            let staged = Staged::write(&root, &bytes)?;
            link(&staged.0, &root, path)
        })
        .await
    }

    /// The same with a file's content.
    pub(crate) async fn create_from(&self, path: &Path, file: &FilePath) -> Result<Created> {
        #[cfg(test)]
        self.count_change()?;
        let file = file.to_owned();
        let Some(root) = self.root.clone() else {
            // Nobody closes it.
            let _turn = self.sending.acquire().await;
            let bytes = self.blocking(path, move |_| fs::read(file)).await?;
            return self.create_remote(path, bytes.into()).await;
        };
        self.blocking(path, move |path| {
            File::open(&file)?.sync_all()?;
            match link(&file, &root, path) {
                Err(error) if error.kind() == ErrorKind::CrossesDevices => {
                    let staged = Staged::copy(&root, &file)?;
                    link(&staged.0, &root, path)
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
            Err(Error::AlreadyExists { .. }) => Ok(Created::Before),
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

    /// Removes all objects under a prefix: how many.
    pub(crate) async fn delete_all(&self, prefix: &Path) -> Result<u64> {
        let mut removed = 0;
        for object in self.list(prefix.as_ref()).await? {
            removed += u64::from(self.delete(&object.location).await?);
        }
        if let Some(root) = self.root.clone() {
            self.blocking(prefix, move |prefix| {
                remove_empty(&root.join(prefix.as_ref()));
                Ok(())
            })
            .await?;
        }
        Ok(removed)
    }

    /// Removes what lies under `parent` and is of days before the last so many: how many objects.
    pub(crate) async fn remove_old(
        &self,
        parent: &str,
        today: NaiveDate,
        days: u64,
    ) -> Result<u64> {
        let mut removed = 0;
        let Some(first) = today.checked_sub_days(Days::new(days)) else { return Ok(0) };
        for prefix in self.prefixes(parent).await? {
            if day_of_prefix(&prefix).is_some_and(|day| day < first) {
                removed += self.delete_all(&prefix).await?;
            }
        }
        Ok(removed)
    }

    /// Gives what root made under a prefix of a folder to the folder's owner, so that a server that is not root can read it.
    pub(crate) fn give_to_owner(&self, prefix: &str) -> io::Result<()> {
        let Some(root) = &self.root else { return Ok(()) };
        let owner = fs::metadata(root.as_path())?;
        if !rustix::process::geteuid().is_root() || owner.uid() == 0 {
            return Ok(());
        }
        let mut open = vec![root.join(prefix)];
        while let Some(path) = open.pop() {
            lchown(&path, Some(owner.uid()), Some(owner.gid()))?;
            if path.symlink_metadata()?.is_dir() {
                for entry in fs::read_dir(&path)? {
                    open.push(entry?.path());
                }
            }
        }
        Ok(())
    }

    /// Removes what servers that were killed left of unfinished objects.
    pub(crate) fn clean(&self) {
        const OLD: Duration = Duration::from_secs(3600);
        let Some(root) = &self.root else { return };
        for entry in fs::read_dir(root.join(STAGING)).into_iter().flatten().flatten() {
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

/// Gives a durable file its name, durably.
fn link(file: &FilePath, root: &FilePath, name: &Path) -> io::Result<Created> {
    let target = root.join(name.as_ref());
    let parent = target.parent().unwrap_or(root);
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
    for folder in parent.ancestors().take_while(|folder| folder.starts_with(root)) {
        File::open(folder)?.sync_all()?;
    }
    Ok(created)
}

fn make_folders(path: &FilePath) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Removes a folder and those in it, unless somebody has put something there.
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
        assert_eq!(store.delete_all(&Path::from("raw/v1/a=b")).await.unwrap(), 2);
        assert!(!dir.path().join("s/raw/v1/a=b").exists());
    }

    #[tokio::test]
    async fn what_root_makes_is_the_folders_owners() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().to_str().unwrap()).unwrap();
        lchown(dir.path(), Some(7443), Some(7443)).unwrap();
        store.create(&Path::from("auth/tokens/a"), "1".into()).await.unwrap();
        store.give_to_owner("auth").unwrap();
        for path in ["auth", "auth/tokens", "auth/tokens/a"] {
            assert_eq!(fs::metadata(dir.path().join(path)).unwrap().uid(), 7443, "{path}");
        }
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
