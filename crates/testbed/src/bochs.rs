//! Bochs, the emulator of hosts with an Intel CPU: what it is started with, and what comes back.
//!
//! ```text
//!  root.img    ATA disk, read-only   programs of this machine, the kernel's modules    (in the cache)
//!  share.img   ATA disk              the run's folder; the command's files come back in it
//!  boot.iso    CD                    GRUB, kernel, initial RAM file system             (in the cache)
//!  console     first serial port     then the command's output, its errors, and events and orders
//! ```
//!
//! Bochs has no virtio, no shared folders and no way to load a kernel itself. Its time is the number of instructions, so
//! nothing in it depends on how quick this machine is. With two CPUs guests hang in it.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::cache::{Cache, Key};
use crate::error::Error;
use crate::kernel::Kernel;
use crate::process;
use crate::scenario::{Host, Size};

const PROGRAM: &str = "bochs";
const PACKAGES: &str = "bochs bochsbios vgabios bochs-term";

/// The names of the machine's files, in the run's folder.
const SHARE_DISK: &str = "share.img";
const ROOT_DISK: &str = "root.img";
const DISC: &str = "boot.iso";
const CONFIGURATION: &str = "bochsrc";
/// How long Bochs may take until it draws its screen.
const TO_START: Duration = Duration::from_secs(60);
/// The folder of the command's files on the share's disk.
const OUT: &str = "out";

/// Instructions in a second of its time. Most of what a kernel does while it boots is to wait for a time, so fewer are
/// quicker; with more, timers leave guests more of a second.
const INSTRUCTIONS_PER_SECOND: u32 = 100_000_000;

/// Words on the command line of the host's kernel and of its guest's. They leave out what would take seconds of emulation: a look
/// at clocks that microvms lack, tests of ciphers, the collection of random numbers, the keys of modules' signatures.
pub(crate) const QUICK_BOOT: &str = "tsc=reliable no_timer_check cryptomgr.notests \
initcall_blacklist=cmos_init,jent_mod_init,load_system_certificate_list,bpf_tcp_ca_kfunc_init,bpf_dummy_struct_ops_init";

/// The numbers of the open files that the second to fourth serial ports are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SerialPorts {
    pub(crate) out: i32,
    pub(crate) err: i32,
    /// A terminal: it has two directions.
    pub(crate) events: i32,
}

/// The command that runs the machine whose disks are in `folder`.
pub(crate) fn command(folder: &Path, memory: Size, ports: SerialPorts) -> Result<Command, Error> {
    let path = folder.join(CONFIGURATION);
    fs::write(&path, configuration(memory, ports)).map_err(Error::io("write", &path))?;
    let mut command = process::tool(PROGRAM, PACKAGES)?;
    command.args(["-q", "-f", CONFIGURATION]).current_dir(folder).env("TERM", "linux");
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    Ok(command)
}

/// Debian's Bochs has a debugger, which waits for an order to go on.
pub(crate) fn go_on(bochs: &mut Child) -> io::Result<()> {
    bochs.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(b"c\n"))
}

/// Reads what the machine's screen shows, as long as Bochs runs. Bochs draws it on a terminal that it makes, says in its log
/// which one that is, and stops when nothing is read there.
pub(crate) fn read_screen(log: PathBuf) {
    std::thread::spawn(move || {
        let start = Instant::now();
        while start.elapsed() < TO_START {
            if let Some(mut screen) = screen(&fs::read(&log).unwrap_or_default()) {
                // It ends with an error when Bochs does.
                let _ = io::copy(&mut screen, &mut io::sink());
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    });
}

fn screen(log: &[u8]) -> Option<fs::File> {
    let log = String::from_utf8_lossy(log);
    let (_, rest) = log.split_once("connected to screen \"")?;
    let (path, _) = rest.split_once('"')?;
    // It must not become this process's terminal.
    let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).ok().map(fs::File::from)
}

/// Lays the machine's disks in `folder`; those of the cache stay where they are.
pub(crate) fn lay_disks(folder: &Path, disc: &Path, root: &Path) -> Result<(), Error> {
    for (name, file) in [(DISC, disc), (ROOT_DISK, root)] {
        let link = folder.join(name);
        symlink(file, &link).map_err(Error::io("create", &link))?;
    }
    Ok(())
}

/// Where the disk with the run's folder is kept.
pub(crate) fn share_disk(folder: &Path) -> PathBuf {
    folder.join(SHARE_DISK)
}

/// Copies what the command wrote from the disk to `folder`.
pub(crate) fn bring_back(folder: &Path) -> Result<(), Error> {
    let mut debugfs = process::tool("debugfs", "e2fsprogs")?;
    let request = format!("rdump /{OUT} .");
    process::run(debugfs.args(["-R", &request, SHARE_DISK]).current_dir(folder)).map(drop)
}

/// The disc that the machine boots from, from the cache.
pub(crate) fn disc(
    cache: &Cache,
    host: &Host,
    kernel: &Kernel,
    initrd: &Path,
) -> Result<PathBuf, Error> {
    let menu = menu(&host.cmdline);
    let mut key = Key::new("host-disc");
    key.add(menu.as_bytes()).add(kernel.image().as_os_str().as_encoded_bytes());
    key.add(initrd.as_os_str().as_encoded_bytes());
    let folder = cache.folder(&key, |folder| {
        let content = folder.join("content");
        let grub = content.join("boot/grub");
        fs::create_dir_all(&grub).map_err(Error::io("create", &grub))?;
        for (from, name) in [(kernel.image().as_path(), "kernel"), (initrd, "initrd")] {
            fs::copy(from, content.join(name)).map_err(Error::io("copy", from))?;
        }
        let path = grub.join("grub.cfg");
        fs::write(&path, &menu).map_err(Error::io("write", &path))?;
        // The other parts of GRUB need not be there.
        let mut mkrescue =
            process::tool("grub-mkrescue", "grub-common grub-pc-bin xorriso mtools")?;
        mkrescue.args(["-d", "/usr/lib/grub/i386-pc", "-o"]).arg(folder.join(DISC)).arg(&content);
        process::run(&mut mkrescue)?;
        fs::remove_dir_all(&content).map_err(Error::io("remove", &content))
    })?;
    Ok(folder.join(DISC))
}

/// GRUB's commands. A kernel that panicked starts the machine again, which ends it then: a bit of its CMOS says that it was
/// started before.
fn menu(cmdline: &str) -> String {
    format!(
        "set timeout=0
if cmostest 0x70:0; then halt; fi
cmosset 0x70:0
linux /kernel console=ttyS0,115200 quiet loglevel=4 panic=-1 mitigations=off nowatchdog vt.global_cursor_default=0 {QUICK_BOOT} INTEL=1 TERM=dumb {cmdline}
initrd /initrd
boot
"
    )
}

fn configuration(memory: Size, ports: SerialPorts) -> String {
    let SerialPorts { out, err, events } = ports;
    let memory = memory.as_mebibytes();
    // The model has no CPUID leaf with the frequency of the TSC, which Bochs would have wrong. Each VM entry is an `error`:
    // an MSR that it does not know. Power off is a panic to Bochs.
    format!(
        "config_interface: textconfig
display_library: term
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/vgabios/vgabios.bin
memory: guest={memory}, host={memory}
boot: cdrom
log: /dev/null
panic: action=fatal
error: action=ignore
info: action=ignore
debug: action=ignore
cpu: model=corei7_haswell_4770, count=1, ips={INSTRUCTIONS_PER_SECOND}, reset_on_triple_fault=0
clock: sync=none, time0=utc
pci: enabled=1, chipset=i440fx
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata1: enabled=1, ioaddr1=0x170, ioaddr2=0x370, irq=15
ata0-master: type=disk, path={ROOT_DISK}, mode=flat
ata0-slave: type=disk, path={SHARE_DISK}, mode=flat
ata1-master: type=cdrom, path={DISC}, status=inserted
com1: enabled=1, mode=file, dev=console
com2: enabled=1, mode=file, dev=/dev/fd/{out}
com3: enabled=1, mode=file, dev=/dev/fd/{err}
com4: enabled=1, mode=term, dev=/dev/fd/{events}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    #[test]
    fn the_configuration() {
        let ports = SerialPorts { out: 5, err: 6, events: 7 };
        let text = configuration(Size::mebibytes(1024), ports);
        golden::check("bochsrc.txt", &(text + "\n" + &menu("numa=off")));
    }
}
