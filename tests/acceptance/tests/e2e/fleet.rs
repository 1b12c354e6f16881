//! A host with an agent, a server, and what is found in the windows that went from one to the other.

use std::path::Path;

use acceptance::fleet::Server;
use acceptance::in_testbed;
use model::{ResultRow, Results, VcpuTimeRow};

/// Enrols, records some windows, and waits until the server has them. The host's name is not the one it is enrolled by.
const SCRIPT: &str = "set -e
    vmscope agent enroll --server $SERVER --token $TOKEN --fingerprint $FINGERPRINT --host kvm1 --state $PWD/state
    vmscope agent enroll --server $SERVER --token $TOKEN --fingerprint $FINGERPRINT --host kvm1 --state $PWD/again && exit 1
    printf 'server = \"%s\"\\nstate = \"%s\"\\nwindow_s = 5\\nguest_timeout_s = 60\\nmax_cpu_percent = 10000.0\\ncall_graph = true\\nmetrics = \"127.0.0.1:9188\"\\n' \
        $SERVER $PWD/state >agent.toml
    vmscope agent --short-windows --config agent.toml & agent=$!
    sent() { curl -s http://127.0.0.1:9188/metrics | sed -n 's/.*outcome=\"sent\"} //p'; }
    until [ \"$(sent | cut -d. -f1)\" -ge 4 ] 2>/dev/null; do kill -0 $agent; sleep 1; done
    curl -s http://127.0.0.1:9188/metrics >metrics
    kill -TERM $agent
    wait $agent
    rm -r state";

/// The results of a window, once they are there.
fn results(server: &Server, raw: &Path) -> Results {
    let window = raw.file_stem().unwrap();
    let day = raw.parent().unwrap().strip_prefix(server.store().join("raw/v1")).unwrap();
    let of = |table: &str| {
        let folder = server.store().join("results/v1").join(table).join(day);
        folder.join(window).with_extension("parquet")
    };
    // The last one that is stored.
    for _ in 0..600 {
        if of("hosts").exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let tables = tempfile::tempdir().unwrap();
    for table in ["vcpu_time", "cpu_time", "exits", "hosts", "vms", "health"] {
        std::fs::copy(of(table), tables.path().join(format!("{table}.parquet"))).unwrap();
    }
    recording::results::read(tables.path()).unwrap()
}

fn sum<'a>(rows: &'a [ResultRow<VcpuTimeRow>], of: impl Fn(&VcpuTimeRow) -> bool + 'a) -> u64 {
    rows.iter().map(|result| &result.row).filter(|row| of(row)).map(|row| row.ns).sum()
}

pub(crate) fn windows_reach_the_server_and_say_who_took_whose_time() {
    let server = Server::start(&["10.20.0.1"], "").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "SERVER=https://10.20.0.1:{} TOKEN={} FINGERPRINT={}\n{SCRIPT}",
        server.port,
        server.token("agent").unwrap(),
        server.fingerprint
    );
    let ran = in_testbed("fleet", folder.path(), &script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let windows = server.objects("raw");
    assert!(4 <= windows.len(), "{windows:?}");
    assert!(server.objects("refused").is_empty(), "{:?}", server.objects("refused"));
    let metrics = std::fs::read_to_string(folder.path().join("metrics")).unwrap();
    assert!(metrics.contains("vmscope_agent_samples_lost_total 0"), "{metrics}");

    let mut ends = Vec::new();
    for raw in &windows {
        let results = results(&server, raw);
        let host = &results.hosts[0];
        assert_eq!(host.window.host, "kvm1");
        ends.push((host.window.window_ns, host.window.window_ns + host.row.length_ns));
        // Each CPU's time adds up to the window's, each VM's to that of its vCPUs.
        for cpu in 0..host.row.cpus {
            let rows = results.cpu_time.iter().filter(|result| result.row.cpu == cpu);
            assert_eq!(rows.map(|result| result.row.ns).sum::<u64>(), host.row.length_ns);
        }
        for vm in &results.vms {
            let ns = sum(&results.vcpu_time, |row| row.vm == vm.row.vm);
            assert_eq!(ns, vm.row.vcpu_ns);
        }
        for (vm, other) in [("a", "b"), ("b", "a")] {
            let whole = sum(&results.vcpu_time, |row| row.vm == vm);
            let part = |of: &dyn Fn(&VcpuTimeRow) -> bool| {
                let ns = sum(&results.vcpu_time, |row| row.vm == vm && of(row));
                100.0 * ns as f64 / whole.max(1) as f64
            };
            let stolen = part(&|row| row.state == "steal_outside");
            let by_other = part(&|row| row.thief_vm.as_deref() == Some(other));
            let own = part(&|row| row.code.function.as_deref() == Some("compute_a"));
            eprintln!(
                "{vm}: {own:.1} % compute_a, {stolen:.1} % stolen, {by_other:.1} % by {other}"
            );
            // The stacks are whole, so paths begin where programs do.
            let of_calls = |row: &VcpuTimeRow| {
                let stack = row.stack.as_ref().map_or("", |stack| stack.functions.as_str());
                row.code.function.as_deref() == Some("compute_a")
                    && stack.contains(";main;")
                    && stack.ends_with(";compute_a")
            };
            let calls = part(&of_calls);
            eprintln!("{vm}: {calls:.1} % in paths from main to compute_a");
            // The first window begins before the guests are known.
            assert!(0.9 * own < calls, "{vm}: {calls} % of {own} % have a path");
            // Two that want one CPU take half of each other. The last window is short.
            if host.row.length_ns > 4_000_000_000 {
                assert!((30.0..60.0).contains(&by_other), "{vm} lost {by_other} % to {other}");
                assert!(10.0 < own, "{vm} has {own} % of compute_a");
            }
        }
    }
    ends.sort_unstable();
    // The two guests leave an emulated host little time to finish windows: those that were given up are reported.
    let given_up = metrics.lines().find_map(|line| {
        line.strip_prefix("vmscope_agent_windows_total{outcome=\"dropped_unfinished\"} ")
    });
    let given_up: f64 = given_up.unwrap().parse().unwrap();
    let gaps = ends.windows(2).filter(|pair| pair[0].1 != pair[1].0).count();
    assert!(gaps as f64 <= given_up, "{given_up} windows given up, time between: {ends:?}");
}
