//! A recording of a large host out of one of a small host: its CPUs side by side, again and again, with VMs and processes of
//! their own. `cargo run -p recording --example multiply -- RECORDING CPUS VMS OUT`.
//!
//! VMs beyond VMS are left out, and their vCPUs' samples are the idle task's: the number of samples stays the same.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::path::Path;

use model::{
    HostMode, Image, ImageId, ImageKind, ModuleId, Owner, Pid, Sample, Tables, Tid, VcpuId,
    VcpuState, VmId,
};
use recording::{Recording, Writer, encode};

/// Between the process ids of one copy and the next.
const PIDS: u32 = 10_000_000;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [from, cpus, vms, to] = &words[..] else {
        panic!("usage: multiply RECORDING CPUS VMS OUT");
    };
    multiply(Path::new(from), cpus.parse().unwrap(), vms.parse().unwrap(), Path::new(to));
}

fn multiply(from: &Path, cpus: u32, most_vms: usize, to: &Path) {
    let original = Recording::open(from).unwrap();
    let of_one = original.header.cpus.len() as u32;
    let mut host = Host { tables: Tables::default(), most_vms, copies: Vec::new() };
    for number in 0..cpus / of_one {
        host.add(&original.tables, number);
    }
    let mut header = original.header.clone();
    header.cpus = (0..cpus / of_one * of_one).collect();
    let writer = Writer::create(to, &header).unwrap();
    for copy in 0..host.copies.len() {
        for (place, cpu) in original.header.cpus.iter().enumerate() {
            let own = model::CpuId(copy as u32 * of_one + place as u32);
            let mut spool = writer.spool(own).unwrap();
            let append = &mut |batch: &[Sample]| {
                let of_cpu = batch.iter().filter(|sample| sample.cpu.0 == *cpu);
                let records: Vec<u8> = of_cpu.flat_map(|s| encode(&host.sample(s, copy))).collect();
                spool.append(&records).unwrap();
            };
            original.for_each_batch(append).unwrap();
        }
    }
    writer.finish(&header, &host.tables).unwrap();
}

struct Host {
    tables: Tables,
    most_vms: usize,
    copies: Vec<Copied>,
}

/// Where the rows of one copy are; `None`: they were left out.
struct Copied {
    number: u32,
    vcpus: Vec<Option<VcpuId>>,
}

impl Copied {
    fn pid(&self, pid: u32) -> u32 {
        if pid == 0 { 0 } else { pid + self.number * PIDS }
    }

    fn vcpu(&self, vcpu: VcpuId) -> Option<VcpuId> {
        self.vcpus.get(vcpu.index()).copied().flatten()
    }
}

impl Host {
    fn add(&mut self, original: &Tables, number: u32) {
        let own = &mut self.tables;
        let mut copied = Copied { number, vcpus: Vec::new() };
        let mut vms = Vec::new();
        for vm in &original.vms {
            let place = own.vms.len();
            vms.push((place < self.most_vms).then_some(VmId(place as u32)));
            if place < self.most_vms {
                let (name, pid) = (format!("{}-{number}", vm.name), Pid(copied.pid(vm.pid.0)));
                own.vms.push(model::Vm { name, pid, ..vm.clone() });
            }
        }
        for vcpu in &original.vcpus {
            let vm = vms[vcpu.vm.index()];
            copied.vcpus.push(vm.map(|_| VcpuId(own.vcpus.len() as u32)));
            let tid = Tid(copied.pid(vcpu.tid.0));
            own.vcpus.extend(vm.map(|vm| model::Vcpu { vm, tid, ..vcpu.clone() }));
        }
        let owner = |owner: Owner| match owner {
            Owner::Host => Some(Owner::Host),
            Owner::Vm(vm) => vms[vm.index()].map(Owner::Vm),
        };
        // The host's files are there once.
        let mut modules = Vec::new();
        for module in &original.modules {
            let old = own.modules.iter().position(|m| module.owner == Owner::Host && m == module);
            modules.push(match (old, owner(module.owner)) {
                (Some(old), _) => Some(ModuleId(old as u32)),
                (None, Some(owner)) => {
                    own.modules.push(model::Module { owner, ..module.clone() });
                    Some(ModuleId(own.modules.len() as u32 - 1))
                }
                (None, None) => None,
            });
        }
        let is_new = |symbol: &&model::Symbol| {
            number == 0 || original.modules[symbol.module.index()].owner != Owner::Host
        };
        for symbol in original.symbols.iter().filter(is_new) {
            let module = modules[symbol.module.index()];
            own.symbols.extend(module.map(|module| model::Symbol { module, ..symbol.clone() }));
        }
        let mut images = Vec::new();
        for image in &original.images {
            let is_kernel = image.owner == Owner::Host && image.kind == ImageKind::Kernel;
            let place = owner(image.owner).filter(|_| !is_kernel || number == 0);
            images.push(place.map(|_| ImageId(own.images.len() as u32)));
            let pid = match image.owner {
                Owner::Host => Pid(copied.pid(image.pid.0)),
                Owner::Vm(_) => image.pid,
            };
            own.images.extend(place.map(|owner| Image { owner, pid, ..image.clone() }));
        }
        for thread in &original.threads {
            let is_host = original.images[thread.image.index()].owner == Owner::Host;
            let tid = if is_host { Tid(copied.pid(thread.tid.0)) } else { thread.tid };
            let image = images[thread.image.index()];
            own.threads.extend(image.map(|image| model::Thread { image, tid, ..thread.clone() }));
        }
        for mapping in &original.mappings {
            let pair = images[mapping.image.index()].zip(modules[mapping.module.index()]);
            own.mappings.extend(pair.map(|(image, module)| model::Mapping {
                image,
                module,
                ..*mapping
            }));
        }
        for reading in &original.throttling {
            own.throttling
                .extend(vms[reading.vm.index()].map(|vm| model::Throttling { vm, ..*reading }));
        }
        self.copies.push(copied);
    }

    fn sample(&self, sample: &Sample, copy: usize) -> Sample {
        let copied = &self.copies[copy];
        let (pid, tid) = (Pid(copied.pid(sample.pid.0)), Tid(copied.pid(sample.tid.0)));
        let own = Sample { pid, tid, stack: None, ..*sample };
        let in_place = |mut vcpu: model::VcpuSample| {
            vcpu.vcpu = copied.vcpu(vcpu.vcpu)?;
            Some(vcpu)
        };
        let vcpu = match sample.vcpu {
            VcpuState::None => Some(VcpuState::None),
            VcpuState::Unknown => None,
            VcpuState::Vmm(vcpu) => in_place(vcpu).map(VcpuState::Vmm),
            VcpuState::Guest(vcpu) => in_place(vcpu).map(VcpuState::Guest),
        };
        match vcpu {
            Some(vcpu) => Sample { vcpu, ..own },
            None => Sample {
                pid: Pid(0),
                tid: Tid(0),
                host_mode: HostMode::Kernel,
                vcpu: VcpuState::None,
                ..own
            },
        }
    }
}
