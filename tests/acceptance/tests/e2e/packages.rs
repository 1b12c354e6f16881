//! The Debian packages: built, installed in a clean root, used, and removed without a trace.

use std::path::Path;
use std::process::Command;

use acceptance::{root, vmscope};

/// Runs a shell script; its standard output.
fn sh(script: &str, arguments: &[&Path]) -> String {
    let output = Command::new("sh").args(["-euc", script, "sh"]).args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command in a root with its own `/proc`, by which programs find each other; its standard output.
fn run_inside(root: &Path, command: &str) -> String {
    let script = "unshare --mount sh -euc 'mount -t proc proc \"$1/proc\"; chroot \"$1\" sh -c \"$2\"' sh \"$1\" \"$2\"";
    sh(script, &[root, Path::new(command)])
}

/// Programs as they are built for tests; the guest's own is not there at its release's path.
fn packages(out: &Path) {
    let built = vmscope().unwrap();
    let programs = built.parent().unwrap();
    let guest = programs.parent().unwrap().join("x86_64-unknown-linux-musl/debug/vmscope-guest");
    let copied = out.join("programs");
    sh(
        "mkdir -p $2
         for program in vmscope vmscope-ask vmscope-lab vmscope-layout vmscope-server; do
             cp $1/$program $2; strip --strip-debug $2/$program; $2/$program manuals $2/manuals/$program
         done
         COMPRESSION=none $3/deploy/packages/build 1.2.3 $2 $4 $5",
        &[programs, &copied, &root(), &guest, out],
    );
}

pub(crate) fn packages_are_installed_used_and_removed_in_a_clean_root() {
    let folder = tempfile::tempdir().unwrap();
    let (out, clean) = (folder.path().join("out"), folder.path().join("root"));
    packages(&out);
    sh(
        "release=$(. /etc/os-release; echo $VERSION_CODENAME)
         mmdebstrap --quiet --variant=minbase --include=libelf1,zlib1g $release $1 >&2",
        &[&clean],
    );
    let listed =
        || sh("cd $1; find . -xdev -path ./proc -prune -o -type f -print | sort", &[&clean]);
    let before = listed();
    sh(
        "cp $2/*.deb $1/root; chroot $1 sh -c 'dpkg -i /root/*.deb'; rm $1/root/*.deb",
        &[&clean, &out],
    );
    let after = listed();
    for file in [
        "./usr/bin/vmscope",
        "./usr/bin/vmscope-ask",
        "./usr/bin/vmscope-lab",
        "./usr/bin/vmscope-layout",
        "./usr/bin/vmscope-server",
        "./usr/sbin/vmscope-guest",
        "./lib/systemd/system/vmscope-agent.service",
        "./lib/systemd/system/vmscope-layout.service",
        "./lib/systemd/system/vmscope-server.service",
        "./lib/systemd/system/vmscope-guest.service",
        "./usr/share/man/man8/vmscope-record.8.gz",
        "./usr/share/man/man8/vmscope-server.8.gz",
        "./usr/share/bash-completion/completions/vmscope",
        "./usr/share/man/man8/vmscope-mcp.8.gz",
        "./usr/share/man/man8/vmscope-migrate.8.gz",
        "./usr/share/man/man8/vmscope-lab-report.8.gz",
        "./etc/vmscope/agent.toml",
        "./etc/vmscope/layout.toml",
        "./etc/vmscope/server.toml",
    ] {
        // /lib is /usr/lib in a merged root.
        let merged =
            |path: &str| path.trim_start_matches('.').trim_start_matches("/usr").to_owned();
        let there = |line: &str| merged(line) == merged(file);
        assert!(after.lines().any(there), "{file} was not installed");
    }
    for (program, says) in [
        ("vmscope --version", "vmscope "),
        ("vmscope lab --help", "Measure how many VMs"),
        ("vmscope-server --version", "vmscope-server "),
        ("vmscope-guest --version", "vmscope-guest "),
    ] {
        let said = run_inside(&clean, program);
        assert!(said.starts_with(says), "{program}: {said}");
    }
    run_inside(&clean, "vmscope agent --check /etc/vmscope/agent.toml");
    run_inside(&clean, "vmscope layout daemon --check /etc/vmscope/layout.toml");
    run_inside(&clean, "vmscope-server --check /etc/vmscope/server.toml");
    sh(
        "chroot $1 dpkg -P vmscope-ask vmscope-lab vmscope-layout vmscope vmscope-server vmscope-guest",
        &[&clean],
    );
    // dpkg keeps notes of its own.
    let own = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with("./var/l"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(own(&listed()), own(&before), "something was left behind");
}
