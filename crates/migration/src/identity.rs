//! This host's key and certificate, made at the first start. Other hosts know the certificate by its fingerprint;
//! nothing signs it, and it does not expire: to replace it, remove the file and give the new fingerprint to the others.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::Fingerprint;
use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

/// Holds the key and the certificate.
const FILE: &str = "identity.pem";
const MAX_BYTES: u64 = 64 << 10;

/// This host's key and certificate.
#[derive(Debug)]
pub struct Identity {
    /// What others know it by.
    pub fingerprint: Fingerprint,
    certificate: CertificateDer<'static>,
    key: Arc<PrivateKeyDer<'static>>,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("failed to {action} {}: {source}", path.display())]
    File {
        /// Verb.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// It holds something else.
    #[error("{} holds no key and certificate: remove it, and give this host's new fingerprint to the others", .0.display())]
    Damaged(PathBuf),
    /// A key can't be made.
    #[error("failed to make a key: {0}")]
    Make(#[from] rcgen::Error),
}

impl Identity {
    /// Reads it from `state`, or makes it there.
    ///
    /// # Errors
    /// When that folder can't be written, or the file is damaged.
    pub fn open(state: &Path) -> Result<Self, IdentityError> {
        let path = state.join(FILE);
        let failed = |action| {
            let path = path.clone();
            move |source| IdentityError::File { action, path, source }
        };
        if !path.exists() {
            make_folder(state).map_err(failed("create"))?;
            create(&path, &new()?).map_err(failed("create"))?;
        }
        let mut pem = String::new();
        let file = File::open(&path).map_err(failed("read"))?;
        file.take(MAX_BYTES).read_to_string(&mut pem).map_err(failed("read"))?;
        let damaged = |_| IdentityError::Damaged(path.clone());
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(damaged)?;
        let key = Arc::new(PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(damaged)?);
        Ok(Self { fingerprint: fingerprint(&certificate), certificate, key })
    }

    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone()]
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }
}

/// Makes a folder, if it is not there, for its owner only.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> Fingerprint {
    Fingerprint(Sha256::digest(certificate).into())
}

fn new() -> Result<String, IdentityError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec![NAME.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.not_before = date_time_ymd(2025, 1, 1);
    params.not_after = date_time_ymd(2075, 1, 1);
    Ok(format!("{}{}", params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// What every host is called in its certificate: names mean nothing.
pub(crate) const NAME: &str = "vmscope-layout";

/// All of a file or nothing, unless there is one: of two that start at once, the first one's.
fn create(path: &Path, text: &str) -> io::Result<()> {
    let staged = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&staged)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all())?;
    let linked = match std::fs::hard_link(&staged, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    };
    std::fs::remove_file(&staged).and(linked)
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_made_once_and_only_its_owner_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let first = Identity::open(&state).unwrap();
        assert_eq!(Identity::open(&state).unwrap().fingerprint, first.fingerprint);
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&state), mode(&state.join(FILE))), (0o700, 0o600));
        assert_eq!(std::fs::read_dir(&state).unwrap().count(), 1);
        std::fs::write(state.join(FILE), "hello").unwrap();
        let error = Identity::open(&state).unwrap_err().to_string();
        assert!(error.contains("holds no key"), "{error}");
    }
}
