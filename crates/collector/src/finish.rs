//! After sampling: asking the guests, finding names, writing the tables.

use std::collections::BTreeSet;
use std::path::Path;

use analysis::Addresses;
use model::{ModuleId, Note, Pid, Switch, Tables, VmId};
use recording::Recording;
use symbols::{GuestSource, HostSource, Sources, Store};

use crate::collect::Sampled;
use crate::guest_tables::{GuestNames, add_guest, add_snapshot};
use crate::plan::{Collected, Control, Plan, Progress};
use crate::switches::other;
use crate::{CollectError, host_tables};

pub(crate) fn finish(
    sampled: Sampled,
    plan: &Plan,
    proc: &Path,
    control: &mut dyn Control,
) -> Result<Collected, CollectError> {
    let Sampled { writer, mut header, vms, stacks, processes, guests, throttling, exits } = sampled;
    let mut tables = Tables {
        vms: vms.vms,
        vcpus: vms.vcpus,
        stacks: stacks.into_rows(),
        throttling: throttling.into_readings(),
        exits,
        ..Tables::default()
    };
    // What is known by now can be read even if we are killed while we ask.
    writer.checkpoint(&header, &tables)?;

    control.show(&Progress::Finishing("asking the guests"));
    let mut guests: Vec<GuestNames> = guests
        .finish()
        .into_iter()
        .filter_map(|(vm, answer)| {
            // Its channel may by now lead to another VM.
            let ended = tables.vms[vm.index()].ended.is_some();
            let answer = if ended { Err("it ended while recording".to_owned()) } else { answer };
            add_guest(&mut tables, &mut header.notes, vm, answer)
        })
        .collect();
    guests.extend(snapshots(plan, &mut tables, &mut header.notes));

    control.show(&Progress::Finishing("reading processes and symbols"));
    let spooled = Recording::open(writer.partial_path())?;
    let text = host::machine::kernel_text(proc)
        .map_err(|source| CollectError::Host { what: "/proc/kallsyms", source })?;
    if text.start == 0 {
        let text = "the kernel hides its functions' addresses (kernel.kptr_restrict): set it to 1";
        header.notes.push(Note { subject: "host".to_owned(), text: text.to_owned() });
    }
    host_tables::add_kernel(&mut tables, &header.kernel, &text);
    let hit = hit_processes(&spooled)?;
    let places = host_tables::add_processes(&mut tables, processes.finish(), &hit, proc);
    let wanted = addresses(&spooled, &tables)?;

    let mut sources = Sources::new();
    let host = HostSource::new(host_tables::kernel_names(&text), places);
    sources.insert(model::Owner::Host, Box::new(host));
    for (vm, source, notes) in guest_sources(guests, &tables, &wanted, &plan.symbol_store) {
        sources.insert(model::Owner::Vm(vm), Box::new(source));
        header.notes.extend(notes);
    }
    symbols::fill(&mut tables, &wanted, &mut sources);

    control.show(&Progress::Finishing("writing the tables"));
    header.complete = true;
    let summary = writer.finish(&header, &tables)?;
    Ok(Collected { header, summary })
}

/// Gets the symbols of all guests, in parallel: slow ones cost one time limit, not one each.
pub(crate) fn guest_sources(
    guests: Vec<GuestNames>,
    tables: &Tables,
    wanted: &[(ModuleId, u64)],
    store: &Path,
) -> Vec<(VmId, GuestSource, Vec<Note>)> {
    std::thread::scope(|scope| {
        let start = |guest: GuestNames| {
            let (vm, name) = (guest.vm, tables.vms[guest.vm.index()].name.clone());
            let work = move || {
                let mut notes = Vec::new();
                let store = Store::of_vm(store, &name);
                let source = guest.into_source(&name, &tables.modules, wanted, &store, &mut notes);
                (vm, source, notes)
            };
            scope.spawn(work)
        };
        let workers: Vec<_> = guests.into_iter().map(start).collect();
        // A worker that panicked has named nothing; its VM's addresses say that nobody was asked.
        workers.into_iter().filter_map(|worker| worker.join().ok()).collect()
    })
}

/// Reads the snapshot files; a file for a VM that was not there is noted.
fn snapshots(plan: &Plan, tables: &mut Tables, notes: &mut Vec<Note>) -> Vec<GuestNames> {
    let mut guests = Vec::new();
    for (name, file) in &plan.guest_maps {
        match tables.vms.iter().position(|vm| vm.name == *name) {
            Some(index) => {
                guests.extend(add_snapshot(tables, notes, VmId::from_index(index), file))
            }
            None => notes.push(Note {
                subject: name.clone(),
                text: format!("no VM of this name ran; {} was not used", file.display()),
            }),
        }
    }
    guests
}

/// The host processes that samples hit, and those that took a vCPU's CPU or left it to one.
fn hit_processes(spooled: &Recording) -> Result<BTreeSet<Pid>, recording::Error> {
    let mut hit = BTreeSet::new();
    let mut last = None;
    spooled.for_each_batch(&mut |batch| {
        for sample in batch {
            if last != Some(sample.pid) {
                hit.insert(sample.pid);
                last = Some(sample.pid);
            }
        }
    })?;
    spooled.for_each_switch_batch(&mut |batch| hit.extend(batch.iter().filter_map(other)))?;
    Ok(hit)
}

/// The addresses that samples hit, callers included, and those where guests stood while they waited for a CPU.
fn addresses(
    spooled: &Recording,
    tables: &Tables,
) -> Result<Vec<(ModuleId, u64)>, recording::Error> {
    let mut addresses = Addresses::new(tables);
    spooled.for_each_batch(&mut |batch| batch.iter().for_each(|sample| addresses.add(sample)))?;
    spooled.for_each_switch_batch(&mut |batch| {
        batch.iter().filter_map(Switch::guest_sample).for_each(|sample| addresses.add(&sample));
    })?;
    Ok(addresses.into_sorted())
}
