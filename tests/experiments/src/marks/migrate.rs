//! Migrations to a host that is ready for them (S3): beside plain ones, twenty of them, and with faults.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use super::{Outcome, succeeded};
use acceptance::{in_place, in_testbed_within, root};

const POLICIES: [&str; 3] = ["simple", "dino", "asymsched"];
/// What the original needed to repair a layout afterwards, seconds.
const ORIGINAL: [&str; 3] =
    ["afterwards 22 s, ahead 0 s", "afterwards 17 s, ahead 0 s", "afterwards 12 s, ahead 0 s"];
/// For how long a policy counts before it can plan.
const OBSERVE_S: f64 = 10.0;
const ROUNDS: usize = 10;

fn run(files: &Path, limit_s: u32, text: &str) -> anyhow::Result<()> {
    let source = |name: &str| format!(". {}", root().join("scenarios").join(name).display());
    let script = [source("migrate.sh"), source("migrate-faults.sh"), text.to_owned()].join("\n");
    succeeded("migrate", &in_testbed_within(limit_s, "migrate", files, &script)?)
}

fn text(files: &Path, name: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(files.join(name)).with_context(|| format!("no {name}"))
}

fn json(files: &Path, name: &str) -> anyhow::Result<Value> {
    serde_json::from_str(&text(files, name)?).with_context(|| format!("{name} is no JSON"))
}

fn arriving(report: &Value) -> anyhow::Result<&Value> {
    let rows = report["vms"].as_array().context("no table")?;
    rows.iter().find(|row| row["arrives"] == true).context("nothing arrives")
}

/// Each policy: planned ahead, and repaired afterwards.
pub(super) fn policies(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let one = |policy: &str| {
        format!(
            "migrate --to kvm2 --policy {policy} --format json >{policy}-ahead.json
            back --policy none >&2
            migrate --to kvm2 --policy none --format json >{policy}-default.json
            there 'vmscope layout apply --policy {policy} --counters counters.toml --format json' >{policy}-apply.json
            back --policy none >&2\n"
        )
    };
    let script: String = POLICIES.iter().map(|policy| one(policy)).collect();
    run(files, 900, &format!("prepare\nthere \"$bind_line; bind b 2\" >&2\n{script}"))?;
    let mut outcomes = Vec::new();
    for (policy, original) in POLICIES.into_iter().zip(ORIGINAL) {
        let [ahead, default, applied] =
            ["ahead", "default", "apply"].map(|name| json(files, &format!("{policy}-{name}.json")));
        let (ahead, default, applied) = (ahead?, default?, applied?);
        let (there, plain) = (arriving(&ahead)?, arriving(&default)?);
        let text = |name: &str| there[name].as_str().unwrap_or_default();
        let part = in_place(text("memory_planned"), text("memory_at_switch_over"));
        let part = part.with_context(|| format!("no layout: {ahead}"))?;
        // A policy that finds nothing to move has nothing to repair, either.
        let moved_s = applied["took_ns"].as_f64().map(|ns| ns / 1e9);
        let afterwards = match moved_s {
            Some(s) => {
                format!("{:.1} s ({OBSERVE_S} s of counting, {s:.1} s of moving)", OBSERVE_S + s)
            }
            None => "nothing to move".to_owned(),
        };
        eprintln!(
            "{policy}, default: vCPUs {}, memory {}",
            plain["vcpus_now"], plain["memory_now"]
        );
        let migration = |report: &Value| {
            format!("{} ms, down {} ms", report["total_ms"], report["downtime_ms"])
        };
        outcomes.push(Outcome {
            mark: "S3.1",
            what: format!("{policy}: repaired after"),
            original,
            ours: format!(
                "afterwards {afterwards}, ahead 0 s ({:.1} % in place before the switch-over); planned {}, plain {}",
                100.0 * part,
                migration(&ahead),
                migration(&default)
            ),
            limit: "ahead 0 s",
            pass: ahead["moved"] == true && 0.95 <= part,
        });
    }
    Ok(outcomes)
}

/// Ten times there and back.
pub(super) fn twenty(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let script = format!(
        "prepare
        for i in $(seq {ROUNDS}); do
            migrate --to kvm2 --policy asymsched --format json >there-$i.json
            back --policy asymsched --format json >back-$i.json
        done
        for i in 1 2 3; do
            migrate --to kvm2 --policy none --format json >plain-there-$i.json
            back --policy none --format json >plain-back-$i.json
        done
        verified >verified
        runs_at >runs
        leftovers >left"
    );
    run(files, 1800, &script)?;
    let (mut planned, mut plain) = (Vec::new(), Vec::new());
    for way in ["there", "back"] {
        for i in 1..=ROUNDS {
            planned.push(json(files, &format!("{way}-{i}.json"))?);
        }
        for i in 1..=3 {
            plain.push(json(files, &format!("plain-{way}-{i}.json"))?);
        }
    }
    if let Some(failed) = planned.iter().chain(&plain).find(|report| report["moved"] != true) {
        bail!("not migrated: {failed}");
    }
    let verified = text(files, "verified")?;
    let (runs, left) = (text(files, "runs")?, text(files, "left")?);
    let errors: u64 = verified.split_whitespace().next_back().context("no errors")?.parse()?;
    let are_in_place = |report: &&Value| {
        let Ok(row) = arriving(report) else { return false };
        let text = |name: &str| row[name].as_str().unwrap_or_default();
        text("vcpus_at_switch_over") == text("vcpus_planned")
            && in_place(text("memory_planned"), text("memory_at_switch_over"))
                .is_some_and(|part| 0.95 <= part)
    };
    let n_in_place = planned.iter().filter(are_in_place).count();
    Ok(vec![
        Outcome {
            mark: "S3.2",
            what: format!("{} migrations to and fro, words lost", 2 * ROUNDS),
            original: "-",
            ours: format!("{errors}: {}", verified.trim()),
            limit: "0",
            pass: errors == 0 && runs == "kvm1\n" && left == "qemus 1 0\nrecords 0 0\n",
        },
        Outcome {
            mark: "S3.2",
            what: "vCPU and 95 % of memory in place before".to_owned(),
            original: "-",
            ours: format!("{n_in_place} of {}", planned.len()),
            limit: "all",
            pass: n_in_place == planned.len(),
        },
        Outcome {
            mark: "S3.2",
            what: "planned beside plain, medians".to_owned(),
            original: "-",
            ours: format!("{}; plain {}", figures(&planned), figures(&plain)),
            limit: "-",
            pass: true,
        },
    ])
}

fn figures(reports: &[Value]) -> String {
    let median = |name: &str| {
        let mut all: Vec<u64> = reports.iter().filter_map(|report| report[name].as_u64()).collect();
        all.sort_unstable();
        let range = all.first().zip(all.last()).map_or((0, 0), |(a, b)| (*a, *b));
        (all.get(all.len() / 2).copied().unwrap_or(0), range)
    };
    let ((total, (least, most)), (down, (down_least, down_most))) =
        (median("total_ms"), median("downtime_ms"));
    let (ready, _) = median("prepared_ns");
    format!(
        "ready after {} ms, {total} ms ({least} to {most}), down {down} ms ({down_least} to {down_most})",
        ready / 1_000_000
    )
}

/// Each fault, and where the VM runs afterwards.
pub(super) fn faults(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let hostile = acceptance::vmscope()?.with_file_name("examples").join("hostile_peer");
    let script = FAULTS.replace("HOSTILE_PEER", &hostile.display().to_string());
    run(files, 3000, &script)?;
    let all = text(files, "faults")?;
    let outcomes: Vec<Outcome> = all.lines().filter_map(outcome).collect();
    if outcomes.len() != EXPECTED.len() {
        bail!("{} of {} faults: {all}", outcomes.len(), EXPECTED.len());
    }
    Ok(outcomes)
}

/// Each fault, where the VM is to run, and what is to be said.
const EXPECTED: &[(&str, &str, &str)] = &[
    ("destination killed while it moves residents", "kvm1", "stayed"),
    ("destination killed when its QEMU waits", "kvm1", "stayed"),
    ("destination killed while pages come", "kvm1", "stayed"),
    ("destination frozen, then killed", "kvm1", "stayed"),
    ("daemon killed while pages come", "kvm2", "moved"),
    ("daemon killed after the arrival", "kvm2", "moved"),
    ("source's daemon killed while pages go", "kvm2", "a migration that had begun goes on"),
    ("network gone while pages come", "kvm1", "nothing was sent"),
    ("destination killed at the switch-over", "kvm1", "stayed"),
    ("destination's daemon killed at the switch-over", "kvm2", "moved"),
    ("both daemons killed at the switch-over", "kvm2", "a migration that had begun goes on"),
    ("garbled counters", "kvm1", "invalid counters"),
    ("late counters", "kvm1", "no counters came"),
    ("old counters", "kvm1", "9999 s old"),
    ("forged counters", "kvm1", "no numbers"),
    ("stranger", "kvm1", "no entry"),
    ("a command as a name", "kvm1", "there is no [[incoming]]"),
    ("too little memory on the node", "kvm2", "the kernel's layout for a"),
    ("huge pages run out on the node", "kvm2", "the kernel's layout for a"),
    ("no huge pages at all", "kvm1", "QEMU did not start"),
    ("a resident ends while it is moved", "kvm2", "moved"),
    ("no peer, with an address", "kvm2", "migrated with the kernel's layout"),
];

fn outcome(line: &str) -> Option<Outcome> {
    let (fault, rest) = line.split_once(" | ")?;
    let mut cells = rest.rsplitn(4, '|').map(str::trim);
    let [errors, left, at, said] = std::array::from_fn(|_| cells.next().unwrap_or_default());
    let said = serde_json::from_str(said).map_or(said.to_owned(), |report| in_words(&report));
    let (_, wanted, what) = EXPECTED.iter().find(|(name, ..)| *name == fault)?;
    let one_qemu = left.contains("qemus 1 0") || left.contains("qemus 0 1");
    let clean = one_qemu && left.contains("records 0 0");
    let errors: u64 = errors.parse().unwrap_or(u64::MAX);
    Some(Outcome {
        mark: "S3.3",
        what: fault.to_owned(),
        original: "-",
        ours: format!("runs at {at}; {left}; {errors} errors; {said}"),
        limit: "runs once, no leftovers",
        pass: at == *wanted && clean && errors == 0 && said.contains(what),
    })
}

/// What a migration's report says.
fn in_words(report: &Value) -> String {
    let text = |name: &str| report[name].as_str().unwrap_or("-").to_owned();
    let what = match report["moved"] == true {
        true => "moved".to_owned(),
        false => format!("stayed: {}", text("reason")),
    };
    let notes = report["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let parts: Vec<String> =
        [what, text("layout")].into_iter().chain(notes.map(str::to_owned)).collect();
    parts.join("; ")
}

const FAULTS: &str = r#"prepare
there "$bind_line; bind b 2" >&2
slow='move_bytes_per_s = 1048576'

restart_there "$slow"
migrate --to kvm2 --policy dino --format json >1.json & m=$!
wait_there 'a from kvm1: planned'; sleep 2
there "$kill_there" || true
wait $m || true
again_there; outcome 'destination killed while it moves residents' "$(cat 1.json)"
restart_there ''

restart_here 'bandwidth = 4000000'
migrate --to kvm2 --policy dino --format json >2.json & m=$!
there "until ls state/incoming/*.qemu >/dev/null 2>&1; do sleep 0.01; done; $kill_there" || true
wait $m || true
again_there; sleep 1; outcome 'destination killed when its QEMU waits' "$(cat 2.json)"

begun() { until grep -q 'migrating a' daemon.log; do sleep 0.1; done; sleep 4; }
: >daemon.log
migrate --to kvm2 --format json >3.json & m=$!
begun
there "$kill_there" || true
wait $m || true
again_there; sleep 1; outcome 'destination killed while pages come' "$(cat 3.json)"

: >daemon.log
migrate --to kvm2 --format json >4.json & m=$!
begun
there "$qemu_line; kill -STOP \$(qemu a)"
sleep 6
there "$kill_there" || true
wait $m || true
again_there; sleep 1; outcome 'destination frozen, then killed' "$(cat 4.json)"

: >daemon.log
migrate --to kvm2 --format json >5.json & m=$!
begun
there "$kill_daemon_there"
wait $m || true
again_there; sleep 2; outcome 'daemon killed while pages come' "$(cat 5.json)"
home

restart_here ''
migrate --to kvm2 --format json >6.json
there "$kill_daemon_there"
again_there; sleep 2; outcome 'daemon killed after the arrival' "$(cat 6.json)"
home

restart_here 'bandwidth = 4000000'
: >daemon.log
migrate --to kvm2 --format json >7.json 2>7.err & m=$!
begun
kill -9 $(cat daemon.pid); rm -f /run/vmscope-layout.socket
wait $m || true
start
until [ -n "$(there "$busy_line; busy")" ]; do sleep 1; done
settle
outcome "source's daemon killed while pages go" "$(tail -n 1 7.err)"
home

restart_here 'bandwidth = 4000000
stall_s = 5'
: >daemon.log
migrate --to kvm2 --format json >8.json & m=$!
begun
link=$(ip -br addr | grep 10.30.0.1 | cut -d' ' -f1)
ip link set $link down
wait $m || true
ip link set $link up
settle
outcome 'network gone while pages come' "$(cat 8.json)"

# Much is left to be sent when the guest has stopped, so that the switch-over takes its time.
restart_here 'bandwidth = 4000000
downtime_ms = 10000'
: >daemon.log
migrate --to kvm2 --format json >14.json & m=$!
held
there "$kill_there" || true
kill -CONT $q
wait $m || true
again_there; sleep 1; outcome 'destination killed at the switch-over' "$(cat 14.json)"

: >daemon.log
migrate --to kvm2 --format json >15.json & m=$!
held
there "$kill_daemon_there"
kill -CONT $q
wait $m || true
again_there; sleep 2; outcome "destination's daemon killed at the switch-over" "$(cat 15.json)"
home

: >daemon.log
migrate --to kvm2 --format json >16.json 2>16.err & m=$!
held
there "$kill_daemon_there"
kill -9 $(cat daemon.pid); rm -f /run/vmscope-layout.socket
kill -CONT $q
wait $m || true
start
again_there
until [ -n "$(there "$busy_line; busy")" ]; do sleep 1; done
settle
outcome 'both daemons killed at the switch-over' "$(tail -n 1 16.err)"
home
restart_here ''

victim="10.30.0.2:9277 $(cut -d' ' -f3 peers)"
lie() { HOSTILE_PEER $1 $victim $2; sleep 1; }
outcome 'garbled counters' "$(lie state garbled)"
outcome 'late counters' "$(lie state late)"
outcome 'old counters' "$(lie state old)"
outcome 'forged counters' "$(lie state forged)"
outcome 'stranger' "$(lie stranger stranger)"
outcome 'a command as a name' "$(lie state command)"

restart_there "$slow"
there "$bind_line; bind b 3" >&2
migrate --to kvm2 --policy dino --format json >9.json & m=$!
wait_there 'a from kvm1: planned'
there 'mkdir -p full; for n in 0 1 2 3; do mkdir -p full/$n; mount -t tmpfs -o size=720m,mpol=bind:$n full full/$n
    free=$(sed -n "s/.*MemFree: *//p" /sys/devices/system/node/node$n/meminfo | cut -d" " -f1)
    head -c $(( (free - 64 * 1024) * 1024 )) /dev/zero >full/$n/file || true; done'
wait $m || true
there 'for n in 0 1 2 3; do umount full/$n; done'
outcome 'too little memory on the node' "$(cat 9.json)"
home

sed 's/memory-backend-ram,/memory-backend-memfd,hugetlb=on,hugetlbsize=2M,/' template.toml >huge.toml
# Enough for `a` on all nodes, but on none.
there 'for n in 0 1 2 3; do echo 40 >/sys/devices/system/node/node$n/hugepages/hugepages-2048kB/nr_hugepages; done'
restart_there '' huge.toml
migrate --to kvm2 --policy simple --format json >10.json || true
outcome 'huge pages run out on the node' "$(cat 10.json)"
home

there 'echo 0 >/proc/sys/vm/nr_hugepages'
migrate --to kvm2 --policy simple --format json >11.json || true
outcome 'no huge pages at all' "$(cat 11.json)"

restart_there "$slow"
there "$bind_line; bind b 1" >&2
migrate --to kvm2 --policy dino --format json >12.json & m=$!
wait_there 'a from kvm1: planned'; sleep 2
there 'vmscope testbed end b'
wait $m || true
outcome 'a resident ends while it is moved' "$(cat 12.json)"
home

there "$stop_line"
there "$(incoming_line)"
migrate --to kvm2 --uri tcp:10.30.0.2:4444 --format json >13.json || true
outcome 'no peer, with an address' "$(cat 13.json)"
"#;
