//! Reading a recording.

use std::path::{Path, PathBuf};

use model::{Counter, Header, HostNs, Note, RecordConsumer, Sample, Switch, Tables};

use crate::batches::{Batches, Source};
use crate::error::{Error, Folder};
use crate::files::{self, SAMPLES, STACK_SPOOL, SWITCH_SPOOL, SWITCHES, cpu_spool};
use crate::folder::{find, verify};
use crate::manifest::{self, Contents};
use crate::recording_spools::{SampleCodec, StackCodec, SwitchCodec};
use crate::samples::{Samples as SampleTable, cut_dangling};
use crate::spool::{EVERYWHERE, SpoolReader, Survey};
use crate::switches::{self, Switches};
use crate::tables;

/// An open recording: complete, or what a killed writer left (`Header::complete` and a note say so).
#[derive(Debug)]
pub struct Recording {
    /// Facts about it as a whole.
    pub header: Header,
    /// All tables but the samples.
    pub tables: Tables,
    samples: Source,
    switches: Source,
}

/// The samples of a recording in time order, batch by batch.
#[derive(Debug)]
pub struct Samples<'a> {
    recording: &'a Recording,
    stream: Batches<SampleTable, SampleCodec>,
    batch: Vec<Sample>,
}

impl Recording {
    /// Opens the recording at `path`, or the unfinished one that would have got that name.
    ///
    /// # Errors
    /// When there is none, it is incomplete though finished, damaged, or newer than this program.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let dir = find(path, Folder::Recording)?;
        let contents = manifest::read(&dir)?;
        if contents.header.complete {
            Self::complete(&dir, contents)
        } else {
            Self::killed(&dir, contents.header)
        }
    }

    /// Begins to read the samples.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn samples(&self) -> Result<Samples<'_>, Error> {
        let stream = Batches::open(&self.samples)?;
        Ok(Samples { recording: self, stream, batch: Vec::new() })
    }

    /// Shows all samples to `see`, batch by batch in time order.
    ///
    /// # Errors
    /// When they can't be read; `see` has then seen those before.
    pub fn for_each_batch(&self, see: &mut dyn FnMut(&[Sample])) -> Result<(), Error> {
        let mut samples = self.samples()?;
        while let Some(batch) = samples.next_batch()? {
            see(batch);
        }
        Ok(())
    }

    /// Shows all samples, then all switches, to consumers.
    ///
    /// # Errors
    /// When they can't be read; the consumers have then seen those before.
    pub fn replay(&self, consumers: &mut [&mut dyn RecordConsumer]) -> Result<(), Error> {
        self.for_each_batch(&mut |batch| {
            for consumer in &mut *consumers {
                batch.iter().for_each(|sample| consumer.push_sample(sample));
            }
        })?;
        self.for_each_switch_batch(&mut |batch| {
            for consumer in &mut *consumers {
                batch.iter().for_each(|switch| consumer.push_switch(switch));
            }
        })
    }

    /// Shows all events of vCPUs' threads to `see`, batch by batch: each in time order, those of one vCPU
    /// only after sorting by time.
    ///
    /// # Errors
    /// When they can't be read; `see` has then seen those before.
    pub fn for_each_switch_batch(&self, see: &mut dyn FnMut(&[Switch])) -> Result<(), Error> {
        let mut stream = Batches::<Switches, SwitchCodec>::open(&self.switches)?;
        let mut batch = Vec::new();
        while stream.next(&mut batch)? {
            batch.sort_by_key(|switch| switch.time);
            let dangling = switches::cut_dangling(&mut batch, self.tables.vcpus.len());
            match &self.switches {
                Source::Table(path) if self.header.complete && 0 < dangling => {
                    return Err(Error::damaged(
                        path,
                        "an event refers to a row that does not exist",
                    ));
                }
                _ => see(&batch),
            }
        }
        Ok(())
    }

    fn complete(dir: &Path, contents: Contents) -> Result<Self, Error> {
        let Contents { header, files, first_tables_only } = contents;
        let (always, if_any) = tables::SCHEMAS.split_at(tables::ALWAYS);
        let always = if first_tables_only { &always[..tables::FIRST] } else { always };
        let is_there = |file: &str| files.contains_key(file) || dir.join(file).exists();
        let if_any = if_any.iter().filter(|table| is_there(table.file));
        for table in always.iter().chain(if_any) {
            verify(dir, table.file, &files, Folder::Recording)?;
        }
        let (tables, _) = tables::read(dir)?;
        let switches = match first_tables_only {
            true => Source::Spools(Vec::new()),
            false => Source::Table(dir.join(SWITCHES)),
        };
        Ok(Self { header, tables, samples: Source::Table(dir.join(SAMPLES)), switches })
    }

    fn killed(dir: &Path, mut header: Header) -> Result<Self, Error> {
        let (mut tables, missing) = tables::read(dir)?;
        let stacks = dir.join(STACK_SPOOL);
        if stacks.is_file() {
            let mut spooled = Vec::new();
            let spool = SpoolReader::<StackCodec>::open(&stacks, EVERYWHERE)?;
            spool.survey(&mut |block| spooled.extend_from_slice(block))?;
            if tables.stacks.len() < spooled.len() {
                tables.stacks = spooled;
            }
        }
        let table = dir.join(SAMPLES);
        let samples = if table.is_file() {
            Source::Table(table)
        } else {
            let spools = files::find_spools(dir, cpu_spool)?;
            let mut survey = Survey::default();
            for (place, path) in &spools {
                survey.add(&SpoolReader::<SampleCodec>::open(path, *place)?.survey(&mut |_| {})?);
            }
            header.end = header.end.max(HostNs(survey.keys[1]));
            header.notes.push(note(dir, spooled("samples", &survey)));
            Source::Spools(spools)
        };
        let switches = killed_switches(dir, &mut header, tables.vcpus.len())?;
        header.notes.push(note(dir, killed(&missing)));
        Ok(Self { header, tables, samples, switches })
    }
}

impl Samples<'_> {
    /// The next batch in time order, at most a few 100,000 samples; `None` at the end.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn next_batch(&mut self) -> Result<Option<&[Sample]>, Error> {
        let more = self.stream.next(&mut self.batch)?;
        let Recording { header, tables, samples, .. } = self.recording;
        let lost = self.batch.iter_mut().map(|sample| cut_dangling(tables, sample).count());
        match (samples, lost.sum()) {
            // A complete recording has no sample with a reference to nothing.
            (Source::Table(path), 1_usize..) if header.complete => {
                Err(Error::damaged(path, "a sample refers to a row that does not exist"))
            }
            _ => Ok(more.then_some(self.batch.as_slice())),
        }
    }
}

/// Where the switch events of a killed recording are, if it has any.
fn killed_switches(dir: &Path, header: &mut Header, vcpus: usize) -> Result<Source, Error> {
    let (table, spool) = (dir.join(SWITCHES), dir.join(SWITCH_SPOOL));
    if table.is_file() {
        return Ok(Source::Table(table));
    }
    if !spool.is_file() {
        return Ok(Source::Spools(Vec::new()));
    }
    let mut dangling = 0;
    let survey = SpoolReader::<SwitchCodec>::open(&spool, EVERYWHERE)?.survey(&mut |block| {
        dangling += block.iter().filter(|switch| vcpus <= switch.vcpu.index()).count() as u64;
    })?;
    header.end = header.end.max(HostNs(survey.keys[1]));
    header.notes.push(note(dir, spooled("events of vCPUs", &survey)));
    if 0 < dangling {
        *header.counters.entry(Counter::SwitchesWithoutVcpuRow.name().to_owned()).or_insert(0) +=
            dangling;
    }
    Ok(Source::Spools(vec![(EVERYWHERE, spool)]))
}

pub(crate) fn note(dir: &Path, text: String) -> Note {
    Note { subject: dir.display().to_string(), text }
}

pub(crate) fn killed(missing: &[PathBuf]) -> String {
    let names = |path: &PathBuf| path.file_stem().map(|name| name.to_string_lossy().into_owned());
    let missing: Vec<_> = missing.iter().filter_map(names).collect();
    match missing.as_slice() {
        [] => "its writer is still running or was killed; its tables are those of the last checkpoint: names \
               may be missing"
            .to_owned(),
        missing => format!(
            "its writer is still running or was killed; missing tables: {}",
            missing.join(", ")
        ),
    }
}

pub(crate) fn spooled(what: &str, survey: &Survey) -> String {
    let Survey { records, lost_bytes, .. } = survey;
    match lost_bytes {
        0 => format!("{records} {what} read from the spools"),
        _ => {
            format!("{records} {what} read from the spools, {lost_bytes} bytes at their ends lost")
        }
    }
}
