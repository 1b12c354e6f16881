//! The launcher: makes ready what a scenario needs, starts the virtual host (or not), and brings back
//! output, exit code and files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::bochs;
use crate::cache::Cache;
use crate::debian;
use crate::direct;
use crate::error::Error;
use crate::images::{self, GuestContent};
use crate::inside;
use crate::kernel::{self, Flavour, Kernel};
use crate::kernel_build;
use crate::kvm_probe::{self, KvmVerdict};
use crate::libraries;
use crate::plan::{Boot, Plan, Seat};
use crate::process;
use crate::progress::{note, warn};
use crate::qemu;
use crate::scenario::{Channel, Guest, GuestKernel, HostCpu, Scenario};
use crate::virtual_host;
use crate::vmlinux;
use crate::workload;

/// One run of a scenario.
#[derive(Debug, Clone)]
pub struct Run {
    pub scenario: PathBuf,
    /// The command and its arguments; when empty, the scenario's own.
    pub command: Vec<String>,
    /// Where the files the command writes go; the current folder by default.
    pub out: Option<PathBuf>,
    /// The limit of the whole run.
    pub timeout: Duration,
    pub host: HostChoice,
    /// The `vmscope` program; it is run inside the host.
    pub vmscope: PathBuf,
    /// Whether a line says every few seconds that the command still runs.
    pub narrates: bool,
}

/// The machine that runs the guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostChoice {
    /// On this machine where its KVM really runs guests and we are root, else in the virtual host.
    #[default]
    Auto,
    /// In the virtual host.
    Virtual,
    /// On this machine.
    Direct,
}

/// The kernel of an Intel host that names none: earlier than 6.3 a sample's address in the guest is not known there.
const INTEL_HOST_KERNEL: &str = "6.12";

/// How the folders of runs are called: this, the process, something random.
const RUN_PREFIX: &str = "vmscope-testbed-";

/// A run made ready.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) scenario: Scenario,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) host: Option<HostBoot>,
    pub(crate) seat: Seat,
    /// The second host.
    pub(crate) peer: Option<Box<Self>>,
}

/// What the virtual host boots.
#[derive(Debug)]
pub(crate) enum HostBoot {
    /// In QEMU.
    Amd { kernel: Kernel, image: PathBuf, initrd: PathBuf },
    /// In Bochs: disks, which lie in the run's folder.
    Intel,
}

/// Runs a scenario's command on a KVM host with its guests; returns the command's exit code.
pub fn run(options: &Run) -> Result<u8, Error> {
    let out = options.out.as_deref().unwrap_or(Path::new("."));
    can_hold_files(out)?;
    let scenario_text =
        fs::read_to_string(&options.scenario).map_err(Error::io("read", &options.scenario))?;
    let scenario = Scenario::parse(&options.scenario, &scenario_text)?;
    let command = match (&scenario.host.command, options.command.is_empty()) {
        (_, false) => options.command.clone(),
        (Some(line), true) => vec!["sh".to_owned(), "-c".to_owned(), line.clone()],
        (None, true) => return Err(Error::NoCommand { path: options.scenario.clone() }),
    };
    let plan = Plan {
        scenario_path: options.scenario.clone(),
        scenario_text,
        seat: Seat::Main,
        guests: Vec::new(),
        command,
    };
    let direct = chooses_direct(options.host, &scenario)?;
    let prepared = prepare(scenario, plan, direct, &options.vmscope)?;
    let (result, written) = if direct {
        (direct::run(&prepared, options.timeout, options.narrates), "work")
    } else {
        (virtual_host::run(&prepared, options.timeout, options.narrates), "out")
    };
    let mut collected = collect(&prepared.folder.path().join(written), out);
    if let Some(peer) = &prepared.peer {
        let out = out.join(&peer.scenario.name);
        collected = collected.and(collect(&peer.folder.path().join(written), &out));
    }
    result.and_then(|code| collected.map(|()| code))
}

fn chooses_direct(choice: HostChoice, scenario: &Scenario) -> Result<bool, Error> {
    match (choice, scenario.needs_virtual_host()) {
        (HostChoice::Direct, Some(what)) => Err(Error::Host {
            problem: format!("needs {what}, which this machine has not: use --host virtual"),
        }),
        (HostChoice::Auto, Some(_)) => Ok(false),
        (choice, _) => runs_here(choice),
    }
}

/// Makes kernels, images and the run's folder ready. `plan` gets its guests and is written.
pub(crate) fn prepare(
    scenario: Scenario,
    mut plan: Plan,
    direct: bool,
    vmscope: &Path,
) -> Result<Prepared, Error> {
    qemu::program()?;
    let cache = Cache::open()?;
    remove_stale(&std::env::temp_dir());
    let folder = tempfile::Builder::new()
        .prefix(&format!("{RUN_PREFIX}{}-", std::process::id()))
        .tempdir()
        .map_err(Error::io("create a folder in", &std::env::temp_dir()))?;
    note("preparing kernels, workloads and images");
    let workloads = workload::build_all(&cache)?;
    let is_intel = scenario.host.cpu == HostCpu::Intel;
    // What the host sees of the run's folder: all, or what is copied to a disk.
    let share = if is_intel { folder.path().join("share") } else { folder.path().to_owned() };
    let bin = share.join("bin");
    for needed in [&bin, &share.join("out")] {
        fs::create_dir_all(needed).map_err(Error::io("create", needed))?;
    }
    copy_programs(vmscope, &bin)?;
    for name in workload::files() {
        copy(&workloads.join(name), &bin.join(name))?;
    }
    plan.guests = boots(&scenario.guests, &cache, &workloads, vmscope, folder.path())?;
    if is_intel {
        let guests = plan.guests.into_iter().map(|boot| copy_boot(&boot, &share));
        plan.guests = guests.collect::<Result<_, Error>>()?;
    } else if !direct {
        plan.guests = plan.guests.into_iter().map(Boot::seen_from_inside).collect();
    }
    plan.write(&share)?;
    let host = match (direct, scenario.host.cpu) {
        (true, _) => None,
        (false, HostCpu::Amd) => Some(host_boot(&scenario, &cache)?),
        (false, HostCpu::Intel) => Some(intel_boot(&scenario, &cache, &share, folder.path())?),
    };
    let peer = scenario.peer.as_deref().map(|peer| prepare_peer(peer, &plan, vmscope));
    let peer = peer.transpose()?.map(Box::new);
    Ok(Prepared { scenario, folder, host, seat: plan.seat, peer })
}

/// `vmscope`, and those of the programs it starts that lie beside it.
fn copy_programs(vmscope: &Path, bin: &Path) -> Result<(), Error> {
    copy_program(vmscope, &bin.join("vmscope"))?;
    for name in ["vmscope-lab", "vmscope-layout"] {
        let program = vmscope.with_file_name(name);
        if program.is_file() {
            copy_program(&program, &bin.join(name))?;
        }
    }
    Ok(())
}

/// Without what only debuggers read, three quarters of a program: the virtual host takes programs to its memory.
fn copy_program(from: &Path, to: &Path) -> Result<(), Error> {
    let strip = Command::new("strip").arg("-g").arg("-o").args([to, from]).output();
    // Without binutils it stays as it is.
    if strip.is_ok_and(|output| output.status.success()) { Ok(()) } else { copy(from, to) }
}

/// The second host: without a command of its own it is there until the first one's ends.
fn prepare_peer(peer: &Scenario, plan: &Plan, vmscope: &Path) -> Result<Prepared, Error> {
    let line = peer.host.command.as_deref().unwrap_or("exec sleep infinity");
    let plan = Plan {
        seat: Seat::Peer,
        command: ["sh", "-c", line].map(str::to_owned).into(),
        ..plan.clone()
    };
    prepare(peer.clone(), plan, false, vmscope)
}

/// Removes the folders of runs that were killed before they could.
fn remove_stale(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(RUN_PREFIX)) else {
            continue;
        };
        let owner = rest.split('-').next().unwrap_or(rest);
        if owner.parse::<u32>().is_ok() && !Path::new("/proc").join(owner).exists() {
            // Another user's stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn host_boot(scenario: &Scenario, cache: &Cache) -> Result<HostBoot, Error> {
    let kernel = kernel::find(cache, &scenario.host.kernel, Flavour::Full)?;
    let image = vmlinux::of_image(cache, &kernel.image())?;
    let initrd = images::host(cache, &kernel, HostCpu::Amd)?;
    Ok(HostBoot::Amd { kernel, image, initrd })
}

/// Lays an Intel host's disks in the run's `folder`.
fn intel_boot(
    scenario: &Scenario,
    cache: &Cache,
    share: &Path,
    folder: &Path,
) -> Result<HostBoot, Error> {
    let host = &scenario.host;
    let wanted = match &host.kernel {
        GuestKernel::Default => GuestKernel::Version(INTEL_HOST_KERNEL.to_owned()),
        wanted => wanted.clone(),
    };
    let kernel = kernel::find(cache, &wanted, Flavour::Cloud)?;
    let disc = bochs::disc(cache, host, &kernel, &images::host(cache, &kernel, host.cpu)?)?;
    let natives = scenario.natives.iter().map(|native| native.workload.program());
    let natives: Vec<_> =
        natives.filter(|program| program.starts_with('/')).map(PathBuf::from).collect();
    let bin = share.join("bin");
    let copied = fs::read_dir(&bin).map_err(Error::io("list", &bin))?.flatten();
    let mut needed: BTreeSet<PathBuf> = natives.iter().cloned().collect();
    for program in natives.into_iter().chain(copied.map(|entry| entry.path())) {
        needed.extend(libraries::list(&program)?);
    }
    // Those of the workloads lie beside them.
    needed.retain(|file| !file.starts_with(&bin));
    let root = images::intel_root(cache, &kernel, &needed)?;
    bochs::lay_disks(folder, &disc, &root)?;
    process::disk(share, &bochs::share_disk(folder))?;
    // The disk has it now.
    fs::remove_dir_all(share).map_err(Error::io("remove", share))?;
    Ok(HostBoot::Intel)
}

/// Copies what a guest boots from to where an Intel host finds it.
fn copy_boot(boot: &Boot, share: &Path) -> Result<Boot, Error> {
    let bring = |from: &Path, name: &str| {
        copy(from, &share.join(name))?;
        Ok::<_, Error>(Path::new(inside::FOLDER).join("share").join(name))
    };
    Ok(Boot {
        kernel: bring(&boot.kernel, "guest-kernel")?,
        initrd: bring(&boot.initrd, "guest-initrd")?,
        disk: boot.disk.as_deref().map(|disk| bring(disk, "guest-disk")).transpose()?,
    })
}

/// Makes ready what a guest boots from, in the cache: its kernel, image and root. `vmscope` is the program whose guest command
/// goes into the image.
///
/// # Errors
/// When something can't be downloaded or built. A guest with a folder as its root is refused.
pub fn prepare_guest(guest: &Guest, vmscope: &Path) -> Result<Boot, Error> {
    let refused =
        |problem: &str| Error::Guest { guest: guest.name.clone(), problem: problem.to_owned() };
    if guest.root.as_ref().is_some_and(|root| root.is_dir()) {
        return Err(refused("needs a disk image as its root, not a folder"));
    }
    let cache = Cache::open()?;
    let workloads = workload::build_all(&cache)?;
    let guests = std::slice::from_ref(guest);
    let boots = boots(guests, &cache, &workloads, vmscope, Path::new("/nonexistent"))?;
    boots.into_iter().next().ok_or_else(|| refused("has nothing to boot"))
}

/// Whether guests run on this machine, not in a virtual host.
///
/// # Errors
/// When that can't be found out.
pub fn runs_here(choice: HostChoice) -> Result<bool, Error> {
    match choice {
        HostChoice::Virtual => Ok(false),
        HostChoice::Direct => Ok(true),
        HostChoice::Auto if !rustix::process::geteuid().is_root() => Ok(false),
        HostChoice::Auto => Ok(kvm_probe::cached(&Cache::open()?) == KvmVerdict::Works),
    }
}

fn boots(
    guests: &[Guest],
    cache: &Cache,
    workloads: &Path,
    vmscope: &Path,
    folder: &Path,
) -> Result<Vec<Boot>, Error> {
    let agent = find_agent(vmscope);
    if agent.is_none() && guests.iter().any(|guest| guest.channel != Channel::None) {
        warn("no vmscope-guest beside vmscope: guests will not answer on their channels");
    }
    let programs: BTreeSet<&str> = guests
        .iter()
        .flat_map(|guest| &guest.workload)
        .map(|workload| workload.program())
        .filter(|program| program.starts_with('/'))
        .collect();
    let is_microvm = guests.iter().any(|guest| guest.is_microvm);
    let content =
        GuestContent { workloads, agent: agent.as_deref(), programs, is_microvm, modules: &[] };
    let mut made: Vec<(_, Boot)> = Vec::new();
    let mut boots = Vec::new();
    for guest in guests {
        let wanted = (guest.kernel.clone(), guest.timer_hz, guest.modules.as_slice());
        let content = GuestContent { modules: &guest.modules, ..content.clone() };
        if !made.iter().any(|(kernel, _)| *kernel == wanted) {
            let kernel = kernel::find(cache, &guest.kernel, Flavour::Cloud)?;
            let kernel = match guest.timer_hz {
                Some(hz) => kernel_build::with_timer(cache, &kernel, hz)?,
                None => kernel,
            };
            let boot = Boot {
                kernel: kernel.image(),
                initrd: images::guest(cache, &kernel, &content)?,
                disk: None,
            };
            made.push((wanted.clone(), boot));
        }
        let mut boot =
            made.iter().find(|(kernel, _)| *kernel == wanted).map(|(_, boot)| boot.clone());
        if let Some(boot) = &mut boot {
            boot.disk = root_disk(guest, cache, folder)?;
        }
        boots.extend(boot);
    }
    Ok(boots)
}

/// What a guest with a root of its own boots from; `folder` is for what is made for this run only.
fn root_disk(guest: &Guest, cache: &Cache, folder: &Path) -> Result<Option<PathBuf>, Error> {
    if !guest.packages.is_empty() {
        return debian::image(cache, &guest.packages).map(Some);
    }
    let image = folder.join(format!("{}.img", guest.name));
    let Some(root) = &guest.root else { return Ok(None) };
    let root = root.canonicalize().map_err(Error::io("find", root))?;
    if root.is_file() {
        return Ok(Some(root));
    }
    process::disk(&root, &image)?;
    Ok(Some(image))
}

/// The guest command: beside `vmscope`, or where cargo puts the static build.
fn find_agent(vmscope: &Path) -> Option<PathBuf> {
    let folder = vmscope.parent()?;
    let (target, profile) = (folder.parent()?, folder.file_name()?);
    let musl = target.join("x86_64-unknown-linux-musl");
    [musl.join(profile), musl.join("release"), musl.join("debug"), folder.to_owned()]
        .map(|folder| folder.join("vmscope-guest"))
        .into_iter()
        .find(|path| path.is_file())
}

/// Whether `out` is a folder or can become one, before anything boots.
fn can_hold_files(out: &Path) -> Result<(), Error> {
    match out.ancestors().find(|path| path.symlink_metadata().is_ok()) {
        Some(taken) if !taken.is_dir() => Err(Error::NoFolder(taken.to_owned())),
        _ => Ok(()),
    }
}

/// Moves what the command wrote to `out`; what is there already keeps its name.
fn collect(from: &Path, out: &Path) -> Result<(), Error> {
    let entries = fs::read_dir(from).map_err(Error::io("list", from))?;
    for entry in entries.flatten() {
        fs::create_dir_all(out).map_err(Error::io("create", out))?;
        let scratch = tempfile::Builder::new()
            .prefix(".testbed-")
            .tempdir_in(out)
            .map_err(Error::io("create a folder in", out))?;
        let name = entry.file_name();
        process::run(
            Command::new("cp").args(process::COPY_TREE).arg(entry.path()).arg(scratch.path()),
        )?;
        // What was a guest's root's would be ours.
        process::run(Command::new("chmod").args(["-R", "u-s,g-s"]).arg(scratch.path()))?;
        let place = free_name(out, &name.to_string_lossy());
        if place.file_name() != Some(&name) {
            warn(&format!("{} exists: saved as {}", out.join(&name).display(), place.display()));
        }
        fs::rename(scratch.path().join(&name), &place).map_err(Error::io("rename to", &place))?;
    }
    Ok(())
}

fn free_name(folder: &Path, name: &str) -> PathBuf {
    let numbered = (1..).map(|n: u64| folder.join(format!("{name}.{n}")));
    std::iter::once(folder.join(name))
        .chain(numbered)
        .find(|path| path.symlink_metadata().is_err())
        .expect("there are more names than files")
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    fs::copy(from, to).map(drop).map_err(Error::io("copy", from))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn no_copied_file_runs_as_another_user() {
        let folder = tempfile::tempdir().unwrap();
        let (from, out) = (folder.path().join("from"), folder.path().join("out"));
        fs::create_dir_all(from.join("bin")).unwrap();
        let program = from.join("bin/sudo");
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).unwrap();
        collect(&from, &out).unwrap();
        let mode = fs::metadata(out.join("bin/sudo")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
    }

    #[test]
    fn what_is_no_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("dangling")).unwrap();
        let check = |name: &str, refused: bool| {
            let result = can_hold_files(&folder.path().join(name));
            assert_eq!(result.is_err_and(|error| error.is_usage()), refused, "{name}");
        };
        check("", false);
        check("new/deep", false);
        check("file", true);
        check("file/below", true);
        check("dangling", true);
    }

    #[test]
    fn only_folders_of_dead_runs_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let ours = format!("{RUN_PREFIX}{}-abc", std::process::id());
        let dead = format!("{RUN_PREFIX}{}-abc", u32::MAX);
        for name in [&ours, &dead, "vmscope-testbed-notes", "other"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        remove_stale(folder.path());
        let left = |name: &str| folder.path().join(name).exists();
        assert!(left(&ours) && left("vmscope-testbed-notes") && left("other") && !left(&dead));
    }

    #[test]
    fn collected_files_never_replace_others() {
        let folder = tempfile::tempdir().unwrap();
        let (from, out) = (folder.path().join("from"), folder.path().join("out"));
        fs::create_dir_all(from.join("day1")).unwrap();
        fs::write(from.join("day1/a"), "new").unwrap();
        collect(&from, &out).unwrap();
        fs::write(from.join("day1/a"), "newer").unwrap();
        collect(&from, &out).unwrap();
        let read = |name: &str| fs::read_to_string(out.join(name)).unwrap();
        assert_eq!((read("day1/a"), read("day1.1/a")), ("new".to_owned(), "newer".to_owned()));
        let mut left: Vec<_> =
            fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["day1", "day1.1"]);
    }
}
