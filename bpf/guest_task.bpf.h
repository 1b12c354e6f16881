/* SPDX-License-Identifier: GPL-2.0 */
/* Who runs in a guest, by the guest's own kernel: its task, read from the VM's memory. The vCPU stands still meanwhile, and its
 * thread is the current one: its process has the memory.
 *
 * Nothing is kept from one sample to the next but which code was reported: the addresses of tasks are soon others'. */
#ifndef VMSCOPE_GUEST_TASK_BPF_H
#define VMSCOPE_GUEST_TASK_BPF_H

#include "ring.bpf.h"
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

struct ring code_rings[MAX_CPUS] SEC(".bss.code_rings");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* user space: CPUs * GUEST_CODE_SLOTS */
	__type(key, __u32);
	__type(value, struct guest_code);
} guest_codes SEC(".maps");

/* Hashes of the code that was reported. CPUs may write over each other: then some is reported twice. */
__u64 codes_seen[GUEST_CODES_SEEN] SEC(".bss.codes_seen");

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

/* Address in the VM's process of guest-physical memory; 0: it is not the VM's. */
static __always_inline __u64 find_in_slots(struct guest_view *view, __u64 physical, __u32 bytes)
{
#pragma unroll
	for (int i = 0; i < GUEST_SLOTS; i++) {
		__u64 within = physical - view->slot[i].start;

		if (within < view->slot[i].bytes && within + bytes <= view->slot[i].bytes)
			return physical + view->slot[i].shift;
	}
	return 0;
}

/* The same. Not static, as slot_for: the kernel verifies such a function once, others at each call. */
__noinline __u64 locate_physical(struct guest_view *view, __u64 physical, __u32 bytes)
{
	return view ? find_in_slots(view, physical, bytes) : 0;
}

/* Address in the VM's process of an object of the guest's kernel. */
static __always_inline __u64 locate(struct guest_view *view, __u64 address, __u32 bytes)
{
	return locate_physical(view, address - (address < GUEST_IMAGE ? view->direct_map : view->image), bytes);
}

static __always_inline long read_guest(void *value, __u32 bytes, struct guest_view *view, __u64 address)
{
	__u64 at = locate(view, address, bytes);

	return at ? bpf_probe_read_user(value, bytes, (void *)at) : -1;
}

/* Nodes of a maple tree (include/linux/maple_tree.h): pivot n is the last address of slot n. */
#define NODE_BYTES 256
#define NODE_WORDS (NODE_BYTES / 8)
#define NODE_LEAF 1
#define NODE_RANGE 2
#define NODE_GAPS 3
#define RANGE_PIVOTS 15
#define GAP_PIVOTS 9
#define TREE_LEVELS 5

struct node {
	__u64 parent;
	__u64 word[NODE_WORDS - 1]; /* pivots, then slots */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct node);
} nodes SEC(".maps");

/* Of the slots of a node, the one for an address. */
__noinline __u64 slot_for(struct node *node, __u32 pivots, __u64 address)
{
	__u32 n;

	if (!node)
		return 0;
	for (n = 0; n < pivots && n < RANGE_PIVOTS; n++) {
		__u64 pivot = node->word[n];

		if (address <= pivot || (!pivot && n))
			break;
	}
	n += pivots;
	return n < NODE_WORDS - 1 ? node->word[n] : 0;
}

/* The vm_area_struct that holds an address; 0: none. */
static __noinline __u64 find_area(struct guest_view *view, __u64 mm, __u64 address)
{
	__u32 zero = 0;
	struct node *node = bpf_map_lookup_elem(&nodes, &zero);
	__u64 entry;
	__u32 kind;

	if (!view || !node || !view->tree || read_guest(&entry, sizeof(entry), view, mm + view->tree))
		return 0;
	for (int level = 0; level < TREE_LEVELS; level++) {
		kind = entry >> 3 & 0xf;
		if (kind < NODE_LEAF || NODE_GAPS < kind ||
		    read_guest(node, sizeof(*node), view, entry & ~(__u64)(NODE_BYTES - 1)))
			return 0;
		entry = slot_for(node, kind == NODE_GAPS ? GAP_PIVOTS : RANGE_PIVOTS, address);
		if (kind == NODE_LEAF)
			return entry;
	}
	return 0;
}

/* What is mapped where the task is. */
static __noinline void read_mapping(struct guest_code *code, struct guest_view *view, __u64 mm, __u64 ip)
{
	__u64 area, range[2], path[2];

	if (!code || !view)
		return;
	area = find_area(view, mm, ip);
	if (!area || read_guest(range, sizeof(range), view, area + view->area_start) || ip < range[0] || range[1] <= ip ||
	    read_guest(&code->offset, sizeof(code->offset), view, area + view->area_offset) ||
	    read_guest(&code->file, sizeof(code->file), view, area + view->area_file))
		return;
	if (code->file) {
		if (read_guest(path, sizeof(path), view, code->file + view->file_path) ||
		    read_guest(&code->inode, sizeof(code->inode), view, code->file + view->file_inode) ||
		    read_guest(&code->pages, sizeof(code->pages), view, code->file + view->file_pages))
			return;
		code->mount = path[0];
		code->dentry = path[1];
	}
	code->start = range[0];
	code->end = range[1];
}

/* Reports a task at a place. `task` is its address in the VM's process. False: there is no room, or it can't be read. */
static __noinline bool report_code(struct sample *s, struct guest_view *view, __u64 task)
{
	struct ring_space space;
	struct guest_code *code;
	__u64 mm;

	if (!s || !view || !ring_reserve(&space, code_rings, GUEST_CODE_SLOTS - 1))
		return false;
	code = bpf_map_lookup_elem(&guest_codes, &space.slot);
	if (!code || bpf_probe_read_user(&mm, sizeof(mm), (void *)(task + view->mm)) ||
	    bpf_probe_read_user(&code->stack, sizeof(code->stack), (void *)(task + view->stack)) ||
	    bpf_probe_read_user(&code->start_ns, sizeof(code->start_ns), (void *)(task + view->start_time)) ||
	    bpf_probe_read_user(code->comm, sizeof(code->comm), (void *)(task + view->comm)))
		return false;
	code->time_ns = s->time_ns;
	code->cr3 = mm ? s->guest_cr3 : 0;
	code->fs_base = s->guest_fs_base;
	code->vcpu = s->vcpu;
	code->pid = s->guest_pid;
	code->tid = s->guest_tid;
	code->start = 0;
	code->end = 0;
	code->file = 0;
	if (mm && s->cpl == 3)
		read_mapping(code, view, mm, s->guest_ip);
	ring_publish(&space);
	return true;
}

/* Reports a task in a page of code once. */
static __always_inline void note_code(struct sample *s, struct guest_view *view, __u64 task)
{
	__u64 page = s->cpl == 3 ? s->guest_ip >> 12 : 0;
	__u64 hash = (s->guest_cr3 ^ s->pid) * 0x9e3779b97f4a7c15ull;
	__u64 *seen;

	hash = (hash ^ (hash >> 29) ^ s->guest_tid) * 0xbf58476d1ce4e5b9ull;
	hash = (hash ^ (hash >> 32) ^ page) * 0x94d049bb133111ebull;
	seen = &codes_seen[hash >> 50 & (GUEST_CODES_SEEN - 1)];
	if (*seen != hash && report_code(s, view, task))
		*seen = hash;
}

/* On Intel, whose VMCS BPF can't read: page tables and FS base of the task, as it left the CPU last. */
static __always_inline __u8 read_memory_of_task(struct sample *s, struct guest_view *view, __u64 task)
{
	__u64 mm, pgd;

	/* A kernel thread has no page tables of its own. */
	if (bpf_probe_read_user(&mm, sizeof(mm), (void *)(task + view->mm)) || !mm ||
	    bpf_probe_read_user(&s->guest_fs_base, sizeof(s->guest_fs_base), (void *)(task + view->fs_base)) ||
	    read_guest(&pgd, sizeof(pgd), view, mm + view->pgd))
		return 0;
	s->guest_cr3 = pgd - (pgd < GUEST_IMAGE ? view->direct_map : view->image);
	return SAMPLE_CR3;
}

/* Fills in the task that runs, and where it lies in the VM's process. Returns the flags of what is known then. */
static __always_inline __u8 read_task(__u64 *task_at, struct sample *s, struct guest_view *view, __u32 vendor)
{
	__u8 flags = SAMPLE_TASK;
	__u64 pointer, task, ids, stack;

	if (bpf_probe_read_user(&pointer, sizeof(pointer), (void *)view->current))
		return 0;
	task = locate(view, pointer, view->task_bytes);
	if (!task || bpf_probe_read_user(&ids, sizeof(ids), (void *)(task + view->pid)))
		return 0;
	*task_at = task;
	s->guest_tid = ids;
	s->guest_pid = ids >> 32;
	/* Idle tasks have stacks of their own, and all the number 0. */
	if (!ids && !bpf_probe_read_user(&stack, sizeof(stack), (void *)(task + view->stack)))
		s->guest_stack = KERNEL_STACK(stack);
	if (is_vmx(vendor))
		flags |= read_memory_of_task(s, view, task);
	if (s->cpl != CPL_NESTED)
		note_code(s, view, task);
	return flags;
}

#endif
