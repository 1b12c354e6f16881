//! What a ladder needs of the host before its first VM starts: memory of huge pages, KVM with another parameter.
//!
//! `HostSetup` puts everything back when dropped, so it must outlive the ladder's VMs, and what samples them: KVM's module can
//! only be loaded again while nothing uses it.

use std::fs;
use std::path::{Path, PathBuf};

use lab::GuestSettings;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::error::Error;
use crate::host::Roots;

/// The host as a ladder needs it.
#[derive(Debug)]
pub(crate) struct HostSetup {
    huge: Option<PathBuf>,
    pause_loop: Option<(PauseLoop, String)>,
}

/// The parameter of KVM's module that says how long a guest may wait in a loop until it exits; 0: for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PauseLoop {
    module: &'static str,
    parameter: &'static str,
}

const PAUSE_LOOPS: [PauseLoop; 2] = [
    PauseLoop { module: "kvm_amd", parameter: "pause_filter_count" },
    PauseLoop { module: "kvm_intel", parameter: "ple_gap" },
];

/// Whether this host can have these settings at all.
///
/// # Errors
/// When it can't.
pub(crate) fn check(roots: &Roots, settings: &GuestSettings) -> Result<(), Error> {
    let huge_pages = roots.sys.join("kernel/mm/transparent_hugepage");
    if settings.huge_pages && !huge_pages.exists() {
        return Err(Error::Setup("huge_pages: this kernel has no transparent huge pages"));
    }
    match (settings.pause_loop_exiting, PauseLoop::find(&roots.sys)) {
        (None, _) => Ok(()),
        (Some(_), None) => Err(Error::Setup("pause_loop_exiting: KVM is not loaded as a module")),
        (Some(_), Some((_, now))) if now == "0" => {
            Err(Error::Setup("pause_loop_exiting: this host's CPUs lack it, or it is switched off"))
        }
        (Some(_), Some(_)) => Ok(()),
    }
}

impl HostSetup {
    /// Makes the host ready; templates of the ladder will be in `folder`.
    ///
    /// # Errors
    /// When something can't be changed, as KVM's parameters while VMs run.
    pub(crate) fn new(
        roots: &Roots,
        settings: &GuestSettings,
        folder: &Path,
    ) -> Result<Self, Error> {
        let mut setup = Self { huge: None, pause_loop: None };
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        if settings.huge_pages {
            mount("tmpfs", folder, "tmpfs", MountFlags::empty(), Some(c"huge=always")).map_err(
                |error| Error::io("mount a tmpfs of huge pages at", folder)(error.into()),
            )?;
            setup.huge = Some(folder.to_owned());
        }
        if settings.pause_loop_exiting == Some(false)
            && let Some((pause_loop, before)) = PauseLoop::find(&roots.sys)
        {
            pause_loop.load("0")?;
            setup.pause_loop = Some((pause_loop, before));
        }
        Ok(setup)
    }
}

impl Drop for HostSetup {
    fn drop(&mut self) {
        if let Some(folder) = &self.huge {
            // What is still open in it goes with the process that has it open.
            let _ = unmount(folder, UnmountFlags::DETACH);
        }
        if let Some((pause_loop, before)) = &self.pause_loop {
            // VMs also run without it: nothing more can be done here.
            let _ = pause_loop.load(before);
        }
    }
}

impl PauseLoop {
    /// That of this host, and its value.
    fn find(sys: &Path) -> Option<(Self, String)> {
        PAUSE_LOOPS.into_iter().find_map(|pause_loop| {
            let Self { module, parameter } = pause_loop;
            let file = sys.join(format!("module/{module}/parameters/{parameter}"));
            Some((pause_loop, fs::read_to_string(file).ok()?.trim().to_owned()))
        })
    }

    /// Loads KVM's module with this value. Parameters of modprobe's configuration stay as they are.
    fn load(self, value: &str) -> Result<(), Error> {
        testbed::reload_module(self.module, &format!("{}={value}", self.parameter))?;
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn check_host(files: &[(&str, &str)], settings: &GuestSettings, expected: &str) {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let roots = Roots { proc: root.path().into(), sys: root.path().into() };
        let problem = check(&roots, settings).err().map(|error| error.to_string());
        assert_eq!(problem.unwrap_or_default(), expected);
    }

    #[test]
    fn what_a_host_lacks_is_said_before_anything_is_measured() {
        let plain = GuestSettings::default();
        let huge = GuestSettings { huge_pages: true, ..plain.clone() };
        let without = GuestSettings { pause_loop_exiting: Some(false), ..plain.clone() };
        let amd = "module/kvm_amd/parameters/pause_filter_count";
        check_host(&[], &plain, "");
        check_host(&[], &huge, "huge_pages: this kernel has no transparent huge pages");
        check_host(&[("kernel/mm/transparent_hugepage/enabled", "always")], &huge, "");
        check_host(&[], &without, "pause_loop_exiting: KVM is not loaded as a module");
        let none = "pause_loop_exiting: this host's CPUs lack it, or it is switched off";
        check_host(&[(amd, "0\n")], &without, none);
        check_host(&[(amd, "3000\n")], &without, "");
        check_host(&[("module/kvm_intel/parameters/ple_gap", "128\n")], &without, "");
    }
}
