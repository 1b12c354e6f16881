//! Names of thieves.

use std::collections::HashMap;

use model::{HostNs, Image, ImageId, ImageKind, Owner, Pid, Tables, ThiefKind, Tid, VcpuId, VmId};

use crate::vcpu_timeline::Occupant;
use resolve::Lifetimes;

/// As `resolve` has it: a start or an end is noted a little after it happened.
const LIFETIME_SLACK_NS: u64 = 50_000_000;

/// What ran on a CPU while a vCPU waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Thief {
    /// Another vCPU, in its guest or in its VMM.
    Vcpu(VcpuId),
    /// Another thread of a VM's process: QEMU's main loop, I/O and migration threads.
    VmmThread(VmId, Tid),
    /// The host kernel's network and block back end of a VM.
    Vhost(VmId),
    /// A host process.
    Process(ImageId),
    /// A thread of the host's kernel.
    KernelThread(ImageId),
    /// A host process that was not seen otherwise.
    UnseenProcess(Pid),
    /// None: the CPU was idle, the vCPU was on its way to it.
    Idle,
    /// No sample says.
    Unknown,
}

/// Tells occupants of CPUs apart and names them.
#[derive(Debug)]
pub struct ThiefNames<'t> {
    tables: &'t Tables,
    vms: Lifetimes<Pid, VmId>,
    images: Lifetimes<Pid, ImageId>,
    threads: HashMap<(ImageId, Tid), usize>,
    vcpus: HashMap<(VmId, Tid), VcpuId>,
    /// By image: it is one of the kernel's own threads.
    is_kernel_thread: Vec<bool>,
}

impl<'t> ThiefNames<'t> {
    /// Indexes the tables' images and threads.
    #[must_use]
    pub fn new(tables: &'t Tables) -> Self {
        let images = tables.images.iter().enumerate();
        let processes = images
            .filter(|(_, i)| (i.owner, i.kind) == (Owner::Host, ImageKind::Process))
            .map(|(row, i)| (i.pid, i.start, i.end, ImageId::from_index(row)));
        let vms = tables.vms.iter().enumerate();
        let threads = tables.threads.iter().enumerate();
        let vcpus = tables.vcpus.iter().enumerate();
        Self {
            tables,
            vms: Lifetimes::new(vms.map(|(n, v)| (v.pid, v.started, v.ended, VmId::from_index(n)))),
            images: Lifetimes::new(processes),
            threads: threads.map(|(row, t)| ((t.image, t.tid), row)).collect(),
            vcpus: vcpus.map(|(n, v)| ((v.vm, v.tid), VcpuId::from_index(n))).collect(),
            is_kernel_thread: kernel_threads(tables),
        }
    }

    /// Who an occupant was at `time`.
    #[must_use]
    pub fn thief(&self, occupant: Occupant, time: HostNs) -> Thief {
        match occupant {
            Occupant::Idle | Occupant::Thread(Pid(0), _) => Thief::Idle,
            Occupant::Unknown => Thief::Unknown,
            Occupant::Vcpu(vcpu) => Thief::Vcpu(vcpu),
            Occupant::Thread(pid, tid) => self.thread(pid, tid, time),
        }
    }

    /// Its name: `web vcpu0`, `web qemu CPU 0/KVM (1002)`, `web vhost`, `postgres (300)`, `[ksoftirqd/0] (14)`,
    /// `[idle]`, `[unknown]`.
    #[must_use]
    pub fn name(&self, thief: Thief) -> String {
        match thief {
            Thief::Vcpu(vcpu) => match self.tables.vcpus.get(vcpu.index()) {
                Some(row) => format!("{} vcpu{}", self.vm_name(row.vm), row.number),
                None => "[unknown]".to_owned(),
            },
            Thief::VmmThread(vm, tid) => match self.vmm_thread(vm, tid) {
                Some(name) => format!("{} qemu {name} ({tid})", self.vm_name(vm)),
                None => format!("{} qemu ({tid})", self.vm_name(vm)),
            },
            Thief::Vhost(vm) => format!("{} vhost", self.vm_name(vm)),
            // Otherwise it could pass for a kernel thread, or for the idle CPU.
            Thief::Process(image) if self.tables.images[image.index()].name.starts_with('[') => {
                self.image_name(image, "\"", "\"")
            }
            Thief::Process(image) => self.image_name(image, "", ""),
            Thief::KernelThread(image) => self.image_name(image, "[", "]"),
            Thief::UnseenProcess(pid) => format!("[unknown] ({pid})"),
            Thief::Idle => "[idle]".to_owned(),
            Thief::Unknown => "[unknown]".to_owned(),
        }
    }

    /// What a process or a kernel thread calls itself.
    #[must_use]
    pub fn own_name(&self, thief: Thief) -> Option<&'t str> {
        self.image(thief).map(|image| image.name.as_str())
    }

    /// A process's id, or a kernel thread's.
    #[must_use]
    pub fn pid(&self, thief: Thief) -> Option<Pid> {
        match thief {
            Thief::UnseenProcess(pid) => Some(pid),
            _ => self.image(thief).map(|image| image.pid),
        }
    }

    fn image(&self, thief: Thief) -> Option<&'t Image> {
        match thief {
            Thief::Process(image) | Thief::KernelThread(image) => {
                self.tables.images.get(image.index())
            }
            _ => None,
        }
    }

    /// The VM that it belongs to.
    #[must_use]
    pub fn vm(&self, thief: Thief) -> Option<VmId> {
        match thief {
            Thief::Vcpu(vcpu) => self.tables.vcpus.get(vcpu.index()).map(|row| row.vm),
            Thief::VmmThread(vm, _) | Thief::Vhost(vm) => Some(vm),
            _ => None,
        }
    }

    fn thread(&self, pid: Pid, tid: Tid, time: HostNs) -> Thief {
        let image = self.images.at(&pid, time, LIFETIME_SLACK_NS);
        if let Some(vm) = self.vms.at(&pid, time, LIFETIME_SLACK_NS) {
            if image.is_some_and(|image| self.served_by(image, tid) == Some(pid)) {
                return Thief::Vhost(vm);
            }
            let vcpu = self.vcpus.get(&(vm, tid));
            return vcpu.map_or(Thief::VmmThread(vm, tid), |vcpu| Thief::Vcpu(*vcpu));
        }
        match image {
            Some(image) if self.is_kernel_thread[image.index()] => {
                let served = self.served_by(image, tid);
                let vm = served.and_then(|pid| self.vms.at(&pid, time, LIFETIME_SLACK_NS));
                vm.map_or(Thief::KernelThread(image), Thief::Vhost)
            }
            Some(image) => Thief::Process(image),
            None => Thief::UnseenProcess(pid),
        }
    }

    /// The process that a vhost thread works for, which names it: `vhost-PID`. Before Linux 6.4 it is a kernel thread, since
    /// then a thread of that process. The name counts for those only: any process can give itself one.
    fn served_by(&self, image: ImageId, tid: Tid) -> Option<Pid> {
        let thread = self.threads.get(&(image, tid)).map(|row| &self.tables.threads[*row].name);
        let name = thread.unwrap_or(&self.tables.images[image.index()].name);
        name.strip_prefix("vhost-")?.parse().ok().map(Pid)
    }

    fn vmm_thread(&self, vm: VmId, tid: Tid) -> Option<&'t str> {
        let pid = self.tables.vms.get(vm.index())?.pid;
        let of_vm = |image: ImageId| self.tables.images[image.index()].pid == pid;
        let found = self.tables.threads.iter().find(|t| t.tid == tid && of_vm(t.image));
        found.map(|thread| thread.name.as_str())
    }

    fn vm_name(&self, vm: VmId) -> &'t str {
        self.tables.vms.get(vm.index()).map_or("[unknown]", |vm| vm.name.as_str())
    }

    fn image_name(&self, image: ImageId, open: &str, close: &str) -> String {
        let image = &self.tables.images[image.index()];
        format!("{open}{}{close} ({})", image.name, image.pid)
    }
}

/// By image. A recording of version 0.2 or before does not say: a kernel thread has no code of its own.
fn kernel_threads(tables: &Tables) -> Vec<bool> {
    let mut has_code = vec![false; tables.images.len()];
    for mapping in &tables.mappings {
        has_code.get_mut(mapping.image.index()).into_iter().for_each(|has| *has = true);
    }
    let known = tables.images.iter().map(|image| image.kernel_thread);
    known.zip(has_code).map(|(known, has_code)| known.unwrap_or(!has_code)).collect()
}

impl Thief {
    /// The thief's kind.
    #[must_use]
    pub fn kind(self) -> ThiefKind {
        match self {
            Self::Vcpu(_) => ThiefKind::Vcpu,
            Self::VmmThread(..) => ThiefKind::VmmThread,
            Self::Vhost(_) => ThiefKind::Vhost,
            Self::Process(_) | Self::UnseenProcess(_) => ThiefKind::Process,
            Self::KernelThread(_) => ThiefKind::KernelThread,
            Self::Idle => ThiefKind::Idle,
            Self::Unknown => ThiefKind::Unknown,
        }
    }
}
