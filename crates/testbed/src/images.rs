//! What is booted: the initial RAM file systems of the virtual host and of the guests.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::cache::{Cache, Key};
use crate::error::Error;
use crate::initramfs::{Archive, unpacked_module};
use crate::kernel::Kernel;
use crate::libraries;
use crate::process;
use crate::scenario::HostCpu;
use crate::workload;

/// What the virtual host needs before it has this machine's root.
const HOST_MODULES: &[&str] = &["virtio_pci", "virtio_console", "9p", "9pnet_virtio", "overlay"];
/// What an Intel host needs before it has its root: its disks are ATA ones.
const INTEL_HOST_MODULES: &[&str] = &["ata_piix", "sd_mod", "ext4", "overlay"];
/// What an Intel host may load later.
const INTEL_ROOT_MODULES: &[&str] = &["kvm_intel", "vhost_vsock", "tun", "msr"];
/// Packages of this machine whose files an Intel host has.
const INTEL_ROOT_PACKAGES: &[&str] = &[
    "base-files",
    "bash",
    "busybox-static",
    "coreutils",
    "dash",
    "diffutils",
    "findutils",
    "grep",
    "gzip",
    "iproute2",
    "kmod",
    "libc-bin",
    "mawk",
    "procps",
    "qemu-system-data",
    "qemu-system-x86",
    "seabios",
    "sed",
    "socat",
    "tar",
    "util-linux",
];
/// Further files.
const INTEL_ROOT_FILES: &[&str] =
    &["/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts", "/etc/ld.so.cache"];
/// Folders of packages that no program reads.
const UNREAD: &[&str] = &[
    "/usr/share/bash-completion",
    "/usr/share/doc",
    "/usr/share/info",
    "/usr/share/lintian",
    "/usr/share/locale",
    "/usr/share/man",
];
/// What a guest needs. Those of the list's second half only matter to guests with a root of their own.
const GUEST_MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "vmw_vsock_virtio_transport",
    "virtio_blk",
    "ext4",
    "overlay",
    "msr",
    "virtio_net",
];
/// What a microvm needs. Each module takes its time there.
const MICROVM_MODULES: &[&str] = &[
    "virtio_mmio",
    "virtio_console",
    "vmw_vsock_virtio_transport",
    "virtio_blk",
    "ext4",
    "overlay",
    "msr",
];

/// What goes into a guest's image besides the kernel's modules.
#[derive(Debug, Clone)]
pub(crate) struct GuestContent<'a> {
    /// The folder of the built-in workloads.
    pub(crate) workloads: &'a Path,
    /// The guest command, if it is built.
    pub(crate) agent: Option<&'a Path>,
    /// Programs of this machine that scenarios name by path.
    pub(crate) programs: BTreeSet<&'a str>,
    pub(crate) is_microvm: bool,
    /// Further modules of the kernel.
    pub(crate) modules: &'a [String],
}

/// The virtual host's image, from the cache.
pub(crate) fn host(cache: &Cache, kernel: &Kernel, cpu: HostCpu) -> Result<PathBuf, Error> {
    let mut archive = base("/init", include_str!("scripts/host-init.sh"))?;
    for folder in ["lower", "layer", "root"] {
        archive.folder(folder);
    }
    let modules = match cpu {
        HostCpu::Amd => HOST_MODULES,
        HostCpu::Intel => INTEL_HOST_MODULES,
    };
    add_modules(&mut archive, kernel, modules)?;
    store(cache, "host-image", &archive)
}

/// The disk with an Intel host's root, from the cache: programs of this machine, and further files that are `needed`.
pub(crate) fn intel_root(
    cache: &Cache,
    kernel: &Kernel,
    needed: &BTreeSet<PathBuf>,
) -> Result<PathBuf, Error> {
    let installed = process::run(process::tool("dpkg-query", "dpkg")?.arg("-W"))?;
    let mut key = Key::new("intel-root");
    key.add(&installed).add(kernel.root.as_os_str().as_encoded_bytes());
    for word in [INTEL_ROOT_PACKAGES, INTEL_ROOT_MODULES, INTEL_ROOT_FILES].concat() {
        key.add(word.as_bytes());
    }
    for path in needed {
        key.add(path.as_os_str().as_encoded_bytes());
    }
    let folder = cache.folder(&key, |folder| {
        let root = folder.join("root");
        intel_root_folder(&root, kernel, needed.clone())?;
        process::disk(&root, &folder.join("root.img"))?;
        fs::remove_dir_all(&root).map_err(Error::io("remove", &root))
    })?;
    Ok(folder.join("root.img"))
}

fn intel_root_folder(
    root: &Path,
    kernel: &Kernel,
    mut needed: BTreeSet<PathBuf>,
) -> Result<(), Error> {
    for folder in ["dev", "etc", "proc", "sys", "run", "tmp", "root", "var/tmp", "usr/bin"] {
        let folder = root.join(folder);
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        // On today's Debian they lie in /usr.
        if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
            let place = root.join(&target);
            fs::create_dir_all(&place).map_err(Error::io("create", &place))?;
            link_into(root, &target, Path::new(name))?;
        }
    }
    let mut dpkg = process::tool("dpkg-query", "dpkg")?;
    let listed = process::run(dpkg.arg("-L").args(INTEL_ROOT_PACKAGES))?;
    let listed = String::from_utf8_lossy(&listed).into_owned();
    let files: BTreeSet<&Path> = (listed.lines().map(Path::new))
        .chain(INTEL_ROOT_FILES.iter().map(Path::new))
        .filter(|path| !UNREAD.iter().any(|folder| path.starts_with(folder)))
        .filter(|path| path.symlink_metadata().is_ok_and(|metadata| !metadata.is_dir()))
        .collect();
    for file in files.iter().filter(|file| file.is_file()) {
        needed.extend(libraries::list(file)?);
    }
    for file in &files {
        match fs::read_link(file) {
            Ok(target) => link_into(root, &target, file)?,
            Err(_) => copy_into(root, file)?,
        }
    }
    needed.iter().try_for_each(|file| copy_into(root, file))?;
    for applet in applets()? {
        if !root.join("usr/sbin").join(&applet).exists() {
            link_into(root, Path::new("/bin/busybox"), &Path::new("/usr/bin").join(&applet))?;
        }
    }
    install_modules(root, kernel)
}

/// Copies a file of this machine to its place below `root`.
fn copy_into(root: &Path, file: &Path) -> Result<(), Error> {
    let place = make_place(root, file)?;
    fs::copy(file, &place).map(drop).map_err(Error::io("copy", file))
}

/// Makes a symbolic link below `root`, unless there is something already.
fn link_into(root: &Path, target: &Path, file: &Path) -> Result<(), Error> {
    let place = make_place(root, file)?;
    if place.symlink_metadata().is_ok() {
        return Ok(());
    }
    symlink(target, &place).map_err(Error::io("create", &place))
}

fn make_place(root: &Path, file: &Path) -> Result<PathBuf, Error> {
    let place = root.join(file.strip_prefix("/").unwrap_or(file));
    let folder = place.parent().unwrap_or(root);
    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    Ok(place)
}

/// Unpacked: the host's kernel is slow.
fn install_modules(root: &Path, kernel: &Kernel) -> Result<(), Error> {
    let folder = root.join("lib/modules").join(&kernel.release);
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    for file in kernel.module_files(INTEL_ROOT_MODULES)? {
        let (name, content) = unpacked_module(&file)?;
        let place = folder.join(name);
        fs::write(&place, content).map_err(Error::io("write", &place))?;
    }
    for name in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        let from = kernel.modules().join(name);
        fs::copy(&from, folder.join(name)).map_err(Error::io("copy", &from))?;
    }
    let mut depmod = process::tool("depmod", "kmod")?;
    process::run(depmod.arg("-b").arg(root).arg(&kernel.release)).map(drop)
}

/// A guest's image, from the cache.
pub(crate) fn guest(
    cache: &Cache,
    kernel: &Kernel,
    content: &GuestContent<'_>,
) -> Result<PathBuf, Error> {
    store(cache, "guest-image", &guest_archive(kernel, content)?)
}

fn guest_archive(kernel: &Kernel, content: &GuestContent<'_>) -> Result<Archive, Error> {
    let mut archive = base("/init", include_str!("scripts/guest-init.sh"))?;
    archive.program("/testbed/start", include_str!("scripts/guest-start.sh"));
    archive.link("/testbed/busybox", "../bin/busybox");
    archive.file(
        "/etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    );
    archive.file("/etc/group", "root:x:0:\nnogroup:x:65534:\n");
    for folder in ["root", "run", "var/run", "usr/sbin"] {
        archive.folder(folder);
    }
    let modules = if content.is_microvm { MICROVM_MODULES } else { GUEST_MODULES };
    let more = content.modules.iter().map(String::as_str);
    let modules: Vec<&str> = modules.iter().copied().chain(more).collect();
    add_modules(&mut archive, kernel, &modules)?;
    for name in workload::files() {
        add_program(
            &mut archive,
            &format!("/usr/local/bin/{name}"),
            content,
            &content.workloads.join(name),
        )?;
    }
    for path in &content.programs {
        add_program(&mut archive, path, content, Path::new(path))?;
    }
    if let Some(agent) = content.agent {
        add_program(&mut archive, "/usr/bin/vmscope-guest", content, agent)?;
    }
    Ok(archive)
}

fn base(init: &str, script: &str) -> Result<Archive, Error> {
    let missing = || Error::Missing { program: "busybox".to_owned(), package: "busybox-static" };
    let busybox = process::find("busybox").ok_or_else(missing)?;
    if !libraries::list(&busybox)?.is_empty() {
        return Err(missing());
    }
    let mut archive = Archive::default();
    for folder in ["dev", "proc", "sys", "tmp"] {
        archive.folder(folder);
    }
    archive.copy_program("/bin/busybox", &busybox)?;
    for applet in applets()? {
        archive.link(&format!("/bin/{applet}"), "busybox");
    }
    archive.program(init, script);
    Ok(archive)
}

fn applets() -> Result<Vec<String>, Error> {
    let listed = process::run(process::tool("busybox", "busybox-static")?.arg("--list"))?;
    let names = String::from_utf8_lossy(&listed).lines().map(str::to_owned).collect::<Vec<_>>();
    Ok(names.into_iter().filter(|name| name != "busybox").collect())
}

fn add_modules(archive: &mut Archive, kernel: &Kernel, names: &[&str]) -> Result<(), Error> {
    for (number, file) in kernel.module_files(names)?.iter().enumerate() {
        archive.copy_module("/modules", number, file)?;
    }
    Ok(())
}

/// Adds a program and its libraries under the names the loader looks for; the workloads' own library
/// is there already.
fn add_program(
    archive: &mut Archive,
    path: &str,
    content: &GuestContent<'_>,
    from: &Path,
) -> Result<(), Error> {
    archive.copy_program(path, from)?;
    for library in libraries::list(from)? {
        if library.parent() != Some(content.workloads) {
            archive.copy_program(&library.display().to_string(), &library)?;
        }
    }
    Ok(())
}

fn store(cache: &Cache, kind: &'static str, archive: &Archive) -> Result<PathBuf, Error> {
    let bytes = archive.bytes();
    let mut key = Key::new(kind);
    key.add(&bytes);
    let folder = cache.folder(&key, |folder| {
        let path = folder.join("initrd");
        std::fs::write(&path, &bytes).map_err(Error::io("write", &path))
    })?;
    Ok(folder.join("initrd"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    /// A kernel and workloads that are names only.
    fn fake(folder: &Path) -> (Kernel, PathBuf) {
        let kernel = Kernel { release: "6.1.0-0-amd64".to_owned(), root: folder.join("kernel") };
        let modules = kernel.modules();
        fs::create_dir_all(modules.join("kernel")).unwrap();
        let mut dependencies = String::new();
        for name in GUEST_MODULES.iter().filter(|name| **name != "ext4") {
            fs::write(modules.join(format!("kernel/{name}.ko")), "").unwrap();
            dependencies += &format!("kernel/{name}.ko:\n");
        }
        fs::write(modules.join("modules.dep"), dependencies).unwrap();
        fs::write(modules.join("modules.builtin"), "kernel/fs/ext4/ext4.ko\n").unwrap();
        let workloads = folder.join("workloads");
        fs::create_dir(&workloads).unwrap();
        for name in workload::files() {
            fs::write(workloads.join(name), "").unwrap();
        }
        (kernel, workloads)
    }

    #[test]
    fn content_of_a_guest() {
        if process::find("busybox").is_none() {
            return skip::skip("busybox is not installed");
        }
        let folder = tempfile::tempdir().unwrap();
        let (kernel, workloads) = fake(folder.path());
        let agent = workloads.join("idle");
        let content = GuestContent {
            workloads: &workloads,
            agent: Some(&agent),
            programs: BTreeSet::new(),
            is_microvm: false,
            modules: &[],
        };
        let listing = guest_archive(&kernel, &content).unwrap().listing();
        let own: Vec<_> = listing.lines().filter(|line| !line.ends_with(" -> busybox")).collect();
        golden::check("guest-image.txt", &(own.join("\n") + "\n"));
        assert!(listing.contains("bin/top -> busybox\n"));
    }
}
