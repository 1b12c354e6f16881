//! Making a recording.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::{Counter, CpuId, Guest, Header, MachineId, Note, Sample, Switch, Tables};

use crate::batches::convert;
use crate::error::{Error, Folder};
use crate::files::{self, SAMPLES, STACK_SPOOL, SWITCH_SPOOL, SWITCHES, cpu_spool};
use crate::fit;
use crate::folder::PartialFolder;
use crate::manifest::{self, FileEntry, Files};
use crate::reader::Recording;
use crate::recording_spools::{SampleCodec, Spool, StackSpool, SwitchCodec, SwitchSpool};
use crate::samples::{self, Samples, by_thread};
use crate::spool::{EVERYWHERE, SpoolWriter};
use crate::switches::{self, Switches};
use crate::tables;

/// Why a recording that was left has no names: which processes ran was known to its recorder alone.
const NO_NAMES: &str = "its recorder was killed, or the disk was full, before names were found";

/// Makes a recording of what a killed writer left under the partial name of `path`. Names are those of the last checkpoint; if
/// it has none, notes and VMs say why.
///
/// # Errors
/// When nothing is there, it can't be read, or nothing can be written.
pub fn finish_killed(path: &Path) -> Result<PathBuf, Error> {
    let writer = Writer { folder: PartialFolder::open(path, Folder::Recording)? };
    let header = manifest::read(writer.dir())?.header;
    if header.complete {
        // It was killed when all was written.
        let spools = writer.spools()?;
        return writer.folder.publish(&spools);
    }
    let Recording { header: Header { end, .. }, mut tables, .. } = Recording::open(writer.dir())?;
    // What its parts lack is counted while they are converted.
    let mut header = Header { end, ..header };
    if tables.images.is_empty() {
        let text = format!("functions and host processes have no names: {NO_NAMES}");
        header.notes.push(Note { subject: "host".to_owned(), text });
        for vm in &mut tables.vms {
            if let Guest::Unmapped { reason } = &mut vm.guest {
                NO_NAMES.clone_into(reason);
            }
        }
    }
    Ok(writer.finish(&header, &tables)?.path)
}

/// Writes one recording.
///
/// ```text
///  create ---> NAME.partial/ with recording.json and growing spools
///    |  \____ dropped or killed: that is what stays, and what Recording::open reads
///    v
///  convert --> switches, samples: the only pass over the spools
///    v
///  finish ---> tables, recording.json (complete), spools removed ---> NAME/
///    \_______ failed: NAME.partial/ stays
/// ```
#[derive(Debug)]
pub struct Writer {
    folder: PartialFolder,
}

/// What was lost, by counter.
type Lost = BTreeMap<Counter, u64>;

/// What a finished recording holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub path: PathBuf,
    pub samples: u64,
    /// Bytes of `samples.parquet`.
    pub sample_bytes: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

impl Summary {
    /// Bytes of `samples.parquet` per sample; 0 without samples.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a figure to show")]
    pub fn bytes_per_sample(&self) -> f64 {
        self.sample_bytes as f64 / self.samples.max(1) as f64
    }
}

impl Writer {
    /// Begins a recording that will be the folder `path`. `header` is what is known so far.
    ///
    /// # Errors
    /// When the name is taken or nothing can be written there.
    pub fn create(path: &Path, header: &Header) -> Result<Self, Error> {
        let writer = Self { folder: PartialFolder::create(path, Folder::Recording)? };
        match writer.write_manifest(header) {
            Ok(()) => Ok(writer),
            Err(error) => {
                writer.discard()?;
                Err(error)
            }
        }
    }

    /// Where the recording is until it is finished.
    #[must_use]
    pub fn partial_path(&self) -> &Path {
        self.folder.partial()
    }

    /// The same folder, whatever becomes of its name: for this process, as long as the writer lives.
    #[must_use]
    pub fn held_path(&self) -> &Path {
        &self.folder.dir
    }

    /// Begins the spool of a CPU; once per CPU.
    ///
    /// # Errors
    /// When it can't be created.
    pub fn spool(&self, cpu: CpuId) -> Result<Spool, Error> {
        let place = (MachineId::HOST, cpu.0);
        SpoolWriter::create(&self.dir().join(cpu_spool(place)), place).map(Spool)
    }

    /// Begins the spool of call stacks; once.
    ///
    /// # Errors
    /// When it can't be created.
    pub fn stack_spool(&self) -> Result<StackSpool, Error> {
        SpoolWriter::create(&self.dir().join(STACK_SPOOL), EVERYWHERE).map(StackSpool)
    }

    /// Begins the spool of switch events; once.
    ///
    /// # Errors
    /// When it can't be created.
    pub fn switch_spool(&self) -> Result<SwitchSpool, Error> {
        SpoolWriter::create(&self.dir().join(SWITCH_SPOOL), EVERYWHERE).map(SwitchSpool)
    }

    /// Stores what is known so far, so that it is not lost should the writer be killed: for rare
    /// events, such as a VM that starts. Rows given once must be given again at the same place.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn checkpoint(&self, header: &Header, tables: &Tables) -> Result<(), Error> {
        tables::write(self.dir(), tables)?;
        self.write_manifest(header)
    }

    /// The same of the header alone: for when nothing is appended any more, and its end and counters are known.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn checkpoint_header(&self, header: &Header) -> Result<(), Error> {
        self.write_manifest(header)
    }

    /// Turns the spools into `samples.parquet` and `switches.parquet`, and shows all that is in them to `see_samples` and
    /// `see_switches`, batch by batch: samples in time order. All records must have been appended to the spools. A sample
    /// that refers to a row `tables` lacks loses the reference; the header counts them as `samples_without_vcpu_row`,
    /// `samples_without_stack_row`. Events of vCPUs that are in no row are left out: `switches_without_vcpu_row`.
    ///
    /// # Errors
    /// When something can't be written; what was recorded then stays under the partial name.
    pub fn convert(
        self,
        tables: &Tables,
        see_samples: &mut dyn FnMut(&[Sample]),
        see_switches: &mut dyn FnMut(&[Switch]),
    ) -> Result<Converted, Error> {
        let mut lost = BTreeMap::new();
        let switches = self.write_switches(tables, see_switches, &mut lost)?;
        let samples = self.write_samples(tables, see_samples, &mut lost)?;
        Ok(Converted { writer: self, samples, switches, lost })
    }

    /// `convert` and `Converted::finish` at once.
    ///
    /// # Errors
    /// When something can't be written; what was recorded then stays under the partial name.
    pub fn finish(self, header: &Header, tables: &Tables) -> Result<Summary, Error> {
        self.convert(tables, &mut |_| {}, &mut |_| {})?.finish(header, tables)
    }

    /// Removes everything written so far.
    ///
    /// # Errors
    /// When it can't be removed.
    pub fn discard(self) -> Result<(), Error> {
        self.folder.discard()
    }

    fn dir(&self) -> &Path {
        &self.folder.dir
    }

    fn write_manifest(&self, header: &Header) -> Result<(), Error> {
        let header = Header { complete: false, ..header.clone() };
        manifest::write(self.dir(), &header, &Files::new()).map(drop)
    }

    fn write_samples(
        &self,
        tables: &Tables,
        see: &mut dyn FnMut(&[Sample]),
        lost: &mut Lost,
    ) -> Result<FileEntry, Error> {
        let spools = files::find_spools(self.dir(), cpu_spool)?;
        let (entry, bytes) =
            convert::<Samples, SampleCodec>(self.dir(), &spools, |slice, writer| {
                let cut = slice.iter_mut();
                for counter in cut.flat_map(|sample| samples::cut_dangling(tables, sample)) {
                    *lost.entry(counter).or_insert(0) += 1;
                }
                see(slice);
                writer.write(by_thread(slice))
            })?;
        *lost.entry(Counter::SpoolBytesLost).or_insert(0) += bytes;
        Ok(entry)
    }

    fn write_switches(
        &self,
        tables: &Tables,
        see: &mut dyn FnMut(&[Switch]),
        lost: &mut Lost,
    ) -> Result<FileEntry, Error> {
        let spool = self.dir().join(SWITCH_SPOOL);
        let spools = if spool.exists() { vec![(EVERYWHERE, spool)] } else { Vec::new() };
        let (entry, bytes) =
            convert::<Switches, SwitchCodec>(self.dir(), &spools, |slice, writer| {
                slice.sort_by_key(|switch| switch.time);
                let dangling = switches::cut_dangling(slice, tables.vcpus.len());
                *lost.entry(Counter::SwitchesWithoutVcpuRow).or_insert(0) += dangling as u64;
                see(slice);
                writer.write(&*slice)
            })?;
        *lost.entry(Counter::SpoolBytesLost).or_insert(0) += bytes;
        Ok(entry)
    }

    fn spools(&self) -> Result<Vec<PathBuf>, Error> {
        let others = [STACK_SPOOL, SWITCH_SPOOL].map(|name| self.dir().join(name));
        let spools = files::find_spools(self.dir(), cpu_spool)?.into_iter().map(|(_, path)| path);
        Ok(spools.chain(others.into_iter().filter(|path| path.exists())).collect())
    }
}

/// A recording whose samples and switches are in their tables already.
#[derive(Debug)]
pub struct Converted {
    writer: Writer,
    samples: FileEntry,
    switches: FileEntry,
    lost: Lost,
}

impl Converted {
    /// Adds the tables and gives the recording its name. Names that readers would refuse for their size are left out, and
    /// noted. `tables` may have more rows than those that `Writer::convert` was
    /// given, but not of vCPUs and stacks.
    ///
    /// # Errors
    /// When something can't be written; what was recorded then stays under the partial name.
    pub fn finish(self, header: &Header, tables: &Tables) -> Result<Summary, Error> {
        let Self { writer, samples, switches, lost } = self;
        let (tables, left_out) = fit::fit(tables);
        let written = tables::write(writer.dir(), &tables)?;
        let mut entries: Files = written.into_iter().map(|(n, e)| (n.to_owned(), e)).collect();
        let (rows, sample_bytes) = (samples.rows, samples.bytes);
        entries.insert(SWITCHES.to_owned(), switches);
        entries.insert(SAMPLES.to_owned(), samples);
        let mut header = Header { complete: true, ..header.clone() };
        header.notes.extend(left_out);
        for (counter, count) in lost.into_iter().filter(|(_, count)| 0 < *count) {
            *header.counters.entry(counter.name().to_owned()).or_insert(0) += count;
        }
        let manifest_bytes = manifest::write(writer.dir(), &header, &entries)?;
        let spools = writer.spools()?;
        Ok(Summary {
            path: writer.folder.publish(&spools)?,
            samples: rows,
            sample_bytes,
            bytes: manifest_bytes + entries.values().map(|entry| entry.bytes).sum::<u64>(),
        })
    }
}
