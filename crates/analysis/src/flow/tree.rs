//! Samples merged into a tree of frames by what the reader sees: kind, name and module.

use std::collections::{BTreeMap, HashMap};

use super::{Flow, FlowThread, Frame, FrameKind};

/// A frame as shown. Frames that differ in address only are one label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Label<'a> {
    pub kind: FrameKind,
    pub name: &'a str,
    /// Index into `Flow::modules`.
    pub module: Option<u32>,
}

/// A node of the tree as it is drawn. The list is in preorder; the first node stands for everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Index into `Tree::labels`; `None` for the root.
    pub label: Option<usize>,
    /// Distance from the root.
    pub depth: usize,
    /// Samples in it and below.
    pub total: u64,
}

/// All stacks of a flow.
#[derive(Debug)]
pub struct Tree<'a> {
    pub labels: Vec<Label<'a>>,
    pub nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Branch {
    total: u64,
    children: BTreeMap<usize, usize>,
}

/// The distinct labels of a flow.
#[derive(Debug, Default)]
pub struct Labels<'a> {
    /// In the order in which they were first seen.
    pub list: Vec<Label<'a>>,
    seen: HashMap<Label<'a>, usize>,
}

impl<'a> Tree<'a> {
    /// The tree of all samples.
    #[must_use]
    pub fn new(flow: &'a Flow) -> Self {
        let stacks = flow.stacks.iter().map(Vec::as_slice).zip(counts(flow));
        Self::of_stacks(flow, stacks, |stack| kind_of_stack(flow, stack))
    }

    /// The tree of stacks of a flow's frames, root first, and what each has. `whole` is the kind of all of a stack.
    pub fn of_stacks<'s>(
        flow: &'a Flow,
        stacks: impl Iterator<Item = (&'s [u32], u64)>,
        whole: impl Fn(&[u32]) -> Option<FrameKind>,
    ) -> Self {
        let mut labels = Labels::default();
        let mut branches = vec![Branch::default()];
        for (stack, count) in stacks.filter(|(_, count)| 0 < *count) {
            let whole = whole(stack);
            let mut at = 0;
            branches[at].total += count;
            for frame in stack {
                let label = labels.in_stack(&flow.frames[*frame as usize], whole);
                let next_free = branches.len();
                at = *branches[at].children.entry(label).or_insert(next_free);
                if at == next_free {
                    branches.push(Branch::default());
                }
                branches[at].total += count;
            }
        }
        let nodes = preorder(&branches, &labels.list);
        Self { labels: labels.list, nodes }
    }
}

impl<'a> Labels<'a> {
    /// The label of a frame on its own: a place in the list.
    pub fn of(&mut self, frame: &'a Frame) -> usize {
        self.intern(Label { kind: frame.kind, name: &frame.name, module: frame.module })
    }

    /// The label of a frame in a stack: all of an idle CPU's stack is idle, the kernel's idle loop too.
    pub fn in_stack(&mut self, frame: &'a Frame, whole: Option<FrameKind>) -> usize {
        let kind = if whole == Some(FrameKind::Idle) { FrameKind::Idle } else { frame.kind };
        self.intern(Label { kind, name: &frame.name, module: frame.module })
    }

    fn intern(&mut self, label: Label<'a>) -> usize {
        *self.seen.entry(label).or_insert_with(|| {
            self.list.push(label);
            self.list.len() - 1
        })
    }
}

/// What a sample with this stack is counted as: idle, or whatever its innermost frame is.
#[must_use]
pub fn kind_of_stack(flow: &Flow, stack: &[u32]) -> Option<FrameKind> {
    let kind = |frame: &u32| flow.frames[*frame as usize].kind;
    stack
        .first()
        .map(kind)
        .filter(|kind| *kind == FrameKind::Idle)
        .or_else(|| stack.last().map(kind))
}

/// A process with its VM in front: `[vm1] compute`; a VM that can't be looked into is its own process.
#[must_use]
pub fn process_name(thread: &FlowThread) -> String {
    match &thread.vm {
        Some(vm) if thread.process == format!("[{vm}]") => thread.process.clone(),
        Some(vm) => format!("[{vm}] {}", thread.process),
        None => thread.process.clone(),
    }
}

/// Samples of each stack.
#[must_use]
pub fn counts(flow: &Flow) -> Vec<u64> {
    let mut counts = vec![0_u64; flow.stacks.len()];
    for sample in &flow.samples {
        counts[sample.stack as usize] += 1;
    }
    counts
}

/// Siblings stand by size, largest first, then by name.
fn preorder(branches: &[Branch], labels: &[Label<'_>]) -> Vec<Node> {
    let mut nodes = Vec::with_capacity(branches.len());
    let mut to_visit = vec![(0, None, 0)];
    while let Some((branch, label, depth)) = to_visit.pop() {
        let Branch { total, children } = &branches[branch];
        nodes.push(Node { label, depth, total: *total });
        let mut children: Vec<(usize, usize)> = children.iter().map(|(l, b)| (*l, *b)).collect();
        children.sort_by_key(|(label, branch)| {
            (branches[*branch].total, std::cmp::Reverse(labels[*label].name))
        });
        to_visit
            .extend(children.into_iter().map(|(label, branch)| (branch, Some(label), depth + 1)));
    }
    nodes
}

#[cfg(test)]
mod test {
    use model::HostNs;

    use super::*;
    use crate::flow::FlowSample;

    /// Stacks as words (one letter a frame) and the tree as indented lines.
    fn check(stacks: &[(&str, usize)], expected: &[&str]) {
        let frame = |c: char| Frame {
            kind: FrameKind::HostUser,
            name: c.to_string(),
            module: None,
            offset: 0,
        };
        let mut flow = Flow { frames: ('a'..='z').map(frame).collect(), ..Flow::default() };
        for (number, (stack, count)) in stacks.iter().enumerate() {
            flow.stacks.push(stack.bytes().map(|b| u32::from(b - b'a')).collect());
            let sample = FlowSample {
                time: HostNs(0),
                cpu: 0,
                thread: 0,
                stack: number.try_into().unwrap(),
            };
            flow.samples.extend(std::iter::repeat_n(sample, *count));
        }
        let tree = Tree::new(&flow);
        let name =
            |node: &Node| node.label.map_or("all", |label| tree.labels[label].name).to_owned();
        let shown: Vec<String> = tree
            .nodes
            .iter()
            .map(|node| format!("{}{} {}", ".".repeat(node.depth), name(node), node.total))
            .collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn stacks_merge_by_prefix_largest_first() {
        check(
            &[("ab", 1), ("a", 2), ("ac", 3), ("d", 9), ("e", 9)],
            &["all 24", ".d 9", ".e 9", ".a 6", "..c 3", "..b 1"],
        );
    }

    #[test]
    fn recursion_and_empty_stacks_keep_their_samples() {
        check(&[("aaa", 2), ("", 1)], &["all 3", ".a 2", "..a 2", "...a 2"]);
    }

    #[test]
    fn an_idle_stack_is_idle_to_its_end() {
        let frame = |kind| Frame { kind, name: String::new(), module: None, offset: 0 };
        let frames = [FrameKind::Idle, FrameKind::Process, FrameKind::HostKernel].map(frame);
        let flow = Flow { frames: frames.to_vec(), ..Flow::default() };
        assert_eq!(kind_of_stack(&flow, &[0, 2]), Some(FrameKind::Idle));
        assert_eq!(kind_of_stack(&flow, &[1, 2]), Some(FrameKind::HostKernel));
        assert_eq!(kind_of_stack(&flow, &[]), None);
    }

    #[test]
    fn no_samples_no_nodes_but_the_root() {
        check(&[], &["all 0"]);
    }
}
