//! Many guests from one: it boots once and is saved when its programs are warm; clones start from what was saved.
//!
//! ```text
//!  boot --> ready --> identify --> (the caller warms it up) --> save --> start_clone --> identify
//!                                                                        start_clone --> identify ...
//! ```
//!
//! The memory of the template is a file that all clones map, and each has copies of the pages that it writes to. A clone
//! begins as the template ended, so it gets its identity before its network device joins the bridge: host name, machine
//! id, addresses, the time, and a seed for its random numbers, which would be the same in all clones.

use std::fs;
use std::io::Read;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::guest_vm::GuestVm;
use crate::plan::Boot;
use crate::process;
use crate::qemu::{Origin, Saved};
use crate::scenario::Guest;

/// The setup code of a kernel, whose header QEMU reads, is 33 KiB at most. More than that must follow.
const KERNEL_HEAD: u64 = 64 << 10;

/// A guest that others start from.
#[derive(Debug)]
pub struct Template {
    guest: Guest,
    boot: Boot,
    folder: PathBuf,
    saved: Saved,
}

/// A running guest: the template itself, or a clone.
#[derive(Debug)]
pub struct Instance {
    vm: GuestVm,
}

/// What tells a clone from others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its host name.
    pub name: String,
    /// The MAC address of its network device.
    pub mac: [u8; 6],
    pub address: Ipv4Addr,
    /// How many bits of the address are its network's.
    pub prefix: u8,
    pub unix_ns: u64,
    /// What its random numbers and its machine id are made of.
    pub seed: [u8; 32],
}

/// The network of the clones and their host.
#[derive(Debug)]
pub struct Bridge {
    name: String,
}

impl Template {
    /// Prepares a template; its files will be in `folder`, which must be in memory (tmpfs) for clones to share it.
    ///
    /// # Errors
    /// When the folder can't be made.
    pub fn new(mut guest: Guest, boot: Boot, folder: &Path) -> Result<Self, Error> {
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        guest.network = true;
        let file = |name: &str| folder.join(name);
        let saved = Saved {
            memory: file("memory"),
            devices: file("devices"),
            kernel_head: file("kernel-head"),
        };
        let mut head = Vec::new();
        fs::File::open(&boot.kernel)
            .and_then(|kernel| kernel.take(KERNEL_HEAD).read_to_end(&mut head))
            .map_err(Error::io("read", &boot.kernel))?;
        fs::write(&saved.kernel_head, head).map_err(Error::io("write", &saved.kernel_head))?;
        Ok(Self { guest, boot, folder: folder.to_owned(), saved })
    }

    /// Boots it; returns when its workloads have been started. The guest ends with the calling thread.
    ///
    /// # Errors
    /// When it does not boot; its last words are in the message.
    pub fn boot(&self) -> Result<Instance, Error> {
        let origin = Origin::Template(&self.saved);
        let vm = GuestVm::start(&self.guest, 0, &self.boot, &self.folder, origin)?;
        vm.wait_ready().map_err(|problem| {
            let problem = format!("{problem}: {}", vm.last_words(&self.folder));
            Error::Guest { guest: self.guest.name.clone(), problem }
        })?;
        Ok(Instance { vm })
    }

    /// Saves what it has become, and ends it.
    ///
    /// # Errors
    /// When QEMU can't.
    pub fn save(&self, original: Instance) -> Result<(), Error> {
        let failed = |error: String| Error::Guest {
            guest: self.guest.name.clone(),
            problem: format!("was not saved: {error}"),
        };
        original.vm.save_devices(&self.saved.devices).map_err(failed)
    }

    /// Starts a clone; `number` (1 and up) is its own. It runs when this returns, and has no identity yet.
    ///
    /// # Errors
    /// When QEMU does not take in what was saved.
    pub fn start_clone(&self, number: usize, name: &str) -> Result<Instance, Error> {
        let guest = Guest { name: name.to_owned(), ..self.guest.clone() };
        let origin = Origin::Clone(&self.saved);
        Ok(Instance { vm: GuestVm::start(&guest, number, &self.boot, &self.folder, origin)? })
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        let Saved { memory, devices, kernel_head } = &self.saved;
        for file in [memory, devices, kernel_head] {
            // It is in memory: what stays would use it up. Without the file there is nothing to remove.
            let _ = fs::remove_file(file);
        }
    }
}

impl Instance {
    /// Gives it its identity, and joins it to the bridge.
    ///
    /// # Errors
    /// When the guest refuses it, or there is no such bridge.
    pub fn identify(&self, identity: &Identity, bridge: &Bridge) -> Result<(), Error> {
        self.vm.identify(&identity.line())?;
        bridge.join(self.vm.tap())
    }

    /// The process of its QEMU.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.vm.pid()
    }

    /// The template's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.vm.name()
    }

    /// Whether its QEMU is gone although it was not ended.
    #[must_use]
    pub fn has_died(&self) -> bool {
        self.vm.has_died()
    }
}

impl Identity {
    /// As `workloads/identity.c` reads it.
    fn line(&self) -> String {
        let hex = |bytes: &[u8], between: &str| {
            bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(between)
        };
        let Self { name, address, prefix, unix_ns, .. } = self;
        let (mac, seed) = (hex(&self.mac, ":"), hex(&self.seed, ""));
        format!("{name} {mac} {address}/{prefix} {unix_ns} {seed}")
    }
}

impl Bridge {
    /// Makes a bridge in which the host has this address.
    ///
    /// # Errors
    /// When the kernel refuses, or there is one of this name that is used.
    pub fn create(name: &str, address: Ipv4Addr, prefix: u8) -> Result<Self, Error> {
        // Where they are built in, nothing happens.
        let _ = process::tool("modprobe", "kmod")
            .and_then(|mut modprobe| process::run(modprobe.args(["-qa", "bridge", "tun"])));
        if Path::new("/sys/class/net").join(name).exists() {
            // What a killed run left has no ports any more.
            Self { name: name.to_owned() }.remove()?;
        }
        busybox(&["brctl", "addbr", name])?;
        let bridge = Self { name: name.to_owned() };
        busybox(&["ip", "addr", "add", &format!("{address}/{prefix}"), "dev", name])?;
        busybox(&["ip", "link", "set", name, "up"])?;
        Ok(bridge)
    }

    fn join(&self, tap: &str) -> Result<(), Error> {
        busybox(&["brctl", "addif", &self.name, tap])?;
        busybox(&["ip", "link", "set", tap, "up"])
    }

    fn remove(&self) -> Result<(), Error> {
        let ports = Path::new("/sys/class/net").join(&self.name).join("brif");
        if fs::read_dir(&ports).is_ok_and(|mut ports| ports.next().is_some()) {
            let problem = format!("has a bridge {} in use: does another lab run?", self.name);
            return Err(Error::Host { problem });
        }
        busybox(&["ip", "link", "set", &self.name, "down"])?;
        busybox(&["brctl", "delbr", &self.name])
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        // Its ports have gone with their QEMUs; the next run removes what stays.
        let _ = self.remove();
    }
}

fn busybox(arguments: &[&str]) -> Result<(), Error> {
    process::run(process::tool("busybox", "busybox-static")?.args(arguments)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_one_line() {
        let identity = Identity {
            name: "vm7".to_owned(),
            mac: [0x52, 0x54, 0, 0x10, 1, 7],
            address: Ipv4Addr::new(10, 77, 0, 9),
            prefix: 16,
            unix_ns: 1_700_000_000_123_456_789,
            seed: [0xa5; 32],
        };
        let expected =
            format!("vm7 52:54:00:10:01:07 10.77.0.9/16 1700000000123456789 {}", "a5".repeat(32));
        assert_eq!(identity.line(), expected);
    }
}
