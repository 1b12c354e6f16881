//! The server's certificate: given, or of an own certificate authority that is made at the first start.
//!
//! ```text
//!  state/ca.key, state/ca.pem   made once; agents pin its fingerprint
//!    \__ signs __> the server's certificate: made at each start and every month, never stored
//! ```

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use axum_server::tls_rustls::RustlsConfig;
use chrono::{DateTime, Datelike};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

use crate::auth::hex;
use crate::config::Config;

/// How often the certificate is made anew, or read again.
pub(crate) const RENEW_EVERY: Duration = Duration::from_secs(24 * 3600);

/// Where the server's certificate comes from.
#[derive(Debug)]
pub(crate) enum Identity {
    Given { certificate: PathBuf, key: PathBuf },
    Own(Box<Authority>),
}

impl Identity {
    /// As the configuration says. Makes a certificate authority if it needs one and there is none.
    pub(crate) fn open(config: &Config) -> Result<Self> {
        match (config.certificate.clone(), config.key.clone()) {
            (Some(certificate), Some(key)) => Ok(Self::Given { certificate, key }),
            _ => Authority::open(&config.state, names(config)).map(Box::new).map(Self::Own),
        }
    }

    /// A certificate for the next time, and its key.
    pub(crate) fn tls(&self) -> Result<rustls::ServerConfig> {
        let (chain, key) = match self {
            Self::Given { certificate, key } => {
                let failed = |path: &Path| format!("failed to read {}", path.display());
                let chain = CertificateDer::pem_file_iter(certificate)
                    .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                    .with_context(|| failed(certificate))?;
                (chain, PrivateKeyDer::from_pem_file(key).with_context(|| failed(key))?)
            }
            Self::Own(authority) => authority.issue()?,
        };
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(tls)
    }

    /// The certificate authority that agents can trust, PEM.
    pub(crate) fn authority(&self) -> Option<&Authority> {
        match self {
            Self::Given { .. } => None,
            Self::Own(authority) => Some(authority),
        }
    }

    /// The first certificate, for a running server.
    pub(crate) fn start(&self) -> Result<RustlsConfig> {
        Ok(RustlsConfig::from_config(std::sync::Arc::new(self.tls()?)))
    }
}

/// An own certificate authority.
#[derive(Debug)]
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate.
    pub(crate) pem: String,
    /// SHA-256 of its certificate (DER), in hexadecimal.
    pub(crate) fingerprint: String,
    names: Vec<String>,
}

impl Authority {
    fn open(state: &Path, names: Vec<String>) -> Result<Self> {
        let (key_path, pem_path) = (state.join("ca.key"), state.join("ca.pem"));
        // Whichever of two servers that start at once is first.
        create(&key_path, 0o600, || Ok(KeyPair::generate()?.serialize_pem()))?;
        let read = |path: &Path| {
            fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))
        };
        let key = KeyPair::from_pem(&read(&key_path)?).context("ca.key holds no key")?;
        create(&pem_path, 0o644, || Ok(authority_params()?.self_signed(&key)?.pem()))?;
        let pem = read(&pem_path)?;
        let der = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| anyhow::anyhow!("ca.pem holds no certificate: {error:?}"))?;
        let fingerprint = hex(&Sha256::digest(&der));
        let issuer = Issuer::new(authority_params()?, key);
        Ok(Self { issuer, pem, fingerprint, names })
    }

    fn issue(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let mut params = CertificateParams::new(self.names.clone())
            .context("a name in `names` can't be in a certificate")?;
        params.distinguished_name.push(DnType::CommonName, "vmscope-server");
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let now = DateTime::<chrono::Utc>::from(SystemTime::now());
        // A client's clock may be late.
        let from = now - chrono::Duration::days(2);
        let until = now + chrono::Duration::days(90);
        (params.not_before, params.not_after) = (date(from)?, date(until)?);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::try_from(key.serialize_der())
            .map_err(|error| anyhow::anyhow!("the key that was made is none: {error}"))?;
        let authority = CertificateDer::from_pem_slice(self.pem.as_bytes())
            .map_err(|error| anyhow::anyhow!("ca.pem holds no certificate: {error:?}"))?;
        Ok((vec![certificate.der().clone(), authority], key))
    }
}

fn date(time: DateTime<chrono::Utc>) -> Result<time::OffsetDateTime> {
    let month = u8::try_from(time.month())?;
    Ok(date_time_ymd(time.year(), month, u8::try_from(time.day())?))
}

/// The same each time: certificates name their issuer by it.
fn authority_params() -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "vmscope fleet");
    params.not_before = date_time_ymd(2025, 1, 1);
    params.not_after = date_time_ymd(2075, 1, 1);
    Ok(params)
}

/// Writes a file durably, unless there is one.
fn create(path: &Path, mode: u32, content: impl FnOnce() -> Result<String>) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let failed = || format!("failed to write {}", path.display());
    let staged = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&staged)
        .with_context(failed)?;
    file.write_all(content()?.as_bytes()).and_then(|()| file.sync_all()).with_context(failed)?;
    let linked = match fs::hard_link(&staged, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    };
    fs::remove_file(&staged).and(linked).with_context(failed)
}

/// What clients may call this server.
fn names(config: &Config) -> Vec<String> {
    let mut names = config.names.clone();
    let own = rustix::system::uname();
    names.extend(own.nodename().to_str().ok().filter(|name| !name.is_empty()).map(str::to_owned));
    names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_authority_stays_and_its_certificates_change() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { state: dir.path().to_owned(), ..Config::default() };
        let fingerprint = |identity: &Identity| identity.authority().unwrap().fingerprint.clone();
        let first = Identity::open(&config).unwrap();
        let second = Identity::open(&config).unwrap();
        assert_eq!(fingerprint(&first), fingerprint(&second));
        assert_eq!(fingerprint(&first).len(), 64);
        first.tls().unwrap();
        let issue = |identity: &Identity| identity.authority().unwrap().issue().unwrap().0;
        assert_ne!(issue(&first)[0], issue(&second)[0]);
        assert_eq!(issue(&first)[1], issue(&second)[1]);
        let key = fs::metadata(dir.path().join("ca.key")).unwrap();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&key.permissions()) & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
