//! What a VM's process says about it: its name, what tells it from others for good, ways to reach its guest and its
//! monitor, and what its manager knows.
//!
//! ```text
//!  /proc/PID/cmdline --> QEMU's options, or another VMM's --> name, UUID, vsock, sockets
//!  /proc/PID/cgroup  --> unit, pod, scope of libvirt or Proxmox --> a name that stays, if there is none yet
//!  /proc/PID/root    --> files and sockets that the command line names, in the VMM's mount namespace
//!  libvirt's status file, Proxmox' configuration --> labels
//! ```
//! All of it comes from strangers: sizes are bounded, files are read only if they are regular, and sockets only used if the
//! VM's user listens there.

mod files;
mod manager;
mod names;
mod other_vmms;
mod qemu;
#[cfg(test)]
mod test;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use model::VmLabels;

use self::files::ProcessFiles;
use self::manager::{DomainStatus, Place};
use self::other_vmms::OtherVmm;
use self::qemu::Qemu;
use crate::procfs;
use crate::sockets::VmmSocket;

pub use self::names::VmNames;

/// A VM as its process describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VmProcess {
    pub pid: u32,
    /// Its name as it was given; a VM without one has that of its unit or pod, else its program's and pid.
    pub name: String,
    /// Its UUID, as it was given.
    pub uuid: Option<String>,
    /// The user that runs it.
    pub user: u32,
    /// When its process began, in the kernel's ticks since the boot. 0: it has ended.
    pub began_ticks: u64,
    /// vsock context id of the guest, whose vsock device is the host kernel's.
    pub vsock_cid: Option<u32>,
    /// Unix socket of the VMM that leads to the guest's vsock device.
    pub vsock_socket: Option<VmmSocket>,
    /// Unix socket of the virtio-serial port with vmscope's name.
    pub serial_socket: Option<VmmSocket>,
    /// Unix socket at which its QMP monitor listens; of several, the one that its command line names last.
    pub monitor: Option<VmmSocket>,
    /// What its manager knows of it.
    pub labels: VmLabels,
    /// The CPUs of libvirt's `<vcpupin>`, by vCPU.
    pub vcpu_pins: BTreeMap<u32, BTreeSet<u32>>,
    /// The guest's NUMA nodes, where it has several.
    pub cells: Vec<GuestCell>,
}

/// Memory that is not the usual kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryBacking {
    /// A file, or a folder for files: of hugetlbfs, it may be.
    Path(PathBuf),
    /// Huge pages of this size, or of the kernel's default size.
    HugePages(Option<u64>),
}

/// A NUMA node of a guest, as the command line describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GuestCell {
    /// Numbers of its vCPUs; those of machines that may have more vCPUs later, too.
    pub vcpus: BTreeSet<u32>,
    /// Bytes of its own memory backend; 0: it has none.
    pub bytes: u64,
}

/// Sockets that a command line names.
#[derive(Debug, Default, PartialEq, Eq)]
struct VmSockets {
    serial: Option<SocketAddress>,
    /// Those that listen, or may.
    monitors: Vec<SocketAddress>,
}

/// How a command line names a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
enum SocketAddress {
    Path(PathBuf),
    /// One of the process's open files.
    Descriptor(u32),
}

/// Where commands and the agent remember names of VMs.
pub const STATE_FOLDER: &str = "/var/lib/vmscope";

/// Bytes of a command line that are read. Those of QEMU have some kilobytes.
const MAX_COMMAND_LINE: u64 = 256 << 10;
/// Bytes of other files.
const MAX_FILE: u64 = 1 << 20;
/// Characters of names and labels.
const MAX_NAME_CHARS: usize = 200;

/// Describes the VM run by process `pid`, whose serial port for us is named `port`.
///
/// Never fails: what can't be read is absent, and the name falls back to the process's.
#[must_use]
pub fn describe(proc: &Path, pid: u32, port: &str) -> VmProcess {
    let files = ProcessFiles::new(proc, pid);
    let words = files.command_line();
    let place = Place::parse(&files.cgroup());
    let (program, words) = split_program(&words);
    let mut vm = match other_vmms::is_one(program) {
        true => describe_other(&files, program, words, &place),
        false => describe_qemu(&files, words, port, &place),
    };
    vm.pid = pid;
    vm.labels.unit = place.unit.as_deref().and_then(bounded);
    let of_unit = place.name.as_deref().and_then(manager::uuid_in);
    vm.uuid = vm.uuid.or(of_unit);
    if vm.name.is_empty() {
        let stays = [place.domain, vm.labels.pod.clone(), place.name].into_iter().flatten();
        let mut stays = stays.filter_map(|name| bounded(&name));
        vm.name = stays.next().unwrap_or_else(|| {
            let comm = procfs::read_comm(&proc.join(pid.to_string()));
            format!("{}-{pid}", comm.unwrap_or_else(|_| "vm".to_owned()))
        });
    }
    vm.labels.uuid = vm.uuid.clone();
    // A process that has ended is not looked at.
    let directory = proc.join(pid.to_string());
    vm.began_ticks = crate::tasks::began_ticks(&directory);
    vm.user = crate::identity::read(&directory).map_or(0, |identity| identity.user);
    vm
}

/// The program's name, without its folder, and the words after it.
fn split_program(words: &[String]) -> (&str, &[String]) {
    let Some((program, words)) = words.split_first() else { return ("", &[]) };
    (program.rsplit('/').next().unwrap_or_default(), words)
}

fn describe_qemu(
    files: &ProcessFiles<'_>,
    words: &[String],
    port: &str,
    place: &Place,
) -> VmProcess {
    let mut qemu = Qemu::parse(words, "", port);
    if let Some(path) = qemu.config.take() {
        let text = files.text(&path, MAX_FILE).unwrap_or_default();
        qemu = Qemu { config: Some(path), ..Qemu::parse(words, &text, port) };
    }
    let monitors = qemu.sockets.monitors.iter().rev();
    let mut vm = VmProcess {
        name: qemu.name.as_deref().and_then(bounded).unwrap_or_default(),
        vsock_cid: qemu.vsock_cid,
        serial_socket: qemu.sockets.serial.as_ref().and_then(|socket| files.socket(socket)),
        monitor: monitors.filter_map(|socket| files.socket(socket)).next(),
        ..VmProcess::default()
    };
    let status = domain_status(files, &qemu, place);
    vm.vcpu_pins = status.as_ref().map(|status| status.vcpu_pins.clone()).unwrap_or_default();
    vm.labels = labels(files, &qemu, place, status);
    vm.cells = std::mem::take(&mut qemu.cells);
    vm.uuid = qemu.uuid;
    vm
}

fn describe_other(
    files: &ProcessFiles<'_>,
    program: &str,
    words: &[String],
    place: &Place,
) -> VmProcess {
    let mut vmm = OtherVmm::parse(program, words, "");
    if let Some(path) = vmm.config.take() {
        let text = files.text(&path, MAX_FILE).unwrap_or_default();
        vmm = OtherVmm::parse(program, words, &text);
    }
    let pod = pod(files, place);
    // A sandbox's id changes whenever it starts, and so does Kata's folder.
    let is_sandbox = program.starts_with("runsc");
    let (first, then) = (vmm.name.clone().filter(|_| !is_sandbox), vmm.name.clone());
    let name = first.or(pod.clone()).or(then).or_else(|| vmm.name_by_api());
    let vsock_socket = match vmm.vsock_socket {
        Some(path) => files.socket(&SocketAddress::Path(path)),
        None if other_vmms::may_hide_vsock(program) => files.only_listener(vmm.api.as_deref()),
        None => None,
    };
    let manager = if is_sandbox { "gvisor" } else { other_vmms::name(program) };
    VmProcess {
        name: name.as_deref().and_then(bounded).unwrap_or_default(),
        uuid: vmm.uuid,
        vsock_cid: vmm.vsock_cid,
        vsock_socket,
        labels: VmLabels { manager: bounded(manager), pod, ..VmLabels::default() },
        ..VmProcess::default()
    }
}

/// What libvirt says of a QEMU, if it is libvirt's.
fn domain_status(files: &ProcessFiles<'_>, qemu: &Qemu, place: &Place) -> Option<DomainStatus> {
    let is_it = |status: &DomainStatus| {
        let uuids = status.uuid.as_ref().zip(qemu.uuid.as_ref());
        uuids.is_none_or(|(of_status, own)| of_status.eq_ignore_ascii_case(own))
    };
    let name = qemu.name.as_deref().or(place.domain.as_deref());
    name.and_then(|name| files.domain_status(name, is_it))
}

/// What a QEMU's manager knows.
fn labels(
    files: &ProcessFiles<'_>,
    qemu: &Qemu,
    place: &Place,
    status: Option<DomainStatus>,
) -> VmLabels {
    let name = qemu.name.as_deref().or(place.domain.as_deref());
    let is_libvirts = status.is_some() || place.domain.is_some();
    let mut labels = status.map(|status| status.labels).unwrap_or_default();
    if place.pod.is_some() {
        labels.pod = pod(files, place);
        if let Some((namespace, vm)) = name.and_then(|name| name.split_once('_')) {
            labels.manager = Some("kubevirt".to_owned());
            labels.namespace = bounded(namespace);
            labels.instance = bounded(vm);
        }
    }
    if let Some(id) = &place.proxmox {
        labels = files.proxmox(id).map(|text| manager::parse_proxmox(&text)).unwrap_or_default();
        labels.manager = Some("proxmox".to_owned());
        labels.id = bounded(qemu.id.as_deref().unwrap_or(id));
    }
    let incus = qemu.config.as_deref().and_then(|path| incus(path, qemu.name.as_deref()?));
    if let Some((manager, project)) = incus {
        labels.manager = Some(manager.to_owned());
        labels.project = bounded(&project);
    }
    let is_openstack =
        qemu.product.as_ref().is_some_and(|product| product.starts_with("OpenStack"));
    let manager = if is_openstack { "openstack" } else { "libvirt" };
    labels.manager = labels.manager.or_else(|| is_libvirts.then(|| manager.to_owned()));
    labels
}

/// The name of the pod that a VMM runs in, or its id where the VMM has no root of its own.
fn pod(files: &ProcessFiles<'_>, place: &Place) -> Option<String> {
    let id = place.pod.as_deref()?;
    files.pod_name().or_else(|| bounded(id))
}

/// The manager and the project of an Incus or LXD VM, by its folder: `/run/incus/PROJECT_NAME/qemu.conf`.
fn incus(config: &Path, name: &str) -> Option<(&'static str, String)> {
    let folder = config.parent()?;
    let is_below = |program: &str| folder.components().any(|part| part.as_os_str() == program);
    let manager = ["incus", "lxd"].into_iter().find(|program| is_below(program))?;
    let project = folder.file_name()?.to_str()?.strip_suffix(name)?;
    Some((manager, project.strip_suffix('_').unwrap_or("default").to_owned()))
}

impl VmProcess {
    /// What tells the VM from others for good: its user, and its UUID if it has one, else its name. A user can give a VM
    /// any UUID and name, but no other user.
    #[must_use]
    pub fn identity(&self) -> String {
        match &self.uuid {
            Some(uuid) => format!("{} uuid {}", self.user, uuid.to_ascii_lowercase()),
            None => format!("{} name {}", self.user, self.name),
        }
    }
}

/// The monitor of a QEMU that will have this command line, if it has one that listens at a path.
#[must_use]
pub fn monitor_path(words: &[String]) -> Option<PathBuf> {
    let monitors = Qemu::parse(split_program(words).1, "", "").sockets.monitors;
    monitors.into_iter().rev().find_map(|monitor| match monitor {
        SocketAddress::Path(path) => Some(path),
        SocketAddress::Descriptor(_) => None,
    })
}

/// What the memory of a QEMU with this command line is made of, if that is not the usual kind.
#[must_use]
pub fn memory_backing(words: &[String]) -> Option<MemoryBacking> {
    Qemu::parse(split_program(words).1, "", "").backing
}

/// Whether this process is still the one that began then: process ids are used again.
#[must_use]
pub fn is_still(proc: &Path, process: u32, began_ticks: u64) -> bool {
    crate::tasks::began_ticks(&proc.join(process.to_string())) == began_ticks
}

/// The words of a process's command line, without what is beyond the largest size; none of one that can't be read.
#[must_use]
pub fn command_line(proc: &Path, pid: u32) -> Vec<String> {
    ProcessFiles::new(proc, pid).command_line()
}

/// A text of a stranger, shorter than a limit and on one line; `None`: it is empty.
fn bounded(text: &str) -> Option<String> {
    let text: String = text.trim().chars().take(MAX_NAME_CHARS).collect();
    (!text.is_empty()).then_some(text)
}

/// Parses a CPU list such as `0-3,8`; `None`: it is too long, or has numbers beyond any CPU's. The list is untrusted.
fn small_list(text: &str) -> Option<BTreeSet<u32>> {
    let numbers = text.split(['-', ',']).map(str::trim);
    let is_small = |number: &str| number.parse::<u16>().is_ok_and(|number| number < 1 << 13);
    let is_fine = text.len() < 1 << 13 && numbers.into_iter().all(is_small);
    if !is_fine {
        return None;
    }
    Some(crate::machine::parse_cpu_list(text)?.into_iter().collect())
}

/// A UUID as QEMU takes it, unless it is the one of all zeros, which means none.
fn valid_uuid(text: &str) -> Option<String> {
    const DASHES: [usize; 4] = [8, 13, 18, 23];
    let is_valid = text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match DASHES.contains(&at) {
            true => byte == b'-',
            false => byte.is_ascii_hexdigit(),
        })
        && text.bytes().any(|byte| !matches!(byte, b'0' | b'-'));
    is_valid.then(|| text.to_owned())
}

/// A number as C's `strtoul` takes it with base 0.
fn number(text: &str) -> Option<u32> {
    let digits = |prefix: &str| text.strip_prefix(prefix);
    if let Some(digits) = digits("0x").or(digits("0X")) {
        return u32::from_str_radix(digits, 16).ok();
    }
    match digits("0").filter(|digits| !digits.is_empty()) {
        Some(digits) => u32::from_str_radix(digits, 8).ok(),
        None => text.parse().ok(),
    }
}
