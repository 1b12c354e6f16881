//! A policy outside of this program, which reads a question and writes choices, both in JSON.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Choice, MemoryChoice, Part, Policy, Room};
use crate::topology::Topology;

/// The version of question and answer.
const VERSION: u32 = 1;
/// Characters of a reason at most.
const MAX_REASON: usize = 200;

/// Asks for choices. What it answers is checked here; whether choices fit is for `plan`, as with all policies.
pub struct External<F> {
    ask: F,
    /// Why there are no choices; everything stays then.
    pub failure: Option<String>,
}

#[derive(Debug, Serialize)]
struct Question<'a> {
    version: u32,
    nodes: Vec<QuestionNode<'a>>,
    parts: Vec<QuestionPart<'a>>,
}

/// A node: `room_...` is what all parts together may have there, with what they have now.
#[derive(Debug, Serialize)]
struct QuestionNode<'a> {
    node: u32,
    cpus: &'a [u32],
    /// To each of the nodes.
    distances: Vec<u32>,
    bandwidths_bytes_per_s: Vec<u64>,
    total_bytes: u64,
    room_vcpus: usize,
    room_bytes: u64,
    /// Of huge pages, by their size.
    room_huge_bytes: BTreeMap<u64, u64>,
}

#[derive(Debug, Serialize)]
struct QuestionPart<'a> {
    vm: u32,
    name: &'a str,
    part: usize,
    may_move: bool,
    vcpus: usize,
    /// Of most vCPUs.
    node: Option<u32>,
    /// On each of the nodes.
    vcpus_by_node: &'a [usize],
    memory_by_node: &'a [u64],
    huge_page_bytes: Option<u64>,
    vcpu_nodes: Vec<u32>,
    memory_nodes: Vec<u32>,
    misses_per_s: f64,
    remote_share: f64,
    misses_per_10000_instructions: &'a [f64],
    ran_s: f64,
    seconds_per_byte: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    choices: Vec<AnswerChoice>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerChoice {
    vm: u32,
    #[serde(default)]
    part: usize,
    node: Option<u32>,
    memory: Option<AnswerMemory>,
    #[serde(default)]
    rank: usize,
    reason: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AnswerMemory {
    Stay,
    Follow,
}

impl<F: FnMut(&str) -> Result<String, String>> External<F> {
    /// A policy that `ask` answers for.
    #[must_use]
    pub fn new(ask: F) -> Self {
        Self { ask, failure: None }
    }
}

impl<F> std::fmt::Debug for External<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("External").field("failure", &self.failure).finish_non_exhaustive()
    }
}

impl<F: FnMut(&str) -> Result<String, String>> Policy for External<F> {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn place(&mut self, topology: &Topology, room: &Room, parts: &[Part]) -> Vec<Choice> {
        let stay = || parts.iter().map(|_| Choice::stay("it may not be moved")).collect();
        if self.failure.is_some() {
            return stay();
        }
        let answered = question(topology, room, parts).and_then(|question| (self.ask)(&question));
        match answered.and_then(|answer| choices(topology, parts, &answer)) {
            Ok(choices) => choices,
            Err(failure) => {
                self.failure = Some(failure);
                stay()
            }
        }
    }
}

fn question(topology: &Topology, room: &Room, parts: &[Part]) -> Result<String, String> {
    let sizes: BTreeSet<u64> =
        topology.nodes().iter().flat_map(|node| node.huge_free.keys().copied()).collect();
    let id = |at: usize| topology.nodes()[at].id;
    let node = |at: usize| {
        let all = 0..topology.len();
        let huge = sizes.iter().map(|size| (*size, room.bytes.on(Some(*size), at)));
        QuestionNode {
            node: id(at),
            cpus: &topology.nodes()[at].cpus,
            distances: all.clone().map(|to| topology.distance(at, to)).collect(),
            bandwidths_bytes_per_s: all.map(|to| topology.bandwidth(at, to)).collect(),
            total_bytes: topology.nodes()[at].total,
            room_vcpus: room.vcpus[at],
            room_bytes: room.bytes.on(None, at),
            room_huge_bytes: huge.collect(),
        }
    };
    let question = Question {
        version: VERSION,
        nodes: (0..topology.len()).map(node).collect(),
        parts: parts.iter().map(|part| question_part(topology, part)).collect(),
    };
    serde_json::to_string(&question).map_err(|error| error.to_string())
}

fn question_part<'p>(topology: &Topology, part: &'p Part) -> QuestionPart<'p> {
    let id = |at: usize| topology.nodes()[at].id;
    let allowed = |nodes: &[bool]| -> Vec<u32> {
        nodes.iter().enumerate().filter(|(_, may)| **may).map(|(at, _)| id(at)).collect()
    };
    QuestionPart {
        vm: part.vm,
        name: &part.name,
        part: part.number,
        may_move: part.may_move,
        vcpus: part.vcpus,
        node: part.home.map(id),
        vcpus_by_node: &part.vcpus_on,
        memory_by_node: &part.memory,
        huge_page_bytes: part.page,
        vcpu_nodes: allowed(&part.homes),
        memory_nodes: allowed(&part.memory_nodes),
        misses_per_s: part.misses_per_s,
        remote_share: part.remote,
        misses_per_10000_instructions: &part.signatures,
        ran_s: part.ran_s,
        seconds_per_byte: part.seconds_per_byte,
    }
}

fn choices(topology: &Topology, parts: &[Part], answer: &str) -> Result<Vec<Choice>, String> {
    let answer: Answer = serde_json::from_str(answer)
        .map_err(|error| format!("its answer is not of the documented form: {error}"))?;
    let mut choices: Vec<Option<Choice>> = vec![None; parts.len()];
    for choice in answer.choices {
        let AnswerChoice { vm, part, node, memory, rank, reason } = choice;
        let at = parts.iter().position(|other| (other.vm, other.number) == (vm, part));
        let at = at.ok_or_else(|| format!("it chose for part {part} of VM {vm}: there is none"))?;
        let home = node.map(|id| {
            topology
                .index_of(id)
                .ok_or_else(|| format!("it chose node {id} for VM {vm}: there is none"))
        });
        let memory = match (memory, node) {
            (Some(AnswerMemory::Stay), _) | (None, None) => MemoryChoice::Stay,
            (Some(AnswerMemory::Follow), _) | (None, Some(_)) => MemoryChoice::Follow,
        };
        let reason = reason.unwrap_or_else(|| "the policy's choice".to_owned());
        let reason = reason.chars().take(MAX_REASON).collect();
        let choice = Choice { home: home.transpose()?, memory, rank, reason };
        if choices[at].replace(choice).is_some() {
            return Err(format!("it chose twice for part {part} of VM {vm}"));
        }
    }
    let stay = || Choice::stay("the policy does not mention it");
    Ok(choices.into_iter().map(|choice| choice.unwrap_or_else(stay)).collect())
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::plan::test::vm;
    use crate::topology::test::machine;
    use crate::{Load, Options, Outcome, Plan, Vm};

    const G: u64 = 1 << 30;

    /// `b` may run on node 1 only, and `c` may not move.
    fn planned(answer: &str) -> (Plan, Option<String>) {
        let mut vms = [vm("a", 1, 0, 2 * G, 0.5), vm("b", 1, 1, G, 0.5), vm("c", 2, 2, G, 0.5)];
        for (vm, id) in vms.iter_mut().zip(40..) {
            vm.id = id;
            vm.samples.truncate(2);
        }
        vms[0].now.memory.rotate_right(2);
        vms[1].allowed.cpus = vec![Some((4..8).collect())];
        let vms = vms.map(|vm| Vm { stays: (vm.name == "c").then(|| "held".to_owned()), ..vm });
        let load = Load { vms: vms.to_vec() };
        let mut policy = External::new(|_| Ok(answer.to_owned()));
        let plan = crate::plan(&machine(4), &load, &mut policy, &Options::default());
        (plan, policy.failure)
    }

    #[test]
    fn choices_are_kept_to_what_fits() {
        let (plan, failure) = planned(
            r#"{"choices":[{"vm":40,"node":2,"reason":"I say so"},{"vm":41,"node":3},{"vm":42,"node":0}]}"#,
        );
        assert_eq!(failure, None);
        let homes: Vec<_> = plan.vms.iter().map(|vm| vm.after.vcpus[0]).collect();
        assert_eq!(homes, [Some(2), Some(1), Some(2)], "{plan:?}");
        let reasons: Vec<_> = plan.vms.iter().map(|vm| &*vm.reason).collect();
        assert_eq!(reasons, ["I say so", "the policy's choice", "held"]);
        assert_eq!(plan.policy, "exec");
        let (plan, _) = planned(r#"{"choices":[{"vm":40,"node":null}]}"#);
        assert_eq!(plan.outcome, Outcome::InPlace);
        assert_eq!(plan.vms[1].reason, "the policy does not mention it");
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_no_plan() {
        let check = |answer: &str, expected: &str| {
            let (plan, failure) = planned(answer);
            assert!(plan.moves.is_empty() && plan.outcome == Outcome::InPlace, "{answer}");
            let failure = failure.unwrap();
            assert!(failure.starts_with(expected), "{answer}: {failure}");
        };
        let form = "its answer is not of the documented form: ";
        check("", form);
        check("{}", form);
        check(r#"{"choices":[{"vm":40,"home":1}]}"#, form);
        check(r#"{"choices":[{"vm":-1}]}"#, form);
        check(r#"{"choices":[{"vm":40,"memory":"fly"}]}"#, form);
        check(r#"{"choices":[{"vm":7}]}"#, "it chose for part 0 of VM 7: there is none");
        check(r#"{"choices":[{"vm":40,"part":1}]}"#, "it chose for part 1 of VM 40");
        check(r#"{"choices":[{"vm":40,"node":4}]}"#, "it chose node 4 for VM 40: there is none");
        check(r#"{"choices":[{"vm":40},{"vm":40}]}"#, "it chose twice for part 0 of VM 40");
    }
}
