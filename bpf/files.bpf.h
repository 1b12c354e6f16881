/* SPDX-License-Identifier: GPL-2.0 */
/* Iterators over open files (iter/task_file). */
#ifndef VMSCOPE_FILES_BPF_H
#define VMSCOPE_FILES_BPF_H

#include <stdbool.h>
#include "kernel.bpf.h"

struct bpf_iter_meta {
	struct seq_file *seq;
} KERNEL_TYPE;

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
} KERNEL_TYPE;

/* include/uapi/linux/magic.h */
#define ANON_INODE_FS_MAGIC 0x09041934

/* With the final 0: the name is "kvm-vm". Without: it begins with "kvm-vcpu:", unlike "kvm-vcpu-stats:0". */
#define is_vm_file(file) is_kvm_file(file, "kvm-vm", sizeof("kvm-vm"))
#define is_vcpu_file(file) is_kvm_file(file, "kvm-vcpu:", sizeof("kvm-vcpu:") - 1)

/* Whether KVM made the file, with a name that begins with the `length` bytes of `wanted`.
 *
 * Any user can give a file any name, and FUSE chooses what `private_data` leads to. But only the kernel makes, and
 * names, files in the file system of anonymous inodes. */
static __always_inline bool is_kvm_file(struct file *file, const char *wanted, int length)
{
	struct module *owner;
	char name[16];

	if (file->f_inode->i_sb->s_magic != ANON_INODE_FS_MAGIC)
		return false;
	if (bpf_probe_read_kernel(name, length, file->f_path.dentry->d_name.name))
		return false;
	for (int i = 0; i < length; i++)
		if (name[i] != wanted[i])
			return false;
	owner = file->f_op->owner; /* kvm_amd, kvm_intel */
	if (owner && bpf_probe_read_kernel(name, 3, owner->name))
		return false;
	return !owner || (name[0] == 'k' && name[1] == 'v' && name[2] == 'm');
}

/* Whether the task's process made the VM. Others may hold its files, by a fork or because they were sent them. */
static __always_inline bool is_own_vm(struct task_struct *task, struct kvm *kvm)
{
	struct mm_struct *mm = NULL;

	return !bpf_core_read(&mm, sizeof(mm), &kvm->mm) && mm && mm == task->mm;
}

/* The thread that last ran the vCPU. NULL: none did, or it has ended, and another may have its id by now. */
static __always_inline struct task_struct *thread_of(struct kvm_vcpu *vcpu, struct task_struct *process)
{
	struct hlist_node *node = NULL;
	struct task_struct *thread;
	struct pid *pid = NULL;
	int tgid = 0;

	if (bpf_core_read(&pid, sizeof(pid), &vcpu->pid) || !pid ||
	    bpf_core_read(&node, sizeof(node), &pid->tasks[0].first) || !node)
		return NULL;
	thread = (void *)node - bpf_core_field_offset(struct task_struct, pid_links);
	if (bpf_core_read(&tgid, sizeof(tgid), &thread->tgid) || tgid != process->tgid)
		return NULL;
	return thread;
}

/* The threads of a process share its files, so each file is met once per thread. Whether this is the first time.
 *
 * Pass what was loaded from the context, once: to verifiers of Linux 6.1 a second load is another pointer, which may be
 * NULL. */
static __always_inline bool is_new_file(struct task_struct *task, struct file *file)
{
	return task && file && task->pid == task->tgid;
}

#endif
