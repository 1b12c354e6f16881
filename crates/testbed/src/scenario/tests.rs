use std::fmt::Write;

use super::*;
use crate::golden;

fn parse(text: &str) -> Result<Scenario, Error> {
    Scenario::parse(Path::new("scenarios/x.toml"), text)
}

#[test]
fn a_full_scenario() {
    let scenario = parse(
        r#"
name = "full"
[host]
cpus = 4
memory = "4G"
kernel = "6.12"
disk = { size = "1G", iops = 500 }
command = "vmscope record -o day1"
[[native]]
workload = "compute"
pin = 0
[[guest]]
name = "a"
cpus = 2
memory = "512M"
pin = [1, 3]
quota = 1.5
kernel = "/opt/kernel"
workload = ["nice -n 5 compute", "shor 33 5"]
channel = "serial"
root = "roots/debian"
init = "/sbin/init"
host_disk = true
start = { after = 2.5 }
stop = { after = 20 }
[[step]]
at = 1
guest = "a"
qmp = "device_add"
arguments = { driver = "host-x86_64-cpu", core-id = 1 }
until = "STOP"
[[step]]
at = 2.5
guest = "a"
migrate = true
[[step]]
at = 2.5
run = "echo 0 >/sys/devices/system/cpu/cpu1/online"
[[step]]
at = 9
"#,
    )
    .unwrap();
    assert_eq!((scenario.host.cpus, scenario.host.memory.as_mebibytes()), (4, 4096));
    assert_eq!(scenario.host.disk, Some(Drive { size: Size::mebibytes(1024), iops: Some(500) }));
    assert_eq!(scenario.host.kernel, GuestKernel::Version("6.12".to_owned()));
    assert_eq!(scenario.natives[0].pin, Some(0));
    let guest = scenario.guest("a").unwrap();
    assert_eq!((&*guest.pin, guest.quota), ([1, 3].as_slice(), Some(1.5)));
    assert_eq!(guest.kernel, GuestKernel::Folder("/opt/kernel".into()));
    assert_eq!(guest.workload[0].words(), ["nice", "-n", "5", "compute"]);
    assert!(guest.host_disk);
    assert_eq!(guest.root.as_deref(), Some(Path::new("scenarios/roots/debian")));
    assert_eq!(guest.start, When::After(Duration::from_millis(2500)));
    assert_eq!(guest.stop, Some(When::After(Duration::from_secs(20))));
    let [add, migrate, offline, end] = &scenario.steps[..] else { panic!("{:?}", scenario.steps) };
    assert_eq!((&add.guest, add.at), (&Some("a".to_owned()), Duration::from_secs(1)));
    let Action::Qmp { execute, arguments, until } = &add.action else { panic!("{add:?}") };
    assert_eq!((execute.as_str(), until.as_deref()), ("device_add", Some("STOP")));
    assert_eq!(arguments.as_ref().unwrap()["core-id"], 1);
    assert_eq!((&migrate.action, &end.action), (&Action::Migrate, &Action::Wait));
    assert!(offline.guest.is_none() && matches!(offline.action, Action::Run(_)));
}

#[test]
fn a_short_scenario_has_sane_defaults() {
    let scenario = parse("name = \"short\"\n[[guest]]\nname = \"a\"\n").unwrap();
    assert_eq!(scenario.host, Host::default());
    let guest = &scenario.guests[0];
    assert_eq!((guest.cpus, guest.memory.as_mebibytes()), (1, 256));
    assert_eq!((guest.channel, guest.start, &guest.stop), (Channel::Vsock, When::Before, &None));
    assert!(guest.workload.is_empty() && guest.pin.is_empty() && guest.packages.is_empty());
    assert_eq!((guest.quota, guest.host_disk), (None, false));
}

/// Scenarios with one mistake each.
const MISTAKES: &[&str] = &[
    "",
    "name = ",
    "name = \"a b\"",
    "name = \"x\"\nguests = 3",
    "name = \"x\"\n[host]\ncpu = 2",
    "name = \"x\"\n[host]\ncpus = 0",
    "name = \"x\"\n[host]\ndisk = { size = \"1G\", iops = 0 }",
    "name = \"x\"\n[host]\ndeterministic = true",
    "name = \"x\"\n[host]\nmemory = \"2 GB\"",
    "name = \"x\"\n[host]\nkernel = \"newest\"",
    "name = \"x\"\n[[guest]]\ncpus = 1",
    "name = \"x\"\n[[guest]]\nname = \"a/b\"",
    "name = \"x\"\n[[guest]]\nname = \"a\"\n[[guest]]\nname = \"a\"",
    "name = \"x\"\n[[guest]]\nname = \"a\"\nworkload = \"computer\"",
    "name = \"x\"\n[[guest]]\nname = \"a\"\nworkload = 3",
    "name = \"x\"\n[[guest]]\nname = \"a\"\nworkload = [\"compute\", \"shor; reboot\"]",
    "name = \"x\"\n[[guest]]\nname = \"a\"\nchannel = \"tcp\"",
    "name = \"x\"\n[[guest]]\nname = \"a\"\ncpus = 2\npin = [0]",
    "name = \"x\"\n[[guest]]\nname = \"a\"\npin = [2]",
    "name = \"x\"\n[[guest]]\nname = \"a\"\ncpus = 2\npin = [0, 0, 0]",
    "name = \"x\"\n[[guest]]\nname = \"a\"\nquota = 0",
    "name = \"x\"\n[[guest]]\nname = \"a\"\nquota = 1.5",
    "name = \"x\"\n[[guest]]\nname = \"a\"\nquota = nan",
    "name = \"x\"\n[[guest]]\nname = \"a\"\nquota = \"50%\"",
    "name = \"x\"\n[[guest]]\nname = \"a\"\npackages = \"postgresql\"",
    "name = \"x\"\n[[guest]]\nname = \"a\"\npackages = [\"postgresql,nginx\"]",
    "name = \"x\"\n[[guest]]\nname = \"a\"\npackages = [\"\"]",
    "name = \"x\"\n[[guest]]\nname = \"a\"\nroot = \"r\"\npackages = [\"nginx\"]",
    "name = \"x\"\n[[guest]]\nname = \"a\"\nhost_disk = true",
    "name = \"x\"\n[host]\ndisk = { size = \"1G\" }\n[[guest]]\nname = \"a\"\nhost_disk = true\n[[guest]]\nname = \"b\"\nhost_disk = true",
    "name = \"x\"\n[[guest]]\nname = \"a\"\nstart = \"later\"",
    "name = \"x\"\n[[guest]]\nname = \"a\"\nstart = { after = -1 }",
    "name = \"x\"\n[[guest]]\nname = \"a\"\nstart = { before = 1 }",
    "name = \"x\"\n[[guest]]\nname = \"a\"\nstop = \"before\"",
    "name = \"x\"\n[[guest]]\nname = \"a\"\ninit = \"/sbin/init\"",
    "name = \"x\"\n[[guest]]\nname = \"a\"\ncpus = 2\nmax_cpus = 1",
    "name = \"x\"\n[[guest]]\nname = \"a\"\ncmdline = \"a\\nb\"",
    "name = \"x\"\n[[host.node]]\nmemory = \"3G\"\ncpus = [0]",
    "name = \"x\"\n[[host.node]]\nmemory = \"1G\"\ncpus = [0, 1]",
    "name = \"x\"\n[[host.node]]\nmemory = \"3G\"\ncpus = [0, 1]\ndistances = [10, 20]",
    "name = \"x\"\n[[step]]\nat = -1",
    "name = \"x\"\n[[step]]\nat = 1\nqmp = \"stop\"",
    "name = \"x\"\n[[step]]\nat = 1\nguest = \"a\"\nqmp = \"stop\"",
    "name = \"x\"\n[[step]]\nat = 1\nrun = \"true\"\nuntil = \"STOP\"",
    "name = \"x\"\n[[step]]\nat = 1\nrun = \"true\\nfalse\"",
    "name = \"x\"\n[[step]]\nat = 2\n[[step]]\nat = 1",
    "name = \"x\"\n[[guest]]\nname = \"a\"\n[[step]]\nat = 1\nguest = \"a\"\nqmp = \"stop\"\nmigrate = true",
    "name = \"x\"\n[[native]]\nworkload = \"compute\"\npin = 7",
    "name = \"x\"\n[peer]\nname = \"x\"",
    "name = \"x\"\n[peer]\nname = \"y\"\n[peer.peer]\nname = \"z\"",
    "name = \"x\"\n[peer]\nname = \"y\"\n[[peer.guest]]\nname = \"a\"\npin = [2]",
    "name = \"x\"\n[host]\ncpu = \"arm\"",
    "name = \"x\"\n[host]\ncpu = \"intel\"",
    "name = \"x\"\n[host]\ncpu = \"intel\"\ncpus = 1\nmemory = \"4G\"",
    "name = \"x\"\n[host]\ncpu = \"intel\"\ncpus = 1\ndeterministic = true",
    "name = \"x\"\n[host]\ncpu = \"intel\"\ncpus = 1\ndisk = { size = \"1G\" }",
    "name = \"x\"\n[host]\ncpu = \"intel\"\ncpus = 1\n[[host.node]]\nmemory = \"3G\"\ncpus = [0]",
    "name = \"x\"\n[host]\ncpu = \"intel\"\ncpus = 1\nuplink = true",
    "name = \"x\"\n[host]\ncpu = \"intel\"\ncpus = 1\n[peer]\nname = \"y\"",
    "name = \"x\"\n[peer]\nname = \"y\"\n[peer.host]\ncpu = \"intel\"\ncpus = 1",
    "name = \"x\"\n[host]\ncpu = \"intel\"\ncpus = 1\n[[guest]]\nname = \"a\"\n[[guest]]\nname = \"b\"",
    "name = \"x\"\n[host]\ncpu = \"intel\"\ncpus = 1\n[[guest]]\nname = \"a\"\ncpus = 2",
    "name = \"x\"\n[host]\ncpu = \"intel\"\ncpus = 1\n[[guest]]\nname = \"a\"\nnetwork = true",
    "name = \"x\"\n[host]\ncpu = \"intel\"\ncpus = 1\n[[guest]]\nname = \"a\"\nmigrates = true",
];

#[test]
fn mistakes_are_reported_in_one_line() {
    let mut text = String::new();
    for mistake in MISTAKES {
        let error = parse(mistake).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        writeln!(text, "{}\n    {error}", mistake.replace('\n', " | ")).unwrap();
    }
    golden::check("scenario-mistakes.txt", &text);
}

#[test]
fn an_intel_host_has_a_microvm() {
    let host = |cpu: &str| format!("name = \"x\"\n[host]\n{cpu}cpus = 1\n[[guest]]\nname = \"a\"");
    let is_microvm = |cpu: &str| parse(&host(cpu)).unwrap().guests[0].is_microvm;
    assert!(is_microvm("cpu = \"intel\"\n"));
    assert!(!is_microvm("cpu = \"amd\"\n") && !is_microvm(""));
}

#[test]
fn the_scenarios_we_ship_are_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // A script of theirs, and the hosts and VMs of `vmscope layout simulate`.
        if path.extension().is_none_or(|ending| ending != "toml") {
            continue;
        }
        let scenario = Scenario::read(&path).unwrap();
        assert_eq!(Some(scenario.name.as_str()), path.file_stem().unwrap().to_str());
        seen += 1;
    }
    assert!(0 < seen);
}
