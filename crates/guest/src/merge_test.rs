//! Guests' claims, and what of them reaches the tables.

use api::guest::{GuestKernelThread, GuestThread, KernelModule, KernelSymbol};
use model::{Guest, Vm};

use super::*;

const TEXT: u64 = 0xffff_ffff_8100_0000;
const MODULE: u64 = 0xffff_ffff_c000_0000;

fn tables() -> Tables {
    let vm = |name: &str| Vm {
        name: name.into(),
        pid: Pid(1),
        started: None,
        ended: None,
        labels: model::VmLabels::default(),
        guest: Guest::Unmapped { reason: String::new() },
    };
    Tables { vms: vec![vm("other"), vm("vm1")], ..Tables::default() }
}

fn kernel() -> GuestKernel {
    GuestKernel { text_start: TEXT, text_end: TEXT + 0x1000, ..GuestKernel::default() }
}

fn image(pid: u32, cr3: u64, start_ns: Option<u64>, end_ns: Option<u64>) -> GuestImage {
    let name = format!("p{pid}");
    GuestImage {
        id: 0,
        pid,
        name,
        cr3,
        start_ns,
        end_ns,
        threads: Vec::new(),
        mappings: Vec::new(),
    }
}

fn mapping(start: u64, end: u64, module: u32) -> GuestMapping {
    GuestMapping { start, end, offset: 0x1000, module }
}

fn add(map: GuestMap) -> (Tables, Merged) {
    add_of(MapSpan::default(), map)
}

fn add_of(span: MapSpan, map: GuestMap) -> (Tables, Merged) {
    let mut tables = tables();
    let clock = Clock { host_minus_guest_ns: 1000, error_ns: 1 };
    let merged = merge(map.into(), VmId(1), clock, span, SampleKey::PageTables, &mut tables);
    (tables, merged)
}

/// The processes that reach the tables as `pid start..end`, and the notes.
fn check_images(images: Vec<GuestImage>, expected: &[&str], notes: &[&str]) {
    let (tables, merged) = add(GuestMap { kernel: Some(kernel()), images, ..GuestMap::default() });
    let time = |time: Option<HostNs>| time.map_or("-".into(), |time| time.0.to_string());
    let processes = tables.images.iter().filter(|image| image.kind == ImageKind::Process);
    let drawn: Vec<String> =
        processes.map(|i| format!("{} {}..{}", i.pid, time(i.start), time(i.end))).collect();
    assert_eq!(drawn, expected);
    let texts: Vec<&str> = merged.notes.iter().map(|note| &*note.text).collect();
    assert_eq!(texts, notes);
}

#[test]
fn a_good_map_becomes_rows() {
    let map = GuestMap {
        kernel_release: "6.1.0".into(),
        kernel: Some(GuestKernel {
            cr3: 0x5000_1000,
            symbols: vec![
                KernelSymbol { address: TEXT + 0x10, name: "schedule".into() },
                KernelSymbol { address: TEXT, name: "_stext".into() },
                KernelSymbol { address: TEXT + 0x10, name: "alias".into() },
            ],
            modules: vec![KernelModule { name: "virtio".into(), start: MODULE, size: 0x2000 }],
            ..kernel()
        }),
        images: vec![GuestImage {
            threads: vec![
                GuestThread { tid: 7, name: "main".into(), fs_base: 0x7f00 },
                GuestThread { tid: 8, name: "io".into(), fs_base: 0 },
            ],
            mappings: vec![mapping(0x4000, 0x5000, 1), mapping(0x1000, 0x2000, 0)],
            ..image(7, 0x1234_5003, Some(5), None)
        }],
        modules: vec![
            GuestModule { path: "/bin/db".into(), build_id: vec![1; 20] },
            GuestModule { path: "vdso".into(), build_id: Vec::new() },
        ],
        ..GuestMap::default()
    };
    let (tables, merged) = add(map);

    assert_eq!(merged.notes, []);
    assert_eq!(tables.images.len(), 2);
    let kernel = &tables.images[merged.kernel.index()];
    assert_eq!((kernel.kind, &*kernel.name), (ImageKind::Kernel, "6.1.0"));
    assert_eq!(kernel.cr3, Some(Cr3::new(0x5000_0000)));
    let process = &tables.images[1];
    assert_eq!((process.pid, process.cr3), (Pid(7), Some(Cr3::new(0x1234_4000))));
    assert_eq!((process.start, process.end), (Some(HostNs(1005)), None));
    let paths: Vec<_> = tables.modules.iter().map(|module| &*module.path).collect();
    assert_eq!(paths, ["[kernel]", "[virtio]", "/bin/db", "[vdso]"]);
    assert_eq!(merged.modules, [ModuleId(2), ModuleId(3)]);
    let mappings: Vec<_> =
        tables.mappings.iter().map(|m| (m.image.0, m.start, m.end, m.offset, m.module.0)).collect();
    assert_eq!(
        mappings,
        [
            (0, TEXT, TEXT + 0x1000, 0, 0),
            (0, MODULE, MODULE + 0x2000, 0, 1),
            (1, 0x1000, 0x2000, 0x1000, 2),
            (1, 0x4000, 0x5000, 0x1000, 3),
        ]
    );
    let fs_bases: Vec<_> = tables.threads.iter().map(|thread| thread.fs_base).collect();
    assert_eq!(fs_bases, [Some(GuestVirt(0x7f00)), None]);
    let functions: Vec<_> =
        merged.functions.iter().map(|(address, name)| (*address, &**name)).collect();
    assert_eq!(functions, [(TEXT, "_stext"), (TEXT + 0x10, "schedule")]);
}

#[test]
fn page_tables_stand_for_one_process_at_a_time() {
    let same_time = "1 processes with another's page tables at the same time left out";
    check_images(
        vec![
            image(3, 0xa000, Some(50), None),
            image(1, 0xa000, None, Some(20)),
            image(2, 0xa000, Some(20), Some(40)),
        ],
        &["1 -..1020", "2 1020..1040", "3 1050..-"],
        &[],
    );
    check_images(
        vec![image(1, 0xa000, None, None), image(2, 0xa000, Some(20), None)],
        &["1 -..-"],
        &[same_time],
    );
    check_images(
        vec![image(1, 0xa000, None, Some(30)), image(2, 0xa000, Some(20), None)],
        &["1 -..1030"],
        &[same_time],
    );
}

#[test]
fn processes_that_cannot_be_are_left_out() {
    check_images(
        vec![
            image(0, 0xa000, None, None),
            image(1, 0xfff, None, None),
            image(u32::MAX, 0xa000, None, None),
            image(2, 0xa000, Some(30), Some(20)),
            image(3, 0xc000, Some(u64::MAX), None),
        ],
        &["3 4611686018427387903..-"],
        &[
            "1 processes that end before they start left out",
            "3 processes without page tables or id left out",
        ],
    );
}

#[test]
fn kernel_threads_become_images_with_a_stack() {
    const STACK: u64 = 0xffff_c900_0012_c000;
    let thread = |tid, stack, start_ns, end_ns| GuestKernelThread {
        tid,
        name: format!("k{tid}\n"),
        stack,
        start_ns,
        end_ns,
    };
    let kernel_threads = vec![
        thread(0, STACK + 0x4000, None, None), // an idle task
        thread(9, STACK, Some(60), None),
        thread(8, STACK, None, Some(50)),
        thread(10, STACK, Some(70), None), // on 9's stack
        thread(11, STACK + 0x8000, Some(70), Some(60)), // backwards
        thread(12, STACK + 0xc008, None, None), // no stack begins there
        thread(13, 0x4000, None, None),    // in user memory
        thread(1 << 23, STACK + 0x1_0000, None, None), // no such id
    ];
    let (tables, merged) =
        add(GuestMap { kernel: Some(kernel()), kernel_threads, ..GuestMap::default() });
    let images: Vec<_> = tables.images[1..]
        .iter()
        .map(|i| (i.pid.0, &*i.name, i.kernel_stack.unwrap().0, i.start, i.end))
        .collect();
    assert_eq!(
        images,
        [
            (8, "[k8\\u{a}]", 0x2400_004b, None, Some(HostNs(1050))),
            (9, "[k9\\u{a}]", 0x2400_004b, Some(HostNs(1060)), None),
            (0, "[k0\\u{a}]", 0x2400_004c, None, None),
        ]
    );
    let threads: Vec<_> =
        tables.threads.iter().map(|thread| (thread.image.0, thread.tid.0)).collect();
    assert_eq!(threads, [(1, 8), (2, 9), (3, 0)]);
    let notes: Vec<&str> = merged.notes.iter().map(|note| &*note.text).collect();
    assert_eq!(
        notes,
        [
            "2 kernel threads on another's stack at the same time left out",
            "3 kernel threads without stack or id left out",
        ]
    );
}

#[test]
fn tasks_may_have_had_the_same_page_tables() {
    let images = vec![image(1, 0xa000, None, None), image(2, 0xa000, Some(20), Some(21))];
    let mut tables = tables();
    let map = GuestMap { kernel: Some(kernel()), images, ..GuestMap::default() };
    let clock = Clock { host_minus_guest_ns: 1000, error_ns: 1 };
    let merged =
        merge(map.into(), VmId(1), clock, MapSpan::default(), SampleKey::Task, &mut tables);
    assert_eq!(merged.notes, []);
    let pids = tables.images.iter().map(|image| image.pid.0);
    assert_eq!(pids.collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn mappings_that_cannot_be_are_left_out() {
    let mappings = vec![
        mapping(0x1000, 0x3000, 0),
        mapping(0x2000, 0x4000, 0),      // overlaps
        mapping(0x5000, 0x5000, 0),      // empty
        mapping(0x7000, 0x6000, 0),      // backwards
        mapping(0x8000, TEXT, 0),        // into the kernel
        mapping(TEXT, TEXT + 0x1000, 0), // of the kernel
        mapping(0x9000, 0xa000, 1),      // no such module
        GuestMapping { offset: u64::MAX - 5, ..mapping(0xb000, 0xc000, 0) },
    ];
    let images = vec![GuestImage { mappings, ..image(1, 0xa000, None, None) }];
    let modules = vec![GuestModule { path: "/a".into(), build_id: Vec::new() }];
    let (tables, merged) =
        add(GuestMap { kernel: Some(kernel()), images, modules, ..GuestMap::default() });
    let user: Vec<_> = tables.mappings[1..].iter().map(|m| (m.start, m.end)).collect();
    assert_eq!(user, [(0x1000, 0x3000)]);
    assert_eq!(merged.notes[0].text, "7 mappings that are invalid or over the limit left out");
    assert_eq!(merged.notes[0].subject, "vm1");
}

#[test]
fn kernel_ranges_that_cannot_be_are_left_out() {
    let module = |start, size| KernelModule { name: "m".into(), start, size };
    let modules = vec![
        module(TEXT + 0x100, 0x100),   // in the kernel's text
        module(MODULE, 0x3000),        // good
        module(MODULE + 0x1000, 0x10), // in the one before
        module(0x1000, 0x1000),        // user memory
        module(MODULE + 0x9000, u64::MAX),
    ];
    let symbols = vec![
        KernelSymbol { address: 0x1000, name: "user".into() },
        KernelSymbol { address: TEXT, name: "a\x07b".into() },
    ];
    let kernel = GuestKernel { modules, symbols, ..kernel() };
    let (tables, merged) = add(GuestMap { kernel: Some(kernel), ..GuestMap::default() });
    let ranges: Vec<_> = tables.mappings.iter().map(|m| m.start).collect();
    assert_eq!(ranges, [TEXT, MODULE]);
    let names: Vec<_> = merged.functions.iter().map(|(_, name)| &**name).collect();
    assert_eq!(names, ["a\\u{7}b"]);

    let (tables, _) = add(GuestMap::default());
    assert!(tables.mappings.is_empty());
    assert_eq!(tables.images.len(), 1);
}

#[test]
fn notes_are_bounded_and_clean() {
    let problems = (0..100).map(|n| format!("{n}\n{}", "x".repeat(5000))).collect();
    let (_, merged) = add(GuestMap { kernel: Some(kernel()), problems, ..GuestMap::default() });
    assert_eq!(merged.notes.len(), MAX_NOTES);
    assert!(merged.notes.iter().all(|note| note.text.chars().count() <= MAX_NOTE + 10));
    assert!(merged.notes[0].text.starts_with("0\\u{a}xxx"));
}

#[test]
fn a_boots_map_counts_from_that_boot_to_the_next() {
    let span = MapSpan { from: Some(HostNs(2000)), until: Some(HostNs(3000)) };
    let images = vec![
        image(1, 0xa000, None, None),
        image(2, 0xc000, Some(1500), Some(1600)),
        image(3, 0xe000, Some(500), Some(9000)),
    ];
    let map = GuestMap { kernel: Some(kernel()), images, ..GuestMap::default() };
    let (tables, _) = add_of(span, map);
    let times: Vec<_> =
        tables.images.iter().map(|image| (image.start.unwrap().0, image.end.unwrap().0)).collect();
    assert_eq!(times, [(2000, 3000), (2000, 3000), (2500, 2600), (2000, 3000)]);
}
