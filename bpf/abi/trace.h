/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What bpf/tracer.bpf.c writes, in the host or in a guest. The host reads a guest's rings from outside. The Rust twin is
 * crates/tracer/src/slots.rs; both sides assert the sizes.
 *
 * Each CPU has a ring of slots of 16 bytes. A record is one slot, or one and as many TRACE_MORE slots as its kind has.
 *
 *   tag:  63..56 generation    55..48 kind    47..0 time (first slot) or data (TRACE_MORE)
 *
 * The generation of a position is the low 8 bits of ~(position / slots): in the first round 0xff, unlike the 0 of a slot
 * that was never written. A slot is valid only if it has the generation of its position. A reader that finds another has
 * caught up with the writer, and tries again later.
 *
 * A program reserves positions first, in order, and then writes its slots. In between an interrupt may reserve and write
 * a record of its own; it finishes before the program goes on. A program on a function's exit may also be preempted, in
 * kernels that preempt kernel code. Then its slots stay unwritten until its task runs again.
 * The payload is written first, the tag last. */
#ifndef VMSCOPE_ABI_TRACE_H
#define VMSCOPE_ABI_TRACE_H

struct trace_slot {
	__u64 tag;
	__u64 payload;
};
_Static_assert(sizeof(struct trace_slot) == 16, "no hidden padding");

#define TRACE_GENERATION_SHIFT 56
#define TRACE_KIND_SHIFT 48
#define TRACE_TIME_MASK 0xffffffffffffULL /* ns of CLOCK_MONOTONIC since the trace's base (config) */

/* The kinds, TRACE_SWITCH_RUNNABLE and so on, and TRACE_KINDS, one more than the largest. The build writes this header from the
 * table of events in crates/model/src/trace/events.rs, which also says what payloads and data of a kind are. */
#include "trace_kinds.h"
#define TRACE_MORE 255

#define TRACE_VECTOR_LOCAL_TIMER 0
#define TRACE_VECTOR_RESCHEDULE 1
#define TRACE_VECTOR_CALL_FUNCTION 2
#define TRACE_VECTOR_CALL_FUNCTION_SINGLE 3
#define TRACE_VECTOR_IRQ_WORK 4
#define TRACE_VECTOR_OTHER 5

#define TRACE_LOCK_FUTEX (1 << 16) /* flags of TRACE_LOCK_BEGIN; the others are LCB_F_* of include/trace/events/lock.h */

#define TRACE_OP_READ 0
#define TRACE_OP_WRITE 1
#define TRACE_OP_FLUSH 2
#define TRACE_OP_DISCARD 3
#define TRACE_OP_OTHER 4

#define TRACE_CONTENT_FILE 0
#define TRACE_CONTENT_DISK 1
#define TRACE_CONTENT_METADATA 2
#define TRACE_CONTENT_MEMORY 3

/* TRACE_PAGE_ADDED: the file's number, and above it how many pages. */
#define TRACE_FILE_BITS 20
#define TRACE_MAX_PAGES 4095

/* One CPU's ring: counters of slots, which only grow. The writer goes no further than tail + room; what does not fit is
 * counted under its kind. A power of two in size: the kernel finds a CPU's ring by a shift. */
struct trace_ring {
	__u64 head;  /* reserved by the programs */
	__u64 mark;  /* of a guest's ring: by which its memory is known from outside */
	__u64 first; /* its first slot's index among all slots */
	__u64 room;  /* slots that may be written and not taken; 0 for a CPU without slots */
	__u64 pad0[4];
	__u64 tail; /* taken by the reader, which writes it: the host, by writing guest memory, for a guest's ring */
	__u64 pad1[7];
	__u64 lost[48]; /* records, by kind */
};
_Static_assert(TRACE_KINDS <= 48, "each kind has a counter");
_Static_assert(sizeof(struct trace_ring) == 512, "a power of two, and whole cache lines");

/* A program's stack, as frame pointers give it. Stored once for each process, and never changed. */
#define USER_STACK_DEPTH 32
struct user_stack {
	__u64 hash; /* of process and addresses; 0: a free row. Written first: the rest follows while the trace goes on */
	__u64 time; /* when it was first seen: ns since the trace's base */
	__u32 process;
	__u32 depth;
	__u64 addresses[USER_STACK_DEPTH]; /* innermost first */
};
_Static_assert(sizeof(struct user_stack) == 280, "no hidden padding");

/* A file that events name. Stored once, and never changed but for the name, which may come later. */
#define TRACE_PATH_BYTES 512
#define TRACE_NAME_BYTES 256
struct trace_file {
	__u64 hash; /* 0: a free row. Written first: the rest follows while the trace goes on */
	__u64 inode; /* 0 of a disk */
	__u32 device; /* of a disk: itself */
	__u32 generation;
	__u32 mode;
	__u32 links; /* when it was stored; 0: it was deleted */
	__u32 is_named;
	__u32 is_whole; /* the path goes up to the root of its file system */
	__u32 path_bytes;
	__u32 pad;
	char path[TRACE_PATH_BYTES]; /* its name, its folder's, and so on, each with a final 0 */
};
_Static_assert(sizeof(struct trace_file) == 560, "no hidden padding");

#endif
