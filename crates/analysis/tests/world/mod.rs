//! A small drawn world: one host, two VMs, and samples written as a table.

#![allow(dead_code, clippy::unwrap_used, clippy::cast_possible_truncation)]

pub(crate) mod axis;

use std::collections::BTreeMap;

use model::{
    BuildId, Clock, CpuId, Cr3, Guest, GuestTask, GuestVirt, Header, HostMode, HostNs, HostVirt,
    Image, ImageId, ImageKind, KernelStack, Mapping, Module, ModuleId, Note, Owner, Pid, Sample,
    Stack, StackId, Symbol, SymbolName, Tables, Thread, Tid, Trigger, Vcpu, VcpuId, VcpuSample,
    VcpuState, Vendor, Vm, VmId,
};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const START: HostNs = HostNs(1000 * MS);

/// owner kind pid name cr3 from..until (ms since the start)
const IMAGES: &str = "
    host kernel  0    6.1.0-37     -       ..
    host process 1000 qemu-system-x86 -    ..
    host process 2000 qemu-system-x86 -    ..
    host process 300  postgres     -       ..
    vm1  kernel  0    6.1.0-cloud  1000000 ..
    vm1  process 40   compute      a000    ..60
    vm1  process 41   worker       a000    60..
    vm1  process 42   compute      c000    ..
";

/// image start end offset module
const MAPPINGS: &str = "
    0 ffffffff81000000 ffffffff81f00000 0    [kernel]
    0 ffffffffc0000000 ffffffffc0010000 0    [kvm_amd]
    1 5000             6000             1000 /usr/bin/qemu-system-x86_64
    3 5000             6000             1000 /usr/lib/postgresql/15/bin/postgres
    4 ffffffff9a000000 ffffffff9ae00000 0    vm1:[kernel]
    5 400000           500000           0    vm1:/opt/compute
    5 7f0000           7f8000           2000 vm1:/usr/lib/libquantum.so.8
    6 400000           500000           0    vm1:/opt/stripped
    7 400000           500000           0    vm1:/opt/compute
    7 7e0000           7e8000           2000 vm1:/usr/lib/libquantum.so.8
";

/// module offset name
const SYMBOLS: &str = "
    [kernel]    100  native_safe_halt
    [kernel]    200  schedule
    [kernel]    204  schedule
    [kernel]    2ff  do_syscall_64
    [kvm_amd]   50   svm_vcpu_run
    [kvm_amd]   6f   svm_handle_exit
    /usr/bin/qemu-system-x86_64 1010 kvm_cpu_exec
    /usr/bin/qemu-system-x86_64 101f main_loop
    /usr/lib/postgresql/15/bin/postgres 1010 ExecScan
    vm1:[kernel] 10  clear_page
    vm1:[kernel] 20  do_idle
    vm1:/opt/compute 10 compute_a
    vm1:/opt/compute 18 compute_a
    vm1:/opt/compute 20 compute_b
    vm1:/usr/lib/libquantum.so.8 2010 quantum_toffoli
    vm1:/opt/stripped 1234 (stripped)
    vm1:/opt/stripped 5678 (unreadable)
";

/// image tid name fs_base
const THREADS: &str = "
    1 1000 qemu-system-x86 -
    1 1001 CPU_0/KVM       -
    1 1002 CPU_1/KVM       -
    5 40   compute         f0
    7 42   main            f2
    7 43   helper          f3
";

/// The tables; names in `owner:path` tell a guest's modules.
pub(crate) fn tables() -> Tables {
    let mut tables = Tables {
        vms: vms(),
        vcpus: [(0, 0, 1001), (0, 1, 1002), (1, 0, 2001)].map(vcpu).to_vec(),
        images: lines(IMAGES).map(image).collect(),
        threads: lines(THREADS).map(thread).collect(),
        ..Tables::default()
    };
    for [image, start, end, offset, module] in lines(MAPPINGS) {
        let module = module_named(&mut tables, module);
        let image = ImageId(image.parse().unwrap());
        let (start, end, offset) = (hex(start), hex(end), hex(offset));
        tables.mappings.push(Mapping { image, start, end, offset, module });
    }
    for [module, offset, name] in lines(SYMBOLS) {
        let module = module_named(&mut tables, module);
        let name = match name {
            "(stripped)" => SymbolName::Stripped,
            "(unreadable)" => SymbolName::Unreadable("the guest sent no symbols".to_owned()),
            name => SymbolName::Function(name.to_owned()),
        };
        tables.symbols.push(Symbol { module, offset: hex(offset), name });
    }
    let virt = |list: &[u64]| list.iter().copied().map(HostVirt).collect();
    tables.stacks = vec![Stack {
        kernel: virt(&[0xffff_ffff_c000_0050, 0xffff_ffff_c000_0070, 0xffff_ffff_8100_0300]),
        user: virt(&[0x5010, 0x5020]),
        ..Stack::default()
    }];
    tables
}

/// 100 ms at 1 ms on two CPUs; cpu1 lost three samples and missed seven interrupts.
pub(crate) fn header() -> Header {
    Header {
        vmscope_version: "0.1.0".to_owned(),
        hostname: "host1".to_owned(),
        kernel: "6.1.0-37-amd64".to_owned(),
        boot: None,
        vendor: Vendor::Amd,
        trigger: Trigger::CpuClock,
        period_ns: MS,
        off_cpu_source: model::OffCpuSource::Samples,
        cpus: vec![0, 1],
        start: START,
        end: HostNs(START.0 + 100 * MS),
        start_unix_ns: 1_700_000_000_000_000_000,
        complete: true,
        counters: counters(),
        notes: vec![Note { subject: "vm1".to_owned(), text: "its map was cut".to_owned() }],
    }
}

fn counters() -> BTreeMap<String, u64> {
    let counters = [
        ("samples_dropped_cpu0", 0),
        ("samples_dropped_cpu1", 3),
        ("samples_missed_cpu0", 0),
        ("samples_missed_cpu1", 7),
        ("samples_written_cpu0", 40),
        ("samples_written_cpu1", 30),
        ("maps_cut", 1),
    ];
    counters.map(|(name, n)| (name.to_owned(), n)).into()
}

/// Samples written as lines: `cpu ms count what...` where what is
/// `idle ADDRESS`, `host PID kernel|user ADDRESS`, `stack PID kernel ADDRESS` (with call stack 0),
/// `vmm VCPU PID ADDRESS`, `guest VCPU kernel|user CR3 FSBASE ADDRESS` (VCPU: row; `kernel@STACK`; `user#PID/TID`, the task
/// that the guest says runs; CR3 `-`: unreadable),
/// `unknown PID`. They come in time order.
pub(crate) fn samples(text: &str) -> Vec<Sample> {
    let mut samples = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [cpu, ms, count, what @ ..] = &words[..] else { panic!("{line}") };
        let mut sample = parsed(what);
        sample.cpu = CpuId(cpu.parse().unwrap());
        for n in 0..count.parse::<u64>().unwrap() {
            sample.time = HostNs(START.0 + ms.parse::<u64>().unwrap() * MS + n);
            samples.push(sample);
        }
    }
    samples.sort_by_key(|sample| sample.time);
    samples
}

fn parsed(what: &[&str]) -> Sample {
    match what {
        ["idle", ip] => host("0", HostMode::Kernel, ip),
        ["host", pid, "kernel", ip] => host(pid, HostMode::Kernel, ip),
        ["host", pid, "user", ip] => host(pid, HostMode::User, ip),
        ["stack", pid, "kernel", ip] => {
            Sample { stack: Some(StackId(0)), ..host(pid, HostMode::Kernel, ip) }
        }
        ["vmm", row, pid, ip] => {
            let vcpu = VcpuState::Vmm(vcpu_sample(row, "kernel", "-", "0", "0"));
            Sample { vcpu, ..host(pid, HostMode::Kernel, ip) }
        }
        ["guest", row, level, cr3, fs_base, ip] => {
            let vcpu = VcpuState::Guest(vcpu_sample(row, level, cr3, fs_base, ip));
            let pid = if *row == "2" { "2000" } else { "1000" };
            Sample { vcpu, ..host(pid, HostMode::Kernel, "ffffffffc0000050") }
        }
        ["unknown", pid] => {
            Sample { vcpu: VcpuState::Unknown, ..host(pid, HostMode::Kernel, "ffffffffc0000050") }
        }
        other => panic!("{other:?}"),
    }
}

fn host(pid: &str, host_mode: HostMode, ip: &str) -> Sample {
    let pid = pid.parse().unwrap();
    Sample {
        time: START,
        cpu: CpuId(0),
        pid: Pid(pid),
        tid: Tid(pid),
        host_ip: HostVirt(hex(ip)),
        host_mode,
        stack: None,
        vcpu: VcpuState::None,
    }
}

fn vcpu_sample(row: &str, level: &str, cr3: &str, fs_base: &str, ip: &str) -> VcpuSample {
    let (level, task) = level.split_once('#').unwrap_or((level, ""));
    let task = task.split_once('/').map(|(pid, tid)| GuestTask {
        pid: Pid(pid.parse().unwrap()),
        tid: Tid(tid.parse().unwrap()),
    });
    let (level, stack) = level.split_once('@').unwrap_or((level, "0"));
    VcpuSample {
        vcpu: VcpuId(row.parse().unwrap()),
        ip: GuestVirt(hex(ip)),
        cr3: (cr3 != "-").then(|| Cr3::new(hex(cr3))),
        fs_base: GuestVirt(hex(fs_base)),
        cpl: match level {
            "kernel" => 0,
            "nested" => VcpuSample::NESTED,
            _ => 3,
        },
        kernel_stack: KernelStack::of_number(stack.parse().unwrap()),
        task,
        asid: 1,
        exit_reason: 0x60,
        exit_info: 0,
        waits: None,
        kicked: false,
    }
}

fn vms() -> Vec<Vm> {
    let clock = Clock { host_minus_guest_ns: 0, error_ns: 2 * MS };
    let vm = |name: &str, pid, guest| Vm {
        name: name.to_owned(),
        pid: Pid(pid),
        started: None,
        ended: None,
        labels: model::VmLabels::default(),
        guest,
    };
    let reason = "no vsock device and no vmscope serial port".to_owned();
    let mut vms = vec![
        vm("vm1", 1000, Guest::Mapped { via: "vsock".to_owned(), clock }),
        vm("vm2", 2000, Guest::Unmapped { reason }),
    ];
    vms[1].started = Some(HostNs(START.0 + 40 * MS));
    vms
}

fn vcpu((vm, number, tid): (u32, u32, u32)) -> Vcpu {
    Vcpu { vm: VmId(vm), number, tid: Tid(tid), started: None, ended: None }
}

fn owner(name: &str) -> Owner {
    match name {
        "vm1" => Owner::Vm(VmId(0)),
        _ => Owner::Host,
    }
}

fn image([of, kind, pid, name, cr3, range]: [&str; 6]) -> Image {
    let (start, end) = range.split_once("..").unwrap();
    let at = |ms: &str| ms.parse::<u64>().ok().map(|ms| HostNs(START.0 + ms * MS));
    Image {
        owner: owner(of),
        kind: if kind == "kernel" { ImageKind::Kernel } else { ImageKind::Process },
        pid: Pid(pid.parse().unwrap()),
        name: name.to_owned(),
        cr3: (cr3 != "-").then(|| Cr3::new(hex(cr3))),
        kernel_stack: None,
        kernel_thread: None,
        of_command: None,
        start: at(start),
        end: at(end),
    }
}

fn thread([image, tid, name, fs_base]: [&str; 4]) -> Thread {
    Thread {
        image: ImageId(image.parse().unwrap()),
        tid: Tid(tid.parse().unwrap()),
        name: name.to_owned(),
        fs_base: (fs_base != "-").then(|| GuestVirt(hex(fs_base))),
    }
}

fn module_named(tables: &mut Tables, name: &str) -> ModuleId {
    let (owner, path) = match name.split_once(':') {
        Some((vm, path)) => (owner(vm), path),
        None => (Owner::Host, name),
    };
    let known = tables.modules.iter().position(|m| m.owner == owner && m.path == path);
    let row = known.unwrap_or_else(|| {
        let build_id = BuildId::new(&[1 + tables.modules.len() as u8; 4]);
        tables.modules.push(Module { owner, path: path.to_owned(), build_id });
        tables.modules.len() - 1
    });
    ModuleId::from_index(row)
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap()
}

fn lines<const N: usize>(text: &str) -> impl Iterator<Item = [&str; N]> {
    text.lines().filter(|line| !line.trim().is_empty()).map(|line| {
        line.split_whitespace().collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("{line}"))
    })
}

/// 20 ms of everything.
pub(crate) const EVERYTHING: &str = "
    0 10 16 guest 0 user   a000 f0 400010
    0 30  4 guest 0 user   a000 f0 400020
    0 90  2 guest 0 user   a000 0  401234
    0 91  1 guest 0 user   a000 0  405678
    0 70  1 guest 0 user   a000 0  409999
    1 10  8 guest 1 user   c000 f2 400018
    1 11  3 guest 1 user   c000 f3 7e0010
    1 12  2 guest 1 kernel c000 f2 ffffffff9a000010
    1 13  1 guest 1 kernel 1000000 0 ffffffff9a000020
    1 14  1 guest 1 user   c000 f2 999999
    1 15  1 guest 1 user   e000 f9 400010
    1 16  1 guest 1 kernel e000 f9 ffffffff9a000010
    1 17  1 guest 1 user   -    f9 400010
    1 60  5 guest 2 user   a000 0  400010
    1 61  2 guest 2 kernel a000 0  ffffffff9a000010
    1 35  2 unknown 2000
    1 36  1 unknown 1000
    1 37  1 unknown 7777
    0 40  6 idle ffffffff81000100
    0 41  2 host 300  user   5010
    0 42  1 host 300  kernel ffffffff81000200
    0 43  1 host 300  kernel ffffffff81000204
    0 44  1 host 555  kernel ffffffff81000200
    0 45  1 host 555  user   5010
    0 46  2 host 1000 user   5010
    0 47  2 vmm 0 1000 ffffffffc0000050
    0 48  1 stack 1000 kernel ffffffffc0000050
";
