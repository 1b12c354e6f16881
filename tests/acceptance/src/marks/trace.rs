//! A real project's `make` and `make -j2` on two CPUs and a slow disk: as in the original, the second is shorter, keeps CPUs
//! and disk busy together for more of its time, and waits more.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::Value;

use super::{Outcome, in_slow_scenario};
use crate::{root, run, text, trace};

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

/// The compiler is copied onto the disk: otherwise it would be read from the machine around the virtual host, which is no
/// disk of it. Each build begins with nothing of the disk in memory.
const BUILD: &str = "set -e
    modprobe -a virtio_blk ext4
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
    mount --bind /dev /disk/dev
    cp $SOURCE/Makefile $SOURCE/*.c $SOURCE/*.h /disk/src
    for build in seq:-j1 para:-j2; do
        rm -f /disk/src/*.o /disk/src/*.a /disk/src/lua
        sync
        echo 3 >/proc/sys/vm/drop_caches
        vmscope trace record -o ${build%:*} -- chroot /disk /usr/bin/make -s -C /src ${build#*:} \
            \"CFLAGS=$flags\" 'SYSLIBS=-Wl,-E -ldl' lua
    done";

pub(super) fn make_and_make_j2(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let source = source()?.join("src");
    let script = format!("SOURCE='{}'\n{BUILD}", source.display());
    in_slow_scenario("trace-make", files, &script)?;
    let [seq, para] = ["seq", "para"].map(|name| Build::of(&files.join(name)));
    let (seq, para) = (seq?, para?);
    print_side_by_side(files)?;
    let outcome = |what: &str, original, ours, limit, pass| Outcome {
        mark: "S2.1",
        what: what.to_owned(),
        original,
        ours,
        limit,
        pass,
    };
    Ok(vec![
        outcome(
            "wall time of make, make -j2",
            "less",
            format!("{:.2} s, {:.2} s", seq.wall_s, para.wall_s),
            "less",
            para.wall_s < seq.wall_s,
        ),
        outcome(
            "CPU and disk busy together",
            "more",
            format!("{:.2} %, {:.2} %", seq.both_percent, para.both_percent),
            "more",
            seq.both_percent < para.both_percent,
        ),
        outcome(
            "waiting for CPUs, disks, locks",
            "more",
            format!("{:.2} s, {:.2} s", seq.waiting_s, para.waiting_s),
            "more",
            seq.waiting_s < para.waiting_s,
        ),
        outcome(
            "waiting for unknown causes",
            "-",
            format!("{:.2} %, {:.2} %", seq.unknown_percent, para.unknown_percent),
            "< 5 %",
            seq.unknown_percent < 5.0 && para.unknown_percent < 5.0,
        ),
    ])
}

/// The figures of one build.
struct Build {
    wall_s: f64,
    both_percent: f64,
    /// Not for other tasks: that make and gcc wait for what they start gets less as it gets shorter.
    waiting_s: f64,
    unknown_percent: f64,
}

impl Build {
    fn of(recording: &Path) -> anyhow::Result<Self> {
        let report = trace::report(recording, &["--command-only"])?;
        if report["command"]["exit_code"].as_i64() != Some(0) || !lost_nothing(&report) {
            bail!("the build failed or its trace lost events: {}", report["machine"]);
        }
        let ns = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        let (machine, waits) = (&report["profile"]["machine"], &report["waits"]["total"]);
        Ok(Self {
            wall_s: ns(&report["command"]["wall_ns"]) / 1e9,
            both_percent: 100.0 * ns(&machine["both_ns"]) / ns(&machine["wall_ns"]),
            waiting_s: contended_ns(waits) / 1e9,
            unknown_percent: 100.0 * ns(&waits["unknown_ns"]) / ns(&waits["waiting_ns"]),
        })
    }
}

fn contended_ns(waits: &Value) -> f64 {
    let causes = waits["causes"].as_array().map_or(&[][..], Vec::as_slice);
    let contended = causes.iter().filter(|cause| text(cause, "group") != "other tasks");
    contended.filter_map(|cause| cause["ns"].as_f64()).sum()
}

fn lost_nothing(report: &Value) -> bool {
    report["machine"]["lost"].as_array().is_some_and(Vec::is_empty)
}

fn print_side_by_side(files: &Path) -> anyhow::Result<()> {
    let [seq, para] = ["seq", "para"].map(|name| files.join(name).display().to_string());
    let output = run(&["trace", "compare", &seq, &para])?;
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
