//! For tests that feed bytes: what the parsers in here make of what processes of the guest chose, or its kernel says.

use std::path::Path;

use api::guest::MAX_OTHERS;

use super::timeline::Timeline;
use super::{btf, elf, kcore, program};
use linux::memory::KernelMemory;
use linux::tasks::{Layout, Process, walk};

/// A mapped file in memory: how many functions it has.
#[must_use]
pub fn functions(image: &[u8]) -> usize {
    elf::functions_of_image(image).map_or(0, |functions| functions.len())
}

/// The build id of a mapped ELF file.
#[must_use]
pub fn build_id(path: &Path) -> Option<Vec<u8>> {
    let functions = elf::read_functions(path, &[], elf::MAX_FILE_BYTES);
    let build_id = elf::read_build_id(path)?;
    drop((functions, elf::read_functions(path, &build_id, elf::MAX_FILE_BYTES)));
    Some(build_id)
}

/// Offsets of a kernel's structures, from its BTF.
#[must_use]
pub fn layout(path: &Path) -> Option<Layout> {
    btf::read_layout(path).ok()
}

/// The kernel's memory: what lies at an address.
#[must_use]
pub fn kernel_memory(path: &Path, address: u64) -> Option<u64> {
    let kcore = kcore::Kcore::open(path).ok()?;
    let (mut word, _) = ([0; 8], (kcore.page_offset(), kcore.image_phys(address)));
    kcore.read(model::GuestVirt(address), &mut word)?;
    Some(u64::from_le_bytes(word))
}

/// Records of the program that notes processes, between two walks over a kernel's memory: how many processes there were.
#[must_use]
pub fn log(records: &[&[u8]], before: Vec<Process>, page_offset: u64) -> usize {
    let image = |process: Process| api::guest::GuestImage {
        pid: process.pid,
        name: process.name,
        cr3: process.cr3,
        start_ns: Some(process.start_ns),
        ..api::guest::GuestImage::default()
    };
    let before: Vec<_> = before.into_iter().map(image).collect();
    let mut timeline = Timeline::begin(before.clone(), 1000);
    let mut reported = 0;
    for records in records.chunks(16) {
        let events = records.iter().filter_map(|record| program::parse(record, page_offset));
        timeline.follow(events.collect());
        reported += timeline.changes(1 << 12).len();
        assert!(timeline.kernel_threads(Vec::new()).len() <= MAX_OTHERS);
    }
    reported + timeline.end(before, u64::MAX).len()
}

/// The processes that a walk over a kernel's memory finds.
#[must_use]
pub fn processes(
    memory: &dyn KernelMemory,
    layout: &Layout,
    init_task: model::GuestVirt,
) -> Vec<Process> {
    walk(memory, layout, init_task, 0xffff_8880_0000_0000).processes
}
