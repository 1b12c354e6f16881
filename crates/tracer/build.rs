//! Compiles bpf/tracer.bpf.c with clang; the object is embedded in the crate.

use std::path::Path;
use std::process::Command;

const SOURCES: [&str; 9] = [
    "tracer.bpf.c",
    "trace_kernel.bpf.h",
    "trace_ring.bpf.h",
    "trace_filter.bpf.h",
    "trace_stack.bpf.h",
    "trace_disks.bpf.h",
    "trace_locks.bpf.h",
    "kernel.bpf.h",
    "abi/trace.h",
];

fn main() {
    let bpf = Path::new("../../bpf");
    println!("cargo::rerun-if-changed=build.rs");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", bpf.join(source).display());
    }
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    let target = match arch.as_str() {
        "x86_64" => "x86",
        other => panic!("the trace probes do not know the CPU architecture {other} yet"),
    };
    let status = Command::new("clang")
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3"])
        .arg(format!("-D__TARGET_ARCH_{target}"))
        // The kernel's headers of this architecture lie in the multiarch folder on Debian.
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .arg("-I")
        .arg(bpf)
        .arg("-c")
        .arg(bpf.join("tracer.bpf.c"))
        .arg("-o")
        .arg(Path::new(&out).join("tracer.bpf.o"))
        .status()
        .expect("clang is missing: install the packages clang and libbpf-dev");
    assert!(
        status.success(),
        "clang could not compile bpf/tracer.bpf.c (is libbpf-dev installed?)"
    );
}
