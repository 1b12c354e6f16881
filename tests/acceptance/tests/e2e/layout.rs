//! `vmscope layout` on a host with NUMA nodes.

use acceptance::{as_unit, in_testbed};
use serde_json::Value;

/// How `a` uses memory: much, while `b` does not.
const COUNTERS: &str = r#"
[[vm]]
name = "a"
waiting = 0.57
instructions_per_s = 5e8

[[vm]]
name = "b"
waiting = 0.0
instructions_per_s = 1e9
"#;

/// Bytes on each node of a VM in a plan's or report's row: `0:128M 1:4K`.
fn on_node(row: &Value, column: &str, node: &str) -> f64 {
    let part = |part: &str| {
        let (id, size) = part.split_once(':').unwrap();
        let (number, unit) = size.split_at(size.len() - 1);
        let scale = [("K", 1.0 / 1024.0), ("M", 1.0), ("G", 1024.0)].into_iter();
        let scale = scale.filter(|(name, _)| *name == unit).map(|(_, scale)| scale).next().unwrap();
        (id == node).then(|| number.parse::<f64>().unwrap() * scale)
    };
    row[column].as_str().unwrap().split(' ').filter_map(part).sum()
}

/// Guest `a` booted on node 0, and its vCPU now runs on node 2, two hops away. A cpuset keeps `b` on node 0, which has one CPU,
/// so that the memory of `a` has to come.
pub(crate) fn memory_and_vcpus_go_where_the_plan_says() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "set -e
        cat > counters.toml <<'END'\n{COUNTERS}\nEND
        qemu() {{ pgrep -f \"^[^ ]*qemu.*-name $1,\"; }}
        vcpu() {{ for t in /proc/$(qemu $1)/task/*; do grep -q KVM $t/comm && basename $t; done; }}
        taskset -cp 2 $(vcpu a) >&2
        echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control
        mkdir /sys/fs/cgroup/held
        for what in cpus mems; do echo 0 > /sys/fs/cgroup/held/cpuset.$what; done
        qemu b > /sys/fs/cgroup/held/cgroup.procs
        vmscope record -o rec -- vmscope testbed exec a -- timeout 3 sh -c 'while :; do :; done' || true
        vmscope report rec --by node >&2
        vmscope report rec --by node --format json > nodes.json
        vmscope steal rec --vm a --format json > steal.json
        vmscope layout plan --seconds 1 --format json > nothing.json
        vmscope layout plan --policy dino --counters counters.toml --format json > plan.json
        vmscope layout plan --policy dino --counters counters.toml >&2
        vmscope layout apply --policy dino --counters counters.toml --rate 64M --measure 2 --format json > done.json
        vmscope layout plan --policy dino --counters counters.toml --format json > again.json
        taskset -cp $(vcpu a)
        cat /proc/$(qemu a)/numa_maps > numa_maps
        vmscope testbed exec a -- cat /proc/loadavg"
    );
    let ran = in_testbed("layout", folder.path(), &script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let json = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(folder.path().join(name)).unwrap()).unwrap()
    };
    let row = |report: &Value| {
        report["vms"].as_array().unwrap().iter().find(|row| row["vm"] == "a").unwrap().clone()
    };
    // It runs two hops away from all of its guest's memory, two thirds of what it has; QEMU's own may lie anywhere.
    let nodes = json("nodes.json");
    let nodes = nodes["nodes"].as_array().unwrap();
    let recorded = nodes.iter().find(|row| row["vm"] == "a").unwrap();
    let shares = [&recorded["remote_share"], &json("steal.json")["vms"][0]["remote_share"]];
    eprintln!("remote memory as recorded: {shares:?} of {}", recorded["memory_bytes"]);
    assert!(shares.iter().all(|share| 0.6 < share.as_f64().unwrap()), "{nodes:?}");
    assert!(100 << 20 < recorded["memory_bytes"].as_u64().unwrap(), "{nodes:?}");

    let nothing = json("nothing.json");
    assert_eq!(nothing["outcome"], "no_counters", "the virtual host has no PMU");
    assert!(nothing["notes"].to_string().contains("nothing counts how it uses memory"));

    let plan = json("plan.json");
    let planned = row(&plan);
    assert_eq!((&plan["outcome"], &planned["vcpus_before"]), (&"move".into(), &"2:1".into()));
    let before = on_node(&planned, "memory_before", "2");
    let wanted = on_node(&planned, "memory_after", "2");
    assert!(before < 10.0 && 60.0 < wanted, "{planned}");

    let done = json("done.json");
    let moved = row(&done);
    let (found, moved_bytes) =
        (on_node(&moved, "memory", "2"), done["moved_bytes"].as_f64().unwrap());
    let took_s = done["took_ns"].as_f64().unwrap() / 1e9;
    eprintln!("{found} MiB on node 2, {moved_bytes} bytes moved in {took_s:.2} s");
    assert!(0.95 * wanted <= found, "{moved}");
    assert!(moved_bytes / took_s <= 65.0 * 1024.0 * 1024.0, "no faster than 64 MiB/s");
    let measured = done["measured"].as_array().unwrap();
    let measured = measured.iter().find(|row| row["vm"] == "a").unwrap();
    eprintln!("measured: {measured}");
    assert!(measured["remote_after"].as_f64() < measured["remote_before"].as_f64());
    assert!(0.0 < measured["predicted_gain"].as_f64().unwrap(), "{measured}");
    assert!(measured["measured_gain"].is_null(), "nothing counts instructions here");
    // Nothing is left to move, or a few stray pages, which are not worth it.
    let again = &json("again.json")["outcome"];
    assert!(again == "in_place" || again == "little_gain", "{again}");
    assert!(ran.stdout.contains("affinity list: 2"), "{}", ran.stdout);
}

/// Both use memory much.
const TWO_DEVILS: &str = r#"
[[vm]]
name = "a"
waiting = 0.57
instructions_per_s = 5e8

[[vm]]
name = "b"
waiting = 0.57
instructions_per_s = 5e8
"#;

/// Two guests share node 0, and one of them is to leave it with its memory. A cpuset keeps both there: when the plan is made,
/// after it was made, and while memory is being moved.
pub(crate) fn a_vm_that_a_cpuset_holds_stays_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "set -e
        cat > counters.toml <<'END'\n{TWO_DEVILS}\nEND
        groups=/sys/fs/cgroup
        echo +cpuset > $groups/cgroup.subtree_control
        mkdir $groups/held
        qemu() {{ pgrep -f \"^[^ ]*qemu.*-name $1,\"; }}
        vcpu() {{ for t in /proc/$(qemu $1)/task/*; do grep -q KVM $t/comm && basename $t; done; }}
        hold() {{
            echo $1 > $groups/held/cpuset.cpus; echo $2 > $groups/held/cpuset.mems
            for vm in a b; do qemu $vm > $groups/held/cgroup.procs; done
        }}
        free() {{
            for vm in a b; do qemu $vm > $groups/cgroup.procs; taskset -cp 0 $(vcpu $vm) >&2; done
        }}
        bound() {{ for vm in a b; do taskset -cp $(vcpu $vm) | sed 's/.*: //'; done | paste -sd ' '; }}
        layout() {{ what=$1; shift; vmscope layout $what --policy dino --counters counters.toml \"$@\"; }}
        layout plan --format json > free.json
        hold 0 0-3
        layout plan --format json > held.json
        free
        layout apply --measure 10 > late.txt 2> late.err & apply=$!
        until grep -q 'VMs by node' late.txt; do kill -0 $apply; sleep 0.1; done
        hold 0 0-3
        code=0; wait $apply || code=$?
        echo late $code $(bound)
        layout plan --format json > late.json
        free
        layout apply --rate 4M > midway.txt 2> midway.err & apply=$!
        until [ \"$(bound)\" != '0 0' ]; do kill -0 $apply; sleep 0.1; done
        sleep 2
        hold 0-3 0
        code=0; wait $apply || code=$?
        echo midway $code $(bound)
        layout plan --format json > after.json
        cat late.txt late.err midway.txt midway.err >&2"
    );
    let ran = in_testbed("layout", folder.path(), &script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    eprintln!("{}", ran.stderr);
    let file = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let json = |name: &str| -> Value { serde_json::from_str(&file(name)).unwrap() };
    let rows = |name: &str| json(name)["vms"].as_array().unwrap().clone();
    assert_eq!(json("free.json")["outcome"], "move", "{}", file("free.json"));
    let free = rows("free.json");
    let leaves = free.iter().position(|vm| vm["vcpus_after"] != "0:1").expect("one leaves");
    for vm in rows("held.json") {
        assert_eq!(vm["vcpus_after"], "0:1", "the plan leaves it where it may be: {vm}");
        assert!(vm["remote_after"].as_f64() <= vm["remote_before"].as_f64(), "{vm}");
    }
    let lines: Vec<&str> = ran.stdout.lines().collect();
    let [late, midway] = lines[..] else { panic!("{lines:?}") };
    assert_eq!(late, "late 1 0 0");
    // A new cpuset gives the other one its CPUs, whatever it was bound to before.
    let words: Vec<&str> = midway.split(' ').collect();
    assert_eq!((words[1], words[2 + usize::from(free[leaves]["vm"] == "b")]), ("1", "0"));
    let said = [
        ("late.err", "stays where it is: its cpuset allows vCPU 0 no CPU of node"),
        ("midway.err", "stays where it was: failed to move its pages: Permission denied"),
    ];
    for (name, expected) in said {
        assert!(file(name).contains(expected), "{}", file(name));
    }
    // QEMU itself has put some of the memory elsewhere from the beginning.
    let far = |vms: &[Value], vm: &Value| {
        let row = vms.iter().find(|row| row["vm"] == *vm).unwrap();
        row["remote_before"].as_f64().unwrap()
    };
    let leaving = &free[leaves]["vm"];
    for (name, vm) in
        [("late.json", "a"), ("late.json", "b"), ("after.json", leaving.as_str().unwrap())]
    {
        let vm = &Value::from(vm);
        let (before, after) = (far(&free, vm), far(&rows(name), vm));
        eprintln!(
            "{name}: {vm} has {after:.1} % of its memory on other nodes, before {before:.1} %"
        );
        assert!(after < before + 5.0, "its memory is where it was");
    }
}

/// A program chooses node 3 for guest `a`, as far as its vCPU may run there; and the plan of another policy is carried out later,
/// when it fits and as long as its VMs live.
pub(crate) fn a_policy_of_ones_own_and_a_plan_made_before() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        r#"set -e
        cat > counters.toml <<'END'
{TWO_DEVILS}
END
        qemu() {{ pgrep -f "^[^ ]*qemu.*-name $1,"; }}
        vcpu() {{ for t in /proc/$(qemu $1)/task/*; do grep -q KVM $t/comm && basename $t; done; }}
        bound() {{ taskset -cp $(vcpu $1) | sed 's/.*: //'; }}
        layout() {{ what=$1; shift; vmscope layout $what "$@" --format json; }}
        mine() {{ layout plan --policy exec:/run/mine/policy --counters counters.toml; }}
        mkdir /run/mine
        cat > /run/mine/policy <<END
#!/bin/sh
grep -q '"room_vcpus"' || exit 4
grep -E '^(Uid|CapEff|NoNewPrivs):' /proc/self/status | paste -sd ' ' >&2
echo '{{"choices":[{{"vm":$(qemu a),"node":3,"reason":"I say so"}}]}}'
END
        chmod +x /run/mine/policy
        mine > mine.json
        taskset -cp 0,1 $(vcpu a) >&2
        mine > pinned.json
        taskset -cp 0 $(vcpu a) >&2
        printf '#!/bin/sh\nexec cat' > /run/mine/policy
        code=0; mine > echo.json 2> echo.err || code=$?
        echo echo $code $(wc -c < echo.json)
        layout plan --policy dino --counters counters.toml > plan.json
        # A cpuset keeps both where they are.
        groups=/sys/fs/cgroup
        echo +cpuset > $groups/cgroup.subtree_control
        mkdir $groups/held
        echo 0 > $groups/held/cpuset.cpus; echo 0-3 > $groups/held/cpuset.mems
        for vm in a b; do qemu $vm > $groups/held/cgroup.procs; done
        code=0; layout apply --plan plan.json > held.json 2> held.err || code=$?
        echo held $code $(bound a) $(bound b)
        for vm in a b; do qemu $vm > $groups/cgroup.procs; taskset -cp 0 $(vcpu $vm) >&2; done
        layout apply --plan plan.json > done.json
        echo done $? $(bound a) $(bound b)
        layout apply --plan plan.json > again.json
        kill -9 $(qemu b)
        while qemu b > /dev/null; do sleep 0.1; done
        code=0; layout apply --plan plan.json > gone.json 2> gone.err || code=$?
        echo gone $code
        cat *.err >&2"#
    );
    let ran = in_testbed("layout", folder.path(), &script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    eprintln!("{}{}", ran.stdout, ran.stderr);
    let file = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let json = |name: &str| -> Value { serde_json::from_str(&file(name)).unwrap() };
    let row = |name: &str, vm: &str| {
        json(name)["vms"].as_array().unwrap().iter().find(|row| row["vm"] == vm).unwrap().clone()
    };
    let mine = row("mine.json", "a");
    assert_eq!((&mine["vcpus_after"], &mine["reason"]), (&"3:1".into(), &"I say so".into()));
    assert_ne!(
        row("pinned.json", "a")["vcpus_after"],
        "3:1",
        "its vCPU is pinned to nodes 0 and 1"
    );
    let lines: Vec<&str> = ran.stdout.lines().collect();
    let [echo, held, done, gone] = lines[..] else { panic!("{lines:?}") };
    assert_eq!([echo, held, gone], ["echo 1 0", "held 1 0 0", "gone 1"]);
    let said = [
        ("echo.err", "policy /run/mine/policy: its answer is not of the documented form: "),
        ("held.err", "plan.json no longer fits: vCPU 0 of VM "),
        ("gone.err", "plan.json no longer fits: VM b has ended"),
    ];
    for (name, expected) in said {
        assert!(file(name).contains(expected), "{}", file(name));
    }
    let plan = json("plan.json");
    let leaves = plan["vms"].as_array().unwrap().iter().find(|vm| vm["vcpus_after"] != "0:1");
    let leaves = leaves.expect("one of two leaves node 0");
    let moved = row("done.json", leaves["vm"].as_str().unwrap());
    assert_eq!(moved["vcpus"], leaves["vcpus_after"], "{moved}");
    let node = leaves["vcpus_after"].as_str().unwrap().split(':').next().unwrap();
    assert!(done.split(' ').skip(2).any(|cpu| cpu == node), "{done}");
    let [now, wanted] = [on_node(&moved, "memory", node), on_node(leaves, "memory_after", node)];
    eprintln!("{now} MiB of {wanted} on node {node}");
    assert!(0.95 * wanted <= now, "{moved}");
    assert!(json("again.json")["moved_bytes"].as_f64().unwrap() < 0.05 * 1048576.0 * wanted);
}

/// VMs whose memory does not move, and one whose guest has NUMA nodes of its own.
const HELD: &str = r#"
[[vm]]
name = "pinned"
waiting = 0.57

[[vm]]
name = "shared"
waiting = 0.57

[[vm]]
name = "twin"
waiting = 0.57
"#;

/// The memory of three VMs is on another node than their vCPUs. That of `pinned` is pinned, and the plan leaves it alone. Another
/// process has pinned that of `shared`, which shows when it is moved. `twin` has two cells that change places.
pub(crate) fn what_holds_a_vm_holds_it_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let program = include_str!("held_vm.c");
    let script = format!(
        r#"cat > held_vm.c <<'END_OF_C'
{program}
END_OF_C
        cat > counters.toml <<'END'
{HELD}
END
        set -e
        gcc -O1 -pthread -o /run/held_vm held_vm.c
        groups=/sys/fs/cgroup
        echo +cpuset > $groups/cgroup.subtree_control
        mkdir $groups/held
        echo 2 > $groups/held/cpuset.cpus; echo 0-3 > $groups/held/cpuset.mems
        node() {{ memory=$1; name=$2; shift 2; taskset -c 0 /run/held_vm $memory 48 "$@" > $name.out & eval $name=$!; }}
        node own pinned 2 -name pinned
        node other shared 2 -name shared
        node cells twin 1 -name twin -object memory-backend-memfd,id=a,size=48M -numa node,cpus=0,memdev=a \
            -object memory-backend-memfd,id=b,size=48M -numa node,cpus=1,memdev=b
        for vm in pinned shared twin; do
            until grep -q ready $vm.out; do sleep 0.2; done
        done
        until grep -q pinned shared.out; do sleep 0.2; done
        for pid in $pinned $shared; do echo $pid > $groups/held/cgroup.procs; done
        grep VmPin /proc/$pinned/status /proc/$shared/status >&2
        layout() {{ what=$1; shift; vmscope layout $what --policy simple --counters counters.toml "$@"; }}
        where() {{
            for t in /proc/$1/task/*; do taskset -cp $(basename $t) | sed 's/.*: //'; done | paste -sd ' '
            grep memfd:memory /proc/$1/numa_maps
        }}
        where $twin >&2
        layout plan --format json > plan.json
        where $shared > shared-before
        code=0; layout apply --format json > done.json 2> apply.err || code=$?
        where $shared > shared-after
        where $pinned >&2
        where $twin > twin-after
        layout plan --format json > again.json
        cat apply.err shared-after twin-after >&2
        echo $code
        kill $pinned $shared $twin"#
    );
    let ran = in_testbed("layout", folder.path(), &script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    eprintln!("{}", ran.stderr);
    let file = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let row = |name: &str, vm: &str| {
        let report: Value = serde_json::from_str(&file(name)).unwrap();
        report["vms"].as_array().unwrap().iter().find(|row| row["vm"] == vm).cloned()
    };
    let pinned = row("plan.json", "pinned").unwrap();
    let why = "48 MiB of its memory are pinned, by io_uring or a device";
    assert_eq!(
        (&pinned["reason"], &pinned["memory_after"]),
        (&why.into(), &pinned["memory_before"])
    );
    assert_eq!(row("done.json", "pinned"), None, "nothing is tried");

    let shared = row("plan.json", "shared").unwrap();
    assert_eq!(
        (&shared["memory_before"], &shared["memory_after"]),
        (&"0:48M".into(), &"2:48M".into())
    );
    assert_eq!(ran.stdout.trim(), "1");
    let stays = "VM shared stays where it was: the kernel did not move 48 of 48 MiB to node 2";
    assert!(file("apply.err").contains(stays), "{}", file("apply.err"));
    assert_eq!(
        file("shared-before"),
        file("shared-after"),
        "its vCPU and its memory are where they were"
    );

    // Each cell's memory is where its vCPU is: its first thread is no vCPU.
    let twin = row("again.json", "twin").unwrap();
    assert_eq!(
        (&twin["memory_before"], &twin["vcpus_before"]),
        (&"0:48M 1:48M".into(), &"0:1 1:1".into())
    );
    let after = file("twin-after");
    let mut lines = after.lines();
    let cpus: Vec<&str> = lines.next().unwrap().split(' ').skip(1).collect();
    // The second cell's memory has the lower address.
    let memory = |node: &str| lines.clone().position(|line| line.contains(&format!(" N{node}=")));
    assert_eq!([memory(cpus[0]), memory(cpus[1])], [Some(1), Some(0)], "{after}");
}

/// Where neither PMU nor resctrl counts, DAMON sees which memory the guest accesses. Guest `a` booted on node 0, and its vCPU
/// now runs on node 1.
pub(crate) fn damon_counts_where_nothing_else_does() {
    let folder = tempfile::tempdir().unwrap();
    let script = "
        damon=/sys/kernel/mm/damon/admin/kdamonds
        plan() { vmscope layout plan --seconds 3 --format json; }
        tid=$(grep -l KVM /proc/$(pgrep -f '^[^ ]*qemu.*-name a,')/task/*/comm | cut -d / -f 5)
        taskset -cp 1 $tid >&2
        uname -r; grep . /sys/devices/system/cpu/cpu0/cache/index*/size >&2
        vmscope layout plan --seconds 3 >&2
        cat $damon/nr_kdamonds
        # Another program's is left alone.
        echo 1 > $damon/nr_kdamonds
        plan > in-use.json
        cat $damon/nr_kdamonds
        echo 0 > $damon/nr_kdamonds
        # What one that is killed leaves behind does not disturb the next.
        vmscope layout plan --seconds 60 >/dev/null & killed=$!
        until grep -q on $damon/0/state; do sleep 0.1; done
        kill -9 $killed
        cat $damon/nr_kdamonds
        vmscope layout apply --policy simple --seconds 3 --measure 3 --format json > done.json
        cat $damon/nr_kdamonds
        # The daemon counts until it is stopped.
        printf 'state = \"/run/layout\"\nsocket = \"/run/layout.socket\"\npeers = \"/run/peers\"\n' > /run/layout.toml
        $AS_UNIT vmscope layout daemon -c /run/layout.toml & daemon=$!
        until grep -q on $damon/0/state; do sleep 0.1; done
        kill $daemon
        wait $daemon
        cat $damon/nr_kdamonds
        plan > then.json";
    let script = format!("set -e; AS_UNIT='{}'\n{script}", as_unit("vmscope-layout.service"));
    let ran = in_testbed("layout-damon", folder.path(), &script).unwrap();
    if ran.stderr.contains("no kernel package") {
        return skip::skip("a host with Linux 6.12: neither apt nor the cache has one");
    }
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    eprintln!("{}", ran.stderr);
    let json = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(folder.path().join(name)).unwrap()).unwrap()
    };
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("6.12."), "{}", ran.stdout);
    // After a plan, in use by another program, after a kill, after another plan, after the daemon.
    assert_eq!(lines[1..], ["0", "1", "1", "0", "0"]);
    let in_use = json("in-use.json");
    assert_eq!(in_use["outcome"], "no_counters", "{in_use}");
    assert!(in_use["notes"].to_string().contains("another program uses DAMON"), "{in_use}");

    let done = json("done.json");
    let measured = &done["measured"][0];
    eprintln!("measured by DAMON: {measured}");
    let remote = |when: &str| measured[when].as_f64().unwrap();
    // What the guest touched first after its vCPU had moved lies there.
    assert!(60.0 < remote("remote_before") && remote("remote_after") < 10.0, "{measured}");
    let then = json("then.json");
    let vm = &then["vms"][0];
    assert_eq!((&vm["counted_by"], &then["moved_bytes"]), (&"DAMON".into(), &0.into()), "{then}");
    assert_eq!(vm["vcpus_before"], vm["vcpus_after"], "{then}");
}
