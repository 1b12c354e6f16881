//! The fleet's server: receives the windows of many hosts, stores them, analyses them, and answers questions about them.
//!
//! ```text
//!  agents --PUT--> receive --> store: raw --> analyze --> store: results --> query --> users
//!                     |          ^ the truth: objects whose names follow from the window, each made once
//!                     +--> refused
//! ```
//! Design constraints: whatever comes over the network is bounded before it is kept, and parsed by `worker`, a process
//! without privileges. Nothing is remembered that can't be made again from the store, so a server can be killed at any time,
//! and several can share a store. What is not stored durably is not acknowledged.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

mod admin;
mod alerts;
mod analyze;
mod auth;
mod compact;
mod config;
mod destination;
mod expire;
mod fleet_sums;
mod http;
mod metrics;
mod net;
mod object_names;
mod operator_notes;
mod profiles;
mod receive;
mod refused;
mod repair;
mod results;
mod store;
mod tls;
mod totals;
mod watch;
mod worker;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use model::error_chain;
use query::{Engine, Limits};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Semaphore;
use tracing::{info, warn};

pub use admin::{analyze, left, make_token, objects};
pub use alerts::Format;
pub use api::http::Role;
pub use config::{Config, Proxy, QueryLimits, RollUp};
pub use destination::Destination;
pub use http::description;
pub use object_names::StoredWindow;
pub use query::Scope;
pub use recording::window::HostName;

use analyze::Queue;
use auth::Auth;
use expire::ClockTrust;
use fleet_sums::Sums;
use metrics::Metrics;
use operator_notes::Handled;
use receive::Receiver;
use refused::Refused;
use store::Store;
use tls::Identity;
use watch::Watch;

/// For what is being answered when the server stops.
const STOP_TIME: Duration = Duration::from_secs(30);

/// Is a process without privileges, if this process was started for that: a program's first call. `None`: it was not.
#[must_use]
pub fn serve_child() -> Option<std::process::ExitCode> {
    worker::serve().or_else(query::serve_child)
}

/// A warning at the start.
const NO_LANDLOCK: &str = "this kernel has no Landlock: a process that a window takes over can read and change files of \
    the server's user (add landlock to the kernel's lsm=, Linux 5.13 or later)";

/// Everything that the parts share.
#[derive(Debug)]
struct Server {
    config: Config,
    store: Store,
    auth: Auth,
    identity: Identity,
    receiver: Receiver,
    refused: Refused,
    queue: Queue,
    doubt: ClockTrust,
    engine: Engine,
    watch: Watch,
    handled: Handled,
    refused_messages: alerts::RefusedMessages,
    profiles: profiles::Queues,
    sums: Sums,
    /// Room for windows that are analysed by the second.
    seconds: Arc<Semaphore>,
    metrics: Metrics,
    started: chrono::DateTime<chrono::Utc>,
}

impl Server {
    fn open(config: Config) -> Result<Self> {
        std::fs::create_dir_all(&config.state)
            .with_context(|| format!("failed to create {}", config.state.display()))?;
        let store = open_store(&config)?;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let spool = spool(&config.state)?;
        let receiver = Receiver::new(spool, config.max_receiving, config.max_window_bytes, cpus);
        let QueryLimits { seconds, memory_mib, rows, concurrent } = config.query;
        let limits = Limits {
            time: Duration::from_secs(seconds),
            memory_bytes: memory_mib << 20,
            rows,
            concurrent,
        };
        Ok(Self {
            auth: Auth::new(store.clone()),
            identity: Identity::open(&config)?,
            refused: Refused::new(store.clone()),
            queue: Queue::default(),
            doubt: ClockTrust::default(),
            engine: engine(store.objects(), limits)?,
            watch: Watch::default(),
            handled: Handled::new(store.clone()),
            refused_messages: alerts::RefusedMessages::default(),
            profiles: profiles::Queues::new(),
            sums: Sums::default(),
            seconds: Arc::new(Semaphore::new(http::AT_ONCE)),
            metrics: Metrics::new(),
            started: chrono::Utc::now(),
            receiver,
            store,
            config,
        })
    }

    fn n_workers(&self) -> usize {
        match self.config.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        }
    }

    /// Has a process ready for the first query.
    async fn prepare_queries(self: Arc<Self>) {
        if let Err(error) = self.engine.prepare().await {
            warn!("no query can be answered: {error}");
        }
    }

    async fn renew_for_ever(self: Arc<Self>, tls: RustlsConfig) {
        let mut made = SystemTime::now();
        loop {
            tokio::time::sleep(tls::LOOK_EVERY).await;
            let now = SystemTime::now();
            // Also a clock that was set, to either side, makes it too old, or of the future.
            let age = now.duration_since(made).unwrap_or_else(|ahead| ahead.duration());
            if age < tls::RENEW_AFTER {
                continue;
            }
            made = now;
            match self.identity.tls() {
                Ok(new) => tls.reload_from_config(Arc::new(new)),
                Err(error) => {
                    warn!("failed to renew the certificate: {}", error_chain(error.as_ref()));
                }
            }
        }
    }
}

/// A test's program is no child's.
fn engine(objects: Arc<dyn object_store::ObjectStore>, limits: Limits) -> std::io::Result<Engine> {
    if cfg!(test) { Engine::here(objects, limits) } else { Engine::new(objects, limits) }
}

/// An empty folder for what is being received: what was not acknowledged is sent again.
fn spool(state: &Path) -> Result<std::path::PathBuf> {
    let spool = state.join("spool");
    let failed = || format!("failed to empty {}", spool.display());
    if spool.exists() {
        std::fs::remove_dir_all(&spool).with_context(failed)?;
    }
    let mut folder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
    folder.create(&spool).with_context(failed)?;
    Ok(spool.canonicalize()?)
}

/// Serves until it is stopped.
///
/// # Errors
/// When it can't start: a folder, the store, the address.
pub fn run(config: Config) -> Result<()> {
    sandbox::return_large_blocks();
    // First: a second server that finds the address taken must not empty the first one's folder.
    let address = config.listen;
    let listener =
        TcpListener::bind(address).with_context(|| format!("failed to listen on {address}"))?;
    listener.set_nonblocking(true)?;
    let runtime = runtime()?;
    let served = runtime.block_on(async {
        let server = Arc::new(Server::open(config)?);
        let tls = server.identity.start()?;
        if !sandbox::has_landlock() {
            // `worker` may open files: seccomp can't tell those of its folder from others.
            warn!("{NO_LANDLOCK}");
        }
        info!("certificate authority SHA-256 {}", server.identity.fingerprint);
        let tasks = start(&server, tls.clone())?;
        // A process that sees that it listens may stop it.
        let stop = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        let address = listener.local_addr()?;
        info!("listening on https://{address}");
        let served = serve(&server, listener, tls, stop).await;
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        server.store_learned(Duration::ZERO).await;
        served
    });
    // Workers that are still at work end with this process; their windows are found at the next start.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

fn open_store(config: &Config) -> Result<Store> {
    let place = &config.store;
    Store::open(place).with_context(|| format!("failed to open the store {place}"))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().build().context("failed to start threads")
}

fn start(server: &Arc<Server>, tls: RustlsConfig) -> Result<Vec<tokio::task::JoinHandle<()>>> {
    let mut tasks = vec![
        tokio::spawn(Arc::clone(server).search_for_ever()),
        tokio::spawn(Arc::clone(server).expire_for_ever()),
        tokio::spawn(Arc::clone(server).compact_for_ever()),
        tokio::spawn(Arc::clone(server).repair_for_ever()),
        tokio::spawn(Arc::clone(server).watch_for_ever()),
        tokio::spawn(Arc::clone(server).sum_up_for_ever()),
        tokio::spawn(Arc::clone(server).renew_for_ever(tls)),
        tokio::spawn(Arc::clone(server).prepare_queries()),
    ];
    tasks.extend(alerts::start(server)?);
    tasks.extend(profiles::start(server)?);
    let workers = (0..server.n_workers()).map(|_| Arc::clone(server).analyze_for_ever());
    tasks.extend(workers.map(tokio::spawn));
    Ok(tasks)
}

async fn serve(
    server: &Arc<Server>,
    listener: TcpListener,
    tls: RustlsConfig,
    [mut term, mut int]: [Signal; 2],
) -> Result<()> {
    let handle = Handle::new();
    let stopping = handle.clone();
    tokio::spawn(async move {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        info!("stopping");
        stopping.graceful_shutdown(Some(STOP_TIME));
    });
    let proxies = server.config.proxy.iter().flat_map(|proxy| &proxy.addresses);
    let limits = net::Limits {
        connections: server.config.max_connections,
        of_an_address: server.config.max_connections_of_address,
        trusted: proxies.copied().collect(),
    };
    let mut listening = axum_server::from_tcp(listener)?
        .handle(handle)
        .http1_only()
        .first_request_timeout(net::HEADER_TIME)
        .acceptor(net::Acceptor::new(tls, limits));
    listening
        .http_builder()
        .http1()
        .header_read_timeout(net::HEADER_TIME)
        .max_buf_size(net::BUFFER_BYTES);
    let router = http::router(Arc::clone(server));
    listening.serve(router.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
