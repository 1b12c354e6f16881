//! `model::Tables` to and from files, one module per kind of table.

mod code;
mod counts;
mod machines;

use std::path::{Path, PathBuf};

use model::{Owner, Tables};

use crate::columns::{Column, TableReader, write_table};
use crate::error::Error;
use crate::manifest::FileEntry;

const VMS: &str = "vms.parquet";
const VCPUS: &str = "vcpus.parquet";
const IMAGES: &str = "images.parquet";
const THREADS: &str = "threads.parquet";
const MODULES: &str = "modules.parquet";
const MAPPINGS: &str = "mappings.parquet";
const SYMBOLS: &str = "symbols.parquet";
const STACKS: &str = "stacks.parquet";
const THROTTLING: &str = "throttling.parquet";
const EXITS: &str = "exits.parquet";

/// Tables that every recording has; those after them are not in the oldest.
pub(crate) const FIRST: usize = 8;
/// Names of the tables' files, each after those it refers to: a writer killed between two leaves no
/// reference into nothing.
pub(crate) const NAMES: [&str; 10] =
    [VMS, VCPUS, IMAGES, THREADS, MODULES, MAPPINGS, SYMBOLS, STACKS, THROTTLING, EXITS];

/// Writes the tables into a folder.
pub(crate) fn write(dir: &Path, tables: &Tables) -> Result<Vec<(&'static str, FileEntry)>, Error> {
    let write = |name: &'static str| {
        let (digest, rows) = write_table(&dir.join(name), &columns(name, tables))?;
        Ok((name, FileEntry::new(rows, digest)))
    };
    NAMES.into_iter().map(write).collect()
}

/// Reads the tables of a folder. Those whose files are not there are empty, and named.
pub(crate) fn read(dir: &Path) -> Result<(Tables, Vec<PathBuf>), Error> {
    let mut folder = Folder { dir, missing: Vec::new() };
    let tables = Tables {
        vms: folder.rows(VMS, machines::read_vms)?,
        vcpus: folder.rows(VCPUS, machines::read_vcpus)?,
        images: folder.rows(IMAGES, machines::read_images)?,
        threads: folder.rows(THREADS, machines::read_threads)?,
        modules: folder.rows(MODULES, code::read_modules)?,
        mappings: folder.rows(MAPPINGS, code::read_mappings)?,
        symbols: folder.rows(SYMBOLS, code::read_symbols)?,
        stacks: folder.rows(STACKS, code::read_stacks)?,
        throttling: folder.rows(THROTTLING, counts::read_throttling)?,
        exits: folder.rows(EXITS, counts::read_exits)?,
    };
    match dangling(&tables) {
        None => Ok((tables, folder.missing)),
        Some(table) => {
            Err(Error::damaged(&dir.join(table), "a row refers to a row that does not exist"))
        }
    }
}

fn columns(name: &str, tables: &Tables) -> Vec<Column> {
    match name {
        VMS => machines::vms_columns(&tables.vms),
        VCPUS => machines::vcpus_columns(&tables.vcpus),
        IMAGES => machines::images_columns(&tables.images),
        THREADS => machines::threads_columns(&tables.threads),
        MODULES => code::modules_columns(&tables.modules),
        MAPPINGS => code::mappings_columns(&tables.mappings),
        SYMBOLS => code::symbols_columns(&tables.symbols),
        STACKS => code::stacks_columns(&tables.stacks),
        THROTTLING => counts::throttling_columns(&tables.throttling),
        _ => counts::exits_columns(&tables.exits),
    }
}

/// A folder whose tables are read.
pub(crate) struct Folder<'a> {
    pub(crate) dir: &'a Path,
    /// Tables whose files are not there.
    pub(crate) missing: Vec<PathBuf>,
}

impl Folder<'_> {
    pub(crate) fn rows<T>(
        &mut self,
        name: &str,
        read: fn(&TableReader) -> Result<Vec<T>, Error>,
    ) -> Result<Vec<T>, Error> {
        let path = self.dir.join(name);
        if path.is_file() {
            return read(&TableReader::open(&path)?);
        }
        self.missing.push(path);
        Ok(Vec::new())
    }
}

/// The first table with a reference to a row that is not there.
fn dangling(tables: &Tables) -> Option<&'static str> {
    let vm = |owner: Owner| match owner {
        Owner::Host => true,
        Owner::Vm(vm) => vm.index() < tables.vms.len(),
    };
    let image = |image: model::ImageId| image.index() < tables.images.len();
    let module = |module: model::ModuleId| module.index() < tables.modules.len();
    let whole = [
        (VCPUS, tables.vcpus.iter().all(|row| vm(Owner::Vm(row.vm)))),
        (IMAGES, tables.images.iter().all(|row| vm(row.owner))),
        (THREADS, tables.threads.iter().all(|row| image(row.image))),
        (MODULES, tables.modules.iter().all(|row| vm(row.owner))),
        (MAPPINGS, tables.mappings.iter().all(|row| image(row.image) && module(row.module))),
        (THROTTLING, tables.throttling.iter().all(|row| vm(Owner::Vm(row.vm)))),
        (EXITS, tables.exits.iter().all(|row| row.vcpu.index() < tables.vcpus.len())),
        (SYMBOLS, tables.symbols.iter().all(|row| module(row.module))),
    ];
    whole.into_iter().find(|(_, whole)| !whole).map(|(table, _)| table)
}

/// Row numbers, for readers that join tables.
pub(crate) fn id_column(rows: usize) -> Column {
    Column::u32("id", (0..rows).map(|row| u32::try_from(row).unwrap_or(u32::MAX)))
}

/// Row numbers have to be row numbers: everything refers to rows by them.
pub(crate) fn check_ids(table: &TableReader) -> Result<(), Error> {
    let in_order = table.u32("id")?.into_iter().enumerate().all(|(row, id)| row == id as usize);
    if in_order { Ok(()) } else { Err(table.damaged("its rows are not in order")) }
}

fn vm_of(owner: Owner) -> Option<u32> {
    match owner {
        Owner::Host => None,
        Owner::Vm(vm) => Some(vm.0),
    }
}

fn owner_of(vm: Option<u32>) -> Owner {
    vm.map_or(Owner::Host, |vm| Owner::Vm(model::VmId(vm)))
}
