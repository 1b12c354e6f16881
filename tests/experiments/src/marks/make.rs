//! A real project's build on two CPUs and a slow disk, and what its traces say: as in the original, `make -j2` is shorter
//! than `make`, keeps CPUs and disk busy together for more of its time, and waits more.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::Value;

use super::Outcome;
use acceptance::{root, run, text, trace};

/// Debian's source package: some 30 files of C, an archive, a link.
const PACKAGE: &str = "lua5.4";

/// Fetches a source package as Debian's own tools do, with lists of its own, and unpacks what its authors wrote.
const FETCH: &str = "set -e
    apt-get indextargets --format 'deb-src $(REPO_URI) $(CODENAME) $(COMPONENT)' 'Identifier: Packages' 'Origin: Debian' |
        awk '$3 !~ /-/ && $4 == \"main\"' | sort -u >sources.list
    mkdir -p lists/partial
    fetch() {
        apt-get -q -o Dir::Etc::SourceList=$PWD/sources.list -o Dir::Etc::SourceParts=- \
            -o Dir::State::Lists=$PWD/lists -o Dir::Cache=$PWD/cache -o APT::Sandbox::User= \"$@\" >apt.log
    }
    fetch update
    fetch --download-only source $PACKAGE
    mkdir -p unpacked
    tar -xf $PACKAGE_*.orig.tar.* -C unpacked --strip-components=1
    mv unpacked source";

/// Has the source and the compiler on the host's disk, as a root of its own: otherwise the compiler would be read from the
/// machine around the virtual host, which is no disk of it. Then `mounted` makes the disk a root to build in, `clean`
/// undoes a build and leaves nothing of the disk in memory, and `record NAME -jN` records one.
const PREPARE: &str = "set -e
    modprobe ext4
    mkfs.ext4 -q -E nodiscard /dev/vda
    mkdir -p /disk && mount /dev/vda /disk
    flags='-O0 -DLUA_USE_LINUX -DLUA_COMPAT_5_3'
    programs=\"/bin/sh $(which make gcc as ld ar ranlib) $(gcc -print-prog-name=cc1) $(gcc -print-prog-name=collect2)\"
    libraries=$(ldd $programs | awk '$2 == \"=>\" { print $3 } /^\\t\\// { print $1 }')
    headers=$(gcc -M $flags $SOURCE/*.c | tr ' ' '\\n' | grep ^/usr)
    linked=$(for part in crt1.o Scrt1.o crti.o crtn.o crtbegin.o crtbeginS.o crtend.o crtendS.o libgcc.a libgcc_s.so \
        libgcc_s.so.1 libc.so libc_nonshared.a libm.so libmvec.so.1 libm.so.6 libdl.a liblto_plugin.so
        do gcc -print-file-name=$part; done | grep /)
    ln -s usr/bin usr/lib usr/lib64 /disk
    printf '%s\\n' $programs $libraries $headers $linked | xargs realpath -s |
        sed -E 's,^/(bin|lib|lib64)/,/usr/\\1/,' | sort -u |
        tar -chf - --ignore-failed-read -T - 2>/dev/null | tar -xf - -C /disk
    mkdir -p /disk/tmp /disk/dev /disk/src
    cp $SOURCE/Makefile $SOURCE/*.c $SOURCE/*.h /disk/src
    umount /disk
    mounted='mkdir -p /disk; mount -t ext4 /dev/vda /disk && mount --bind /dev /disk/dev'
    clean='rm -f /disk/src/*.o /disk/src/*.a /disk/src/lua; sync; echo 3 >/proc/sys/vm/drop_caches'
    record() {
        name=$1 jobs=$2
        shift 2
        vmscope trace record -o $name \"$@\" -- chroot /disk /usr/bin/make -s -C /src $jobs \
            \"CFLAGS=$flags\" 'SYSLIBS=-Wl,-E -ldl' lua
    }
";

/// The shell lines after which a build can be recorded.
pub(super) fn prepare() -> anyhow::Result<String> {
    Ok(format!("SOURCE='{}'\n{PREPARE}", source()?.join("src").display()))
}

/// One build's trace, checked: nothing is lost of it, and its sums hold.
pub(super) struct Build {
    /// The report of the command's tasks.
    pub(super) report: Value,
}

impl Build {
    pub(super) fn of(recording: &Path) -> anyhow::Result<Self> {
        let report = trace::report(recording, &["--limit", "0"])?;
        trace::check_sums(&report)?;
        if report["command"]["exit_code"].as_i64() != Some(0) {
            bail!("the build failed: {}", report["command"]);
        }
        for name in report["trace"]["machines"].as_array().into_iter().flatten() {
            let name = name.as_str().context("a machine without a name")?;
            let machine = trace::report(recording, &["--machine", name, "--view", "profile"])?;
            if machine["machine"]["lost"] != Value::Array(Vec::new()) {
                bail!("the trace of {name} lost events: {}", machine["machine"]);
            }
        }
        Ok(Self { report })
    }

    pub(super) fn wall_s(&self) -> f64 {
        ns(&self.report["command"]["wall_ns"]) / 1e9
    }

    fn both_percent(&self) -> f64 {
        let machine = &self.report["profile"]["machine"];
        100.0 * ns(&machine["both_ns"]) / ns(&machine["wall_ns"])
    }

    /// Not for other tasks: that make and gcc wait for what they start gets less as it gets shorter.
    fn contended_s(&self) -> f64 {
        let causes = self.report["waits"]["total"]["causes"].as_array();
        let causes = causes.map_or(&[][..], Vec::as_slice).iter();
        let contended = causes.filter(|cause| text(cause, "group") != "other tasks");
        contended.map(|cause| ns(&cause["ns"])).sum::<f64>() / 1e9
    }

    fn unknown_percent(&self) -> f64 {
        let waits = &self.report["waits"]["total"];
        100.0 * ns(&waits["unknown_ns"]) / ns(&waits["waiting_ns"])
    }
}

/// What the original saw of its builds, in ours.
pub(super) fn outcomes(mark: &'static str, seq: &Build, para: &Build) -> Vec<Outcome> {
    let outcome = |what: &str, original, unit: &str, of: fn(&Build) -> f64, limit, pass| Outcome {
        mark,
        what: what.to_owned(),
        original,
        ours: format!("{:.2} {unit}, {:.2} {unit}", of(seq), of(para)),
        limit,
        pass,
    };
    let less = |of: fn(&Build) -> f64| of(para) < of(seq);
    let known = |build: &Build| build.unknown_percent() < 5.0;
    vec![
        outcome(
            "wall time of make, make -j2",
            "less",
            "s",
            Build::wall_s,
            "less",
            less(Build::wall_s),
        ),
        outcome(
            "CPU and disk busy together",
            "more",
            "%",
            Build::both_percent,
            "more",
            less(|b| -b.both_percent()),
        ),
        outcome(
            "waiting for CPUs, disks, locks",
            "more",
            "s",
            Build::contended_s,
            "more",
            less(|b| -b.contended_s()),
        ),
        outcome(
            "waiting for unknown causes",
            "-",
            "%",
            Build::unknown_percent,
            "< 5 %",
            known(seq) && known(para),
        ),
    ]
}

/// A field of a report; not a number where there is none.
pub(super) fn ns(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

/// Two builds side by side.
pub(super) fn print_side_by_side(files: &Path, names: [&str; 2]) -> anyhow::Result<()> {
    let [a, b] = names.map(|name| files.join(name).display().to_string());
    let output = run(&["trace", "compare", &a, &b])?;
    eprintln!("{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

/// The unpacked source, fetched once.
fn source() -> anyhow::Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from);
    let folder = target.join("sources").join(PACKAGE);
    let source = folder.join("source");
    if source.is_dir() {
        return Ok(source);
    }
    std::fs::create_dir_all(&folder).context("failed to create a folder for the source")?;
    let mut fetch = Command::new("sh");
    let fetch = fetch.args(["-c", &FETCH.replace("$PACKAGE", PACKAGE)]).current_dir(&folder);
    let output = fetch.output().context("failed to run sh")?;
    if !output.status.success() {
        bail!("failed to fetch {PACKAGE}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(source)
}
