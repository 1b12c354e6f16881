use super::*;
use crate::golden;
use crate::scenario::Scenario;

const SCENARIO: &str = r#"
name = "x"
[host]
cpus = 4
disk = { size = "1G", iops = 500 }
cmdline = "numa_balancing=disable"
[[host.node]]
memory = "1G"
cpus = [0, 1, 2, 3]
distances = [10, 17]
[[host.node]]
memory = "2G"
distances = [17, 10]
[[guest]]
name = "a"
workload = ["compute", "nice -n 5 shor 33 5"]
[[guest]]
name = "b"
cpus = 2
max_cpus = 4
memory = "1G"
cmdline = "pti=on"
reboot = true
network = true
channel = "serial"
root = "/srv/root,1"
init = "/sbin/init"
[[guest]]
name = "c"
channel = "none"
host_disk = true
[[guest]]
name = "template"
network = true
workload = "shop"
channel = "none"
[[guest]]
name = "clone"
network = true
workload = "shop"
channel = "none"
"#;

/// One option per line.
fn shown(arguments: &[String]) -> String {
    let mut text = String::new();
    for word in arguments {
        text += if word.starts_with('-') { "\n" } else { " " };
        text += word;
    }
    text.trim_start().to_owned() + "\n"
}

#[test]
fn the_hosts_command_line() {
    let scenario = Scenario::parse(Path::new("x.toml"), SCENARIO).unwrap();
    let machine = HostMachine {
        host: &scenario.host,
        kernel: &Kernel { release: "6.1.0-56-amd64".to_owned(), root: "/cache/kernel".into() },
        image: Path::new("/cache/vmlinux"),
        initrd: Path::new("/cache/initrd"),
        share: Path::new("/tmp/run,1"),
        console: Path::new("/tmp/run,1/console"),
        ports: &[("out", 5), ("events", 6)],
        taps: scenario.taps(),
        wire: Some(Wire { seat: Seat::Peer, socket: 8 }),
        terminal: Some(7),
        extra: "TERMINAL_SIZE=\"rows 50 cols 100\"",
    };
    let text = shown(&machine.arguments());
    let term = std::env::var("TERM").ok().filter(|term| is_word(term)).unwrap_or("dumb".to_owned());
    golden::check("host-command.txt", &text.replace(&format!("TERM={term} "), "TERM=dumb "));
}

#[test]
fn the_guests_command_lines() {
    let scenario = Scenario::parse(Path::new("x.toml"), SCENARIO).unwrap();
    let file = |name: &str| Path::new("/run/lab").join(name);
    let saved = Saved {
        memory: file("memory"),
        devices: file("devices"),
        kernel_head: file("kernel-head"),
    };
    let origins =
        [Origin::Boot, Origin::File, Origin::Boot, Origin::Template(&saved), Origin::Clone(&saved)];
    let mut text = String::new();
    for (index, (guest, origin)) in scenario.guests.iter().zip(origins).enumerate() {
        let machine = GuestMachine {
            guest,
            index,
            kernel: Path::new("/cache/vmlinuz"),
            initrd: Path::new("/cache/initrd"),
            disk: guest.root.as_deref(),
            folder: Path::new("/run/testbed/guests"),
            identity: matches!(origin, Origin::Template(_) | Origin::Clone(_)).then_some(10),
            origin,
        };
        text += &shown(&machine.arguments());
    }
    golden::check("guest-commands.txt", &text);
}

#[test]
fn the_command_line_of_a_microvm() {
    let text = "name = \"x\"\n[host]\ncpu = \"intel\"\ncpus = 1\n[[guest]]\nname = \"a\"\nroot = \"/srv/root\"";
    let scenario = Scenario::parse(Path::new("x.toml"), text).unwrap();
    let machine = GuestMachine {
        guest: &scenario.guests[0],
        index: 0,
        kernel: Path::new("/run/testbed/share/guest-kernel"),
        initrd: Path::new("/run/testbed/share/guest-initrd"),
        disk: scenario.guests[0].root.as_deref(),
        folder: Path::new("/run/testbed/guests"),
        identity: None,
        origin: Origin::Boot,
    };
    golden::check("microvm-command.txt", &shown(&machine.arguments()));
}

#[test]
fn the_command_lines_of_a_machine_without_an_operating_system() {
    let mut text = String::new();
    for (accelerator, cpus) in
        [(Accelerator::Emulation, 2), (Accelerator::Deterministic, 1), (Accelerator::Kvm, 2)]
    {
        let machine = Bare {
            image: "/b/vmscope-boot.elf".into(),
            command_line: "plan=short end=poweroff".to_owned(),
            accelerator,
            cpus,
            memory_mib: 128,
        };
        let disks = [Disk::Ata, Disk::Virtio, Disk::Nvme].map(|kind| (kind, "/tmp/d,1".into()));
        text += &shown(&LoneMachine { machine: &machine, disks: &disks, lines: 5 }.arguments());
        text += "\n";
    }
    golden::check("lone-commands.txt", &text);
}
