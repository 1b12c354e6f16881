/* SPDX-License-Identifier: GPL-2.0 */
/* Who runs in a guest, by the guest's own kernel: its task's page tables, kernel stack and FS base, read from the VM's memory.
 * The vCPU stands still meanwhile, and its thread is the current one: its process has the memory. */
#ifndef VMSCOPE_GUEST_TASK_BPF_H
#define VMSCOPE_GUEST_TASK_BPF_H

#include "vcpu.bpf.h"

/* Where x86-64 maps the kernel's image (__START_KERNEL_map): the first task and its memory lie there. */
#define GUEST_IMAGE 0xffffffff80000000ull

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, GUEST_VIEWS);
	__type(key, __u32);
	__type(value, struct guest_view);
} guest_views SEC(".maps");

/* NULL: unknown. */
static __always_inline struct guest_view *view_of(struct vcpu_ref *ref)
{
	__u32 row = ref->view;
	struct guest_view *view;

	if (!row)
		return NULL;
	view = bpf_map_lookup_elem(&guest_views, &row);
	return view && view->current ? view : NULL;
}

/* Address in the VM's process of eight bytes of a struct in the guest's kernel; 0: they are not in its memory. */
static __always_inline __u64 locate(struct guest_view *view, __u64 address, __u32 offset)
{
	__u64 physical = address + offset - (address < GUEST_IMAGE ? view->direct_map : view->image);

#pragma unroll
	for (int i = 0; i < GUEST_SLOTS; i++) {
		__u64 within = physical - view->slot[i].start;

		if (within < view->slot[i].bytes && within + 8 <= view->slot[i].bytes)
			return physical + view->slot[i].shift;
	}
	return 0;
}

static __always_inline long read_guest(__u64 *value, struct guest_view *view, __u64 address, __u32 offset)
{
	__u64 at = locate(view, address, offset);

	return at ? bpf_probe_read_user(value, sizeof(*value), (void *)at) : -1;
}

/* Intel: CR3 and FS base of the task that runs; of a kernel thread, which has none of its own, the kernel stack. Nothing is
 * kept from one sample to the next: the addresses of tasks and of their memory are soon others'. */
static __always_inline long read_task(struct sample *s, struct guest_view *view)
{
	__u64 task, mm, value;

	s->guest_cr3 = 0;
	if (bpf_probe_read_user(&task, sizeof(task), (void *)view->current) ||
	    read_guest(&mm, view, task, view->mm))
		return -1;
	if (!mm) {
		if (read_guest(&value, view, task, view->stack))
			return -1;
		s->guest_stack = KERNEL_STACK(value);
		return 0;
	}
	if (read_guest(&s->guest_fs_base, view, task, view->fs_base) || read_guest(&value, view, mm, view->pgd))
		return -1;
	s->guest_cr3 = value - (value < GUEST_IMAGE ? view->direct_map : view->image);
	return 0;
}

/* AMD, where the VMCB has CR3 and FS base: the kernel stack of the task that runs. An interrupt's handler is on another one. */
static __always_inline void read_task_stack(struct sample *s, struct guest_view *view)
{
	__u64 task, stack;

	if (!bpf_probe_read_user(&task, sizeof(task), (void *)view->current) &&
	    !read_guest(&stack, view, task, view->stack))
		s->guest_stack = KERNEL_STACK(stack);
}

#endif
