/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the programs of bpf/quotas.bpf.c write and user space reads. The Rust twin is in crates/probes/src/quotas.rs; both
 * sides assert the size. */
#ifndef VMSCOPE_ABI_QUOTA_H
#define VMSCOPE_ABI_QUOTA_H

/* Groups that are watched at a time. */
#define QUOTA_GROUPS 512

/* In place of the time since when a queue is throttled. */
#define QUEUE_UNKNOWN 0 /* nothing has happened since the group is watched */
#define QUEUE_FREE 1	/* it is not throttled */

/* A queue was throttled. */
struct quota_event {
	__u64 from_ns; /* CLOCK_MONOTONIC; QUEUE_UNKNOWN: before the group was watched */
	__u64 to_ns;
	__u32 group; /* number given by user space */
	__u32 cpu;
};
_Static_assert(sizeof(struct quota_event) == 24, "no hidden padding");

#endif
