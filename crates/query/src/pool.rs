//! The server's side of the processes that answer queries: it gives each a query, reads for it, and ends it.
//!
//! ```text
//!  query --> queue: a place --> a child that is ready, or a new one --ask--> it plans and runs
//!                                   | <-- which objects? what is in this one? --> catalog, store
//!                                   | <-- answer, idle: ready for the next one
//!                                   +-- time over, gone, odd: killed, and replaced at once
//! ```
//! A child can read what its query is about, through here, and nothing else: no file, no network, no key of a store.

use std::collections::HashSet;
use std::ops::Range;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::query::{Found, FromChild, Object, Question, ToChild, Unanswered};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use rustix::process::Signal;
use sandbox::{Allowance, Channel, Dialogue, Partner, Partners};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::child::QueryChild;
use crate::queue::{Place, Queue};
use crate::remote::PIECE;
use crate::table::{Files, schemas};
use crate::wire::Stream;
use crate::{Limits, QueryError, n_threads};

/// Time to answer in, for a child whose query is over its time: with the rows so far.
const STOPPING: Duration = Duration::from_secs(2);
/// Time until nothing of a query is left in its child.
const SETTLING: Duration = Duration::from_secs(2);
/// Objects that are read for one child at the same time.
const READING: usize = 8;
/// Children that no query needs: one stays, others end after this time.
const UNUSED: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Pool {
    limits: Limits,
    queue: Queue,
    kind: Kind,
    /// Those that are ready; the last one was used last, and has most in its caches.
    ready: Mutex<Vec<Child>>,
}

#[derive(Debug)]
enum Kind {
    /// Made when the first one is needed.
    Processes(Mutex<Option<Arc<Partners>>>),
    /// Threads of this process, for tests of what is around them.
    Threads,
}

/// A child, by one of its queries.
#[derive(Debug)]
struct Child {
    stream: Stream,
    /// `None`: it is a thread.
    process: Option<Partner>,
    used: Instant,
}

/// The objects that a child may read.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) files: Arc<dyn Files>,
}

/// An answer's rows and how many bytes they hold.
pub(crate) type Answered = (Found, Bytes);

impl Pool {
    pub(crate) fn new(limits: Limits, are_processes: bool) -> Self {
        let kind = if are_processes { Kind::Processes(Mutex::default()) } else { Kind::Threads };
        Self { limits, queue: Queue::new(limits.concurrent), kind, ready: Mutex::default() }
    }

    /// A place among those that are answered.
    pub(crate) async fn enter(&self, asker: &str) -> Option<Arc<Place>> {
        self.queue.enter(asker).await.map(Arc::new)
    }

    /// Has a child ready.
    pub(crate) async fn prepare(self: &Arc<Self>) -> Result<(), QueryError> {
        if self.ready().is_empty() {
            let child = self.start().await?;
            self.ready().insert(0, child);
        }
        Ok(())
    }

    /// Process ids of the children that are ready.
    pub(crate) fn ids(&self) -> Vec<u32> {
        let ready = self.ready();
        ready.iter().filter_map(|child| child.process.as_ref().map(Partner::id)).collect()
    }

    /// Has a child answer.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        question: Question,
        source: &Source,
        place: &Arc<Place>,
    ) -> Result<Answered, QueryError> {
        let ready = self.ready().pop();
        let child = match ready {
            Some(child) => child,
            None => self.start().await?,
        };
        let mut held =
            Held { child: Some(child), pool: Arc::clone(self), place: Arc::clone(place) };
        let Some(child) = held.child.as_mut() else { return Err(QueryError::Busy) };
        let late = || QueryError::Late(self.limits.time);
        match Talk::new(self.limits, source).answer(&mut child.stream, question).await {
            Ok((answer, is_stopped)) => {
                if !is_stopped {
                    tokio::spawn(held.settle());
                }
                answer
            }
            Err(Silence::Late) => Err(late()),
            Err(Silence::Gone) => Err(held.end().await.map_or_else(late, ended)),
            Err(Silence::Odd) => Err(QueryError::Ended("sent no valid answer".to_owned())),
        }
    }

    async fn start(&self) -> Result<Child, QueryError> {
        let (stream, process) = match &self.kind {
            Kind::Threads => (start_thread()?, None),
            Kind::Processes(partners) => {
                let partners = self.partners(partners)?;
                let started = tokio::task::spawn_blocking(move || partners.start()).await;
                let process = started.map_err(not_started)?.map_err(not_started)?;
                (process.socket().map_err(not_started)?, Some(process))
            }
        };
        let stream = Stream::new(stream).map_err(not_started)?;
        Ok(Child { stream, process, used: Instant::now() })
    }

    fn partners(&self, known: &Mutex<Option<Arc<Partners>>>) -> Result<Arc<Partners>, QueryError> {
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(partners) = &*known {
            return Ok(Arc::clone(partners));
        }
        let seconds = (self.limits.time + STOPPING).as_secs();
        let allowed = Allowance {
            memory_bytes: (self.limits.memory_bytes / self.limits.concurrent.max(1)) as u64,
            // Half of it is for a last query that takes all that it may.
            cpu_seconds: 2 * seconds * (n_threads() as u64 + 1),
        };
        let partners = Arc::new(Partners::new::<QueryChild>(allowed).map_err(not_started)?);
        Ok(Arc::clone(known.insert(partners)))
    }

    fn ready(&self) -> MutexGuard<'_, Vec<Child>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends children that were not used for a while, all but one.
    async fn retire(self: Arc<Self>) {
        tokio::time::sleep(UNUSED).await;
        let mut unused = Vec::new();
        {
            let mut ready = self.ready();
            // The first one was used the longest time ago.
            while 1 < ready.len() && UNUSED <= ready[0].used.elapsed() {
                unused.push(ready.remove(0));
            }
        }
        let _ = tokio::task::spawn_blocking(move || drop(unused)).await;
    }
}

fn not_started(error: impl std::fmt::Display) -> QueryError {
    QueryError::Ended(format!("can't be started: {error}"))
}

fn start_thread() -> Result<StdStream, QueryError> {
    let (ours, theirs) = StdStream::pair().map_err(not_started)?;
    ours.set_nonblocking(true).map_err(not_started)?;
    let allowed = Allowance { memory_bytes: 1 << 30, cpu_seconds: u64::MAX / 2 };
    std::thread::spawn(move || QueryChild::start(allowed, || 0).talk(Channel::new(theirs.into())));
    Ok(ours)
}

/// How a child ended that was not to end.
fn ended(status: ExitStatus) -> QueryError {
    // So ends a program that gets no memory, or has no stack left.
    if status.signal() == Some(Signal::ABORT.as_raw()) {
        return QueryError::Memory;
    }
    QueryError::Ended(format!("ended: {status}"))
}

/// A child with a query, and the query's place. If the child is still here when this is dropped, it is killed, and only then
/// is the place free.
struct Held {
    child: Option<Child>,
    pool: Arc<Pool>,
    place: Arc<Place>,
}

impl Held {
    /// Waits until nothing of the query is left; the child is ready then for the next one.
    async fn settle(mut self) {
        let Some(child) = self.child.as_mut() else { return };
        let said = timeout(SETTLING, child.stream.next()).await;
        let idle = said.ok().and_then(Result::ok);
        let idle = idle.and_then(|message| postcard::from_bytes(&message).ok());
        if !matches!(idle, Some(FromChild::Idle { is_spent: false })) {
            return;
        }
        child.used = Instant::now();
        let child = self.child.take();
        self.pool.ready().extend(child);
        tokio::spawn(Arc::clone(&self.pool).retire());
    }

    /// Kills the child, and says how it ended.
    async fn end(&mut self) -> Option<ExitStatus> {
        let process = self.child.take()?.process?;
        let ended = tokio::task::spawn_blocking(move || process.end()).await;
        self.replace();
        ended.ok().flatten()
    }

    fn replace(&self) {
        let pool = Arc::clone(&self.pool);
        // If it can't be started, the next query tries again and says why.
        tokio::spawn(async move { drop(pool.prepare().await) });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(child) = self.child.take() else { return };
        let (Some(process), Ok(runtime)) = (child.process, tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let place = Arc::clone(&self.place);
        runtime.spawn_blocking(move || {
            process.end();
            drop(place);
        });
        self.replace();
    }
}

/// Why a child has not answered.
enum Silence {
    Late,
    Gone,
    Odd,
}

/// Reads for a child that are under way.
type Reading<'s> = FuturesUnordered<BoxFuture<'s, (ToChild, Bytes)>>;

/// A message of a child.
enum Said<'s> {
    Read(BoxFuture<'s, (ToChild, Bytes)>),
    Answer(Result<Found, Unanswered>),
}

async fn list(source: &Source, id: u64, table: &'static str) -> (ToChild, Bytes) {
    let object = |object: ObjectMeta| Object {
        name: object.location.to_string(),
        bytes: object.size,
        made_us: object.last_modified.timestamp_micros(),
    };
    let found = source.files.files(table).await;
    let found = found.map(|found| found.into_iter().map(object).collect());
    (ToChild::Files { id, found: found.map_err(|error| error.to_string()) }, Bytes::new())
}

async fn read(source: &Source, id: u64, object: String, range: Range<u64>) -> (ToChild, Bytes) {
    match source.objects.get_range(&Path::from(object), range).await {
        Ok(bytes) => (ToChild::Bytes { id, failed: None }, bytes),
        Err(error) => (ToChild::Bytes { id, failed: Some(error.to_string()) }, Bytes::new()),
    }
}

/// The messages about one query.
struct Talk<'s> {
    limits: Limits,
    source: &'s Source,
    /// Names of the objects that the child knows of.
    known: HashSet<String>,
}

impl<'s> Talk<'s> {
    fn new(limits: Limits, source: &'s Source) -> Self {
        Self { limits, source, known: HashSet::new() }
    }

    /// An answer, and whether the child had to stop.
    async fn answer(
        mut self,
        stream: &mut Stream,
        question: Question,
    ) -> Result<(Result<Answered, QueryError>, bool), Silence> {
        let stop = Instant::now() + self.limits.time;
        let talk = self.talk(stream, question, stop);
        timeout_at(stop + STOPPING, talk).await.unwrap_or(Err(Silence::Late))
    }

    async fn talk(
        &mut self,
        stream: &mut Stream,
        question: Question,
        stop: Instant,
    ) -> Result<(Result<Answered, QueryError>, bool), Silence> {
        let (mut reading, mut is_stopped): (Reading<'s>, _) = (FuturesUnordered::new(), false);
        stream.send(&ToChild::Ask(question), &[]).await.map_err(|_| Silence::Gone)?;
        loop {
            let reply = tokio::select! {
                message = stream.next(), if reading.len() < READING => {
                    let message = message.map_err(|_| Silence::Gone)?;
                    let (said, rest) = postcard::take_from_bytes(&message).map_err(|_| Silence::Odd)?;
                    // One thread of the child writes the answer; the one that ran the query may be done before.
                    if is_stopped && matches!(said, FromChild::Idle { .. }) {
                        continue;
                    }
                    match self.take(said)? {
                        Said::Read(read) => reading.push(read),
                        Said::Answer(Err(reason)) => {
                            return Ok((Err(self.unanswered(reason)), is_stopped));
                        }
                        Said::Answer(Ok(found)) => {
                            let at = message.len() - rest.len();
                            return Ok((Ok((found, Bytes::from(message).slice(at..))), is_stopped));
                        }
                    }
                    continue;
                }
                Some(reply) = reading.next() => {
                    if let ToChild::Files { found: Ok(objects), .. } = &reply.0 {
                        self.known.extend(objects.iter().map(|object| object.name.clone()));
                    }
                    reply
                }
                () = sleep_until(stop), if !is_stopped => {
                    is_stopped = true;
                    (ToChild::Stop { seconds: self.limits.time.as_secs() }, Bytes::new())
                }
            };
            stream.send(&reply.0, &reply.1).await.map_err(|_| Silence::Gone)?;
        }
    }

    fn take(&mut self, said: FromChild) -> Result<Said<'s>, Silence> {
        match said {
            FromChild::Files { id, table } => {
                let (table, _) =
                    schemas().find(|(known, _)| *known == table).ok_or(Silence::Odd)?;
                Ok(Said::Read(Box::pin(list(self.source, id, table))))
            }
            FromChild::Read { id, object, start, end } => {
                let is_range = start < end && end - start <= PIECE;
                if !is_range || !self.known.contains(&object) {
                    return Err(Silence::Odd);
                }
                Ok(Said::Read(Box::pin(read(self.source, id, object, start..end))))
            }
            FromChild::Answer(answer) => Ok(Said::Answer(answer)),
            FromChild::Idle { .. } => Err(Silence::Odd),
        }
    }

    fn unanswered(&self, reason: Unanswered) -> QueryError {
        match reason {
            Unanswered::Invalid(text) => QueryError::Invalid(text),
            Unanswered::Late => QueryError::Late(self.limits.time),
            Unanswered::Memory => QueryError::Memory,
            Unanswered::Damaged(object) => QueryError::Damaged(object),
            Unanswered::Store(text) => QueryError::Store(text),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::remote::Link;

    /// Talks with a child that says this once it has received so many messages.
    async fn talked(
        time: Duration,
        received: usize,
        said: [FromChild; 2],
    ) -> Result<(Result<Answered, QueryError>, bool), Silence> {
        let (ours, theirs) = StdStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let child = std::thread::spawn(move || {
            let channel = Channel::new(theirs.into());
            (0..received).for_each(|_| drop(channel.receive().unwrap()));
            // The server may have hung up after the first one.
            for message in said {
                channel.send(&postcard::to_stdvec(&message).unwrap());
            }
        });
        let objects = Arc::new(object_store::memory::InMemory::new());
        let source = Source { objects, files: Arc::new(Link::default()) };
        let limits = Limits { time, memory_bytes: 1, rows: 1, concurrent: 1 };
        let question = Question { sql: String::new(), values: Vec::new(), rows: 1 };
        let mut stream = Stream::new(ours).unwrap();
        let answered = Talk::new(limits, &source).answer(&mut stream, question).await;
        child.join().unwrap();
        answered
    }

    #[tokio::test]
    async fn a_child_that_is_stopped_may_be_idle_before_it_answers() {
        let said =
            || [FromChild::Idle { is_spent: false }, FromChild::Answer(Err(Unanswered::Memory))];
        let stopped = talked(Duration::from_millis(10), 2, said()).await;
        assert!(matches!(stopped, Ok((Err(QueryError::Memory), true))));
        let other = talked(Duration::from_secs(60), 1, said()).await;
        assert!(matches!(other, Err(Silence::Odd)));
    }
}
