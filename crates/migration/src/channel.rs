//! Messages over a connection: by TLS between hosts, each of which knows the other's certificate; or over a socket of this
//! host.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::DerefMut;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Fingerprint;
use rustix::net::sockopt;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, ConnectionCommon, DigitallySignedStruct,
    DistinguishedName, ServerConfig, ServerConnection, SideData, SignatureScheme, StreamOwned,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::frame::{self, FrameError};
use crate::identity::{self, Identity};
use crate::peers::Peer;

/// For connecting, and for the handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// For sending a message.
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// How long a read waits before the time is looked at.
const TICK: Duration = Duration::from_millis(200);
/// How often a silent peer's kernel is probed, and how often it may be silent.
const ALIVE: Duration = Duration::from_secs(10);
const ALIVE_TRIES: u32 = 6;

pub(crate) struct Channel {
    stream: Box<dyn Stream>,
    received: Vec<u8>,
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("received", &self.received.len()).finish_non_exhaustive()
    }
}

/// Why nothing more is said.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    #[error("failed to connect: {0}")]
    Connect(io::Error),
    #[error("lost the connection: {0}")]
    Broken(#[from] io::Error),
    #[error("the other side closed the connection")]
    Closed,
    #[error("the other side did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

impl Channel {
    /// Connects to a peer's daemon, which must have the certificate that we know.
    pub(crate) fn connect(identity: &Identity, peer: &Peer) -> Result<Self, ChannelError> {
        let verifier =
            Arc::new(Known { fingerprints: vec![peer.fingerprint], provider: provider() });
        let config = ClientConfig::builder_with_provider(verifier.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(identity.chain(), identity.key())?;
        let name = ServerName::try_from(identity::NAME).map_err(|_| rustls::Error::DecryptError)?;
        let tls = ClientConnection::new(Arc::new(config), name)?;
        let stream = tcp(&peer.address).map_err(ChannelError::Connect)?;
        let mut stream = StreamOwned::new(tls, stream);
        handshake(&mut stream)?;
        Ok(Self { stream: Box::new(stream), received: Vec::new() })
    }

    /// Accepts a connection of a peer's daemon; which of `peers` it is.
    pub(crate) fn accept(
        identity: &Identity,
        peers: &[Peer],
        stream: TcpStream,
    ) -> Result<(Self, Peer), ChannelError> {
        let fingerprints = peers.iter().map(|peer| peer.fingerprint).collect();
        let verifier = Arc::new(Known { fingerprints, provider: provider() });
        let config = ServerConfig::builder_with_provider(verifier.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(identity.chain(), identity.key())?;
        ready(&stream)?;
        let tls = ServerConnection::new(Arc::new(config))?;
        let mut stream = StreamOwned::new(tls, stream);
        handshake(&mut stream)?;
        let certificate = stream.conn.peer_certificates().and_then(<[_]>::first);
        let fingerprint = certificate.map(identity::fingerprint);
        let peer = peers.iter().find(|peer| Some(peer.fingerprint) == fingerprint);
        let peer = peer.ok_or_else(unknown)?.clone();
        Ok((Self { stream: Box::new(stream), received: Vec::new() }, peer))
    }

    /// A socket of this host; a moment is a `tick`.
    pub(crate) fn local(stream: UnixStream, tick: Duration) -> Result<Self, ChannelError> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(tick))?;
        stream.set_write_timeout(Some(SEND_LIMIT))?;
        Ok(Self { stream: Box::new(stream), received: Vec::new() })
    }

    pub(crate) fn send(&mut self, message: &impl Serialize) -> Result<(), ChannelError> {
        self.send_bytes(&frame::encode(message)?)
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        self.stream.write_all(bytes)?;
        Ok(self.stream.flush()?)
    }

    /// The next message.
    pub(crate) fn receive<T: DeserializeOwned>(
        &mut self,
        limit: Duration,
    ) -> Result<T, ChannelError> {
        let start = Instant::now();
        loop {
            if let Some(message) = self.poll()? {
                return Ok(message);
            }
            if limit <= start.elapsed() {
                return Err(ChannelError::TimedOut(limit));
            }
        }
    }

    /// The next message, if there is one within a moment.
    pub(crate) fn poll<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ChannelError> {
        if let Some(message) = frame::take(&mut self.received)? {
            return Ok(Some(message));
        }
        let mut bytes = [0; 1 << 14];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(ChannelError::Closed),
            Ok(n) => {
                self.received.extend_from_slice(&bytes[..n]);
                Ok(frame::take(&mut self.received)?)
            }
            Err(error) if is_nothing(&error) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(ChannelError::Closed),
            Err(error) => Err(error.into()),
        }
    }
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

fn tcp(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in address.to_socket_addrs()?.take(4) {
        match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
            Ok(stream) => return ready(&stream).map(|()| stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn ready(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    // A peer whose host or network is gone says nothing for as long as a migration may take.
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, ALIVE)?;
    sockopt::set_tcp_keepintvl(stream, ALIVE)?;
    sockopt::set_tcp_keepcnt(stream, ALIVE_TRIES)?;
    stream.set_read_timeout(Some(TICK))?;
    stream.set_write_timeout(Some(SEND_LIMIT))
}

/// Within its time, however little comes at once: strangers can open connections, too.
fn handshake<C, D>(stream: &mut StreamOwned<C, TcpStream>) -> Result<(), ChannelError>
where
    C: DerefMut<Target = ConnectionCommon<D>>,
    D: SideData,
{
    let (conn, sock, start) = (&mut *stream.conn, &mut stream.sock, Instant::now());
    while conn.is_handshaking() || conn.wants_write() {
        if CONNECT_LIMIT <= start.elapsed() {
            return Err(ChannelError::TimedOut(CONNECT_LIMIT));
        }
        if conn.wants_write() {
            conn.write_tls(sock)?;
            continue;
        }
        match conn.read_tls(sock) {
            Ok(0) => return Err(ChannelError::Closed),
            Err(error) if !is_nothing(&error) => return Err(error.into()),
            Err(_) => {}
            Ok(_) => {
                if let Err(error) = conn.process_new_packets() {
                    // So that the other side learns why.
                    let _ = conn.write_tls(sock);
                    return Err(error.into());
                }
            }
        }
    }
    Ok(())
}

/// Accepts those whose certificates are known, whatever their signer.
#[derive(Debug)]
struct Known {
    fingerprints: Vec<Fingerprint>,
    provider: Arc<CryptoProvider>,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn unknown() -> rustls::Error {
    rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)
}

impl Known {
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        let found = identity::fingerprint(certificate);
        if self.fingerprints.contains(&found) { Ok(()) } else { Err(unknown()) }
    }

    fn signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// TLS 1.2 is not spoken.
fn no_tls12() -> rustls::Error {
    rustls::Error::PeerIncompatible(rustls::PeerIncompatible::ServerDoesNotSupportTls12Or13)
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Known {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

#[cfg(test)]
mod test {
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use api::layout::{DestinationMessage, SourceMessage, VERSION};

    use super::*;

    struct Machine {
        identity: Arc<Identity>,
        _folder: tempfile::TempDir,
    }

    fn machine() -> Machine {
        let folder = tempfile::tempdir().unwrap();
        Machine { identity: Arc::new(Identity::open(folder.path()).unwrap()), _folder: folder }
    }

    fn peer(name: &str, machine: &Machine, address: &str) -> Peer {
        let fingerprint = machine.identity.fingerprint;
        Peer { name: name.to_owned(), address: address.to_owned(), fingerprint }
    }

    type Accepted = Result<(Channel, Peer), ChannelError>;

    /// A listening machine that knows these peers.
    fn listen(machine: &Machine, peers: Vec<Peer>) -> (String, JoinHandle<Accepted>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let identity = Arc::clone(&machine.identity);
        let accept = move || {
            let (stream, _) = listener.accept().unwrap();
            Channel::accept(&identity, &peers, stream)
        };
        (address, std::thread::spawn(accept))
    }

    #[test]
    fn hosts_that_know_each_other_talk() {
        let [ours, theirs, third] = [machine(), machine(), machine()];
        let known = vec![peer("third", &third, "x:1"), peer("ours", &ours, "x:1")];
        let (address, accepted) = listen(&theirs, known);
        let mut client =
            Channel::connect(&ours.identity, &peer("theirs", &theirs, &address)).unwrap();
        client.send(&SourceMessage::Hello { version: VERSION }).unwrap();
        let (mut server, from) = accepted.join().unwrap().unwrap();
        assert_eq!(from.name, "ours");
        let limit = Duration::from_secs(20);
        assert_eq!(
            server.receive::<SourceMessage>(limit).unwrap(),
            SourceMessage::Hello { version: VERSION }
        );
        server.send(&DestinationMessage::Refused { reason: "no".to_owned() }).unwrap();
        assert!(matches!(client.receive(limit), Ok(DestinationMessage::Refused { .. })));
        let waited = client.receive::<DestinationMessage>(Duration::ZERO);
        assert!(matches!(waited, Err(ChannelError::TimedOut(_))));
        drop(server);
        assert!(client.receive::<DestinationMessage>(limit).is_err());
    }

    #[test]
    fn strangers_are_refused_by_either_side() {
        let [ours, theirs, stranger] = [machine(), machine(), machine()];
        let (address, accepted) = listen(&theirs, vec![peer("ours", &ours, "x:1")]);
        let wrong = Channel::connect(&ours.identity, &peer("theirs", &stranger, &address));
        assert!(matches!(wrong, Err(ChannelError::Tls(_))), "{wrong:?}");
        assert!(accepted.join().unwrap().is_err());
        let (address, accepted) = listen(&theirs, vec![peer("ours", &ours, "x:1")]);
        let mut client =
            Channel::connect(&stranger.identity, &peer("theirs", &theirs, &address)).unwrap();
        assert!(accepted.join().unwrap().is_err());
        let answer = client.receive::<DestinationMessage>(Duration::from_secs(20));
        assert!(
            matches!(answer, Err(ChannelError::Broken(_) | ChannelError::Closed)),
            "{answer:?}"
        );
    }

    #[test]
    fn a_side_that_says_nothing_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (ours, theirs) = (machine(), machine());
        let address = listener.local_addr().unwrap().to_string();
        let held = std::thread::spawn(move || listener.accept().unwrap().0);
        let error =
            Channel::connect(&ours.identity, &peer("theirs", &theirs, &address)).unwrap_err();
        assert!(matches!(error, ChannelError::TimedOut(_)), "{error}");
        drop(held);
    }
}
