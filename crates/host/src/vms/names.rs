//! Names that distinguish the VMs of this host. They are the same in every command and after restarts.
//!
//! ```text
//!  one living VM has the name  -->  web
//!  several                     -->  its owner: web          the others: web-6e1c3a4e (UUID), web-UNIT, web-user1000
//! ```
//! The owner of a name is the VM that had it first. A file remembers owners of names that were shared, so that the name stays
//! with its VM while that VM is off.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::VmProcess;

/// Owners that are remembered.
const MAX_OWNERS: usize = 4096;
/// Bytes of the file.
const MAX_BYTES: u64 = 4 << 20;
/// Digits of a UUID that tell VMs apart.
const UUID_HEAD: usize = 8;

/// The file of names and their owners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmNames {
    path: PathBuf,
}

impl VmNames {
    /// The file in this folder, which need not exist.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        Self { path: folder.join("vm-names") }
    }

    /// The name of each of the VMs that live on this host. Those in `named` have theirs already.
    #[must_use]
    pub fn of(&self, vms: &[&VmProcess], named: &BTreeMap<u32, String>) -> Vec<String> {
        let mut owners = self.read();
        let names = names(vms, named, &mut owners);
        let (names, is_new) = names;
        if is_new {
            // Without the file the oldest VM has the name.
            let _ = self.write(&owners);
        }
        names
    }

    /// Names, and the identities of their owners.
    fn read(&self) -> BTreeMap<String, String> {
        let text = crate::procfs::read_bounded(&self.path, MAX_BYTES).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once('\t'));
        lines.map(|(name, owner)| (name.to_owned(), owner.to_owned())).take(MAX_OWNERS).collect()
    }

    fn write(&self, owners: &BTreeMap<String, String>) -> std::io::Result<()> {
        if let Some(folder) = self.path.parent() {
            std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
                .recursive(true)
                .create(folder)?;
        }
        let part = self.path.with_extension(format!("part-{}", std::process::id()));
        let mut file = std::fs::File::create(&part)?;
        let is_line = |text: &str| !text.contains(['\t', '\n']);
        for (name, owner) in owners.iter().filter(|(name, owner)| is_line(name) && is_line(owner)) {
            writeln!(file, "{name}\t{owner}")?;
        }
        std::fs::rename(&part, &self.path)
    }
}

/// The names, and whether there are more owners than before.
fn names(
    vms: &[&VmProcess],
    named: &BTreeMap<u32, String>,
    owners: &mut BTreeMap<String, String>,
) -> (Vec<String>, bool) {
    let mut taken: BTreeSet<String> = named.values().cloned().collect();
    let mut names: Vec<Option<String>> = vms.iter().map(|vm| named.get(&vm.pid).cloned()).collect();
    let n_owners = owners.len();
    // Of several the oldest is first, whichever process id it has.
    let mut order: Vec<usize> = (0..vms.len()).filter(|at| names[*at].is_none()).collect();
    order.sort_by_key(|at| (vms[*at].began_ticks, vms[*at].pid));
    for at in order {
        let (vm, identity) = (vms[at], vms[at].identity());
        let is_shared = vms.iter().filter(|other| other.name == vm.name).count() > 1;
        let owner = owners.get(&vm.name);
        let may_have = owner.is_none_or(|owner| *owner == identity) && !taken.contains(&vm.name);
        if is_shared && may_have && owners.len() < MAX_OWNERS {
            owners.entry(vm.name.clone()).or_insert(identity);
        }
        let name = match may_have {
            true => vm.name.clone(),
            false => candidates(vm).find(|name| !taken.contains(name)).unwrap_or_default(),
        };
        taken.insert(name.clone());
        names[at] = Some(name);
    }
    // One that has its name from before is its owner.
    for (vm, name) in vms.iter().zip(&names) {
        let is_shared = vms.iter().filter(|other| other.name == vm.name).count() > 1;
        if is_shared && name.as_ref() == Some(&vm.name) && owners.len() < MAX_OWNERS {
            owners.entry(vm.name.clone()).or_insert_with(|| vm.identity());
        }
    }
    (names.into_iter().flatten().collect(), n_owners < owners.len())
}

/// Names for a VM that can't have its own: what stays of it comes first.
fn candidates(vm: &VmProcess) -> impl Iterator<Item = String> {
    let name = &vm.name;
    let uuid = vm.uuid.as_ref().map(|uuid| uuid.to_ascii_lowercase());
    let head = uuid.as_ref().and_then(|uuid| uuid.get(..UUID_HEAD));
    let stays = [
        head.map(str::to_owned),
        vm.labels.unit.clone(),
        Some(format!("user{}", vm.user)),
        uuid.clone(),
        Some(vm.pid.to_string()),
    ];
    let stays: Vec<String> =
        stays.into_iter().flatten().map(|part| format!("{name}-{part}")).collect();
    let numbered = format!("{name}-{}", vm.pid);
    stays.into_iter().chain((2_u32..).map(move |number| format!("{numbered}-{number}")))
}

#[cfg(test)]
mod test {
    use super::*;

    /// `name/uuid/unit/user/began`, each with its pid from 10 on.
    fn vms(text: &str) -> Vec<VmProcess> {
        let vm = |(pid, word): (u32, &str)| {
            let mut parts = word.split('/');
            let mut part = || parts.next().filter(|part| !part.is_empty()).map(str::to_owned);
            let mut vm =
                VmProcess { pid, name: part().unwrap(), uuid: part(), ..VmProcess::default() };
            vm.labels.unit = part();
            vm.user = part().map_or(0, |user| user.parse().unwrap());
            vm.began_ticks = part().map_or(u64::from(pid), |ticks| ticks.parse().unwrap());
            vm
        };
        (10..).zip(text.split_whitespace()).map(vm).collect()
    }

    fn check(file: &VmNames, text: &str, expected: &str) {
        let vms = vms(text);
        let names = file.of(&vms.iter().collect::<Vec<_>>(), &BTreeMap::new());
        assert_eq!(names.join(" "), expected, "{text}");
    }

    #[test]
    fn what_stays_tells_them_apart() {
        let folder = tempfile::tempdir().unwrap();
        let names = |name: &str| VmNames::in_folder(&folder.path().join(name));
        check(&names("1"), "web db", "web db");
        check(&names("2"), "web/6E1C3A4E-9 web/7F00000A-1 web", "web web-7f00000a web-user0");
        check(&names("3"), "web web//b web//c/5", "web web-b web-c");
        check(&names("4"), "web///5 web///7", "web web-user7");
        check(&names("5"), "web web web web", "web web-user0 web-12 web-13");
        // A VM's given name may be what another is called.
        check(&names("6"), "web web-user0 web", "web web-user0 web-12");
        check(&names("7"), "web////9 web/aaaaaaaa-1///8", "web-user0 web");
    }

    #[test]
    fn a_shared_name_stays_with_its_vm() {
        let folder = tempfile::tempdir().unwrap();
        let names = VmNames::in_folder(folder.path());
        let (a, b) = ("aaaaaaaa-1", "bbbbbbbb-2");
        check(&names, &format!("web/{b}"), "web");
        check(&names, &format!("web/{a}////5 web/{b}"), "web web-bbbbbbbb");
        // The owner starts again, or is off.
        check(&names, &format!("web/{b}////5 web/{a}"), "web-bbbbbbbb web");
        check(&names, &format!("web/{b}"), "web-bbbbbbbb");
        check(&names, "web/cccccccc-3", "web-cccccccc");
        check(&names, &format!("web/{a}"), "web");
    }

    #[test]
    fn a_vm_that_has_its_name_keeps_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = VmNames::in_folder(folder.path());
        let vms = vms("web/aaaaaaaa-1////9 web/bbbbbbbb-2////5");
        let named = BTreeMap::from([(10, "web".to_owned())]);
        let vms: Vec<_> = vms.iter().collect();
        assert_eq!(file.of(&vms, &named), ["web", "web-bbbbbbbb"]);
        assert_eq!(
            file.of(&vms, &BTreeMap::new()),
            ["web", "web-bbbbbbbb"],
            "other commands say so"
        );
    }

    #[test]
    fn damaged_files() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("vm-names"), b"web\n\xff\t\n\t\t\n").unwrap();
        check(&VmNames::in_folder(folder.path()), "web", "web");
        // No folder can be made there.
        check(&VmNames::in_folder(Path::new("/proc/none")), "web web/aaaaaaaa", "web web-aaaaaaaa");
    }
}
