//! The guest view's gaps, by samples and by switches, of two drawn vCPUs. What vCPU 0 waited for was not counted, as on a
//! kernel without such counters: by samples its gap's edges are only known to a period.
//!
//! ```text
//!  ms      0         10        20        30        40        50        60        70        80        90      100
//!  cpu0    vcpu0 ..................., hlt | idle (vcpu0 halted) ................ | vcpu0 ......................
//!  cpu1    vcpu1 .............. | postgres (vcpu1 waits) ... | vcpu1 .............................. | vmm, for I/O
//! ```

use model::{
    CpuId, Header, HostNs, OffCpuReason, OffCpuSource, Pid, Sample, Switch, SwitchEvent, Tid,
    VcpuId, VcpuState, WaitCounters,
};
use recording::Writer;

use super::world::{self, MS, START};
use super::{check, check_error, spooled_with, world_recorded};

const US: u64 = 1000;
const HLT: u32 = 0x78;
const IO: u32 = 0x7b;
/// vCPU 0 is halted, wakes up, and gets the CPU back.
const HALT: [u64; 3] = [29_700 * US, 69_200 * US, 69_400 * US];
/// vCPU 1 loses the CPU and gets it back.
const WAIT: [u64; 2] = [19_600 * US, 44_500 * US];

fn samples() -> Vec<Sample> {
    let mut lines = String::new();
    for ms in 0..100 {
        let cpu0 = match ms {
            29 => "vmm 0 1000 ffffffffc0000050",
            30..70 => "idle ffffffff81000100",
            _ => "guest 0 user a000 f0 400010",
        };
        let cpu1 = match ms {
            20..45 => "host 300 user 5010",
            90.. => "vmm 1 1000 ffffffffc0000050",
            _ => "guest 1 kernel c000 f2 ffffffff9a000010",
        };
        lines += &format!("0 {ms} 1 {cpu0}\n1 {ms} 1 {cpu1}\n");
    }
    let mut samples = world::samples(&lines);
    for sample in &mut samples {
        let time = sample.time;
        if let VcpuState::Guest(vcpu) | VcpuState::Vmm(vcpu) = &mut sample.vcpu {
            vcpu.waits = waits(vcpu.vcpu, time);
            vcpu.exit_reason = if vcpu.vcpu == VcpuId(0) { HLT } else { IO };
        }
    }
    samples
}

/// The counter is brought up to date when the wait ends.
fn waits(vcpu: VcpuId, time: HostNs) -> Option<WaitCounters> {
    let [out, back] = WAIT;
    let is_over = START.0 + back <= time.0;
    let runnable_ns = if is_over { back - out } else { 0 };
    (vcpu == VcpuId(1)).then_some(WaitCounters { runnable_ns, ..WaitCounters::default() })
}

fn switches() -> Vec<Switch> {
    let at = |ns: u64, row, event| Switch {
        time: HostNs(START.0 + ns),
        cpu: CpuId(row),
        vcpu: VcpuId(row),
        event,
    };
    let seen = |ns: u64, row| {
        let waits = waits(VcpuId(row), HostNs(START.0 + ns));
        at(ns, row, SwitchEvent::Seen { off_cpu: None, exit_reason: IO, waits })
    };
    let out = |off_cpu, pid| SwitchEvent::Out {
        off_cpu,
        pid: Pid(pid),
        tid: Tid(pid),
        exit_reason: HLT,
        guest: None,
    };
    let back = |pid| SwitchEvent::In { pid: Pid(pid), tid: Tid(pid) };
    vec![
        seen(0, 0),
        seen(0, 1),
        at(WAIT[0], 1, out(OffCpuReason::Runnable, 300)),
        at(HALT[0], 0, out(OffCpuReason::Halted, 0)),
        at(WAIT[1], 1, back(300)),
        at(HALT[1], 0, SwitchEvent::Wake { throttled: false }),
        at(HALT[2], 0, back(0)),
        seen(100 * MS, 0),
        seen(100 * MS, 1),
    ]
}

fn recorded(name: &str) -> std::path::PathBuf {
    let header = Header { off_cpu_source: OffCpuSource::Switches, ..world::header() };
    let (path, writer): (_, Writer) = spooled_with(name, &header, &samples(), &switches());
    writer.finish(&header, &world::tables()).unwrap();
    path
}

#[test]
fn a_guests_gaps() {
    let dir = recorded("gaps");
    let guest = ["--view", "guest", "--vm", "vm1"];
    let check = |args: &[&str], golden| check(&dir, &[&guest, args].concat(), golden);
    check(&[], "guest-switches.txt");
    check(&["--offcpu-source", "samples"], "guest-samples.txt");
    check(&["--by", "thread", "--format", "json"], "guest.json");
    check(&["--by", "cpu", "--offcpu-source", "samples", "--format", "csv"], "guest-cpu.csv");
}

#[test]
fn agreement() {
    let dir = recorded("agreement");
    check(&dir, &["--offcpu-source", "both"], "agreement.txt");
    let one = ["--offcpu-source", "both", "--vm", "vm1", "--vcpu", "0", "--format", "json"];
    check(&dir, &one, "agreement.json");
}

#[test]
fn errors() {
    let dir = world_recorded("no-switches");
    let no_switches =
        "this recording has no switches of vCPUs: record with --offcpu-source switches";
    check_error(&dir, &["--offcpu-source", "both"], 2, no_switches);
    let guest = ["--view", "guest", "--vm", "vm1", "--offcpu-source", "switches"];
    check_error(&dir, &guest, 2, no_switches);
    check_error(
        &dir,
        &["--offcpu-source", "samples"],
        2,
        "--offcpu-source is about the gaps of --view guest",
    );
    let guest = ["--view", "guest", "--vm", "vm1", "--offcpu-source", "samples", "--process", "42"];
    check_error(&dir, &guest, 2, "--offcpu-source is about the gaps of --view guest");
    check_error(
        &dir,
        &["--offcpu-source", "both", "--format", "csv"],
        2,
        "leave out --process and --format csv or html",
    );
    check_error(&dir, &["--offcpu-source", "both", "--vm", "vm9"], 2, "no VM named");
}
