//! Compiles bpf/*.bpf.c with clang; the objects are embedded in the crate.

use std::path::Path;
use std::process::Command;

fn main() {
    let bpf = Path::new("../../bpf");
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    for source in ["sampler.bpf.c", "kernel.bpf.h", "abi/sample.h"] {
        println!("cargo::rerun-if-changed={}", bpf.join(source).display());
    }
    let target = match arch.as_str() {
        "x86_64" => "x86",
        other => panic!("the sampler does not know the CPU architecture {other} yet"),
    };
    let status = Command::new("clang")
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3"])
        .arg(format!("-D__TARGET_ARCH_{target}"))
        // The kernel's headers of this architecture lie in the multiarch folder on Debian.
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .arg("-I")
        .arg(bpf)
        .arg("-c")
        .arg(bpf.join("sampler.bpf.c"))
        .arg("-o")
        .arg(Path::new(&out).join("sampler.bpf.o"))
        .status()
        .expect("clang is missing: install the packages clang and libbpf-dev");
    assert!(
        status.success(),
        "clang could not compile bpf/sampler.bpf.c (is libbpf-dev installed?)"
    );
}
