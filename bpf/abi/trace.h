/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What bpf/tracer.bpf.c writes, in the host or in a guest. The host reads a guest's rings from outside. The Rust twin is
 * crates/tracer/src/slots.rs; both sides assert the sizes.
 *
 * Each CPU has a ring of slots of 16 bytes. A record is one slot, or one and as many TRACE_MORE slots as its kind has.
 *
 *   tag:  63..56 lap    55..48 kind    47..0 time (first slot) or data (TRACE_MORE)
 *
 * The lap of a position is the low 8 bits of ~(position / slots): in the first round 0xff, unlike the 0 of a slot that
 * was never written. A slot is valid only if it has the lap of its position. A reader that finds another lap has caught
 * up with the writer, and tries again later.
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

#define TRACE_LAP_SHIFT 56
#define TRACE_KIND_SHIFT 48
#define TRACE_TIME_MASK 0xffffffffffffULL /* ns of CLOCK_MONOTONIC since the trace's base (config) */

/* Kinds. `hi:lo` are the payload's 32-bit halves; MORE: its TRACE_MORE slots' data (48 bits) and payload. */
#define TRACE_SWITCH_RUNNABLE 1 /* prev:next */
#define TRACE_SWITCH_SLEEP 2    /* prev:next; MORE: data 0, payload stack (s32, negative: none) */
#define TRACE_SWITCH_DISK 3     /* uninterruptible. prev:next; MORE: data in_iowait, payload stack */
#define TRACE_SWITCH_STOPPED 4  /* prev:next */
#define TRACE_SWITCH_DEAD 5     /* prev:next */
#define TRACE_WAKING 6          /* current:woken */
#define TRACE_WAKEUP 7          /* target CPU:woken */
#define TRACE_FORK 8            /* parent tid:child tid; MORE: data 1 when it never runs a program's code, payload child tgid */
#define TRACE_EXEC 9            /* 0:tid; MORE: data name[0..6], payload name[6..14]  (name[14] is lost: 14 bytes) */
#define TRACE_RENAME 10         /* 0:tid; MORE: as TRACE_EXEC */
#define TRACE_EXIT 11           /* 0:tid */
#define TRACE_SYSCALL_ENTER 12  /* number, 0xffff in a 32-bit program:tid */
#define TRACE_SYSCALL_EXIT 13   /* number, bit 31 set when it failed:tid */
#define TRACE_IRQ_ENTER 14      /* irq */
#define TRACE_IRQ_EXIT 15       /* irq */
#define TRACE_SOFTIRQ_ENTER 16  /* vector */
#define TRACE_SOFTIRQ_EXIT 17   /* vector */
#define TRACE_VECTOR_ENTER 18   /* TRACE_VECTOR_* */
#define TRACE_VECTOR_EXIT 19    /* TRACE_VECTOR_* */
#define TRACE_FAULT_USER 20     /* address */
#define TRACE_FAULT_KERNEL 21   /* address */
#define TRACE_FAULT_END 22      /* 1 when major, else 0 */
#define TRACE_BLOCK_INSERT 23   /* request; MORE: data sector, payload dev:tid; MORE: data op, payload bytes */
#define TRACE_BLOCK_ISSUE 24    /* as TRACE_BLOCK_INSERT */
#define TRACE_BLOCK_REQUEUE 25  /* request */
#define TRACE_BLOCK_COMPLETE 26 /* request; MORE: data 0, payload bytes. An empty write that asks for a flush has no begin. */
#define TRACE_LOCK_BEGIN 27     /* lock; MORE: data flags (LCB_F_*), payload stack:owner tid (0: unknown); MORE: data 0, payload tid */
#define TRACE_LOCK_END 28       /* lock; MORE: data 0, payload tid */
#define TRACE_BLOCK_MERGE 29    /* request, which is none from now on: another one does its work, too */
#define TRACE_KINDS 30
#define TRACE_MORE 255

#define TRACE_VECTOR_LOCAL_TIMER 0
#define TRACE_VECTOR_RESCHEDULE 1
#define TRACE_VECTOR_CALL_FUNCTION 2
#define TRACE_VECTOR_CALL_FUNCTION_SINGLE 3
#define TRACE_VECTOR_IRQ_WORK 4
#define TRACE_VECTOR_OTHER 5

#define TRACE_OP_READ 0
#define TRACE_OP_WRITE 1
#define TRACE_OP_FLUSH 2
#define TRACE_OP_DISCARD 3
#define TRACE_OP_OTHER 4

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
	__u64 lost[TRACE_KINDS + 18]; /* records, by kind */
};
_Static_assert(sizeof(struct trace_ring) == 512, "a power of two, and whole cache lines");

#endif
