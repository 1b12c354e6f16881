//! Call stacks of guests: from the bytes that a sample copied to a request, and from the answer to frames.

use api::guest::{
    MAX_STACK_COPIES, StackBasis, StackBytes, StackPart, StackRegisters, StackSample, UnwoundStack,
};
use model::{GuestStack, GuestVirt, Pid, Sample, StackEnd, VcpuId, VcpuState};
use probes::{RawGuestStack, RawRegisters};

/// Where a guest's stack begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) vcpu: VcpuId,
    pub(crate) time_ns: u64,
    /// The VM's process.
    pub(crate) vmm: Pid,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    /// Base of the page tables; 0: unknown.
    pub(crate) cr3: u64,
    pub(crate) is_kernel: bool,
    /// `None` although it is in kernel mode: the stack pointer is unknown.
    pub(crate) kernel: Option<StackRegisters>,
    /// `None`: unknown, or a kernel thread.
    pub(crate) user: Option<StackRegisters>,
}

/// A guest's stack that is to be unwound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WaitingStack {
    pub(crate) origin: Origin,
    pub(crate) copies: Vec<StackBytes>,
}

/// Where the guest's stack of a sample begins; `None`: nothing was copied.
pub(crate) fn origin(sample: &Sample, raw: &RawGuestStack<'_>) -> Option<Origin> {
    let (VcpuState::Guest(vcpu) | VcpuState::Vmm(vcpu)) = &sample.vcpu else { return None };
    let (registers, task) = (raw.registers()?, vcpu.task?);
    let is_kernel = vcpu.cpl == 0;
    let at = |ip: u64, RawRegisters { sp, bp, callee_saved, .. }: RawRegisters| StackRegisters {
        ip,
        sp,
        bp,
        callee_saved: Some(callee_saved),
    };
    let here = at(vcpu.ip.0, registers);
    let user = if is_kernel { raw.entry().map(|entry| at(entry.ip, entry)) } else { Some(here) };
    Some(Origin {
        vcpu: vcpu.vcpu,
        time_ns: sample.time.0,
        vmm: sample.pid,
        pid: task.pid.0,
        tid: task.tid.0,
        cr3: vcpu.cr3.map_or(0, |cr3| cr3.base()),
        is_kernel,
        // Kernels keep no frame pointers.
        kernel: is_kernel.then_some(here).filter(|here| here.sp.is_some()),
        user,
    })
}

impl WaitingStack {
    /// With what the sample copied.
    pub(crate) fn new(origin: Origin, raw: &RawGuestStack<'_>) -> Self {
        Self { origin, copies: copies(raw) }
    }

    /// For who unwinds it; the copies go there.
    pub(crate) fn take_sample(&mut self) -> StackSample {
        let Origin { pid, cr3, kernel, user, .. } = self.origin;
        StackSample { pid, cr3, kernel, user, copies: std::mem::take(&mut self.copies) }
    }
}

/// Pieces that follow each other become one.
fn copies(raw: &RawGuestStack<'_>) -> Vec<StackBytes> {
    let mut copies: Vec<StackBytes> = Vec::with_capacity(2);
    for (start, bytes) in raw.chunks() {
        let overlap = copies.last().and_then(|last| {
            let length = usize::try_from(start.checked_sub(last.start)?).ok()?;
            last.bytes.len().checked_sub(length)
        });
        let n_copies = copies.len();
        match (overlap.and_then(|n| bytes.get(n..)), copies.last_mut()) {
            (Some(new), Some(last)) => last.bytes.extend_from_slice(new),
            _ if n_copies == MAX_STACK_COPIES => break,
            _ => copies.push(StackBytes { start, bytes: bytes.to_vec() }),
        }
    }
    copies
}

/// The frames of a guest's stack, without the one that was sampled. `unwound`: `None` if no answer came in time.
pub(crate) fn guest_stack(is_kernel: bool, unwound: Option<&UnwoundStack>) -> GuestStack {
    let Some(UnwoundStack { kernel, user, .. }) = unwound else {
        let late = Some(StackEnd::Late);
        let kernel_end = late.filter(|_| is_kernel);
        return GuestStack { kernel_end, user_end: late.xor(kernel_end), ..GuestStack::default() };
    };
    let frames = |part: &Option<StackPart>, n_left_out: usize| -> Vec<GuestVirt> {
        let frames = part.iter().flat_map(|part| part.frames.iter());
        frames.skip(n_left_out).map(|frame| GuestVirt(*frame)).collect()
    };
    // Without the stack pointer only the part before the kernel's entry is known.
    let unknown = |is_it: bool| is_it.then_some(StackEnd::NoRegister);
    GuestStack {
        kernel: frames(kernel, 1),
        kernel_end: kernel.as_ref().map(|part| part.end).or(unknown(is_kernel)),
        user: frames(user, usize::from(!is_kernel)),
        user_end: user.as_ref().map(|part| part.end).or(unknown(!is_kernel)),
    }
}

/// What the parts in the guest's kernel and in user mode follow from; `None`: one of them may differ another time.
pub(crate) fn bases(unwound: UnwoundStack) -> Option<[Option<StackBasis>; 2]> {
    let UnwoundStack { kernel, user, .. } = unwound;
    let basis = |part: Option<StackPart>| part.map(|part| part.basis.ok_or(())).transpose().ok();
    Some([basis(kernel)?, basis(user)?])
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_late_answer_ends_the_part_that_was_sampled() {
        let late = Some(StackEnd::Late);
        let kernel = GuestStack { kernel_end: late, ..GuestStack::default() };
        assert_eq!(guest_stack(true, None), kernel);
        let user = GuestStack { user_end: late, ..GuestStack::default() };
        assert_eq!(guest_stack(false, None), user);
    }

    #[test]
    fn the_sampled_instruction_is_no_caller() {
        let part =
            |frames: &[u64], end| Some(StackPart { frames: frames.to_vec(), end, basis: None });
        let (kernel, user) = (part(&[1, 2], StackEnd::UserMode), part(&[3, 4], StackEnd::Start));
        let addresses = |frames: &[u64]| frames.iter().copied().map(GuestVirt).collect();
        let in_kernel =
            UnwoundStack { kernel: kernel.clone(), user: user.clone(), ..UnwoundStack::default() };
        let expected = GuestStack {
            kernel: addresses(&[2]),
            kernel_end: Some(StackEnd::UserMode),
            user: addresses(&[3, 4]),
            user_end: Some(StackEnd::Start),
        };
        assert_eq!(guest_stack(true, Some(&in_kernel)), expected);
        let in_user = UnwoundStack { user, ..UnwoundStack::default() };
        let expected = GuestStack {
            user: addresses(&[4]),
            user_end: Some(StackEnd::Start),
            ..GuestStack::default()
        };
        assert_eq!(guest_stack(false, Some(&in_user)), expected);
    }
}
