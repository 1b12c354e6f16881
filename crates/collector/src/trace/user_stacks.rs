//! Names of programs' stacks.
//!
//! ```text
//!  processes that begin, map files and end --look, now and then--> ProcessLog --+
//!  stacks, each of a process and seen first at a time --------------------------+--name, at the end--> functions
//! ```
//! Files are read when the trace has ended, in a child process without privileges. A stack is looked up in what its process
//! mapped when it was seen first.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use host::processes::{ProcessImage, ProcessLog};
use host::sideband::Sideband;
use model::{
    CpuId, HostMode, HostNs, HostVirt, Note, Owner, Pid, Sample, Stack, StackId, Tables, Tid,
    TraceStack, VcpuState,
};
use resolve::{Addresses, CodeName, CodeRef, Resolver};
use symbols::Sources;
use tracer::UserStack;

use crate::host_tables;

/// Records of processes' events per CPU between two looks.
const RING_BYTES: usize = 512 << 10;
const LOOK_EVERY_NS: u64 = 200_000_000;
/// To find whose stacks there are takes up to a millisecond.
const FORGET_EVERY_NS: u64 = 2_000_000_000;
/// Events younger than this wait for the next look: another CPU's ring may hold their causes.
const SETTLING_NS: u64 = 50_000_000;
/// Bytes of names of all stacks. A process may have long ones, and each many times.
const MAX_BYTES: usize = 64 << 20;

/// What the host's processes map, from the begin of a trace on.
#[derive(Debug)]
pub(super) struct Programs {
    events: Sideband,
    log: ProcessLog,
    looked: HostNs,
    forgot: HostNs,
}

/// The functions of stacks.
#[derive(Debug, Default)]
pub(super) struct NamedStacks {
    /// Innermost function first.
    pub(super) rows: Vec<(TraceStack, Vec<String>)>,
    /// What the user should know.
    pub(super) notes: Vec<String>,
}

impl Programs {
    /// # Errors
    /// Why they can't be followed.
    pub(super) fn follow(cpus: &[u32], proc: &Path) -> Result<Self, String> {
        let events = Sideband::open(cpus, RING_BYTES).map_err(|error| error.to_string())?;
        let log = ProcessLog::scan(proc)
            .map_err(|error| format!("failed to read {}: {error}", proc.display()))?;
        let now = probes::now();
        Ok(Self { events, log, looked: now, forgot: now })
    }

    /// Takes in what has happened, if it is time. Of ended processes only those in `slept` are kept.
    pub(super) fn look(&mut self, slept: impl Iterator<Item = Pid>) {
        let now = probes::now();
        if now.since(self.looked) < LOOK_EVERY_NS {
            return;
        }
        self.looked = now;
        self.take(now.0.saturating_sub(SETTLING_NS));
        if now.since(self.forgot) < FORGET_EVERY_NS {
            return;
        }
        self.forgot = now;
        let slept: HashSet<u32> = slept.map(|pid| pid.0).collect();
        self.log.forget_ended(|pid| slept.contains(&pid));
    }

    fn take(&mut self, before_ns: u64) {
        let Self { events, log, .. } = self;
        events.drain_before(before_ns, &mut |event| log.apply(event));
    }

    /// Names the stacks of a trace that has ended.
    pub(super) fn name(mut self, stacks: &[UserStack], proc: &Path) -> NamedStacks {
        self.take(u64::MAX);
        let mut notes = Vec::new();
        match self.events.lost() {
            0 => {}
            n => notes.push(format!(
                "{n} events of processes were lost: functions of some user stacks may have no names"
            )),
        }
        let mut named = name(self.log.finish(), stacks, proc);
        named.notes.extend(notes);
        named
    }
}

/// Names stacks of the processes with these images.
fn name(images: Vec<ProcessImage>, stacks: &[UserStack], proc: &Path) -> NamedStacks {
    let hit: BTreeSet<Pid> = stacks.iter().map(|stack| stack.process).collect();
    let mut files = host_tables::source_of_files();
    let (mut tables, mut notes) = (Tables::default(), Vec::<Note>::new());
    let places =
        host_tables::add_processes(&mut tables, images, &hit, proc, &mut files, &mut notes);
    files.reuse(places);
    tables.stacks = stacks.iter().map(addresses).collect();
    let samples: Vec<Sample> = (0..).zip(stacks).map(|(row, it)| sample(row, it)).collect();
    let mut wanted = Addresses::new(&tables);
    samples.iter().for_each(|sample| wanted.add(sample));
    let wanted = wanted.into_sorted();
    let mut sources = Sources::new();
    sources.insert(Owner::Host, Box::new(files));
    symbols::fill(&mut tables, &wanted, &mut sources);
    let mut namer = Namer { resolver: Resolver::new(&tables), room: MAX_BYTES };
    let names = |(stack, sample): (&UserStack, &Sample)| (stack.number, namer.names(stack, sample));
    let rows = stacks.iter().zip(&samples).map(names).collect();
    NamedStacks { rows, notes: notes.into_iter().map(|note| note.text).collect() }
}

fn addresses(stack: &UserStack) -> Stack {
    let user = stack.addresses.iter().copied().map(HostVirt).collect();
    Stack { user, ..Stack::default() }
}

/// As if the program had been sampled there.
fn sample(row: usize, stack: &UserStack) -> Sample {
    Sample {
        time: stack.first_seen,
        cpu: CpuId(0),
        pid: stack.process,
        tid: Tid(stack.process.0),
        host_ip: HostVirt(stack.addresses.first().copied().unwrap_or(0)),
        host_mode: HostMode::User,
        stack: Some(StackId::from_index(row)),
        vcpu: VcpuState::None,
    }
}

struct Namer<'t> {
    resolver: Resolver<'t>,
    /// Bytes of names that may still be given.
    room: usize,
}

impl Namer<'_> {
    fn names(&mut self, stack: &UserStack, sample: &Sample) -> Vec<String> {
        let located = self.resolver.locate(sample);
        let frames = self.resolver.call_stack(sample, &located);
        let mut names: Vec<String> = frames.into_iter().map(|at| self.name(at)).collect();
        if stack.is_cut {
            names.push(unknown(&format!("more than {} functions", names.len())));
        }
        match self.room.checked_sub(names.iter().map(String::len).sum()) {
            Some(room) => {
                self.room = room;
                names
            }
            None => vec![unknown("too many long names")],
        }
    }

    fn name(&self, at: CodeRef) -> String {
        let tables = self.resolver.tables();
        let code = self.resolver.code(at);
        if let CodeName::Function(row) = code.name
            && let model::SymbolName::Function(name) = &tables.symbols[row as usize].name
        {
            return name.clone();
        }
        let reason = self.resolver.why_unnamed(code).unwrap_or_default();
        let module = code.module.and_then(|module| tables.modules.get(module.index()));
        match module.and_then(|module| module.path.rsplit('/').next()) {
            Some(file) => unknown(&format!("{file}: {reason}")),
            None => unknown(&reason),
        }
    }
}

fn unknown(reason: &str) -> String {
    format!("[unknown: {reason}]")
}

#[cfg(test)]
mod test {
    use std::sync::Arc;

    use host::processes::{MappedFile, ProcessMapping};

    use super::*;

    #[test]
    fn what_has_no_name_says_why() {
        let file = MappedFile { path: "/nowhere/libx.so".to_owned(), build_id: None };
        let mapping =
            ProcessMapping { start: 0x1000, end: 0x2000, offset: 0, file: Arc::new(file) };
        let image = |pid, mappings: &[ProcessMapping]| ProcessImage {
            pid,
            mappings: mappings.iter().cloned().collect(),
            ..ProcessImage::default()
        };
        let check = |process, addresses: &[u64], is_cut, expected: &[&str]| {
            let images = vec![image(7, std::slice::from_ref(&mapping)), image(8, &[])];
            let stack = UserStack {
                number: TraceStack(1 << 30),
                process: Pid(process),
                first_seen: HostNs(5),
                addresses: addresses.to_vec(),
                is_cut,
            };
            let named = name(images, &[stack], Path::new("/nowhere/proc"));
            assert_eq!(
                named.rows,
                [(TraceStack(1 << 30), expected.iter().map(|it| (*it).to_owned()).collect())]
            );
        };
        let unread = "[unknown: libx.so: its file is gone]";
        let unmapped = "[unknown: no module mapped at the address]";
        check(7, &[0x1000, 0x5000], false, &[unread, unmapped]);
        // A caller is named by its call, which is before its return address.
        check(7, &[0x2000, 0x2000], false, &[unmapped, unread]);
        check(7, &[0x1000], true, &[unread, "[unknown: more than 1 functions]"]);
        check(8, &[0x1000], false, &["[unknown: the process' mappings are not known]"]);
        check(9, &[0x1000], false, &["[unknown: process not seen]"]);
    }
}
