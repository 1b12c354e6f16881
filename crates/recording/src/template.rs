//! A recording that is sent as windows of other hosts, boots and times.
//!
//! ```text
//!  NAME/ --pack--> tables | recording.json, end
//!                  shared | made for each window
//! ```

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use model::{BootId, Header};
use serde_json::{Value, json};
use tar::EntryType;

use crate::error::Error;
use crate::files::{self, MANIFEST};
use crate::manifest;
use crate::window::{HostName, pack};

/// A packed recording of which windows are made. They differ in `recording.json` alone, so a window costs no copy of the
/// tables.
#[derive(Debug, Clone)]
pub struct Template {
    tables: Arc<File>,
    tables_bytes: u64,
    manifest: Value,
    header: Header,
}

/// Bytes of a window, with their number.
#[derive(Debug)]
pub struct TemplateWindow {
    pub bytes: u64,
    pub content: io::Chain<Tables, Cursor<Vec<u8>>>,
}

/// The part that all windows of a template share.
#[derive(Debug)]
pub struct Tables {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for Tables {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let most = buffer.len().min(left);
        let read = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Template {
    /// Packs the finished recording `folder` into `file`, which may be removed afterwards.
    ///
    /// # Errors
    /// When the recording is not complete, a file can't be read, or nothing can be written.
    pub fn new(folder: &Path, file: &Path) -> Result<Self, Error> {
        let header = manifest::read(folder)?.header;
        let path = folder.join(MANIFEST);
        let failed = |source| Error::io("read", &path, source);
        let mut text = String::new();
        files::open(&path)?.read_to_string(&mut text).map_err(failed)?;
        let manifest = serde_json::from_str(&text)
            .map_err(|error| Error::damaged(&path, error.to_string()))?;
        let packed = pack(folder, file)?;
        let end = tar_of_manifest(text.as_bytes()).map_err(failed)?.len() as u64;
        let tables = Arc::new(files::open(file)?);
        Ok(Self { tables, tables_bytes: packed.saturating_sub(end), manifest, header })
    }

    /// The recording's own header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The window of a host and boot that began at that time of the world, ns since 1970. Its start by `CLOCK_MONOTONIC` is
    /// the recording's own: samples stay where they are.
    ///
    /// # Errors
    /// None is expected: the window's end is written into memory.
    pub fn window(
        &self,
        host: &HostName,
        boot: BootId,
        start_unix_ns: u64,
    ) -> io::Result<TemplateWindow> {
        let mut manifest = self.manifest.clone();
        manifest["hostname"] = json!(host.as_str());
        manifest["boot_id"] = json!(boot.to_string());
        manifest["start_unix_ns"] = json!(start_unix_ns);
        let end = tar_of_manifest(manifest.to_string().as_bytes())?;
        let tables = Tables { file: Arc::clone(&self.tables), at: 0, end: self.tables_bytes };
        let bytes = self.tables_bytes + end.len() as u64;
        Ok(TemplateWindow { bytes, content: tables.chain(Cursor::new(end)) })
    }
}

/// The last entry, and the end mark.
fn tar_of_manifest(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o600);
    header.set_size(text.len() as u64);
    tar.append_data(&mut header, MANIFEST, text)?;
    tar.into_inner()
}
