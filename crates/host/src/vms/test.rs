//! The command lines of tests/golden/host.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;

use super::*;

const PORT: &str = "org.vmscope.guest.0";
const PID: u32 = 7;

/// A host with one process that runs a VM.
struct Machine {
    folder: tempfile::TempDir,
    n_listening: u32,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap(), n_listening: 0 };
        machine.write("proc/7/comm", "qemu\n");
        machine.status(0);
        machine
            .write("proc/7/net/unix", "Num       RefCount Protocol Flags    Type St Inode Path\n");
        for (pid, root) in [("7", "own"), ("1", "host")] {
            fs::create_dir_all(machine.path(root)).unwrap();
            fs::create_dir_all(machine.path(&format!("proc/{pid}/fd"))).unwrap();
            symlink(machine.path(root), machine.path(&format!("proc/{pid}/root"))).unwrap();
        }
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn status(&self, user: u32) {
        let text = format!("Uid:\t{user}\t{user}\t{user}\t{user}\nNSpid:\t7\t21\n");
        // Outside of a container there is one number.
        let text = if user == 107 { text } else { text.replace("\t21", "") };
        self.write("proc/7/status", &text);
    }

    /// A line of the golden file that is not the command line.
    fn add(&mut self, line: &str) {
        let (what, rest) = line.split_once(' ').unwrap();
        let rest = rest.replace("\\n", "\n");
        match what {
            "cgroup" => self.write("proc/7/cgroup", &format!("{rest}\n")),
            "comm" => self.write("proc/7/comm", &rest),
            "uid" => self.status(rest.parse().unwrap()),
            "cwd" => symlink(&rest, self.path("proc/7/cwd")).unwrap(),
            "listens" => {
                let (descriptor, path) = rest.split_once(' ').unwrap();
                self.n_listening += 1;
                let inode = 500 + self.n_listening;
                let link = self.path(&format!("proc/7/fd/{descriptor}"));
                symlink(format!("socket:[{inode}]"), link).unwrap();
                let list = self.path("proc/7/net/unix");
                let line = format!("0000: 00000002 00000000 00010000 0001 01 {inode} {path}\n");
                fs::write(&list, fs::read_to_string(&list).unwrap() + &line).unwrap();
            }
            "own" | "host" => {
                let (path, text) = rest.split_once(' ').unwrap_or((&rest, ""));
                if !path.ends_with('/') {
                    self.write(&format!("{what}{path}"), text);
                }
            }
            other => panic!("{other}"),
        }
    }

    fn run(&self, command_line: &str) -> VmProcess {
        let line: String = words(command_line).iter().map(|word| format!("{word}\0")).collect();
        self.write("proc/7/cmdline", &line);
        describe(&self.path("proc"), PID, PORT)
    }
}

/// Words as a shell takes them, with no other quotes than `'`.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = vec![String::new()];
    for (number, part) in line.split('\'').enumerate() {
        match number % 2 {
            0 => {
                let mut parts = part.split(' ');
                words.last_mut().unwrap().push_str(parts.next().unwrap());
                words.extend(parts.map(str::to_owned));
            }
            _ => words.last_mut().unwrap().push_str(part),
        }
    }
    words
}

/// What was found, a line for each.
fn lines(vm: &VmProcess) -> String {
    let VmProcess { name, vsock_cid, vsock_socket, serial_socket, monitor, labels, .. } = vm;
    let mut text = format!("> name {name:?}\n");
    let mut add = |what: &str, value: Option<String>| {
        if let Some(value) = value {
            writeln!(text, "> {what} {value}").unwrap();
        }
    };
    add("vsock", vsock_cid.map(|cid| cid.to_string()));
    add("vsock socket", vsock_socket.as_ref().map(ToString::to_string));
    add("port", serial_socket.as_ref().map(ToString::to_string));
    add("monitor", monitor.as_ref().map(ToString::to_string));
    for (name, value) in VmLabels::NAMES.into_iter().zip(labels.values()) {
        add(name, value.map(|value| format!("{value:?}")));
    }
    text
}

#[test]
fn command_lines() {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/host/command-lines.txt");
    let expected = fs::read_to_string(&file).unwrap();
    let mut cases = expected.split("\n== ");
    let mut found = cases.next().unwrap().to_owned();
    for case in cases {
        let mut machine = Machine::new();
        let case: Vec<&str> = case.lines().filter(|line| !line.starts_with('>')).collect();
        write!(found, "\n== {}\n", case[0]).unwrap();
        for line in case[1..].iter().filter(|line| !line.is_empty()) {
            writeln!(found, "{line}").unwrap();
            match line.strip_prefix("$ ") {
                Some(command_line) => found.push_str(&lines(&machine.run(command_line))),
                None => machine.add(line),
            }
        }
    }
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, &found).unwrap();
        return;
    }
    assert!(expected == found, "UPDATE=1 rewrites {}:\n{found}", file.display());
}

#[test]
fn uuid_and_user_tell_vms_apart() {
    let vm = |arguments: &str, user| {
        let qemu = Qemu::parse(&words(arguments), "", PORT);
        let name = qemu.name.unwrap_or_default();
        VmProcess { user, name, uuid: qemu.uuid, ..VmProcess::default() }.identity()
    };
    let uuid = "-uuid 6F9619FF-8B86-D011-B42D-00CF4FC964FF";
    let own = "64055 uuid 6f9619ff-8b86-d011-b42d-00cf4fc964ff";
    assert_eq!(vm(&format!("-name web {uuid}"), 64055), own);
    assert_eq!(vm(&format!("-name db {uuid}"), 64055), own);
    assert_eq!(vm("-name web", 64055), "64055 name web");
    assert_eq!(vm("-name web -uuid 00000000-0000-0000-0000-000000000000", 0), "0 name web");
    assert_ne!(vm("-name web", 1000), vm("-name web", 64055));
}

#[test]
fn long_command_lines_are_cut_between_words() {
    let proc = tempfile::tempdir().unwrap();
    fs::create_dir(proc.path().join("7")).unwrap();
    let words = |line: &[u8]| {
        fs::write(proc.path().join("7/cmdline"), line).unwrap();
        command_line(proc.path(), 7)
    };
    assert_eq!(words(b"qemu\0-name\0web\0"), ["qemu", "-name", "web"]);
    let long = [b"qemu\0-name\0".to_vec(), vec![b'x'; 1 << 20]].concat();
    assert_eq!(words(&long), ["qemu", "-name"]);
    assert_eq!(command_line(proc.path(), 8), [""]);
}

#[test]
fn long_names_are_cut() {
    let machine = Machine::new();
    let vm = machine.run(&format!("qemu -name {}", "x".repeat(10_000)));
    assert_eq!(vm.name.len(), MAX_NAME_CHARS);
}

#[test]
fn a_vmm_whose_first_thread_has_ended_is_described_by_another() {
    let machine = Machine::new();
    machine.write("proc/7/cmdline", "");
    machine.write("proc/7/task/7/cmdline", "");
    machine.write("proc/7/task/9/cmdline", "/bin/qemu\0-name\0web\0");
    machine.write("proc/7/task/9/cgroup", "0::/qemu.slice/100.scope\n");
    let vm = describe(&machine.path("proc"), PID, PORT);
    assert_eq!((vm.name.as_str(), vm.labels.id.as_deref()), ("web", Some("100")));
}

#[test]
fn monitors_of_command_lines() {
    let monitor = |line: &str| monitor_path(&words(line));
    assert_eq!(monitor("qemu -qmp unix:/run/a,,b,server=on"), Some("/run/a,b".into()));
    assert_eq!(monitor("qemu -qmp unix:/run/a.qmp"), None);
    assert_eq!(monitor("qemu -chardev socket,id=m,fd=28,server=on -mon m,mode=control"), None);
}
