//! Packets of a measurement: captured by a thread of its own, then split.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use split::{CaptureFile, Counter, Roles, Split, Splitter};

use crate::capture::{Capture, CaptureError, Captured, Interface, Options};
use crate::error::Error;

/// Memory for packets on their way, of each interface.
const RING: usize = 8 << 20;
/// A capture is no longer: what comes later is not split.
const MAX_BYTES: u64 = 256 << 20;

/// A capture under way. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct PacketCapture {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Captured, CaptureError>>>,
}

impl PacketCapture {
    /// Begins to capture into `file`.
    pub(crate) fn start(interfaces: &[Interface], file: &Path) -> Result<Self, Error> {
        let options =
            Options { snapshot_length: Options::WHOLE, ring_bytes: RING, most_bytes: MAX_BYTES };
        let capture = Capture::open(interfaces, options)?;
        let out = BufWriter::new(File::create(file).map_err(Error::io("create", file))?);
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || capture.run(out, |_| stop.load(Ordering::Relaxed)));
        Ok(Self { is_over, thread: Some(thread) })
    }

    /// Ends the capture. Notes say what is missing.
    pub(crate) fn finish(mut self) -> Result<Vec<String>, Error> {
        let captured = self.join().unwrap_or(Ok(Captured::default()))?;
        let mut notes = Vec::new();
        if 0 < captured.dropped {
            notes.push(format!("packets dropped by the capture: {}", captured.dropped));
        }
        if captured.is_full {
            notes.push(format!("the capture ended early, at {} MiB", MAX_BYTES >> 20));
        }
        Ok(notes)
    }

    fn join(&mut self) -> Option<Result<Captured, CaptureError>> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl Drop for PacketCapture {
    fn drop(&mut self) {
        // Its packets are not wanted any more.
        let _ = self.join();
    }
}

/// Splits the requests of a capture.
pub(crate) fn split(path: &Path) -> Result<Split, Error> {
    let form = |error: split::CaptureError| Error::Form {
        path: path.to_owned(),
        problem: error.to_string(),
    };
    let mut file =
        CaptureFile::new(File::open(path).map_err(Error::io("open", path))?, 0).map_err(form)?;
    let mut splitter = Splitter::new(Roles::default());
    let mut n_read = 0;
    while file.advance().map_err(form)? {
        n_read += 1;
        if let Some(packet) = file.packet() {
            splitter.packet(&packet);
        }
    }
    if file.is_cut() {
        return Err(form(split::CaptureError::Damaged(n_read)));
    }
    splitter.file(&file.counts());
    Ok(splitter.finish())
}

/// What a reader of parts should know.
pub(crate) fn notes(split: &Split) -> Vec<String> {
    let noted = [Counter::LostBytes, Counter::LostMessages, Counter::Evicted, Counter::TooMany];
    let of = |counter: Counter| split.counts.iter().nth(counter as usize);
    let counts = noted.into_iter().filter_map(of).filter(|(_, _, n)| 0 < *n);
    counts.map(|(_, words, n)| format!("capture: {words}: {n}")).collect()
}
