//! VMs whose memory is not read: `/etc/vmscope/no-guest-memory`.
//!
//! ```text
//! # one VM a line: its name, its UUID, or all VMs of a user (by number); `*` for all
//! payroll
//! 6e1c3a4e-9a51-4a0c-8d0e-0d6a4f6f1b7c
//! user 1042
//! ```

use std::io::ErrorKind;
use std::path::Path;

use host::vms::VmProcess;

use crate::GuestError;

/// The file, in the folder of configurations.
const FILE_NAME: &str = "no-guest-memory";

/// Whether the memory of a VM may be read.
///
/// # Errors
/// When it may not, or the file can't be read.
pub(super) fn check(folder: &Path, vm: &VmProcess) -> Result<(), GuestError> {
    let path = folder.join(FILE_NAME);
    match std::fs::read_to_string(&path) {
        Ok(text) if is_named(&text, vm) => Err(GuestError::MemoryOff { path }),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(GuestError::Policy { path, source }),
    }
}

fn is_named(text: &str, vm: &VmProcess) -> bool {
    let is_vm = |line: &str| {
        let line = line.trim();
        let user = line.strip_prefix("user ").and_then(|user| user.trim().parse::<u32>().ok());
        let is_uuid = vm.uuid.as_ref().is_some_and(|uuid| uuid.eq_ignore_ascii_case(line));
        line == "*" || line == vm.name || is_uuid || user == Some(vm.user)
    };
    text.lines().any(is_vm)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn vms_are_left_alone_by_name_uuid_or_user() {
        let vm = VmProcess {
            name: "pay roll".into(),
            uuid: Some("6E1C3A4E-9a51-4a0c-8d0e-0d6a4f6f1b7c".into()),
            user: 1042,
            ..VmProcess::default()
        };
        let check =
            |text: &str, expected: bool| assert_eq!(is_named(text, &vm), expected, "{text}");
        check("", false);
        check("# pay roll\nweb\n", false);
        check("web\n  pay roll \n", true);
        check("6e1c3a4e-9a51-4a0c-8d0e-0d6a4f6f1b7c", true);
        check("user 104\nuser x\n", false);
        check("user 1042", true);
        check("*", true);
    }

    #[test]
    fn a_file_that_cannot_be_read_leaves_all_alone() {
        let folder = tempfile::tempdir().unwrap();
        let vm = VmProcess::default();
        assert!(super::check(folder.path(), &vm).is_ok());
        std::fs::create_dir(folder.path().join(FILE_NAME)).unwrap();
        assert!(matches!(super::check(folder.path(), &vm), Err(GuestError::Policy { .. })));
    }
}
