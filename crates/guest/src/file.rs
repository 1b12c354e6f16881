//! Reads snapshot files (`vmscope-guest snapshot`): a map, then symbols.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use api::guest::{GuestMap, MAGIC, MAX_ANSWER_BYTES, ModuleSymbols, Response};

use crate::frame::Decoder;
use crate::{AnswerReader, SessionError};

/// Larger files are not read.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Why a file is no snapshot that can be read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It can't be opened or read.
    #[error("failed to read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// It is something else.
    #[error("{} is not a guest map: write one in the guest with `vmscope-guest snapshot > FILE`", path.display())]
    Foreign { path: PathBuf },
    /// It ends too early or is damaged.
    #[error("{} is damaged: {text}", path.display())]
    Damaged { path: PathBuf, text: String },
    /// It was written by another version, or the process that reads it failed.
    #[error("{}: {text}", path.display())]
    Unread { path: PathBuf, text: String },
}

/// Reads the snapshot file at `path` with `reader`: its map, and shows the symbols of its modules to `see`, one after the other, since all
/// of them may be more than there is memory for. Not checked yet: see `merge` and `functions`.
///
/// # Errors
/// If it can't be read, is no snapshot, is damaged, or of another version.
pub fn read_snapshot(
    path: &Path,
    reader: &mut dyn AnswerReader,
    see: &mut dyn FnMut(ModuleSymbols),
) -> Result<GuestMap, SnapshotError> {
    let read = |source| SnapshotError::Read { path: path.into(), source };
    let file = File::open(path).map_err(read)?;
    let length = file.metadata().map_err(read)?.len();
    if MAX_FILE_BYTES < length {
        return Err(read(io::Error::other(format!("larger than {MAX_FILE_BYTES} bytes"))));
    }
    from_reader(file, path, reader, see)
}

fn from_reader(
    mut file: impl Read,
    path: &Path,
    reader: &mut dyn AnswerReader,
    see: &mut dyn FnMut(ModuleSymbols),
) -> Result<GuestMap, SnapshotError> {
    let read = |source| SnapshotError::Read { path: path.into(), source };
    let damaged = |text: String| SnapshotError::Damaged { path: path.into(), text };
    let mut decoder = Decoder::any_session(MAX_ANSWER_BYTES);
    let mut map: Option<GuestMap> = None;
    let mut chunk = vec![0; 1 << 16];
    let mut is_first = true;
    let mut bytes_left = MAX_FILE_BYTES;
    loop {
        let length = file.read(&mut chunk).map_err(read)?;
        if std::mem::take(&mut is_first) && !chunk[..length].starts_with(&MAGIC) {
            return Err(SnapshotError::Foreign { path: path.into() });
        }
        if length == 0 {
            break;
        }
        bytes_left = bytes_left
            .checked_sub(length as u64)
            .ok_or_else(|| read(io::Error::other("it does not end")))?;
        decoder.push(&chunk[..length]);
        while let Some(frame) = decoder.next().map_err(|error| damaged(error.to_string()))? {
            add(&mut map, frame.content, path, reader, see)?;
        }
    }
    if !decoder.is_empty() {
        return Err(damaged("it ends in the middle of a message".into()));
    }
    map.ok_or_else(|| damaged("it holds no map".into()))
}

fn add(
    map: &mut Option<GuestMap>,
    content: Vec<u8>,
    path: &Path,
    reader: &mut dyn AnswerReader,
    see: &mut dyn FnMut(ModuleSymbols),
) -> Result<(), SnapshotError> {
    let damaged = |text: String| SnapshotError::Damaged { path: path.into(), text };
    let answer = reader.read(content).map_err(|error| match SessionError::from(error) {
        SessionError::Nonsense(text) => damaged(text),
        other => SnapshotError::Unread { path: path.into(), text: other.to_string() },
    })?;
    match (answer, map) {
        (Response::Map(reported), map @ None) => {
            *map = Some(*reported);
            Ok(())
        }
        (Response::Symbols(symbols), Some(_)) => {
            symbols.into_iter().for_each(see);
            Ok(())
        }
        _ => Err(damaged("an unexpected message".into())),
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::frame;
    use crate::fuzzing::Here;

    fn frames(version: u32) -> Vec<u8> {
        let map = GuestMap { version, boot_id: "b".into(), ..GuestMap::default() };
        let symbols = vec![ModuleSymbols { module: 3, ..ModuleSymbols::default() }];
        let frames = [Response::Map(Box::new(map)), Response::Symbols(symbols)];
        frames.map(|frame| frame::encode(0, &frame, MAX_ANSWER_BYTES).unwrap()).concat()
    }

    fn check(bytes: &[u8], expected: Result<usize, &str>) {
        let mut symbols = 0;
        let got = from_reader(bytes, Path::new("vm1.map"), &mut Here, &mut |_| symbols += 1);
        match (got, expected) {
            (Ok(_), Ok(modules)) => assert_eq!(symbols, modules),
            (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
            (got, expected) => panic!("{got:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn snapshots_are_read_and_others_refused() {
        let good = frames(api::guest::VERSION);
        check(&good, Ok(1));
        check(b"", Err("not a guest map"));
        check(b"PAR1 something else", Err("not a guest map"));
        check(&frames(9), Err("protocol version 9"));
        check(&good[..good.len() - 1], Err("in the middle"));
        check(&good[..9], Err("in the middle"));
        check(&[&good[..], &good[..]].concat(), Err("unexpected message"));
        let huge = [&MAGIC[..], &[0; 8], &[255; 4]].concat();
        check(&huge, Err("are allowed"));
        assert!(matches!(
            read_snapshot(Path::new("/nonexistent"), &mut Here, &mut |_| ()),
            Err(SnapshotError::Read { .. })
        ));
    }
}
