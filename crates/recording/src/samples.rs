//! `samples.parquet`: its columns, and how samples become them and come back.
//!
//! A row group is a slice of time: at most `SLICE` samples, all later than those of the row group
//! before. In it the samples of each thread on a CPU stand together, in time order: they are alike, which
//! is what encodes well; a reader merges them back in one pass.

use model::{
    Counter, CpuId, Cr3, GuestTask, GuestVirt, HostMode, HostNs, HostVirt, KernelStack, Pid,
    Sample, StackId, Tables, Tid, VcpuId, VcpuSample, VcpuState, WaitCounters,
};

use crate::columns::table;
use crate::files::SAMPLES;

/// Values of column `vcpu_state`.
const NONE: u8 = 0;
const UNKNOWN: u8 = 1;
const VMM: u8 = 2;
const GUEST: u8 = 3;

// The encodings are measured, see `docs/formats.md`.
table! {
    Samples of Sample, sliced SAMPLES, by time_ns;
    write |number, sample|
    let (state, vcpu) = split(&sample.vcpu);
    let waits = vcpu.and_then(|vcpu| vcpu.waits); {
        time_ns: HostNs [delta] = sample.time,
        cpu: CpuId [delta] = sample.cpu,
        pid: Pid [delta] = sample.pid,
        tid: Tid [delta] = sample.tid,
        host_ip: HostVirt = sample.host_ip,
        host_user: bool = sample.host_mode == HostMode::User,
        stack: Option<StackId> = sample.stack,
        vcpu_state: u8 [delta] = state,
        vcpu: Option<VcpuId> [delta] = vcpu.map(|vcpu| vcpu.vcpu),
        guest_ip: GuestVirt = vcpu.map_or(GuestVirt(0), |vcpu| vcpu.ip),
        guest_cr3: Option<Cr3> = vcpu.and_then(|vcpu| vcpu.cr3),
        guest_fs_base: GuestVirt = vcpu.map_or(GuestVirt(0), |vcpu| vcpu.fs_base),
        guest_cpl: u8 [delta] = vcpu.map_or(0, |vcpu| vcpu.cpl),
        asid: u32 [delta] = vcpu.map_or(0, |vcpu| vcpu.asid.into()),
        exit_reason: u32 = vcpu.map_or(0, |vcpu| vcpu.exit_reason),
        exit_info: u32 = vcpu.map_or(0, |vcpu| vcpu.exit_info),
        halted_ns: Option<u64> [plain added] = waits.map(|waits| waits.halted_ns),
        polled_ns: Option<u64> [plain added] = waits.map(|waits| waits.polled_ns),
        runnable_ns: Option<u64> [plain added] = waits.map(|waits| waits.runnable_ns),
        kicked: Option<bool> [added] = vcpu.map(|vcpu| vcpu.kicked),
        guest_stack: Option<KernelStack> [added] = vcpu.and_then(|vcpu| vcpu.kernel_stack),
        guest_pid: Option<Pid> [added] = vcpu.and_then(|vcpu| vcpu.task).map(|task| task.pid),
        guest_tid: Option<Tid> [added] = vcpu.and_then(|vcpu| vcpu.task).map(|task| task.tid),
    }
    read |row, columns| {
        let asid = u16::try_from(*asid).map_err(|_| "an ASID of more than 16 bits")?;
        let known_vcpu = || vcpu.map(|vcpu| VcpuSample {
            vcpu,
            ip: *guest_ip,
            cr3: *guest_cr3,
            fs_base: *guest_fs_base,
            cpl: *guest_cpl,
            kernel_stack: *guest_stack,
            task: guest_pid.zip(*guest_tid).map(|(pid, tid)| GuestTask { pid, tid }),
            asid,
            exit_reason: *exit_reason,
            exit_info: *exit_info,
            waits: waits(*halted_ns, *polled_ns, *runnable_ns),
            kicked: kicked.unwrap_or(false),
        }).ok_or("a sample lacks its vCPU");
        Ok(Sample {
            time: *time_ns,
            cpu: *cpu,
            pid: *pid,
            tid: *tid,
            host_ip: *host_ip,
            host_mode: if *host_user { HostMode::User } else { HostMode::Kernel },
            stack: *stack,
            vcpu: match *vcpu_state {
                NONE => VcpuState::None,
                UNKNOWN => VcpuState::Unknown,
                VMM => VcpuState::Vmm(known_vcpu()?),
                GUEST => VcpuState::Guest(known_vcpu()?),
                _ => return Err("invalid vCPU state"),
            },
        })
    }
}

fn split(vcpu: &VcpuState) -> (u8, Option<&VcpuSample>) {
    match vcpu {
        VcpuState::None => (NONE, None),
        VcpuState::Unknown => (UNKNOWN, None),
        VcpuState::Vmm(vcpu) => (VMM, Some(vcpu)),
        VcpuState::Guest(vcpu) => (GUEST, Some(vcpu)),
    }
}

/// The counters of three columns, where all are there.
pub(crate) fn waits(
    halted_ns: Option<u64>,
    polled_ns: Option<u64>,
    runnable_ns: Option<u64>,
) -> Option<WaitCounters> {
    Some(WaitCounters { halted_ns: halted_ns?, polled_ns: polled_ns?, runnable_ns: runnable_ns? })
}

/// A slice in the order of a row group. The sort keeps the order of time for each thread.
pub(crate) fn by_thread(slice: &[Sample]) -> Vec<&Sample> {
    let mut rows: Vec<_> = slice.iter().collect();
    rows.sort_by_key(|sample| (sample.cpu, sample.tid));
    rows
}

/// Takes references to rows that are not there from a sample. Returns the counters of what was lost. A vCPU
/// that is in no table is one that was not found.
pub(crate) fn cut_dangling(
    tables: &Tables,
    sample: &mut Sample,
) -> impl Iterator<Item = Counter> + use<> {
    let mut lost = [None; 2];
    if sample.stack.is_some_and(|stack| tables.stacks.len() <= stack.index()) {
        sample.stack = None;
        lost[0] = Some(Counter::SamplesWithoutStackRow);
    }
    let (_, vcpu) = split(&sample.vcpu);
    if vcpu.is_some_and(|vcpu| tables.vcpus.len() <= vcpu.vcpu.index()) {
        sample.vcpu = match sample.vcpu {
            VcpuState::Guest(_) => VcpuState::Unknown,
            _ => VcpuState::None,
        };
        lost[1] = Some(Counter::SamplesWithoutVcpuRow);
    }
    lost.into_iter().flatten()
}
