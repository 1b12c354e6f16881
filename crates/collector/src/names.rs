//! Names for windows: guests' maps and symbols, queried now and then.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use guest::{Limits, ReportedMap};
use host::processes::ProcessLog;
use model::{Clock, ModuleId, Note, Owner, Pid, Sample, Tables, VmId};
use resolve::Addresses;
use symbols::{GuestSource, HostSource, Sources, Store};

use crate::finish::guest_sources;
use crate::guest_tables::{Seen, add_guest, add_known, end_maps};
use crate::guests::{Answer, GuestWorkers, Log, in_turns};
use crate::windows::Window;
use crate::{CollectError, Roots, host_tables};

/// Names of more addresses than this are forgotten, and found again when they are hit again.
const MAX_SYMBOLS: usize = 1 << 20;

/// Names for windows, from what the guests and the host answered when they were queried last.
#[derive(Debug)]
pub struct LiveSymbolizer {
    tables: Tables,
    named: BTreeSet<(ModuleId, u64)>,
    host: HostSource,
    guests: Vec<(VmId, GuestSource)>,
    answers: Answers,
    proc: PathBuf,
}

/// The guests' last reports: they keep their names when they don't answer the next time.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    maps: BTreeMap<VmId, (ReportedMap, Clock, &'static str)>,
    /// Guests that answered the last query.
    fresh: BTreeSet<VmId>,
}

impl Answers {
    /// Whether a guest answered when guests were queried last.
    #[must_use]
    pub fn has_answered(&self, vm: VmId) -> bool {
        self.fresh.contains(&vm)
    }
}

impl LiveSymbolizer {
    /// No names yet. `proc` is where host processes are read.
    #[must_use]
    pub fn none(proc: &Path) -> Self {
        Self {
            tables: Tables::default(),
            named: BTreeSet::new(),
            host: HostSource::default(),
            guests: Vec::new(),
            answers: Answers::default(),
            proc: proc.to_owned(),
        }
    }

    /// Reports that guests have sent.
    #[must_use]
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Asks guests of a window, `vms`, for their processes, and for the symbols of what its samples hit; what the others
    /// reported before stays. Takes as long as the slowest guest, at most three times `limits.time`.
    ///
    /// # Errors
    /// When the host's own kernel can't be read.
    pub fn ask(
        window: &Window,
        vms: &BTreeSet<VmId>,
        mut answers: Answers,
        limits: &Limits,
        store: &Path,
        roots: &Roots,
    ) -> Result<Self, CollectError> {
        let mut tables =
            Tables { vms: window.vms.clone(), vcpus: window.vcpus.clone(), ..Tables::default() };
        let mut workers = GuestWorkers::new();
        let queried = window.processes.iter().filter(|(vm, _)| vms.contains(vm)).collect();
        for (vm, process) in in_turns(queried, |(_, process)| process.user) {
            workers.ask_once(*vm, process, limits, roots);
        }
        let mut notes: Vec<Note> = Vec::new();
        let (mut guests, mut fresh) = (Vec::new(), BTreeSet::new());
        for (vm, answer) in workers.collect_answers(window.header.start, Log::Ends).wait() {
            if let Ok(Answer { reported, via, .. }) = &answer
                && let Some(boot) = reported.boots.last()
            {
                answers.maps.insert(vm, (boot.map.clone().into_map().0, boot.clock, via));
                fresh.insert(vm);
            }
            if answer.is_ok() || !answers.maps.contains_key(&vm) {
                let start = window.header.start;
                let seen = Seen { start, resets: &window.resets };
                guests.extend(add_guest(&mut tables, &mut notes, vm, &seen, answer));
            }
        }
        answers.maps.retain(|vm, _| window.processes.iter().any(|(running, _)| running == vm));
        for (vm, (map, clock, via)) in answers.maps.iter().filter(|(vm, _)| !fresh.contains(vm)) {
            let resets = &window.resets;
            let map = map.clone();
            guests.push(add_known(&mut tables, &mut notes, *vm, resets, map, *clock, via));
        }
        answers.fresh = fresh;
        let proc = &roots.proc;
        let text = host::machine::kernel_text(proc)
            .map_err(|source| CollectError::Host { what: "/proc/kallsyms", source })?;
        host_tables::add_kernel(&mut tables, &window.header.kernel, &text);
        let processes = ProcessLog::scan(proc)
            .map_err(|source| CollectError::Host { what: "/proc", source })?;
        let hit = window.samples.iter().map(|sample| sample.pid).collect();
        let processes = processes.finish();
        let mut host = host_tables::source(&text);
        let notes = &mut notes;
        let files =
            host_tables::add_processes(&mut tables, processes, &hit, proc, &mut host, notes);
        host.reuse(files);
        let wanted = addresses(&tables, &window.samples);
        let identities: BTreeMap<VmId, String> =
            window.processes.iter().map(|(vm, process)| (*vm, process.identity())).collect();
        let store = |vm| Store::of_vm(store, identities.get(&vm).map_or("", String::as_str));
        let guests = guest_sources(guests, &tables, &wanted, store);
        let guests = guests.into_iter().map(|boot| (boot.vm, boot.source)).collect();
        workers.end();
        let proc = proc.to_owned();
        Ok(Self { tables, named: BTreeSet::new(), host, guests, answers, proc })
    }

    /// The tables to look at a window with: its VMs, and names for what its samples hit.
    pub fn tables_for(&mut self, window: &Window) -> &Tables {
        let answered = std::mem::take(&mut self.tables.vms);
        self.tables.vms = window.vms.clone();
        for (row, answered) in self.tables.vms.iter_mut().zip(answered) {
            row.guest = answered.guest;
        }
        self.tables.vcpus = window.vcpus.clone();
        window.quotas.clone().into_tables(&mut self.tables);
        let answers = self.answers.maps.iter().map(|(vm, (map, clock, _))| (*vm, map, *clock));
        end_maps(&mut self.tables, &window.resets, answers);
        self.add_new_processes(&window.samples);
        if MAX_SYMBOLS < self.named.len() {
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

    /// Host processes that were not there when names were requested.
    fn add_new_processes(&mut self, samples: &[Sample]) {
        let host = self.tables.images.iter().filter(|image| image.owner == Owner::Host);
        let known: BTreeSet<Pid> = host.map(|image| image.pid).collect();
        let hit: BTreeSet<Pid> = samples.iter().map(|sample| sample.pid).collect();
        let read = |pid: &Pid| host::processes::read(&self.proc, pid.0).ok();
        let new = hit.difference(&known).filter_map(read).collect();
        let Self { tables, host, proc, .. } = self;
        let files = host_tables::add_processes(tables, new, &hit, proc, host, &mut Vec::new());
        host.reuse(files);
    }
}

fn addresses(tables: &Tables, samples: &[Sample]) -> Vec<(ModuleId, u64)> {
    let mut addresses = Addresses::new(tables);
    samples.iter().for_each(|sample| addresses.add(sample));
    addresses.into_sorted()
}
