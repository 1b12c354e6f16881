//! What managers of VMs leave where others can read it: control groups, systemd's units, libvirt's status files, Proxmox'
//! configurations. No manager is talked to.

use std::collections::{BTreeMap, BTreeSet};

use model::VmLabels;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::{bounded, small_list, valid_uuid};

/// Where a manager put a VM's process, by its control group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// The systemd unit, without `.service` or `.scope`.
    pub(super) unit: Option<String>,
    /// The domain of libvirt, of its scope's name.
    pub(super) domain: Option<String>,
    /// The VM's number in Proxmox.
    pub(super) proxmox: Option<String>,
    /// The pod's id in Kubernetes.
    pub(super) pod: Option<String>,
    /// The VM's name, of a unit that is one VM's for good: no session, no transient unit, no manager's own. Of a template's
    /// unit what follows the `@`.
    pub(super) name: Option<String>,
}

/// Units that say nothing about one VM.
const OF_OTHERS: &[&str] = &[
    "app-",
    "containerd",
    "crio",
    "cri-o",
    "docker",
    "incus",
    "init",
    "k3s",
    "kubelet",
    "libpod",
    "libvirtd",
    "lxc",
    "lxd",
    "machine-",
    "podman",
    "run-",
    "session-",
    "snap.",
    "ssh",
    "user@",
    "virtqemud",
    "vte-spawn",
];

impl Place {
    /// From the text of `/proc/PID/cgroup`.
    pub(super) fn parse(text: &str) -> Self {
        let mut place = Self::default();
        let lines = text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        // Version 1 has a path for each controller; systemd's own has units.
        let group = lines.max_by_key(|(controllers, path)| {
            (path.len() > 1, controllers.contains("systemd"), path.len())
        });
        let Some((_, path)) = group else { return place };
        let parts: Vec<&str> = path.split('/').collect();
        let is_pod = |part: &&&str| part.starts_with("kubepods") || part.starts_with("pod");
        if path.contains("/kubepods") {
            place.pod = parts.iter().filter(is_pod).find_map(|part| pod_id(part));
        }
        let Some(part) =
            parts.iter().rev().find(|part| part.ends_with(".scope") || part.ends_with(".service"))
        else {
            return place;
        };
        let unit = unescape(part.trim_end_matches(".scope").trim_end_matches(".service"));
        if let Some((_, domain)) =
            unit.strip_prefix("machine-qemu-").and_then(|it| it.split_once('-'))
        {
            place.domain = Some(domain.to_owned());
        }
        if parts.contains(&"qemu.slice") && unit.bytes().all(|byte| byte.is_ascii_digit()) {
            place.proxmox = Some(unit.clone());
        }
        let is_transient = ends_in_hexadecimal(&unit);
        let is_of_vm = place.pod.is_none()
            && place.domain.is_none()
            && place.proxmox.is_none()
            && !is_transient
            && !OF_OTHERS.iter().any(|other| unit.starts_with(other));
        if is_of_vm {
            let instance = unit.split_once('@').map(|(_, instance)| instance);
            let name = instance.filter(|it| !it.is_empty()).unwrap_or(&unit);
            place.name = Some(name.to_owned());
        }
        place.unit = Some(unit);
        place
    }
}

/// The id in `kubepods-burstable-pod8f2a_....slice` or `pod8f2a-...`.
fn pod_id(part: &str) -> Option<String> {
    let (_, id) = part.trim_end_matches(".slice").rsplit_once("pod")?;
    valid_uuid(&id.replace('_', "-"))
}

/// A container's unit has its number of 64 digits, one of `systemd-run` 32.
fn ends_in_hexadecimal(unit: &str) -> bool {
    let digits = unit.bytes().rev().take_while(u8::is_ascii_hexdigit).count();
    32 <= digits
}

/// The UUID in a unit's name.
pub(super) fn uuid_in(unit: &str) -> Option<String> {
    const LENGTH: usize = 36;
    let starts = 0..=unit.len().checked_sub(LENGTH)?;
    starts.filter_map(|start| valid_uuid(unit.get(start..start + LENGTH)?)).next()
}

/// systemd writes `\x2d` for a dash in names of units.
fn unescape(name: &str) -> String {
    let mut parts = name.split("\\x");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match code.filter(u8::is_ascii) {
            Some(code) => {
                text.push(char::from(code));
                text.push_str(&part[2..]);
            }
            None => text.extend(["\\x", part]),
        }
    }
    text
}

/// What libvirt says of a domain that runs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DomainStatus {
    /// Its process, in libvirt's own namespace.
    pub(super) pid: Option<u32>,
    pub(super) uuid: Option<String>,
    pub(super) labels: VmLabels,
    /// The CPUs of `<vcpupin>`, by vCPU.
    pub(super) vcpu_pins: BTreeMap<u32, BTreeSet<u32>>,
}

/// Elements of a status file that are read.
const MAX_EVENTS: usize = 200_000;
/// Of nested elements.
const MAX_DEPTH: usize = 64;

impl DomainStatus {
    /// From the text of its status file; what is damaged has been read up to there.
    pub(super) fn parse(text: &str) -> Self {
        let mut status = Self::default();
        let mut reader = Reader::from_str(text);
        let mut path: Vec<String> = Vec::new();
        for _ in 0..MAX_EVENTS {
            match reader.read_event() {
                Ok(Event::Start(start)) if path.len() < MAX_DEPTH => {
                    let name = String::from_utf8_lossy(start.name().as_ref()).into_owned();
                    if path.is_empty() {
                        let pid = start.try_get_attribute("pid").ok().flatten();
                        let pid =
                            pid.and_then(|pid| String::from_utf8_lossy(&pid.value).parse().ok());
                        status.pid = pid;
                    }
                    path.push(name);
                }
                Ok(Event::Empty(element)) => status.add_pin(&path, &element),
                Ok(Event::End(_)) => drop(path.pop()),
                Ok(Event::Text(text)) => {
                    if let Ok(text) = text.decode() {
                        status.add(&path, text.trim());
                    }
                }
                Ok(Event::Start(_) | Event::Eof) | Err(_) => break,
                Ok(_) => {}
            }
        }
        status
    }

    /// `<cputune><vcpupin vcpu='0' cpuset='1-3'/></cputune>`.
    fn add_pin(&mut self, path: &[String], element: &BytesStart<'_>) {
        let is_tuning =
            matches!(path, [.., domain, tuning] if domain == "domain" && tuning == "cputune");
        if !is_tuning || element.name().as_ref() != b"vcpupin" {
            return;
        }
        let text = |key| {
            let attribute = element.try_get_attribute(key).ok().flatten()?;
            Some(String::from_utf8_lossy(&attribute.value).into_owned())
        };
        let vcpu = text("vcpu").and_then(|vcpu| vcpu.parse().ok());
        // `^3` takes a CPU out again: libvirt writes its status without.
        let cpus = text("cpuset").and_then(|cpus| small_list(&cpus));
        self.vcpu_pins.extend(vcpu.zip(cpus));
    }

    fn add(&mut self, path: &[String], text: &str) {
        let domain = path.iter().position(|name| name == "domain");
        let Some(path) = domain.map(|at| &path[at + 1..]).filter(|_| !text.is_empty()) else {
            return;
        };
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        if path == ["uuid"] {
            self.uuid = valid_uuid(text);
        }
        let ["metadata", .., last] = path[..] else { return };
        let (space, name) = last.split_once(':').unwrap_or(("", last));
        let labels = &mut self.labels;
        let label = match name {
            "name" if space == "nova" => &mut labels.instance,
            "user" if space == "nova" => &mut labels.owner,
            "owner" => &mut labels.owner,
            "project" | "tenant" => &mut labels.project,
            "namespace" => &mut labels.namespace,
            "tags" => &mut labels.tags,
            _ => return,
        };
        if label.is_none() {
            *label = bounded(text);
        }
        if space == "nova" {
            labels.manager = Some("openstack".to_owned());
        }
    }
}

/// The labels in a VM's configuration of Proxmox: lines `name: web` and `tags: a;b`, up to those of its snapshots.
pub(super) fn parse_proxmox(text: &str) -> VmLabels {
    let lines = text.lines().take_while(|line| !line.starts_with('['));
    let mut labels = VmLabels::default();
    for (key, value) in lines.filter_map(|line| line.split_once(':')) {
        match key {
            "name" => labels.instance = bounded(value),
            "tags" => labels.tags = bounded(value),
            _ => {}
        }
    }
    labels
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn places() {
        let check = |text: &str, expected: &str| {
            let Place { unit, domain, proxmox, pod, name } = Place::parse(text);
            let show = |part: Option<String>| part.unwrap_or("-".to_owned());
            assert_eq!([unit, domain, proxmox, pod, name].map(show).join(" "), expected, "{text}");
        };
        check(
            "0::/machine.slice/machine-qemu\\x2d1\\x2dweb\\x2d01.scope/libvirt/vcpu0\n",
            "machine-qemu-1-web-01 web-01 - - -",
        );
        check("0::/qemu.slice/100.scope\n", "100 - 100 - -");
        check("0::/system.slice/microvm@web.service\n", "microvm@web - - - web");
        check("0::/system.slice/web-vm.service\n", "web-vm - - - web-vm");
        check("0::/user.slice/user-1000.slice/session-4.scope\n", "session-4 - - - -");
        check(
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0c9bd4f1_8f1a_4e5c_9d7e_0a1b2c3d4e5f.slice/cri-containerd-ab.scope\n",
            "cri-containerd-ab - - 0c9bd4f1-8f1a-4e5c-9d7e-0a1b2c3d4e5f -",
        );
        check(
            "0::/kubepods/besteffort/pod0c9bd4f1-8f1a-4e5c-9d7e-0a1b2c3d4e5f/ab\n",
            "- - - 0c9bd4f1-8f1a-4e5c-9d7e-0a1b2c3d4e5f -",
        );
        check(
            "4:cpu,cpuacct:/firecracker/web\n1:name=systemd:/system.slice/a.service\n0::/\n",
            "a - - - a",
        );
        check(
            "0::/system.slice/run-r0123456789abcdef0123456789abcdef.scope\n",
            &format!("run-r{} - - - -", "0123456789abcdef".repeat(2)),
        );
        check("", "- - - - -");
        check("0::/\n", "- - - - -");
        check("0::/a\\x2.scope\\xzz.scope\n", "a\\x2.scope\\xzz - - - a\\x2.scope\\xzz");
    }

    #[test]
    fn uuids_in_units() {
        let uuid = "6e1c3a4e-9a51-4a0c-8d0e-0d6a4f6f1b7c";
        assert_eq!(uuid_in(&format!("vm-{uuid}-x")).as_deref(), Some(uuid));
        assert_eq!(uuid_in("vm-6e1c3a4e"), None);
        assert_eq!(uuid_in(&"é".repeat(40)), None);
    }

    #[test]
    fn pinned_vcpus() {
        let pins = |inside: &str| {
            let text = format!("<domstatus pid='7'><domain>{inside}</domain></domstatus>");
            DomainStatus::parse(&text)
                .vcpu_pins
                .into_iter()
                .map(|(vcpu, cpus)| (vcpu, cpus.into_iter().collect::<Vec<u32>>()))
                .collect::<Vec<_>>()
        };
        let tuning = "<cputune><vcpupin vcpu='0' cpuset='1-3'/><vcpupin vcpu=\"2\" cpuset=\"4,7\"/>\
                      <emulatorpin cpuset='0'/></cputune>";
        assert_eq!(pins(tuning), [(0, vec![1, 2, 3]), (2, vec![4, 7])]);
        for odd in [
            "<vcpupin vcpu='0' cpuset='1'/>",
            "<metadata><cputune><vcpupin vcpu='0' cpuset='1'/></cputune></metadata>",
            "<cputune><vcpupin vcpu='0' cpuset='0-4294967295'/></cputune>",
            "<cputune><vcpupin vcpu='0' cpuset='1-x'/><vcpupin cpuset='1'/></cputune>",
        ] {
            assert_eq!(pins(odd), [], "{odd}");
        }
    }

    #[test]
    fn damaged_status_files() {
        let check = |text: &str| DomainStatus::parse(text);
        assert_eq!(check(""), DomainStatus::default());
        assert_eq!(check("<domstatus pid='x'><domain>"), DomainStatus::default());
        assert_eq!(check(&"<a>".repeat(100_000)), DomainStatus::default());
        let cut = check("<domstatus pid='7'><domain><metadata><p:owner>ann</p:owner><p:pro");
        assert_eq!((cut.pid, cut.labels.owner.as_deref()), (Some(7), Some("ann")));
        let long = format!("<s><domain><metadata><owner>{}</owner>", "x".repeat(10_000));
        assert!(check(&long).labels.owner.is_some_and(|owner| owner.len() < 1000));
    }
}
