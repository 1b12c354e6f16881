//! Files that describe nodes and loads: TOML, see `docs/layout.md`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::load::{Allowed, Arrival, Load, LoadError, Placed, Sample, Source, Vm};
use crate::model::Model;
use crate::plan::default_placement;
use crate::simulate::{Case, Migration};
use crate::topology::{Node, Topology, TopologyError};

/// Bytes of a file at most.
pub const MAX_FILE_BYTES: usize = 4 << 20;
/// Samples of a VM at most.
const MAX_SAMPLES: usize = 600;
/// A size is smaller: those of all VMs and nodes can be added up.
const MAX_BYTES: u64 = 1 << 50;
/// Default rate of memory moves.
const USUAL_MOVE_BYTES_PER_S: u64 = 1 << 30;
/// Why a VM with `fixed = true` stays.
const FIXED: &str = "it may not be moved";

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FileError {
    /// It is no TOML of the documented form.
    #[error("line {line}: {problem}")]
    Form { line: usize, problem: String },
    #[error("it has {0} bytes: at most {MAX_FILE_BYTES} are allowed")]
    Size(usize),
    /// A size such as `5G` that is none.
    #[error("`{0}` is not a size: write 512M, 5G or bytes, less than 1048576G")]
    Bytes(String),
    /// A list such as `0-5` that is none.
    #[error("`{0}` is not a list of CPUs: write 0-5,8")]
    Cpus(String),
    /// The nodes do not fit together.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The VMs do not fit the nodes.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// What one VM says does not fit together.
    #[error("VM {vm}: {problem}")]
    Vm { vm: String, problem: &'static str },
    /// A node's memory is not enough for the VMs that run there.
    #[error("node {0} has less memory than the VMs have there")]
    Full(u32),
    /// A node has less memory than is free.
    #[error("node {0}: its free memory exceeds its memory")]
    Free(u32),
    /// The migration's times.
    #[error(
        "migration: start_s, end_s and observe_s must be in order and below 3600, and shares below 1"
    )]
    Migration,
    /// The rate of moving.
    #[error("migration: move_bytes_per_s is 0: memory would never be moved")]
    Rate,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TopologyFile {
    node: Vec<NodeEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeEntry {
    id: Option<u32>,
    cpus: String,
    memory: Size,
    free: Option<Size>,
    distances: Vec<u32>,
    bandwidths: Option<Vec<Size>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "this is no size: write \"512M\", \"5G\" or bytes")]
enum Size {
    Bytes(i64),
    Real(f64),
    Text(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseFile {
    name: Option<String>,
    #[serde(default)]
    migration: MigrationEntry,
    #[serde(default)]
    vm: Vec<VmEntry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct MigrationEntry {
    start_s: Option<u32>,
    end_s: Option<u32>,
    observe_s: Option<u32>,
    move_bytes_per_s: Option<Size>,
    precopy: Option<f64>,
    moving: Option<f64>,
    downtime_s: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VmEntry {
    name: String,
    #[serde(default = "one")]
    vcpus: usize,
    memory: Option<Size>,
    node: Option<u32>,
    memory_nodes: Option<Vec<u32>>,
    waiting: Option<f64>,
    misses_per_s: Option<f64>,
    instructions_per_s: Option<f64>,
    #[serde(default)]
    sample: Vec<SampleEntry>,
    #[serde(default)]
    incoming: bool,
    #[serde(default)]
    fixed: bool,
    ran_s: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SampleEntry {
    seconds: f64,
    misses: f64,
    instructions: Option<f64>,
    remote: Option<f64>,
}

fn one() -> usize {
    1
}

/// Reads a host's nodes. Without `free`, all memory of a node that no VM of the case uses is free.
///
/// # Errors
/// If the text is not of the documented form.
pub fn read_topology(text: &str) -> Result<Topology, FileError> {
    let file: TopologyFile = parse(text)?;
    let mut nodes = Vec::new();
    let mut bandwidths = Vec::new();
    for (at, entry) in file.node.iter().enumerate() {
        let total = entry.memory.bytes()?;
        let free = entry.free.as_ref().map_or(Ok(total), Size::bytes)?;
        let id = entry.id.unwrap_or_else(|| u32::try_from(at).unwrap_or(u32::MAX));
        if total < free {
            return Err(FileError::Free(id));
        }
        let cpus = cpu_list(&entry.cpus)?;
        nodes.push(Node { id, cpus, total, free, ..Node::default() });
        let row = entry.bandwidths.iter().flatten().map(Size::bytes);
        bandwidths.push(row.collect::<Result<Vec<_>, _>>()?);
    }
    let given = file.node.iter().any(|entry| entry.bandwidths.is_some());
    let distances = file.node.into_iter().map(|entry| entry.distances).collect();
    Ok(Topology::new(nodes, distances, given.then_some(bandwidths))?)
}

/// Reads VMs and a migration. What the VMs use of the nodes' memory is taken from what is free.
///
/// # Errors
/// If the text is not of the documented form, or does not fit the nodes.
pub fn read_case(text: &str, topology: &Topology) -> Result<Case, FileError> {
    let file: CaseFile = parse(text)?;
    let (migration, move_bytes_per_s) = migration(&file.migration)?;
    let mut load = Load::default();
    for entry in file.vm.iter().filter(|entry| !entry.incoming) {
        load.vms.push(vm(entry, topology, &load, move_bytes_per_s)?);
    }
    let used = |node: usize| load.vms.iter().map(|vm| vm.now.memory[node]).sum::<u64>();
    let mut nodes = topology.nodes().iter().enumerate();
    if let Some((_, full)) = nodes.find(|(at, node)| node.total < used(*at)) {
        return Err(FileError::Full(full.id));
    }
    let free = |(at, node): (usize, &Node)| node.free.saturating_sub(used(at));
    let free: Vec<u64> = topology.nodes().iter().enumerate().map(free).collect();
    let topology = topology.clone().with_free(&free);
    for entry in file.vm.iter().filter(|entry| entry.incoming) {
        load.vms.push(vm(entry, &topology, &load, move_bytes_per_s)?);
    }
    load.check(&topology)?;
    Ok(Case { name: file.name.unwrap_or_default(), topology, load, migration })
}

/// Reads how VMs use memory from a file that describes them, by name.
///
/// # Errors
/// If the text is not of the documented form.
pub fn read_counters(text: &str) -> Result<BTreeMap<String, Vec<Sample>>, FileError> {
    let file: CaseFile = parse(text)?;
    let counters = |entry: &VmEntry| Ok((entry.name.clone(), counted(entry)?));
    file.vm.iter().map(counters).collect()
}

fn counted(entry: &VmEntry) -> Result<Vec<Sample>, FileError> {
    let wrong = |problem| FileError::Vm { vm: entry.name.clone(), problem };
    if entry.waiting.is_some_and(|part| !(0.0..=1.0).contains(&part)) {
        return Err(wrong("waiting must be from 0 to 1"));
    }
    let samples = samples(entry)
        .ok_or_else(|| wrong("give waiting, misses_per_s or samples, and no more than 600"))?;
    if samples.iter().any(Sample::is_bad) {
        return Err(LoadError::Number(entry.name.clone()).into());
    }
    Ok(samples)
}

fn migration(entry: &MigrationEntry) -> Result<(Migration, u64), FileError> {
    let usual = Migration::default();
    let migration = Migration {
        start_s: entry.start_s.unwrap_or(usual.start_s),
        end_s: entry.end_s.unwrap_or(usual.end_s),
        observe_s: entry.observe_s.unwrap_or(usual.observe_s),
        precopy: entry.precopy.unwrap_or(usual.precopy),
        moving: entry.moving.unwrap_or(usual.moving),
        downtime_s: entry.downtime_s.unwrap_or(usual.downtime_s),
    };
    let is_share = |part: f64| (0.0..1.0).contains(&part);
    let shares = [migration.precopy, migration.moving, migration.downtime_s];
    let in_order = migration.start_s <= migration.end_s && migration.end_s < 3600;
    if !in_order || 3600 <= migration.observe_s || !shares.into_iter().all(is_share) {
        return Err(FileError::Migration);
    }
    let rate = entry.move_bytes_per_s.as_ref().map_or(Ok(USUAL_MOVE_BYTES_PER_S), Size::bytes)?;
    if rate == 0 {
        return Err(FileError::Rate);
    }
    Ok((migration, rate))
}

fn vm(entry: &VmEntry, topology: &Topology, others: &Load, rate: u64) -> Result<Vm, FileError> {
    let wrong = |problem| FileError::Vm { vm: entry.name.clone(), problem };
    if entry.vcpus == 0 || crate::MAX_VCPUS < entry.vcpus {
        return Err(wrong("it must have 1 to 1024 vCPUs"));
    }
    if entry.name.is_empty() {
        return Err(wrong("give it a name"));
    }
    let bytes = entry.memory.as_ref().ok_or_else(|| wrong("give its memory"))?.bytes()?;
    if bytes == 0 {
        return Err(wrong("its memory must not be 0"));
    }
    let index = |id: &u32| topology.index_of(*id).ok_or_else(|| wrong("there is no such node"));
    let mut now = match &entry.node {
        Some(id) => Placed::on(index(id)?, entry.vcpus, bytes, topology.len()),
        None => {
            default_placement(topology, others, entry.vcpus, (bytes, None), &Allowed::default())
        }
    };
    if let Some(ids) = &entry.memory_nodes {
        if ids.is_empty() {
            return Err(wrong("memory_nodes is empty"));
        }
        now.memory.fill(0);
        for (at, id) in ids.iter().enumerate() {
            let part = bytes / ids.len() as u64 + u64::from((at as u64) < bytes % ids.len() as u64);
            now.memory[index(id)?] += part;
        }
    }
    let samples = counted(entry)?;
    if others.vms.iter().any(|other| other.name == entry.name) {
        return Err(wrong("another VM of the file has this name"));
    }
    Ok(Vm {
        id: u32::try_from(others.vms.len()).unwrap_or(u32::MAX),
        name: entry.name.clone(),
        now,
        arrival: if entry.incoming { Arrival::Incoming } else { Arrival::Resident },
        stays: entry.fixed.then(|| FIXED.to_owned()),
        page: None,
        cells: Vec::new(),
        allowed: Allowed::default(),
        source: if samples.is_empty() { Source::None } else { Source::Recorded },
        samples,
        ran_s: entry.ran_s.unwrap_or(3600.0),
        move_bytes_per_s: rate,
    })
}

/// `None`: given twice, or too many.
fn samples(entry: &VmEntry) -> Option<Vec<Sample>> {
    let given = [entry.waiting.is_some(), entry.misses_per_s.is_some(), !entry.sample.is_empty()];
    if 1 < given.iter().filter(|given| **given).count() || MAX_SAMPLES < entry.sample.len() {
        return None;
    }
    let vcpus = entry.vcpus as f64;
    let rate = entry.waiting.map(|waiting| Model::default().misses_for(waiting) * vcpus);
    if let Some(misses) = rate.or(entry.misses_per_s) {
        let instructions = entry.instructions_per_s;
        let sample = Sample { seconds: 1.0, misses, instructions, remote: None };
        return Some(vec![sample; 10]);
    }
    let sample = |entry: &SampleEntry| Sample {
        seconds: entry.seconds,
        misses: entry.misses,
        instructions: entry.instructions,
        remote: entry.remote,
    };
    Some(entry.sample.iter().map(sample).collect())
}

fn parse<T: for<'a> Deserialize<'a>>(text: &str) -> Result<T, FileError> {
    if MAX_FILE_BYTES < text.len() {
        return Err(FileError::Size(text.len()));
    }
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = text.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1;
        FileError::Form { line, problem: error.message().replace('\n', " ") }
    })
}

impl Size {
    fn bytes(&self) -> Result<u64, FileError> {
        let wrong = |text: &str| FileError::Bytes(text.chars().take(40).collect());
        let text = match self {
            Self::Bytes(bytes) => {
                let size = u64::try_from(*bytes).ok().filter(|bytes| *bytes < MAX_BYTES);
                return size.ok_or_else(|| wrong(&bytes.to_string()));
            }
            Self::Real(number) => return Err(wrong(&number.to_string())),
            Self::Text(text) => text,
        };
        let (number, shift) = match text.chars().last() {
            Some('K') => (&text[..text.len() - 1], 10),
            Some('M') => (&text[..text.len() - 1], 20),
            Some('G') => (&text[..text.len() - 1], 30),
            _ => (text.as_str(), 0),
        };
        // The standard library takes a sign, too.
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        let number: Option<u64> = number.parse().ok().filter(|_| is_number);
        let bytes = number.and_then(|number| number.checked_mul(1 << shift));
        bytes.filter(|bytes| *bytes < MAX_BYTES).ok_or_else(|| wrong(text))
    }
}

/// The kernel's form: `0-3,8`. An empty list is a node of memory only.
fn cpu_list(text: &str) -> Result<Vec<u32>, FileError> {
    let wrong = || FileError::Cpus(text.chars().take(40).collect());
    let mut cpus = Vec::new();
    for range in text.split(',').map(str::trim).filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        // The standard library takes a sign, too.
        let number = |text: &str| {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u32>().ok().filter(|_| is_number).ok_or_else(wrong)
        };
        let (first, last) = (number(first)?, number(last)?);
        let n = last.checked_sub(first).ok_or_else(wrong)?;
        if crate::MAX_CPUS < cpus.len() + n as usize + 1 {
            return Err(wrong());
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

#[cfg(test)]
mod test {
    use super::*;

    const NODES: &str = "[[node]]\ncpus = \"0-1\"\nmemory = \"4G\"\ndistances = [10, 20]\n\
                         [[node]]\ncpus = \"2,3\"\nmemory = 4294967296\nfree = \"1G\"\ndistances = [20, 10]\n";

    #[test]
    fn nodes_and_vms() {
        let topology = read_topology(NODES).unwrap();
        assert_eq!(topology.nodes()[1].cpus, [2, 3]);
        let vms = "[migration]\nstart_s = 5\n[[vm]]\nname = \"a\"\nmemory = \"1G\"\nnode = 0\n\
                   memory_nodes = [0, 1]\nwaiting = 0.5\n[[vm]]\nname = \"b\"\nmemory = \"1G\"\nincoming = true\n";
        let case = read_case(vms, &topology).unwrap();
        let [a, b] = &case.load.vms[..] else { panic!("{case:?}") };
        assert_eq!((a.now.memory[1], b.arrival), (512 << 20, Arrival::Incoming));
        // Node 1 has most idle CPUs, and 512 MiB left.
        assert_eq!(b.now, Placed { vcpus: vec![Some(1)], memory: vec![512 << 20, 512 << 20] });
        assert_eq!((a.source, b.source), (Source::Recorded, Source::None));
        assert_eq!(case.migration.start_s, 5);
        assert_eq!(case.topology.nodes()[0].free, (4 << 30) - (512 << 20));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let nodes = |text: &str, expected: &str| {
            assert_eq!(read_topology(text).unwrap_err().to_string(), expected);
        };
        nodes(
            "[[node]]\ncpu = 1",
            "line 2: unknown field `cpu`, expected one of `id`, `cpus`, `memory`, `free`, `distances`, `bandwidths`",
        );
        nodes(&NODES.replace("0-1", "+0-1"), "`+0-1` is not a list of CPUs: write 0-5,8");
        nodes(&NODES.replace("0-1", "0-x"), "`0-x` is not a list of CPUs: write 0-5,8");
        nodes(
            &NODES.replace("0-1", "0-4294967295"),
            "`0-4294967295` is not a list of CPUs: write 0-5,8",
        );
        nodes(
            &NODES.replace("4G", "4T"),
            "`4T` is not a size: write 512M, 5G or bytes, less than 1048576G",
        );
        nodes(
            &NODES.replace("4294967296", "9223372036854775807"),
            "`9223372036854775807` is not a size: write 512M, 5G or bytes, less than 1048576G",
        );
        nodes(&NODES.replace("1G", "9G"), "node 1: its free memory exceeds its memory");
        nodes(
            &NODES.replace("[10, 20]", "[10]"),
            "distances needs a row for each node, with a number for each node",
        );
        let topology = read_topology(NODES).unwrap();
        let vm = |more: &str, expected: &str| {
            let text = format!("[[vm]]\nname = \"a\"\nmemory = \"1G\"\n{more}\n");
            assert_eq!(read_case(&text, &topology).unwrap_err().to_string(), expected);
        };
        vm("node = 2", "VM a: there is no such node");
        vm("vcpus = 0", "VM a: it must have 1 to 1024 vCPUs");
        vm(
            "waiting = 0.1\nmisses_per_s = 1.0",
            "VM a: give waiting, misses_per_s or samples, and no more than 600",
        );
        vm("waiting = 1.5", "VM a: waiting must be from 0 to 1");
        vm("waiting = nan", "VM a: waiting must be from 0 to 1");
        vm(
            "node = 0\n[[vm]]\nname = \"b\"\nmemory = \"8G\"\nnode = 0",
            "node 0 has less memory than the VMs have there",
        );
        let number = "VM a: a counter, time, rate or share is out of range";
        for wrong in [
            "misses_per_s = nan",
            "misses_per_s = 1.7e308",
            "instructions_per_s = -1.0\nmisses_per_s = 1.0",
            "sample = [{ seconds = 1e-300, misses = 1e300 }]",
            "sample = [{ seconds = 0, misses = 0 }]",
            "sample = [{ seconds = 1, misses = 1, remote = 1.5 }]",
            "ran_s = -1",
        ] {
            vm(wrong, number);
        }
        vm("[[vm]]\nname = \"a\"\nmemory = 1", "VM a: another VM of the file has this name");
        let size = |size: &str, expected: &str| {
            for text in [
                format!("[[vm]]\nname = \"a\"\nmemory = {size}"),
                format!("[migration]\nmove_bytes_per_s = {size}"),
            ] {
                assert_eq!(read_case(&text, &topology).unwrap_err().to_string(), expected);
            }
        };
        for wrong in ["-8", "1.5", "\"-8\"", "\"+8\"", "\"\"", "\"G\"", "\"1.5G\"", "\"0x10\""] {
            let shown = wrong.trim_matches('"');
            size(
                wrong,
                &format!("`{shown}` is not a size: write 512M, 5G or bytes, less than 1048576G"),
            );
        }
        let other = read_case("[[vm]]\nname = \"a\"\nmemory = true", &topology).unwrap_err();
        let expected = "line 3: this is no size: write \"512M\", \"5G\" or bytes";
        assert_eq!(other.to_string(), expected);
        for zero in ["0", "\"0\"", "\"0G\""] {
            let text =
                format!("[migration]\nmove_bytes_per_s = {zero}\n[[vm]]\nname = \"a\"\nmemory = 1");
            let error = read_case(&text, &topology).unwrap_err();
            assert_eq!(
                error.to_string(),
                "migration: move_bytes_per_s is 0: memory would never be moved"
            );
            let text = format!("[[vm]]\nname = \"a\"\nmemory = {zero}");
            let error = read_case(&text, &topology).unwrap_err();
            assert_eq!(error.to_string(), "VM a: its memory must not be 0");
        }
        let migration = "[migration]\nstart_s = 9\nend_s = 8";
        assert_eq!(read_case(migration, &topology).unwrap_err(), FileError::Migration);
    }
}
