//! A recording on the time axis, as `steal`, `exits` and `correct` look at it.

use std::path::PathBuf;

use analysis::steal::TimelineInput;
use analysis::vcpu_timeline::VcpuTimelines;
use analysis::{Resolver, Selection, View};
use clap::ValueEnum;
use model::{OffCpuSource, VmId};
use view::{Report, VcpuTime, Width, clean};

use crate::part::Part;
use crate::{TimeRange, Usage, width};

/// What to read.
#[derive(Debug, clap::Args)]
pub struct Source {
    /// The recording's folder
    pub dir: PathBuf,
    /// Only this VM
    #[arg(long, value_name = "NAME")]
    pub vm: Option<String>,
    /// Source of the times at which vCPUs lost and got their CPU [default: as recorded]
    #[arg(long, alias = "edges", value_enum, value_name = "SOURCE")]
    offcpu_source: Option<OffCpuSourceArg>,
}

impl Source {
    /// A recording as it was recorded.
    pub fn recorded(dir: PathBuf) -> Self {
        Self { dir, vm: None, offcpu_source: None }
    }
}

/// The data that shows when a vCPU lost and got its CPU.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum OffCpuSourceArg {
    /// The samples: accurate to one sampling period
    Samples,
    /// Scheduler switches: exact; needs record --offcpu-source switches
    Switches,
}

impl From<OffCpuSourceArg> for OffCpuSource {
    fn from(edges: OffCpuSourceArg) -> Self {
        match edges {
            OffCpuSourceArg::Samples => Self::Samples,
            OffCpuSourceArg::Switches => Self::Switches,
        }
    }
}

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables
    Text,
    /// One object, described in docs/
    Json,
    /// RFC 4180
    Csv,
}

impl Format {
    /// How wide a report's text may be.
    pub fn width(self) -> Width {
        if self == Self::Text { width() } else { Width::Unlimited }
    }

    /// A report in this format.
    pub fn render(self, report: &Report) -> String {
        match self {
            Self::Text => report.text(self.width()),
            Self::Csv => report.csv(),
            Self::Json => view::pretty(&report.json),
        }
    }
}

/// A recording, or a part of its time, and what its vCPUs did.
#[derive(Debug)]
pub struct OpenRecording {
    part: Part,
    axis: VcpuTimelines,
}

impl OpenRecording {
    /// # Errors
    /// A usage error when it has no such edges, or no time in the range; or it can't be read.
    pub fn open(source: &Source, range: TimeRange) -> anyhow::Result<Self> {
        let part = Part::open(&source.dir, range)?;
        let requested = source.offcpu_source.map(OffCpuSource::from);
        let axis = part.axis(&Resolver::new(part.tables()), requested)?;
        Ok(Self { part, axis })
    }

    /// The vCPUs' time, for reports.
    #[must_use]
    pub fn vcpu_time(&self) -> VcpuTime<'_> {
        let (tables, header) = (self.part.tables(), self.part.header());
        VcpuTime::new(TimelineInput { axis: &self.axis, tables, header })
    }

    /// The requested VM, or all.
    ///
    /// # Errors
    /// A usage error when there is none, or none of that name.
    pub fn vms(&self, name: Option<&str>) -> anyhow::Result<Vec<VmId>> {
        match name {
            Some(_) => Ok(vec![self.vm(name)?]),
            None => {
                self.refuse_without_vms()?;
                Ok((0..self.part.tables().vms.len()).map(VmId::from_index).collect())
            }
        }
    }

    /// The requested VM, or the only one.
    ///
    /// # Errors
    /// A usage error when there is none of that name, or more than one to choose from.
    pub fn vm(&self, name: Option<&str>) -> anyhow::Result<VmId> {
        self.refuse_without_vms()?;
        let selection = Selection::new(self.part.tables(), View::Guest, name, None, None);
        let selection = selection.map_err(|error| Usage(clean(&error.to_string()).into_owned()))?;
        let vm = selection.vm();
        Ok(vm.expect("the guest view is always of one VM"))
    }

    fn refuse_without_vms(&self) -> Result<(), Usage> {
        match self.part.tables().vms.is_empty() {
            true => Err(Usage("this recording has no VM: record while one runs".to_owned())),
            false => Ok(()),
        }
    }
}
