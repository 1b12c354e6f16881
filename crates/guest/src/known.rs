//! A guest's map as the host knows it: pieced together from what each answer adds, kept when the guest is gone. Pure.
//!
//! ```text
//!   first answer:  everything          images 0 1 2    modules 0 1
//!   later ones:    what is new         images 1 3      module  2        (1 changed, or ended)
//!   new session:   everything again    images 0 1      modules 0 1 2    (numbered anew)
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};

use api::guest::{
    FunctionSymbol, GuestImage, GuestKernel, GuestKernelThread, GuestMap, GuestMapping,
    GuestModule, GuestThread, KernelModule, KernelSymbol, MAX_IMAGE_PARTS, MAX_IMAGES, MAX_OTHERS,
    ModuleSymbols,
};
use model::Budget;

use crate::merge::ReportedMap;

/// Bytes that are kept of a guest, about.
pub const MAX_KEPT_BYTES: usize = 128 << 20;
/// Functions that are kept of guests that may be gone before the end.
const MAX_KEPT_FUNCTIONS: usize = 1 << 18;

/// One boot's reports of a guest.
#[derive(Debug, Clone)]
pub struct CachedMap {
    reported: ReportedMap,
    /// Taken by its kernel, before its functions were checked.
    kernel_bytes: usize,
    /// Maps an image id of the current session to its index in `map.images`.
    rows: HashMap<u32, usize>,
    /// Maps a module number of the current session to its index in `map.modules`.
    numbers: Vec<u32>,
    by_content: HashMap<GuestModule, u32>,
    /// Indices that are in `numbers`.
    in_session: BTreeSet<u32>,
    /// Threads and mappings of all images.
    parts: usize,
    /// For what is kept.
    room: Room,
    symbols: BTreeMap<u32, ModuleSymbols>,
    n_functions: usize,
    /// Modules whose symbols need not be requested.
    settled: BTreeSet<u32>,
    left_out: u64,
}

/// Room that was taken out of a budget; it is there again for others when this is dropped.
#[derive(Debug)]
struct Room {
    budget: Budget,
    taken: usize,
}

impl Room {
    fn take(&mut self, bytes: usize) -> bool {
        let has_room = self.budget.take(bytes);
        self.taken += if has_room { bytes } else { 0 };
        has_room
    }

    fn give_back(&mut self, bytes: usize) {
        let bytes = bytes.min(self.taken);
        self.taken -= bytes;
        self.budget.give_back(bytes);
    }

    /// Takes room for what comes in place of something else.
    fn exchange(&mut self, before: usize, after: usize) -> bool {
        if before < after {
            return self.take(after - before);
        }
        self.give_back(before - after);
        true
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.budget.give_back(self.taken);
    }
}

/// A copy takes no room: it is soon gone.
impl Clone for Room {
    fn clone(&self) -> Self {
        Self { budget: self.budget.clone(), taken: 0 }
    }
}

impl Default for CachedMap {
    fn default() -> Self {
        Self::within(Budget::new(MAX_KEPT_BYTES))
    }
}

impl CachedMap {
    /// Nothing yet; reports take their memory out of `room`.
    #[must_use]
    pub fn within(room: Budget) -> Self {
        Self {
            room: Room { budget: room, taken: 0 },
            reported: ReportedMap::default(),
            kernel_bytes: 0,
            rows: HashMap::new(),
            numbers: Vec::new(),
            by_content: HashMap::new(),
            in_session: BTreeSet::new(),
            parts: 0,
            symbols: BTreeMap::new(),
            n_functions: 0,
            settled: BTreeSet::new(),
            left_out: 0,
        }
    }

    /// Tells boots of a guest apart.
    #[must_use]
    pub fn boot_id(&self) -> &str {
        &self.reported.map.boot_id
    }

    /// The guest's time of the last answer, ns.
    #[must_use]
    pub fn reported_ns(&self) -> u64 {
        self.reported.map.now_ns
    }

    /// Adds an answer of the same session.
    pub fn add(&mut self, mut news: GuestMap) {
        self.add_facts(&mut news);
        let GuestMap { images, modules, problems, kernel_threads, .. } = news;
        for thread in kernel_threads {
            self.add_kernel_thread(thread);
        }
        for module in modules.into_iter().take(MAX_IMAGES - self.numbers.len().min(MAX_IMAGES)) {
            let number = self.intern(module);
            self.numbers.push(number);
        }
        for image in images {
            self.add_image(image);
        }
        for problem in problems {
            let is_new = !self.reported.map.problems.contains(&problem);
            if self.reported.map.problems.len() < MAX_OTHERS
                && is_new
                && self.room.take(problem.len())
            {
                self.reported.map.problems.push(problem);
            }
        }
    }

    /// Adds the first answer of a new session with the same boot. Processes that were there before go on; others began or
    /// ended in between, the time is unknown.
    pub fn add_new_session(&mut self, mut news: GuestMap) {
        let (reported_ns, now_ns) = (self.reported.map.now_ns, news.now_ns);
        self.rows.clear();
        self.numbers.clear();
        self.in_session.clear();
        self.forget_unused_modules();
        self.date_kernel_threads(&mut news);
        let images = self.reported.map.images.iter_mut().enumerate();
        let mut open: HashMap<(u32, u64), usize> = images
            .filter(|(_, image)| image.end_ns.is_none())
            .map(|(row, image)| ((image.pid, image.cr3), row))
            .collect();
        for image in news.images.iter_mut().filter(|image| image.start_ns.is_none()) {
            match open.remove(&(image.pid, image.cr3)) {
                Some(row) => {
                    image.start_ns = self.reported.map.images[row].start_ns;
                    self.rows.insert(image.id, row);
                }
                None => image.start_ns = Some(reported_ns),
            }
        }
        // Page tables have one owner at a time.
        let taken: BTreeSet<u64> = news.images.iter().map(|image| image.cr3).collect();
        for ((_, cr3), row) in open {
            self.reported.map.images[row].end_ns =
                Some(if taken.contains(&cr3) { reported_ns } else { now_ns });
        }
        self.add(news);
    }

    /// The whole map. The numbers of its modules are those of `symbols`, `keep` and `number_in_session`.
    #[must_use]
    pub fn into_map(self) -> (ReportedMap, BTreeMap<u32, ModuleSymbols>) {
        let mut reported = self.reported;
        if 0 < self.left_out {
            let text = format!("{} processes found no room in its map", self.left_out);
            reported.map.problems.push(text);
        }
        (reported, self.symbols)
    }

    /// A copy of what counts for a window that begins at `start_ns` of the guest's time, with what was sent since the last
    /// call: symbols, and problems. What ended before is forgotten.
    #[must_use]
    pub fn for_window(&mut self, start_ns: u64) -> Self {
        self.forget_before(start_ns);
        let symbols = std::mem::take(&mut self.symbols);
        let bytes: usize = symbols.values().map(symbol_bytes).sum();
        let problems = std::mem::take(&mut self.reported.map.problems);
        self.room.give_back(bytes + problems.iter().map(String::len).sum::<usize>());
        self.n_functions = 0;
        let left_out = std::mem::take(&mut self.left_out);
        let mut reported = self.reported.clone();
        reported.map.problems = problems;
        Self {
            reported,
            numbers: self.numbers.clone(),
            symbols,
            left_out,
            ..Self::within(self.room.budget.clone())
        }
    }

    /// Forgets processes and kernel threads that ended before a time of the guest.
    fn forget_before(&mut self, start_ns: u64) {
        let is_over = |end_ns: Option<u64>| end_ns.is_some_and(|end_ns| end_ns < start_ns);
        let (mut bytes, mut parts) = (0, 0);
        let mut places = Vec::with_capacity(self.reported.map.images.len());
        let mut next = 0;
        self.reported.map.images.retain(|image| {
            let stays = !is_over(image.end_ns);
            places.push(stays.then_some(next));
            if stays {
                next += 1;
            } else {
                bytes += image_bytes(image);
                parts += image.threads.len() + image.mappings.len();
            }
            stays
        });
        self.rows.retain(|_, row| places[*row].map(|place| *row = place).is_some());
        self.reported.map.kernel_threads.retain(|thread| {
            let stays = !is_over(thread.end_ns);
            bytes += if stays { 0 } else { thread.name.len() };
            stays
        });
        self.parts -= parts;
        self.room.give_back(bytes);
    }

    /// The session that numbered them is over: nothing new can refer to a module that no image maps.
    fn forget_unused_modules(&mut self) {
        let mappings = self.reported.map.images.iter().flat_map(|image| &image.mappings);
        let used: BTreeSet<u32> = mappings.map(|mapping| mapping.module).collect();
        let (mut places, mut bytes, mut next) = (BTreeMap::new(), 0, 0);
        let mut number = 0..;
        self.reported.map.modules.retain(|module| {
            let stays = number.next().filter(|number| used.contains(number));
            match stays {
                Some(number) => {
                    places.insert(number, next);
                    next += 1;
                }
                None => bytes += module_bytes(module),
            }
            stays.is_some()
        });
        self.room.give_back(bytes);
        let mappings = self.reported.map.images.iter_mut().flat_map(|image| &mut image.mappings);
        mappings.for_each(|mapping| {
            mapping.module = places.get(&mapping.module).copied().unwrap_or(u32::MAX);
        });
        self.by_content.retain(|_, n| places.get(n).map(|place| *n = *place).is_some());
        let settled = std::mem::take(&mut self.settled);
        self.settled = settled.iter().filter_map(|n| places.get(n).copied()).collect();
        let symbols = std::mem::take(&mut self.symbols).into_iter();
        self.symbols = symbols
            .filter_map(|(n, symbols)| {
                let module = *places.get(&n)?;
                Some((module, ModuleSymbols { module, ..symbols }))
            })
            .collect();
    }

    /// Whether the session has named so many files that there is soon no room for more: another one begins anew.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        MAX_IMAGES / 2 < self.numbers.len()
    }

    /// What the session calls each of the map's modules that it has reported.
    #[must_use]
    pub fn numbers_in_session(&self) -> BTreeMap<u32, u32> {
        (0..).zip(&self.numbers).map(|(number, module)| (*module, number)).collect()
    }

    /// What the session calls the modules that have a build id.
    #[must_use]
    pub fn with_build_id(&self) -> BTreeSet<u32> {
        let has_id = |(_, module): &(u32, &u32)| {
            let found = self.reported.map.modules.get(**module as usize);
            found.is_some_and(|module| !module.build_id.is_empty())
        };
        (0..).zip(&self.numbers).filter(has_id).map(|(number, _)| number).collect()
    }

    /// The next file to request symbols of, by the session's number: programs first, then what they load.
    /// `is_stored`: what needs no request.
    pub fn next_module(&mut self, is_stored: impl Fn(&GuestModule) -> bool) -> Option<u32> {
        let first = |image: &GuestImage| image.mappings.iter().min_by_key(|m| m.start).cloned();
        let programs = self.reported.map.images.iter().filter_map(first);
        let all = self.reported.map.images.iter().flat_map(|image| image.mappings.iter().cloned());
        let mapped: Vec<u32> = programs.chain(all).map(|mapping| mapping.module).collect();
        for module in mapped {
            let Some(file) = self.reported.map.modules.get(module as usize) else { continue };
            if !self.settled.insert(module) || !file.path.starts_with('/') || is_stored(file) {
                continue;
            }
            let number = self.numbers.iter().position(|known| *known == module);
            if let Some(number) = number.and_then(|number| u32::try_from(number).ok()) {
                return Some(number);
            }
        }
        None
    }

    /// Keeps symbols that the guest sent; as many as there is room for.
    pub fn keep(&mut self, symbols: ModuleSymbols) {
        let Some(module) = self.numbers.get(symbols.module as usize) else { return };
        let module = *module;
        let n_functions = self.n_functions + symbols.symbols.len();
        let has_room = n_functions <= MAX_KEPT_FUNCTIONS;
        if symbols.problem.is_none() && has_room && self.room.take(symbol_bytes(&symbols)) {
            self.n_functions = n_functions;
            self.symbols.insert(module, ModuleSymbols { module, ..symbols });
        }
    }

    fn add_facts(&mut self, news: &mut GuestMap) {
        self.reported.map.version = news.version;
        self.reported.map.boot_id.clone_from(&news.boot_id);
        self.reported.map.kernel_release.clone_from(&news.kernel_release);
        self.reported.map.now_ns = news.now_ns;
        // Most answers have none: then its many symbols are not looked at.
        let Some(kernel) = news.kernel.take() else { return };
        let bytes = kernel_bytes(&kernel);
        if self.room.exchange(self.kernel_bytes, bytes) {
            self.kernel_bytes = bytes;
            self.reported.set_kernel(kernel);
        } else {
            self.reported
                .map
                .problems
                .push("its kernel's symbols found no room in its map".to_owned());
        }
    }

    /// A known one that is reported again goes on, or has ended.
    fn add_kernel_thread(&mut self, thread: GuestKernelThread) {
        let is_it = |known: &&mut GuestKernelThread| {
            known.end_ns.is_none() && (known.tid, known.stack) == (thread.tid, thread.stack)
        };
        if let Some(known) = self.reported.map.kernel_threads.iter_mut().find(is_it) {
            known.end_ns = thread.end_ns;
        } else if self.reported.map.kernel_threads.len() < MAX_OTHERS
            && self.room.take(thread.name.len())
        {
            self.reported.map.kernel_threads.push(thread);
        }
    }

    /// Of kernel threads in the first answer of a new session: those that were not there before began in between, and those
    /// that are not there any more ended in between.
    fn date_kernel_threads(&mut self, news: &mut GuestMap) {
        let key = |thread: &GuestKernelThread| (thread.tid, thread.stack);
        let is_open = |thread: &&GuestKernelThread| thread.end_ns.is_none();
        let known: BTreeSet<_> =
            self.reported.map.kernel_threads.iter().filter(is_open).map(key).collect();
        let alive: BTreeSet<_> = news.kernel_threads.iter().map(key).collect();
        let reported_ns = self.reported.map.now_ns;
        for thread in news.kernel_threads.iter_mut().filter(|thread| !known.contains(&key(thread)))
        {
            thread.start_ns = thread.start_ns.or(Some(reported_ns));
        }
        let gone = self
            .reported
            .map
            .kernel_threads
            .iter_mut()
            .filter(|thread| !alive.contains(&key(thread)));
        gone.for_each(|thread| thread.end_ns = thread.end_ns.or(Some(reported_ns)));
    }

    fn intern(&mut self, module: GuestModule) -> u32 {
        // Functions of one script come in several modules of a session.
        if let Some(number) = self.by_content.get(&module)
            && self.in_session.insert(*number)
        {
            return *number;
        }
        let number = u32::try_from(self.reported.map.modules.len()).unwrap_or(u32::MAX);
        if self.reported.map.modules.len() < MAX_IMAGES && self.room.take(module_bytes(&module)) {
            self.reported.map.modules.push(module.clone());
            self.by_content.insert(module, number);
            self.in_session.insert(number);
        }
        number
    }

    fn add_image(&mut self, mut image: GuestImage) {
        for mapping in &mut image.mappings {
            // Beyond the list: `merge` leaves the mapping out and says so.
            let known = self.numbers.get(mapping.module as usize);
            mapping.module = known.copied().unwrap_or(u32::MAX);
        }
        let parts = |image: &GuestImage| image.threads.len() + image.mappings.len();
        let row = self.rows.get(&image.id).copied();
        let before = row.map_or(0, |row| parts(&self.reported.map.images[row]));
        let after = self.parts - before + parts(&image);
        let before = row.map_or(0, |row| image_bytes(&self.reported.map.images[row]));
        let is_one_too_many = row.is_none() && MAX_IMAGES <= self.reported.map.images.len();
        if MAX_IMAGE_PARTS < after
            || is_one_too_many
            || !self.room.exchange(before, image_bytes(&image))
        {
            self.left_out += 1;
            return;
        }
        self.parts = after;
        match row {
            Some(row) => self.reported.map.images[row] = image,
            None => {
                self.rows.insert(image.id, self.reported.map.images.len());
                self.reported.map.images.push(image);
            }
        }
    }
}

fn image_bytes(image: &GuestImage) -> usize {
    let names: usize = image.threads.iter().map(|thread| thread.name.len()).sum();
    size_of::<GuestImage>()
        + image.name.len()
        + names
        + image.threads.len() * size_of::<GuestThread>()
        + image.mappings.len() * size_of::<GuestMapping>()
}

/// It is kept twice.
fn module_bytes(module: &GuestModule) -> usize {
    2 * (module.path.len() + module.build_id.len())
}

pub(crate) fn symbol_bytes(symbols: &ModuleSymbols) -> usize {
    let names: usize = symbols.symbols.iter().map(|symbol| symbol.name.len()).sum();
    names + symbols.symbols.len() * size_of::<FunctionSymbol>()
}

fn kernel_bytes(kernel: &GuestKernel) -> usize {
    let symbols = kernel.symbols.iter().map(|symbol| symbol.name.len());
    let modules = kernel.modules.iter().map(|module| module.name.len());
    symbols.chain(modules).sum::<usize>()
        + kernel.symbols.len() * size_of::<KernelSymbol>()
        + kernel.modules.len() * size_of::<KernelModule>()
}

#[cfg(test)]
#[path = "known_test.rs"]
mod test;
