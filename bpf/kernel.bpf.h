/* SPDX-License-Identifier: GPL-2.0 */
/* The few kernel types that the programs read, by name: CO-RE finds the real offsets in the running
 * kernel's BTF and its modules'. Fields are the union of what the supported kernels (6.1 and later)
 * have; bpf_core_field_exists() guards those that some lack. */
#ifndef VMSCOPE_KERNEL_BPF_H
#define VMSCOPE_KERNEL_BPF_H

#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define KERNEL_TYPE __attribute__((preserve_access_index))

/* include/linux/sched.h: the task is running a guest. */
#define PF_VCPU 0x00000001
/* arch/x86/include/asm/page_64_types.h, without KASAN */
#define THREAD_SIZE (4 * 4096)

struct upid {
	int nr;
} KERNEL_TYPE;

struct pid {
	struct upid numbers[1];
} KERNEL_TYPE;

struct task_struct {
	void *stack;
	unsigned int flags;
	int pid;
	int tgid;
} KERNEL_TYPE;

struct qstr {
	const unsigned char *name;
} KERNEL_TYPE;

struct dentry {
	struct qstr d_name;
} KERNEL_TYPE;

struct path {
	struct dentry *dentry;
} KERNEL_TYPE;

struct file {
	struct path f_path;
	void *private_data;
} KERNEL_TYPE;

/* x86 KVM, in kvm.ko */
enum kvm_register { VCPU_REGS_RIP = 16 };

struct kvm;

struct kvm_vcpu_arch {
	unsigned long regs[VCPU_REGS_RIP + 1];
	__u32 regs_avail;
	__u8 handling_intr_from_guest;
	__u8 guest_state_protected; /* bool: SEV-ES, SEV-SNP, TDX */
} KERNEL_TYPE;

struct kvm_vcpu {
	struct kvm *kvm;
	int vcpu_id;
	struct pid *pid;
	struct kvm_vcpu_arch arch;
} KERNEL_TYPE;

/* AMD, in kvm_amd.ko (APM vol. 2, appendix B) */
struct vmcb_seg {
	__u64 base;
} KERNEL_TYPE;

struct vmcb_control_area {
	__u32 asid;
	__u32 exit_code;
	__u32 exit_int_info;
} KERNEL_TYPE;

struct vmcb_save_area {
	struct vmcb_seg fs;
	__u8 cpl;
	__u64 cr3;
	__u64 rip;
} KERNEL_TYPE;

struct vmcb {
	struct vmcb_control_area control;
	struct vmcb_save_area save;
} KERNEL_TYPE;

struct vcpu_svm {
	struct vmcb *vmcb;
} KERNEL_TYPE;

/* Intel, in kvm_intel.ko */
union vmx_exit_reason {
	__u32 full;
} KERNEL_TYPE;

struct vcpu_vmx {
	union vmx_exit_reason exit_reason;
	__u32 exit_intr_info;
	__u16 vpid;
} KERNEL_TYPE;

/* Linux 6.16 moved what VMX and TDX share into a structure of its own. */
struct vcpu_vt {
	union vmx_exit_reason exit_reason;
	__u32 exit_intr_info;
} KERNEL_TYPE;

struct vcpu_vmx___vt {
	struct vcpu_vt vt;
} KERNEL_TYPE;

#endif
