//! Guest kernels with another timer frequency: built from Debian's source with one changed line, and kept in the cache.
//!
//! They are configured as Debian's own kernel is, without modules: what guests load is built in, and what guests never use is
//! left out, so that a build takes minutes. They have no BTF, so `vmscope-guest` has nothing to tell of them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cache::{Cache, Key};
use crate::error::Error;
use crate::kernel::{self, Kernel};
use crate::process;
use crate::progress::warn;

/// What the guests' modules are called in the kernel's configuration.
const BUILT_IN: &[&str] = &[
    "VIRTIO_PCI",
    "VIRTIO_CONSOLE",
    "VSOCKETS",
    "VIRTIO_VSOCKETS",
    "VIRTIO_BLK",
    "EXT4_FS",
    "OVERLAY_FS",
    "X86_MSR",
    "VIRTIO_NET",
];

/// What takes long to build, needs other tools or keys, and makes no difference to how a guest's timer runs.
const LEFT_OUT: &[&str] = &[
    "BPF_JIT",
    "CRASH_DUMP",
    "CXL_BUS",
    "DEBUG_INFO_DWARF_TOOLCHAIN_DEFAULT",
    "DRM",
    "EFI",
    "FB",
    "FTRACE",
    "HIBERNATION",
    "HID_SUPPORT",
    "HYPERV",
    "INTEGRITY",
    "IOMMU_SUPPORT",
    "IPV6",
    "KEXEC",
    "KPROBES",
    "MODULES",
    "MPTCP",
    "NETFILTER",
    "NETLABEL",
    "NET_SCHED",
    "NUMA",
    "SECURITY",
    "SUSPEND",
    "USB_SUPPORT",
    "VGA_ARB",
    "X86_MCE",
    "XEN",
    "XFRM",
];

/// Where the kernel's source has its timer frequencies.
const CHOICES: &str = "kernel/Kconfig.hz";

/// The kernel like `like` whose timer ticks `hz` times a second, from the cache.
pub(crate) fn with_timer(cache: &Cache, like: &Kernel, hz: u32) -> Result<Kernel, Error> {
    let file = like.root.join("boot").join(format!("config-{}", like.release));
    let config = fs::read_to_string(&file).map_err(Error::io("read", &file))?;
    let config = configure(&config, hz);
    let archive = source(cache, &like.release)?;
    let mut key = Key::new("built-kernel");
    key.add(archive.as_os_str().as_encoded_bytes()).add(config.as_bytes());
    let root = cache.folder(&key, |root| {
        warn(&format!(
            "building a guest kernel with a {hz} Hz timer: this takes some minutes, once"
        ));
        build(cache, &archive, &config, hz, root)
    })?;
    kernel::only_kernel(&root)
}

/// Debian's source of this release's version, as it is in its package.
fn source(cache: &Cache, release: &str) -> Result<PathBuf, Error> {
    let version: Vec<&str> = release.split('.').take(2).collect();
    let package = format!("linux-source-{}", version.join("."));
    let folder = kernel::unpacked_package(cache, "kernel-sources", &package, |_| Ok(()))?;
    Ok(folder.join("usr/src").join(format!("{package}.tar.xz")))
}

fn build(cache: &Cache, archive: &Path, config: &str, hz: u32, root: &Path) -> Result<(), Error> {
    for (program, package) in [("flex", "flex"), ("bison", "bison"), ("bc", "bc"), ("gcc", "gcc")] {
        process::tool(program, package)?;
    }
    let scratch = cache.scratch()?;
    let tree = scratch.path();
    let mut tar = process::tool("tar", "tar")?;
    process::run(tar.arg("-xf").arg(archive).arg("-C").arg(tree).arg("--strip-components=1"))?;
    let choices = tree.join(CHOICES);
    let text = fs::read_to_string(&choices).map_err(Error::io("read", &choices))?;
    let text = with_frequency(&text, hz)
        .ok_or_else(|| Error::NoKernel { wanted: format!("a timer of {hz} Hz") })?;
    write(&choices, &text)?;
    write(&tree.join(".config"), config)?;
    let make = |words: &[&str]| -> Result<(), Error> {
        let mut make = process::tool("make", "make")?;
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        make.arg("-C").arg(tree).args(["-s", &format!("-j{jobs}")]).args(words);
        process::run(&mut make).map(drop)
    };
    make(&["olddefconfig"])?;
    make(&["bzImage"])?;
    let release = tree.join("include/config/kernel.release");
    let release = fs::read_to_string(&release).map_err(Error::io("read", &release))?;
    let kernel = Kernel { release: release.trim().to_owned(), root: root.to_owned() };
    for folder in [root.join("boot"), kernel.modules()] {
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    }
    write(&kernel.modules().join("modules.dep"), "")?;
    for (made, to) in [
        ("modules.builtin", kernel.modules().join("modules.builtin")),
        ("arch/x86/boot/bzImage", kernel.image()),
    ] {
        let made = tree.join(made);
        fs::copy(&made, to).map_err(Error::io("copy", &made))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::io("write", path))
}

/// Debian's configuration without modules, and with what guests need.
fn configure(debian: &str, hz: u32) -> String {
    let is_set_here = |line: &str| {
        let name = line.split('=').next().unwrap_or(line).trim_start_matches("CONFIG_");
        BUILT_IN.contains(&name) || LEFT_OUT.contains(&name)
    };
    let mut config = String::new();
    for line in debian.lines().filter(|line| !is_set_here(line)) {
        match line.strip_suffix("=m") {
            // Without a word about it, it would become what the kernel's own defaults are.
            Some(name) => config += &format!("# {name} is not set\n"),
            None => config += &format!("{line}\n"),
        }
    }
    for name in BUILT_IN {
        config += &format!("CONFIG_{name}=y\n");
    }
    for name in LEFT_OUT {
        config += &format!("# CONFIG_{name} is not set\n");
    }
    config + &format!("CONFIG_DEBUG_INFO_NONE=y\nCONFIG_LOCALVERSION=\"-{hz}hz\"\n")
}

/// The source's frequencies with that of Debian's choice, 250, changed; `None`: the source has it in another form.
fn with_frequency(choices: &str, hz: u32) -> Option<String> {
    const CHOSEN: &str = "\tdefault 250 if HZ_250\n";
    choices
        .contains(CHOSEN)
        .then(|| choices.replace(CHOSEN, &format!("\tdefault {hz} if HZ_250\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_of_the_source_changes() {
        let choices = "config HZ\n\tint\n\tdefault 100 if HZ_100\n\tdefault 250 if HZ_250\n";
        let expected = "config HZ\n\tint\n\tdefault 100 if HZ_100\n\tdefault 17 if HZ_250\n";
        assert_eq!(with_frequency(choices, 17).as_deref(), Some(expected));
        assert_eq!(with_frequency("config HZ\n\tint\n", 17), None);
    }

    #[test]
    fn what_guests_load_is_built_in() {
        let debian = "CONFIG_HZ=250\nCONFIG_VIRTIO_NET=m\nCONFIG_E1000=m\n# CONFIG_DAMON is not set\n\
            CONFIG_MODULES=y\nCONFIG_SMP=y\n";
        let config = configure(debian, 100);
        let has = |line: &str| config.lines().filter(|other| *other == line).count();
        for line in [
            "CONFIG_VIRTIO_NET=y",
            "# CONFIG_E1000 is not set",
            "# CONFIG_DAMON is not set",
            "# CONFIG_MODULES is not set",
            "CONFIG_SMP=y",
            "CONFIG_LOCALVERSION=\"-100hz\"",
        ] {
            assert_eq!(has(line), 1, "{line}\n{config}");
        }
        assert_eq!(has("CONFIG_VIRTIO_NET=m") + has("CONFIG_MODULES=y"), 0);
    }
}
