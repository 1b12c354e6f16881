//! A recording, or the part of its time between `--from` and `--to`: one way to take it for all subcommands.

use std::ops::Range;
use std::path::{Path, PathBuf};

use analysis::report::{VcpuTime, dropped, missed};
use analysis::steal::TimelineInput;
use analysis::vcpu_timeline::{VcpuTimelines, VcpuTimelinesBuilder};
use analysis::{Resolver, Selection, View};
use clap::ValueEnum;
use model::{Header, HostNs, Note, OffCpuSource, Sample, Tables, VmId};
use recording::Recording;
use table::{Report, Width, clean, seconds};

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
    /// The part in the range, and every vCPU's time in it.
    ///
    /// # Errors
    /// As `OpenRecording::open`'s and `OpenRecording::axis`'.
    pub fn open(&self, range: TimeRange) -> anyhow::Result<(OpenRecording, VcpuTimelines)> {
        let recording = OpenRecording::open(&self.dir, range)?;
        let edges = self.offcpu_source.map(OffCpuSource::from);
        let axis = recording.axis(&recording.resolver(), edges)?;
        Ok((recording, axis))
    }

    /// As `open`; guests' code has its callers.
    ///
    /// # Errors
    /// As `open`'s and `OpenRecording::check_has_stacks`'.
    pub fn open_with_callers(
        &self,
        range: TimeRange,
    ) -> anyhow::Result<(OpenRecording, VcpuTimelines)> {
        let recording = OpenRecording::open(&self.dir, range)?;
        recording.check_has_stacks(&self.dir)?;
        let edges = self.offcpu_source.map(OffCpuSource::from);
        let resolver = recording.resolver();
        let axis = recording.axis_by(&resolver, edges, &VcpuTimelinesBuilder::with_callers)?;
        Ok((recording, axis))
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
    fn from(off_cpu_source: OffCpuSourceArg) -> Self {
        match off_cpu_source {
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
            Self::Json => table::pretty(&report.json),
        }
    }
}

/// An open recording, or a part of its time.
#[derive(Debug)]
pub struct OpenRecording {
    recording: Recording,
    /// The part's: it begins and ends with the part.
    header: Header,
    /// `None`: all of it.
    range: Option<Range<HostNs>>,
}

impl OpenRecording {
    /// Opens the recording at `dir`.
    ///
    /// # Errors
    /// A usage error when it has no time in the range; or it can't be read.
    pub fn open(dir: &Path, range: TimeRange) -> anyhow::Result<Self> {
        let mut recording = Recording::open(dir)?;
        let all = recording.header.start..recording.header.end;
        let Some(range) = range.within(all)? else { return Ok(Self::whole(recording)) };
        let mut header = part_header(&recording.header, &range);
        if !recording.tables.exits.is_empty() {
            recording.tables.exits.clear();
            let text = "VM exits were counted for the whole recording: their counts are left out";
            header.notes.push(Note { subject: SUBJECT.to_owned(), text: text.to_owned() });
        }
        Ok(Self { recording, header, range: Some(range) })
    }

    /// All of a recording.
    pub fn whole(recording: Recording) -> Self {
        let header = recording.header.clone();
        Self { recording, header, range: None }
    }

    /// The part's header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// When the whole recording began.
    #[must_use]
    pub fn begin(&self) -> HostNs {
        self.recording.header.start
    }

    /// The recording's tables.
    #[must_use]
    pub fn tables(&self) -> &Tables {
        &self.recording.tables
    }

    /// Refuses a recording without call stacks.
    ///
    /// # Errors
    /// It has none.
    pub fn check_has_stacks(&self, dir: &Path) -> anyhow::Result<()> {
        if self.tables().stacks.is_empty() {
            anyhow::bail!("{} has no call stacks: record with --call-graph", dir.display());
        }
        Ok(())
    }

    /// What names its samples.
    #[must_use]
    pub fn resolver(&self) -> Resolver<'_> {
        Resolver::new(self.tables())
    }

    /// Shows the part's samples to `see`, in time order.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn for_each_sample(&self, see: &mut dyn FnMut(&Sample)) -> Result<(), recording::Error> {
        self.recording.for_each_batch(&mut |batch| {
            batch.iter().filter(|sample| self.has(sample)).for_each(&mut *see);
        })
    }

    /// Returns the timelines of all vCPUs. `off_cpu_source` selects how edges of gaps are found, by default as recorded.
    /// Events before and after the part give the vCPUs' states at its edges.
    ///
    /// # Errors
    /// If switches are requested and the recording has none (a usage error), or if it can't be read.
    pub fn axis(
        &self,
        resolver: &Resolver<'_>,
        off_cpu_source: Option<OffCpuSource>,
    ) -> anyhow::Result<VcpuTimelines> {
        self.axis_by(resolver, off_cpu_source, &|builder| builder)
    }

    fn axis_by<'r>(
        &'r self,
        resolver: &'r Resolver<'r>,
        off_cpu_source: Option<OffCpuSource>,
        prepare: &dyn Fn(VcpuTimelinesBuilder<'r>) -> VcpuTimelinesBuilder<'r>,
    ) -> anyhow::Result<VcpuTimelines> {
        let recorded = self.header.off_cpu_source;
        let off_cpu_source = off_cpu_source.unwrap_or(recorded);
        if (off_cpu_source, recorded) == (OffCpuSource::Switches, OffCpuSource::Samples) {
            let text =
                "this recording has no switches of vCPUs: record with --offcpu-source switches";
            return Err(Usage(text.to_owned()).into());
        }
        let header = &self.recording.header;
        let mut builder = prepare(VcpuTimelinesBuilder::new(resolver, header, off_cpu_source));
        self.recording.replay(&mut [&mut builder])?;
        let axis = builder.finish();
        Ok(match &self.range {
            Some(range) => axis.within(range),
            None => axis,
        })
    }

    /// The vCPUs' time, for reports.
    #[must_use]
    pub fn vcpu_time<'a>(&'a self, axis: &'a VcpuTimelines) -> VcpuTime<'a> {
        VcpuTime::new(TimelineInput { axis, tables: self.tables(), header: self.header() })
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
                Ok((0..self.tables().vms.len()).map(VmId::from_index).collect())
            }
        }
    }

    /// The requested VM, or the only one.
    ///
    /// # Errors
    /// A usage error when there is none of that name, or more than one to choose from.
    pub fn vm(&self, name: Option<&str>) -> anyhow::Result<VmId> {
        self.refuse_without_vms()?;
        let selection = Selection::new(self.tables(), View::Guest, name, None, None);
        let selection = selection.map_err(|error| Usage(clean(&error.to_string()).into_owned()))?;
        let vm = selection.vm();
        Ok(vm.expect("the guest view is always of one VM"))
    }

    fn refuse_without_vms(&self) -> Result<(), Usage> {
        match self.tables().vms.is_empty() {
            true => Err(Usage("this recording has no VM: record while one runs".to_owned())),
            false => Ok(()),
        }
    }

    /// Neighbouring parts share no sample. The last instant belongs to the part that ends with the recording.
    fn has(&self, sample: &Sample) -> bool {
        self.range.as_ref().is_none_or(|range| {
            let is_last = sample.time == range.end && range.end == self.recording.header.end;
            range.contains(&sample.time) || is_last
        })
    }
}

/// What notes of a part are about.
const SUBJECT: &str = "time range";

/// What was dropped and missed is not known by time.
fn part_header(whole: &Header, range: &Range<HostNs>) -> Header {
    let after = |time: HostNs| seconds(time.since(whole.start), 3);
    let text = format!(
        "{} s to {} s of {} s; of all of it: dropped {}, missed {}",
        after(range.start),
        after(range.end),
        after(whole.end),
        dropped(whole),
        missed(whole)
    );
    let mut header = Header {
        start: range.start,
        end: range.end,
        start_unix_ns: whole.start_unix_ns.saturating_add(range.start.since(whole.start)),
        ..whole.clone()
    };
    header.counters.clear();
    header.notes.push(Note { subject: SUBJECT.to_owned(), text });
    header
}
