//! Machines as text files (`tests/golden/doctor/NAME.root`) against what is found (`NAME.txt`).

use std::fs;
use std::path::{Path, PathBuf};

use super::*;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/doctor").join(name)
}

/// Lays out a root: `=== path` begins a file, `=== path -> target` is a symbolic link.
fn lay_out(text: &str, root: &Path) {
    for part in text.split("=== ").skip(1) {
        let (header, content) = part.split_once('\n').unwrap();
        let (path, target) =
            header.split_once(" -> ").map_or((header, None), |(p, t)| (p, Some(t)));
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match target {
            Some(target) => std::os::unix::fs::symlink(target, path).unwrap(),
            None => fs::write(path, content).unwrap(),
        }
    }
}

fn show(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let Finding { area, what, state, reason, advice } = finding;
        let advice = advice.as_ref().map(|advice| format!("\n    -> {advice}")).unwrap_or_default();
        format!("{area:?} {state:?} {what}: {reason}{advice}\n")
    };
    let verdict = verdict(findings);
    let area = |name, area: AreaVerdict| format!("{name} {:?} {:?}\n", area.state, area.reasons);
    findings
        .iter()
        .map(line)
        .chain([area("host:", verdict.host), area("guests:", verdict.guests)])
        .collect()
}

fn check(machine: &str, trials: &Trials) {
    let root =
        std::env::temp_dir().join(format!("vmscope-doctor-{machine}-{}", std::process::id()));
    lay_out(&fs::read_to_string(golden(&format!("{machine}.root"))).unwrap(), &root);
    let got = show(&findings(&Facts::read(&root), trials));
    fs::remove_dir_all(&root).unwrap();
    let file = golden(&format!("{machine}.txt"));
    if std::env::var_os("UPDATE").is_some() {
        return fs::write(file, got).unwrap();
    }
    assert_eq!(got, fs::read_to_string(file).unwrap(), "{machine}; UPDATE=1 rewrites");
}

fn trials(vms: Option<Vec<String>>) -> Trials {
    let [sampler, child, guest] = std::array::from_fn(|_| Trial::Passed);
    Trials { sampler, child, landlock: true, guest, vms }
}

#[test]
fn machines() {
    let trials = |sampler, guest, vms| Trials { sampler, guest, ..trials(vms) };
    let not_tried = |reason: &str| Trial::NotTried(reason.to_owned());
    let failed = |reason: &str| Trial::Failed(reason.to_owned());
    let vms = Some(vec!["db".to_owned(), "web".to_owned()]);
    // Running VMs say more than a trial guest that a busy host did not finish in time.
    check("amd-host", &trials(Trial::Passed, failed("a trial guest did not finish in 5 s"), vms));
    // Debian's kernel with what other kernels ask for.
    check("no-admin", &trials(failed("cpu-clock: Permission denied"), Trial::Passed, None));
    let no_qemu = not_tried("qemu-system-x86_64 is not installed");
    check("intel-host", &trials(Trial::Passed, no_qemu, Some(Vec::new())));
    let laptop = trials(not_tried("needs root"), failed("there is no /dev/kvm"), None);
    check("laptop", &Trials { landlock: false, ..laptop });
    check("container", &trials(not_tried("needs root"), not_tried("needs root"), None));
    let child = failed("failed to start a process without privileges: seccomp: EINVAL");
    let strange = trials(failed("the verifier refused it"), failed("it hung"), None);
    check("strange", &Trials { child, ..strange });
}

#[test]
fn an_empty_root_has_nothing() {
    let facts = Facts::read(Path::new("/nonexistent"));
    let verdict = verdict(&findings(&facts, &trials(None)));
    assert_eq!((verdict.host.state, verdict.guests.state), (State::Missing, State::Missing));
}
