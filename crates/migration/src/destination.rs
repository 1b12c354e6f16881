//! The host that a VM goes to: plans, moves residents, has the VM's QEMU started or finds it, and has the VM's memory and
//! vCPUs in place before it comes.
//!
//! ```text
//!  Offer, Counters --> plan --> residents moved --> QEMU started, memory bound --> vCPUs bound --> Ready
//!                                                   or found, its threads on the node -^
//!  Look    --> where everything is (the VM still runs at its source)
//!  Arrived --> what lies elsewhere is moved; where everything is
//!  else    --> the VM stays where it was: a QEMU that was started here is ended once its vCPUs can't run any more
//! ```

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::host::vms::MemoryBacking;
use api::layout::{Counters, DestinationMessage, HostLayout, SourceMessage, StartedBy, VERSION};
use layout::{HugePage, Placed, Plan, Topology};
use model::Pid;
use numa::{AppliedPlan, Host, HostVm, Steered, VmProcess};
use tracing::{info, warn};

use crate::arrange::{self, Placement};
use crate::arrivals::{Announced, Arrivals, ComingState};
use crate::channel::{Channel, ChannelError};
use crate::frame::FrameError;
use crate::incoming::{self, IncomingQemu, State};
use crate::offer::{CheckedOffer, check_counters, check_offer, cut};
use crate::records::Records;
use crate::template::Memory;
use crate::this_host::ThisHost;
use crate::{PROC, SYS};

/// For a message that must come next.
const NEXT_LIMIT: Duration = Duration::from_secs(10);
/// How long a migration may take: no wait for a silent source is longer.
const MIGRATION_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// How long a VM may take to run here after its source has reported that it left.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(20);
/// How long a QEMU of ours may wait for a VM whose source is silent.
pub(crate) const ORPHAN_LIMIT: Duration = Duration::from_secs(60);
/// How long a QEMU may be behind its source.
const FIND_LIMIT: Duration = Duration::from_secs(1);

/// What the daemon needs to serve a source.
#[derive(Debug)]
pub(crate) struct Destination<'a> {
    pub(crate) host: &'a ThisHost,
    pub(crate) records: &'a Records,
    /// One plan at a time is made and carried out.
    pub(crate) planning: &'a Mutex<()>,
    pub(crate) arrivals: &'a Arrivals,
    pub(crate) peer: &'a str,
    /// The address of ours that it connected to.
    pub(crate) address: IpAddr,
}

/// A VM that may come now.
#[derive(Debug)]
struct Prepared<'a> {
    /// Until it is dropped, plans for others leave room for the VM.
    _announced: Announced<'a>,
    requested: CheckedOffer,
    waiting: IncomingQemu,
    steered: Option<Steered>,
    place: Option<Placed>,
    layout: HostLayout,
    /// The processes of the layout's VMs.
    processes: Vec<Pid>,
}

/// What the source says in the end.
#[derive(Debug)]
enum SourceVerdict {
    /// The VM runs here.
    Arrived,
    /// The VM stays there.
    Stays(String),
    /// Nothing more.
    Lost(String),
}

impl SourceVerdict {
    fn reason(&self) -> &str {
        match self {
            Self::Arrived => "its QEMU is gone",
            Self::Stays(reason) | Self::Lost(reason) => reason,
        }
    }
}

impl<'a> Destination<'a> {
    /// Serves one source: one VM.
    pub(crate) fn serve(&self, channel: &mut Channel) -> Result<(), ChannelError> {
        match channel.receive(NEXT_LIMIT)? {
            SourceMessage::Hello { version: VERSION } => {}
            other => {
                let reason = match other {
                    SourceMessage::Hello { version } => {
                        format!("it speaks version {version} of the protocol, this host {VERSION}")
                    }
                    _ => "it did not greet".to_owned(),
                };
                return channel.send(&DestinationMessage::Refused { reason });
            }
        }
        channel.send(&DestinationMessage::Hello { version: VERSION })?;
        let SourceMessage::Offer(offer) = channel.receive(NEXT_LIMIT)? else {
            return channel
                .send(&DestinationMessage::Refused { reason: "it offered no VM".to_owned() });
        };
        let prepared = check_offer(&offer).and_then(|requested| {
            let counters = self.counters(channel);
            self.prepare(channel, requested, counters)
        });
        let mut prepared = match prepared {
            Ok(prepared) => prepared,
            Err(reason) => {
                warn!("{} from {}: refused: {reason}", cut(offer.vm), self.peer);
                return channel.send(&DestinationMessage::Refused { reason });
            }
        };
        let verdict = self.receive_vm(channel, &mut prepared);
        self.finish(channel, prepared, verdict)
    }

    /// What was counted of the VM; whatever is wrong with it costs the plan only.
    fn counters(&self, channel: &mut Channel) -> Result<Counters, String> {
        match channel.receive(NEXT_LIMIT) {
            Ok(SourceMessage::Counters(counters)) => Ok(counters),
            Ok(_) => Err("no counters came".to_owned()),
            Err(ChannelError::Frame(error)) => Err(format!("invalid counters: {error}")),
            Err(error) => Err(format!("no counters came: {error}")),
        }
    }

    fn prepare(
        &self,
        channel: &mut Channel,
        requested: CheckedOffer,
        counters: Result<Counters, String>,
    ) -> Result<Prepared<'a>, String> {
        let config = &self.host.config;
        let oldest = Duration::from_secs(config.oldest_counters_s);
        let counters = counters.and_then(|counters| check_counters(&counters, oldest));
        let incoming = match requested.started_by {
            StartedBy::Others => None,
            StartedBy::Daemon => {
                Some(config.incoming(&requested.vm, self.peer).ok_or_else(|| {
                    format!("there is no [[incoming]] for VM {} from {}", requested.vm, self.peer)
                })?)
            }
        };
        // Before it waits for its turn: the plan of another one that comes now is one for both.
        let announced = self.arrivals.announce(&requested, &counters);
        let _planning = self.planning.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match incoming {
            Some(_) => None,
            None => Some(self.find(&requested)?),
        };
        let host = self.read()?;
        if incoming.is_some() && host.vms.iter().any(|vm| vm.process.name == requested.vm) {
            return Err(format!("a VM {} is here already", requested.vm));
        }
        let policy = requested.policy.as_deref().unwrap_or(&config.policy);
        let mut load = self.host.load(&host);
        let left_out = load.leave_out_unsound(&host.topology);
        let rate = config.move_bytes_per_s;
        let allowed = found.as_ref().map(|waiting| waiting.allowed(&host.topology, &requested));
        let page = match (&found, incoming) {
            (Some(waiting), _) => {
                huge_page(&::host::vms::command_line(Path::new(PROC), waiting.found.pid.0))
            }
            (None, Some(incoming)) => huge_page(incoming.command.words()),
            (None, None) => None,
        };
        announced.change(|vm| {
            vm.process = found.as_ref().map(|waiting| waiting.found.pid);
            vm.allowed = allowed.unwrap_or_default();
            vm.page = page;
        });
        let reserved = announced.reserved_for_others(&host);
        let topology = host.topology.clone().without(&reserved);
        let coming = self.arrivals.all();
        let mut arranged =
            arrange::arrange(&topology, load, &coming, announced.number, policy, rate);
        arranged.layout.notes.extend(left_out.iter().map(ToString::to_string));
        info!("{} from {}: {}", requested.vm, self.peer, arranged.layout.outcome);
        // Its pages may be coming already: what can be done at once comes before residents are moved.
        let steered = found.as_ref().and_then(|waiting| {
            let place = arranged.place.as_ref().ok()?;
            pin_incoming(&host, waiting, &requested.vm, place, &mut arranged.layout)
        });
        if let Some(plan) = &arranged.plan {
            let layout = (&mut arranged.layout, &arranged.processes[..]);
            self.move_residents(channel, &host, plan, layout);
        }
        let waiting = match (found, incoming) {
            (Some(waiting), _) => waiting,
            (None, Some(incoming)) => {
                self.start(channel, incoming, &host, (&requested, &announced), &mut arranged)?
            }
            (None, None) => {
                return Err("neither a template nor a waiting QEMU was found for it".to_owned());
            }
        };
        let Placement { place, default, layout, processes, .. } = arranged;
        let place = place.ok();
        announced.change(|vm| {
            vm.process = Some(waiting.found.pid);
            vm.state = ComingState::Placed(place.clone().unwrap_or(default));
        });
        let mut prepared = Prepared {
            _announced: announced,
            requested,
            waiting,
            steered,
            place,
            layout,
            processes,
        };
        self.put_in_place(&mut prepared);
        Ok(prepared)
    }

    /// A QEMU that another program started: it may be a moment behind its source.
    fn find(&self, requested: &CheckedOffer) -> Result<IncomingQemu, String> {
        let start = Instant::now();
        loop {
            match incoming::find(self.host, &requested.vm, requested.uuid.as_deref()) {
                Err(incoming::IncomingError::NotFound) if start.elapsed() < FIND_LIMIT => {
                    std::thread::sleep(FIND_LIMIT / 10);
                }
                found => return found.map_err(|error| error.to_string()),
            }
        }
    }

    fn read(&self) -> Result<Host, String> {
        let found = self.host.find().map_err(|error| error.to_string())?;
        self.host.read(&found).map_err(|error| error.to_string())
    }

    fn move_residents(
        &self,
        channel: &mut Channel,
        host: &Host,
        plan: &Plan,
        arranged: (&mut HostLayout, &[Pid]),
    ) {
        if 0 < plan.moved_bytes() {
            let mib = plan.moved_bytes() >> 20;
            progress(channel, &format!("moving {mib} MiB of VMs that are there"));
        }
        let config = &self.host.config;
        let (start, limit) = (Instant::now(), Duration::from_secs(config.move_residents_s));
        let stop = || limit <= start.elapsed();
        let done = self.host.apply_plan(host, &host.vms, plan, &stop);
        let (layout, processes) = arranged;
        if done.stopped {
            let note = format!("not all residents were moved within {} s", limit.as_secs());
            layout.notes.push(note);
        }
        account(layout, processes, &done);
    }

    /// Starts its QEMU with its memory bound; where that fails, with the kernel's layout.
    fn start(
        &self,
        channel: &mut Channel,
        incoming: &crate::config::Incoming,
        host: &Host,
        (requested, announced): (&CheckedOffer, &Announced<'_>),
        arranged: &mut Placement,
    ) -> Result<IncomingQemu, String> {
        progress(channel, "starting QEMU");
        let prealloc = self.host.config.prealloc;
        if let Ok(place) = &arranged.place {
            let nodes = nodes(host, place);
            let bound = match self.room(place, huge_page(incoming.command.words()), announced) {
                Ok(()) if incoming.command.places_memory() => {
                    let memory = Memory::Bound { nodes, prealloc };
                    incoming::start(self.host, self.records, incoming, &memory)
                        .map_err(|error| error.to_string())
                        .and_then(|waiting| {
                            self.check_vcpus(&host.topology, waiting, requested, place)
                        })
                }
                Ok(()) => Err("its command has no {numa}".to_owned()),
                Err(why) => Err(why),
            };
            match bound {
                Ok(waiting) => return Ok(waiting),
                Err(why) => {
                    warn!("{}: not where it was planned: {why}", incoming.vm);
                    arrange::give_up(&mut arranged.layout, &why);
                    arranged.place = Err(why);
                }
            }
        }
        incoming::start(self.host, self.records, incoming, &Memory::Anywhere)
            .map_err(|error| error.to_string())
    }

    /// Ends a QEMU whose vCPUs may not be where its memory lies: nothing has come yet.
    fn check_vcpus(
        &self,
        topology: &Topology,
        waiting: IncomingQemu,
        requested: &CheckedOffer,
        place: &Placed,
    ) -> Result<IncomingQemu, String> {
        let allowed = waiting.allowed(topology, requested);
        let Some((vcpu, node)) = allowed.forbidden_vcpu(topology, place) else {
            return Ok(waiting);
        };
        waiting.end(self.host, self.records);
        let node = topology.nodes()[node].id;
        Err(format!("its cpuset allows vCPU {vcpu} no CPU of node {node}"))
    }

    /// Whether its nodes still have the memory: VMs start and grow while residents are moved.
    fn room(
        &self,
        place: &Placed,
        page: HugePage,
        announced: &Announced<'_>,
    ) -> Result<(), String> {
        let host = self.read()?;
        let reserved = announced.reserved_for_others(&host);
        let topology = host.topology.without(&reserved);
        let free = topology.free();
        for (at, (node, wanted)) in topology.nodes().iter().zip(&place.memory).enumerate() {
            let free = free.on(page, at);
            if free < *wanted {
                let (id, free, wanted) = (node.id, free >> 20, wanted >> 20);
                return Err(format!("node {id} has {free} MiB free of {wanted}"));
            }
        }
        Ok(())
    }

    /// vCPUs to their nodes, and what memory there is to where it should be.
    fn put_in_place(&self, prepared: &mut Prepared<'_>) {
        let Some(place) = &prepared.place else { return };
        if prepared.waiting.threads.is_empty() {
            let note = "its vCPUs are bound once they run: QEMU names no threads (-name NAME,debug-threads=on)";
            prepared.layout.notes.push(note.to_owned());
        }
        let mut found = prepared.waiting.found.clone();
        prepared.waiting.complete(&mut found);
        let done = self.host.read(&[found]).map(|host| {
            let moved = host.vms.first().map(|vm| put(self.host, &host, vm, place));
            moved.unwrap_or_default()
        });
        match done {
            Ok(done) => account_arriving(&mut prepared.layout, &done),
            Err(error) => prepared.layout.notes.push(error.to_string()),
        }
    }

    /// Until the VM runs here, or stays.
    fn receive_vm(&self, channel: &mut Channel, prepared: &mut Prepared<'_>) -> SourceVerdict {
        let address = self.host.config.migration_address.unwrap_or(self.address);
        let address = match prepared.waiting.listen(address, self.host.config.migration_ports) {
            Ok(address) => address,
            Err(error) => {
                let reason = error.to_string();
                // Whether it hears that or not: nothing comes.
                let _ = channel.send(&DestinationMessage::Refused { reason: reason.clone() });
                return SourceVerdict::Stays(reason);
            }
        };
        self.look(prepared);
        let layout = prepared.layout.clone();
        let mut sent = channel.send(&DestinationMessage::Ready { address, layout });
        loop {
            let message = sent.and_then(|()| channel.receive(MIGRATION_LIMIT));
            sent = Ok(());
            match message {
                Ok(SourceMessage::Look) => {
                    self.look(prepared);
                    sent = channel.send(&DestinationMessage::Layout(prepared.layout.clone()));
                }
                Ok(SourceMessage::Arrived) => return SourceVerdict::Arrived,
                Ok(SourceMessage::Abandoned { reason }) => {
                    return SourceVerdict::Stays(cut(reason));
                }
                // Too late for a plan, which is no reason to break off.
                Ok(SourceMessage::Counters(_))
                | Err(ChannelError::Frame(FrameError::Garbled(_))) => {}
                Ok(_) => {
                    return SourceVerdict::Lost("its source sent an invalid message".to_owned());
                }
                Err(error) => return SourceVerdict::Lost(error.to_string()),
            }
        }
    }

    /// Reads where everything is, then whether the VM has run here: if not, it was so before the switch-over.
    fn look(&self, prepared: &mut Prepared<'_>) {
        let Prepared { waiting, layout, processes, .. } = prepared;
        let mut found = match self.host.find() {
            Ok(found) => found,
            Err(error) => return layout.notes.push(error.to_string()),
        };
        found.iter_mut().for_each(|vm| waiting.complete(vm));
        match self.host.read(&found) {
            Ok(host) => arrange::with_now(layout, processes, &host, waiting.found.pid),
            Err(error) => layout.notes.push(error.to_string()),
        }
        layout.before_switch_over = waiting.state(self.host) == State::Waits;
    }

    fn finish(
        &self,
        channel: &mut Channel,
        mut prepared: Prepared<'_>,
        verdict: SourceVerdict,
    ) -> Result<(), ChannelError> {
        let (vm, peer) = (prepared.requested.vm.clone(), self.peer);
        let (pid, started) = (prepared.waiting.found.pid, prepared.waiting.started);
        let state = match &verdict {
            // One that stood still at its source stands still here.
            SourceVerdict::Arrived => incoming::outcome(self.host, pid, started, ARRIVAL_LIMIT),
            SourceVerdict::Stays(_) => prepared.waiting.state(self.host),
            SourceVerdict::Lost(reason) => {
                warn!("{vm} from {peer}: {reason}");
                incoming::outcome(self.host, pid, started, ORPHAN_LIMIT)
            }
        };
        match (verdict, state) {
            (SourceVerdict::Arrived, State::Runs | State::Waits) => {
                self.arrived(&mut prepared);
                info!("{vm} came from {peer}");
                prepared.waiting.let_go(self.records);
                channel.send(&DestinationMessage::Layout(prepared.layout))
            }
            (SourceVerdict::Lost(_), State::Runs) => {
                self.arrived(&mut prepared);
                warn!("{vm} came from {peer}, which does not hear it");
                prepared.waiting.let_go(self.records);
                Ok(())
            }
            (verdict, _) => {
                if let Some(steered) = prepared.steered.take() {
                    steered.release(Path::new(PROC), &[]);
                }
                warn!("{vm} did not come from {peer}: {}", verdict.reason());
                prepared.waiting.end(self.host, self.records);
                Ok(())
            }
        }
    }

    /// The VM runs here: what is not where it should be goes there.
    fn arrived(&self, prepared: &mut Prepared<'_>) {
        let Prepared { waiting, steered, place, layout, processes, .. } = prepared;
        let found = self.host.find().unwrap_or_default();
        let found: Vec<_> = found.into_iter().filter(|vm| vm.pid == waiting.found.pid).collect();
        if let Ok(host) = self.host.read(&found)
            && let Some(vm) = host.vms.first()
        {
            let done = place.as_ref().map(|place| put(self.host, &host, vm, place));
            if let Some(steered) = steered.take() {
                // vCPUs stay where its memory is, and nowhere else.
                let is_in_place = done.as_ref().is_some_and(|done| done.failures.is_empty());
                let keep = if is_in_place { &vm.process.threads[..] } else { &[] };
                steered.release(Path::new(PROC), keep);
            }
            if let Some(done) = done {
                account_arriving(layout, &done);
            }
        }
        match self.read() {
            Ok(host) => arrange::with_now(layout, processes, &host, waiting.found.pid),
            Err(error) => layout.notes.push(error),
        }
        layout.before_switch_over = false;
    }
}

/// The size of the huge pages that the memory of a QEMU with this command line is made of.
fn huge_page(words: &[String]) -> HugePage {
    /// Of hugetlbfs, from the kernel's `uapi/linux/magic.h`.
    const MAGIC: i64 = 0x9584_58f6;
    match ::host::vms::memory_backing(words)? {
        MemoryBacking::HugePages(size) => {
            size.or_else(|| ::host::numa::default_huge_page(Path::new(PROC)))
        }
        MemoryBacking::Path(path) => {
            let system = rustix::fs::statfs(&path).ok()?;
            let size = u64::try_from(system.f_bsize).ok()?;
            (system.f_type == MAGIC).then_some(size)
        }
    }
}

/// Brings one VM to where it should be.
fn put(this: &ThisHost, host: &Host, vm: &HostVm, place: &Placed) -> AppliedPlan {
    let VmProcess { pid, name, .. } = &vm.process;
    let plan = Plan::for_one(&host.topology, (pid.0, name), vm.page, &vm.placed, place);
    this.apply_plan(host, std::slice::from_ref(vm), &plan, &|| false)
}

/// Has the threads of a QEMU run where its memory should be, if that is one node with CPUs.
fn pin_incoming(
    host: &Host,
    waiting: &IncomingQemu,
    name: &str,
    place: &Placed,
    layout: &mut HostLayout,
) -> Option<Steered> {
    let mut used = place.memory.iter().enumerate().filter(|(_, bytes)| 0 < **bytes);
    let (node, _) = used.next()?;
    let cpus = host.topology.nodes()[node].cpus.iter().copied();
    let isolated = ::host::cpusets::isolated(Path::new(SYS));
    let cpus: Vec<u32> = cpus.filter(|cpu| !isolated.contains(cpu)).collect();
    if used.next().is_some() || cpus.is_empty() {
        layout
            .notes
            .push("its memory is moved once it has come: it goes to several nodes".to_owned());
        return None;
    }
    match numa::pin_incoming(Path::new(PROC), &waiting.process(name), &cpus) {
        Ok(steered) => Some(steered),
        Err(error) => {
            layout.notes.push(error.to_string());
            None
        }
    }
}

/// The kernel's numbers of the nodes that a VM's memory goes to.
fn nodes(host: &Host, place: &Placed) -> Vec<u32> {
    let used = host.topology.nodes().iter().zip(&place.memory).filter(|(_, bytes)| 0 < **bytes);
    used.map(|(node, _)| node.id).collect()
}

fn account(layout: &mut HostLayout, processes: &[Pid], done: &AppliedPlan) {
    for moved in &done.vms {
        let vms = layout.vms.iter_mut().zip(processes);
        for (vm, _) in vms.filter(|(vm, pid)| !vm.arrives && **pid == moved.pid) {
            vm.moved_bytes += moved.moved;
        }
        layout.moved_bytes += moved.moved;
    }
    layout.moved_ns += u64::try_from(done.took.as_nanos()).unwrap_or(0);
    layout.notes.extend(done.failures.iter().map(ToString::to_string));
}

fn account_arriving(layout: &mut HostLayout, done: &AppliedPlan) {
    for vm in layout.vms.iter_mut().filter(|vm| vm.arrives) {
        vm.moved_bytes += done.vms.iter().map(|moved| moved.moved).sum::<u64>();
    }
    layout.notes.extend(done.failures.iter().map(ToString::to_string));
}

/// A peer that does not listen any more will be noticed.
fn progress(channel: &mut Channel, text: &str) {
    let _ = channel.send(&DestinationMessage::Progress { text: text.to_owned() });
}
