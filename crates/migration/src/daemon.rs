//! The daemon: listens for peers and for `vmscope migrate`, and goes on with what an earlier one left.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use api::layout::{DaemonEvent, MigrateOrder, Order};
use model::Pid;
use sd_notify::NotifyState;
use tracing::{info, warn};

use crate::ConfigError;
use crate::arrivals::Arrivals;
use crate::channel::Channel;
use crate::config::{Config, is_policy, policies};
use crate::destination::{Destination, ORPHAN_LIMIT};
use crate::identity::{Identity, IdentityError};
use crate::incoming::{self, State};
use crate::peers::{Peer, read_peers};
use crate::records::{Record, Records};
use crate::source::{self, Client, Source, SourceError};
use crate::this_host::ThisHost;
use crate::watch::{self, Watch};

/// Connections of peers at a time, and of users of this host.
const MAX_CONNECTIONS: usize = 32;
/// Between two looks at listening sockets and the wish to end.
const TICK: Duration = Duration::from_millis(100);
/// For an order's first message.
const ORDER_LIMIT: Duration = Duration::from_secs(10);

/// What all threads need.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) host: Arc<ThisHost>,
    pub(crate) identity: Identity,
    incoming: Records,
    outgoing: Records,
    planning: Mutex<()>,
    arrivals: Arrivals,
}

/// Why the daemon ended.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Its configuration, or that of its peers.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its key.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The kernel does not let it find VMs.
    #[error(transparent)]
    Probe(#[from] probes::ProbeError),
    /// An address or a socket.
    #[error("failed to listen at {place}: {source}")]
    Listen { place: String, source: io::Error },
    #[error("failed to create {}: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
}

/// Serves until `stop` is set.
///
/// # Errors
/// When it can't begin.
pub fn serve(config: &Path, stop: &AtomicBool) -> Result<(), DaemonError> {
    let config = Config::read(config)?;
    // Errors in it are reported now; it is read anew for each connection.
    let peers = read_peers(&config.peers)?;
    let identity = Identity::open(&config.state)?;
    let records = |name: &str| {
        let failed = |source| DaemonError::Folder { path: config.state.join(name), source };
        Records::open(&config.state, name).map_err(failed)
    };
    let (incoming, outgoing) = (records("incoming")?, records("outgoing")?);
    let host = Arc::new(ThisHost::new(config.clone())?);
    let shared = Arc::new(Shared {
        host,
        identity,
        incoming,
        outgoing,
        planning: Mutex::default(),
        arrivals: Arrivals::default(),
    });
    let tcp = config.listen.map(listen_tcp).transpose()?;
    let unix = listen_unix(&config.socket)?;
    go_on(&shared);
    info!("fingerprint {}; {} peers", shared.identity.fingerprint, peers.len());
    match config.listen {
        Some(address) => info!("listening at {address}"),
        None => info!("no `listen`: no VM can come here"),
    }
    // Without systemd there is nothing to notify.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    std::thread::scope(|scope| {
        // It ends before this returns: its probes are removed.
        scope.spawn(|| shared.host.count(stop));
        accept(&shared, tcp.as_ref(), &unix, stop);
    });
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    let _ = fs::remove_file(&config.socket);
    Ok(())
}

/// Takes connections until `stop` is set.
fn accept(shared: &Arc<Shared>, tcp: Option<&TcpListener>, unix: &UnixListener, stop: &AtomicBool) {
    let (strangers, users) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        if let Some((stream, _)) = tcp.and_then(|tcp| tcp.accept().ok()) {
            idle = false;
            let shared = Arc::clone(shared);
            in_thread(&strangers, move || serve_peer(&shared, stream));
        }
        if let Ok((stream, _)) = unix.accept() {
            idle = false;
            let shared = Arc::clone(shared);
            in_thread(&users, move || serve_user(&shared, stream));
        }
        if idle {
            std::thread::sleep(TICK);
        }
    }
}

/// One of many, or none: what finds no room is closed.
fn in_thread(count: &Arc<AtomicUsize>, serve: impl FnOnce() + Send + 'static) {
    if MAX_CONNECTIONS <= count.load(Ordering::Relaxed) {
        return warn!("too many connections: one was closed");
    }
    count.fetch_add(1, Ordering::Relaxed);
    let count = Arc::clone(count);
    std::thread::spawn(move || {
        serve();
        count.fetch_sub(1, Ordering::Relaxed);
    });
}

fn listen_tcp(address: SocketAddr) -> Result<TcpListener, DaemonError> {
    let failed = |source| DaemonError::Listen { place: address.to_string(), source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// For users who may read and write its folder: root.
fn listen_unix(path: &Path) -> Result<UnixListener, DaemonError> {
    let failed = |source| DaemonError::Listen { place: path.display().to_string(), source };
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    }
    if UnixStream::connect(path).is_ok() {
        return Err(failed(io::Error::other("another daemon listens there: stop it first")));
    }
    let _ = fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// What an earlier daemon had under way.
fn go_on(shared: &Arc<Shared>) {
    for record in shared.incoming.left() {
        let shared = Arc::clone(shared);
        std::thread::spawn(move || orphan(&shared, &record));
    }
    for record in shared.outgoing.left() {
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            let migration = source::adopt(&record);
            info!("{}: a migration of before the restart: {migration:?}", record.vm);
            shared.outgoing.remove(&record);
        });
    }
}

/// A QEMU that an earlier daemon started: it may still get its VM.
fn orphan(shared: &Shared, record: &Record) {
    let state = incoming::outcome(&shared.host, Pid(record.pid), record.started, ORPHAN_LIMIT);
    let what = match state {
        State::Runs => "its VM has come",
        State::Gone => "it is gone",
        State::Waits => {
            incoming::kill(record);
            "its VM did not come: it was ended"
        }
    };
    info!("a QEMU for {} of before the restart: {what}", record.vm);
    shared.incoming.remove(record);
}

fn serve_peer(shared: &Shared, stream: TcpStream) {
    let local = stream.local_addr().map(|address| address.ip());
    let from = stream.peer_addr().map_or_else(|_| "?".to_owned(), |address| address.to_string());
    let address = local.unwrap_or(IpAddr::from([0; 4]));
    let accepted = Channel::accept(&shared.identity, &shared.peers(), stream);
    let (mut channel, peer) = match accepted {
        Ok(accepted) => accepted,
        Err(error) => return warn!("{from} was refused: {error}"),
    };
    let destination = Destination {
        host: &shared.host,
        records: &shared.incoming,
        planning: &shared.planning,
        arrivals: &shared.arrivals,
        peer: &peer.name,
        address,
    };
    if let Err(error) = destination.serve(&mut channel) {
        warn!("{}: {error}", peer.name);
    }
}

fn serve_user(shared: &Arc<Shared>, stream: UnixStream) {
    // A migration is followed meanwhile.
    let Ok(mut channel) = Channel::local(stream, Duration::from_millis(5)) else { return };
    match channel.receive(ORDER_LIMIT) {
        Ok(Order::Migrate(order)) => {
            let reported = migrate(shared, &order, &mut channel);
            let _ = channel.send(&reported);
        }
        Ok(Order::Watch { policy, to }) => serve_watch(shared, &mut channel, policy, to),
        Ok(Order::Cancel) | Err(_) => {}
    }
}

fn migrate(shared: &Shared, order: &MigrateOrder, channel: &mut Channel) -> DaemonEvent {
    let usage = |reason: String| DaemonEvent::Failed { reason, is_usage: true };
    if let Some(policy) = order.policy.as_ref().filter(|policy| !is_policy(policy)) {
        return usage(format!("policy {policy}: {}", policies()));
    }
    let peers = shared.peers();
    let Some(peer) = peers.iter().find(|peer| peer.name == order.to) else {
        let path = shared.host.config.peers.display();
        return usage(format!("there is no peer {} in {path}", order.to));
    };
    let source =
        Source { host: &shared.host, identity: &shared.identity, records: &shared.outgoing };
    let mut client = User { channel, is_cancelled: false };
    match source.migrate(order, peer, &mut client) {
        Ok(migrated) => DaemonEvent::Migrated(Box::new(migrated)),
        Err(error @ SourceError::NoVm(_)) => usage(error.to_string()),
        Err(error) => DaemonEvent::Failed { reason: error.to_string(), is_usage: false },
    }
}

/// A migration goes on when the client that ordered it goes away.
struct User<'a> {
    channel: &'a mut Channel,
    is_cancelled: bool,
}

impl Client for User<'_> {
    fn show_step(&mut self, text: &str) {
        let _ = self.channel.send(&DaemonEvent::Progress { text: text.to_owned() });
    }

    fn is_cancelled(&mut self) -> bool {
        self.is_cancelled |= matches!(self.channel.poll(), Ok(Some(Order::Cancel)));
        self.is_cancelled
    }
}

fn serve_watch(
    shared: &Arc<Shared>,
    channel: &mut Channel,
    policy: Option<String>,
    to: Option<String>,
) {
    if let Some(policy) = policy.as_ref().filter(|policy| !is_policy(policy)) {
        let reason = format!("policy {policy}: {}", policies());
        let _ = channel.send(&DaemonEvent::Failed { reason, is_usage: true });
        return;
    }
    if let Some(to) = to.as_ref().filter(|to| !shared.peers().iter().any(|peer| peer.name == **to))
    {
        let reason = format!("there is no peer {to}");
        let _ = channel.send(&DaemonEvent::Failed { reason, is_usage: true });
        return;
    }
    let (tell, reported) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let watch = Watch { policy, to, tell, stop: Arc::clone(&stop) };
    let watcher = {
        let shared = Arc::clone(shared);
        std::thread::spawn(move || watch::run(&shared, &watch))
    };
    loop {
        let sent = match reported.recv_timeout(TICK) {
            Ok(reported) => channel.send(&reported).is_ok(),
            Err(mpsc::RecvTimeoutError::Timeout) => true,
            Err(mpsc::RecvTimeoutError::Disconnected) => false,
        };
        // A client that cancels or goes away does not want it any more.
        if !sent || !matches!(channel.poll::<Order>(), Ok(None)) {
            break;
        }
    }
    stop.store(true, Ordering::Relaxed);
    let _ = watcher.join();
}

impl Shared {
    /// As the file is now; one that became wrong has no peers.
    pub(crate) fn peers(&self) -> Vec<Peer> {
        read_peers(&self.host.config.peers).unwrap_or_else(|error| {
            warn!("{error}");
            Vec::new()
        })
    }
}
