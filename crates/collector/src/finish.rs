//! After sampling: asking the guests, finding names, writing the tables.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use model::{Budget, Counter, ModuleId, Note, Switch, Tables, VmId};
use recording::{Converted, Writer};
use resolve::Addresses;
use symbols::{GuestSource, Sources, Store};

use crate::guest_tables::{BootSources, GuestNames, Seen, add_guest, add_snapshot};
use crate::guests::Answered;
use crate::host_tables::{self, HostNames};
use crate::plan::{Collected, Progress};
use crate::record::SampledWindow;
use crate::session::WindowEnd;
use crate::{CollectError, GuestError};

/// Sources of names apart from the session.
#[derive(Debug)]
pub struct Naming {
    proc: PathBuf,
    guest_maps: Vec<(String, PathBuf)>,
    symbol_store: PathBuf,
    /// What earlier windows found out.
    host: HostNames,
}

impl Naming {
    /// `proc`: `/proc`. `guest_maps`: snapshots of guests without a channel, (VM's name, file). `symbol_store`: where guests'
    /// symbols are kept by build id.
    #[must_use]
    pub fn new(proc: PathBuf, guest_maps: Vec<(String, PathBuf)>, symbol_store: PathBuf) -> Self {
        Self { proc, guest_maps, symbol_store, host: HostNames::default() }
    }

    /// Starts the process that reads host processes' files. It has this thread's priority: the answers of one that never runs
    /// would count as failed.
    pub fn start_reader(&mut self) {
        self.host.source.start_reader();
    }
}

pub(crate) fn finish(
    unfinished: SampledWindow,
    naming: &mut Naming,
    show: &mut dyn FnMut(&Progress),
) -> Result<Collected, CollectError> {
    let SampledWindow { writer, sink, window, processes, memory, workers, guests } = unfinished;
    let WindowEnd { mut header, vms, vcpus, identities, quotas, exits, resets } = window;
    header
        .counters
        .insert(Counter::StacksTruncated.name().to_owned(), sink.stack_table.truncated());
    if 0 < sink.stack_table.left_out() {
        let n = sink.stack_table.left_out();
        let text = format!("{n} samples lack their call stacks: there are too many different ones");
        header.notes.push(Note { subject: "host".to_owned(), text });
    }
    let mut tables =
        Tables { vms, vcpus, stacks: sink.stack_table.into_rows(), exits, ..Tables::default() };
    quotas.into_tables(&mut tables);
    // Tables written by now stay readable if we are killed while guests answer.
    writer.checkpoint(&header, &tables)?;

    show(&Progress::Finishing("asking the guests"));
    let answers = guests.wait();
    header.counters.extend(unanswered(&answers));
    let guest_cpu_ns = cpu_times(&answers, &tables);
    let seen = Seen { start: header.start, resets: &resets };
    let guests = add_guests(naming, answers, &seen, &mut tables, &mut header.notes);
    let Naming { proc, host, symbol_store, .. } = naming;

    (tables.cpu_nodes, tables.memory) = memory.into_rows(&tables.vms);

    show(&Progress::Finishing("reading processes and symbols"));
    host.reset(proc).map_err(|source| CollectError::Host { what: "/proc/kallsyms", source })?;
    let HostNames { text, source: host, .. } = host;
    let is_known = header.notes.iter().any(|note| note.text.starts_with("kernel.kptr_restrict is"));
    if text.start == 0 && !is_known {
        let text = "the kernel hides its functions' addresses (kernel.kptr_restrict): set it to 1";
        header.notes.push(Note { subject: "host".to_owned(), text: text.to_owned() });
    }
    host_tables::add_kernel(&mut tables, &header.kernel, text);
    let hit = sink.hit.pids();
    let notes = &mut header.notes;
    let files = host_tables::add_processes(&mut tables, processes, hit, proc, host, notes);
    host.reuse(files);
    let (converted, wanted) = convert(writer, &tables)?;

    let mut sources = Sources::new();
    sources.insert(model::Owner::Host, Box::new(host));
    let store = |vm: VmId| Store::of_vm(symbol_store, &identities[vm.index()]);
    let mut boots: BTreeMap<VmId, BootSources> = BTreeMap::new();
    for boot in guest_sources(guests, &tables, &wanted, store) {
        boots.entry(boot.vm).or_default().0.push((boot.rows, boot.source));
        header.notes.extend(boot.notes);
    }
    for (vm, boots) in boots {
        sources.insert(model::Owner::Vm(vm), Box::new(boots));
    }
    if let Some(workers) = workers {
        workers.end();
    }
    symbols::fill(&mut tables, &wanted, &mut sources);

    show(&Progress::Finishing("writing the tables"));
    header.complete = true;
    let summary = converted.finish(&header, &tables)?;
    Ok(Collected { header, summary, guest_cpu_ns })
}

/// Guests that were left out because their user runs many VMs, if any was.
fn unanswered(answers: &[(VmId, Answered)]) -> impl Iterator<Item = (String, u64)> {
    let errors = || answers.iter().filter_map(|(_, answer)| answer.as_ref().err());
    let not_requested =
        |error: &&Arc<GuestError>| matches!(***error, GuestError::TooManyOfUser { .. });
    let cut_short = |error: &&Arc<GuestError>| matches!(***error, GuestError::NotWaitedFor { .. });
    let counts = [
        ("guests_not_queried", errors().filter(not_requested).count()),
        ("guests_given_up", errors().filter(cut_short).count()),
    ];
    counts.into_iter().filter(|(_, n)| 0 < *n).map(|(name, n)| (name.to_owned(), n as u64))
}

/// What telling their maps cost the guests.
fn cpu_times(answers: &[(VmId, Answered)], tables: &Tables) -> Vec<(String, u64)> {
    let cpu_ns = |(vm, answer): &(VmId, Answered)| {
        Some((tables.vms[vm.index()].name.clone(), answer.as_ref().ok()?.reported.cpu_ns))
    };
    answers.iter().filter_map(cpu_ns).collect()
}

/// Adds what the guests answered, and the snapshots of those that have no channel.
fn add_guests(
    naming: &Naming,
    answers: Vec<(VmId, Answered)>,
    seen: &Seen<'_>,
    tables: &mut Tables,
    notes: &mut Vec<Note>,
) -> Vec<GuestNames> {
    let mut guests = Vec::new();
    for (vm, answer) in answers {
        guests.extend(add_guest(tables, notes, vm, seen, answer));
    }
    guests.extend(snapshots(naming, seen, tables, notes));
    guests
}

/// The one pass over the spools: samples and switches go to their tables, and what they hit needs names: addresses of
/// samples, callers included, and those where guests stood while they waited for a CPU.
fn convert(
    writer: Writer,
    tables: &Tables,
) -> Result<(Converted, Vec<(ModuleId, u64)>), recording::Error> {
    let addresses = RefCell::new(Addresses::new(tables));
    let converted = writer.convert(
        tables,
        &mut |samples| samples.iter().for_each(|sample| addresses.borrow_mut().add(sample)),
        &mut |switches| {
            let waiting = switches.iter().filter_map(Switch::guest_sample);
            waiting.for_each(|sample| addresses.borrow_mut().add(&sample));
        },
    )?;
    Ok((converted, addresses.into_inner().into_sorted()))
}

/// Symbols of one boot of a guest, and the rows of its modules.
pub(crate) struct BootSymbols {
    pub(crate) vm: VmId,
    pub(crate) rows: Range<ModuleId>,
    pub(crate) source: GuestSource,
    pub(crate) notes: Vec<Note>,
}

/// Bytes of functions of guests' files that are kept at a time, of all guests.
const SYMBOL_BYTES: usize = 256 << 20;

/// Gets the symbols of all guests, in parallel: slow ones cost one time limit, not one each. Of a guest's boots the last one
/// comes first: what it is queried for is then in the store for VMs that can't be queried any more.
pub(crate) fn guest_sources(
    guests: Vec<GuestNames>,
    tables: &Tables,
    wanted: &[(ModuleId, u64)],
    store: impl Fn(VmId) -> Store,
) -> Vec<BootSymbols> {
    let mut boots: BTreeMap<VmId, Vec<GuestNames>> = BTreeMap::new();
    for guest in guests {
        boots.entry(guest.vm).or_default().push(guest);
    }
    let room = &Budget::new(SYMBOL_BYTES);
    std::thread::scope(|scope| {
        let start = |(vm, boots): (VmId, Vec<GuestNames>)| {
            let (name, store) = (tables.vms[vm.index()].name.clone(), store(vm));
            let symbols = move |boot: GuestNames| {
                let (rows, mut notes) = (boot.rows(), Vec::new());
                let modules = &tables.modules;
                let source = boot.into_source(&name, modules, wanted, &store, room, &mut notes);
                BootSymbols { vm, rows, source, notes }
            };
            scope.spawn(move || boots.into_iter().rev().map(symbols).collect::<Vec<_>>())
        };
        let workers: Vec<_> = boots.into_iter().map(start).collect();
        // A worker that panicked has named nothing; its VM's addresses say that no guest was queried.
        workers.into_iter().filter_map(|worker| worker.join().ok()).flatten().collect()
    })
}

/// Reads the snapshot files; a file for a VM that was not there is noted.
fn snapshots(
    naming: &Naming,
    seen: &Seen<'_>,
    tables: &mut Tables,
    notes: &mut Vec<Note>,
) -> Vec<GuestNames> {
    let mut guests = Vec::new();
    for (name, file) in &naming.guest_maps {
        match tables.vms.iter().rposition(|vm| vm.name == *name) {
            Some(index) => {
                guests.extend(add_snapshot(tables, notes, VmId::from_index(index), seen, file))
            }
            None => notes.push(Note {
                subject: name.clone(),
                text: format!("no VM of this name ran; {} was not used", file.display()),
            }),
        }
    }
    guests
}
