//! Migrations that others start, libvirt or an operator: noticed by QEMU's events, and their destinations notified.
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

use api::layout::{Counters, DaemonEvent, Migrated, StartedBy};
use model::Pid;
use numa::VmProcess;
use qmp::{MigrationState, QmpError};

use crate::PROC;
use crate::daemon::Shared;
use crate::peers::Peer;
use crate::source::{self, Client, Destination, OutgoingVm};

/// VMs that are watched at once at most: each takes a thread and a connection.
const MAX_VMS: usize = 256;
/// Of one user other than root: its processes may only look like VMs, and leave places to others'.
const MAX_VMS_OF_USER: usize = 192;
/// Between two looks for VMs that came.
const LOOK: Duration = Duration::from_secs(5);
/// How long one may wait for events before it looks whether it is still wanted.
const WAIT: Duration = Duration::from_millis(500);
/// Peers may plan for so long: pages are coming.
const READY_LIMIT: Duration = Duration::from_secs(120);

/// Options of `migrate --watch`.
#[derive(Debug, Clone)]
pub(crate) struct Watch {
    pub(crate) policy: Option<String>,
    /// The only peer to query.
    pub(crate) to: Option<String>,
    pub(crate) tell: Sender<DaemonEvent>,
    /// Set when the client has gone.
    pub(crate) stop: Arc<std::sync::atomic::AtomicBool>,
}

impl Watch {
    fn is_over(&self) -> bool {
        self.stop.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn say(&self, text: String) {
        let _ = self.tell.send(DaemonEvent::Progress { text });
    }
}

/// A process: one of the same number that began at another time is another one.
type Id = (Pid, u64);

/// The VMs of this host, by their processes.
#[derive(Debug, Default)]
struct Watched {
    vms: BTreeMap<Id, Standing>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Watched,
    /// As many as can be are watched, which was said.
    Waits,
    /// Why it is not watched was said.
    GivenUp,
}

impl Watched {
    /// What is new of the VMs that run now, with their users. VMs that have ended are forgotten.
    fn look(&mut self, running: &BTreeMap<Id, u32>) -> Vec<(Id, Standing)> {
        self.vms.retain(|id, _| running.contains_key(id));
        let mut watched_of: BTreeMap<u32, usize> = BTreeMap::new();
        for (id, standing) in &self.vms {
            *watched_of.entry(running[id]).or_default() +=
                usize::from(*standing == Standing::Watched);
        }
        let mut new = Vec::new();
        for (id, user) in running {
            let is_room = watched_of.values().sum::<usize>() < MAX_VMS
                && (*user == 0 || watched_of.get(user).copied().unwrap_or(0) < MAX_VMS_OF_USER);
            let now = match self.vms.get(id) {
                Some(Standing::Watched | Standing::GivenUp) => continue,
                None | Some(Standing::Waits) if is_room => Standing::Watched,
                None => Standing::Waits,
                Some(Standing::Waits) => continue,
            };
            *watched_of.entry(*user).or_default() += usize::from(now == Standing::Watched);
            self.vms.insert(*id, now);
            new.push((*id, now));
        }
        new
    }

    fn give_up(&mut self, id: Id) {
        if let Some(standing) = self.vms.get_mut(&id) {
            *standing = Standing::GivenUp;
        }
    }
}

/// Watches until the client has gone.
pub(crate) fn run(shared: &Arc<Shared>, watch: &Watch) {
    let watched: Arc<Mutex<Watched>> = Arc::default();
    while !watch.is_over() {
        // A look that fails says nothing about which VMs have ended.
        if let Ok(found) = shared.host.find() {
            let processes = numa::processes(Path::new(PROC), &found).into_iter().flatten();
            let running: BTreeMap<Id, VmProcess> = processes
                .filter(|vm| !vm.threads.is_empty())
                .map(|vm| ((vm.pid, vm.started), vm))
                .collect();
            // One that has just ended counts as root's, whose number is not limited.
            let user = |(pid, _): &Id| {
                let process = Path::new(PROC).join(pid.0.to_string());
                host::identity::read(&process).map_or(0, |identity| identity.user)
            };
            let users = running.keys().map(|id| (*id, user(id))).collect();
            let new = lock(&watched).look(&users);
            for (id, standing) in new {
                let process = running[&id].clone();
                match standing {
                    Standing::Watched => begin(shared, watch, &watched, process),
                    _ => watch.say(format!(
                        "not watching {} yet: {MAX_VMS} VMs are watched at most, {MAX_VMS_OF_USER} of a user",
                        process.name
                    )),
                }
            }
        }
        let look = Instant::now();
        while look.elapsed() < LOOK && !watch.is_over() {
            std::thread::sleep(WAIT);
        }
    }
}

fn begin(shared: &Arc<Shared>, watch: &Watch, watched: &Arc<Mutex<Watched>>, vm: VmProcess) {
    let (shared, watch, watched) = (Arc::clone(shared), watch.clone(), Arc::clone(watched));
    std::thread::spawn(move || {
        if let Err(error) = one(&shared, &watch, &vm) {
            watch.say(format!("not watching {}: {error}", vm.name));
        }
        lock(&watched).give_up((vm.pid, vm.started));
    });
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches one VM until it is gone.
fn one(shared: &Shared, watch: &Watch, process: &VmProcess) -> Result<(), String> {
    let vm = &process.name;
    let mut leaving =
        OutgoingVm::for_vm(&shared.host, process).map_err(|error| error.to_string())?;
    let begins = |state| matches!(state, MigrationState::Setup | MigrationState::Active);
    let now = leaving.session.migration().map_err(|error| error.to_string())?;
    let mut has_begun = begins(now.state);
    // While it migrates QEMU does not change that; then there is no need to wait for the event.
    if !has_begun {
        leaving.session.set_capabilities(&[("events", true)]).map_err(|error| error.to_string())?;
    }
    watch.say(format!("watching {vm}"));
    while !watch.is_over() {
        if has_begun {
            let migrated = follow(shared, watch, &mut leaving);
            let _ = watch.tell.send(DaemonEvent::Migrated(Box::new(migrated)));
        }
        let events = match leaving.session.events_within(WAIT) {
            Err(QmpError::Ended) => return Ok(()),
            events => events.map_err(|error| error.to_string())?,
        };
        has_begun = events.iter().filter_map(source::event_state).any(begins);
    }
    Ok(())
}

/// Follows a migration that has begun.
fn follow(shared: &Shared, watch: &Watch, leaving: &mut OutgoingVm) -> Migrated {
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
            // The migrating program may end it as soon as the VM has left.
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
    leaving: &OutgoingVm,
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
    fn show_step(&mut self, text: &str) {
        self.0.say(text.to_owned());
    }

    fn is_cancelled(&mut self) -> bool {
        self.0.is_over()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn id(pid: u32) -> Id {
        (Pid(pid), u64::from(pid))
    }

    /// Processes of a user.
    fn of_user(user: u32, pids: std::ops::Range<u32>) -> BTreeMap<Id, u32> {
        pids.map(|pid| (id(pid), user)).collect()
    }

    fn waiting(new: &[(Id, Standing)]) -> Vec<Id> {
        let waits = new.iter().filter(|(_, standing)| *standing == Standing::Waits);
        waits.map(|(id, _)| *id).collect()
    }

    #[test]
    fn vms_are_watched_however_many_there_were_before() {
        let mut watched = Watched::default();
        for pid in 0..2000 {
            let running = of_user(0, pid..pid + 1);
            assert_eq!(watched.look(&running), [(id(pid), Standing::Watched)], "one at a time");
            assert_eq!(watched.look(&running), [], "once");
            assert_eq!(watched.vms.len(), 1, "those that have ended are forgotten");
        }
        // The same number is another process.
        assert_eq!(watched.look(&[((Pid(1999), 7), 0)].into()).len(), 1);
    }

    #[test]
    fn vms_without_a_monitor_take_no_place() {
        let mut watched = Watched::default();
        for pid in 0..2000 {
            let new = watched.look(&of_user(0, 0..pid + 1));
            assert_eq!(new, [(id(pid), Standing::Watched)]);
            watched.give_up(id(pid));
        }
    }

    #[test]
    fn one_more_than_can_be_waits_for_a_place() {
        let mut watched = Watched::default();
        let most = u32::try_from(MAX_VMS).unwrap();
        let new = watched.look(&of_user(0, 0..most + 2));
        assert_eq!(waiting(&new), [id(most), id(most + 1)], "which is said");
        assert_eq!(watched.look(&of_user(0, 0..most + 2)), [], "once");
        let without_first = of_user(0, 1..most + 2);
        assert_eq!(watched.look(&without_first), [(id(most), Standing::Watched)]);
        watched.give_up(id(5));
        assert_eq!(watched.look(&without_first), [(id(most + 1), Standing::Watched)]);
    }

    #[test]
    fn a_users_processes_leave_places_to_other_users() {
        let mut watched = Watched::default();
        let mut running = of_user(1000, 0..2000);
        let new = watched.look(&running);
        assert_eq!(new.len() - waiting(&new).len(), MAX_VMS_OF_USER);
        running.extend(of_user(107, 3000..3002));
        running.extend(of_user(0, 4000..4062));
        let new = watched.look(&running);
        assert_eq!((new.len(), waiting(&new)), (64, vec![]));
    }
}
