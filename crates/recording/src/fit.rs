//! Leaves out names before tables exceed what readers take (`WHOLE_TABLES`): the source with the most loses them, no
//! other.

use std::borrow::Cow;
use std::collections::BTreeMap;

use model::{MachineId, Note, NumaReading, Owner, SymbolName, Tables, TraceTables};

use crate::columns::WHOLE_TABLES;

/// Bytes that a row takes at most while it is read, without its texts and lists.
const ROW: usize = 192;
/// Those of a row of three numbers.
const SHORT_ROW: usize = 64;
/// Those of a list's value. Of a text its bytes count twice.
const VALUE: usize = 20;
/// The same of a text in a list.
const TEXT: usize = 96;

/// The tables of a recording as they are written, and what the user should know of what they lack.
pub(crate) fn fit(tables: &Tables) -> (Cow<'_, Tables>, Vec<Note>) {
    fit_within(WHOLE_TABLES, tables)
}

/// The same of a trace.
pub(crate) fn fit_trace(tables: &TraceTables) -> (Cow<'_, TraceTables>, Vec<Note>) {
    fit_trace_within(WHOLE_TABLES, tables)
}

/// What tables take at most while they are read.
#[cfg(test)]
pub(crate) fn cost(tables: &Tables) -> usize {
    others(tables) + costs(tables).values().sum::<usize>()
}

/// Size of the tables without an owner.
fn others(tables: &Tables) -> usize {
    let stacks = tables.stacks.iter().map(|stack| {
        let of_guest = stack.guest.kernel.len() + stack.guest.user.len();
        ROW + VALUE * (stack.kernel.len() + stack.user.len() + of_guest)
    });
    let rows = ROW * (tables.vms.len() + tables.vcpus.len());
    let memory = tables.memory.iter().map(|row| match &row.found {
        NumaReading::OnNode { .. } => ROW,
        NumaReading::Unknown(reason) => ROW + 2 * reason.len(),
    });
    let quotas = tables.quota_members.len() + tables.throttled_queues.len();
    let short = tables.throttling.len() + tables.exits.len() + tables.cpu_nodes.len() + quotas;
    stacks.sum::<usize>() + rows + memory.sum::<usize>() + SHORT_ROW * short
}

fn fit_within(limit: usize, tables: &Tables) -> (Cow<'_, Tables>, Vec<Note>) {
    let cut = largest(costs(tables), limit.saturating_sub(others(tables)));
    if cut.is_empty() {
        return (Cow::Borrowed(tables), Vec::new());
    }
    let mut left = tables.clone();
    let stays = |owner: Owner| !cut.contains_key(&owner);
    left.symbols.retain(|symbol| stays(module_owner(tables, symbol.module)));
    left.mappings.retain(|mapping| stays(image_owner(tables, mapping.image)));
    left.threads.retain(|thread| stays(image_owner(tables, thread.image)));
    // Their rows stay: others refer to them by number.
    left.images.iter_mut().filter(|row| !stays(row.owner)).for_each(|row| row.name.clear());
    left.modules.iter_mut().filter(|row| !stays(row.owner)).for_each(|row| row.path.clear());
    let subject = |owner: &Owner| match owner {
        Owner::Host => "host".to_owned(),
        Owner::Vm(vm) => tables.vms.get(vm.index()).map_or_else(String::new, |vm| vm.name.clone()),
    };
    let notes = cut.iter().map(|(owner, bytes)| note(subject(owner), "names", *bytes)).collect();
    (Cow::Owned(left), notes)
}

fn fit_trace_within(limit: usize, tables: &TraceTables) -> (Cow<'_, TraceTables>, Vec<Note>) {
    let others = ROW * (tables.machines.len() + tables.tasks.len() + tables.disks.len());
    let mut costs = BTreeMap::<MachineId, usize>::new();
    for (machine, _, functions) in &tables.stacks {
        let texts = functions.iter().map(|name| TEXT + 2 * name.len());
        *costs.entry(*machine).or_default() += ROW + texts.sum::<usize>();
    }
    let files = tables.files.iter().map(|file| ROW + 2 * file.path.as_ref().map_or(0, String::len));
    let others = others + files.sum::<usize>();
    let cut = largest(costs, limit.saturating_sub(others));
    if cut.is_empty() {
        return (Cow::Borrowed(tables), Vec::new());
    }
    let mut left = tables.clone();
    left.stacks.retain(|(machine, ..)| !cut.contains_key(machine));
    let subject = |machine: &MachineId| {
        tables.machines.get(machine.index()).map_or_else(String::new, |row| row.name.clone())
    };
    let notes = cut.iter().map(|(machine, bytes)| note(subject(machine), "stacks", *bytes));
    (Cow::Owned(left), notes.collect())
}

fn note(subject: String, what: &str, bytes: usize) -> Note {
    let text =
        format!("its {what} would take {} MiB of memory, too much: they are left out", bytes >> 20);
    Note { subject, text }
}

/// Those with the most, without which the rest is within the limit.
fn largest<K: Ord + Copy>(costs: BTreeMap<K, usize>, limit: usize) -> BTreeMap<K, usize> {
    let mut by_cost: Vec<(usize, K)> = costs.into_iter().map(|(key, cost)| (cost, key)).collect();
    by_cost.sort_unstable();
    let mut sum: usize = by_cost.iter().map(|(cost, _)| cost).sum();
    let mut cut = BTreeMap::new();
    while limit < sum {
        let Some((cost, key)) = by_cost.pop() else { break };
        sum -= cost;
        cut.insert(key, cost);
    }
    cut
}

fn costs(tables: &Tables) -> BTreeMap<Owner, usize> {
    let mut costs = BTreeMap::new();
    let mut add = |owner, text: usize| *costs.entry(owner).or_default() += ROW + 2 * text;
    tables.images.iter().for_each(|row| add(row.owner, row.name.len()));
    tables.modules.iter().for_each(|row| add(row.owner, row.path.len()));
    tables.threads.iter().for_each(|row| add(image_owner(tables, row.image), row.name.len()));
    tables.mappings.iter().for_each(|row| add(image_owner(tables, row.image), 0));
    for row in &tables.symbols {
        let text = match &row.name {
            SymbolName::Function(text) | SymbolName::Unreadable(text) => text.len(),
            SymbolName::Stripped => 0,
        };
        add(module_owner(tables, row.module), text);
    }
    costs
}

fn image_owner(tables: &Tables, image: model::ImageId) -> Owner {
    tables.images.get(image.index()).map_or(Owner::Host, |row| row.owner)
}

fn module_owner(tables: &Tables, module: model::ModuleId) -> Owner {
    tables.modules.get(module.index()).map_or(Owner::Host, |row| row.owner)
}

#[cfg(test)]
mod test {
    use model::{Module, ModuleId, Symbol, TraceStack, VmId};

    use super::*;

    #[test]
    fn who_has_the_most_loses_its_names() {
        let owners = [Owner::Host, Owner::Vm(VmId(0)), Owner::Vm(VmId(1))];
        let module = |owner| Module { owner, path: "/bin/a".into(), build_id: None };
        let modules = owners.map(module).to_vec();
        let symbol = |(module, n): (u32, usize)| Symbol {
            module: ModuleId(module),
            offset: 0,
            name: SymbolName::Function("x".repeat(n)),
        };
        let symbols = [(0, 1000), (1, 50_000), (1, 1), (2, 2000)].map(symbol).to_vec();
        let tables = Tables { modules, symbols, ..Tables::default() };
        let check = |limit, left: &[u32]| {
            let (fitted, notes) = fit_within(limit, &tables);
            let rows: Vec<_> = fitted.symbols.iter().map(|symbol| symbol.module.0).collect();
            assert_eq!((rows.as_slice(), fitted.modules.len()), (left, 3));
            let gone = owners.len() - rows.iter().collect::<std::collections::BTreeSet<_>>().len();
            assert_eq!(notes.len(), gone);
        };
        check(200_000, &[0, 1, 1, 2]);
        check(100_000, &[0, 2]);
        check(4000, &[0]);
        check(0, &[]);
    }

    #[test]
    fn stacks_of_one_machine_go_alone() {
        let stack = |machine, n: usize| (MachineId(machine), TraceStack(1), vec!["f".repeat(n)]);
        let tables =
            TraceTables { stacks: vec![stack(0, 10), stack(1, 5000)], ..TraceTables::default() };
        let left = |limit| fit_trace_within(limit, &tables).0.stacks.len();
        assert_eq!([left(100_000), left(5000), left(10)], [2, 1, 0]);
    }
}
