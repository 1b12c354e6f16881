/* SPDX-License-Identifier: GPL-2.0 */
/* The few kernel types that the programs read. CO-RE finds the real offsets in the BTF of the running kernel
 * and its modules. The structs have all fields of all supported kernels (6.1 and later);
 * bpf_core_field_exists() guards fields that some kernels lack. */
#ifndef VMSCOPE_KERNEL_BPF_H
#define VMSCOPE_KERNEL_BPF_H

#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "arch.bpf.h"

#define KERNEL_TYPE __attribute__((preserve_access_index))

/* include/linux/sched.h: the task runs a guest. KVM clears it after it has handled the interrupt that ended the run. */
#define PF_VCPU 0x00000001
#define TASK_RUNNING 0x0000
#define TASK_DEAD 0x0080
#define TASK_WAKING 0x0200

struct hlist_node {
	struct hlist_node *next;
} KERNEL_TYPE;

struct hlist_head {
	struct hlist_node *first;
} KERNEL_TYPE;

struct upid {
	int nr;
} KERNEL_TYPE;

struct pid {
	struct hlist_head tasks[1]; /* [PIDTYPE_PID] */
	struct upid numbers[1];
} KERNEL_TYPE;

struct thread_info {
	__u32 status;
	__u32 cpu;
} KERNEL_TYPE;

struct sched_info {
	unsigned long long run_delay; /* CONFIG_SCHED_INFO */
} KERNEL_TYPE;

struct kernfs_node {
	__u64 id;
} KERNEL_TYPE;

struct cgroup {
	int level;
	struct kernfs_node *kn;
	struct cgroup *ancestors[1]; /* any number */
} KERNEL_TYPE;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
} KERNEL_TYPE;

struct task_group {
	struct cgroup_subsys_state css;
} KERNEL_TYPE;

struct rq {
	int cpu;
} KERNEL_TYPE;

struct cfs_rq {
	struct rq *rq;         /* CONFIG_FAIR_GROUP_SCHED */
	struct task_group *tg; /* the same */
	int throttled;         /* CONFIG_CFS_BANDWIDTH; of 1 bit in Linux 6.18 and later */
	int throttle_count;    /* the same: of those above it, too */
} KERNEL_TYPE;

struct sched_entity {
	struct cfs_rq *cfs_rq; /* CONFIG_FAIR_GROUP_SCHED */
} KERNEL_TYPE;

struct css_set {
	struct cgroup *dfl_cgrp; /* in the unified hierarchy */
} KERNEL_TYPE;

struct mm_struct;

struct task_struct {
	struct thread_info thread_info;
	void *stack;
	unsigned int __state;
	unsigned int flags;
	int on_cpu;
	unsigned in_iowait : 1;
	int pid;
	int tgid;
	struct hlist_head preempt_notifiers; /* CONFIG_PREEMPT_NOTIFIERS, which KVM selects */
	char comm[16];
	struct sched_entity se;
	struct sched_info sched_info;
	struct hlist_node pid_links[1];
	struct css_set *cgroups;
	struct mm_struct *mm; /* NULL: a kernel thread's */
} KERNEL_TYPE;

/* Linux 6.18 and later throttle task by task. */
struct task_struct___throttled {
	_Bool throttled;
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

struct super_block {
	unsigned long s_magic;
} KERNEL_TYPE;

struct inode {
	struct super_block *i_sb;
} KERNEL_TYPE;

struct module {
	char name[8]; /* longer: its begin */
} KERNEL_TYPE;

struct file_operations {
	struct module *owner; /* NULL: built in */
} KERNEL_TYPE;

struct file {
	struct path f_path;
	struct inode *f_inode;
	const struct file_operations *f_op;
	void *private_data;
} KERNEL_TYPE;

/* x86 KVM, in kvm.ko */
enum kvm_register { VCPU_REGS_RSP = 4, VCPU_REGS_RBP = 5, VCPU_REGS_RIP = 16 };

struct kvm {
	struct mm_struct *mm; /* of the process that made the VM: no other can run its vCPUs */
} KERNEL_TYPE;

/* include/uapi/linux/kvm.h */
enum kvm_run_exit {
	KVM_EXIT_IO = 2,
	KVM_EXIT_DEBUG = 4,
	KVM_EXIT_MMIO = 6,
	KVM_EXIT_SHUTDOWN = 8,
	KVM_EXIT_FAIL_ENTRY = 9,
	KVM_EXIT_INTR = 10,
	KVM_EXIT_INTERNAL_ERROR = 17,
	KVM_EXIT_SYSTEM_EVENT = 24,
};

struct kvm_run {
	__u32 exit_reason;
} KERNEL_TYPE;

struct kvm_vcpu_arch {
	unsigned long regs[VCPU_REGS_RIP + 1];
	void *complete_userspace_io; /* not NULL: KVM_RUN has left for I/O that the VMM is to do */
	__u32 regs_avail;
	__u8 handling_intr_from_guest;
	__u8 guest_state_protected; /* bool: SEV-ES, SEV-SNP, TDX */
} KERNEL_TYPE;

struct kvm_vcpu_stat_generic {
	__u64 halt_poll_success_ns;
	__u64 halt_poll_fail_ns;
	__u64 halt_wait_ns;
	__u64 blocking;
} KERNEL_TYPE;

struct kvm_vcpu_stat {
	struct kvm_vcpu_stat_generic generic;
} KERNEL_TYPE;

struct kvm_vcpu {
	struct kvm *kvm;
	struct kvm_run *run;
	int vcpu_id;
	struct pid *pid;
	struct kvm_vcpu_arch arch;
	struct kvm_vcpu_stat stat;
} KERNEL_TYPE;

/* AMD, in kvm_amd.ko */
struct vmcb;

struct kvm_vmcb_info {
	struct vmcb *ptr;
} KERNEL_TYPE;

struct vcpu_svm {
	struct vmcb *vmcb; /* in use: its own, or that of a guest of its guest */
	struct kvm_vmcb_info vmcb01;
} KERNEL_TYPE;

struct svm_cpu_data {
	struct vmcb *current_vmcb;
} KERNEL_TYPE;

/* Intel, in kvm_intel.ko */
#define VMX_BASIC_REASON 0xffff
#define VMX_EXIT_EXCEPTION_OR_NMI 0
#define VMX_EXIT_INTERRUPT 1

union vmx_exit_reason {
	__u32 full;
} KERNEL_TYPE;

struct loaded_vmcs {
	int cpu;
} KERNEL_TYPE;

struct vcpu_vmx {
	union vmx_exit_reason exit_reason;
	__u32 exit_intr_info;
	__u16 vpid;
	struct loaded_vmcs *loaded_vmcs;
	struct loaded_vmcs vmcs01;
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
