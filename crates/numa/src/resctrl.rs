//! The kernel's resource control: bytes that groups of tasks moved. Groups are only read: libvirt and others make them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Groups at most; hardware has a few hundred ids for them.
const MAX_GROUPS: usize = 1024;
/// Bytes of a file that are read at most.
const MAX_BYTES: u64 = 1 << 20;

/// A monitoring group whose tasks are all of one VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    folders: Vec<PathBuf>,
}

/// Bytes since the group was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes {
    pub(crate) total: u64,
    pub(crate) local: u64,
}

/// The group in `root` (`/sys/fs/resctrl`) that holds these threads, and none of other VMs.
pub(crate) fn group_of(root: &Path, own: &BTreeSet<u32>, others: &BTreeSet<u32>) -> Option<Group> {
    let mut folders = Vec::new();
    for control in std::iter::once(root.to_owned()).chain(folders_in(root)) {
        folders.extend(folders_in(&control.join("mon_groups")));
        if control != root {
            folders.push(control);
        }
    }
    let fits = |folder: &PathBuf| {
        let tasks = text(&folder.join("tasks")).unwrap_or_default();
        let tasks: BTreeSet<u32> =
            tasks.lines().filter_map(|line| line.trim().parse().ok()).collect();
        own.is_subset(&tasks) && others.is_disjoint(&tasks)
    };
    let folder = folders.into_iter().take(MAX_GROUPS).find(fits)?;
    let folders: Vec<PathBuf> = folders_in(&folder.join("mon_data"));
    (!own.is_empty() && !folders.is_empty()).then_some(Group { folders })
}

impl Group {
    /// What all caches counted. `None`: one has no value now.
    pub(crate) fn read(&self) -> Option<Bytes> {
        let mut sum = Bytes { total: 0, local: 0 };
        for folder in &self.folders {
            let value = |name: &str| text(&folder.join(name))?.trim().parse::<u64>().ok();
            sum.total = sum.total.checked_add(value("mbm_total_bytes")?)?;
            sum.local = sum.local.checked_add(value("mbm_local_bytes")?)?;
        }
        Some(sum)
    }
}

fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let known = ["info", "mon_groups", "mon_data"];
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter(|entry| !known.iter().any(|name| entry.file_name() == *name))
        .map(|entry| entry.path())
        .take(MAX_GROUPS)
        .collect();
    folders.sort_unstable();
    folders
}

fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod test {
    use std::fs;

    use super::*;

    #[test]
    fn a_vms_group_is_found_and_read() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("tasks", "41\n42\n");
        write("mon_groups/both/tasks", "41\n42\n51\n");
        write("gold/mon_groups/web/tasks", "40\n41\n42\n");
        for (cache, total, local) in [("00", 100, 60), ("01", 10, 0)] {
            let folder = format!("gold/mon_groups/web/mon_data/mon_L3_{cache}");
            write(&format!("{folder}/mbm_total_bytes"), &format!("{total}\n"));
            write(&format!("{folder}/mbm_local_bytes"), &format!("{local}\n"));
        }
        let group = group_of(root.path(), &[41, 42].into(), &[51].into()).unwrap();
        assert_eq!(group.read(), Some(Bytes { total: 110, local: 60 }));
        assert_eq!(group_of(root.path(), &[41, 99].into(), &[51].into()), None);
        assert_eq!(group_of(root.path(), &[].into(), &[].into()), None);
        write("gold/mon_groups/web/mon_data/mon_L3_01/mbm_local_bytes", "Unavailable\n");
        assert_eq!(group.read(), None);
    }
}
