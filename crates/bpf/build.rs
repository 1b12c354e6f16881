//! Compiles bpf/*.bpf.c with clang. The crate embeds the objects.

use std::path::Path;
use std::process::Command;

/// Each is a program family with an object of its own.
const PROGRAMS: [&str; 10] = [
    "sampler",
    "switches",
    "exits",
    "kicks",
    "quotas",
    "vms",
    "empty",
    "tracer",
    "guest_processes",
    "layouts",
];

fn main() {
    let bpf = Path::new("../../bpf");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", bpf.display());
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = Path::new(&out);
    std::fs::write(out.join("trace_kinds.h"), model::slot_kinds_header())
        .expect("OUT_DIR can be written to");
    for program in PROGRAMS {
        compile(bpf, program, out);
    }
}

fn compile(bpf: &Path, program: &str, out: &Path) {
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    assert!(arch == "x86_64", "the BPF programs support x86-64 only, not {arch}");
    let source = bpf.join(format!("{program}.bpf.c"));
    let status = Command::new("clang")
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3"])
        .arg("-D__TARGET_ARCH_x86")
        // Debian keeps the kernel's headers of this architecture in the multiarch folder.
        .arg("-I/usr/include/x86_64-linux-gnu")
        .arg("-I")
        .arg(bpf)
        .arg("-I")
        .arg(out)
        .arg("-c")
        .arg(&source)
        .arg("-o")
        .arg(out.join(format!("{program}.bpf.o")))
        .status()
        .expect("clang is missing: install the packages clang and libbpf-dev");
    assert!(
        status.success(),
        "clang could not compile {} (is libbpf-dev installed?)",
        source.display()
    );
}
