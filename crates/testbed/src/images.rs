//! What is booted: the initial RAM file systems of the virtual host and of the guests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::cache::{Cache, Key};
use crate::error::Error;
use crate::initramfs::Archive;
use crate::kernel::Kernel;
use crate::libraries;
use crate::process;
use crate::workload;

/// What the virtual host needs before it has this machine's root.
const HOST_MODULES: &[&str] = &["virtio_pci", "virtio_console", "9p", "9pnet_virtio", "overlay"];
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

/// What goes into a guest's image besides the kernel's modules.
#[derive(Debug, Clone)]
pub(crate) struct GuestContent<'a> {
    /// The folder of the built-in workloads.
    pub(crate) workloads: &'a Path,
    /// The guest command, if it is built.
    pub(crate) agent: Option<&'a Path>,
    /// Programs of this machine that scenarios name by path.
    pub(crate) programs: BTreeSet<&'a str>,
}

/// The virtual host's image, from the cache.
pub(crate) fn host(cache: &Cache, kernel: &Kernel) -> Result<PathBuf, Error> {
    let mut archive = base("/init", include_str!("scripts/host-init.sh"))?;
    for folder in ["lower", "layer", "root"] {
        archive.folder(folder);
    }
    add_modules(&mut archive, kernel, HOST_MODULES)?;
    store(cache, "host-image", &archive)
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
    add_modules(&mut archive, kernel, GUEST_MODULES)?;
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
    let applets = process::run(std::process::Command::new(&busybox).arg("--list"))?;
    for applet in String::from_utf8_lossy(&applets).lines().filter(|name| *name != "busybox") {
        archive.link(&format!("/bin/{applet}"), "busybox");
    }
    archive.program(init, script);
    Ok(archive)
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
    use std::fs;

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
        let content =
            GuestContent { workloads: &workloads, agent: Some(&agent), programs: BTreeSet::new() };
        let listing = guest_archive(&kernel, &content).unwrap().listing();
        let own: Vec<_> = listing.lines().filter(|line| !line.ends_with(" -> busybox")).collect();
        golden::check("guest-image.txt", &(own.join("\n") + "\n"));
        assert!(listing.contains("bin/top -> busybox\n"));
    }
}
