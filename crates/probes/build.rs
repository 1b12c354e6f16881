//! Compiles bpf/*.bpf.c with clang; the objects are embedded in the crate.

use std::path::Path;
use std::process::Command;

/// Each is a program family, loaded by itself.
const PROGRAMS: [&str; 6] = ["sampler", "switches", "exits", "vms", "marks", "empty"];
const HEADERS: [&str; 7] = [
    "kernel.bpf.h",
    "registers.bpf.h",
    "vcpu.bpf.h",
    "vmcb.bpf.h",
    "abi/sample.h",
    "abi/switch.h",
    "abi/vm.h",
];

fn main() {
    let bpf = Path::new("../../bpf");
    for header in HEADERS {
        println!("cargo::rerun-if-changed={}", bpf.join(header).display());
    }
    for program in PROGRAMS {
        compile(bpf, program);
    }
}

fn compile(bpf: &Path, program: &str) {
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    let target = match arch.as_str() {
        "x86_64" => "x86",
        other => panic!("the programs do not know the CPU architecture {other} yet"),
    };
    let source = bpf.join(format!("{program}.bpf.c"));
    println!("cargo::rerun-if-changed={}", source.display());
    let status = Command::new("clang")
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3"])
        .arg(format!("-D__TARGET_ARCH_{target}"))
        // The kernel's headers of this architecture lie in the multiarch folder on Debian.
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .arg("-I")
        .arg(bpf)
        .arg("-c")
        .arg(&source)
        .arg("-o")
        .arg(Path::new(&out).join(format!("{program}.bpf.o")))
        .status()
        .expect("clang is missing: install the packages clang and libbpf-dev");
    assert!(
        status.success(),
        "clang could not compile {} (is libbpf-dev installed?)",
        source.display()
    );
}
