//! A guest's rows and names, from its report.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use api::guest::ModuleSymbols;
use guest::{MapSpan, Merged, ReportedMap, SampleKey};
use model::{
    Budget, Clock, Guest, HostNs, Mapping, Module, ModuleId, Note, Owner, SymbolName, Tables, Vm,
    VmId,
};
use symbols::{
    Function, FunctionTable, GuestChild, GuestSource, KernelNames, KernelPart, Source, Store,
    Stored,
};

use crate::guests::{Answer, Answered, Asker, Boot, GuestReport, MEMORY, Silence};
use crate::resets::{KernelCode, Resets};

/// What the host saw of guests itself.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) start: HostNs,
    pub(crate) resets: &'a Resets,
}

/// One boot of a guest whose map is in the tables, and where its symbols come from.
#[derive(Debug)]
pub(crate) struct GuestNames {
    pub(crate) vm: VmId,
    /// The rows of its modules, the kernel's among them.
    rows: Range<ModuleId>,
    modules: Vec<ModuleId>,
    kernel: KernelNames,
    /// Symbols that it has sent, by module number in its map.
    symbols: BTreeMap<u32, ModuleSymbols>,
    /// What reads what it sends, and its snapshot.
    child: GuestChild,
    others: Option<Others>,
}

/// Where the symbols are that it did not send yet.
#[derive(Debug)]
enum Others {
    Guest(Asker),
    Snapshot(PathBuf),
}

/// The symbols of a guest's boots, each with the rows of its modules.
#[derive(Debug, Default)]
pub(crate) struct BootSources(pub(crate) Vec<(Range<ModuleId>, GuestSource)>);

impl Source for BootSources {
    fn names(&mut self, id: ModuleId, module: &Module, offsets: &[u64]) -> Vec<SymbolName> {
        let boot = self.0.iter_mut().find(|(rows, _)| rows.contains(&id));
        let Some((_, source)) = boot else {
            let reason = SymbolName::Unreadable("the guest got no request for it".to_owned());
            return vec![reason; offsets.len()];
        };
        source.names(id, module, offsets)
    }
}

/// Adds the guest's report, and notes gaps; a guest without a report is noted with the reason.
pub(crate) fn add_guest(
    tables: &mut Tables,
    notes: &mut Vec<Note>,
    vm: VmId,
    seen: &Seen<'_>,
    answer: Answered,
) -> Vec<GuestNames> {
    match answer {
        Ok(answer) => {
            let missing = what_is_missing(&answer.reported, &tables.vms[vm.index()], seen.start);
            notes.extend(missing.into_iter().map(|text| note(tables, vm, text)));
            add_boots(tables, notes, vm, seen, answer)
        }
        Err(error) => {
            add_nothing(tables, notes, vm, error.to_string());
            Vec::new()
        }
    }
}

fn add_nothing(tables: &mut Tables, notes: &mut Vec<Note>, vm: VmId, reason: String) {
    notes.push(note(tables, vm, format!("its functions have no names: {reason}")));
    tables.vms[vm.index()].guest = Guest::Unmapped { reason };
}

/// From when to when names are missing.
fn what_is_missing(reported: &GuestReport, vm: &Vm, start: HostNs) -> Vec<String> {
    /// A log always begins a little after its VM.
    const NO_MATTER_NS: u64 = 100_000_000;
    let seconds = |time: HostNs| format!("{:.1} s", time.since(start) as f64 / 1e9);
    let mut missing = Vec::new();
    if let Some(problem) = &reported.log_problem {
        missing.push(format!("processes that ended while recording may lack names: {problem}"));
    }
    let first = vm.started.map_or(start, |started| started.max(start));
    if let Some(began) = reported.log_began.filter(|began| NO_MATTER_NS < began.since(first)) {
        let text = format!("processes that ended before {} lack names", seconds(began));
        missing.push(format!("{text}: its log began then"));
    }
    for Silence { from, until, reason } in &reported.silences {
        let until = until.map_or("the end".to_owned(), seconds);
        let from = seconds(*from);
        missing.push(format!("what began between {from} and {until} may lack names: {reason}"));
    }
    for boot in reported.boots.iter().skip(1) {
        missing.push(format!("it booted again at {}", seconds(boot.booted())));
    }
    missing
}

/// Each boot counts from when it booted to when a reset was seen, or the next one booted.
fn add_boots(
    tables: &mut Tables,
    notes: &mut Vec<Note>,
    vm: VmId,
    seen: &Seen<'_>,
    answer: Answer,
) -> Vec<GuestNames> {
    let Answer { reported, via, mut asker, child } = answer;
    let booted: Vec<HostNs> = reported.boots.iter().map(Boot::booted).collect();
    let last = reported.boots.len().saturating_sub(1);
    let mut names = Vec::new();
    for (n, Boot { map, clock, .. }) in reported.boots.into_iter().enumerate() {
        // A VM that starts during the recording is in its first boot, from before its clock began.
        let is_first =
            n == 0 && (tables.vms[vm.index()].started.is_some() || booted[n] < seen.start);
        let next = booted.get(n + 1).copied();
        let reported_at = clock.to_host(map.reported_ns());
        let others = asker.take_if(|_| n == last).map(Others::Guest);
        let (reported, symbols) = map.into_map();
        let reset = seen.resets.end_of(vm, reported_at, &kernel_code(&reported));
        if let (Some(reset), None) = (reset, next) {
            notes.push(note(tables, vm, after_reset(reset, seen.start)));
        }
        let from = (!is_first).then_some(booted[n]);
        let span = MapSpan { from, until: reset.into_iter().chain(next).min() };
        let mut added = add(tables, notes, vm, reported, clock, via, span);
        (added.symbols, added.others, added.child) = (symbols, others, child.clone());
        names.push(added);
    }
    names
}

fn kernel_code(reported: &ReportedMap) -> KernelCode {
    let Some(kernel) = &reported.map.kernel else { return KernelCode::default() };
    let modules = kernel.modules.iter().map(|module| module.start).min();
    KernelCode { text: (kernel.text_start, kernel.text_end), modules }
}

fn after_reset(reset: HostNs, start: HostNs) -> String {
    let seconds = reset.since(start) as f64 / 1e9;
    format!(
        "it was reset at {seconds:.1} s, and has sent no map since: later samples have no names"
    )
}

/// Adds a guest's earlier report, up to a reset since then; its symbols are those that are stored.
pub(crate) fn add_known(
    tables: &mut Tables,
    notes: &mut Vec<Note>,
    vm: VmId,
    resets: &Resets,
    reported: ReportedMap,
    clock: Clock,
    via: &str,
) -> GuestNames {
    let until = resets.end_of(vm, clock.to_host(reported.map.now_ns), &kernel_code(&reported));
    add(tables, notes, vm, reported, clock, via, MapSpan { from: None, until })
}

/// Ends the maps of guests that were reset after these answers.
pub(crate) fn end_maps<'a>(
    tables: &mut Tables,
    resets: &Resets,
    answers: impl Iterator<Item = (VmId, &'a ReportedMap, Clock)>,
) {
    for (vm, reported, clock) in answers {
        let reported_at = clock.to_host(reported.map.now_ns);
        let Some(until) = resets.end_of(vm, reported_at, &kernel_code(reported)) else { continue };
        let images = tables.images.iter_mut().filter(|image| image.owner == Owner::Vm(vm));
        images.for_each(|image| image.end = Some(image.end.map_or(until, |end| end.min(until))));
    }
}

/// Adds what a guest's snapshot file says.
pub(crate) fn add_snapshot(
    tables: &mut Tables,
    notes: &mut Vec<Note>,
    vm: VmId,
    seen: &Seen<'_>,
    file: &Path,
) -> Option<GuestNames> {
    let mut child = GuestChild::default();
    match guest::read_snapshot(file, &mut child, &mut |_| ()) {
        Ok(map) => {
            let clock = Clock { host_minus_guest_ns: 0, error_ns: u64::MAX / 2 };
            let reported = ReportedMap::from(map);
            // It is of before the recording.
            let until = seen.resets.end_of(vm, seen.start, &kernel_code(&reported));
            notes.extend(until.map(|reset| note(tables, vm, after_reset(reset, seen.start))));
            let span = MapSpan { from: None, until };
            let mut names = add(tables, notes, vm, reported, clock, "file", span);
            (names.others, names.child) = (Some(Others::Snapshot(file.to_owned())), child);
            Some(names)
        }
        Err(error) => {
            add_nothing(tables, notes, vm, error.to_string());
            None
        }
    }
}

fn add(
    tables: &mut Tables,
    notes: &mut Vec<Note>,
    vm: VmId,
    reported: ReportedMap,
    clock: Clock,
    via: &str,
    span: MapSpan,
) -> GuestNames {
    let first = ModuleId::from_index(tables.modules.len());
    let key = if via == MEMORY { SampleKey::Task } else { SampleKey::PageTables };
    let merged = guest::merge(reported, vm, clock, span, key, tables);
    tables.vms[vm.index()].guest = Guest::Mapped { via: via.to_owned(), clock };
    let kernel = kernel_names(tables, &merged);
    notes.extend(merged.notes);
    let rows = first..ModuleId::from_index(tables.modules.len());
    let (modules, symbols, child) = (merged.modules, BTreeMap::new(), GuestChild::default());
    GuestNames { vm, rows, modules, kernel, symbols, child, others: None }
}

fn kernel_names(tables: &Tables, merged: &Merged) -> KernelNames {
    let of_kernel = |mapping: &&Mapping| mapping.image == merged.kernel;
    let parts = tables.mappings.iter().filter(of_kernel).map(|mapping| KernelPart {
        path: tables.modules[mapping.module.index()].path.clone(),
        start: mapping.start,
        end: mapping.end,
    });
    KernelNames::shared(merged.functions.clone(), parts)
}

impl GuestNames {
    /// The rows of its modules.
    pub(crate) fn rows(&self) -> Range<ModuleId> {
        self.rows.clone()
    }

    /// Gets the symbols of the modules that samples hit: from the store, else from what the guest sent, else from the guest or
    /// its snapshot. Each table takes its memory out of `room`.
    pub(crate) fn into_source(
        mut self,
        vm_name: &str,
        rows: &[Module],
        wanted: &[(ModuleId, u64)],
        store: &Store,
        room: &Budget,
        notes: &mut Vec<Note>,
    ) -> GuestSource {
        let modules = BTreeMap::new();
        let mut source = GuestSource { kernel: self.kernel, modules, child: self.child.clone() };
        let is_snapshot = matches!(self.others, Some(Others::Snapshot(_)));
        let mut missing: BTreeMap<u32, ModuleId> = BTreeMap::new();
        for (number, module) in (0u32..).zip(&self.modules) {
            let offsets = offsets(wanted, *module);
            // Symbols that no sample needs are kept for the next recording.
            if offsets.is_empty() && !is_snapshot && !self.symbols.contains_key(&number) {
                continue;
            }
            let build_id = rows[module.index()].build_id.as_ref();
            if offsets.is_empty() && build_id.is_some_and(|id| store.has(id)) {
                continue;
            }
            match build_id.map(|id| store.get(id)) {
                Some(Stored::Table(table)) => {
                    keep(&mut source, *module, table, offsets, room);
                    continue;
                }
                Some(Stored::Unusable(reason)) => {
                    notes.push(Note { subject: vm_name.to_owned(), text: reason });
                }
                Some(Stored::Absent) | None => {}
            }
            missing.insert(number, *module);
        }
        let sent = std::mem::take(&mut self.symbols);
        let mut take = |missing: &mut BTreeMap<u32, ModuleId>, answer: ModuleSymbols| {
            let Some(module) = missing.remove(&answer.module) else { return };
            let table = match guest::functions(answer) {
                Ok(functions) => function_table(functions),
                Err(problem) => {
                    source.modules.insert(module, Err(problem));
                    return;
                }
            };
            if let Some(id) = &rows[module.index()].build_id
                && let Err(error) = store.put(id, &table)
            {
                let text = format!("its symbols were not kept for the next time: {error}");
                notes.push(Note { subject: vm_name.to_owned(), text });
            }
            keep(&mut source, module, table, offsets(wanted, module), room);
        };
        sent.into_values().for_each(|answer| take(&mut missing, answer));
        match self.others {
            Some(Others::Guest(asker)) => {
                let modules: Vec<u32> = missing.keys().copied().collect();
                asker.symbols(&modules, &mut |answer| take(&mut missing, answer));
            }
            Some(Others::Snapshot(file)) => {
                // It could be read a moment ago.
                let see = &mut |answer| take(&mut missing, answer);
                let _ = guest::read_snapshot(&file, &mut self.child, see);
            }
            None => {}
        }
        source
    }
}

/// Those that samples hit in a module.
fn offsets(wanted: &[(ModuleId, u64)], module: ModuleId) -> &[(ModuleId, u64)] {
    let first = wanted.partition_point(|(hit, _)| *hit < module);
    let after = wanted.partition_point(|(hit, _)| *hit <= module);
    &wanted[first..after]
}

/// Keeps a table. If memory is short, keeps only the functions that samples hit, or nothing.
fn keep(
    source: &mut GuestSource,
    module: ModuleId,
    mut table: FunctionTable,
    wanted: &[(ModuleId, u64)],
    room: &Budget,
) {
    if wanted.is_empty() {
        return;
    }
    let mut has_room = room.take(table.bytes());
    if !has_room {
        table = table.around(wanted.iter().map(|(_, offset)| *offset));
        has_room = room.take(table.bytes());
    }
    let kept = if has_room {
        Ok(table)
    } else {
        Err("the symbols of all guests take too much memory".to_owned())
    };
    source.modules.insert(module, kept);
}

fn function_table(functions: Vec<api::guest::FunctionSymbol>) -> FunctionTable {
    FunctionTable::new(functions.into_iter().map(|f| Function {
        offset: f.offset,
        size: f.size,
        name: f.name,
    }))
}

fn note(tables: &Tables, vm: VmId, text: String) -> Note {
    Note { subject: tables.vms[vm.index()].name.clone(), text }
}
