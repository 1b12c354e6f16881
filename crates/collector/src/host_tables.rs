//! The host's own rows: its kernel, and the processes that samples hit.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use host::machine::KernelText;
use host::processes::{ProcessImage, ProcessMapping};
use model::{
    BuildId, Image, ImageId, ImageKind, Mapping, Module, ModuleId, Owner, Pid, Tables, Thread, Tid,
};
use symbols::{KernelNames, KernelPart, Places};

/// Adds the host kernel: one image, a mapping for its text and one for each module.
pub(crate) fn add_kernel(tables: &mut Tables, release: &str, text: &KernelText) {
    let image = add_image(tables, ImageKind::Kernel, 0, release.to_owned());
    for (path, start, end) in parts(text) {
        let module = add_module(tables, path, None);
        tables.mappings.push(Mapping { image, start, end, offset: 0, module });
    }
}

/// The names of the host kernel's functions.
pub(crate) fn kernel_names(text: &KernelText) -> KernelNames {
    let functions = host::procfs::parse_kallsyms(&text.kallsyms)
        .filter(|symbol| symbol.is_text())
        .map(|symbol| (symbol.address, symbol.name));
    let parts = parts(text).map(|(path, start, end)| KernelPart { path, start, end });
    KernelNames::new(functions, parts)
}

/// The kernel's text and its modules: (path, start, end). Hidden addresses are left out.
fn parts(text: &KernelText) -> impl Iterator<Item = (String, u64, u64)> {
    let modules = text.modules.iter().map(|m| (m.name.as_str(), m.start, m.start + m.size));
    std::iter::once(("kernel", text.start, text.end))
        .chain(modules)
        .filter(|(_, start, end)| start < end && *start != 0)
        .map(|(name, start, end)| (format!("[{name}]"), start, end))
}

/// Adds the images of `hit` processes, and says where their files are to be found.
pub(crate) fn add_processes(
    tables: &mut Tables,
    images: Vec<ProcessImage>,
    hit: &BTreeSet<Pid>,
    proc: &Path,
) -> Places {
    let mut modules = Modules::new(proc);
    for process in images {
        if !hit.contains(&Pid(process.pid)) {
            continue;
        }
        let image = add_image(tables, ImageKind::Process, process.pid, process.name);
        let row = &mut tables.images[image.index()];
        (row.start, row.end) = (process.start, process.end);
        tables.threads.extend(process.threads.into_iter().map(|(tid, name)| Thread {
            image,
            tid: Tid(tid),
            name,
            fs_base: None,
        }));
        for mapping in process.mappings {
            let module = modules.row(tables, process.pid, &mapping);
            let ProcessMapping { start, end, offset, .. } = mapping;
            tables.mappings.push(Mapping { image, start, end, offset, module });
        }
    }
    modules.places
}

fn add_image(tables: &mut Tables, kind: ImageKind, pid: u32, name: String) -> ImageId {
    tables.images.push(Image {
        owner: Owner::Host,
        kind,
        pid: Pid(pid),
        name,
        cr3: None,
        start: None,
        end: None,
    });
    ImageId::from_index(tables.images.len() - 1)
}

fn add_module(tables: &mut Tables, path: String, build_id: Option<BuildId>) -> ModuleId {
    tables.modules.push(Module { owner: Owner::Host, path, build_id });
    ModuleId::from_index(tables.modules.len() - 1)
}

/// Files as (path, build id): two containers' files of one path are two modules.
struct Modules<'a> {
    proc: &'a Path,
    rows: HashMap<(String, Option<BuildId>), ModuleId>,
    build_ids: HashMap<(PathBuf, u64, u64), Option<BuildId>>,
    places: Places,
}

impl<'a> Modules<'a> {
    fn new(proc: &'a Path) -> Self {
        Self { proc, rows: HashMap::new(), build_ids: HashMap::new(), places: Places::new() }
    }

    fn row(&mut self, tables: &mut Tables, pid: u32, mapping: &ProcessMapping) -> ModuleId {
        let path = match mapping.path.as_str() {
            "" | "//anon" => "[anon]",
            path => path,
        };
        let places = self.candidates(pid, mapping);
        let build_id = mapping.build_id.clone().or_else(|| self.build_id(&places));
        let module = *self
            .rows
            .entry((path.to_owned(), build_id.clone()))
            .or_insert_with(|| add_module(tables, path.to_owned(), build_id));
        let known = self.places.entry(module).or_default();
        // A few processes' views are enough: all lead to the same file.
        if known.len() < 8 {
            known.extend(places);
        }
        module
    }

    /// Through the mapping itself, in the process' own root, and, when the process is gone, in ours.
    fn candidates(&self, pid: u32, mapping: &ProcessMapping) -> Vec<PathBuf> {
        if !mapping.path.starts_with('/') || mapping.path.starts_with("//") {
            return Vec::new();
        }
        let process = self.proc.join(pid.to_string());
        let range = format!("{:x}-{:x}", mapping.start, mapping.end);
        vec![
            process.join("map_files").join(range),
            process.join("root").join(mapping.path.trim_start_matches('/')),
            PathBuf::from(&mapping.path),
        ]
    }

    /// Read from the file, once per file.
    fn build_id(&mut self, places: &[PathBuf]) -> Option<BuildId> {
        use std::os::unix::fs::MetadataExt;
        let (place, metadata) =
            places.iter().find_map(|place| Some((place, std::fs::metadata(place).ok()?)))?;
        metadata.is_file().then_some(())?;
        let key = (places.last()?.clone(), metadata.dev(), metadata.ino());
        self.build_ids
            .entry(key)
            .or_insert_with(|| {
                let bytes = blazesym::helper::read_elf_build_id(place).ok()??;
                BuildId::new(&bytes)
            })
            .clone()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn kernel_and_hit_processes_get_rows() {
        let mut tables = Tables::default();
        let modules = vec![
            host::procfs::ModuleEntry { name: "kvm".into(), start: 0x9000, size: 0x100 },
            host::procfs::ModuleEntry { name: "hidden".into(), start: 0, size: 0x100 },
        ];
        let text = KernelText { start: 0x1000, end: 0x2000, modules, kallsyms: String::new() };
        add_kernel(&mut tables, "6.1", &text);
        let mapping = |start, path: &str| ProcessMapping {
            start,
            end: start + 16,
            offset: 0,
            path: path.into(),
            build_id: BuildId::new(&[1]),
        };
        let process = |pid, mappings| ProcessImage {
            pid,
            name: format!("p{pid}"),
            mappings,
            ..ProcessImage::default()
        };
        let images = vec![
            process(7, vec![mapping(0x10, "/bin/a"), mapping(0x40, "")]),
            process(8, vec![mapping(0x10, "/bin/b")]),
            process(9, vec![mapping(0x80, "/bin/a")]),
        ];
        let hit = BTreeSet::from([Pid(7), Pid(9)]);
        let places = add_processes(&mut tables, images, &hit, Path::new("/nowhere"));

        let paths: Vec<_> = tables.modules.iter().map(|m| m.path.as_str()).collect();
        assert_eq!(paths, ["[kernel]", "[kvm]", "/bin/a", "[anon]"]);
        let rows: Vec<_> =
            tables.mappings.iter().map(|m| (m.image.0, m.start, m.end, m.module.0)).collect();
        let expected = [
            (0, 0x1000, 0x2000, 0),
            (0, 0x9000, 0x9100, 1),
            (1, 0x10, 0x20, 2),
            (1, 0x40, 0x50, 3),
            (2, 0x80, 0x90, 2),
        ];
        assert_eq!(rows, expected);
        assert_eq!(places[&ModuleId(2)].len(), 6);
        assert_eq!(places[&ModuleId(2)][0], Path::new("/nowhere/7/map_files/10-20"));
        assert_eq!(places[&ModuleId(3)].len(), 0);
    }
}
