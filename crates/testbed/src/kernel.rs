//! Kernels: Debian's packages, downloaded and unpacked without being installed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cache::Cache;
use crate::error::Error;
use crate::process;
use crate::progress::note;
use crate::scenario::GuestKernel;

/// An unpacked kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// `uname -r` under it.
    pub(crate) release: String,
    /// What holds `boot` and `lib/modules`.
    pub(crate) root: PathBuf,
}

/// Which build of Debian's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// Everything: for hosts.
    Full,
    /// What virtual machines need: for guests, boots faster.
    Cloud,
}

impl Flavour {
    fn suffix(self) -> &'static str {
        match self {
            Self::Full => "amd64",
            Self::Cloud => "cloud-amd64",
        }
    }

    /// The release in a package's name: `linux-image-RELEASE`, if the flavour fits.
    fn release(self, package: &str) -> Option<&str> {
        let release = package.strip_prefix("linux-image-")?;
        let version = release.strip_suffix(self.suffix())?.strip_suffix('-')?;
        let plain = version.starts_with(|c: char| c.is_ascii_digit())
            && !["cloud", "rt", "unsigned", "dbg"].iter().any(|word| version.ends_with(word));
        plain.then_some(release)
    }
}

impl Kernel {
    /// The bootable image.
    pub(crate) fn image(&self) -> PathBuf {
        self.root.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// The folder of its modules.
    pub(crate) fn modules(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.release)
    }

    /// The files of these modules and of what they need, in loading order. Those built in are left out.
    pub(crate) fn module_files(&self, names: &[&str]) -> Result<Vec<PathBuf>, Error> {
        let folder = self.modules();
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).map_err(Error::io("read", &path))
        };
        let (dependencies, builtin) = (read("modules.dep")?, read("modules.builtin")?);
        let files = load_order(&dependencies, &builtin, names)
            .map_err(|module| Error::NoModule { release: self.release.clone(), module })?;
        Ok(files.into_iter().map(|file| folder.join(file)).collect())
    }
}

/// Finds the kernel a scenario asks for, downloading it if it is not in the cache.
pub(crate) fn find(cache: &Cache, wanted: &GuestKernel, flavour: Flavour) -> Result<Kernel, Error> {
    match wanted {
        GuestKernel::Folder(folder) => in_folder(folder, flavour),
        GuestKernel::Version(version) => {
            let folder = cache.path("kernels");
            if let Some(kernel) = newest_cached(&folder, flavour, version) {
                return Ok(kernel);
            }
            match newest_package(flavour, version) {
                Ok(package) => download(cache, &package),
                // A guest runs with the full one as well.
                Err(error) => newest_cached(&folder, Flavour::Full, version).ok_or(error),
            }
        }
        GuestKernel::Default => {
            let chosen = cache.path(&format!("default-{}", flavour.suffix()));
            if let Ok(kernel) = chosen
                .canonicalize()
                .map_err(Error::io("find", &chosen))
                .and_then(|root| only_kernel(&root))
            {
                return Ok(kernel);
            }
            let kernel = download(cache, &default_package(flavour)?)?;
            // Another run may have made it by now: either is right.
            let _ = std::os::unix::fs::symlink(&kernel.root, &chosen);
            Ok(kernel)
        }
    }
}

fn in_folder(folder: &Path, flavour: Flavour) -> Result<Kernel, Error> {
    let root = folder.canonicalize().map_err(Error::io("find", folder))?;
    let kernel = only_kernel(&root)?;
    if kernel.modules().join("modules.dep").exists() {
        return Ok(kernel);
    }
    Err(Error::NoKernel {
        wanted: format!("{} ({}, without modules.dep)", folder.display(), flavour.suffix()),
    })
}

/// The newest kernel of a root folder.
pub(crate) fn only_kernel(root: &Path) -> Result<Kernel, Error> {
    let folder = root.join("lib/modules");
    newest(list(&folder)?.into_iter())
        .map(|release| Kernel { release, root: root.to_owned() })
        .ok_or_else(|| Error::NoKernel { wanted: root.display().to_string() })
}

fn newest_cached(folder: &Path, flavour: Flavour, version: &str) -> Option<Kernel> {
    let packages = list(folder).ok()?;
    let fitting = packages.into_iter().filter(|name| {
        let package = name.split('_').next().unwrap_or(name);
        flavour.release(package).is_some_and(|release| is_version(release, version))
    });
    newest(fitting).and_then(|name| only_kernel(&folder.join(name)).ok())
}

fn list(folder: &Path) -> Result<Vec<String>, Error> {
    let entries = fs::read_dir(folder).map_err(Error::io("list", folder))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

/// What Debian's meta package depends on.
fn default_package(flavour: Flavour) -> Result<String, Error> {
    let meta = format!("linux-image-{}", flavour.suffix());
    let output =
        process::run(process::tool("apt-cache", "apt")?.args(["depends", "--important", &meta]));
    let text = String::from_utf8_lossy(&output.unwrap_or_default()).into_owned();
    let packages =
        text.lines().filter_map(|line| line.trim().strip_prefix("Depends: ")).map(str::to_owned);
    newest(packages.filter(|package| flavour.release(package).is_some()))
        .ok_or(Error::NoKernel { wanted: meta })
}

fn newest_package(flavour: Flavour, version: &str) -> Result<String, Error> {
    let pattern =
        format!("^linux-image-{}[.0-9a-z+~-]*-{}$", version.replace('.', "\\."), flavour.suffix());
    let output = process::run(process::tool("apt-cache", "apt")?.args([
        "search",
        "--names-only",
        &pattern,
    ]))?;
    let text = String::from_utf8_lossy(&output).into_owned();
    let packages =
        text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned);
    newest(packages.filter(|package| {
        flavour.release(package).is_some_and(|release| is_version(release, version))
    }))
    .ok_or_else(|| Error::NoKernel { wanted: format!("version {version}, {}", flavour.suffix()) })
}

fn download(cache: &Cache, package: &str) -> Result<Kernel, Error> {
    let root = unpacked_package(cache, "kernels", package, |root| {
        let release = only_kernel(root)?.release;
        let mut depmod = process::tool("depmod", "kmod")?;
        process::run(depmod.arg("-b").arg(root).arg(release)).map(drop)
    })?;
    only_kernel(&root)
}

/// The files of a Debian package, which is downloaded into `folder` of the cache if it is not there, and then made complete by
/// `finish`.
pub(crate) fn unpacked_package(
    cache: &Cache,
    folder: &str,
    package: &str,
    finish: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<PathBuf, Error> {
    let _lock = cache.lock(package)?;
    let folder = cache.path(folder);
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    if let Some(name) =
        list(&folder)?.into_iter().find(|name| name.split('_').next() == Some(package))
    {
        return Ok(folder.join(name));
    }
    note(&format!("downloading the package {package}"));
    let scratch = cache.scratch()?;
    let mut apt = process::tool("apt-get", "apt")?;
    process::run(
        apt.args(["download", "-q", "-o", "APT::Sandbox::User=root", package])
            .current_dir(scratch.path()),
    )?;
    let deb = list(scratch.path())?.into_iter().find(|name| name.ends_with(".deb"));
    let deb = deb.ok_or_else(|| Error::NoKernel { wanted: package.to_owned() })?;
    let root = scratch.path().join("root");
    process::run(
        process::tool("dpkg", "dpkg")?.arg("-x").arg(scratch.path().join(&deb)).arg(&root),
    )?;
    finish(&root)?;
    let place = folder.join(deb.trim_end_matches(".deb"));
    fs::rename(&root, &place).map_err(Error::io("rename to", &place))?;
    Ok(place)
}

fn is_version(release: &str, version: &str) -> bool {
    release
        .strip_prefix(version)
        .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn newest(names: impl Iterator<Item = String>) -> Option<String> {
    let numbers = |name: &str| -> Vec<u64> {
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
    };
    names.max_by_key(|name| numbers(name))
}

/// Module files in loading order, from `modules.dep` and `modules.builtin`.
fn load_order(dependencies: &str, builtin: &str, names: &[&str]) -> Result<Vec<String>, String> {
    let by_name: BTreeMap<String, (&str, &str)> = dependencies
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(file, needs)| (module_name(file), (file, needs)))
        .collect();
    let mut order: Vec<String> = Vec::new();
    for name in names {
        let Some((file, needs)) = by_name.get(*name) else {
            if builtin.lines().any(|line| module_name(line) == *name) {
                continue;
            }
            return Err((*name).to_owned());
        };
        // depmod writes what is needed first last.
        for file in needs.split_whitespace().rev().chain([*file]) {
            if !order.iter().any(|known| known == file) {
                order.push(file.to_owned());
            }
        }
    }
    Ok(order)
}

/// `kernel/fs/9p/9p.ko.xz` is module `9p`; file names may have `-` where modules have `_`.
fn module_name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split(".ko").next().unwrap_or(base).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPENDENCIES: &str = "\
kernel/fs/9p/9p.ko: kernel/fs/fscache/fscache.ko kernel/fs/netfs/netfs.ko kernel/net/9p/9pnet.ko
kernel/net/9p/9pnet_virtio.ko.xz: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko kernel/net/9p/9pnet.ko
kernel/net/9p/9pnet.ko:
";

    fn check_order(names: &[&str], expected: &str) {
        let shown =
            match load_order(DEPENDENCIES, "kernel/drivers/tty/hvc/virtio-console.ko\n", names) {
                Ok(files) => {
                    files.iter().map(|file| module_name(file)).collect::<Vec<_>>().join(" ")
                }
                Err(module) => format!("no {module}"),
            };
        assert_eq!(shown, expected);
    }

    #[test]
    fn modules_are_loaded_after_what_they_need() {
        check_order(&["9p"], "9pnet netfs fscache 9p");
        check_order(
            &["9p", "9pnet_virtio"],
            "9pnet netfs fscache 9p virtio virtio_ring 9pnet_virtio",
        );
        check_order(&["virtio_console", "9pnet"], "9pnet");
        check_order(&["overlay"], "no overlay");
    }

    #[test]
    fn flavours_tell_packages_apart() {
        let check = |flavour: Flavour, package, expected| {
            assert_eq!(flavour.release(package), expected, "{package}")
        };
        check(Flavour::Full, "linux-image-6.1.0-56-amd64", Some("6.1.0-56-amd64"));
        check(Flavour::Full, "linux-image-6.1.0-56-cloud-amd64", None);
        check(Flavour::Full, "linux-image-6.1.0-56-rt-amd64", None);
        check(Flavour::Full, "linux-image-amd64", None);
        check(
            Flavour::Cloud,
            "linux-image-6.12.48+deb13-cloud-amd64",
            Some("6.12.48+deb13-cloud-amd64"),
        );
        check(Flavour::Cloud, "linux-image-6.1.0-56-amd64", None);
    }

    #[test]
    fn versions_are_whole_numbers() {
        assert!(is_version("6.1.0-56-amd64", "6.1"));
        assert!(!is_version("6.12.48-amd64", "6.1"));
        let names = ["6.1.0-9-amd64", "6.1.0-56-amd64"].map(str::to_owned);
        assert_eq!(newest(names.into_iter()).unwrap(), "6.1.0-56-amd64");
    }
}
