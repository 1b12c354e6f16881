//! What a VM's process says about it: name and ways to reach its guest, from QEMU's command line.
//! Guests of libvirt are QEMU processes like any other.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::procfs;

/// A VM as its process describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VmProcess {
    pub pid: u32,
    /// Its name; a VMM without one is named by its program and pid.
    pub name: String,
    /// Its UUID, as it was given.
    pub uuid: Option<String>,
    /// The user that runs it.
    pub user: u32,
    /// When its process began, in the kernel's ticks since the boot. 0: it has ended.
    pub began_ticks: u64,
    /// vsock context id of the guest.
    pub vsock_cid: Option<u32>,
    /// Unix socket of the virtio-serial port with vmscope's name.
    pub serial_socket: Option<PathBuf>,
    /// Unix socket of its QMP monitor; of several, the one that its command line names last.
    pub monitor: Option<PathBuf>,
}

/// Describes the VM run by process `pid`, whose serial port for us is named `port`.
///
/// Never fails: what can't be read is absent, and the name falls back to the process's.
#[must_use]
pub fn describe(proc: &Path, pid: u32, port: &str) -> VmProcess {
    let directory = proc.join(pid.to_string());
    let mut vm = parse_command_line(&command_line(proc, pid), port);
    vm.pid = pid;
    if vm.name.is_empty() {
        let comm = procfs::read_comm(&directory).unwrap_or_else(|_| "vm".to_owned());
        vm.name = format!("{comm}-{pid}");
    }
    vm.serial_socket = vm.serial_socket.map(|path| resolve(&directory, &path));
    vm.monitor = vm.monitor.map(|path| resolve(&directory, &path));
    // A process that has ended is not looked at.
    vm.began_ticks = crate::tasks::began_ticks(&directory);
    vm.user = crate::identity::read(&directory).map_or(0, |identity| identity.user);
    vm
}

/// Bytes of a command line that are read. Those of QEMU have some kilobytes.
const MAX_COMMAND_LINE: u64 = 256 << 10;

/// The words of a process's command line, without what is beyond the largest size; none of one that can't be read.
#[must_use]
pub fn command_line(proc: &Path, pid: u32) -> Vec<String> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(proc.join(pid.to_string()).join("cmdline"));
    let read = file.and_then(|file| file.take(MAX_COMMAND_LINE).read_to_end(&mut bytes));
    if read.is_ok_and(|n| n as u64 == MAX_COMMAND_LINE) {
        // The last word may be a part of one.
        let last_end = bytes.iter().rposition(|byte| *byte == 0).unwrap_or(0);
        bytes.truncate(last_end);
    }
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    let word = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    bytes.split(|byte| *byte == 0).map(word).collect()
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

/// QEMU may have been given a path relative to its own folder.
fn resolve(directory: &Path, path: &Path) -> PathBuf {
    match std::fs::read_link(directory.join("cwd")) {
        Ok(cwd) => cwd.join(path),
        Err(_) => path.to_owned(),
    }
}

/// Describes the VM that a QEMU with this command line runs.
#[must_use]
pub fn parse_command_line(arguments: &[String], port: &str) -> VmProcess {
    let mut vm = VmProcess::default();
    let mut port_chardev = None;
    let mut monitor = None;
    let mut sockets = Vec::new();
    for pair in arguments.windows(2) {
        let options = Options::parse(&pair[1]);
        match pair[0].as_str() {
            "-name" => {
                vm.name = options.get("guest").unwrap_or_else(|| options.first()).to_owned();
            }
            "-uuid" => vm.uuid = Some(pair[1].clone()),
            "-device" if options.driver().starts_with("vhost-vsock") => {
                vm.vsock_cid = options.get("guest-cid").and_then(|cid| cid.parse().ok());
            }
            "-device"
                if options.driver() == "virtserialport" && options.get("name") == Some(port) =>
            {
                port_chardev = options.get("chardev").map(str::to_owned);
            }
            "-chardev" if options.first() == "socket" => {
                let socket = options.get("id").zip(options.get("path"));
                sockets.extend(socket.map(|(id, path)| (id.to_owned(), PathBuf::from(path))));
            }
            "-mon" if options.get("mode") == Some("control") => {
                let chardev = options.get("chardev").map(str::to_owned);
                monitor = chardev.map(Monitor::Chardev).or(monitor);
            }
            "-qmp" | "-qmp-pretty" => {
                let path = options.first().strip_prefix("unix:").map(PathBuf::from);
                monitor = path.map(Monitor::Path).or(monitor);
            }
            _ => {}
        }
    }
    let path_of = |chardev: String| {
        sockets.iter().find(|(id, _)| *id == chardev).map(|(_, path)| path.clone())
    };
    vm.serial_socket = port_chardev.and_then(path_of);
    vm.monitor = match monitor {
        Some(Monitor::Path(path)) => Some(path),
        Some(Monitor::Chardev(chardev)) => path_of(chardev),
        None => None,
    };
    vm
}

/// How a command line names a monitor.
enum Monitor {
    Path(PathBuf),
    Chardev(String),
}

/// QEMU's `first,key=value,...`, or the flat JSON object that libvirt writes for `-device`.
struct Options {
    first: String,
    named: Vec<(String, String)>,
}

impl Options {
    fn parse(text: &str) -> Self {
        if text.starts_with('{') {
            return Self { first: String::new(), named: members(text).unwrap_or_default() };
        }
        let options = separated(text);
        let name = |option: &String| {
            option.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        let named = options.iter().filter_map(name).collect();
        Self { first: options.into_iter().next().unwrap_or_default(), named }
    }

    fn first(&self) -> &str {
        &self.first
    }

    fn driver(&self) -> &str {
        self.get("driver").unwrap_or_else(|| self.first())
    }

    /// Of an option that is given twice the last, as QEMU takes it.
    fn get(&self, key: &str) -> Option<&str> {
        self.named.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

/// What commas separate; two of them are one of the text.
fn separated(text: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let is_end = letter == ',' && letters.next_if_eq(&',').is_none();
        match options.last_mut().filter(|_| !is_end) {
            Some(option) => option.push(letter),
            None => options.push(String::new()),
        }
    }
    options
}

/// The members of a flat JSON object, whatever their values' types. `None`: it is no such object.
fn members(text: &str) -> Option<Vec<(String, String)>> {
    let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim_start();
    let mut members = Vec::new();
    while !rest.is_empty() {
        let (name, after) = string(rest)?;
        let value = after.trim_start().strip_prefix(':')?.trim_start();
        let (value, after) = match value.starts_with('"') {
            true => string(value)?,
            false => {
                let (value, after) = value.split_at(value.find(',').unwrap_or(value.len()));
                (value.trim_end().to_owned(), after)
            }
        };
        members.push((name, value));
        rest = after.trim_start();
        rest = rest.strip_prefix(',').map_or(rest, str::trim_start);
    }
    Some(members)
}

/// A string of JSON, and what follows it.
fn string(text: &str) -> Option<(String, &str)> {
    let inside = text.strip_prefix('"')?;
    let (mut value, mut letters) = (String::new(), inside.char_indices());
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &inside[at + 1..])),
            '\\' => value.push(match letters.next()?.1 {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'u' => {
                    let digit = |_| letters.next()?.1.to_digit(16);
                    let digits: Option<Vec<u32>> = (0..4).map(digit).collect();
                    let code = digits?.into_iter().fold(0, |code, digit| 16 * code + digit);
                    // Half of a pair is no character.
                    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
                }
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod test {
    use super::*;

    fn check(command_line: &str, name: &str, cid: Option<u32>, serial: Option<&str>) {
        let arguments: Vec<String> = command_line.split(' ').map(str::to_owned).collect();
        let vm = parse_command_line(&arguments, "org.vmscope.guest.0");
        let serial_socket = serial.map(Into::into);
        let expected =
            VmProcess { name: name.into(), vsock_cid: cid, serial_socket, ..VmProcess::default() };
        assert_eq!(vm, expected, "{command_line}");
    }

    #[test]
    fn command_lines() {
        check("qemu-system-x86_64 -name web,debug-threads=on", "web", None, None);
        check("qemu -name guest=db,debug-threads=on", "db", None, None);
        check("qemu -device vhost-vsock-pci,guest-cid=7", "", Some(7), None);
        check(
            r#"qemu -name guest=a -device {"driver":"vhost-vsock-pci","id":"v0","guest-cid":3,"vhostfd":"28"}"#,
            "a",
            Some(3),
            None,
        );
        check(
            "qemu -chardev socket,id=x,path=/run/x.sock,server=on -chardev socket,id=g,path=/run/g.sock \
             -device virtserialport,chardev=x,name=com.redhat.spice.0 \
             -device virtserialport,chardev=g,name=org.vmscope.guest.0",
            "",
            None,
            Some("/run/g.sock"),
        );
        check("qemu -name", "", None, None);
    }

    #[test]
    fn two_commas_are_one_of_a_value() {
        check("qemu -name guest=shop,,eu,debug-threads=on", "shop,eu", None, None);
        check("qemu -name shop,,eu,debug-threads=on", "shop,eu", None, None);
        check("qemu -name guest=,,", ",", None, None);
        check("qemu -name guest=a,,,debug-threads=on", "a,", None, None);
        check("qemu -name guest=a,guest=b", "b", None, None);
        check("qemu -name guest=a,,guest=b", "a,guest=b", None, None);
        check(
            "qemu -chardev socket,id=g,,1,path=/run/a,,b.sock -device virtserialport,chardev=g,,1,name=org.vmscope.guest.0",
            "",
            None,
            Some("/run/a,b.sock"),
        );
        let monitor = |line: &str| {
            let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
            parse_command_line(&arguments, "").monitor
        };
        let expected = Some(PathBuf::from("/run/a,b"));
        assert_eq!(monitor("qemu -qmp unix:/run/a,,b,server=on"), expected);
        assert_eq!(
            monitor("qemu -chardev socket,path=/run/a,,b,id=m,,n -mon mode=control,chardev=m,,n"),
            expected
        );
    }

    #[test]
    fn devices_in_json() {
        let device =
            |json: &str, cid: Option<u32>| check(&format!("qemu -device {json}"), "", cid, None);
        device(r#"{"driver":"vhost-vsock-pci","id":"a,b","guest-cid":3}"#, Some(3));
        device(r#"{"driver":"vhost-vsock-pci","id":"\"guest-cid\":4","guest-cid":5}"#, Some(5));
        device(r#"{"driver":"vhost-\u0076sock-pci","guest-cid":"6"}"#, Some(6));
        for odd in [
            "{",
            "{}",
            r#"{"driver"}"#,
            r#"{"driver":"vhost-vsock-pci","guest-cid":3"#,
            r#"{"a":"\u12"}"#,
            "{,}",
        ] {
            device(odd, None);
        }
        check(
            r#"qemu -chardev socket,id=g,path=/run/g -device {"chardev":"g","name":"org.vmscope.guest.0","driver":"virtserialport"}"#,
            "",
            None,
            Some("/run/g"),
        );
    }

    #[test]
    fn the_last_monitor_is_ours() {
        let check = |command_line: &str, expected: Option<&str>| {
            let arguments: Vec<String> = command_line.split(' ').map(str::to_owned).collect();
            let found = parse_command_line(&arguments, "").monitor;
            assert_eq!(found.as_deref(), expected.map(Path::new), "{command_line}");
        };
        check("qemu -name a", None);
        check("qemu -qmp unix:/run/a.qmp,server=on,wait=off", Some("/run/a.qmp"));
        let libvirt = "qemu -chardev socket,id=charmonitor,fd=28 -mon chardev=charmonitor,id=monitor,mode=control";
        check(libvirt, None);
        check(&format!("{libvirt} -qmp unix:/run/b.qmp"), Some("/run/b.qmp"));
        check(
            "qemu -chardev socket,id=m,path=/run/c.qmp -mon chardev=m,mode=control -mon chardev=x",
            Some("/run/c.qmp"),
        );
        check("qemu -qmp tcp:localhost:4444", None);
    }

    #[test]
    fn uuid_and_user_tell_vms_apart() {
        let vm = |arguments: &str, user| {
            let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
            VmProcess { user, ..parse_command_line(&arguments, "port") }.identity()
        };
        let uuid = "-uuid 6F9619FF-8B86-D011-B42D-00CF4FC964FF";
        let own = "64055 uuid 6f9619ff-8b86-d011-b42d-00cf4fc964ff";
        assert_eq!(vm(&format!("qemu -name web {uuid}"), 64055), own);
        assert_eq!(vm(&format!("qemu -name db {uuid}"), 64055), own);
        assert_eq!(vm("qemu -name web", 64055), "64055 name web");
        assert_ne!(vm("qemu -name web", 1000), vm("qemu -name web", 64055));
    }

    #[test]
    fn long_command_lines_are_cut_between_words() {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir(proc.path().join("7")).unwrap();
        let words = |line: &[u8]| {
            std::fs::write(proc.path().join("7/cmdline"), line).unwrap();
            command_line(proc.path(), 7)
        };
        assert_eq!(words(b"qemu\0-name\0web\0"), ["qemu", "-name", "web"]);
        let long = [b"qemu\0-name\0".to_vec(), vec![b'x'; 1 << 20]].concat();
        assert_eq!(words(&long), ["qemu", "-name"]);
        assert_eq!(command_line(proc.path(), 8), [""]);
    }
}
