//! The folder of everything that the agent keeps.
//!
//! ```text
//!  STATE/ca.pem       the server's certificate authority
//!  STATE/host-token   what the server knows this host by, mode 0600
//!  STATE/host         its name in the fleet
//!  STATE/boots        this host's last boots in their order
//!  STATE/windows/     recordings that are being made
//!  STATE/spool/       windows that wait to be sent
//!  STATE/refused/     windows that the server does not want, and why
//! ```

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use model::{BootId, error_chain};
use tracing::warn;

/// Boots that are remembered: windows of earlier ones are the oldest.
const MAX_BOOTS: usize = 256;
/// Longest of its small files.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Paths within the agent's state folder.
#[derive(Debug, Clone)]
pub(crate) struct State {
    root: PathBuf,
}

/// A file or folder of it failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action} {path}")]
pub(crate) struct StateError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl StateError {
    pub(crate) fn new(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self { action, path: path.to_owned(), source }
    }
}

impl State {
    /// Makes the folder, if it is not there, for its owner only.
    pub(crate) fn create(root: &Path) -> Result<Self, StateError> {
        let state = Self { root: root.to_owned() };
        for folder in [state.root.clone(), state.windows(), state.spool(), state.refused()] {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
            made.map_err(|source| StateError::new("create", &folder, source))?;
        }
        Ok(state)
    }

    pub(crate) fn windows(&self) -> PathBuf {
        self.root.join("windows")
    }

    pub(crate) fn spool(&self) -> PathBuf {
        self.root.join("spool")
    }

    pub(crate) fn refused(&self) -> PathBuf {
        self.root.join("refused")
    }

    pub(crate) fn authority(&self) -> PathBuf {
        self.root.join("ca.pem")
    }

    pub(crate) fn host_token(&self) -> PathBuf {
        self.root.join("host-token")
    }

    pub(crate) fn host(&self) -> PathBuf {
        self.root.join("host")
    }

    /// The boots of this host in which an agent ran, the oldest first. Stores the current one among them.
    pub(crate) fn boots(&self, current: BootId) -> Vec<String> {
        let (path, current) = (self.root.join("boots"), current.to_string());
        let known = read(&path).unwrap_or_default();
        let mut boots: Vec<_> = known.lines().map(str::to_owned).collect();
        if boots.last() == Some(&current) {
            return boots;
        }
        boots.push(current);
        boots.drain(..boots.len().saturating_sub(MAX_BOOTS));
        if let Err(error) = write(&path, &boots.join("\n")) {
            // A full disk is no reason not to start: only the order of windows is at stake.
            warn!("{}", error_chain(&error));
        }
        boots
    }
}

/// Reads a small file.
pub(crate) fn read(path: &Path) -> Result<String, StateError> {
    let read = || {
        let mut text = String::new();
        File::open(path)?.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|source| StateError::new("read", path, source))
}

/// Writes a file durably and for its owner only: under its name there is all of it or nothing.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), StateError> {
    let temporary = path.with_extension("tmp");
    let write = || {
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        path.parent().map_or(Ok(()), sync_folder)
    };
    write().map_err(|source| StateError::new("write", path, source))
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn boots_are_remembered_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::create(folder.path()).unwrap();
        let names = |boots: &[u8]| -> Vec<String> {
            boots.iter().map(|n| BootId([*n; 16]).to_string()).collect()
        };
        let check = |current, expected: Vec<String>| {
            assert_eq!(state.boots(BootId([current; 16])), expected);
        };
        check(9, names(&[9]));
        check(9, names(&[9]));
        check(3, names(&[9, 3]));
        (0..=255).for_each(|n| drop(state.boots(BootId([n; 16]))));
        assert_eq!(state.boots(BootId([9; 16])).len(), MAX_BOOTS);
    }

    #[test]
    fn its_files_are_its_owners() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::create(&folder.path().join("vmscope")).unwrap();
        write(&state.host_token(), "secret").unwrap();
        assert_eq!(read(&state.host_token()).unwrap(), "secret");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&state.host_token()), 0o600);
        assert_eq!(mode(&state.spool()), 0o700);
        assert!(read(&state.host()).unwrap_err().to_string().contains("/host"));
        State::create(&folder.path().join("vmscope")).unwrap();
    }
}
