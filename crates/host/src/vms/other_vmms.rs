//! Command lines of VMMs other than QEMU: Firecracker, cloud-hypervisor, crosvm, kvmtool, gVisor.
//!
//! All have long options, as `--key value` or `--key=value`. Their names differ little, so one reader does for all.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::qemu::Options;
use super::{number, valid_uuid};

/// What the command line of such a VMM says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OtherVmm {
    pub(super) name: Option<String>,
    pub(super) uuid: Option<String>,
    /// Of a vsock device of the host's kernel.
    pub(super) vsock_cid: Option<u32>,
    /// Of one that the VMM has itself: the Unix socket that leads to it.
    pub(super) vsock_socket: Option<PathBuf>,
    /// The socket of its API.
    pub(super) api: Option<PathBuf>,
    /// A file of further options (JSON).
    pub(super) config: Option<PathBuf>,
}

/// Names of programs that are such VMMs.
const PROGRAMS: &[&str] =
    &["cloud-hypervisor", "crosvm", "firecracker", "kvmtool", "lkvm", "runsc"];

/// Whether a program of this name is such a VMM.
pub(super) fn is_one(program: &str) -> bool {
    PROGRAMS.iter().any(|name| program.starts_with(name))
}

/// The VMM's name: a program's may have a version.
pub(super) fn name(program: &str) -> &str {
    PROGRAMS.iter().find(|name| program.starts_with(**name)).unwrap_or(&program)
}

/// Whether the VMM keeps its vsock device's path for itself, unless a file says it: then its listening sockets tell.
pub(super) fn may_hide_vsock(program: &str) -> bool {
    program.starts_with("firecracker") || program.starts_with("cloud-hypervisor")
}

impl OtherVmm {
    /// Of its words, without the program's name, and the text of its file of options.
    pub(super) fn parse(program: &str, words: &[String], config: &str) -> Self {
        let mut found = Self::default();
        let mut words = words.iter().peekable();
        let mut last = None;
        while let Some(word) = words.next() {
            let Some(option) = word.strip_prefix("--").filter(|option| !option.is_empty()) else {
                last = Some(word);
                continue;
            };
            let (key, value) = match option.split_once('=') {
                Some((key, value)) => (key, value),
                None => match words.next_if(|next| !next.starts_with('-')) {
                    Some(value) => (option, value.as_str()),
                    None => continue,
                },
            };
            found.add(program, key, value);
        }
        if program.starts_with("runsc") {
            // A sandbox's id ends its command line.
            found.name = last.filter(|id| !id.starts_with('-')).cloned();
        }
        found.add_config(config);
        found
    }

    fn add(&mut self, program: &str, key: &str, value: &str) {
        match key {
            "id" | "name" => self.name = Some(value.to_owned()),
            "platform" => self.uuid = Options::parse(value, "").get("uuid").and_then(valid_uuid),
            "api-sock" | "api-socket" | "socket" => {
                let options = Options::parse(value, "path");
                self.api = options.get("path").map(PathBuf::from);
            }
            "cid" => self.vsock_cid = number(value),
            "vsock" => {
                let options = Options::parse(value, "cid");
                // Without a socket the device is the kernel's.
                match options.get("socket") {
                    Some(socket) => self.vsock_socket = Some(socket.into()),
                    None => self.vsock_cid = options.get("cid").and_then(number),
                }
            }
            "config-file" if program.starts_with("firecracker") => {
                self.config = Some(value.into());
            }
            _ => {}
        }
    }

    /// Firecracker's file has what can be said to its API.
    fn add_config(&mut self, text: &str) {
        let config: Value = serde_json::from_str(text).unwrap_or_default();
        let socket = config["vsock"]["uds_path"].as_str();
        self.vsock_socket = socket.map(PathBuf::from).or(self.vsock_socket.take());
    }

    /// The name of a VM that has none of its own: its API socket's. What programs call such sockets by themselves is none; then
    /// its folder may be the VM's.
    pub(super) fn name_by_api(&self) -> Option<String> {
        const GENERIC: &[&str] = &[
            "api",
            "ch",
            "clh",
            "clh-api",
            "cloud-hypervisor",
            "control",
            "crosvm",
            "fc",
            "firecracker",
            "root",
            "run",
            "socket",
            "tmp",
            "vm",
            "vmm",
        ];
        let path = self.api.as_deref()?;
        let own = path.file_stem();
        let folder = path.parent().and_then(Path::file_name);
        let names = [own, folder].into_iter().flatten().filter_map(|name| name.to_str());
        let mut names = names.filter(|name| !GENERIC.contains(name));
        names.next().map(str::to_owned)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_by_sockets() {
        let check = |api: &str, expected: Option<&str>| {
            let vmm = OtherVmm { api: Some(api.into()), ..OtherVmm::default() };
            assert_eq!(vmm.name_by_api().as_deref(), expected, "{api}");
        };
        check("/run/ch/web.sock", Some("web"));
        check("/run/vc/vm/8f2a/clh-api.sock", Some("8f2a"));
        check("/tmp/firecracker.socket", None);
        check("/", None);
    }

    #[test]
    fn odd_words() {
        let check = |words: &str| {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            OtherVmm::parse("cloud-hypervisor", &words, "{")
        };
        assert_eq!(check("--"), OtherVmm::default());
        assert_eq!(check("--id"), OtherVmm::default());
        assert_eq!(check("--vsock socket=,cid=x --platform uuid=1").uuid, None);
        assert_eq!(check("--id --name=a").name.as_deref(), Some("a"));
    }
}
