//! CPU quotas against a witness: the kernel's own functions, by kprobes, and its switches, as ftrace prints them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use acceptance::{run, text};
use serde_json::Value;

use super::axis::ONE_CPU;

/// Records beside the witness. All VMs have one CPU, so only its queue of the group is throttled.
const RECORD: &str = r#"
    tracing=/sys/kernel/tracing
    mountpoint -q $tracing || mount -t tracefs none $tracing
    cd $tracing
    echo mono >trace_clock
    echo 16000 >buffer_size_kb
    echo 'r:throttled throttle_cfs_rq did=$retval:u8' >kprobe_events
    echo 'p:unthrottled unthrottle_cfs_rq' >>kprobe_events
    filter='' waking=''
    for task in $(grep -l ' (CPU [0-9]*/KVM' /proc/[0-9]*/task/[0-9]*/stat); do
        tid=$(basename $(dirname $task))
        filter="$filter${filter:+ || }prev_pid == $tid || next_pid == $tid"
        waking="$waking${waking:+ || }pid == $tid"
    done
    echo "$filter" >events/sched/sched_switch/filter
    echo "$waking" >events/sched/sched_wakeup/filter
    for event in sched/sched_switch sched/sched_wakeup kprobes/throttled kprobes/unthrottled; do
        echo 1 >events/$event/enable
    done
    echo 1 >tracing_on
    cd - >/dev/null
    vmscope record -o rec --offcpu-source switches --duration 15
    echo 0 >$tracing/tracing_on
    cat $tracing/trace >witness.txt
    cat $tracing/per_cpu/cpu*/stats | grep overrun >lost.txt
    echo 0 >$tracing/events/enable
    echo >$tracing/kprobe_events
    echo >$tracing/trace
"#;

/// A vCPU's thread in the witness' words, ns.
#[derive(Debug, Default, Clone, Copy)]
struct Reported {
    throttled: u64,
    /// Runnable without a CPU while its queue was not throttled.
    stolen: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thread {
    Unknown,
    OnCpu,
    Queued,
    Asleep,
}

/// What happens to vCPUs' threads between two instants.
#[derive(Debug)]
struct Witness {
    from: u64,
    to: u64,
    at: u64,
    throttled: bool,
    threads: BTreeMap<u32, (Thread, Reported)>,
    /// Threads of VMs outside the group with the quota.
    free: BTreeSet<u32>,
}

impl Witness {
    /// Until this instant all was as it is.
    fn pass(&mut self, time: u64) {
        let ns = time.min(self.to).saturating_sub(self.at.max(self.from));
        for (tid, (state, reported)) in &mut self.threads {
            match (*state, self.throttled && !self.free.contains(tid)) {
                (Thread::Queued, true) => reported.throttled += ns,
                (Thread::Queued, false) => reported.stolen += ns,
                _ => {}
            }
        }
        self.at = time;
    }

    fn become_state(&mut self, tid: u32, state: Thread) {
        if let Some((was, _)) = self.threads.get_mut(&tid) {
            *was = state;
        }
    }

    /// `  CPU 0/KVM-812  [000] d..3.  101.123456789: sched_switch: prev_comm=... ==> ...`
    fn line(&mut self, line: &str) {
        let Some((before, event)) = line.split_once(": ") else { return };
        let Some(time) = before.split_whitespace().next_back().and_then(ns) else { return };
        self.pass(time);
        let field = |name: &str| {
            let value = event.split(&format!(" {name}=")).nth(1)?;
            value.split(' ').next()
        };
        let tid = |name: &str| field(name).and_then(|tid| tid.parse().ok()).unwrap_or(0);
        if event.starts_with("throttled:") {
            self.throttled |= field("did") != Some("0");
        } else if event.starts_with("unthrottled:") {
            self.throttled = false;
        } else if event.starts_with("sched_switch:") {
            let runnable = field("prev_state").is_some_and(|state| state.starts_with('R'));
            let left = if runnable { Thread::Queued } else { Thread::Asleep };
            self.become_state(tid("prev_pid"), left);
            self.become_state(tid("next_pid"), Thread::OnCpu);
        } else if event.starts_with("sched_wakeup:") {
            let tid = tid("pid");
            if self.threads.get(&tid).is_some_and(|(state, _)| *state != Thread::OnCpu) {
                self.become_state(tid, Thread::Queued);
            }
        }
    }
}

/// `101.123456` seconds, or with more digits.
fn ns(text: &str) -> Option<u64> {
    let (seconds, part) = text.split_once('.')?;
    let part_ns = format!("{part:0<9}");
    Some(seconds.parse::<u64>().ok()? * 1_000_000_000 + part_ns[..9].parse::<u64>().ok()?)
}

/// What the witness tells of the vCPUs in a recording, by VM. Each VM has one. The quota is not over the VMs in `free`.
fn witness(folder: &Path, free: &[&str]) -> BTreeMap<String, Reported> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let lost = read("lost.txt");
    assert!(lost.lines().all(|line| line.ends_with(" 0")), "the witness lost events: {lost}");
    let header: Value = serde_json::from_str(&read("rec/recording.json")).unwrap();
    let time = |name: &str| header[name].as_u64().unwrap();
    let threads = threads_of_vms(folder);
    let mut witness = Witness {
        from: time("start_ns"),
        to: time("end_ns"),
        at: 0,
        throttled: false,
        threads: threads.keys().map(|tid| (*tid, (Thread::Unknown, Reported::default()))).collect(),
        free: threads
            .iter()
            .filter(|(_, vm)| free.contains(&vm.as_str()))
            .map(|it| *it.0)
            .collect(),
    };
    read("witness.txt").lines().for_each(|line| witness.line(line));
    witness.pass(time("end_ns"));
    threads.into_iter().map(|(tid, vm)| (vm, witness.threads[&tid].1)).collect()
}

/// The VMs by their vCPU's thread, as the script found them.
fn threads_of_vms(folder: &Path) -> BTreeMap<u32, String> {
    let reported = std::fs::read_to_string(folder.join("threads.txt")).unwrap();
    let line = |line: &str| {
        let (tid, vm) = line.split_once(' ').unwrap();
        (tid.parse().unwrap(), vm.to_owned())
    };
    reported.lines().map(line).collect()
}

/// Which VM's QEMU each vCPU's thread is of.
const THREADS: &str = r#"
    for task in $(grep -l ' (CPU [0-9]*/KVM' /proc/[0-9]*/task/[0-9]*/stat); do
        tid=$(basename $(dirname $task))
        name=$(tr '\0' '\n' </proc/$tid/cmdline | grep -A1 -x -- -name | tail -n1)
        echo "$tid ${name%%,*}"
    done >threads.txt
"#;

/// By both sources throttled time and steal are within 2 points of the witness, and of each other within 1.
fn check(folder: &Path, what: &str, free: &[&str]) -> BTreeMap<String, Reported> {
    let reported = witness(folder, free);
    let (mut wrong, mut by_samples) = (Vec::new(), BTreeMap::new());
    for edges in ["samples", "switches"] {
        let steal = requested(folder, &["steal", "--offcpu-source", edges]);
        for vm in steal["vms"].as_array().unwrap() {
            let (name, time) = (text(vm, "name"), &vm["time"]);
            let of = |account: &str| time[account].as_u64().unwrap();
            let share = |ns: u64| 100.0 * ns as f64 / of("wall_ns") as f64;
            let idle = thief(time, "idle");
            let Reported { throttled, stolen } = reported[name];
            let [ours, theirs] = [share(of("throttled_ns")), share(throttled)];
            let [our_steal, their_steal] = [share(of("steal_outside_ns")), share(stolen)];
            eprintln!(
                "{what}: {name} by {edges}: throttled {ours:.2} % (witness {theirs:.2}), \
                 type 1 {our_steal:.2} % (witness {their_steal:.2}), of that by [idle] {:.2}",
                share(idle)
            );
            let steal_differs = 2.0 < (our_steal - their_steal).abs();
            if 2.0 < (ours - theirs).abs() || steal_differs || 2.0 < share(idle) {
                wrong.push(format!("{name} by {edges}"));
            }
            let (samples, samples_steal) =
                *by_samples.entry(name.to_owned()).or_insert((ours, our_steal));
            if 1.0 < (samples - ours).abs() || 1.0 < (samples_steal - our_steal).abs() {
                wrong.push(format!("{name} by {edges} and by samples"));
            }
        }
    }
    assert!(wrong.is_empty(), "{what}: too far off: {wrong:?}");
    reported
}

fn thief(time: &Value, kind: &str) -> u64 {
    let thieves = time["thieves"].as_array().unwrap().iter();
    thieves.filter(|row| text(row, "kind") == kind).map(|row| row["ns"].as_u64().unwrap()).sum()
}

fn requested(folder: &Path, arguments: &[&str]) -> Value {
    let (command, options) = arguments.split_first().unwrap();
    let recording = folder.join("rec");
    let recording = recording.to_str().unwrap();
    let output = run(&[&[command, recording, "--format", "json"], options].concat()).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Three VMs under one quota, two of which use it up: the third is held back as long as its queue was, no longer, and
/// `explain` names who used the quota up.
pub(super) fn shared() -> String {
    [THREADS, &quota("all", "60000"), RECORD, "echo max >$group/cpu.max"].concat()
}

/// All VMs that are there share a quota, µs of each 100 ms.
pub(super) fn quota(group: &str, us: &str) -> String {
    format!(
        "
        group=/sys/fs/cgroup/{group}
        echo +cpu >/sys/fs/cgroup/cgroup.subtree_control
        mkdir $group
        echo '{us} 100000' >$group/cpu.max
        for vm in $(pgrep -f '^[^ ]*qemu.*-name [abc],'); do echo $vm >$group/cgroup.procs; done"
    )
}

pub(crate) fn a_quota_that_siblings_use_up_throttles_them_all() {
    let files = ONE_CPU.succeeded("a_quota_that_siblings_use_up_throttles_them_all").files;
    let reported = check(&files, "shared", &[]);
    let second = 1_000_000_000;
    assert!(reported.values().all(|vm| second < vm.throttled), "{reported:?}");
    let findings = requested(&files, &["explain", "c"]).to_string();
    assert!(findings.contains("of the same quota VM "), "{findings}");
}

/// A VM alone on its CPU, with half of it as its quota.
pub(super) fn alone() -> String {
    let restore = "echo max >$group/cpu.max";
    [super::axis::END_B_AND_C, THREADS, &quota("alone", "50000"), RECORD, restore].concat()
}

pub(crate) fn a_quota_throttles_as_long_as_its_queue_is() {
    check(&ONE_CPU.succeeded("a_quota_throttles_as_long_as_its_queue_is").files, "alone", &[]);
}

/// VMs `a` and `b` have a slice with a quota, each below it a group without one. `c` is busy outside of it. Affinity leaves
/// them all CPUs, a cpuset only CPU 1.
pub(super) fn nested() -> String {
    let place = r#"
        of() { pgrep -f "^[^ ]*qemu.*-name $1,"; }
        affinity() { for task in /proc/$(of $1)/task/*; do taskset -p $2 ${task##*/} >/dev/null; done; }
        all=/sys/fs/cgroup/machine
        group=$all/slice
        echo '+cpu +cpuset' >/sys/fs/cgroup/cgroup.subtree_control
        mkdir $all
        echo 1 >$all/cpuset.cpus
        echo '+cpu +cpuset' >$all/cgroup.subtree_control
        mkdir $group $all/c
        echo '40000 100000' >$group/cpu.max
        echo +cpu >$group/cgroup.subtree_control
        mkdir $group/a $group/b
        for vm in a b c; do affinity $vm 3; done
        for vm in a b; do of $vm >$group/$vm/cgroup.procs; done
        of c >$all/c/cgroup.procs
        vmscope testbed exec c -- sh -c 'compute >/dev/null 2>&1 &'
    "#;
    let restore = r#"
        vmscope testbed exec c -- killall compute
        for vm in a b c; do of $vm >/sys/fs/cgroup/cgroup.procs; affinity $vm 1; done
        rmdir $group/a $group/b $group $all/c $all
    "#;
    [THREADS, place, RECORD, restore].concat()
}

pub(crate) fn a_wait_beside_a_neighbour_outside_the_slice_is_steal() {
    let files = ONE_CPU.succeeded("a_wait_beside_a_neighbour_outside_the_slice_is_steal").files;
    check_slice(&check(&files, "nested", &["c"]));
    let steal = requested(&files, &["steal"]);
    let vms = steal["vms"].as_array().unwrap();
    let a = vms.iter().find(|vm| text(vm, "name") == "a").unwrap();
    let thieves = a["time"]["thieves"].as_array().unwrap().iter();
    let by_c =
        thieves.filter(|thief| thief["vm"] == "c").map(|thief| thief["ns"].as_u64().unwrap());
    assert!(1_000_000_000 < by_c.sum::<u64>(), "{a}");
}

/// The slice is throttled, and waits for `c` as well, which no quota holds back.
fn check_slice(reported: &BTreeMap<String, Reported>) {
    let second = 1_000_000_000;
    for vm in ["a", "b"] {
        let Reported { throttled, stolen } = reported[vm];
        assert!(second < throttled && second < stolen, "{vm}: {reported:?}");
    }
    assert_eq!(reported["c"].throttled, 0, "{reported:?}");
}

/// The same with control groups of version 1, the quota over a hierarchy of `cpu` alone.
pub(super) fn version_1() -> String {
    let place = r#"
        of() { pgrep -f "^[^ ]*qemu.*-name $1,"; }
        echo -cpu >/sys/fs/cgroup/cgroup.subtree_control
        mkdir -p /sys/fs/cgroup/cpu
        tries=0
        until mount -t cgroup -o cpu none /sys/fs/cgroup/cpu; do
            tries=$((tries + 1))
            [ $tries -lt 10 ]
            sleep 1
        done
        group=/sys/fs/cgroup/cpu/slice
        mkdir $group $group/a $group/b
        echo 40000 >$group/cpu.cfs_quota_us
        for vm in a b; do of $vm >$group/$vm/cgroup.procs; done
        vmscope testbed exec c -- sh -c 'compute >/dev/null 2>&1 &'
    "#;
    let restore = r#"
        vmscope testbed exec c -- killall compute
        for vm in a b; do of $vm >/sys/fs/cgroup/cpu/cgroup.procs; done
        rmdir $group/a $group/b $group
        umount /sys/fs/cgroup/cpu
        rmdir /sys/fs/cgroup/cpu
    "#;
    [THREADS, place, RECORD, restore].concat()
}

pub(crate) fn quotas_of_version_1_throttle_as_long_as_their_queues_are() {
    let files = ONE_CPU.succeeded("quotas_of_version_1_throttle_as_long_as_their_queues_are").files;
    check_slice(&check(&files, "version 1", &["c"]));
}
