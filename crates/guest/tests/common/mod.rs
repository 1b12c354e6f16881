//! Answers of an honest guest, for those that change them.

use api::guest::{
    FunctionSymbol, GuestImage, GuestKernel, GuestKernelThread, GuestMap, GuestMapping,
    GuestModule, GuestThread, KernelModule, KernelSymbol, ModuleSymbols, Response, TraceLost,
    TraceStackRow, TraceStarted, TraceStopped, TraceTaskRow, VERSION,
};

/// Eleven processes, four files, a kernel.
pub(crate) fn map() -> GuestMap {
    let symbol =
        |n: u64| KernelSymbol { address: 0xffff_ffff_8100_0000 + n * 16, name: format!("f{n}") };
    let module = |n: u8| GuestModule { path: format!("/lib/{n}.so"), build_id: vec![n; 20] };
    let image = |n: u32| GuestImage {
        id: n,
        pid: n,
        name: format!("process {n}"),
        cr3: u64::from(n) << 13,
        start_ns: n.is_multiple_of(3).then_some(5000),
        end_ns: n.is_multiple_of(5).then_some(9000),
        threads: (n..n + 3)
            .map(|tid| GuestThread { tid, name: "t".into(), fs_base: 0x7f00_0000 })
            .collect(),
        mappings: (0..4)
            .map(|m| {
                let start = 0x5000_0000 + u64::from(m) * 0x10000;
                GuestMapping { start, end: start + 0x8000, offset: 0x1000, module: m }
            })
            .collect(),
    };
    let kernel_thread = |tid: u32| GuestKernelThread {
        tid,
        name: format!("kworker/{tid}"),
        stack: 0xffff_c900_0000_0000 + u64::from(tid / 2) * 0x4000,
        start_ns: (!tid.is_multiple_of(2)).then_some(5000),
        end_ns: tid.is_multiple_of(2).then_some(4000),
    };
    GuestMap {
        version: VERSION,
        boot_id: "8b7b3c8e".into(),
        kernel_release: "6.1.0-56-cloud-amd64".into(),
        now_ns: 10_000,
        kernel: Some(GuestKernel {
            text_start: 0xffff_ffff_8100_0000,
            text_end: 0xffff_ffff_8200_0000,
            cr3: 0x1000_0000,
            symbols: (0..20).map(symbol).collect(),
            modules: vec![KernelModule {
                name: "virtio".into(),
                start: 0xffff_ffff_c000_0000,
                size: 0x4000,
            }],
        }),
        images: (1..12).map(image).collect(),
        kernel_threads: (0..8).map(kernel_thread).collect(),
        modules: (0..4).map(module).collect(),
        problems: vec!["one".into()],
        cpu_ns: 9,
    }
}

/// The functions of one file.
pub(crate) fn symbols() -> ModuleSymbols {
    let symbols = (0..50)
        .map(|n| FunctionSymbol { offset: n * 64, size: 32, name: format!("_ZN3fooI{n}E3barv") })
        .collect();
    ModuleSymbols { module: 1, symbols, ..ModuleSymbols::default() }
}

/// The begin and the end of a trace.
pub(crate) fn trace() -> [Response; 2] {
    let task = |tid: u32| TraceTaskRow {
        tid,
        pid: tid,
        parent: 1,
        name: format!("task {tid}"),
        kernel: false,
        asleep_in: Some("do_wait;kernel_wait4".into()),
    };
    let started = TraceStarted {
        kernel_release: "6.1.0".into(),
        cpus: vec![0, 1],
        slots_per_ring: 1024,
        rings: 2,
        head_pages: vec![77],
        slot_pages: (100..108).collect(),
        missing: vec![("a".into(), "b".into())],
        before: (1..9).map(task).collect(),
        after: (2..10).map(task).collect(),
        command: Some(9),
        ..TraceStarted::default()
    };
    let stack = |id| TraceStackRow { id, functions: vec![0, 1] };
    let stopped = TraceStopped {
        functions: vec!["schedule".into(), "do_wait".into()],
        stacks: (0..9).map(stack).collect(),
        disks: vec![(1 << 20, "vda".into())],
        lost: vec![TraceLost { ring: 1, counts: vec![0, 7] }],
        output: b"done\n".to_vec(),
        ..TraceStopped::default()
    };
    [Response::TraceStarted(Box::new(started)), Response::TraceStopped(Box::new(stopped))]
}
