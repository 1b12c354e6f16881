//! Migrations that others start, libvirt or an operator: noticed by QEMU's events, and their destinations told.
//!
//! ```text
//!  for each VM with a monitor: MIGRATION setup --> peers: who has a QEMU that waits for it? --> that one plans, and has
//!  the pages that come lie where they should; after the switch-over what lies elsewhere is moved
//! ```
//!
//! Nothing is begun, stopped or ended here.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::layout::{Counters, Migrated, StartedBy, Told};
use model::Pid;
use qmp::{MigrationState, QmpError};

use crate::PROC;
use crate::daemon::Shared;
use crate::peers::Peer;
use crate::source::{self, Client, Destination, Leaving};

/// VMs that are watched at most: each takes a thread and a connection.
const MOST_VMS: usize = 256;
/// Between two looks for VMs that came.
const LOOK: Duration = Duration::from_secs(5);
/// How long one may wait for events before it looks whether it is still wanted.
const WAIT: Duration = Duration::from_millis(500);
/// Peers may plan for so long: pages are coming.
const READY_LIMIT: Duration = Duration::from_secs(120);

/// What is watched.
#[derive(Debug, Clone)]
pub(crate) struct Watch {
    pub(crate) policy: Option<String>,
    /// The only peer that is asked.
    pub(crate) to: Option<String>,
    pub(crate) tell: Sender<Told>,
    /// Set when nobody listens any more.
    pub(crate) stop: Arc<std::sync::atomic::AtomicBool>,
}

impl Watch {
    fn is_over(&self) -> bool {
        self.stop.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn say(&self, text: String) {
        let _ = self.tell.send(Told::Progress { text });
    }
}

/// Watches until nobody listens any more.
pub(crate) fn run(shared: &Arc<Shared>, watch: &Watch) {
    // By process: why one is not watched is told once.
    let watched: Arc<Mutex<BTreeMap<(Pid, u64), bool>>> = Arc::default();
    while !watch.is_over() {
        let found = shared.host.find().unwrap_or_default();
        let processes = numa::processes(Path::new(PROC), &found);
        for process in processes.into_iter().flatten().filter(|vm| !vm.threads.is_empty()) {
            let id = (process.pid, process.started);
            let mut all = lock(&watched);
            if all.contains_key(&id) || MOST_VMS <= all.len() {
                continue;
            }
            all.insert(id, true);
            let (shared, watch, watched) =
                (Arc::clone(shared), watch.clone(), Arc::clone(&watched));
            std::thread::spawn(move || {
                if let Err(error) = one(&shared, &watch, &process.name) {
                    watch.say(format!("not watching {}: {error}", process.name));
                }
                // A process of this number that began later is another VM.
                lock(&watched).insert(id, false);
            });
        }
        let look = Instant::now();
        while look.elapsed() < LOOK && !watch.is_over() {
            std::thread::sleep(WAIT);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches one VM until it is gone.
fn one(shared: &Shared, watch: &Watch, vm: &str) -> Result<(), String> {
    let mut leaving = Leaving::find(&shared.host, vm).map_err(|error| error.to_string())?;
    let begins = |state| matches!(state, MigrationState::Setup | MigrationState::Active);
    let now = leaving.session.migration().map_err(|error| error.to_string())?;
    let mut has_begun = begins(now.state);
    // While it migrates QEMU does not change that; then nobody needs to wait for the event.
    if !has_begun {
        leaving.session.set_capabilities(&[("events", true)]).map_err(|error| error.to_string())?;
    }
    watch.say(format!("watching {vm}"));
    while !watch.is_over() {
        if has_begun {
            let migrated = follow(shared, watch, &mut leaving);
            let _ = watch.tell.send(Told::Migrated(Box::new(migrated)));
        }
        let events = match leaving.session.events_within(WAIT) {
            Err(QmpError::Ended) => return Ok(()),
            events => events.map_err(|error| error.to_string())?,
        };
        has_begun = events.iter().filter_map(source::event_state).any(begins);
    }
    Ok(())
}

/// Follows a migration that somebody has begun.
fn follow(shared: &Shared, watch: &Watch, leaving: &mut Leaving) -> Migrated {
    // The event came at once; what was counted in the second that it was in is left out.
    let begin = Instant::now();
    let before = begin.checked_sub(Duration::from_secs(1)).unwrap_or(begin);
    let vm = leaving.process.name.clone();
    watch.say(format!("{vm} is being migrated"));
    let counters = source::counters(&shared.host.use_of(&leaving.process, before));
    let mut result = source::begun(&vm, None, &counters);
    let mut destination = find_destination(shared, watch, leaving, &counters, &mut result);
    result.prepared_ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    if let Some(destination) = &destination {
        result.to = Some(destination.peer.clone());
        result.before = Some(destination.layout.clone());
    }
    let mut has_looked = false;
    loop {
        if let Some(destination) = destination.as_mut().filter(|_| !has_looked) {
            has_looked = true;
            result.before = destination.look().ok().or(result.before);
        }
        match leaving.session.migration() {
            Ok(migration) if migration.state.is_over() => {
                result.moved = migration.state == MigrationState::Completed;
                source::account(&mut result, &migration);
                if !result.moved {
                    let cancelled = || "the migration failed or was cancelled".to_owned();
                    result.reason = Some(migration.reason.unwrap_or_else(cancelled));
                }
                break;
            }
            Ok(_) => {}
            // Whoever migrates it may end it as soon as the VM has left.
            Err(_) => {
                let layout = destination.as_mut().and_then(|destination| destination.look().ok());
                result.moved = layout.is_some_and(|layout| !layout.before_switch_over);
                result.reason = (!result.moved).then(|| "its QEMU ended".to_owned());
                break;
            }
        }
        let _ = leaving.session.events_within(WAIT / 2);
    }
    source::tell_destination(destination.as_mut(), &mut result);
    result
}

/// The peer that has a QEMU which waits for the VM.
fn find_destination(
    shared: &Shared,
    watch: &Watch,
    leaving: &Leaving,
    counters: &Counters,
    result: &mut Migrated,
) -> Option<Destination> {
    let peers = shared.peers();
    let wanted = |peer: &&Peer| watch.to.as_ref().is_none_or(|to| *to == peer.name);
    let mut refusals = Vec::new();
    let mut client = Teller(watch);
    for peer in peers.iter().filter(wanted) {
        let offer = leaving.offer(watch.policy.as_deref(), StartedBy::Others);
        let counters = counters.clone();
        let identity = &shared.identity;
        match Destination::ready(identity, peer, offer, counters, READY_LIMIT, &mut client) {
            Ok(destination) => return Some(destination),
            Err(error) => refusals.push(error.to_string()),
        }
    }
    if refusals.is_empty() {
        refusals.push("there are no peers".to_owned());
    }
    result.notes.push(format!("migrated with the kernel's layout: {}", refusals.join("; ")));
    None
}

struct Teller<'a>(&'a Watch);

impl Client for Teller<'_> {
    fn tell(&mut self, text: &str) {
        self.0.say(text.to_owned());
    }

    fn is_cancelled(&mut self) -> bool {
        self.0.is_over()
    }
}
