//! Network interfaces, by `/sys/class/net`.

use std::collections::BTreeSet;
use std::path::Path;

/// An interface whose packets begin with an Ethernet header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// `tap0`.
    pub name: String,
    pub(crate) index: i32,
    /// Packets that leave come in again.
    pub(crate) is_loopback: bool,
}

/// Why an interface can't be captured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InterfaceError {
    /// There is no such interface.
    #[error("there is no network interface {0}: see `ip link`")]
    None(String),
    /// A tun device, a tunnel.
    #[error("packets of {0} have no Ethernet header: choose another interface")]
    NotEthernet(String),
}

const ETHERNET: u32 = 1;
const LOOPBACK: u32 = 772;

/// The interface of this name.
///
/// # Errors
/// When it can't be captured.
pub fn named(sys: &Path, name: &str) -> Result<Interface, InterfaceError> {
    let none = || InterfaceError::None(name.to_owned());
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err(none());
    }
    let folder = sys.join("class/net").join(name);
    let number =
        |file: &str| std::fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u32>().ok();
    let kind = number("type").ok_or_else(none)?;
    let index = number("ifindex").and_then(|index| i32::try_from(index).ok()).ok_or_else(none)?;
    match kind {
        ETHERNET | LOOPBACK => {
            Ok(Interface { name: name.to_owned(), index, is_loopback: kind == LOOPBACK })
        }
        _ => Err(InterfaceError::NotEthernet(name.to_owned())),
    }
}

/// All tap devices: the host's ends of guests' network cards.
#[must_use]
pub fn taps(sys: &Path) -> Vec<Interface> {
    let entries = std::fs::read_dir(sys.join("class/net")).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().join("tun_flags").exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names.iter().filter_map(|name| named(sys, name).ok()).collect()
}

/// The taps of a process, as a VM's QEMU has them.
#[must_use]
pub fn taps_of(proc: &Path, sys: &Path, pid: u32) -> Vec<Interface> {
    let files = std::fs::read_dir(proc.join(format!("{pid}/fdinfo"))).into_iter().flatten();
    let texts = files.flatten().filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let names: BTreeSet<String> =
        texts.filter_map(|text| tap_in(&text).map(str::to_owned)).collect();
    names.iter().filter_map(|name| named(sys, name).ok()).collect()
}

/// The tap that an open file is, by its `/proc/PID/fdinfo`.
fn tap_in(fdinfo: &str) -> Option<&str> {
    fdinfo.lines().find_map(|line| line.strip_prefix("iff:")).map(str::trim)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn open_files_that_are_taps() {
        assert_eq!(tap_in("pos:\t0\nflags:\t0104002\niff:\tvnet1\n"), Some("vnet1"));
        assert_eq!(tap_in("pos:\t0\nflags:\t0104002\n"), None);
    }
}
