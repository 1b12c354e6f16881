/* SPDX-License-Identifier: GPL-2.0 */
/* Copies a vCPU's registers into its sample: those at the interrupt, or at the last VM exit. */
#ifndef VMSCOPE_REGISTERS_BPF_H
#define VMSCOPE_REGISTERS_BPF_H

#include "vcpu.bpf.h"

/* How a vCPU's registers are read: by typed loads through a variable of KVM, or by probes only. */
enum access { TYPED, PROBES };

/* KVM's per-CPU data on AMD. Weak: kvm_amd may not be loaded. A kernel with KVM built in and without CONFIG_KALLSYMS_ALL
 * knows the type of the variable but not its address: it refuses programs that use it. */
extern struct svm_cpu_data svm_data __ksym __weak;

/* The VMCB that was last loaded on this CPU, as a typed pointer: a load through it costs a tenth of a probe. */
static __always_inline struct vmcb *loaded_vmcb(void)
{
	struct svm_cpu_data *data;

	if (!&svm_data)
		return NULL;
	data = bpf_this_cpu_ptr(&svm_data);
	return data->current_vmcb;
}

/* False: the vCPU runs a guest of its guest, which has a VMCB of its own. */
static __always_inline bool load_svm(struct sample *s, struct vmcb *vmcb)
{
	__u32 exit_reason = VMCB_FIELD(vmcb, __u32, VMCB_EXIT_CODE);

	if (exit_reason == SVM_EXIT_VMRUN)
		return false;
	s->exit_reason = exit_reason;
	/* No CPU has more ASIDs than 16 bits tell apart. */
	s->asid = VMCB_FIELD(vmcb, __u16, VMCB_ASID);
	s->exit_info = VMCB_FIELD(vmcb, __u32, VMCB_EXIT_INT_INFO);
	s->guest_fs_base = VMCB_FIELD(vmcb, __u64, VMCB_FS_BASE);
	s->cpl = VMCB_FIELD(vmcb, __u8, VMCB_CPL);
	s->guest_cr3 = VMCB_FIELD(vmcb, __u64, VMCB_CR3);
	s->guest_ip = VMCB_FIELD(vmcb, __u64, VMCB_RIP);
	s->guest_stack = s->cpl ? 0 : KERNEL_STACK(VMCB_FIELD(vmcb, __u64, VMCB_RSP));
	return true;
}

static __always_inline void clear_registers(struct sample *s)
{
	s->guest_ip = 0;
	s->guest_cr3 = 0;
	s->guest_fs_base = 0;
	s->exit_reason = 0;
	s->exit_info = 0;
	s->asid = 0;
	s->cpl = CPL_UNKNOWN;
	s->guest_stack = 0;
}

/* Not inlined: what it reads would take half of the stack that all calls of a program share. */
static __noinline long probe_svm(struct sample *s, struct kvm_vcpu *vcpu, __u64 own_vmcb)
{
	struct vmcb_control control;
	struct vmcb_paging paging;
	char *vmcb;
	long err;

	err = read_vmcb(&vmcb, vcpu);
	if (!err && is_nested_svm(vmcb, own_vmcb)) {
		clear_registers(s);
		s->cpl = CPL_NESTED;
		err = bpf_probe_read_kernel(&control, sizeof(control), vmcb + VMCB_ASID);
		s->exit_reason = control.exit_code;
		s->exit_info = control.exit_int_info;
		return err;
	}
	err |= bpf_probe_read_kernel(&control, sizeof(control), vmcb + VMCB_ASID);
	s->asid = control.asid;
	s->exit_reason = control.exit_code;
	s->exit_info = control.exit_int_info;
	err |= bpf_probe_read_kernel(&s->guest_fs_base, sizeof(s->guest_fs_base), vmcb + VMCB_FS_BASE);
	err |= bpf_probe_read_kernel(&s->cpl, sizeof(s->cpl), vmcb + VMCB_CPL);
	err |= bpf_probe_read_kernel(&paging, sizeof(paging), vmcb + VMCB_CR3);
	s->guest_cr3 = paging.cr3;
	s->guest_ip = paging.rip;
	s->guest_stack = s->cpl ? 0 : KERNEL_STACK(paging.rsp);
	return err;
}

/* AMD keeps all of the guest's state in the VMCB, which is plain memory. */
static __always_inline long read_svm(struct sample *s, struct vcpu_ref *ref, enum access access)
{
	struct vmcb *vmcb = access == TYPED ? loaded_vmcb() : NULL;

	if (vmcb && (__u64)vmcb == ref->vmcb && load_svm(s, vmcb))
		return 0;
	return probe_svm(s, vcpu_of(ref), ref->vmcb);
}

/* BPF can't read Intel's VMCS. IP and stack pointer are available if KVM has them cached. Since Linux 6.3 perf makes KVM
 * cache the IP before this program runs, if the event asks for the sample's IP; nothing does that for the stack pointer. */
static __always_inline long read_vmx(struct sample *s, struct kvm_vcpu *vcpu)
{
	struct vcpu_vmx *vmx = (struct vcpu_vmx *)vcpu; /* vcpu is its first member */
	__u32 available = 0;
	__u16 vpid = 0;
	__u64 rsp;
	long err;

	err = read_vmx_exit(&s->exit_reason, &s->exit_info, vcpu);
	err |= bpf_core_read(&vpid, sizeof(vpid), &vmx->vpid);
	err |= bpf_core_read(&available, sizeof(available), &vcpu->arch.regs_avail);
	s->asid = vpid;
	s->guest_ip = 0;
	s->guest_cr3 = 0;
	s->guest_fs_base = 0;
	s->cpl = CPL_UNKNOWN;
	s->guest_stack = 0;
	if (is_nested_vmx(vcpu)) {
		s->cpl = CPL_NESTED;
		return err;
	}
	if (available & (1u << VCPU_REGS_RIP)) {
		err |= bpf_core_read(&s->guest_ip, sizeof(s->guest_ip), &vcpu->arch.regs[VCPU_REGS_RIP]);
		s->cpl = (__s64)s->guest_ip < 0 ? 0 : 3;
	}
	if (!s->cpl && (available & (1u << VCPU_REGS_RSP)) &&
	    !bpf_core_read(&rsp, sizeof(rsp), &vcpu->arch.regs[VCPU_REGS_RSP]))
		s->guest_stack = KERNEL_STACK(rsp);
	return err;
}

/* The registers that a stack is unwound from. Returns what is known of them: GUEST_*. KVM saves all but RSP itself. */
static __always_inline __u32 read_general(__u64 *registers, struct vcpu_ref *ref, __u32 vendor, enum access access)
{
	struct kvm_vcpu *vcpu = vcpu_of(ref);
	struct vmcb *vmcb = access == TYPED && is_svm(vendor) ? loaded_vmcb() : NULL;
	__u64 *rsp = &registers[VCPU_REGS_RSP];
	__u32 available = 0;
	char *probed;

	if (bpf_probe_read_kernel(registers, KVM_REGISTERS * sizeof(*registers), &vcpu->arch.regs))
		return 0;
	if (vmcb && (__u64)vmcb == ref->vmcb) {
		*rsp = VMCB_FIELD(vmcb, __u64, VMCB_RSP);
		return GUEST_REGISTERS | GUEST_RSP;
	}
	if (is_svm(vendor)) {
		if (read_vmcb(&probed, vcpu) || bpf_probe_read_kernel(rsp, sizeof(*rsp), probed + VMCB_RSP))
			return GUEST_REGISTERS;
		return GUEST_REGISTERS | GUEST_RSP;
	}
	if (bpf_core_read(&available, sizeof(available), &vcpu->arch.regs_avail) ||
	    !(available & (1u << VCPU_REGS_RSP)))
		return GUEST_REGISTERS;
	return GUEST_REGISTERS | GUEST_RSP;
}

#endif
