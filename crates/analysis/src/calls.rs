//! Who calls whom: functions with what they call, and the trees of a function's callers and callees.

use std::collections::{BTreeMap, BTreeSet};

use crate::flow::tree::{Labels, Tree, counts, kind_of_stack};
use crate::flow::{Flow, Frame, FrameKind};

/// What to show of the calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallsQuery {
    /// Each function of a process, with the samples of what it calls.
    Children,
    /// The callers of the functions of this name, as a tree.
    Callers(String),
    /// What the functions of this name call, as a tree.
    Callees(String),
    /// Each call stack.
    Stacks,
}

/// Calls of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calls {
    pub query: CallsQuery,
    /// Samples of the flow.
    pub total: u64,
    /// Those that the rows are about: of stacks with the function, or all.
    pub matched: u64,
    /// Most samples first; of trees in preorder.
    pub rows: Vec<CallRow>,
}

/// A function, a node of a tree, or a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRow {
    /// In it and in what it calls; of callers' trees those that came by this path.
    pub samples: u64,
    /// In it alone.
    pub own: u64,
    /// Distance from the tree's root.
    pub depth: usize,
    /// Its name; of a stack that of its innermost frame.
    pub name: String,
    pub kind: FrameKind,
    pub module: Option<String>,
    pub vm: Option<String>,
    pub process: Option<String>,
    /// Of a stack, all frames, the innermost first; empty otherwise.
    pub frames: Vec<String>,
}

/// The calls of a flow. Each sample is in one row of `Stacks` and in one tree; in `Children` it is in as many rows as its stack
/// has functions, in each of them once.
#[must_use]
pub fn calls(flow: &Flow, query: CallsQuery) -> Calls {
    let total = flow.samples.len() as u64;
    let (matched, rows) = match &query {
        CallsQuery::Children => (total, children(flow)),
        CallsQuery::Stacks => (total, stacks(flow)),
        CallsQuery::Callers(name) => around(flow, name, Direction::Callers),
        CallsQuery::Callees(name) => around(flow, name, Direction::Callees),
    };
    Calls { query, total, matched, rows }
}

/// Where a stack belongs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Owner<'f> {
    vm: Option<&'f str>,
    process: Option<&'f str>,
}

/// The owner that a stack's first frames name, and how many those are.
fn owner<'f>(flow: &'f Flow, stack: &[u32]) -> (Owner<'f>, usize) {
    let mut owner = Owner::default();
    let mut n_frames = 0;
    for frame in stack.iter().map(|frame| &flow.frames[*frame as usize]) {
        match frame.kind {
            FrameKind::Vm => owner.vm = Some(&frame.name),
            FrameKind::Process | FrameKind::Idle => owner.process = Some(&frame.name),
            _ => break,
        }
        n_frames += 1;
    }
    (owner, n_frames)
}

fn row(flow: &Flow, frame: &Frame, owner: Owner<'_>, samples: u64, own: u64) -> CallRow {
    let module = frame.module.and_then(|module| flow.modules.get(module as usize));
    CallRow {
        samples,
        own,
        depth: 0,
        name: frame.name.clone(),
        kind: frame.kind,
        // The row has the VM besides.
        module: module.map(|module| without_vm(&module.path, owner.vm).to_owned()),
        vm: owner.vm.map(|vm| vm.trim_matches(['[', ']']).to_owned()),
        process: owner.process.map(str::to_owned),
        frames: Vec::new(),
    }
}

/// A module's path without its VM in front.
fn without_vm<'p>(path: &'p str, vm: Option<&str>) -> &'p str {
    vm.and_then(|vm| path.strip_prefix(vm)).unwrap_or(path)
}

/// Stacks that have samples.
fn counted(flow: &Flow) -> impl Iterator<Item = (&Vec<u32>, u64)> {
    flow.stacks.iter().zip(counts(flow)).filter(|(_, count)| 0 < *count)
}

fn children(flow: &Flow) -> Vec<CallRow> {
    let mut labels = Labels::default();
    // Of each function its first frame, and its samples.
    let mut sums: BTreeMap<(Owner<'_>, usize), (&Frame, u64, u64)> = BTreeMap::new();
    for (stack, count) in counted(flow) {
        let (owner, first) = owner(flow, stack);
        // A stack without functions is its owner's.
        let functions =
            if first < stack.len() { &stack[first..] } else { &stack[first.max(1) - 1..] };
        let mut seen: Vec<usize> = Vec::with_capacity(functions.len());
        for (n, frame) in functions.iter().enumerate().rev() {
            let frame = &flow.frames[*frame as usize];
            let label = labels.of(frame);
            let (_, samples, own) = sums.entry((owner, label)).or_insert((frame, 0, 0));
            if n + 1 == functions.len() {
                *own += count;
            }
            // A function that calls itself has a sample once.
            if !seen.contains(&label) {
                *samples += count;
                seen.push(label);
            }
        }
    }
    let rows = sums.into_iter();
    let mut rows: Vec<CallRow> = rows
        .map(|((owner, _), (frame, samples, own))| row(flow, frame, owner, samples, own))
        .collect();
    rows.sort_by(|a, b| (b.samples, b.own, &a.name).cmp(&(a.samples, a.own, &b.name)));
    rows
}

fn stacks(flow: &Flow) -> Vec<CallRow> {
    let mut labels = Labels::default();
    // Stacks that look the same are one.
    let mut sums: BTreeMap<Vec<usize>, (&[u32], u64)> = BTreeMap::new();
    for (stack, count) in counted(flow) {
        let shown = stack.iter().map(|frame| labels.of(&flow.frames[*frame as usize])).collect();
        sums.entry(shown).or_insert((stack, 0)).1 += count;
    }
    let mut rows: Vec<CallRow> = sums
        .into_values()
        .filter_map(|(stack, count)| {
            let (owner, first) = owner(flow, stack);
            let leaf = &flow.frames[*stack.last()? as usize];
            let frames = stack[first.min(stack.len() - 1)..].iter().rev();
            let frames = frames.map(|frame| flow.frames[*frame as usize].name.clone()).collect();
            Some(CallRow { frames, ..row(flow, leaf, owner, count, count) })
        })
        .collect();
    rows.sort_by(|a, b| (b.samples, &a.frames).cmp(&(a.samples, &b.frames)));
    rows
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Callers,
    Callees,
}

/// The tree of what calls a function, or of what it calls, and the samples of all stacks with it.
fn around(flow: &Flow, name: &str, direction: Direction) -> (u64, Vec<CallRow>) {
    let is_it = |frame: &u32| flow.frames[*frame as usize].name == name;
    let mut matched = 0;
    let mut vms = BTreeSet::new();
    let mut parts: Vec<(Vec<u32>, u64)> = Vec::new();
    for (stack, count) in counted(flow) {
        // Of a function that calls itself the way to the innermost, or on from the outermost.
        let part = match direction {
            Direction::Callers => stack.iter().rposition(is_it).map(|at| {
                let mut path = stack[..=at].to_vec();
                path.reverse();
                path
            }),
            Direction::Callees => stack.iter().position(is_it).map(|at| stack[at..].to_vec()),
        };
        if let Some(part) = part {
            matched += count;
            vms.insert(owner(flow, stack).0.vm);
            parts.push((part, count));
        }
    }
    let whole = |stack: &[u32]| match direction {
        Direction::Callees => kind_of_stack(flow, stack),
        Direction::Callers => None,
    };
    let tree =
        Tree::of_stacks(flow, parts.iter().map(|(part, count)| (part.as_slice(), *count)), whole);
    // Of one VM alone it need not be said with each module.
    let vm = vms.first().copied().flatten().filter(|_| vms.len() == 1);
    let nodes = tree.nodes.iter().enumerate().skip(1);
    let rows = nodes.filter_map(|(place, node)| {
        let label = tree.labels[node.label?];
        let below = tree.nodes[place + 1..].iter().take_while(|other| node.depth < other.depth);
        let of_children: u64 =
            below.filter(|other| other.depth == node.depth + 1).map(|other| other.total).sum();
        let module = label.module.and_then(|module| flow.modules.get(module as usize));
        Some(CallRow {
            samples: node.total,
            own: node.total - of_children.min(node.total),
            depth: node.depth - 1,
            name: label.name.to_owned(),
            kind: label.kind,
            module: module.map(|module| without_vm(&module.path, vm).to_owned()),
            vm: None,
            process: None,
            frames: Vec::new(),
        })
    });
    (matched, rows.collect())
}

#[cfg(test)]
mod test {
    use model::HostNs;

    use super::*;
    use crate::flow::FlowSample;

    /// Stacks of letters, outermost first, in process `p` of VM `[v]`.
    fn flow(stacks: &[(&str, usize)]) -> Flow {
        let function = |c: char| Frame {
            kind: FrameKind::GuestUser,
            name: c.to_string(),
            module: None,
            offset: 0,
        };
        let named =
            |kind, name: &str| Frame { kind, name: name.to_owned(), module: None, offset: 0 };
        let mut flow = Flow { frames: ('a'..='z').map(function).collect(), ..Flow::default() };
        flow.frames.extend([named(FrameKind::Vm, "[v]"), named(FrameKind::Process, "p")]);
        for (number, (stack, count)) in (0..).zip(stacks) {
            let functions = stack.bytes().map(|b| u32::from(b - b'a'));
            flow.stacks.push([26, 27].into_iter().chain(functions).collect());
            let sample = FlowSample { time: HostNs(0), cpu: 0, thread: 0, stack: number };
            flow.samples.extend(std::iter::repeat_n(sample, *count));
        }
        flow
    }

    fn check(stacks: &[(&str, usize)], query: CallsQuery, expected: &[&str]) {
        let calls = calls(&flow(stacks), query);
        let shown = |row: &CallRow| {
            let name = if row.frames.is_empty() { row.name.clone() } else { row.frames.join("<") };
            format!("{}{name} {} {}", ".".repeat(row.depth), row.samples, row.own)
        };
        assert_eq!(calls.rows.iter().map(shown).collect::<Vec<_>>(), expected);
    }

    const STACKS: [(&str, usize); 4] = [("ab", 3), ("abc", 2), ("axb", 1), ("abab", 4)];

    #[test]
    fn a_function_has_the_samples_of_what_it_calls_once() {
        check(&STACKS, CallsQuery::Children, &["b 10 8", "a 10 0", "c 2 2", "x 1 0"]);
        let calls = calls(&flow(&STACKS), CallsQuery::Children);
        assert_eq!(calls.rows.iter().map(|row| row.own).sum::<u64>(), calls.total);
        assert_eq!(
            (calls.rows[0].vm.as_deref(), calls.rows[0].process.as_deref()),
            (Some("v"), Some("p"))
        );
    }

    #[test]
    fn callers_are_a_tree_to_the_root() {
        let callers = CallsQuery::Callers("b".to_owned());
        let expected = [
            "b 10 0",
            ".a 9 0",
            "..p 5 0",
            "...[v] 5 5",
            "..b 4 0",
            "...a 4 0",
            "....p 4 0",
            ".....[v] 4 4",
            ".x 1 0",
            "..a 1 0",
            "...p 1 0",
            "....[v] 1 1",
        ];
        check(&STACKS, callers, &expected);
    }

    #[test]
    fn callees_are_a_tree_from_the_outermost_call() {
        let expected = ["b 10 4", ".a 4 0", "..b 4 4", ".c 2 2"];
        check(&STACKS, CallsQuery::Callees("b".to_owned()), &expected);
        check(&STACKS, CallsQuery::Callees("nothing".to_owned()), &[]);
    }

    #[test]
    fn stacks_that_look_the_same_are_one() {
        let stacks = [("ab", 1), ("ab", 2), ("", 5)];
        check(&stacks, CallsQuery::Stacks, &["p 5 5", "b<a 3 3"]);
        check(&stacks, CallsQuery::Children, &["p 5 5", "b 3 3", "a 3 0"]);
    }
}
