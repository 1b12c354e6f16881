//! With the feature `inside`: compiles the guest's process log with clang; the object is embedded.

use std::path::Path;
use std::process::Command;

fn main() {
    let bpf = Path::new("../../bpf");
    println!("cargo::rerun-if-changed=../../bpf/guest_processes.bpf.c");
    println!("cargo::rerun-if-changed=../../bpf/abi/guest_process.h");
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_INSIDE").is_none() {
        return;
    }
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    let status = Command::new("clang")
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3"])
        // The kernel's headers of this architecture lie in the multiarch folder on Debian.
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .arg("-I")
        .arg(bpf)
        .arg("-c")
        .arg(bpf.join("guest_processes.bpf.c"))
        .arg("-o")
        .arg(Path::new(&out).join("guest_processes.bpf.o"))
        .status()
        .expect("clang is missing: install the packages clang and libbpf-dev");
    assert!(
        status.success(),
        "clang could not compile bpf/guest_processes.bpf.c (is libbpf-dev installed?)"
    );
}
