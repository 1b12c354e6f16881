//! S2: sequential and parallel make, traced: on the host, and in a guest from outside.

use std::path::Path;

use anyhow::{Context, bail};

use super::make::{self, Build, ns};
use super::{Outcome, in_slow_scenario};
use acceptance::{run, text};

/// On the host.
const BUILDS: &str = "
    eval \"$mounted\"
    for build in seq:-j1 para:-j2; do
        eval \"$clean\"
        record ${build%:*} ${build#*:}
    done";

/// In a guest; the last beside a VM that wants one of its CPUs.
const BUILDS_IN_GUEST: &str = "
    inside() { vmscope testbed exec a -- sh -c \"$1\"; }
    inside \"$mounted\"
    for build in seq:-j1 para:-j2 beside:-j2; do
        inside \"$clean\"
        case $build in beside:*) vmscope testbed exec b -- compute & esac
        record ${build%:*} ${build#*:} --vm a
    done";

pub(super) fn make_and_make_j2(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    in_slow_scenario("trace-make", files, &(make::prepare()? + BUILDS))?;
    let [seq, para] = ["seq", "para"].map(|name| Build::of(&files.join(name)));
    make::print_side_by_side(files, ["seq", "para"])?;
    Ok(make::outcomes("S2.1", &seq?, &para?))
}

pub(super) fn make_in_a_guest(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    in_slow_scenario("trace-make-guest", files, &(make::prepare()? + BUILDS_IN_GUEST))?;
    let builds = ["seq", "para", "beside"];
    for name in builds {
        print_overview(&files.join(name))?;
    }
    make::print_side_by_side(files, ["seq", "para"])?;
    make::print_side_by_side(files, ["para", "beside"])?;
    let [seq, para, beside] = builds.map(|name| Build::of(&files.join(name)));
    let (seq, para, beside) = (seq?, para?, beside?);
    for build in [&seq, &para, &beside] {
        came_from_memory(build)?;
    }
    let mut outcomes = make::outcomes("S2.2", &seq, &para);
    outcomes.push(thief(&para, &beside)?);
    Ok(outcomes)
}

fn came_from_memory(build: &Build) -> anyhow::Result<()> {
    let machine = &build.report["machine"];
    if text(machine, "name") != "a" || text(machine, "path") != "guest memory" {
        bail!("no trace of a, or not out of its memory: {machine}");
    }
    Ok(())
}

/// What the VM beside took of the critical path. Without it the build would at best take what is left.
fn thief(alone: &Build, beside: &Build) -> anyhow::Result<Outcome> {
    let side = &beside.report["critical_path"]["host_side"];
    let parts = ["running", "waiting"].map(|part| &side[part]);
    let stolen_s = parts.iter().map(|part| ns(&part["stolen_ns"])).sum::<f64>() / 1e9;
    // Waits for a guest CPU are short beside what runs.
    let thieves = parts[0]["stolen_by"].as_array().context("no thieves")?;
    let first = thieves.first().map_or("none", |thief| text(thief, "by"));
    Ok(Outcome {
        mark: "S2.2",
        what: "stolen from make -j2's path by another VM".to_owned(),
        original: "-",
        ours: format!(
            "{stolen_s:.2} s of {:.2} s, by {first}; alone {:.2} s",
            beside.wall_s(),
            alone.wall_s()
        ),
        limit: "first: VM b",
        pass: 0.0 < stolen_s && first == "VM b",
    })
}

fn print_overview(recording: &Path) -> anyhow::Result<()> {
    let output = run(&["trace", "report", &recording.display().to_string()])?;
    eprintln!("{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}
