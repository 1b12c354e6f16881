//! The host that a VM leaves: sends what was counted ahead, has QEMU migrate the VM, and ends what is left of it here.
//!
//! ```text
//!  counters --> destination is ready --> QEMU: migrate --> passes --> completed --> QEMU here ends
//!     |                |                                      |           \__ Arrived
//!     |   refused, silent, gone: with an address given,       +--> Look
//!     |   QEMU migrates all the same                          failed, cancelled, stalled: the VM runs on here
//! ```
//!
//! QEMU hands the VM over by itself, over its own connection: with its return path it gives the VM up when the other QEMU has
//! said that the VM runs there, and has it run on here when that is not said.

use std::path::Path;
use std::time::{Duration, Instant};

use api::layout::{
    Counters, DestinationMessage, HostLayout, MigrateOrder, Migrated, Offer, SourceMessage,
    StartedBy, VERSION,
};
use numa::VmProcess;
use qmp::{CAPABILITIES, Migration, MigrationState, QmpError, Session};
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::PROC;
use crate::channel::{Channel, ChannelError};
use crate::identity::Identity;
use crate::offer::{check_layout, cut, source_name, to_wire};
use crate::peers::Peer;
use crate::records::{Record, Records};
use crate::this_host::{ThisHost, Use};

/// For an answer that needs no work.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// For what the destination says after its last message, besides what its moves may take.
const READY_LIMIT: Duration = Duration::from_secs(330);
/// Between two looks at QEMU.
const LOOK: Duration = Duration::from_millis(200);
/// How long a QEMU may take to end, and a VM to run on.
const END_LIMIT: Duration = Duration::from_secs(20);
/// A destination may move memory of the VM that came after its last word.
const REPORT_LIMIT: Duration = Duration::from_secs(120);

/// A VM on this host, with what QEMU and the kernel say of it.
#[derive(Debug)]
pub(crate) struct OutgoingVm {
    pub(crate) process: VmProcess,
    pub(crate) session: Session,
    pub(crate) monitor: std::path::PathBuf,
    uuid: Option<String>,
    memory: u64,
    ran_s: f64,
}

/// Why a migration did not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error("no VM {0} runs on this host")]
    NoVm(String),
    #[error("VM {vm} has no QMP monitor: start it with -qmp unix:PATH,server=on,wait=off")]
    NoMonitor { vm: String },
    #[error("VM {vm}: {source}")]
    Monitor { vm: String, source: QmpError },
    #[error("VM {vm} is {state}: only a running VM can be migrated")]
    NotRunning { vm: String, state: String },
    #[error("VM {0} is being migrated already")]
    UnderWay(String),
    #[error("{0}")]
    Probe(#[from] probes::ProbeError),
    #[error("{0}")]
    Numa(#[from] numa::NumaError),
}

/// A destination that gets a VM's counters.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) peer: String,
    channel: Channel,
    /// Where its QEMU waits, if it started one.
    pub(crate) address: Option<std::net::SocketAddr>,
    pub(crate) layout: HostLayout,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DestinationError {
    #[error("{peer} refused: {reason}")]
    Refused { peer: String, reason: String },
    #[error("{peer}: {source}")]
    Channel { peer: String, source: ChannelError },
    #[error("{0} sent an invalid message")]
    Nonsense(String),
    #[error("it was cancelled")]
    Cancelled,
}

/// What the one who ordered hears and wants meanwhile.
pub(crate) trait Client {
    /// Shows that a long step begins.
    fn show_step(&mut self, text: &str);
    /// Whether it is not wanted any more.
    fn is_cancelled(&mut self) -> bool;
}

impl OutgoingVm {
    /// The VM of this name, and a session with its QEMU.
    pub(crate) fn find(host: &ThisHost, vm: &str) -> Result<Self, SourceError> {
        Self::find_by(host, vm, |process| process.name == vm)
    }

    /// The VM of this process, and a session with its QEMU.
    pub(crate) fn for_vm(host: &ThisHost, vm: &VmProcess) -> Result<Self, SourceError> {
        let is_it = |process: &VmProcess| (process.pid, process.started) == (vm.pid, vm.started);
        Self::find_by(host, &vm.name, is_it)
    }

    fn find_by(
        host: &ThisHost,
        vm: &str,
        is_it: impl Fn(&VmProcess) -> bool,
    ) -> Result<Self, SourceError> {
        let found = host.find()?;
        let this = host.read(&found)?;
        let no_vm = || SourceError::NoVm(vm.to_owned());
        let here = this.vms.into_iter().find(|here| is_it(&here.process)).ok_or_else(no_vm)?;
        let described = host::vms::describe(Path::new(PROC), here.process.pid.0, "");
        let monitor =
            described.monitor.ok_or_else(|| SourceError::NoMonitor { vm: vm.to_owned() })?;
        let failed = |source| SourceError::Monitor { vm: vm.to_owned(), source };
        let session = Session::open(&monitor, described.user).map_err(failed)?;
        // Read-only memory, firmware for instance, is not what a node is chosen for.
        let slots = found.iter().filter(|found| found.pid == here.process.pid);
        let slots = slots.flat_map(|found| &found.slots).filter(|slot| !slot.read_only);
        let memory = slots.map(|slot| slot.pages.saturating_mul(4096)).sum();
        Ok(Self {
            process: here.process,
            session,
            monitor: monitor.path().to_owned(),
            uuid: described.uuid,
            memory,
            ran_s: here.ran_s,
        })
    }

    fn check(&mut self) -> Result<(), SourceError> {
        let vm = self.process.name.clone();
        let failed = |source| SourceError::Monitor { vm: vm.clone(), source };
        let migration = self.session.migration().map_err(failed)?;
        if matches!(migration.state, MigrationState::Setup | MigrationState::Active) {
            return Err(SourceError::UnderWay(vm));
        }
        let state = self.session.run_state().map_err(failed)?;
        if state == "running" { Ok(()) } else { Err(SourceError::NotRunning { vm, state }) }
    }

    pub(crate) fn offer(&self, policy: Option<&str>, started_by: StartedBy) -> Offer {
        Offer {
            vm: self.process.name.clone(),
            uuid: self.uuid.clone(),
            vcpus: u32::try_from(self.process.threads.len()).unwrap_or(u32::MAX),
            memory: self.memory,
            ran_s: self.ran_s,
            policy: policy.map(str::to_owned),
            started_by,
        }
    }
}

/// What was counted, as it is sent.
pub(crate) fn counters(used: &Use) -> Counters {
    Counters {
        source: source_name(used.source).to_owned(),
        age_s: used.age.as_secs_f64(),
        samples: used.samples.iter().map(to_wire).collect(),
    }
}

/// The report of a migration that has only counters yet.
pub(crate) fn begun(vm: &str, to: Option<&str>, counters: &Counters) -> Migrated {
    Migrated {
        vm: vm.to_owned(),
        to: to.map(str::to_owned),
        moved: false,
        reason: None,
        prepared_ns: 0,
        total_ms: 0,
        downtime_ms: 0,
        sent_bytes: 0,
        samples: counters.samples.len() as u64,
        counters: Some(Counters { samples: Vec::new(), ..counters.clone() }),
        before: None,
        after: None,
        notes: Vec::new(),
    }
}

impl Destination {
    /// Tells a peer about a VM, and waits until it is ready.
    pub(crate) fn ready(
        identity: &Identity,
        peer: &Peer,
        offer: Offer,
        counters: Counters,
        limit: Duration,
        client: &mut dyn Client,
    ) -> Result<Self, DestinationError> {
        let name = peer.name.clone();
        let failed = |source| DestinationError::Channel { peer: name.clone(), source };
        let nonsense = || DestinationError::Nonsense(name.clone());
        let mut channel = Channel::connect(identity, peer).map_err(failed)?;
        channel.send(&SourceMessage::Hello { version: VERSION }).map_err(failed)?;
        match channel.receive(ANSWER_LIMIT).map_err(failed)? {
            DestinationMessage::Hello { version: VERSION } => {}
            DestinationMessage::Refused { reason } => {
                return Err(DestinationError::Refused { peer: name, reason: cut(reason) });
            }
            _ => return Err(nonsense()),
        }
        channel.send(&SourceMessage::Offer(offer)).map_err(failed)?;
        channel.send(&SourceMessage::Counters(counters)).map_err(failed)?;
        let start = Instant::now();
        loop {
            if client.is_cancelled() {
                let reason = "it was cancelled".to_owned();
                let _ = channel.send(&SourceMessage::Abandoned { reason });
                return Err(DestinationError::Cancelled);
            }
            match channel.poll().map_err(failed)? {
                None if limit <= start.elapsed() => {
                    return Err(failed(ChannelError::TimedOut(limit)));
                }
                None => {}
                Some(DestinationMessage::Progress { text }) => {
                    client.show_step(&format!("{name}: {}", cut(text)))
                }
                Some(DestinationMessage::Ready { address, layout }) => {
                    let layout = check_layout(layout);
                    return Ok(Self { peer: name, channel, address, layout });
                }
                Some(DestinationMessage::Refused { reason }) => {
                    return Err(DestinationError::Refused { peer: name, reason: cut(reason) });
                }
                Some(_) => return Err(nonsense()),
            }
        }
    }

    /// Where everything is now.
    pub(crate) fn look(&mut self) -> Result<HostLayout, ChannelError> {
        self.channel.send(&SourceMessage::Look)?;
        self.layout(ANSWER_LIMIT)
    }

    /// The VM runs there.
    pub(crate) fn arrived(&mut self) -> Result<HostLayout, ChannelError> {
        self.channel.send(&SourceMessage::Arrived)?;
        self.layout(REPORT_LIMIT)
    }

    /// The VM stays here.
    pub(crate) fn abandon(&mut self, reason: &str) {
        // A destination that does not hear it will see it.
        let _ = self.channel.send(&SourceMessage::Abandoned { reason: reason.to_owned() });
    }

    fn layout(&mut self, limit: Duration) -> Result<HostLayout, ChannelError> {
        match self.channel.receive(limit)? {
            DestinationMessage::Layout(layout) => Ok(check_layout(layout)),
            _ => Err(ChannelError::Closed),
        }
    }
}

/// What both need who migrate a VM and who only watch.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub(crate) host: &'a ThisHost,
    pub(crate) identity: &'a Identity,
    pub(crate) records: &'a Records,
}

impl Source<'_> {
    /// Migrates a VM to a peer.
    pub(crate) fn migrate(
        &self,
        order: &MigrateOrder,
        peer: &Peer,
        client: &mut dyn Client,
    ) -> Result<Migrated, SourceError> {
        let begin = Instant::now();
        let mut leaving = OutgoingVm::find(self.host, &order.vm)?;
        leaving.check()?;
        let used = self.host.use_of(&leaving.process, begin);
        let counters = counters(&used);
        let mut result = begun(&order.vm, Some(&peer.name), &counters);
        client.show_step(&format!("preparing {}", peer.name));
        let started_by = if order.uri.is_some() { StartedBy::Others } else { StartedBy::Daemon };
        let offer = leaving.offer(order.policy.as_deref(), started_by);
        let limit = READY_LIMIT + Duration::from_secs(self.host.config.move_residents_s);
        let destination = Destination::ready(self.identity, peer, offer, counters, limit, client);
        result.prepared_ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut destination = match destination {
            Ok(destination) => Some(destination),
            Err(DestinationError::Cancelled) => {
                result.reason = Some(DestinationError::Cancelled.to_string());
                return Ok(result);
            }
            Err(error) if order.uri.is_some() => {
                result.notes.push(format!("migrated with the kernel's layout: {error}"));
                None
            }
            Err(error) => {
                result.reason = Some(error.to_string());
                return Ok(result);
            }
        };
        let address = destination.as_ref().and_then(|destination| destination.address);
        let uri = order.uri.clone().or(address.map(|address| format!("tcp:{address}")));
        let Some(uri) = uri else {
            result.reason = Some(format!("{} does not say where its QEMU waits", peer.name));
            return Ok(result);
        };
        result.before = destination.as_ref().map(|destination| destination.layout.clone());
        self.send(&mut leaving, &uri, destination.as_mut(), client, &mut result);
        Ok(result)
    }

    /// Has QEMU migrate the VM.
    fn send(
        &self,
        leaving: &mut OutgoingVm,
        uri: &str,
        mut destination: Option<&mut Destination>,
        client: &mut dyn Client,
        result: &mut Migrated,
    ) {
        let record = Record {
            vm: leaving.process.name.clone(),
            pid: leaving.process.pid.0,
            started: leaving.process.started,
            monitor: leaving.monitor.clone(),
        };
        if let Err(error) = self.records.write(&record) {
            result
                .notes
                .push(format!("a restarted daemon will not know of this migration: {error}"));
        }
        client.show_step(&format!("migrating {}", leaving.process.name));
        info!("migrating {} to {}", leaving.process.name, result.to.as_deref().unwrap_or(uri));
        let outcome = begin(&mut leaving.session, &self.host.config, uri).and_then(|()| {
            follow(
                &mut leaving.session,
                self.host.config.stall(),
                destination.as_deref_mut(),
                client,
                result,
            )
        });
        match outcome {
            Ok(migration) if migration.state == MigrationState::Completed => {
                account(result, &migration);
                self.left(&mut leaving.session, &record, result);
            }
            Ok(migration) => {
                let reason = migration.reason.unwrap_or_else(|| match migration.state {
                    MigrationState::Cancelled => "the migration was cancelled".to_owned(),
                    _ => "QEMU failed to migrate it".to_owned(),
                });
                result.reason = result.reason.take().or(Some(reason));
                runs_on(&mut leaving.session, result);
            }
            // QEMU goes on without us: its result is read anew.
            Err(error) => match adopt(&record) {
                Some(migration) if migration.state == MigrationState::Completed => {
                    account(result, &migration);
                    result.moved = true;
                }
                Some(_) => result.reason = Some(error.to_string()),
                // It may have handed the VM over: the destination has no verdict, and waits.
                None => {
                    result.reason = Some("its QEMU ended while it was migrated".to_owned());
                    destination = None;
                }
            },
        }
        self.records.remove(&record);
        tell_destination(destination, result);
        match &result.reason {
            Some(reason) => warn!("{}: {reason}", leaving.process.name),
            None => info!("{}: it left", leaving.process.name),
        }
    }

    /// The VM runs at its destination: what is left of it here ends.
    fn left(&self, session: &mut Session, record: &Record, result: &mut Migrated) {
        result.moved = true;
        if let Err(error) = end(session, record) {
            result.notes.push(format!("its QEMU on this host did not end: {error}"));
        }
    }
}

/// Ends the QEMU of a VM that has left.
pub(crate) fn end(session: &mut Session, record: &Record) -> Result<(), QmpError> {
    match session.ask("quit", None) {
        Ok(_) | Err(QmpError::Ended) => {}
        Err(error) => return Err(error),
    }
    let start = Instant::now();
    while record.is_there() {
        if END_LIMIT <= start.elapsed() {
            return Err(QmpError::TimedOut(END_LIMIT));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The destination's last message, and the verdict it gets.
pub(crate) fn tell_destination(destination: Option<&mut Destination>, result: &mut Migrated) {
    let Some(destination) = destination else { return };
    if !result.moved {
        return destination.abandon(result.reason.as_deref().unwrap_or("it stays"));
    }
    match destination.arrived() {
        Ok(layout) => result.after = Some(layout),
        Err(error) => {
            let peer = &destination.peer;
            result.notes.push(format!("{peer} does not say where everything is now: {error}"));
        }
    }
}

fn begin(session: &mut Session, config: &crate::Config, uri: &str) -> Result<(), QmpError> {
    session.set_capabilities(CAPABILITIES)?;
    let mut parameters = json!({ "downtime-limit": config.downtime_ms });
    if let Some(bandwidth) = config.bandwidth {
        parameters["max-bandwidth"] = json!(bandwidth);
    }
    session.ask("migrate-set-parameters", Some(&parameters))?;
    // Those of earlier migrations.
    session.take_events();
    session.ask("migrate", Some(&json!({ "uri": uri }))).map(drop)
}

/// Until the migration is over.
fn follow(
    session: &mut Session,
    stall: Duration,
    mut destination: Option<&mut Destination>,
    client: &mut dyn Client,
    result: &mut Migrated,
) -> Result<Migration, QmpError> {
    let mut progress = Progress::new();
    let mut has_looked = false;
    loop {
        let events = session.events_within(LOOK)?;
        if events.iter().any(|event| event.name == "STOP") {
            info!("{}: stands still, QEMU hands it over", result.vm);
        }
        let pass = events.iter().filter(|event| event.name == "MIGRATION_PASS");
        let passes = pass.filter_map(|event| event.data["pass"].as_u64()).max().unwrap_or(0);
        if let Some(destination) = destination.as_deref_mut()
            && !has_looked
            && 2 <= passes
        {
            has_looked = true;
            look(destination, result);
        }
        let migration = session.migration()?;
        if migration.state.is_over() {
            return Ok(migration);
        }
        if client.is_cancelled() {
            result.reason = Some("it was cancelled".to_owned());
            session.ask("migrate_cancel", None)?;
        } else if progress.stalled(&migration, stall) {
            result.reason = Some(format!("nothing was sent for {} s", stall.as_secs()));
            session.ask("migrate_cancel", None)?;
        }
    }
}

fn look(destination: &mut Destination, result: &mut Migrated) {
    match destination.look() {
        Ok(layout) => result.before = Some(layout),
        Err(error) => {
            let peer = &destination.peer;
            result.notes.push(format!("{peer} does not answer any more: {error}"));
        }
    }
}

/// Whether something is still sent.
#[derive(Debug)]
struct Progress {
    seen: (u64, u64),
    since: Instant,
}

impl Progress {
    fn new() -> Self {
        Self { seen: (0, 0), since: Instant::now() }
    }

    fn stalled(&mut self, migration: &Migration, limit: Duration) -> bool {
        let seen = (migration.sent, migration.passes);
        if seen != self.seen {
            *self = Self { seen, since: Instant::now() };
        }
        limit <= self.since.elapsed()
    }
}

/// After a migration that failed QEMU has the VM run on by itself; this is looked at.
fn runs_on(session: &mut Session, result: &mut Migrated) {
    let start = Instant::now();
    while start.elapsed() < END_LIMIT {
        match session.run_state().as_deref() {
            Ok("running") => return,
            Ok(_) => std::thread::sleep(LOOK),
            Err(error) => return result.notes.push(error.to_string()),
        }
    }
    result.notes.push("QEMU does not say that the VM runs on".to_owned());
}

/// Goes on with a migration without a client: waits for its end, and ends the QEMU of a VM that has left.
/// `None`: that QEMU is gone.
pub(crate) fn adopt(record: &Record) -> Option<Migration> {
    let mut session = None;
    while record.is_there() {
        let vm = host::vms::describe(Path::new(PROC), record.pid, "");
        let monitor = vm.monitor.unwrap_or_else(|| record.monitor.clone().into());
        let requested = match &mut session {
            None => Session::open(&monitor, vm.user).map(|opened| session = Some(opened)),
            Some(open) => match open.migration() {
                Ok(migration) if migration.state == MigrationState::Completed => {
                    if let Err(error) = end(open, record) {
                        warn!("{}: its QEMU did not end: {error}", record.vm);
                    }
                    return Some(migration);
                }
                Ok(Migration { state: MigrationState::Setup | MigrationState::Active, .. }) => {
                    Ok(())
                }
                Ok(over) => return Some(over),
                Err(error) => Err(error),
            },
        };
        if requested.is_err() {
            session = None;
        }
        std::thread::sleep(LOOK);
    }
    None
}

pub(crate) fn account(result: &mut Migrated, migration: &Migration) {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    (result.total_ms, result.downtime_ms) = (ms(migration.total), ms(migration.downtime));
    result.sent_bytes = migration.sent;
}

/// The state that a MIGRATION event tells.
pub(crate) fn event_state(event: &qmp::Event) -> Option<MigrationState> {
    let status = event.data.get("status").and_then(Value::as_str)?;
    (event.name == "MIGRATION").then(|| MigrationState::from_name(status))
}
