//! Connections: their number, their pace, and the memory of answers that are not read.
//!
//! ```text
//!  connection --> place (in all, and of its address) --> TLS --> requests
//!  answer     --> its bytes count against a budget until they are written or the connection is closed
//!                 written with a pause of at most 10 s, and at 256 KiB/s on the whole
//! ```

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{AddExtension, Next};
use axum::response::{IntoResponse, Response};
use axum_server::accept::Accept;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::http::ApiError;

/// For a request's first line and headers, and for the handshake before.
pub(crate) const HEADER_TIME: Duration = Duration::from_secs(10);
/// Bytes of a request's head at most, and of what is buffered of an answer.
pub(crate) const BUFFER_BYTES: usize = 1 << 16;
/// How long nothing of an answer may be taken.
const PAUSE: Duration = Duration::from_secs(10);
/// The time that an answer may take, whatever its size; and bytes in each second more.
const ANSWER_TIME: Duration = Duration::from_secs(30);
const BYTES_PER_S: u64 = 256 << 10;
/// Answers in memory, KiB.
const ANSWERS_KIB: u32 = 256 << 10;
/// Smaller answers don't count.
const SMALL_BYTES: u64 = 1 << 16;
/// An answer that is read from the store as it is sent.
const STREAM_KIB: u32 = 1 << 10;

/// How many connections there may be.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) connections: usize,
    pub(crate) of_an_address: usize,
    /// Addresses with any number of them: proxies.
    pub(crate) trusted: HashSet<IpAddr>,
}

/// Takes connections, as far as there is room: further ones are closed at once.
#[derive(Debug, Clone)]
pub(crate) struct Acceptor {
    tls: RustlsAcceptor<Plain>,
    room: Arc<Room>,
}

#[derive(Debug)]
struct Room {
    limits: Limits,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    of: HashMap<IpAddr, usize>,
}

/// A connection's place, until it is dropped, and its pace.
#[derive(Debug)]
pub(crate) struct Connection {
    room: Arc<Room>,
    address: IpAddr,
    /// When the answer that is being written must be out.
    until: Mutex<Option<Instant>>,
}

impl Room {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: there are too many.
    fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Connection> {
        let is_trusted = self.limits.trusted.iter().any(|known| known.to_canonical() == address);
        let address = network(address);
        let mut taken = self.taken();
        let of_it = taken.of.get(&address).copied().unwrap_or(0);
        let is_too_many = !is_trusted && self.limits.of_an_address <= of_it;
        if is_too_many || self.limits.connections <= taken.all {
            return None;
        }
        taken.all += 1;
        *taken.of.entry(address).or_default() += 1;
        Some(Connection { room: Arc::clone(self), address, until: Mutex::default() })
    }
}

/// Addresses that one user may have: of IPv6, 64 bits are the user's own.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut taken = self.room.taken();
        taken.all -= 1;
        if let Some(of_it) = taken.of.get_mut(&self.address) {
            *of_it -= 1;
            if *of_it == 0 {
                taken.of.remove(&self.address);
            }
        }
    }
}

impl Connection {
    fn until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Acceptor {
    pub(crate) fn new(tls: RustlsConfig, limits: Limits) -> Self {
        let tls = RustlsAcceptor::new(tls).handshake_timeout(HEADER_TIME).acceptor(Plain);
        Self { tls, room: Arc::new(Room { limits, taken: Mutex::default() }) }
    }
}

/// A connection's service, which knows it.
type Service<S> = AddExtension<S, Arc<Connection>>;

impl<S: Send + 'static> Accept<TcpStream, S> for Acceptor {
    type Stream = <RustlsAcceptor<Plain> as Accept<Paced, S>>::Stream;
    type Service = Service<<RustlsAcceptor<Plain> as Accept<Paced, S>>::Service>;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let address = stream.peer_addr().map(|address| address.ip().to_canonical());
        let (tls, room) = (self.tls.clone(), Arc::clone(&self.room));
        Box::pin(async move {
            let full = || io::Error::other("too many connections");
            let connection = Arc::new(room.enter(address?).ok_or_else(full)?);
            let paced = Paced { stream, connection: Arc::clone(&connection), pause: None };
            let (stream, service) = tls.accept(paced, service).await?;
            Ok((stream, tower_layer::Layer::layer(&Extension(connection), service)))
        })
    }
}

/// Below TLS nothing more is done.
#[derive(Debug, Clone)]
pub(crate) struct Plain;

impl<S: Send + 'static> Accept<Paced, S> for Plain {
    type Stream = Paced;
    type Service = S;
    type Future = std::future::Ready<io::Result<(Paced, S)>>;

    fn accept(&self, stream: Paced, service: S) -> Self::Future {
        std::future::ready(Ok((stream, service)))
    }
}

/// A connection that fails when its other end does not take what is written.
#[derive(Debug)]
pub(crate) struct Paced {
    stream: TcpStream,
    connection: Arc<Connection>,
    /// Since nothing can be written.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Paced {
    /// Nothing can be written now.
    fn waits(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let until = *self.connection.until();
        let pause = self.pause.get_or_insert_with(|| {
            let end = Instant::now() + PAUSE;
            Box::pin(sleep_until(until.map_or(end, |until| end.min(until))))
        });
        ready!(pause.as_mut().poll(context));
        // The kernel keeps nothing of it either.
        let _ = set_socket_linger(&self.stream, Some(Duration::ZERO));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Paced {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Ready(written) => {
                self.pause = None;
                Poll::Ready(written)
            }
            Poll::Pending => self.waits(context),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Memory for answers that are being written.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<Semaphore>);

impl Budget {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(ANSWERS_KIB as usize)))
    }

    fn take(&self, kib: u32) -> Result<OwnedSemaphorePermit, ApiError> {
        let busy = |_| {
            let text = "too many large answers are being sent: try again later";
            ApiError::later(StatusCode::SERVICE_UNAVAILABLE, text.to_owned(), 5)
        };
        Arc::clone(&self.0).try_acquire_many_owned(kib).map_err(busy)
    }
}

/// An answer's bytes and its part of the budget, until they are written.
struct Held {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
    connection: Option<Arc<Connection>>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.connection.iter().for_each(|connection| *connection.until() = None);
    }
}

impl Held {
    fn new(
        bytes: Bytes,
        room: OwnedSemaphorePermit,
        size: u64,
        connection: Option<Arc<Connection>>,
    ) -> Self {
        let time = ANSWER_TIME + Duration::from_secs(size / BYTES_PER_S);
        connection.iter().for_each(|connection| *connection.until() = Some(Instant::now() + time));
        Self { bytes, _room: room, connection }
    }
}

/// Lets an answer go out if there is memory for it.
pub(crate) async fn hold_answer(
    State(budget): State<Budget>,
    request: Request,
    next: Next,
) -> Response {
    let connection = request.extensions().get::<Arc<Connection>>().cloned();
    let response = next.run(request).await;
    held(&budget, response, connection).await.unwrap_or_else(IntoResponse::into_response)
}

async fn held(
    budget: &Budget,
    response: Response,
    connection: Option<Arc<Connection>>,
) -> Result<Response, ApiError> {
    let size = response.body().size_hint().exact();
    if size.is_some_and(|size| size <= SMALL_BYTES) {
        return Ok(response);
    }
    let (parts, body) = response.into_parts();
    let Some(size) = size else {
        let length =
            parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
        let held = Held::new(Bytes::new(), budget.take(STREAM_KIB)?, length, connection);
        let stream = body.into_data_stream().map(move |piece| {
            let _until_the_end = &held;
            piece
        });
        return Ok(Response::from_parts(parts, Body::from_stream(stream)));
    };
    let kib = u32::try_from(size.div_ceil(1 << 10)).unwrap_or(u32::MAX).min(ANSWERS_KIB);
    let room = budget.take(kib)?;
    let failed =
        |error: axum::Error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    let bytes = axum::body::to_bytes(body, usize::MAX).await.map_err(failed)?;
    let bytes = Bytes::from_owner(Held::new(bytes, room, size, connection));
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

#[cfg(test)]
mod test {
    use super::*;

    fn room(connections: usize, of_an_address: usize) -> Arc<Room> {
        let trusted = HashSet::from(["10.0.0.1".parse().unwrap()]);
        let limits = Limits { connections, of_an_address, trusted };
        Arc::new(Room { limits, taken: Mutex::default() })
    }

    #[test]
    fn an_address_has_so_many_connections_and_a_proxy_any_number() {
        let room = room(7, 2);
        let enter = |address: &str| room.enter(address.parse().unwrap());
        let (one, two) = (enter("10.0.0.2"), enter("10.0.0.2"));
        assert!(one.is_some() && two.is_some() && enter("10.0.0.2").is_none());
        // Addresses of one network are one user's.
        let six = [enter("2001:db8::1"), enter("2001:db8::ffff:2")];
        assert!(six.iter().all(Option::is_some) && enter("2001:db8::3").is_none());
        let proxied: Vec<_> = (0..9).map_while(|_| enter("10.0.0.1")).collect();
        assert_eq!(proxied.len(), 3, "in all there are seven");
        drop((one, proxied));
        assert!(enter("10.0.0.2").is_some());
        drop((two, six));
        let taken = room.taken();
        assert_eq!((taken.all, taken.of.len()), (0, 0));
    }

    #[tokio::test]
    async fn answers_count_until_their_bytes_are_gone() {
        let budget = Budget(Arc::new(Semaphore::new(1000)));
        let answer = |kib: usize| Response::new(Body::from(vec![1; kib << 10]));
        let large = held(&budget, answer(600), None).await.unwrap();
        let small = held(&budget, answer(64), None).await.unwrap();
        assert_eq!(budget.0.available_permits(), 400);
        let refused = held(&budget, answer(600), None).await.unwrap_err().into_response();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.headers().contains_key(header::RETRY_AFTER));
        // As a connection does: the body is gone before its bytes are written.
        let bytes = axum::body::to_bytes(large.into_body(), usize::MAX).await.unwrap();
        assert_eq!((bytes.len(), budget.0.available_permits()), (600 << 10, 400));
        drop((bytes, small));
        assert_eq!(budget.0.available_permits(), 1000);
    }
}
