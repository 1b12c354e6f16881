//! What processes of a guest chose, and its kernel says, as `vmscope-guest` reads it.

use guest::inside::fuzzing;
use linux::memory::KernelMemory;
use linux::tasks::Layout;
use model::GuestVirt;

use super::{MIB, Numbers, Target};

pub(super) fn targets() -> Vec<Target> {
    let target = |name, run, seeds| Target { longest: 1 << 16, ..Target::new(name, run, seeds) };
    vec![
        Target { budget: 256 * MIB, ..target("inside-elf", elf, seed_programs) },
        Target {
            words: &[b"task_struct\0", b"mm_struct\0", b"thread\0", b"fsbase\0", b"pid\0"],
            ..target("inside-btf", btf, Vec::new)
        },
        target("inside-kcore", kcore, || vec![seed_core()]),
        target("inside-log", log, || vec![seed_records()]),
        target("walk", walk, || vec![seed_kernel()]),
    ]
}

/// Where a drawn kernel has its fields, and its memory.
const LAYOUT: Layout = Layout {
    tasks: 0x10,
    flags: 0x70,
    stack: 0x78,
    pid: 0x20,
    tgid: 0x24,
    comm: 0x28,
    mm: 0x38,
    exit_state: 0x68,
    start_time: 0x40,
    fs_base: 0x48,
    signal: 0x50,
    thread_node: 0x58,
    thread_head: 0x8,
    pgd: 0x18,
};
pub(super) const BASE: u64 = 0xffff_8880_0000_0000;

/// An ELF file, read from memory as the vDSO is, and from a file.
fn elf(bytes: &[u8]) {
    let _ = (fuzzing::functions(bytes), fuzzing::build_id(&super::written("inside", bytes)));
}

fn btf(bytes: &[u8]) {
    let _ = fuzzing::layout(&super::written("btf", bytes));
}

/// The headers of `/proc/kcore`, and reads at whatever addresses come first.
fn kcore(bytes: &[u8]) {
    let path = super::written("kcore", bytes);
    let mut input = Numbers(bytes.get(64..).unwrap_or_default());
    for _ in 0..8 {
        let _ = fuzzing::kernel_memory(&path, input.u64());
    }
}

/// Records of the program that notes processes.
fn log(bytes: &[u8]) {
    const RECORD_BYTES: usize = 56;
    let records: Vec<&[u8]> = bytes.chunks(RECORD_BYTES).collect();
    let walked = fuzzing::processes(&Memory(bytes), &LAYOUT, GuestVirt(BASE));
    let reported = fuzzing::log(&records, walked, BASE);
    assert!(reported <= 4 * (bytes.len() + 1), "{reported}");
}

/// A kernel's memory, which changes while it is read, or is a hostile guest's.
pub(super) struct Memory<'a>(pub(super) &'a [u8]);

impl KernelMemory for Memory<'_> {
    fn read(&self, address: GuestVirt, buffer: &mut [u8]) -> Option<()> {
        let at = usize::try_from(address.0.checked_sub(BASE)?).ok()?;
        buffer.copy_from_slice(self.0.get(at..at.checked_add(buffer.len())?)?);
        Some(())
    }
}

fn walk(bytes: &[u8]) {
    let processes = fuzzing::processes(&Memory(bytes), &LAYOUT, GuestVirt(BASE));
    assert!(processes.len() <= bytes.len());
}

pub(super) fn seed_programs() -> Vec<Vec<u8>> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/elf");
    let files = std::fs::read_dir(folder).expect("it is in the repository").flatten();
    files.map(|file| std::fs::read(file.path()).expect("it is in the repository")).collect()
}

/// A core file of three ranges: RAM, virtual memory, the kernel's image.
fn seed_core() -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    bytes.extend([4_u16, 62].map(u16::to_le_bytes).concat());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend([0_u64, 64, 0].map(u64::to_le_bytes).concat());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend([64_u16, 56, 3, 0, 0, 0].map(u16::to_le_bytes).concat());
    let ranges = [(BASE, 0x1000), (0xffff_c900_0000_0000, 0), (0xffff_ffff_8100_0000, 0x20_0000)];
    for (virt, phys) in ranges {
        bytes.extend([1_u32, 7].map(u32::to_le_bytes).concat());
        bytes.extend([0x100_u64, virt, phys, 0x1000, 0x1000, 0].map(u64::to_le_bytes).concat());
    }
    bytes.resize(0x200, 0x55);
    bytes
}

/// A fork, an exec, an exit, and a kernel thread's exit.
fn seed_records() -> Vec<u8> {
    let record = |kind: u32| {
        let words = [1000 + u64::from(kind), BASE + 0x1_2000, 0x7f11].map(u64::to_ne_bytes);
        let halves = [kind, 7, 7, 1].map(u32::to_ne_bytes);
        [&words.concat()[..], &halves.concat(), b"cat\0garbage\0\0\0\0\0"].concat()
    };
    [1, 2, 3, 4].map(record).concat()
}

/// The first task and two processes, one of them with a second thread.
fn seed_kernel() -> Vec<u8> {
    const PAGE: usize = 0x400;
    let mut bytes = vec![0; 4 * PAGE];
    let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    let address = |page: usize, offset: u64| BASE + (page * PAGE) as u64 + offset;
    let mut ring = |nodes: &[u64]| {
        for (n, node) in nodes.iter().enumerate() {
            let at = usize::try_from(node - BASE).expect("it lies behind it");
            put(at, nodes[(n + 1) % nodes.len()]);
            put(at + 8, nodes[(n + nodes.len() - 1) % nodes.len()]);
        }
    };
    ring(&[0, 1, 2].map(|page| address(page, LAYOUT.tasks)));
    // Memory at 0x200 and signals at 0x300 of a process' page.
    ring(&[address(1, 0x300 + LAYOUT.thread_head), address(1, LAYOUT.thread_node)]);
    let threads = [address(2, LAYOUT.thread_node), address(3, LAYOUT.thread_node)];
    ring(&[address(2, 0x300 + LAYOUT.thread_head), threads[0], threads[1]]);
    for page in 1..4 {
        let field = |offset: u64| page * PAGE + usize::try_from(offset).unwrap_or(0);
        let tgid = if page == 3 { 2 } else { page };
        put(field(LAYOUT.pid), (tgid << 32 | page) as u64);
        put(field(LAYOUT.comm), u64::from_le_bytes(*b"process\0"));
        put(field(LAYOUT.mm), address(page, 0x200));
        put(field(0x200 + LAYOUT.pgd), address(page, 0));
        put(field(LAYOUT.signal), address(page, 0x300));
    }
    bytes
}
