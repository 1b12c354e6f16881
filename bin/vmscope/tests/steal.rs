//! `vmscope steal`, `exits` and `correct` as a user runs them, on a drawn recording; compared with
//! tests/golden/report/steal-*.

#![allow(clippy::unwrap_used)]

#[path = "../../../crates/analysis/tests/world/mod.rs"]
mod world;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use model::{
    CpuId, CpuNode, ExitCount, Header, HostNs, NumaReading, OffCpuReason, Sample, Switch,
    SwitchEvent, Tables, Throttling, VcpuId, VcpuSample, VcpuState, VmId, VmMemory, WaitCounters,
};
use recording::{Writer, encode};
use split::drawn::{self, Drawing};
use world::{MS, START};

/// cpu0, a character is a millisecond. On it: `a` `b` functions and `k` the kernel of vm1's process compute (40), `c`
/// a function of its process compute (42), `V` that one's I/O in the VMM; `x` vm2; `p` postgres, `i` idle.
const CPU0: &str = "aaaaaaaaaaaaaaaaaaaappppppppppaaaaaaaaaaxxxxxxxxxxxxxxxkaabbpccccVVcccccciiiiiiicViiiicccciiiiiicccc";
/// vm1's vCPU: `.` waits for the CPU (throttled or not), `-` halted; else on it, or asleep in the VMM.
const VM1: &str = "                    ..........          ...............     .            -------           ......    ";
/// vm2's vCPU, from 40 ms on.
const VM2: &str = "                                                       ---------------------------------------------";

/// The cpu0's samples with what their vCPUs had waited for until then.
fn samples() -> Vec<Sample> {
    let what = |letter| match letter {
        'a' => "guest 0 user a000 f0 400010",
        'b' => "guest 0 user a000 f0 400020",
        'k' => "guest 0 kernel a000 f0 ffffffff9a000010",
        'c' | 'V' => "guest 0 user c000 f2 400018",
        'x' => "guest 2 user a000 0 400010",
        'p' => "host 300 user 5010",
        'i' => "idle ffffffff81000100",
        other => panic!("{other}"),
    };
    let mut samples = Vec::new();
    for (at, letter) in CPU0.chars().enumerate() {
        let mut sample = world::samples(&format!("0 {at} 1 {}", what(letter))).remove(0);
        sample.time = HostNs(sample.time.0 + MS / 2);
        if let VcpuState::Guest(vcpu) = sample.vcpu {
            let waits = Some(waits(if letter == 'x' { VM2 } else { VM1 }, at));
            sample.vcpu = match letter {
                'V' => VcpuState::Vmm(VcpuSample { exit_reason: 0x7b, waits, ..vcpu }),
                _ => VcpuState::Guest(VcpuSample { waits, ..vcpu }),
            };
        }
        samples.push(sample);
    }
    samples
}

fn waits(line: &str, ms: usize) -> WaitCounters {
    let n = |letter| line[..ms].chars().filter(|c| *c == letter).count() as u64 * MS;
    WaitCounters { halted_ns: n('-'), polled_ns: 0, runnable_ns: n('.') }
}

/// vm1's second vCPU never ran, vm2's slept at the end.
fn seen() -> Vec<Switch> {
    let seen = |vcpu, ms, waits| Switch {
        time: at(ms),
        cpu: CpuId(0),
        vcpu: VcpuId(vcpu),
        event: SwitchEvent::Seen { off_cpu: Some(OffCpuReason::Halted), exit_reason: 0x78, waits },
    };
    let none = Some(WaitCounters::default());
    vec![seen(1, 0, none), seen(1, 100, none), seen(2, 100, none)]
}

fn at(ms: u64) -> HostNs {
    HostNs(START.0 + ms * MS)
}

fn tables() -> Tables {
    let throttling = |ms, throttled_ns| Throttling { vm: VmId(0), time: at(ms), throttled_ns };
    let exits = |reason, count| ExitCount { vcpu: VcpuId(0), reason, count };
    Tables {
        throttling: vec![throttling(86, 0), throttling(97, 6 * MS)],
        exits: vec![exits(0x7b, 40), exits(0x60, 120)],
        ..world::tables()
    }
}

/// A recording of its own for each test.
fn recorded(name: &str, header: &Header, tables: &Tables) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("steal-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("recording");
    let writer = Writer::create(&path, header).unwrap();
    let records: Vec<u8> = samples().iter().flat_map(encode).collect();
    writer.spool(CpuId(0)).unwrap().append(&records).unwrap();
    writer.switch_spool().unwrap().append(&seen()).unwrap();
    writer.finish(header, tables).unwrap();
    path
}

fn header() -> Header {
    let counters = ["samples_dropped_cpu0", "samples_missed_cpu0"].map(|name| (name.to_owned(), 0));
    Header { counters: counters.into(), notes: Vec::new(), ..world::header() }
}

fn run(dir: &Path, command: &[&str]) -> Output {
    let mut vmscope = Command::new(env!("CARGO_BIN_EXE_vmscope"));
    vmscope.arg(command[0]).arg(dir).args(&command[1..]).output().unwrap()
}

fn check(dir: &Path, command: &[&str], golden: &str) {
    check_output(run(dir, command), golden);
}

fn check_output(output: Output, golden: &str) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let actual = String::from_utf8(output.stdout).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/report").join(golden);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(actual, expected, "{golden} (UPDATE=1 rewrites)");
}

/// Fails with this exit code and one line that says so.
fn check_error(dir: &Path, command: &[&str], code: i32, line: &str) {
    check_failure(run(dir, command), code, line);
}

fn check_failure(output: Output, code: i32, line: &str) {
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!((output.stdout.len(), stderr.lines().count()), (0, 1), "{stderr}");
    assert!(stderr.contains(line), "{stderr}");
}

/// Lines add up to all time of the vCPUs; those of processes are what `correct` has.
#[test]
fn meter() {
    let dir = recorded("meter", &header(), &tables());
    check(&dir, &["meter"], "steal-meter.txt");
    check(&dir, &["meter", "--format", "csv"], "steal-meter.csv");
    let json = |command: &[&str]| -> serde_json::Value {
        serde_json::from_slice(&run(&dir, &[command, &["--format", "json"]].concat()).stdout)
            .unwrap()
    };
    let (metered, steal) = (json(&["meter"]), json(&["steal"]));
    let sum = |keys: &[&str]| -> u64 {
        let lines = metered["lines"].as_array().unwrap();
        let of_line = |line: &serde_json::Value| -> u64 {
            keys.iter().map(|key| line[*key].as_u64().unwrap()).sum()
        };
        lines.iter().map(of_line).sum()
    };
    let vms = steal["vms"].as_array().unwrap();
    let of_vms = |key: &str| vms.iter().map(|vm| vm["time"][key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum(&["apparent_ns", "not_charged_ns"]), of_vms("wall_ns"));
    for account in ["steal_outside_ns", "steal_vmm_ns", "throttled_ns"] {
        assert_eq!(sum(&[account]), of_vms(account), "{account}");
    }
    assert_eq!(sum(&["corrected_ns"]), of_vms("guest_ns") + of_vms("not_sampled_ns"));
    let correct = json(&["correct", "--vm", "vm1"]);
    let corrected = |process: &serde_json::Value| process["corrected_ns"].as_u64().unwrap();
    let corrected: u64 = correct["processes"].as_array().unwrap().iter().map(corrected).sum();
    let metered = metered["lines"].as_array().unwrap().iter();
    let metered = metered.filter(|line| line["vm"] == "vm1" && line["line"] == "process");
    assert_eq!(metered.map(|line| line["corrected_ns"].as_u64().unwrap()).sum::<u64>(), corrected);
    // The same time twice.
    let folder = dir.to_str().unwrap();
    check_error(&dir, &["meter", folder], 2, "recordings of host1 overlap");
}

#[test]
fn steal() {
    let dir = recorded("steal", &header(), &tables());
    check(&dir, &["steal"], "steal-all.txt");
    check(&dir, &["steal", "--vm", "vm1"], "steal-vm1.txt");
    check(&dir, &["steal", "--vm", "vm1", "--by", "process"], "steal-process.txt");
    check(&dir, &["steal", "--vm", "vm1", "--by", "thread"], "steal-thread.txt");
    check(&dir, &["steal", "--vm", "vm1", "--by", "thread", "--format", "csv"], "steal-thread.csv");
    check(
        &dir,
        &["steal", "--vm", "vm1", "--by", "function", "--limit", "2"],
        "steal-function.txt",
    );
    check(&dir, &["steal", "--format", "csv"], "steal-all.csv");
    check(&dir, &["steal", "--by", "function", "--format", "csv"], "steal-function.csv");
    check(&dir, &["steal", "--vm", "vm1", "--by", "process", "--format", "json"], "steal-vm1.json");
}

/// A capture whose microsecond 5,000 is the recording's first: vm1 serves the web, vm2 has the database.
fn capture(folder: &Path) -> String {
    let mut drawing = Drawing::default();
    let db = drawing.open(10, "10.0.0.2:50000", "10.0.0.3:5432");
    drawing.client(db, 20, &drawn::pg_startup(0x30000, b"user\0a\0\0"));
    drawing.server(db, 900, &[drawn::pg(b'R', &[0; 4]), drawn::pg(b'Z', b"I")].concat());
    let line = drawing.open(1_000, "10.0.0.9:1", "10.0.0.2:80");
    drawing.client(line, 2_000, b"GET /a HTTP/1.1\r\n\r\n");
    for (from, to) in [(30_000, 42_000), (48_500, 62_000)] {
        drawing.client(db, from, &drawn::pg(b'Q', b"select 1\0"));
        drawing.server(db, to, &[drawn::pg(b'C', b"SELECT 1\0"), drawn::pg(b'Z', b"I")].concat());
    }
    drawing.server(line, 108_000, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let other = drawing.open(109_000, "10.0.0.9:2", "10.0.0.4:80");
    drawing.client(other, 110_000, b"GET /b HTTP/1.1\r\n\r\n");
    drawing.server(other, 111_000, b"HTTP/1.1 204 No Content\r\n\r\n");
    let path = folder.join("a.pcapng");
    std::fs::write(&path, drawn::pcapng(&drawing.in_order())).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn split_by_a_recording() {
    let began = Header { start_unix_ns: drawn::at(5_000).0, ..header() };
    let dir = recorded("split", &began, &tables());
    let file = capture(dir.parent().unwrap());
    let run = |more: &[&str]| {
        let mut vmscope = Command::new(env!("CARGO_BIN_EXE_vmscope"));
        vmscope.args(["lab", "split", &file, "--recording"]).arg(&dir).args(more).output().unwrap()
    };
    let vms = ["--vm", "vm1=10.0.0.2", "--vm", "vm2=10.0.0.3"];
    for (golden, more) in [
        ("split-recording.txt", &["--format", "text"][..]),
        ("split-recording.csv", &["--format", "csv", "--by", "part"]),
        ("split-recording.json", &["--format", "json"]),
    ] {
        check_output(run(&[&vms, more].concat()), &format!("../lab/{golden}"));
    }
    for (vm, says) in [("vm9=10.0.0.2", "no VM named \"vm9\""), ("vm1", "NAME=ADDRESS")] {
        check_failure(run(&["--vm", vm]), 2, says);
    }
    check_failure(run(&["--vm", "vm1=10.0.0.2", "--vm", "vm2=10.0.0.2"]), 2, "given to two VMs");
}

#[test]
fn remote_memory() {
    let cpu_nodes = [0, 1].map(|cpu| CpuNode { cpu: CpuId(cpu), node: cpu });
    let on = |node, bytes| VmMemory {
        vm: VmId(0),
        time: at(0),
        found: NumaReading::OnNode { node, bytes },
    };
    let memory = vec![on(0, 1 << 20), on(1, 3 << 20)];
    let tables = Tables { cpu_nodes: cpu_nodes.into(), memory, ..tables() };
    let dir = recorded("remote", &header(), &tables);
    check(&dir, &["steal"], "steal-remote.txt");
    let output = run(&dir, &["steal", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let shares = [0, 1].map(|vm| json["vms"][vm]["remote_share"].clone());
    assert_eq!(shares, [serde_json::json!(0.75), serde_json::Value::Null]);
}

#[test]
fn explain() {
    let dir = recorded("explain", &header(), &tables());
    check(&dir, &["explain", "vm1"], "steal-explain.txt");
    check(&dir, &["explain", "--format", "csv"], "steal-explain.csv");
    check(&dir, &["explain", "vm1", "--format", "json"], "steal-explain.json");
    check_error(&dir, &["explain", "vm9"], 2, "no VM `vm9`");
}

#[test]
fn exits() {
    let dir = recorded("exits", &header(), &tables());
    check(&dir, &["exits"], "steal-exits.txt");
    check(&dir, &["exits", "--vm", "vm1", "--by", "function"], "steal-exits-function.txt");
    check(&dir, &["exits", "--vm", "vm1", "--format", "csv"], "steal-exits.csv");
    check(&dir, &["exits", "--vm", "vm1", "--format", "json"], "steal-exits.json");
    let uncounted = Tables { exits: Vec::new(), ..tables() };
    let dir = recorded("exits-uncounted", &header(), &uncounted);
    check(&dir, &["exits", "--vm", "vm1"], "steal-exits-uncounted.txt");
}

#[test]
fn correct() {
    let dir = recorded("correct", &header(), &tables());
    let one = ["correct", "--vm", "vm1", "--process", "40", "--function", "compute_a"];
    let measured = [&one[..], &["--apparent", "60ms", "--to", "60ms"]].concat();
    check(&dir, &["correct", "--vm", "vm1"], "steal-correct.txt");
    check(&dir, &["correct", "--vm", "vm1", "--format", "csv"], "steal-correct.csv");
    check(&dir, &["correct", "--vm", "vm1", "--process", "42"], "steal-correct-42.txt");
    check(&dir, &measured, "steal-correct-a.txt");
    check(&dir, &[&measured[..], &["--format", "csv"]].concat(), "steal-correct-a.csv");
    check(&dir, &[&measured[..], &["--format", "json"]].concat(), "steal-correct-a.json");
    for (target, name, golden) in [
        ("--process", "42", "steal-correct-process.txt"),
        ("--process", "40", "steal-correct-much.txt"),
        ("--function", "compute_b", "steal-correct-function.txt"),
        ("--thread", "40", "steal-correct-thread.txt"),
    ] {
        check(&dir, &["correct", "--vm", "vm1", "--apparent", "80ms", target, name], golden);
    }
    let whole = ["correct", "--vm", "vm1", "--apparent", "0.2", "--from", "35ms", "--to", "50ms"];
    check(&dir, &whole, "steal-correct-window.txt");
    let beyond = [&one[..], &["--apparent", "40ms"]].concat();
    check(&dir, &beyond, "steal-correct-beyond.txt");
}

/// Sums that a reader relies on, in what is printed.
#[test]
fn printed_numbers_add_up() {
    let dir = recorded("sums", &header(), &tables());
    let lines = |command: &[&str]| -> Vec<Vec<String>> {
        let text = String::from_utf8(run(&dir, command).stdout).unwrap();
        text.lines().skip(1).map(|l| l.split(',').map(str::to_owned).collect()).collect()
    };
    let number = |text: &String| text.parse::<u64>().unwrap_or(0);
    let causes = lines(&["steal", "--vm", "vm1", "--format", "csv"]);
    let of_vcpu0 = |account: &str| -> u64 {
        let rows = causes.iter().filter(|row| row[1] == "0" && row[2].contains(account));
        rows.map(|row| number(&row[4])).sum()
    };
    assert_eq!(of_vcpu0(""), 100 * MS);
    assert_eq!((of_vcpu0("steal_outside"), of_vcpu0("throttled")), (26 * MS, 6 * MS));
    for (by, first) in [("process", 7), ("thread", 9), ("function", 7)] {
        let victims = lines(&["steal", "--vm", "vm1", "--by", by, "--format", "csv"]);
        let taken = |column: usize| victims.iter().map(|row| number(&row[column])).sum::<u64>();
        let expected = ["steal_outside", "steal_vmm", "throttled"].map(of_vcpu0);
        assert_eq!([0, 1, 2].map(|n| taken(first + n)), expected, "{by}");
    }
}

/// What `--from` and `--to` cut apart adds up to the whole, in every view.
#[test]
fn parts_of_the_time_add_up() {
    let dir = recorded("parts", &header(), &tables());
    let printed = |command: &[&str], range: &[&str]| {
        let output = run(&dir, &[command, range].concat());
        assert!(output.status.success(), "{command:?} {range:?} {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    // A boundary in the middle of steal, one in a halt, one between two states.
    for boundary in ["12ms", "41500us", "86ms"] {
        let parts = [["--to", boundary], ["--from", boundary]];
        let accounts = |range: &[&str]| -> BTreeMap<String, u64> {
            let text = printed(&["steal", "--format", "csv"], range);
            let mut sums = BTreeMap::new();
            for row in text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>()) {
                *sums.entry(row[..3].join(" ")).or_default() += row[4].parse::<u64>().unwrap_or(0);
            }
            sums.retain(|_, ns| 0 < *ns);
            sums
        };
        let mut sum = accounts(&parts[0]);
        accounts(&parts[1]).into_iter().for_each(|(row, ns)| *sum.entry(row).or_default() += ns);
        assert_eq!(sum, accounts(&[]), "{boundary}");

        let samples = |command: &[&str], range: &[&str]| -> u64 {
            let last = |line: &str| line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok());
            printed(command, range).lines().filter_map(last).sum()
        };
        let folded = ["export", "--format", "folded", "-o", "-"];
        let in_parts = parts.map(|part| samples(&folded, &part)).iter().sum::<u64>();
        assert_eq!(in_parts, samples(&folded, &[]), "{boundary}");

        let json = |command: &[&str], range: &[&str]| -> serde_json::Value {
            serde_json::from_str(&printed(command, range)).unwrap()
        };
        let unified = ["report", "--format", "json"];
        let total = |range: &[&str]| json(&unified, range)["totals"]["samples"].as_u64().unwrap();
        assert_eq!(parts.map(|part| total(&part)).iter().sum::<u64>(), total(&[]), "{boundary}");
        let reasons = ["exits", "--vm", "vm1", "--format", "json"];
        let in_vmm = |range: &[&str]| -> u64 {
            let exits = json(&reasons, range)["vms"][0]["exits"].as_array().unwrap().clone();
            exits.iter().map(|exit| exit["ns"].as_u64().unwrap()).sum()
        };
        assert_eq!(parts.map(|part| in_vmm(&part)).iter().sum::<u64>(), in_vmm(&[]), "{boundary}");
        for part in &parts {
            assert_eq!(json(&reasons, part)["counted"], false);
        }
    }
    let window = "no time between --from and --to: 0.100 s were recorded";
    for command in ["steal", "exits", "report"] {
        check_error(&dir, &[command, "--from", "5"], 2, window);
    }
    check(&dir, &["steal", "--from", "12ms", "--to", "86ms"], "steal-part.txt");
}

#[test]
fn names_from_guests_cannot_steer_the_terminal() {
    let mut tables = tables();
    let evil = "\x1b[2J\u{9b}31m,\"x\"\r\n\u{202e}";
    tables.images.iter_mut().for_each(|image| image.name = evil.to_owned());
    tables.modules.iter_mut().for_each(|module| module.path = format!("/opt/{evil}"));
    tables.vms.iter_mut().enumerate().for_each(|(n, vm)| vm.name = format!("{n}{evil}"));
    for symbol in &mut tables.symbols {
        symbol.name = model::SymbolName::Function(evil.to_owned());
    }
    let dir = recorded("hostile", &header(), &tables);
    let vm = format!("0{evil}");
    for command in [&["steal", "--by", "function"][..], &["exits"], &["correct", "--vm", &vm]] {
        for format in ["text", "csv", "json"] {
            let output = run(&dir, &[command, &["--format", format]].concat());
            assert!(output.status.success(), "{output:?}");
            let text = String::from_utf8(output.stdout).unwrap();
            let steering = text.chars().find(|c| c.is_control() && !['\n', '\r'].contains(c));
            assert_eq!(
                (steering, text.contains('\u{202e}')),
                (None, false),
                "{command:?} {format}"
            );
        }
    }
    let command = ["correct", "--vm", &vm, "--process", "nosuch"];
    check_error(&dir, &command, 1, "it has: \\u{1b}[2J");
}

#[test]
fn errors() {
    let dir = recorded("errors", &header(), &tables());
    let vm = "no VM named \"vm9\" in this recording; it has: vm1, vm2";
    check_error(&dir, &["steal", "--vm", "vm9"], 2, vm);
    check_error(&dir, &["exits", "--vm", "vm9"], 2, vm);
    check_error(&dir, &["correct", "--vm", "vm9"], 2, vm);
    check_error(&dir, &["correct"], 2, "choose a VM with --vm: vm1, vm2");
    let edges = "no switches of vCPUs: record with --offcpu-source switches";
    check_error(&dir, &["steal", "--offcpu-source", "switches"], 2, edges);
    let of_vm1 = |args: &[&'static str]| [&["correct", "--vm", "vm1"], args].concat();
    let process = "no sample of process \"nosuch\" in this VM; it has: compute";
    check_error(&dir, &of_vm1(&["--process", "nosuch"]), 1, process);
    let function =
        "no sample of function \"nosuch\" there; it has: compute_a, compute_b, clear_page";
    check_error(&dir, &of_vm1(&["--process", "40", "--function", "nosuch"]), 1, function);
    let window = "no time between --from and --to: 0.100 s were recorded";
    check_error(&dir, &of_vm1(&["--from", "5"]), 2, window);
    check_error(&dir, &of_vm1(&["--from", "9ms", "--to", "8ms"]), 2, window);
    let less = "more than the 0.001000 s of --apparent: set --from and --to";
    check_error(&dir, &of_vm1(&["--apparent", "1ms"]), 1, less);
    check_error(Path::new("/no/such/recording"), &["steal"], 1, "/no/such/recording");
    let none = recorded("no-vms", &header(), &Tables::default());
    check_error(&none, &["steal"], 2, "this recording has no VM: record while one runs");
}
