//! The protocol's bytes, message by message: guests and hosts of one protocol version must agree whatever
//! vmscope version built them. If this golden file changes, `api::guest::VERSION` must change too.
//! `UPDATE=1 cargo test -p guest` rewrites it.

#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::path::Path;

use api::guest::{
    FunctionSymbol, GuestImage, GuestKernel, GuestKernelThread, GuestMap, GuestMapping,
    GuestModule, GuestThread, KernelModule, KernelSymbol, ModuleSymbols, Pace, Request, Response,
    VERSION,
};

fn requests() -> Vec<Request> {
    vec![
        Request::Hello { version: VERSION },
        Request::StartLog { pace: Pace::Low },
        Request::Snapshot,
        Request::Symbols { modules: vec![0, 300], pace: Pace::Prompt, largest_file: 1 << 20 },
        Request::Changes { pace: Pace::Low },
        Request::WindowEnd,
        Request::Ping { number: 300 },
        Request::CurrentTasks,
        Request::AddCode(vec![model::GuestCode {
            pid: 1,
            comm: *b"sh\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            ..model::GuestCode::default()
        }]),
    ]
}

fn responses() -> Vec<Response> {
    let map = GuestMap {
        version: VERSION,
        boot_id: "b".into(),
        kernel_release: "6.1".into(),
        now_ns: 1000,
        kernel: Some(GuestKernel {
            text_start: 0xffff_ffff_8100_0000,
            text_end: 0xffff_ffff_8200_0000,
            cr3: 0x1000,
            symbols: vec![KernelSymbol { address: 0xffff_ffff_8100_0000, name: "_stext".into() }],
            modules: vec![KernelModule { name: "m".into(), start: 1, size: 2 }],
        }),
        images: vec![GuestImage {
            id: 4,
            pid: 7,
            name: "p".into(),
            cr3: 0x2000,
            start_ns: Some(5),
            end_ns: None,
            threads: vec![GuestThread { tid: 8, name: "t".into(), fs_base: 9 }],
            mappings: vec![GuestMapping { start: 1, end: 2, offset: 3, module: 0 }],
        }],
        kernel_threads: vec![GuestKernelThread {
            tid: 9,
            name: "k".into(),
            stack: 0xffff_c900_0000_4000,
            start_ns: None,
            end_ns: Some(6),
        }],
        modules: vec![GuestModule { path: "/a".into(), build_id: vec![0xab, 0xcd] }],
        problems: vec!["x".into()],
        cpu_ns: 7,
    };
    let symbols = vec![FunctionSymbol { offset: 16, size: 4, name: "f".into() }];
    vec![
        Response::Hello { version: VERSION, now_ns: 1000 },
        Response::LogStarted { now_ns: 1000, problem: Some("x".into()) },
        Response::Map(Box::new(map)),
        Response::Symbols(vec![ModuleSymbols { module: 1, symbols, problem: None, cpu_ns: 7 }]),
        Response::Error("x".into()),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[test]
fn the_bytes_of_a_version_stay() {
    let mut text = format!("version {VERSION}\n");
    for request in requests() {
        let _ = writeln!(text, "{request:?}\n  {}", hex(&postcard::to_stdvec(&request).unwrap()));
    }
    for response in responses() {
        let _ = writeln!(text, "{response:?}\n  {}", hex(&guest::fuzzing::frame(&response)));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/guest/protocol.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "UPDATE=1 rewrites {path:?}");
}
