//! QEMU's command lines, for the virtual host and for the guests.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use crate::bare::{Accelerator, Bare};
use crate::bochs;
use crate::error::Error;
use crate::kernel::Kernel;
use crate::plan::Seat;
use crate::process;
use crate::scenario::{Channel, Guest, Host, Node};

/// The system emulator.
pub(crate) const PROGRAM: &str = "qemu-system-x86_64";

/// The port through which a guest says it is ready and is sent lines to run.
pub(crate) const EXEC_PORT: &str = "org.vmscope.exec.0";
/// The port through which a clone gets its identity.
const IDENTITY_PORT: &str = "org.vmscope.identity.0";
/// The first vsock address given to a guest.
const FIRST_CID: usize = 3;

/// Where the emulator is.
pub(crate) fn program() -> Result<PathBuf, Error> {
    process::find(PROGRAM)
        .ok_or_else(|| Error::Missing { program: PROGRAM.to_owned(), package: "qemu-system-x86" })
}

/// What the virtual host's command line is made of.
#[derive(Debug)]
pub(crate) struct HostMachine<'a> {
    pub(crate) host: &'a Host,
    pub(crate) kernel: &'a Kernel,
    pub(crate) image: &'a Path,
    pub(crate) initrd: &'a Path,
    /// The run's folder, shared for writing.
    pub(crate) share: &'a Path,
    pub(crate) console: &'a Path,
    /// Names of ports and the open sockets they are joined to.
    pub(crate) ports: &'a [(&'a str, i32)],
    /// How many places for guests its network has, if it is to have one.
    pub(crate) taps: Option<usize>,
    /// Its end of the network with its peer, if there is one.
    pub(crate) wire: Option<Wire>,
    /// The socket of an interactive terminal.
    pub(crate) terminal: Option<i32>,
    /// The rest of the kernel's line.
    pub(crate) extra: &'a str,
}

/// A host's end of the network that joins it with its peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wire {
    pub(crate) seat: Seat,
    pub(crate) socket: i32,
}

/// A host's address in the network with its peer.
pub(crate) fn wire_address(seat: Seat) -> [u8; 4] {
    match seat {
        Seat::Main => [10, 30, 0, 1],
        Seat::Peer => [10, 30, 0, 2],
    }
}

/// The virtual host's disk, as it sees it.
const HOST_DISK: &str = "/dev/vda";

/// Where the virtual host's disk is kept, in the run's folder.
pub(crate) fn disk_file(share: &Path) -> PathBuf {
    share.join("disk")
}

/// What a guest's command line is made of.
#[derive(Debug)]
pub(crate) struct GuestMachine<'a> {
    pub(crate) guest: &'a Guest,
    /// Its place in the scenario.
    pub(crate) index: usize,
    pub(crate) kernel: &'a Path,
    pub(crate) initrd: &'a Path,
    pub(crate) disk: Option<&'a Path>,
    /// Where its sockets and its console's text go.
    pub(crate) folder: &'a Path,
    /// The open socket of its identity port, which templates and clones have.
    pub(crate) identity: Option<i32>,
    pub(crate) origin: Origin<'a>,
}

/// Where a guest comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin<'a> {
    Boot,
    /// The file that it was saved to.
    File,
    /// It boots, with its memory in a file that clones are to share.
    Template(&'a Saved),
    /// A template that was saved. It writes to copies of the template's memory.
    Clone(&'a Saved),
}

/// The files of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Saved {
    pub(crate) memory: PathBuf,
    /// The state of its devices.
    pub(crate) devices: PathBuf,
    /// The beginning of its kernel. QEMU keeps a copy of the file that it is given, and a clone never boots.
    pub(crate) kernel_head: PathBuf,
}

/// Where a guest's exec port is connected to, whichever QEMU runs it.
pub(crate) fn exec_socket(folder: &Path, guest: &str) -> PathBuf {
    folder.join(format!("{guest}.exec"))
}

/// The beginning of the addresses of network devices that join two hosts, as `host-init.sh` knows them.
const WIRE_MAC: &str = "52:54:00:30:00";

/// The network of the virtual host: it is the first, its guests come after it.
const NETWORK: &str = "10.10.0";
const FIRST_GUEST: usize = 2;

/// What the command line of a machine without an operating system is made of.
#[derive(Debug)]
pub(crate) struct LoneMachine<'a> {
    pub(crate) machine: &'a Bare,
    /// Its disks, and the files they are kept in.
    pub(crate) disks: &'a [(Disk, PathBuf)],
    /// The open socket of its debug port.
    pub(crate) lines: i32,
}

/// How a machine reaches a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disk {
    Ata,
    Virtio,
    Nvme,
}

impl HostMachine<'_> {
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut line = Line::default();
        let mut extra = self.extra.to_owned();
        if self.host.deterministic {
            // One instruction takes 2 ns of the machine's time.
            line.two("-accel", "tcg").two("-icount", "shift=1");
            // The kernel moves memory together now and then, which is unwanted work.
            extra += " transparent_hugepage=never";
        } else {
            line.two("-accel", "tcg,thread=multi");
            line.two("-device", "i6300esb").two("-action", "watchdog=inject-nmi");
            extra += " WATCHDOG=1 unknown_nmi_panic";
            // The other CPUs go on and feed the watchdog when one hangs with interrupts off. A stall is reported after
            // 21 s, and again after 63 s.
            extra += " sysctl.kernel.panic_on_rcu_stall=1 sysctl.kernel.max_rcu_stall_to_panic=2";
        }
        if self.host.reliable_tsc {
            extra += " tsc=reliable";
        }
        if self.host.disk.is_some() {
            extra += " DISK=1";
        }
        if self.host.uplink {
            extra += " UPLINK=1";
        }
        if let Some(taps) = self.taps {
            extra += &format!(" NETWORK={NETWORK}.1/24 TAPS={taps}");
        }
        if let Some(Wire { seat, .. }) = self.wire {
            extra += &format!(" WIRE={}/24", Ipv4Addr::from(wire_address(seat)));
        }
        if !self.host.cmdline.is_empty() {
            extra += &format!(" {}", self.host.cmdline);
        }
        // Emulated AMD SVM: the one way to have real KVM on any machine. Emulation copies strings step by
        // step: without ERMS kernels take a step per word, not per byte. The virtual GIF and VMSAVE are for
        // guests of guests: what is not emulated can't crash.
        line.two("-cpu", "max,+svm,-vgif,-v-vmsave-vmload,-erms,-fsrm");
        line.two("-smp", &self.host.cpus.to_string());
        line.two("-m", &format!("{}M", self.host.memory.as_mebibytes()));
        line.nodes(&self.host.nodes);
        line.common().one("-no-reboot");
        line.two("-serial", &format!("file:{}", escaped(self.console)));
        line.two("-kernel", &self.image.display().to_string());
        line.two("-initrd", &self.initrd.display().to_string());
        let term = std::env::var("TERM")
            .ok()
            .filter(|term| is_word(term))
            .unwrap_or_else(|| "dumb".to_owned());
        // With QEMU 7.2 the CPUs of a virtual host at times hang at one instruction of KVM, most likely in old code that
        // the kernel has patched since. A crash can be recognised and tried again, a hang can't: so the host panics. With
        // interrupts off the kernel does not see that it hangs; the watchdog's NMI tells it.
        line.two(
            "-append",
            &format!(
                "console=ttyS0 quiet loglevel=4 panic=-1 softlockup_panic=1 mitigations=off MODULES=\"{}\" RELEASE={} TERM={term} {}",
                self.kernel.modules().display(),
                self.kernel.release,
                extra
            ),
        );
        let shared = "security_model=none,multidevs=remap";
        line.two("-virtfs", &format!("local,path=/,mount_tag=machine,readonly=on,{shared}"));
        line.two(
            "-virtfs",
            &format!("local,path={},mount_tag=share,{shared}", escaped(self.share)),
        );
        if let Some(disk) = self.host.disk {
            // What is written there needs no safety, and must not wait for this machine's disk.
            let file = escaped(&disk_file(self.share));
            // What is larger than 64 KiB counts as several: few large requests keep the disk busy for long.
            let limit =
                disk.iops.map(|n| format!(",throttling.iops-total={n},throttling.iops-size=65536"));
            let limit = limit.unwrap_or_default();
            line.two("-drive", &format!("file={file},format=raw,if=virtio,cache=unsafe{limit}"));
        }
        if self.host.uplink {
            line.two(
                "-netdev",
                "user,id=uplink,net=10.20.0.0/24,host=10.20.0.1,dhcpstart=10.20.0.2",
            );
            line.two("-device", "virtio-net-pci,netdev=uplink");
        }
        if let Some(Wire { seat, socket }) = self.wire {
            line.two("-netdev", &format!("stream,id=wire,addr.type=fd,addr.str={socket}"));
            // Emulation takes its time for each packet, however long.
            let mac = format!("{WIRE_MAC}:{:02x}", wire_address(seat)[3]);
            line.two("-device", &format!("virtio-net-pci,netdev=wire,mac={mac},host_mtu=65000"));
        }
        line.two("-device", "virtio-serial-pci,max_ports=16");
        for (name, socket) in self.ports {
            line.two("-chardev", &format!("socket,id={name},fd={socket}"));
            line.two("-device", &format!("virtserialport,chardev={name},name={name}"));
        }
        if let Some(socket) = self.terminal {
            line.two("-chardev", &format!("socket,id=terminal,fd={socket}"));
            line.two("-device", "virtconsole,chardev=terminal");
        }
        line.words
    }
}

impl GuestMachine<'_> {
    pub(crate) fn arguments(&self) -> Vec<String> {
        let guest = self.guest;
        let mut line = Line::default();
        line.two("-name", &format!("{},debug-threads=on", guest.name));
        line.two("-accel", "kvm").two("-cpu", "host");
        if guest.is_microvm {
            line.two("-machine", "microvm");
        }
        // A microvm has no PCI.
        let bus = if guest.is_microvm { "device" } else { "pci" };
        let max = guest.max_cpus.map(|max| format!(",maxcpus={max}")).unwrap_or_default();
        line.two("-smp", &format!("{}{max}", guest.cpus));
        line.two("-m", &format!("{}M", guest.memory.as_mebibytes()));
        line.common();
        if !guest.reboot {
            line.one("-no-reboot");
        }
        match self.origin {
            Origin::Boot => {}
            Origin::File => {
                line.two("-incoming", &format!("exec:cat '{}'", self.state().display()));
            }
            Origin::Template(saved) => line.memory_file(guest, &saved.memory, "on"),
            Origin::Clone(saved) => {
                line.memory_file(guest, &saved.memory, "off");
                line.two("-incoming", "defer");
            }
        }
        if !matches!(self.origin, Origin::Clone(_)) {
            // Paused until its vCPUs are pinned. A clone waits for what was saved, and runs then.
            line.one("-S");
        }
        line.two("-qmp", &format!("unix:{},server=on,wait=off", escaped(&self.qmp())));
        if guest.migrates {
            // The layout daemon's own.
            let socket = escaped(&self.folder.join(format!("{}.layout", guest.name)));
            line.two("-qmp", &format!("unix:{socket},server=on,wait=off"));
        }
        line.two("-serial", &format!("file:{}", escaped(&self.console())));
        let kernel = match self.origin {
            Origin::Clone(saved) => &saved.kernel_head,
            _ => self.kernel,
        };
        line.two("-kernel", &kernel.display().to_string());
        line.two("-initrd", &self.initrd.display().to_string());
        line.two("-append", &self.kernel_line());
        if let Some(disk) = self.disk {
            // What the guest writes is thrown away.
            let format = disk_format(disk);
            let file = escaped(disk);
            let (kind, device) = match guest.is_microvm {
                true => ("none,id=root", Some("virtio-blk-device,drive=root")),
                false => ("virtio", None),
            };
            line.two("-drive", &format!("file={file},format={format},if={kind},snapshot=on"));
            device.map(|device| line.two("-device", device));
        }
        if guest.host_disk {
            // Past the host's memory, as it is usual: what the guest does not have in its own comes from the disk.
            line.two("-drive", &format!("file={HOST_DISK},format=raw,if=virtio,cache=none"));
        }
        if self.identity.is_none() && !guest.is_microvm {
            // The guest does not see it: QEMU's snapshots need a place.
            line.two("-drive", "if=none,id=snapshots,driver=null-co,size=8G,snapshot=on");
        }
        if guest.network {
            let (n, tap) = (self.index, self.tap());
            line.two("-netdev", &format!("tap,id=net,ifname={tap},script=no,downscript=no"));
            line.two("-device", &format!("virtio-net-pci,netdev=net,mac=52:54:00:10:00:{n:02x}"));
        }
        line.two("-device", &format!("virtio-serial-{bus}"));
        line.two("-chardev", &format!("socket,id=exec,path={}", escaped(&self.exec())));
        line.two("-device", &format!("virtserialport,chardev=exec,name={EXEC_PORT}"));
        if let Some(socket) = self.identity {
            line.two("-chardev", &format!("socket,id=identity,fd={socket}"));
            line.two("-device", &format!("virtserialport,chardev=identity,name={IDENTITY_PORT}"));
        }
        match guest.channel {
            Channel::Vsock => {
                line.two(
                    "-device",
                    &format!("vhost-vsock-{bus},guest-cid={}", FIRST_CID + self.index),
                );
            }
            Channel::Serial => {
                let socket = escaped(&self.folder.join(format!("{}.agent", guest.name)));
                line.two("-chardev", &format!("socket,id=agent,path={socket},server=on,wait=off"));
                line.two("-device", "virtserialport,chardev=agent,name=org.vmscope.guest.0");
            }
            Channel::None => {}
        }
        line.words
    }

    /// The socket at which its exec port's other end listens.
    pub(crate) fn exec(&self) -> PathBuf {
        exec_socket(self.folder, &self.guest.name)
    }

    /// The host's end of its network device. Those of templates and clones are made by their QEMU, and go with it.
    pub(crate) fn tap(&self) -> String {
        let prefix = if self.identity.is_some() { "vmlab" } else { "tap" };
        format!("{prefix}{}", self.index)
    }

    pub(crate) fn qmp(&self) -> PathBuf {
        self.folder.join(format!("{}.qmp", self.guest.name))
    }

    /// The file that it is saved to.
    pub(crate) fn state(&self) -> PathBuf {
        self.folder.join(format!("{}.state", self.guest.name))
    }

    pub(crate) fn console(&self) -> PathBuf {
        self.folder.join(format!("{}.console", self.guest.name))
    }

    /// Words the kernel does not know become the environment of PID 1.
    fn kernel_line(&self) -> String {
        let guest = self.guest;
        let mut line = format!("console=ttyS0 quiet loglevel=4 panic=-1 NAME={}", guest.name);
        for (i, workload) in guest.workload.iter().enumerate() {
            line += &format!(" W{i}=\"{}\"", workload.words().join(" "));
        }
        if guest.channel != Channel::None {
            line += " AGENT=1";
        }
        if self.disk.is_some() {
            line += " ROOT=disk";
        }
        match (&guest.init, self.identity) {
            (Some(init), _) => line += &format!(" INIT={}", init.display()),
            // It sleeps until a request, as no shell does.
            (None, Some(_)) => line += " IDENTITY=1",
            (None, None) => {}
        }
        if guest.network && self.identity.is_none() {
            line += &format!(" ADDRESS={NETWORK}.{}/24", FIRST_GUEST + self.index);
        }
        if guest.is_microvm {
            // It is reset by a triple fault only.
            line += &format!(" {} reboot=t mitigations=off", bochs::QUICK_BOOT);
        }
        if !guest.cmdline.is_empty() {
            line += &format!(" {}", guest.cmdline);
        }
        line
    }
}

impl LoneMachine<'_> {
    pub(crate) fn arguments(&self) -> Vec<String> {
        let machine = self.machine;
        let mut line = Line::default();
        match machine.accelerator {
            Accelerator::Emulation => line.two("-accel", "tcg,thread=multi").two("-cpu", "max"),
            Accelerator::Deterministic => {
                // One instruction takes 2 ns of the machine's time.
                line.two("-accel", "tcg").two("-icount", "shift=1").two("-cpu", "max")
            }
            Accelerator::Kvm => line.two("-accel", "kvm").two("-cpu", "host"),
        };
        line.two("-smp", &machine.cpus.to_string());
        line.two("-m", &format!("{}M", machine.memory_mib));
        line.common().one("-no-reboot");
        // A serial port is there, and paced as a real one: on a busy machine programs give up waiting for it. The debug
        // port takes the same lines, at once.
        line.two("-serial", "null");
        line.two("-chardev", &format!("socket,id=lines,fd={}", self.lines));
        line.two("-device", "isa-debugcon,iobase=0xe9,chardev=lines");
        line.two("-kernel", &machine.image.display().to_string());
        line.two("-append", &machine.command_line);
        for (kind, path) in self.disks {
            let (id, device) = match kind {
                Disk::Ata => ("ata", "ide-hd,drive=ata"),
                Disk::Virtio => ("virtio", "virtio-blk-pci,drive=virtio"),
                Disk::Nvme => ("nvme", "nvme,drive=nvme,serial=vmscope"),
            };
            line.two("-drive", &format!("if=none,id={id},format=raw,file={}", escaped(path)));
            line.two("-device", device);
        }
        line.words
    }
}

#[derive(Default)]
struct Line {
    words: Vec<String>,
}

impl Line {
    fn one(&mut self, word: &str) -> &mut Self {
        self.words.push(word.to_owned());
        self
    }

    fn two(&mut self, option: &str, value: &str) -> &mut Self {
        self.one(option).one(value)
    }

    /// No devices but those named, nothing shown.
    fn common(&mut self) -> &mut Self {
        self.one("-nodefaults").one("-no-user-config").two("-display", "none")
    }

    /// Memory in a file: `share` says whether what the guest writes goes there. The file may have huge pages, which can only
    /// be mapped at multiples of their size.
    fn memory_file(&mut self, guest: &Guest, file: &Path, share: &str) {
        let (size, file) = (guest.memory.as_mebibytes(), escaped(file));
        let object = format!(
            "memory-backend-file,id=memory,size={size}M,align=2M,mem-path={file},share={share}"
        );
        self.two("-object", &object).two("-machine", "pc,memory-backend=memory");
    }

    fn nodes(&mut self, nodes: &[Node]) {
        for (i, node) in nodes.iter().enumerate() {
            let size = node.memory.as_mebibytes();
            self.two("-object", &format!("memory-backend-ram,id=node{i},size={size}M"));
            let cpus: String = node.cpus.iter().map(|cpu| format!(",cpus={cpu}")).collect();
            self.two("-numa", &format!("node,nodeid={i},memdev=node{i}{cpus}"));
        }
        for (i, node) in nodes.iter().enumerate() {
            for (j, distance) in node.distances.iter().enumerate() {
                self.two("-numa", &format!("dist,src={i},dst={j},val={distance}"));
            }
        }
    }
}

/// In QEMU's options a comma is written twice.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// QEMU's own format is known by its first bytes; anything else is taken as it is.
fn disk_format(disk: &Path) -> &'static str {
    let mut magic = [0; 4];
    let read = std::fs::File::open(disk)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
    if read.is_ok() && magic == *b"QFI\xfb" { "qcow2" } else { "raw" }
}

fn is_word(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c))
}

#[cfg(test)]
mod tests;
