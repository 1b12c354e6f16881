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
use std::time::Duration;

use anyhow::{Context, Result};
use axum_server::tls_rustls::RustlsConfig;
use chrono::{Datelike, Utc};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

use crate::auth::hex;
use crate::config::Config;

/// Age at which the certificate is made anew, or read again.
pub(crate) const RENEW_AFTER: Duration = Duration::from_secs(24 * 3600);
/// How often its age is looked at: the clock may be set.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The server's certificate, and who vouches for it.
#[derive(Debug)]
pub(crate) struct Identity {
    source: Source,
    /// The authority's certificate, PEM.
    pub(crate) authority: String,
    /// Its SHA-256 (of DER), hexadecimal.
    pub(crate) fingerprint: String,
}

#[derive(Debug)]
enum Source {
    Given { certificate: PathBuf, key: PathBuf },
    Own(Box<Authority>),
}

impl Identity {
    /// As the configuration says. Makes a certificate authority if it needs one and there is none.
    pub(crate) fn open(config: &Config) -> Result<Self> {
        let (source, authority) = match (config.certificate.clone(), config.key.clone()) {
            (Some(certificate), Some(key)) => {
                let chain = read(&certificate)?;
                let last = chain.rfind("-----BEGIN CERTIFICATE-----").unwrap_or(0);
                (Source::Given { certificate, key }, chain[last..].to_owned())
            }
            _ => {
                let authority = Authority::open(&config.state, names(config))?;
                let pem = authority.pem.clone();
                (Source::Own(Box::new(authority)), pem)
            }
        };
        let fingerprint = hex(&Sha256::digest(certificate(&authority)?));
        Ok(Self { source, authority, fingerprint })
    }

    /// A certificate for the next time, and its key.
    pub(crate) fn tls(&self) -> Result<rustls::ServerConfig> {
        let (chain, key) = match &self.source {
            Source::Given { certificate, key } => {
                let failed = |path: &Path| format!("failed to read {}", path.display());
                let chain = CertificateDer::pem_file_iter(certificate)
                    .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                    .with_context(|| failed(certificate))?;
                (chain, PrivateKeyDer::from_pem_file(key).with_context(|| failed(key))?)
            }
            Source::Own(authority) => authority.issue()?,
        };
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(tls)
    }

    /// The first certificate, for a running server.
    pub(crate) fn start(&self) -> Result<RustlsConfig> {
        Ok(RustlsConfig::from_config(std::sync::Arc::new(self.tls()?)))
    }
}

/// An own certificate authority.
#[derive(Debug)]
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate.
    pem: String,
    names: Vec<String>,
}

impl Authority {
    fn open(state: &Path, names: Vec<String>) -> Result<Self> {
        let (key_path, pem_path) = (state.join("ca.key"), state.join("ca.pem"));
        // Whichever of two servers that start at once is first.
        create(&key_path, 0o600, || Ok(KeyPair::generate()?.serialize_pem()))?;
        let key = KeyPair::from_pem(&read(&key_path)?).context("ca.key holds no key")?;
        create(&pem_path, 0o644, || Ok(authority_params()?.self_signed(&key)?.pem()))?;
        let pem = read(&pem_path)?;
        let issuer = Issuer::new(authority_params()?, key);
        Ok(Self { issuer, pem, names })
    }

    fn issue(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let mut params = CertificateParams::new(self.names.clone())
            .context("a name in `names` is not valid in a certificate")?;
        params.distinguished_name.push(DnType::CommonName, "vmscope-server");
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let in_days = |days| -> Result<_> {
            let time = Utc::now() + chrono::Duration::days(days);
            Ok(date_time_ymd(time.year(), time.month().try_into()?, time.day().try_into()?))
        };
        // A client's clock may be late.
        (params.not_before, params.not_after) = (in_days(-2)?, in_days(90)?);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::try_from(key.serialize_der())
            .map_err(|error| anyhow::anyhow!("failed to use the new private key: {error}"))?;
        Ok((vec![certificate.der().clone(), self::certificate(&self.pem)?], key))
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))
}

/// A certificate in PEM.
fn certificate(pem: &str) -> Result<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| anyhow::anyhow!("a certificate was expected: {error:?}"))
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
        let first = Identity::open(&config).unwrap();
        let second = Identity::open(&config).unwrap();
        assert_eq!(first.fingerprint, second.fingerprint);
        assert_eq!(first.fingerprint.len(), 64);
        first.tls().unwrap();
        let issue = |identity: &Identity| match &identity.source {
            Source::Own(authority) => authority.issue().unwrap().0,
            Source::Given { .. } => panic!("none was given"),
        };
        assert_ne!(issue(&first)[0], issue(&second)[0]);
        assert_eq!(issue(&first)[1], issue(&second)[1]);
        let key = fs::metadata(dir.path().join("ca.key")).unwrap();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&key.permissions()) & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    /// Of a chain the last certificate is the one to trust.
    #[test]
    fn a_certificate_can_be_given() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { state: dir.path().to_owned(), ..Config::default() };
        let own = Identity::open(&config).unwrap();
        let (chain, key) = (dir.path().join("chain.pem"), dir.path().join("key.pem"));
        let leaf = KeyPair::generate().unwrap();
        let Source::Own(authority) = &own.source else { panic!("none was given") };
        let params = CertificateParams::new(vec!["fleet".to_owned()]).unwrap();
        let pem = params.signed_by(&leaf, &authority.issuer).unwrap().pem();
        fs::write(&chain, format!("{pem}{}", own.authority)).unwrap();
        fs::write(&key, leaf.serialize_pem()).unwrap();
        let config = Config { certificate: Some(chain), key: Some(key), ..config };
        let given = Identity::open(&config).unwrap();
        assert_eq!(given.fingerprint, own.fingerprint);
        given.tls().unwrap();
    }
}
