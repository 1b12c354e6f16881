//! The host's own rows: its kernel, and the processes that samples hit.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use host::machine::KernelText;
use host::processes::{Mappings, ProcessImage, ProcessMapping};
use model::{
    BuildId, Image, ImageId, ImageKind, Mapping, Module, ModuleId, Note, Owner, Pid, Tables,
    Thread, Tid,
};
use symbols::{HostSource, KernelNames, KernelPart, Place, Places};

/// Adds the host kernel: one image, a mapping for its text and one for each module.
pub(crate) fn add_kernel(tables: &mut Tables, release: &str, text: &KernelText) {
    let image = add_image(tables, ImageKind::Kernel, 0, release.to_owned());
    for (path, start, end) in parts(text) {
        let module = add_module(tables, path, None);
        tables.mappings.push(Mapping { image, start, end, offset: 0, module });
    }
}

/// Where symbols of stripped files are.
const DEBUG_FILES: &str = "/usr/lib/debug";

/// The source of names for the host's functions: its kernel, and the files that its processes map.
pub(crate) fn source(text: &KernelText) -> HostSource {
    HostSource::new(kernel_names(text)).with_debug_files(PathBuf::from(DEBUG_FILES))
}

/// The same of the files alone.
pub(crate) fn source_of_files() -> HostSource {
    HostSource::default().with_debug_files(PathBuf::from(DEBUG_FILES))
}

/// The host's names, which stay from one window to the next.
#[derive(Debug)]
pub(crate) struct HostNames {
    /// Without its symbols.
    pub(crate) text: KernelText,
    pub(crate) source: HostSource,
    is_read: bool,
}

impl Default for HostNames {
    fn default() -> Self {
        Self { text: KernelText::default(), source: source_of_files(), is_read: false }
    }
}

impl HostNames {
    /// For modules that are numbered anew. The kernel's names are read again if its modules are others than before.
    ///
    /// # Errors
    /// When they can't be read.
    pub(crate) fn reset(&mut self, proc: &Path) -> std::io::Result<()> {
        self.source.reset();
        if self.is_read && self.text.modules == host::machine::kernel_modules(proc) {
            return Ok(());
        }
        let text = host::machine::kernel_text(proc)?;
        self.source.set_kernel(kernel_names(&text));
        self.text = KernelText { kallsyms: String::new(), ..text };
        self.is_read = true;
        Ok(())
    }
}

fn kernel_names(text: &KernelText) -> KernelNames {
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

/// Rows of mappings of all host processes at most.
const MAX_MAPPINGS: usize = 1 << 20;

/// Adds the images of `hit` processes, and says where their files are to be found. `source` reads build ids.
pub(crate) fn add_processes(
    tables: &mut Tables,
    mut images: Vec<ProcessImage>,
    hit: &BTreeSet<Pid>,
    proc: &Path,
    source: &mut HostSource,
    notes: &mut Vec<Note>,
) -> Places {
    images.retain(|image| hit.contains(&Pid(image.pid)));
    let cut = cut_mappings(&mut images, MAX_MAPPINGS);
    if 0 < cut {
        let text = format!("the code of {cut} host processes with the most mappings has no names");
        notes.push(Note { subject: "host".to_owned(), text });
    }
    let mut modules = Modules::new(proc, source);
    for process in images {
        let image = add_image(tables, ImageKind::Process, process.pid, process.name);
        let row = &mut tables.images[image.index()];
        (row.start, row.end) = (process.start, process.end);
        row.kernel_thread = Some(process.is_kernel_thread);
        row.of_command = Some(process.is_of_command);
        tables.threads.extend(process.threads.into_iter().map(|(tid, name)| Thread {
            image,
            tid: Tid(tid),
            name,
            fs_base: None,
        }));
        modules.begin(process.pid);
        for mapping in process.mappings.iter() {
            let (module, offset) = modules.row(tables, mapping);
            let ProcessMapping { start, end, .. } = *mapping;
            tables.mappings.push(Mapping { image, start, end, offset, module });
        }
    }
    modules.places
}

/// Takes the mappings from the processes that have the most, until there are `most` in all. How many processes that were.
fn cut_mappings(images: &mut [ProcessImage], most: usize) -> usize {
    let mut lengths: Vec<usize> = images.iter().map(|image| image.mappings.len()).collect();
    lengths.sort_unstable();
    let mut sum = 0;
    let does_not_fit = |length: &&usize| {
        sum += **length;
        most < sum
    };
    let Some(too_long) = lengths.iter().find(does_not_fit) else { return 0 };
    let cut = images.iter_mut().filter(|image| *too_long <= image.mappings.len());
    cut.map(|image| image.mappings = Mappings::default()).count()
}

fn add_image(tables: &mut Tables, kind: ImageKind, pid: u32, name: String) -> ImageId {
    tables.images.push(Image {
        owner: Owner::Host,
        kind,
        pid: Pid(pid),
        name,
        cr3: None,
        kernel_stack: None,
        kernel_thread: None,
        of_command: None,
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
    source: &'a mut HostSource,
    rows: HashMap<(String, Option<BuildId>, u32), ModuleId>,
    build_ids: HashMap<(String, u64, u64), Option<BuildId>>,
    places: Places,
    pid: u32,
    own: OwnNames,
    /// The process's files, by where their names are kept. A process may map one of them 65,530 times.
    of_process: HashMap<usize, ModuleId>,
}

impl<'a> Modules<'a> {
    fn new(proc: &'a Path, source: &'a mut HostSource) -> Self {
        Self {
            proc,
            source,
            rows: HashMap::new(),
            build_ids: HashMap::new(),
            places: Places::new(),
            pid: 0,
            own: OwnNames::default(),
            of_process: HashMap::new(),
        }
    }

    /// The mappings that follow are this process's.
    fn begin(&mut self, pid: u32) {
        self.pid = pid;
        self.own = OwnNames::for_process(self.proc, pid);
        self.of_process.clear();
    }

    /// The mapping's module, and the offset in it where the mapping begins.
    fn row(&mut self, tables: &mut Tables, mapping: &ProcessMapping) -> (ModuleId, u64) {
        let listed = is_made_at_run_time(&mapping.file.path) && self.own.perf_map.is_some();
        let offset = if listed { mapping.start } else { mapping.offset };
        let file = Arc::as_ptr(&mapping.file).addr();
        if let Some(module) = self.of_process.get(&file) {
            return (*module, offset);
        }
        let module = self.new_file(tables, mapping);
        self.of_process.insert(file, module);
        (module, offset)
    }

    fn new_file(&mut self, tables: &mut Tables, mapping: &ProcessMapping) -> ModuleId {
        let path = mapping.file.path.as_str();
        if let (true, Some((list, place))) = (is_made_at_run_time(path), self.own.perf_map.clone())
        {
            return self.module(tables, &list, None, self.pid, vec![place]);
        }
        let path = match path {
            "" | "//anon" => "[anon]".to_owned(),
            path => self.own.shown(path).to_owned(),
        };
        let places = self.candidates(mapping);
        let build_id = mapping.file.build_id.clone().or_else(|| self.build_id(&path, &places));
        self.module(tables, &path, build_id, 0, places)
    }

    /// The row of a file. `process`: whose it is, for what only one process has.
    fn module(
        &mut self,
        tables: &mut Tables,
        path: &str,
        build_id: Option<BuildId>,
        process: u32,
        places: Vec<Place>,
    ) -> ModuleId {
        let module = *self
            .rows
            .entry((path.to_owned(), build_id.clone(), process))
            .or_insert_with(|| add_module(tables, path.to_owned(), build_id));
        let known = self.places.entry(module).or_default();
        // A few processes' views are enough: all lead to the same file.
        if known.len() < 8 {
            known.extend(places);
        }
        module
    }

    /// Through the mapping itself, in the process' own root, and, when the process is gone, in ours.
    fn candidates(&self, mapping: &ProcessMapping) -> Vec<Place> {
        let path = &mapping.file.path;
        if !path.starts_with('/') || path.starts_with("//") {
            return Vec::new();
        }
        let process = self.proc.join(self.pid.to_string());
        let range = format!("{:x}-{:x}", mapping.start, mapping.end);
        let path = PathBuf::from(path);
        vec![
            Place::Known(process.join("map_files").join(range)),
            Place::Below { root: process.join("root"), path: path.clone(), owner: None },
            Place::Below { root: PathBuf::from("/"), path, owner: None },
        ]
    }

    /// Read from the file, once per file.
    fn build_id(&mut self, path: &str, places: &[Place]) -> Option<BuildId> {
        let file = places.iter().find_map(|place| place.open().ok())?;
        let metadata = file.metadata().ok()?;
        self.build_ids
            .entry((path.to_owned(), metadata.dev(), metadata.ino()))
            .or_insert_with(|| self.source.build_id(&file))
            .clone()
    }
}

/// What a process says about itself.
#[derive(Default)]
struct OwnNames {
    /// Its program, and the name that it was started by.
    started_as: Option<(String, String)>,
    /// Where it lists the functions that it made.
    perf_map: Option<(String, Place)>,
}

impl OwnNames {
    fn for_process(proc: &Path, pid: u32) -> Self {
        let directory = proc.join(pid.to_string());
        let text = |path: PathBuf| path.into_os_string().into_string().ok();
        let started_as = host::identity::started_as(&directory)
            .and_then(|(program, name)| Some((text(program)?, text(name)?)));
        // In its own root and by its own pid; of a process that has ended, what root left behind here.
        let (root, own_pid, owner) = match host::identity::read(&directory) {
            Ok(identity) => (directory.join("root"), identity.own_pid, identity.user),
            Err(_) => (PathBuf::from("/"), pid, 0),
        };
        let path = format!("/tmp/perf-{own_pid}.map");
        let place = Place::Below { root, path: PathBuf::from(&path), owner: Some(owner) };
        let perf_map = place.open().is_ok().then_some((path, place));
        Self { started_as, perf_map }
    }

    /// The program by the name that it was started by.
    fn shown<'a>(&'a self, path: &'a str) -> &'a str {
        match &self.started_as {
            Some((program, name)) if program == path => name,
            _ => path,
        }
    }
}

/// Memory with code that is in no file: anonymous, or a file in memory that is mapped twice to be written and run.
fn is_made_at_run_time(path: &str) -> bool {
    let kinds = ["[anon", "[heap]", "//anon", "/memfd:", "/dev/zero", "/SYSV"];
    path.is_empty() || kinds.iter().any(|kind| path.starts_with(kind))
}

#[cfg(test)]
mod test {
    use host::processes::MappedFile;
    use sandbox::Sandbox;

    use super::*;

    #[test]
    fn code_made_at_run_time_is_named_by_the_processs_own_list() {
        let folder = tempfile::tempdir().unwrap();
        let process = folder.path().join("812");
        std::fs::create_dir_all(process.join("root/tmp")).unwrap();
        let user = rustix::process::geteuid().as_raw();
        let status =
            format!("Name:\tnode\nUid:\t{user}\t{user}\t{user}\t{user}\nNSpid:\t812\t17\n");
        std::fs::write(process.join("status"), status).unwrap();
        std::fs::write(process.join("root/tmp/perf-17.map"), "7000 20 sum\n7010 20 more\n")
            .unwrap();
        let anonymous =
            ProcessMapping { start: 0x7000, end: 0x8000, offset: 7, file: Arc::default() };
        let image = |pid| ProcessImage {
            pid,
            mappings: [anonymous.clone()].into_iter().collect(),
            ..ProcessImage::default()
        };
        let hit = BTreeSet::from([Pid(812), Pid(813)]);
        let mut tables = Tables::default();
        let images = vec![image(812), image(813)];
        let mut source = HostSource::default().with_sandbox(Sandbox::here());
        let (proc, notes) = (folder.path(), &mut Vec::new());
        let places = add_processes(&mut tables, images, &hit, proc, &mut source, notes);
        source.reuse(places);
        let modules: Vec<_> = tables.modules.iter().map(|m| m.path.as_str()).collect();
        assert_eq!(modules, ["/tmp/perf-17.map", "[anon]"]);
        let offsets: Vec<_> = tables.mappings.iter().map(|m| m.offset).collect();
        assert_eq!(offsets, [0x7000, 7]);
        let names = symbols::Source::names(
            &mut source,
            ModuleId(0),
            &tables.modules[0],
            &[0x7000, 0x701f, 0x7030],
        );
        let name = |name: &str| model::SymbolName::Function(name.to_owned());
        assert_eq!(names, [name("sum"), name("more"), model::SymbolName::Stripped]);
    }

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
            file: Arc::new(MappedFile { path: path.into(), build_id: BuildId::new(&[1]) }),
        };
        let process = |pid, mappings: Vec<ProcessMapping>| ProcessImage {
            pid,
            name: format!("p{pid}"),
            mappings: mappings.into_iter().collect(),
            ..ProcessImage::default()
        };
        let images = vec![
            process(7, vec![mapping(0x10, "/bin/a"), mapping(0x40, "")]),
            process(8, vec![mapping(0x10, "/bin/b")]),
            process(9, vec![mapping(0x80, "/bin/a")]),
        ];
        let hit = BTreeSet::from([Pid(7), Pid(9)]);
        let (mut source, mut notes) = (HostSource::default(), Vec::new());
        let proc = Path::new("/nowhere");
        let places = add_processes(&mut tables, images, &hit, proc, &mut source, &mut notes);
        assert_eq!(notes, []);

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
        assert_eq!(places[&ModuleId(2)][0], Place::Known("/nowhere/7/map_files/10-20".into()));
        assert_eq!(places[&ModuleId(3)].len(), 0);
    }

    #[test]
    fn those_with_the_most_mappings_lose_them() {
        let process = |pid: u32, length: u64| {
            let mapping =
                |start| ProcessMapping { start, end: start + 1, offset: 0, file: Arc::default() };
            let mappings = (0..length).map(mapping).collect();
            ProcessImage { pid, mappings, ..ProcessImage::default() }
        };
        let check = |lengths: [u64; 4], most, expected: [usize; 4]| {
            let mut images: Vec<_> = (0..).zip(lengths).map(|(pid, n)| process(pid, n)).collect();
            let cut = cut_mappings(&mut images, most);
            let left: Vec<_> = images.iter().map(|image| image.mappings.len()).collect();
            assert_eq!(left, expected);
            assert_eq!(cut, (0..4).filter(|n| left[*n] as u64 != lengths[*n]).count());
        };
        check([5, 1, 9, 2], 17, [5, 1, 9, 2]);
        check([5, 1, 9, 2], 16, [5, 1, 0, 2]);
        check([5, 1, 9, 2], 7, [0, 1, 0, 2]);
        check([5, 5, 9, 0], 7, [0, 0, 0, 0]);
    }
}
