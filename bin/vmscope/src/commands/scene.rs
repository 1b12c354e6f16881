//! A recording on the time axis, as `steal`, `exits` and `correct` look at it.

pub(crate) mod json;

use std::path::PathBuf;

use analysis::axis::{Account, Axis, Timeline};
use analysis::steal::{Evidence, SampleTimes, ThiefNames};
use analysis::text::{dropped, every, missed};
use analysis::{Resolver, Selection, View, clean, exit_reason};
use clap::ValueEnum;
use model::{OffCpuSource, VcpuId, Vm, VmId};
use recording::Recording;

use super::{Usage, axis};

/// What to look at.
#[derive(Debug, clap::Args)]
pub(crate) struct Source {
    /// The recording
    pub(crate) dir: PathBuf,
    /// Only this VM
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    /// How the edges of gaps are found [default: as recorded]
    #[arg(long, value_enum)]
    edges: Option<EdgesArg>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum EdgesArg {
    /// By the samples alone
    Samples,
    /// By the scheduler's switches of vCPUs (record --edges switches)
    Switches,
}

impl From<EdgesArg> for OffCpuSource {
    fn from(edges: EdgesArg) -> Self {
        match edges {
            EdgesArg::Samples => Self::Samples,
            EdgesArg::Switches => Self::Switches,
        }
    }
}

/// How to print it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables
    Text,
    /// One object, see docs/steal.md
    Json,
    /// RFC 4180
    Csv,
}

/// An open recording and its axis.
pub(crate) struct Scene {
    pub(crate) recording: Recording,
    axis: Axis,
    samples: SampleTimes,
    edges: OffCpuSource,
}

impl Scene {
    /// # Errors
    /// A usage error when it has no such edges; or it can't be read.
    pub(crate) fn open(source: &Source) -> anyhow::Result<Self> {
        let recording = Recording::open(&source.dir)?;
        let asked = source.edges.map(OffCpuSource::from);
        let mut samples = SampleTimes::default();
        let resolver = Resolver::new(&recording.tables);
        let axis =
            axis::load_seen(&recording, &resolver, asked, &mut |sample| samples.push(sample))?;
        let edges = asked.unwrap_or(recording.header.off_cpu_source);
        Ok(Self { recording, axis, samples, edges })
    }

    pub(crate) fn evidence(&self) -> Evidence<'_> {
        let Recording { tables, header, .. } = &self.recording;
        let Self { axis, samples, edges, .. } = self;
        Evidence { axis, tables, header, samples, edges: *edges }
    }

    pub(crate) fn thief_names(&self) -> ThiefNames<'_> {
        ThiefNames::new(&self.recording.tables)
    }

    /// The VM asked for, or all.
    ///
    /// # Errors
    /// A usage error when there is none, or none of that name.
    pub(crate) fn vms(&self, name: Option<&str>) -> anyhow::Result<Vec<VmId>> {
        match name {
            Some(_) => Ok(vec![self.vm(name)?]),
            None => {
                self.refuse_without_vms()?;
                Ok((0..self.recording.tables.vms.len()).map(VmId::from_index).collect())
            }
        }
    }

    /// The VM asked for, or the only one.
    ///
    /// # Errors
    /// A usage error when there is none of that name, or more than one to choose from.
    pub(crate) fn vm(&self, name: Option<&str>) -> anyhow::Result<VmId> {
        self.refuse_without_vms()?;
        let selection = Selection::new(&self.recording.tables, View::Guest, name, None, None);
        let selection = selection.map_err(|error| Usage(clean(&error.to_string()).into_owned()))?;
        let vm = selection.vm();
        Ok(vm.expect("the guest view is always of one VM"))
    }

    /// The row of a VM.
    pub(crate) fn vm_row(&self, vm: VmId) -> &Vm {
        &self.recording.tables.vms[vm.index()]
    }

    /// Number and row of a VM's vCPUs, in the order of their numbers.
    pub(crate) fn vcpus(&self, vm: VmId) -> Vec<(u32, VcpuId)> {
        let rows = self.recording.tables.vcpus.iter().enumerate();
        let of_vm = rows.filter(|(_, row)| row.vm == vm);
        let mut vcpus: Vec<_> = of_vm.map(|(n, row)| (row.number, VcpuId::from_index(n))).collect();
        vcpus.sort_unstable();
        vcpus
    }

    /// All time of a VM's vCPUs.
    pub(crate) fn wall_ns(&self, vm: VmId) -> u64 {
        let vcpus = self.vcpus(vm);
        let of_vm = |timeline: &&Timeline| vcpus.iter().any(|(_, vcpu)| *vcpu == timeline.vcpu);
        self.axis.timelines.iter().filter(of_vm).map(Timeline::length_ns).sum()
    }

    /// An exit reason's name.
    pub(crate) fn reason(&self, reason: Option<u32>) -> String {
        let name = |reason| exit_reason::name(self.recording.header.vendor, reason).into_owned();
        reason.map_or("[unknown]".to_owned(), name)
    }

    pub(crate) fn edges_name(&self) -> &'static str {
        match self.edges {
            OffCpuSource::Samples => "samples",
            OffCpuSource::Switches => "switches",
        }
    }

    /// What the reader should know: the recording's notes, and what made no sense on the axis.
    pub(crate) fn notes(&self) -> Vec<String> {
        let noted = self.recording.header.notes.iter();
        let noted = noted.map(|note| format!("{}: {}", note.subject, note.text));
        let problems = self.axis.problems.iter().map(|(what, n)| format!("time axis: {what}: {n}"));
        noted.chain(problems).collect()
    }

    /// The lines above every text.
    pub(crate) fn heading(&self) -> String {
        let header = &self.recording.header;
        let (host, kernel) = (clean(&header.hostname), clean(&header.kernel));
        let mut out = format!("Host: {host} (Linux {kernel})\n");
        out += &format!("Recorded: {}, edges by {}\n", every(header), self.edges_name());
        out += &format!("Dropped: {}\nMissed: {}\n", dropped(header), missed(header));
        if !header.complete {
            out += "Incomplete: the recording's writer did not finish; the end is missing\n";
        }
        for note in self.notes() {
            out += &format!("Note: {}\n", clean(&note));
        }
        out
    }

    fn refuse_without_vms(&self) -> Result<(), Usage> {
        match self.recording.tables.vms.is_empty() {
            true => Err(Usage("this recording has no VM: record while one runs".to_owned())),
            false => Ok(()),
        }
    }
}

pub(crate) fn cleaned(text: &str) -> String {
    clean(text).into_owned()
}

pub(crate) fn percent(part: u64, all: u64) -> String {
    format!("{:.2}", 100.0 * part as f64 / all.max(1) as f64)
}

pub(crate) fn ms(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

pub(crate) fn seconds(ns: u64, decimals: usize) -> String {
    format!("{:.decimals$}", ns as f64 / 1e9)
}

/// An account in words; scripts get `analysis::steal::account_name`.
pub(crate) fn in_words(account: Account) -> &'static str {
    match account {
        Account::Guest => "guest",
        Account::Halt => "halt",
        Account::HaltPolling => "halt polling",
        Account::StealOutside => "steal type 1",
        Account::StealVmm => "steal type 2",
        Account::Throttled => "throttled",
        Account::NotSampled => "not sampled",
        Account::Unknown => "unknown",
    }
}

/// `name (412)`.
pub(crate) fn with_id(name: &str, id: Option<u32>) -> String {
    id.map_or(name.to_owned(), |id| format!("{name} ({id})"))
}

/// A module's file without its folder.
pub(crate) fn short_module(module: Option<&str>) -> String {
    let path = module.unwrap_or("-");
    let name = if path.starts_with('/') { path.rsplit('/').next() } else { None };
    name.filter(|name| !name.is_empty()).unwrap_or(path).to_owned()
}
