//! Checks a guest's map and adds it to the tables of a recording. Pure.
//!
//! Nothing here believes the guest: what can't be is left out and counted, and only rows of this
//! guest's VM are ever added. Notes say how much was left out and why.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::guest::{
    GuestImage, GuestKernel, GuestKernelThread, GuestMap, GuestMapping, GuestModule,
    MAX_IMAGE_PARTS, MAX_IMAGES, MAX_OTHERS, MAX_SYMBOLS,
};
use model::{
    BuildId, Clock, Cr3, GuestVirt, HostNs, Image, ImageId, ImageKind, KernelStack, Mapping,
    Module, ModuleId, Note, Owner, Pid, Tables, Thread, Tid, VmId,
};

use crate::check::{
    clean, is_kernel_address, is_kernel_range, is_pid, is_user_address, is_user_range,
};

/// Longest texts that are kept, in characters.
const MAX_NAME: usize = 64;
const MAX_PATH: usize = 4096;
const MAX_FUNCTION: usize = 512;
const MAX_NOTE: usize = 300;
/// Of a guest's own problems.
const MAX_NOTES: usize = 20;
/// No kernel or module has more code.
const MAX_KERNEL_TEXT: u64 = 1 << 30;

/// What became of a guest's map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// The row of the guest's kernel.
    pub kernel: ImageId,
    /// The row of each of the map's modules, by the guest's number; ask `Session::symbols` with that.
    pub modules: Vec<ModuleId>,
    /// The kernel's functions and those of its modules, by address in this boot.
    pub functions: KernelFunctions,
    /// What was wrong with it, or missing.
    pub notes: Vec<Note>,
}

/// Addresses and names.
pub type KernelFunctions = Arc<[(u64, Box<str>)]>;

/// A guest's map whose kernel's functions are checked already. There are many, and they stay the same: copies share them.
#[derive(Debug, Clone, Default)]
pub struct ReportedMap {
    /// The rest of it, as the guest reported it.
    pub map: GuestMap,
    pub(crate) functions: KernelFunctions,
    invalid_functions: usize,
}

impl From<GuestMap> for ReportedMap {
    fn from(mut map: GuestMap) -> Self {
        let kernel = map.kernel.take();
        let mut reported = Self { map, ..Self::default() };
        if let Some(kernel) = kernel {
            reported.set_kernel(kernel);
        }
        reported
    }
}

impl ReportedMap {
    pub(crate) fn set_kernel(&mut self, mut kernel: GuestKernel) {
        let symbols = std::mem::take(&mut kernel.symbols);
        let all = symbols.len();
        let mut functions: Vec<(u64, Box<str>)> = symbols
            .into_iter()
            .take(MAX_SYMBOLS)
            .filter(|symbol| is_kernel_address(symbol.address) && !symbol.name.is_empty())
            .map(|symbol| (symbol.address, clean(&symbol.name, MAX_FUNCTION).into()))
            .collect();
        self.invalid_functions = all - functions.len();
        // Stable, and the first of several names is kept: the kernel lists the proper one first.
        functions.sort_by_key(|(address, _)| *address);
        functions.dedup_by_key(|(address, _)| *address);
        self.functions = functions.into();
        self.map.kernel = Some(kernel);
    }
}

/// The time that a map is of: nothing in it counts before or after. Open ends: the recording's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MapSpan {
    /// The guest booted.
    pub from: Option<HostNs>,
    /// It was reset, or booted again.
    pub until: Option<HostNs>,
}

/// What tells which process a sample of the guest hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleKey {
    /// Page tables, or the kernel stack of a kernel thread: one process has them at a time.
    PageTables,
    /// The task that the guest's kernel says runs: others may have had its page tables at about the same time.
    Task,
}

/// Adds what a guest said to the tables, as far as it can be.
pub fn merge(
    reported: ReportedMap,
    vm: VmId,
    clock: Clock,
    span: MapSpan,
    key: SampleKey,
    tables: &mut Tables,
) -> Merged {
    let ReportedMap { map, functions, invalid_functions } = reported;
    let subject =
        tables.vms.get(vm.index()).map_or_else(|| format!("vm {vm}"), |vm| vm.name.clone());
    let mut merge =
        Merge { owner: Owner::Vm(vm), clock, span, key, tables, left_out: BTreeMap::new() };
    let of_kernel = map.kernel.unwrap_or_default();
    let kernel = merge.kernel(&of_kernel, &map.kernel_release);
    merge.leave_out_many("invalid kernel symbols", invalid_functions);
    let modules = merge.modules(map.modules);
    merge.images(map.images, &modules);
    merge.kernel_threads(map.kernel_threads);

    let reported = map.problems.iter().take(MAX_NOTES).map(|problem| clean(problem, MAX_NOTE));
    let left_out = merge.left_out.iter().map(|(why, count)| format!("{count} {why} left out"));
    let notes =
        reported.chain(left_out).map(|text| Note { subject: subject.clone(), text }).collect();
    Merged { kernel, modules, functions, notes }
}

struct Merge<'a> {
    owner: Owner,
    clock: Clock,
    span: MapSpan,
    key: SampleKey,
    tables: &'a mut Tables,
    /// What was left out, and how often.
    left_out: BTreeMap<&'static str, u64>,
}

impl Merge<'_> {
    fn leave_out(&mut self, what: &'static str) {
        self.leave_out_many(what, 1);
    }

    fn leave_out_many(&mut self, what: &'static str, count: usize) {
        if 0 < count {
            *self.left_out.entry(what).or_insert(0) += count as u64;
        }
    }

    fn add_image(&mut self, image: Image) -> ImageId {
        self.tables.images.push(image);
        ImageId::from_index(self.tables.images.len() - 1)
    }

    fn add_module(&mut self, path: String, build_id: Option<BuildId>) -> ModuleId {
        self.tables.modules.push(Module { owner: self.owner, path, build_id });
        ModuleId::from_index(self.tables.modules.len() - 1)
    }

    fn kernel(&mut self, kernel: &GuestKernel, release: &str) -> ImageId {
        let cr3 = Cr3::new(kernel.cr3);
        let image = self.add_image(Image {
            owner: self.owner,
            kind: ImageKind::Kernel,
            pid: Pid(0),
            name: clean(release, MAX_NAME),
            cr3: (cr3.base() != 0).then_some(cr3),
            kernel_stack: None,
            kernel_thread: None,
            of_command: None,
            start: self.span.from,
            end: self.span.until,
        });
        let text = [("[kernel]".to_owned(), kernel.text_start, kernel.text_end)];
        let modules = kernel.modules.iter().take(MAX_OTHERS).map(|module| {
            let name = format!("[{}]", clean(&module.name, MAX_NAME));
            (name, module.start, module.start.checked_add(module.size).unwrap_or(0))
        });
        let mut ranges: Vec<_> = text.into_iter().chain(modules).collect();
        // The kernel's text first, whatever the others say; then by address.
        ranges[1..].sort_by_key(|(_, start, _)| *start);
        let text = (kernel.text_start, kernel.text_end);
        let mut covered = 0;
        for (n, (name, start, end)) in ranges.into_iter().enumerate() {
            let overlaps = 0 < n && (start < covered || (start < text.1 && text.0 < end));
            if !is_kernel_range(start, end) || MAX_KERNEL_TEXT < end - start || overlaps {
                self.leave_out("invalid ranges of kernel code");
                continue;
            }
            if 0 < n {
                covered = end;
            }
            let module = self.add_module(name, None);
            self.tables.mappings.push(Mapping { image, start, end, offset: 0, module });
        }
        image
    }

    fn modules(&mut self, modules: Vec<GuestModule>) -> Vec<ModuleId> {
        self.leave_out_many("files over the limit", modules.len().saturating_sub(MAX_IMAGES));
        modules
            .into_iter()
            .take(MAX_IMAGES)
            .map(|module| {
                let mut path = clean(&module.path, MAX_PATH);
                let is_label = path.starts_with('[') && path.ends_with(']');
                if !is_label && !path.starts_with('/') {
                    path = format!("[{path}]");
                }
                self.add_module(path, BuildId::new(&module.build_id))
            })
            .collect()
    }

    fn images(&mut self, mut images: Vec<GuestImage>, modules: &[ModuleId]) {
        self.leave_out_many("processes over the limit", images.len().saturating_sub(MAX_IMAGES));
        images.truncate(MAX_IMAGES);
        let mut parts_left = MAX_IMAGE_PARTS;
        // By page tables, then time: what claims an instant of the one before it is seen.
        images.sort_by_key(|image| (Cr3::new(image.cr3), image.start_ns, image.end_ns));
        let mut taken = Taken::default();
        for image in images {
            let cr3 = Cr3::new(image.cr3);
            let (start, end) = self.times(image.start_ns, image.end_ns);
            if cr3.base() == 0 || !is_pid(image.pid) {
                self.leave_out("processes without page tables or id");
                continue;
            }
            if let (Some(start), Some(end)) = (start, end)
                && end <= start
            {
                self.leave_out("processes that end before they start");
                continue;
            }
            if self.key == SampleKey::PageTables && !taken.take(cr3, start, end) {
                self.leave_out("processes with another's page tables at the same time");
                continue;
            }
            self.image(image, cr3, (start, end), modules, &mut parts_left);
        }
    }

    fn kernel_threads(&mut self, mut threads: Vec<GuestKernelThread>) {
        threads.sort_by_key(|thread| (thread.stack, thread.start_ns, thread.end_ns));
        let mut taken = Taken::default();
        for thread in threads {
            let (start, end) = self.times(thread.start_ns, thread.end_ns);
            let is_idle = thread.tid == 0;
            if !(is_idle || is_pid(thread.tid))
                || !is_kernel_address(thread.stack)
                || !thread.stack.is_multiple_of(KernelStack::BYTES)
            {
                self.leave_out("kernel threads without stack or id");
                continue;
            }
            let is_backwards = matches!((start, end), (Some(start), Some(end)) if end <= start);
            let mut is_taken =
                || self.key == SampleKey::PageTables && !taken.take(thread.stack, start, end);
            if is_backwards || is_taken() {
                self.leave_out("kernel threads on another's stack at the same time");
                continue;
            }
            let name = clean(&thread.name, MAX_NAME);
            let image = self.add_image(Image {
                owner: self.owner,
                kind: ImageKind::Process,
                pid: Pid(thread.tid),
                name: format!("[{name}]"),
                cr3: None,
                kernel_stack: Some(KernelStack::holding(GuestVirt(thread.stack))),
                kernel_thread: None,
                of_command: None,
                start,
                end,
            });
            self.tables.threads.push(Thread { image, tid: Tid(thread.tid), name, fs_base: None });
        }
    }

    fn times(
        &self,
        start_ns: Option<u64>,
        end_ns: Option<u64>,
    ) -> (Option<HostNs>, Option<HostNs>) {
        let MapSpan { from, until } = self.span;
        let on_host = |guest_ns: u64| {
            let time = self.clock.to_host(guest_ns);
            let time = from.map_or(time, |from| time.max(from));
            until.map_or(time, |until| time.min(until))
        };
        (start_ns.map(on_host).or(from), end_ns.map(on_host).or(until))
    }

    fn image(
        &mut self,
        image: GuestImage,
        cr3: Cr3,
        (start, end): (Option<HostNs>, Option<HostNs>),
        modules: &[ModuleId],
        parts_left: &mut usize,
    ) {
        let id = self.add_image(Image {
            owner: self.owner,
            kind: ImageKind::Process,
            pid: Pid(image.pid),
            name: clean(&image.name, MAX_NAME),
            cr3: Some(cr3),
            kernel_stack: None,
            kernel_thread: None,
            of_command: None,
            start,
            end,
        });
        for thread in image.threads {
            let Some(left) = parts_left.checked_sub(1) else {
                self.leave_out("threads over the limit");
                continue;
            };
            if !is_pid(thread.tid) {
                self.leave_out("threads without id");
                continue;
            }
            *parts_left = left;
            let fs_base = is_user_address(thread.fs_base).then_some(GuestVirt(thread.fs_base));
            let name = clean(&thread.name, MAX_NAME);
            self.tables.threads.push(Thread { image: id, tid: Tid(thread.tid), name, fs_base });
        }
        self.mappings(id, image.mappings, modules, parts_left);
    }

    fn mappings(
        &mut self,
        image: ImageId,
        mut mappings: Vec<GuestMapping>,
        modules: &[ModuleId],
        parts_left: &mut usize,
    ) {
        mappings.sort_by_key(|mapping| (mapping.start, mapping.end));
        let mut covered = 0;
        for mapping in mappings {
            let GuestMapping { start, end, offset, module } = mapping;
            let module = modules.get(module as usize);
            let is_sane = is_user_range(start, end)
                && covered <= start
                && offset.checked_add(end - start).is_some();
            let (Some(module), true, Some(left)) = (module, is_sane, parts_left.checked_sub(1))
            else {
                self.leave_out("mappings that are invalid or over the limit");
                continue;
            };
            *parts_left = left;
            covered = end;
            self.tables.mappings.push(Mapping { image, start, end, offset, module: *module });
        }
    }
}

/// What can be one's only at a time: looked up in order of key and time, who claims an instant of the one before is
/// seen.
#[derive(Debug)]
struct Taken<K>(Option<(K, Option<HostNs>)>);

impl<K> Default for Taken<K> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K: PartialEq> Taken<K> {
    /// False: it is another's for a part of that time.
    fn take(&mut self, key: K, start: Option<HostNs>, end: Option<HostNs>) -> bool {
        let overlaps = self.0.as_ref().is_some_and(|(taken, until)| {
            *taken == key && (until.is_none() || start.is_none() || start < *until)
        });
        if !overlaps {
            self.0 = Some((key, end));
        }
        !overlaps
    }
}

#[cfg(test)]
#[path = "merge_test.rs"]
mod test;
