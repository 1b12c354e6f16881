//! Samples aggregated per second and per core, and the memory they take. Prints, asserts nothing.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::disallowed_methods
)]

use std::hint::black_box;

use analysis::{Aggregator, By, Query, Resolver, Selection, View};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use model::{
    Clock, CpuId, Cr3, Guest, GuestVirt, Header, HostMode, HostNs, HostVirt, Image, ImageId,
    ImageKind, Mapping, Module, ModuleId, Owner, Pid, Sample, Symbol, SymbolName, Tables, Tid,
    Trigger, Vcpu, VcpuId, VcpuSample, VcpuState, Vendor, Vm, VmId,
};
use resolve::Addresses;

const N_VMS: u32 = 4;
const PROCESSES_PER_VM: u32 = 20;
const FUNCTIONS: u64 = 500;
const FUNCTION_BYTES: u64 = 64;
const TEXT: u64 = 0x40_0000;
const KERNEL_TEXT: u64 = 0xffff_ffff_8100_0000;
const N_SAMPLES: u64 = 1_000_000;

fn benches(criterion: &mut Criterion) {
    let (tables, header) = (tables(), header());
    // First: later the allocator would serve it from what the benches freed.
    print_memory(&tables, &header);
    let samples: Vec<Sample> = samples().collect();
    let mut group = criterion.benchmark_group("aggregate");
    group.throughput(Throughput::Elements(N_SAMPLES)).sample_size(10);
    let resolver = Resolver::new(&tables);
    for (view, by) in
        [(View::Unified, By::Function), (View::Unified, By::Thread), (View::Host, By::Vm)]
    {
        group.bench_function(format!("{} by {}", view.name(), by.name()), |bencher| {
            bencher.iter(|| {
                let selection = Selection::all(&tables, view).unwrap();
                let query = Query { selection, by, limit: None };
                let mut aggregator = Aggregator::new(&resolver, &header, query);
                samples.iter().for_each(|sample| aggregator.push(sample));
                black_box(aggregator.finish())
            });
        });
    }
    group.bench_function("addresses", |bencher| {
        let add_all = |mut addresses: Addresses| {
            samples.iter().for_each(|sample| addresses.add(sample));
            addresses.into_sorted()
        };
        bencher.iter_batched(|| Addresses::new(&tables), add_all, BatchSize::LargeInput);
    });
    group.finish();
}

/// Resident memory that aggregating a million samples adds, the samples themselves not kept.
fn print_memory(tables: &Tables, header: &Header) {
    let resolver = Resolver::new(tables);
    let selection = Selection::all(tables, View::Unified).unwrap();
    let query = Query { selection, by: By::Function, limit: None };
    let before = resident_kib();
    let mut aggregator = Aggregator::new(&resolver, header, query);
    self::samples().for_each(|sample| aggregator.push(&sample));
    let kib = resident_kib().saturating_sub(before);
    println!("memory per million samples: aggregated {kib} KiB, held {} KiB", held_kib());
    black_box(aggregator.finish());
}

fn held_kib() -> u64 {
    N_SAMPLES * size_of::<Sample>() as u64 / 1024
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn tables() -> Tables {
    let mut tables = Tables::default();
    image(&mut tables, Owner::Host, ImageKind::Kernel, 0, "[kernel]");
    for vm in 0..N_VMS {
        let owner = Owner::Vm(VmId(vm));
        let guest = Guest::Mapped { via: "vsock".to_owned(), clock: Clock::default() };
        let (name, pid) = (format!("vm{vm}"), Pid(1000 + vm));
        tables.vms.push(Vm {
            name,
            pid,
            started: None,
            ended: None,
            guest,
            labels: model::VmLabels::default(),
        });
        tables.vcpus.push(Vcpu {
            vm: VmId(vm),
            number: 0,
            tid: Tid(1000 + vm),
            started: None,
            ended: None,
        });
        image(&mut tables, Owner::Host, ImageKind::Process, 1000 + vm, "/usr/bin/qemu");
        image(&mut tables, owner, ImageKind::Kernel, 0, "[kernel]");
        for pid in 1..=PROCESSES_PER_VM {
            image(&mut tables, owner, ImageKind::Process, pid, &format!("/bin/p{pid}"));
        }
    }
    tables
}

fn image(tables: &mut Tables, owner: Owner, kind: ImageKind, pid: u32, path: &str) {
    let cr3 = (owner != Owner::Host).then(|| cr3(pid));
    let (image, module) =
        (ImageId::from_index(tables.images.len()), ModuleId::from_index(tables.modules.len()));
    let name = path.rsplit('/').next().unwrap_or(path).to_owned();
    tables.images.push(Image {
        owner,
        kind,
        pid: Pid(pid),
        name,
        cr3,
        kernel_stack: None,
        kernel_thread: None,
        of_command: None,
        start: None,
        end: None,
    });
    tables.modules.push(Module { owner, path: path.to_owned(), build_id: None });
    let start = if kind == ImageKind::Kernel { KERNEL_TEXT } else { TEXT };
    let end = start + FUNCTIONS * FUNCTION_BYTES;
    tables.mappings.push(Mapping { image, start, end, offset: 0, module });
    for offset in (0..FUNCTIONS * FUNCTION_BYTES).step_by(4) {
        let name = SymbolName::Function(format!("function_{}", offset / FUNCTION_BYTES));
        tables.symbols.push(Symbol { module, offset, name });
    }
}

fn cr3(pid: u32) -> Cr3 {
    Cr3::new(0x1000_0000 + u64::from(pid) * 0x2000)
}

fn header() -> Header {
    Header {
        vmscope_version: String::new(),
        hostname: String::new(),
        kernel: String::new(),
        boot: None,
        vendor: Vendor::Amd,
        trigger: Trigger::CpuClock,
        period_ns: 1_000_000,
        off_cpu_source: model::OffCpuSource::Samples,
        cpus: vec![0],
        start: HostNs(0),
        end: HostNs(N_SAMPLES * 1_000_000),
        start_unix_ns: 0,
        complete: true,
        counters: std::collections::BTreeMap::new(),
        notes: Vec::new(),
    }
}

/// 60 % guest user, 20 % guest kernel, 20 % host; 19 of 20 fall on the 20 hottest functions of each image.
fn samples() -> impl Iterator<Item = Sample> {
    let mut state = 1_u64;
    let mut random = move |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    (0..N_SAMPLES).map(move |n| {
        let vm = random(u64::from(N_VMS)) as u32;
        let pid = 1 + random(u64::from(PROCESSES_PER_VM)) as u32;
        let range = if random(20) == 0 { FUNCTIONS * FUNCTION_BYTES } else { 20 * FUNCTION_BYTES };
        let offset = random(range) & !3;
        let class = random(10);
        let (cpl, text) = if class < 6 { (3, TEXT) } else { (0, KERNEL_TEXT) };
        let vcpu = VcpuSample {
            vcpu: VcpuId(vm),
            ip: GuestVirt(text + offset),
            cr3: Some(cr3(pid)),
            fs_base: GuestVirt(0),
            cpl,
            kernel_stack: None,
            task: None,
            asid: 1,
            exit_reason: 0,
            exit_info: 0,
            waits: None,
            kicked: false,
        };
        Sample {
            time: HostNs(n * 1_000_000),
            cpu: CpuId(0),
            pid: Pid(1000 + vm),
            tid: Tid(1000 + vm),
            host_ip: HostVirt(KERNEL_TEXT + offset),
            host_mode: HostMode::Kernel,
            stack: None,
            vcpu: if class < 8 { VcpuState::Guest(vcpu) } else { VcpuState::Vmm(vcpu) },
        }
    })
}

criterion_group!(all, benches);
criterion_main!(all);
