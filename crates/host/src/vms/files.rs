//! Files of a VMM's process, and those that it names: opened in its own root, bounded in size.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::manager::DomainStatus;
use super::{MAX_COMMAND_LINE, MAX_FILE, SocketAddress, bounded};
use crate::procfs::numbered_entries;
use crate::sockets::{VmmSocket, open_below};

/// Bytes of a control group's path, or of a host's name.
const MAX_LINE: u64 = 64 << 10;
/// Bytes of the kernel's list of Unix sockets.
const MAX_SOCKET_LIST: u64 = 16 << 20;
/// Open files of a process that are looked at.
const MAX_DESCRIPTORS: usize = 4096;
/// Threads of a process that are looked at.
const MAX_THREADS: usize = 64;
/// `__SO_ACCEPTCON` of include/linux/net.h: the socket listens.
const LISTENS: u32 = 1 << 16;

/// A process's files.
#[derive(Debug)]
pub(super) struct ProcessFiles<'a> {
    proc: &'a Path,
    pid: u32,
    /// Of a thread that lives: the first one's are gone once it has ended, though the others go on.
    directory: PathBuf,
}

impl<'a> ProcessFiles<'a> {
    pub(super) fn new(proc: &'a Path, pid: u32) -> Self {
        let process = proc.join(pid.to_string());
        let lives = |directory: &PathBuf| {
            read(&directory.join("cmdline"), 1).is_some_and(|it| !it.is_empty())
        };
        let tasks = process.join("task");
        let threads = || numbered_entries(&tasks).unwrap_or_default().into_iter().take(MAX_THREADS);
        let directory = match lives(&process) {
            true => None,
            false => threads().map(|tid| tasks.join(tid.to_string())).find(lives),
        };
        Self { proc, pid, directory: directory.unwrap_or(process) }
    }

    pub(super) fn command_line(&self) -> Vec<String> {
        let path = self.directory.join("cmdline");
        let mut bytes = read(&path, MAX_COMMAND_LINE).unwrap_or_default();
        if bytes.len() as u64 == MAX_COMMAND_LINE {
            // The last word may be a part of one.
            let last_end = bytes.iter().rposition(|byte| *byte == 0).unwrap_or(0);
            bytes.truncate(last_end);
        }
        let bytes = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
        let word = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
        bytes.split(|byte| *byte == 0).map(word).collect()
    }

    pub(super) fn cgroup(&self) -> String {
        read_text(&self.directory.join("cgroup"), MAX_LINE).unwrap_or_default()
    }

    /// The text of a file that the process names.
    pub(super) fn text(&self, path: &Path, most: u64) -> Option<String> {
        text_below(&self.root(), &self.absolute(path), most)
    }

    /// The name of the pod that the process is in: what its container takes for the host's. `None`: it is in no container.
    pub(super) fn pod_name(&self) -> Option<String> {
        let name = |root: &Path| bounded(&text_below(root, Path::new("/etc/hostname"), MAX_LINE)?);
        name(&self.root()).filter(|own| name(&self.host_root()).as_ref() != Some(own))
    }

    /// Proxmox' configuration of a VM.
    pub(super) fn proxmox(&self, id: &str) -> Option<String> {
        let path = Path::new("/etc/pve/qemu-server").join(format!("{id}.conf"));
        text_below(&self.host_root(), &path, MAX_FILE)
    }

    /// libvirt's status of a domain: the host's libvirt, or one in the process's container.
    pub(super) fn domain_status(
        &self,
        name: &str,
        is_it: impl Fn(&DomainStatus) -> bool,
    ) -> Option<DomainStatus> {
        if name.contains('/') || name.starts_with('.') {
            return None;
        }
        let identity = crate::identity::read(&self.proc.join(self.pid.to_string())).ok()?;
        let of_user = format!("/run/user/{}/libvirt/qemu/run", identity.user);
        let folders = ["/run/libvirt/qemu", "/run/libvirt/qemu/run", &of_user];
        let roots = [(self.host_root(), self.pid), (self.root(), identity.own_pid)];
        let files = roots.iter().flat_map(|(root, pid)| folders.map(|folder| (root, *pid, folder)));
        let statuses = files.filter_map(|(root, pid, folder)| {
            let path = Path::new(folder).join(format!("{name}.xml"));
            let status = DomainStatus::parse(&text_below(root, &path, MAX_FILE)?);
            // A VM may have another one's name.
            (status.pid == Some(pid)).then_some(status)
        });
        statuses.into_iter().find(is_it)
    }

    /// Where a socket is that the command line names.
    pub(super) fn socket(&self, address: &SocketAddress) -> Option<VmmSocket> {
        match address {
            SocketAddress::Path(path) => Some(self.place(&self.absolute(path), VmmSocket::named)),
            SocketAddress::Descriptor(number) => {
                let inode = self.socket_inode(&number.to_string())?;
                let path = self.listening(&[inode]).pop()?;
                Some(self.place(&path, VmmSocket::open_in))
            }
        }
    }

    /// The only Unix socket at which the process listens, but for one; `None`: there is none, or there are several.
    pub(super) fn only_listener(&self, except: Option<&Path>) -> Option<VmmSocket> {
        let except = except.map(|path| self.absolute(path));
        let descriptors = numbered_entries(&self.directory.join("fd")).unwrap_or_default();
        let descriptors = descriptors.into_iter().take(MAX_DESCRIPTORS);
        let inodes: Vec<u64> =
            descriptors.filter_map(|number| self.socket_inode(&number.to_string())).collect();
        let mut paths = self.listening(&inodes);
        paths.retain(|path| Some(&self.absolute(path)) != except.as_ref());
        let path = paths.pop().filter(|_| paths.is_empty())?;
        Some(self.place(&self.absolute(&path), VmmSocket::open_in))
    }

    fn socket_inode(&self, descriptor: &str) -> Option<u64> {
        let link = std::fs::read_link(self.directory.join("fd").join(descriptor)).ok()?;
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    }

    /// The paths of those of the sockets that listen.
    fn listening(&self, inodes: &[u64]) -> Vec<PathBuf> {
        if inodes.is_empty() {
            return Vec::new();
        }
        let Ok(file) = File::open(self.directory.join("net/unix")) else { return Vec::new() };
        let lines = BufReader::new(file.take(MAX_SOCKET_LIST)).split(b'\n').map_while(Result::ok);
        let sockets = lines.filter_map(|line| {
            parse_listening(&String::from_utf8_lossy(&line))
                .filter(|(inode, _)| inodes.contains(inode))
        });
        sockets.map(|(_, path)| path).collect()
    }

    /// In the process's own root, if the path is there; in the host's for a process which has changed its root since, but
    /// never for one in another mount namespace.
    fn place(&self, path: &Path, make: fn(PathBuf, PathBuf) -> VmmSocket) -> VmmSocket {
        let own = self.root();
        let found = open_below(&own, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC);
        let root = match found {
            Err(Errno::NOENT | Errno::NOTDIR) if self.is_in_hosts_namespace() => self.host_root(),
            // Its root is hidden from us.
            Err(Errno::ACCESS | Errno::PERM) => "/".into(),
            _ => own,
        };
        make(root, path.to_owned())
    }

    fn is_in_hosts_namespace(&self) -> bool {
        let namespace = |directory: &Path| std::fs::read_link(directory.join("ns/mnt")).ok();
        let hosts = namespace(&self.proc.join("1"));
        hosts.is_some() && namespace(&self.directory) == hosts
    }

    fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    /// The root of the host's first process: we may be in a container.
    fn host_root(&self) -> PathBuf {
        self.proc.join("1/root")
    }

    /// A path in the process's own root. It may have been given one relative to its own folder.
    fn absolute(&self, path: &Path) -> PathBuf {
        let link = |name| std::fs::read_link(self.directory.join(name)).ok();
        absolute(path, link("cwd").as_deref(), link("root").as_deref())
    }
}

/// The kernel shows a process's folder with what lies above the process's root.
fn absolute(path: &Path, cwd: Option<&Path>, root: Option<&Path>) -> PathBuf {
    let (Some(cwd), true) = (cwd, path.is_relative()) else { return path.to_owned() };
    let below = root.and_then(|root| cwd.strip_prefix(root).ok()).unwrap_or(cwd);
    Path::new("/").join(below).join(path)
}

/// Inode and path of a socket that listens, of a line of `/proc/net/unix`.
fn parse_listening(line: &str) -> Option<(u64, PathBuf)> {
    let mut fields = line.splitn(8, ' ').filter(|field| !field.is_empty());
    let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
    // Numbers have blanks before them.
    let mut rest = line.split_whitespace().skip(6);
    let inode = rest.next()?.parse().ok()?;
    let path = line.split_once(&format!(" {inode} ")).map(|(_, path)| path)?;
    (flags & LISTENS != 0 && !path.starts_with('@')).then(|| (inode, path.into()))
}

/// The text of a regular file below a root: devices and pipes are not opened.
fn text_below(root: &Path, path: &Path, most: u64) -> Option<String> {
    let file = open_below(root, path, OFlags::PATH | OFlags::CLOEXEC).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    read_text(Path::new(&format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())), most)
}

fn read_text(path: &Path, most: u64) -> Option<String> {
    crate::procfs::read_bounded(path, most).ok()
}

fn read(path: &Path, most: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(most).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn sockets_that_listen() {
        let check = |line: &str, expected: Option<(u64, &str)>| {
            let found = parse_listening(line);
            assert_eq!(found, expected.map(|(inode, path)| (inode, path.into())), "{line}");
        };
        check(
            "0000000000000000: 00000002 00000000 00010000 0001 01 24513 /run/a b.sock",
            Some((24513, "/run/a b.sock")),
        );
        check(
            "ffff9: 00000002 00000000 00010000 0001 01   513 /run/513 x",
            Some((513, "/run/513 x")),
        );
        check("0000: 00000003 00000000 00000000 0001 03 24513 /run/a.sock", None);
        check("0000: 00000002 00000000 00010000 0001 01 24513 @abstract", None);
        check("0000: 00000002 00000000 00010000 0001 01 24513", None);
        check("Num       RefCount Protocol Flags    Type St Inode Path", None);
        check("", None);
    }

    #[test]
    fn relative_paths() {
        let check = |path: &str, cwd: &str, root: &str, expected: &str| {
            let found = absolute(Path::new(path), Some(Path::new(cwd)), Some(Path::new(root)));
            assert_eq!(found, Path::new(expected));
        };
        check("/run/x", "/srv", "/", "/run/x");
        check("x", "/srv", "/", "/srv/x");
        check("./x", "/srv/jail/run", "/srv/jail", "/run/x");
        check("x", "/", "/", "/x");
        assert_eq!(absolute(Path::new("x"), None, None), Path::new("x"));
    }
}
