//! QEMU's command line, in all spellings that managers of VMs use: `key=value`, JSON, and files of `-readconfig`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use super::{GuestCell, MemoryBacking, SocketAddress, VmSockets, number, small_list, valid_uuid};

/// What a QEMU's command line says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Qemu {
    pub(super) name: Option<String>,
    pub(super) uuid: Option<String>,
    /// Proxmox' own option.
    pub(super) id: Option<String>,
    pub(super) vsock_cid: Option<u32>,
    pub(super) sockets: VmSockets,
    /// Who made the machine, as the guest is shown: OpenStack says so here.
    pub(super) product: Option<String>,
    /// A file of further options.
    pub(super) config: Option<PathBuf>,
    /// The guest's NUMA nodes, if it has several.
    pub(super) cells: Vec<GuestCell>,
    /// What its memory is made of; of several backends the last one's.
    pub(super) backing: Option<MemoryBacking>,
}

/// Options without a value. All others have one, which may begin with a dash.
const FLAGS: &[&str] = &[
    "S",
    "alt-grab",
    "ctrl-grab",
    "curses",
    "daemonize",
    "enable-fips",
    "enable-kvm",
    "enable-sync-profile",
    "full-screen",
    "h",
    "help",
    "jitdump",
    "mem-prealloc",
    "no-acpi",
    "no-fd-bootchk",
    "no-frame",
    "no-hpet",
    "no-kvm",
    "no-kvm-irqchip",
    "no-quit",
    "no-reboot",
    "no-shutdown",
    "no-user-config",
    "nodefaults",
    "nodefconfig",
    "nographic",
    "old-param",
    "one-insn-per-tb",
    "only-migratable",
    "perfmap",
    "portrait",
    "preconfig",
    "rtc-td-hack",
    "sdl",
    "semihosting",
    "singlestep",
    "snapshot",
    "tdf",
    "usb",
    "version",
    "win2k-hack",
    "xen-attach",
    "xen-domid-restrict",
];

impl Qemu {
    /// Of its words, without the program's name. `port` is the name of our virtio-serial port.
    pub(super) fn parse(words: &[String], config: &str, port: &str) -> Self {
        let mut groups = Groups::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            // QEMU takes `--name` as well.
            let Some(option) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
                continue;
            };
            if FLAGS.contains(&option) {
                continue;
            }
            let Some(value) = words.next() else { break };
            groups.add(option, value, port);
        }
        for (group, options) in config_sections(config) {
            groups.add_options(&group, &options, port);
        }
        groups.qemu()
    }
}

/// The options so far. Chardevs are named before or after what uses them.
#[derive(Debug, Default)]
struct Groups {
    found: Qemu,
    smbios_uuid: Option<String>,
    chardevs: Vec<(String, Chardev)>,
    port_chardev: Option<String>,
    monitors: Vec<Monitor>,
    /// Sizes of memory backends, by their ids.
    backends: BTreeMap<String, u64>,
    /// The guest's NUMA nodes, by number, with the id of the backend.
    cells: BTreeMap<u32, (GuestCell, Option<String>)>,
}

/// How a command line names a monitor.
#[derive(Debug)]
enum Monitor {
    Here(Chardev),
    OnChardev(String),
}

/// A Unix socket.
#[derive(Debug, Clone)]
struct Chardev {
    address: SocketAddress,
    /// `None`: its descriptor may do either.
    listens: Option<bool>,
}

impl Groups {
    fn add(&mut self, option: &str, value: &str, port: &str) {
        match option {
            "uuid" => self.found.uuid = valid_uuid(value),
            "id" => self.found.id = Some(value.to_owned()),
            "mem-path" => self.found.backing = Some(MemoryBacking::Path(value.into())),
            "readconfig" => self.found.config = Some(value.into()),
            "qmp" | "qmp-pretty" => {
                let here = value.strip_prefix("unix:").and_then(|value| {
                    Chardev::from_options(&Options::parse(value, "path")).map(Monitor::Here)
                });
                let on = value.strip_prefix("chardev:").map(str::to_owned).map(Monitor::OnChardev);
                self.monitors.extend(here.or(on));
            }
            _ => self.add_options(option, &Options::parse(value, first_key(option)), port),
        }
    }

    fn add_options(&mut self, group: &str, options: &Options, port: &str) {
        let owned = |key| options.get(key).map(str::to_owned);
        match group {
            "name" => self.found.name = owned("guest").or_else(|| owned("name")),
            "smbios" => {
                let uuid = options.get("uuid").and_then(valid_uuid);
                self.smbios_uuid = uuid.or(self.smbios_uuid.take());
                self.found.product = owned("product").or(self.found.product.take());
            }
            "device" => self.add_device(options, port),
            "chardev" => {
                let is_socket = ["backend", "type"].iter().any(|key| options.has(key, "socket"));
                let chardev = Chardev::from_options(options).filter(|_| is_socket);
                self.chardevs.extend(owned("id").zip(chardev));
            }
            "object" if options.get("qom-type").is_some_and(|name| name.starts_with("memory-")) => {
                let size = options.get("size").and_then(size);
                self.backends.extend(owned("id").zip(size));
                self.found.backing =
                    MemoryBacking::from_options(options).or(self.found.backing.take());
            }
            "numa" => self.add_cell(options),
            "mon" if options.get("mode") == Some("control") => {
                self.monitors.extend(owned("chardev").map(Monitor::OnChardev));
            }
            _ => {}
        }
    }

    /// `node,nodeid=1,cpus=2-3,memdev=ram1`, or `cpu,node-id=1,socket-id=1,...`, which says nothing of numbers.
    fn add_cell(&mut self, options: &Options) {
        if options.get("type") != Some("node") {
            return;
        }
        let next = self.cells.keys().last().map_or(0, |last| last.saturating_add(1));
        let id = options.get("nodeid").map_or(Some(next), number);
        let vcpus = options.all("cpus").filter_map(small_list).flatten().collect();
        let cell = GuestCell { vcpus, bytes: 0 };
        let backend = options.get("memdev").map(str::to_owned);
        self.cells.extend(id.map(|id| (id, (cell, backend))));
    }

    fn add_device(&mut self, options: &Options, port: &str) {
        match options.get("driver").unwrap_or_default() {
            driver if driver.starts_with("vhost-vsock") => {
                self.found.vsock_cid = options.get("guest-cid").and_then(number);
            }
            "virtserialport" if options.get("name") == Some(port) => {
                self.port_chardev = options.get("chardev").map(str::to_owned);
            }
            _ => {}
        }
    }

    fn qemu(self) -> Qemu {
        let Self { mut found, smbios_uuid, chardevs, port_chardev, monitors, backends, cells } =
            self;
        if 1 < cells.len() {
            let with_size = |(cell, backend): (GuestCell, Option<String>)| {
                let bytes = backend.and_then(|id| backends.get(&id).copied()).unwrap_or(0);
                GuestCell { bytes, ..cell }
            };
            found.cells = cells.into_values().map(with_size).collect();
        }
        // A guest sees the UUID of `-smbios` first, but libvirt gives both.
        found.uuid = found.uuid.or(smbios_uuid);
        let on =
            |id: &str| chardevs.iter().find(|(other, _)| other == id).map(|(_, it)| it.clone());
        let port = port_chardev.and_then(|id| on(&id));
        found.sockets.serial = port.filter(|port| port.listens != Some(false)).map(|it| it.address);
        let monitors = monitors.into_iter().filter_map(|monitor| match monitor {
            Monitor::Here(chardev) => Some(chardev),
            Monitor::OnChardev(id) => on(&id),
        });
        // A manager has the one that it added first.
        let listening = monitors.filter(|monitor| monitor.listens != Some(false));
        found.sockets.monitors = listening.map(|monitor| monitor.address).collect();
        found
    }
}

impl MemoryBacking {
    fn from_options(options: &Options) -> Option<Self> {
        let is_huge = options.get("hugetlb").is_some_and(|value| matches!(value, "on" | "true"));
        let path = options.get("mem-path").map(|path| Self::Path(path.into()));
        let size = options.get("hugetlbsize").and_then(size);
        is_huge.then_some(Self::HugePages(size)).or(path)
    }
}

impl Chardev {
    fn from_options(options: &Options) -> Option<Self> {
        let descriptor = options.get("fd").or(options.get("str")).and_then(number);
        let address = match (options.get("path"), descriptor) {
            (Some(path), _) => SocketAddress::Path(path.into()),
            (None, Some(descriptor)) => return Some(Self::inherited(descriptor)),
            (None, None) => return None,
        };
        let is_on = |value: &str| matches!(value, "on" | "yes" | "true" | "y");
        Some(Self { address, listens: Some(options.get("server").is_some_and(is_on)) })
    }

    fn inherited(descriptor: u32) -> Self {
        Self { address: SocketAddress::Descriptor(descriptor), listens: None }
    }
}

/// What a value without a name is, by its option.
fn first_key(option: &str) -> &'static str {
    match option {
        "name" => "guest",
        "device" => "driver",
        "chardev" => "backend",
        "mon" => "chardev",
        "object" => "qom-type",
        "numa" => "type",
        _ => "",
    }
}

/// Bytes, or a number with a unit: `1G`, `512M`.
fn size(text: &str) -> Option<u64> {
    let (number, shift) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 10),
        (at, 'm' | 'M') => (&text[..at], 20),
        (at, 'g' | 'G') => (&text[..at], 30),
        (at, 't' | 'T') => (&text[..at], 40),
        _ => (text, 0),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// `first,key=value,flag,...`, or a JSON object. Names of members of nested objects stand for themselves.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Options(Vec<(String, String)>);

impl Options {
    pub(super) fn parse(text: &str, first_key: &str) -> Self {
        if text.trim_start().starts_with('{') {
            let mut options = Self::default();
            let value: Value = serde_json::from_str(text).unwrap_or_default();
            options.add_members(&value);
            return options;
        }
        let mut options = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest.find(['=', ',']).unwrap_or(rest.len());
            let has_name = rest[end..].starts_with('=');
            let name = if has_name { &rest[..end] } else { first_key };
            let (value, after) = unescaped(if has_name { &rest[end + 1..] } else { rest });
            match options.is_empty() || has_name {
                true => options.push((name.to_owned(), value)),
                // QEMU's `server` is `server=on`.
                false => options.push((value, "on".to_owned())),
            }
            rest = after;
        }
        Self(options)
    }

    fn add_members(&mut self, value: &Value) {
        for (name, value) in value.as_object().into_iter().flatten() {
            match value {
                Value::Object(_) => self.add_members(value),
                Value::String(text) => self.0.push((name.clone(), text.clone())),
                other => self.0.push((name.clone(), other.to_string())),
            }
        }
    }

    fn has(&self, key: &str, value: &str) -> bool {
        self.0.iter().any(|(name, given)| name == key && given == value)
    }

    /// Of an option that may be given several times.
    fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Of an option that is given twice the last, as QEMU takes it.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

/// A value up to its comma, and what follows that. Two commas are one of the value.
fn unescaped(text: &str) -> (String, &str) {
    let (mut value, mut rest) = (String::new(), text);
    loop {
        let end = rest.find(',').unwrap_or(rest.len());
        value.push_str(&rest[..end]);
        match rest[end..].strip_prefix(",,") {
            Some(after) => {
                value.push(',');
                rest = after;
            }
            None => return (value, rest[end..].strip_prefix(',').unwrap_or_default()),
        }
    }
}

/// The sections of a file for `-readconfig`: `[group "id"]` and `key = "value"` below it.
fn config_sections(text: &str) -> Vec<(String, Options)> {
    let mut sections: Vec<(String, Options)> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some(heading) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let (group, id) = heading.split_once(' ').unwrap_or((heading, ""));
            let id = id.trim().trim_matches('"');
            let id = (!id.is_empty()).then(|| ("id".to_owned(), id.to_owned()));
            sections.push((group.to_owned(), Options(id.into_iter().collect())));
        } else if let Some(((_, options), (key, value))) =
            sections.last_mut().zip(line.split_once('='))
        {
            let value = value.trim().trim_matches('"');
            options.0.push((key.trim().to_owned(), value.to_owned()));
        }
    }
    sections
}

#[cfg(test)]
mod test {
    use super::*;

    fn check(text: &str, expected: &[(&str, &str)]) {
        let expected = expected.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        assert_eq!(Options::parse(text, "guest"), Options(expected.collect()), "{text}");
    }

    #[test]
    fn two_commas_are_one_of_a_value() {
        check("shop,,eu,debug-threads=on", &[("guest", "shop,eu"), ("debug-threads", "on")]);
        check("guest=,,", &[("guest", ",")]);
        check("guest=a,,,process=b", &[("guest", "a,"), ("process", "b")]);
        check("guest=a,,guest=b", &[("guest", "a,guest=b")]);
        check("a,,b=c", &[("guest", "a,b=c")]);
        check("process=b", &[("process", "b")]);
        check("a,server,wait=off", &[("guest", "a"), ("server", "on"), ("wait", "off")]);
        check("", &[]);
        check(",", &[("guest", "")]);
    }

    #[test]
    fn numa_nodes_of_guests() {
        let check = |line: &str, expected: &[(&[u32], u64)]| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let cells = Qemu::parse(&words, "", "").cells;
            let found: Vec<(Vec<u32>, u64)> = cells
                .into_iter()
                .map(|cell| (cell.vcpus.into_iter().collect(), cell.bytes))
                .collect();
            let expected: Vec<(Vec<u32>, u64)> =
                expected.iter().map(|(vcpus, bytes)| (vcpus.to_vec(), *bytes)).collect();
            assert_eq!(found, expected, "{line}");
        };
        // libvirt 10.
        check(
            "-object {\"qom-type\":\"memory-backend-ram\",\"id\":\"ram-node0\",\"size\":1073741824,\"host-nodes\":[0],\"policy\":\"bind\"} \
             -numa node,nodeid=0,cpus=0-1,memdev=ram-node0 \
             -object {\"qom-type\":\"memory-backend-ram\",\"id\":\"ram-node1\",\"size\":536870912} \
             -numa node,nodeid=1,cpus=2,cpus=5-6,memdev=ram-node1 -numa dist,src=0,dst=1,val=21",
            &[(&[0, 1], 1 << 30), (&[2, 5, 6], 512 << 20)],
        );
        // Proxmox.
        check(
            "-object memory-backend-file,id=ram1,size=2048M,mem-path=/dev/hugepages -numa node,cpus=0-1,memdev=ram0 \
             -object memory-backend-file,id=ram0,size=1G,mem-path=/dev/hugepages -numa node,cpus=2-3,memdev=ram1",
            &[(&[0, 1], 1 << 30), (&[2, 3], 2 << 30)],
        );
        check("-numa node,mem=512 -numa node,mem=512", &[(&[], 0), (&[], 0)]);
        check("-object memory-backend-ram,id=a,size=1G -numa node,memdev=a", &[]);
        let backing = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            Qemu::parse(&words, "", "").backing
        };
        let path = Some(MemoryBacking::Path("/dev/hugepages".into()));
        assert_eq!(
            backing("-object memory-backend-file,id=a,size=1G,mem-path=/dev/hugepages"),
            path
        );
        assert_eq!(backing("-mem-path /dev/hugepages -mem-prealloc"), path);
        let huge = "-object {\"qom-type\":\"memory-backend-memfd\",\"id\":\"a\",\"hugetlb\":true,\"hugetlbsize\":2097152}";
        assert_eq!(backing(huge), Some(MemoryBacking::HugePages(Some(2 << 20))));
        assert_eq!(backing("-object memory-backend-memfd,id=a,size=1G,hugetlb=off"), None);
        assert_eq!(backing("-object memory-backend-ram,id=a,size=1G"), None);
        check("-numa node,cpus=0-4294967295 -numa node,nodeid=x -numa node", &[(&[], 0), (&[], 0)]);
    }

    #[test]
    fn objects() {
        check(
            "{ \"driver\" : \"a,b\",\n \"cid\": 3, \"on\": true }",
            &[("driver", "a,b"), ("cid", "3"), ("on", "true")],
        );
        check(
            r#"{"id":"c","backend":{"type":"socket","data":{"addr":{"type":"unix","data":{"path":"/x"}}}}}"#,
            &[("id", "c"), ("type", "socket"), ("type", "unix"), ("path", "/x")],
        );
        check(r#"{"a":"\"cid\":4\u0076"}"#, &[("a", "\"cid\":4v")]);
        for odd in ["{", "{}", r#"{"driver"}"#, r#"{"a":"b","c":3"#, r#"{"a":"\u12"}"#, "{,}"] {
            check(odd, &[]);
        }
        // Nested too deep.
        check(&"{\"a\":".repeat(1000), &[]);
    }

    #[test]
    fn sections_of_a_file() {
        let text =
            "# made by incus\n[machine]\ntype = \"q35\"\n\n[device \"v\"]\ndriver=\"a\"\njunk\n";
        let sections = config_sections(text);
        let options = |options: &[(&str, &str)]| {
            Options(options.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect())
        };
        let machine = ("machine".to_owned(), options(&[("type", "q35")]));
        let device = ("device".to_owned(), options(&[("id", "v"), ("driver", "a")]));
        assert_eq!(sections, [machine, device]);
        assert_eq!(config_sections("a = b\n"), []);
    }
}
