/* SPDX-License-Identifier: GPL-2.0 */
/* Copies a guest's registers, the top of its kernel stack and that of its user stack, while its vCPU stands still. The guest's
 * own page tables, in the VM's memory, say where a page is.
 *
 * The guest chooses tables and stack pointers. At worst its own rows are wrong: each address is looked up in the VM's memory
 * slots, and what is not there ends the copy. */
#ifndef VMSCOPE_GUEST_STACK_BPF_H
#define VMSCOPE_GUEST_STACK_BPF_H

#include "guest_task.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* user space: CPUs * CHUNK_SLOTS */
	__type(key, __u32);
	__type(value, struct stack_chunk);
} stack_chunks SEC(".maps");

struct ring chunk_rings[MAX_CPUS] SEC(".bss.chunks");

/* Written by user space. */
__u8 stack_depths[STACK_DEPTHS] SEC(".bss.depths");

struct interpreter interpreters[INTERPRETERS] SEC(".bss.interp");

/* Frames of Python that fill a chunk; threads that are looked through for the one that runs. */
#define PYTHON_DEPTH (CHUNK_BYTES / 8)
#define THREAD_STATES 64

/* Page-table entries (Intel SDM vol. 3, 4.5). */
#define ENTRY_PRESENT 0x1
#define ENTRY_IS_PAGE 0x80 /* of 2 MiB or 1 GiB */
#define ENTRY_ADDRESS 0x000ffffffffff000ull
#define GUEST_PAGE_SHIFT 12
#define GUEST_PAGE_BYTES 4096
#define LEVEL_BITS 9
#define MOST_LEVELS 5

/* Stacks of x86-64 kernels (THREAD_SIZE). The registers at a kernel's entry from user mode lie at the end. */
#define GUEST_STACK_BYTES 16384

/* The page that a page-table entry maps, in the VM's process. */
static __always_inline __u64 page_of(struct guest_view *view, __u64 entry, __u64 shift, __u64 address)
{
	__u64 within = (1ull << (shift & 63)) - 1;
	__u64 physical = (entry & ENTRY_ADDRESS & ~within) | (address & within);

	return find_in_slots(view, physical & ~(__u64)(GUEST_PAGE_BYTES - 1), GUEST_PAGE_BYTES);
}

/* Address in the VM's process of the page that holds a guest-virtual address; 0: it is not present. */
__noinline __u64 find_page(struct guest_view *view, __u64 root, __u64 address)
{
	__u64 page = address & ~(__u64)(GUEST_PAGE_BYTES - 1);
	__u64 table = root & ENTRY_ADDRESS;
	__u64 shift, at, entry;
	struct guest_page *known;

	if (!view)
		return 0;
	known = &view->page[(page >> GUEST_PAGE_SHIFT ^ table >> GUEST_PAGE_SHIFT) & (GUEST_PAGES - 1)];
	if (known->address == page && known->root == table && table &&
	    !bpf_probe_read_user(&entry, sizeof(entry), (void *)known->entry) && (entry & ENTRY_PRESENT) &&
	    (known->shift == GUEST_PAGE_SHIFT || (entry & ENTRY_IS_PAGE)))
		return page_of(view, entry, known->shift, page);
	if (view->paging_levels != 4 && view->paging_levels != MOST_LEVELS)
		return 0;
	shift = GUEST_PAGE_SHIFT + LEVEL_BITS * (view->paging_levels - 1);
	for (int level = 0; level < MOST_LEVELS; level++) {
		at = find_in_slots(view, table + (page >> (shift & 63) & ((1 << LEVEL_BITS) - 1)) * sizeof(entry),
				   sizeof(entry));
		if (!at || bpf_probe_read_user(&entry, sizeof(entry), (void *)at) || !(entry & ENTRY_PRESENT))
			return 0;
		if (shift <= GUEST_PAGE_SHIFT ||
		    ((entry & ENTRY_IS_PAGE) && shift <= GUEST_PAGE_SHIFT + 2 * LEVEL_BITS)) {
			known->address = page;
			known->root = root & ENTRY_ADDRESS;
			known->entry = at;
			known->shift = shift;
			return page_of(view, entry, shift, page);
		}
		table = entry & ENTRY_ADDRESS;
		shift -= LEVEL_BITS;
	}
	return 0;
}

/* Copies a stack from an address on, up to `end`, of `most` chunks at most. Returns how many were copied. */
__noinline __u32 copy_stack(struct guest_view *view, __u64 root, __u64 from, __u64 end, __u32 most)
{
	struct stack_chunk *chunk;
	struct ring_space space;
	__u64 start, page;
	__u32 n;

	if (!view)
		return 0;
	for (n = 0; n < USER_CHUNKS && n < most && from < end; n++) {
		start = from;
		if (GUEST_PAGE_BYTES - CHUNK_BYTES < (from & (GUEST_PAGE_BYTES - 1)))
			start = (from | (GUEST_PAGE_BYTES - 1)) + 1 - CHUNK_BYTES;
		page = find_page(view, root, start);
		if (!page || !ring_reserve(&space, chunk_rings, CHUNK_SLOTS - 1))
			break;
		chunk = bpf_map_lookup_elem(&stack_chunks, &space.slot);
		if (!chunk || bpf_probe_read_user(chunk->bytes, sizeof(chunk->bytes),
						  (void *)(page + (start & (GUEST_PAGE_BYTES - 1)))))
			break;
		chunk->address = start;
		ring_publish(&space);
		from = start + CHUNK_BYTES;
	}
	return n;
}

/* Copies the kernel's stack of a task, which ends at `end`. An interrupt's handler has a stack of its own, whose last word is
 * the stack pointer that was interrupted. Returns how many chunks were copied. */
__noinline __u32 copy_kernel_stack(struct guest_view *view, __u64 root, __u64 sp, __u64 end)
{
	__u64 last, page;
	__u32 n = 0;

	if (!view)
		return 0;
	if (GUEST_STACK_BYTES <= end - sp) {
		if (!view->irq_stack || bpf_probe_read_user(&last, sizeof(last), (void *)view->irq_stack) ||
		    GUEST_STACK_BYTES <= last - sp)
			return copy_stack(view, root, sp, (sp | (GUEST_PAGE_BYTES - 1)) + 1, 1);
		n = copy_stack(view, root, sp, last + sizeof(sp), KERNEL_CHUNKS);
		page = find_page(view, root, last);
		if (!page || (last & (sizeof(sp) - 1)) ||
		    bpf_probe_read_user(&sp, sizeof(sp), (void *)(page + (last & (GUEST_PAGE_BYTES - 1)))) ||
		    GUEST_STACK_BYTES <= end - sp)
			return n;
	}
	return n + copy_stack(view, root, sp, end, KERNEL_CHUNKS);
}

/* A word of the guest's at a virtual address; 0: it is not there, or lies in two pages. */
__noinline __u64 read_word(struct guest_view *view, __u64 root, __u64 address)
{
	__u64 page, word = 0;

	if (!view || (address & (sizeof(word) - 1)))
		return 0;
	page = find_page(view, root, address);
	if (!page || bpf_probe_read_user(&word, sizeof(word), (void *)(page + (address & (GUEST_PAGE_BYTES - 1)))))
		return 0;
	return word;
}

/* Words of a frame of Python that are read. */
#define FRAME_WORDS 9
#define FRAME_BYTES (FRAME_WORDS * 8)

/* Reads a frame of Python, which may lie in two pages. */
__noinline int read_python_frame(struct node *words, struct guest_view *view, __u64 root, __u64 address)
{
	__u64 within = address & (GUEST_PAGE_BYTES - 1);
	__u64 page;
	__u32 first;

	if (!words || !view || !address || (address & 7))
		return -1;
	page = find_page(view, root, address);
	if (!page)
		return -1;
	if (within <= GUEST_PAGE_BYTES - FRAME_BYTES)
		return bpf_probe_read_user(words->word, FRAME_BYTES, (void *)(page + within));
	first = (GUEST_PAGE_BYTES - within) & 127;
	if (bpf_probe_read_user(words->word, first, (void *)(page + within)))
		return -1;
	page = find_page(view, root, address + FRAME_BYTES);
	/* More than the rest: the verifier wants a constant. */
	return page ? bpf_probe_read_user((char *)words->word + first, FRAME_BYTES, (void *)page) : -1;
}

/* The thread state of the thread with an FS base; 0: the interpreter has none. */
__noinline __u64 find_thread_state(struct interpreter *python, struct guest_view *view, __u64 root, __u64 fs_base)
{
	__u64 thread;

	if (!python)
		return 0;
	thread = read_word(view, root, read_word(view, root, python->runtime) + python->threads);
	for (int n = 0; n < THREAD_STATES; n++) {
		if (!thread || read_word(view, root, thread + python->thread) == fs_base)
			return thread;
		thread = read_word(view, root, thread + python->next);
	}
	return 0;
}

/* Copies the Python frames of the thread. If the process has executed another program meanwhile, the thread has no thread
 * state. Returns how many chunks were filled. */
__noinline __u32 copy_python(struct sample *s, struct guest_view *view)
{
	struct interpreter *python;
	struct stack_chunk *chunk;
	struct ring_space space;
	struct node *words;
	__u64 root, at, *frames;
	__u32 zero = 0;
	__u32 n = 0;

	if (!s || !view)
		return 0;
	root = s->guest_cr3;
	python = &interpreters[INTERPRETER_OF(root & ENTRY_ADDRESS, s->pid) & (INTERPRETERS - 1)];
	if (!python->root || python->root != (root & ENTRY_ADDRESS & ~(__u64)GUEST_PAGE_BYTES) || python->vmm != s->pid ||
	    !s->guest_fs_base)
		return 0;
	at = find_thread_state(python, view, root, s->guest_fs_base);
	words = bpf_map_lookup_elem(&nodes, &zero);
	if (!at || !words)
		return 0;
	at = read_word(view, root, at + python->frame);
	if (at && ~python->inner)
		at = read_word(view, root, at + python->inner);
	if (!at || !ring_reserve(&space, chunk_rings, CHUNK_SLOTS - 1))
		return 0;
	chunk = bpf_map_lookup_elem(&stack_chunks, &space.slot);
	if (!chunk)
		return 0;
	frames = (__u64 *)chunk->bytes;
	for (; n < PYTHON_DEPTH && !read_python_frame(words, view, root, at); n++) {
		frames[n] = words->word[python->code & 7] |
			    words->word[FRAME_WORDS - 1] >> (python->mark & 63) << FRAME_MARK_SHIFT;
		at = words->word[python->caller & 7];
	}
	if (n < PYTHON_DEPTH)
		frames[n] = at ? FRAMES_UNREADABLE : FRAMES_END;
	chunk->address = PYTHON_FRAMES;
	ring_publish(&space);
	return 1;
}

/* Copies what the guest's stack is unwound from. `task` is the task's address in the VM's process. */
__noinline int copy_stacks(struct stack *stack, struct sample *s, struct guest_view *view, __u64 task)
{
	__u64 kernel, page, from, sp;
	__u32 depth;

	if (!stack || !s || !view)
		return 0;
	sp = stack->registers[VCPU_REGS_RSP];
	if (s->cpl == 3) {
		/* On Intel the frame pointer is all there is; where code keeps one, the stack lies above it. */
		from = stack->guest & GUEST_RSP ? sp : stack->registers[VCPU_REGS_RBP];
	} else if (s->cpl == 0) {
		if (bpf_probe_read_user(&kernel, sizeof(kernel), (void *)(task + view->stack)))
			return 0;
		if (stack->guest & GUEST_RSP)
			stack->chunks = copy_kernel_stack(view, s->guest_cr3, sp, kernel + GUEST_STACK_BYTES);
		from = kernel + GUEST_STACK_BYTES - sizeof(stack->entry);
		page = find_page(view, s->guest_cr3, from);
		if (!page || bpf_probe_read_user(stack->entry, sizeof(stack->entry),
						 (void *)(page + (from & (GUEST_PAGE_BYTES - 1)))))
			return 0;
		stack->guest |= GUEST_ENTRY;
		/* Of a kernel thread there is no user stack: nothing is mapped at what lies there. */
		from = stack->entry[19];
	} else {
		return 0;
	}
	if (!from || (__s64)from < 0)
		return 0;
	depth = stack_depths[STACK_DEPTH_OF(s->guest_cr3 & ENTRY_ADDRESS, s->guest_tid) & (STACK_DEPTHS - 1)];
	if (USER_CHUNKS - 1 < depth)
		depth = USER_CHUNKS - 1;
	stack->chunks += copy_stack(view, s->guest_cr3, from, from + CHUNK_BYTES * (1 + depth), USER_CHUNKS);
	stack->chunks += copy_python(s, view);
	return 0;
}

#endif
