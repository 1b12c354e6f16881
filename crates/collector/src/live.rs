//! A collection that writes nothing: windows of samples for whoever looks on.
//!
//! ```text
//!  Live: sampler, vCPUs --window()--> samples since the last one --+--> analysis
//!  Names: guests' maps and symbols, asked for now and then         |
//!         \--cover(window)--> tables that name its addresses ------+
//! ```

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use analysis::Addresses;
use api::guest::SERIAL_PORT_NAME;
use guest::Limits;
use host::processes::ProcessLog;
use host::vms::VmProcess;
use model::{
    CpuId, Header, HostNs, ModuleId, Note, Owner, Pid, Sample, Switch, Tables, Trigger, Vcpu, Vm,
    VmId,
};
use probes::{Sampler, SamplingEvents};
use symbols::{GuestSource, HostSource, Sources};

use crate::collect::{LOCK, PROC, SYS, header, sampler_options};
use crate::finish::guest_sources;
use crate::guest_tables::add_guest;
use crate::guests::GuestWorkers;
use crate::host_tables;
use crate::lock::Lock;
use crate::plan::Sampling;
use crate::vm_table::VmTable;
use crate::{CollectError, switches};

/// Names of more addresses than this are forgotten, and found again when they are hit again.
const MOST_SYMBOLS: usize = 1 << 20;

/// What to look at.
#[derive(Debug, Clone)]
pub struct LiveOptions {
    /// Nominal time between samples of a CPU, ns.
    pub period_ns: u64,
    /// Version to write into headers.
    pub vmscope_version: String,
}

/// Sampling under way.
#[derive(Debug)]
pub struct Live {
    sampler: Sampler,
    _events: SamplingEvents,
    _lock: Lock,
    header: Header,
    vms: VmTable,
    processes: HashMap<VmId, VmProcess>,
    /// What each vCPU did at the end of the window before.
    seen: Vec<Switch>,
}

/// What was sampled since the window before.
#[derive(Debug, Clone)]
pub struct Window {
    /// Its bounds are `start` and `end`.
    pub header: Header,
    /// In time order.
    pub samples: Vec<Sample>,
    /// What each vCPU did at the window's edges.
    pub switches: Vec<Switch>,
    /// All VMs met so far.
    pub vms: Vec<Vm>,
    /// Their vCPUs.
    pub vcpus: Vec<Vcpu>,
    /// How the guests of those that run can be reached.
    pub processes: Vec<(VmId, VmProcess)>,
}

impl Live {
    /// Begins to sample.
    ///
    /// # Errors
    /// When sampling can't begin; the error says what to do.
    pub fn begin(options: &LiveOptions) -> Result<Self, CollectError> {
        let lock = Lock::take(Path::new(LOCK))?;
        let cpus = host::machine::online_cpus(Path::new(SYS))
            .map_err(|source| CollectError::Host { what: "the list of CPUs", source })?;
        let vendor = host::machine::vendor(Path::new(PROC));
        let sampling = Sampling {
            trigger: Trigger::CpuClock,
            period_ns: options.period_ns,
            trigger_period: options.period_ns,
            call_graph: false,
        };
        let sampler = Sampler::load(sampler_options(&sampling, &cpus, vendor))?;
        let header = header(&sampling, &options.vmscope_version, &cpus, vendor);
        let events = sampler.start()?;
        let mut live = Self {
            sampler,
            _events: events,
            _lock: lock,
            header,
            vms: VmTable::default(),
            processes: HashMap::new(),
            seen: Vec::new(),
        };
        live.seen = live.discover_vcpus(None)?;
        live.header.start = probes::now();
        live.header.end = live.header.start;
        Ok(live)
    }

    /// Ends a window and begins the next.
    ///
    /// # Errors
    /// When vCPUs can't be looked for.
    pub fn window(&mut self) -> Result<Window, CollectError> {
        let mut samples = Vec::new();
        for cpu in &self.header.cpus {
            let taken: Result<(), CollectError> = self.sampler.drain(*cpu, |drained| {
                let (records, _) = drained.records.as_chunks();
                samples.extend(records.iter().map(|record| recording::decode(record, CpuId(*cpu))));
                Ok(())
            });
            taken?;
        }
        samples.sort_by_key(|sample| sample.time);
        let start = self.header.end;
        self.header.start = start;
        self.header.end = probes::now();
        let at_end = self.discover_vcpus(Some(self.header.end))?;
        let mut switches = std::mem::replace(&mut self.seen, at_end);
        switches.extend(&self.seen);
        Ok(Window {
            header: self.header.clone(),
            samples,
            switches,
            vms: self.vms.vms.clone(),
            vcpus: self.vms.vcpus.clone(),
            processes: self.processes.iter().map(|(vm, p)| (*vm, p.clone())).collect(),
        })
    }

    fn discover_vcpus(&mut self, started: Option<HostNs>) -> Result<Vec<Switch>, CollectError> {
        let found = self.sampler.find_vcpus()?;
        let running: BTreeSet<Pid> = found.iter().map(|vcpu| vcpu.pid).collect();
        let describe = |pid: Pid| host::vms::describe(Path::new(PROC), pid.0, SERIAL_PORT_NAME);
        let changes = self.vms.update(found.clone(), started, describe);
        for (tid, vcpu, row) in &changes.watch {
            self.sampler.watch(*tid, vcpu, row.0)?;
        }
        self.processes.extend(changes.vms);
        self.forget_ended(&running);
        Ok(switches::seen(&self.vms, &found))
    }

    fn forget_ended(&mut self, running: &BTreeSet<Pid>) {
        let is_gone = |vm: &&Vm| vm.ended.is_none() && !running.contains(&vm.pid);
        let gone: Vec<Pid> = self.vms.vms.iter().filter(is_gone).map(|vm| vm.pid).collect();
        for pid in gone {
            let of_process = |vcpu: &&Vcpu| self.vms.vms[vcpu.vm.index()].pid == pid;
            let tids: Vec<_> = self.vms.vcpus.iter().filter(of_process).map(|v| v.tid).collect();
            self.vms.process_ended(pid, probes::now());
            for tid in tids {
                self.vms.thread_ended(tid);
                self.sampler.forget(tid);
            }
        }
        let vms = &self.vms.vms;
        self.processes.retain(|vm, _| vms[vm.index()].ended.is_none());
    }
}

/// Names for windows, from what the guests and the host told when they were asked last.
#[derive(Debug)]
pub struct Names {
    tables: Tables,
    named: BTreeSet<(ModuleId, u64)>,
    host: HostSource,
    guests: Vec<(VmId, GuestSource)>,
}

impl Names {
    /// No names yet.
    #[must_use]
    pub fn none() -> Self {
        Self {
            tables: Tables::default(),
            named: BTreeSet::new(),
            host: HostSource::default(),
            guests: Vec::new(),
        }
    }

    /// Asks the guests of a window for their processes, and for the symbols of what its samples hit. Takes as long
    /// as the slowest guest, at most three times `limits.time`.
    ///
    /// # Errors
    /// When the host's own kernel can't be read.
    pub fn ask(window: &Window, limits: &Limits, store: &Path) -> Result<Self, CollectError> {
        let mut tables =
            Tables { vms: window.vms.clone(), vcpus: window.vcpus.clone(), ..Tables::default() };
        let mut workers = GuestWorkers::new();
        for (vm, process) in &window.processes {
            workers.ask_once(*vm, process, limits);
        }
        let mut notes: Vec<Note> = Vec::new();
        let add = |(vm, answer)| add_guest(&mut tables, &mut notes, vm, answer);
        let guests = workers.finish().into_iter().filter_map(add).collect();
        let text = host::machine::kernel_text(Path::new(PROC))
            .map_err(|source| CollectError::Host { what: "/proc/kallsyms", source })?;
        host_tables::add_kernel(&mut tables, &window.header.kernel, &text);
        let processes = ProcessLog::scan(Path::new(PROC))
            .map_err(|source| CollectError::Host { what: "/proc", source })?;
        let hit = window.samples.iter().map(|sample| sample.pid).collect();
        let places =
            host_tables::add_processes(&mut tables, processes.finish(), &hit, Path::new(PROC));
        let host = HostSource::new(host_tables::kernel_names(&text), places);
        let wanted = addresses(&tables, &window.samples);
        let guests = guest_sources(guests, &tables, &wanted, store);
        let guests = guests.into_iter().map(|(vm, source, _)| (vm, source)).collect();
        Ok(Self { tables, named: BTreeSet::new(), host, guests })
    }

    /// The tables to look at a window with: its VMs, and names for what its samples hit.
    pub fn cover(&mut self, window: &Window) -> &Tables {
        let told = std::mem::take(&mut self.tables.vms);
        self.tables.vms = window.vms.clone();
        for (row, told) in self.tables.vms.iter_mut().zip(told) {
            row.guest = told.guest;
        }
        self.tables.vcpus = window.vcpus.clone();
        self.add_new_processes(&window.samples);
        if MOST_SYMBOLS < self.named.len() {
            self.named.clear();
            self.tables.symbols.clear();
        }
        let mut wanted = addresses(&self.tables, &window.samples);
        wanted.retain(|address| self.named.insert(*address));
        let mut sources: Sources<'_> = Sources::new();
        sources.insert(Owner::Host, Box::new(&mut self.host));
        for (vm, source) in &mut self.guests {
            sources.insert(Owner::Vm(*vm), Box::new(source));
        }
        symbols::fill(&mut self.tables, &wanted, &mut sources);
        &self.tables
    }

    /// Host processes that were not there when names were asked for: themselves, without their functions.
    fn add_new_processes(&mut self, samples: &[Sample]) {
        let host = self.tables.images.iter().filter(|image| image.owner == Owner::Host);
        let known: BTreeSet<Pid> = host.map(|image| image.pid).collect();
        let hit: BTreeSet<Pid> = samples.iter().map(|sample| sample.pid).collect();
        let proc = Path::new(PROC);
        let new = hit.difference(&known).filter_map(|pid| host::processes::read(proc, pid.0).ok());
        let new = new.collect();
        host_tables::add_processes(&mut self.tables, new, &hit, proc);
    }
}

fn addresses(tables: &Tables, samples: &[Sample]) -> Vec<(ModuleId, u64)> {
    let mut addresses = Addresses::new(tables);
    samples.iter().for_each(|sample| addresses.add(sample));
    addresses.into_sorted()
}
