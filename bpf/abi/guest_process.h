/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the guest's process log writes and user space reads. The Rust twin is in
 * crates/guest/src/inside/program.rs; both sides assert the size. */
#ifndef VMSCOPE_ABI_GUEST_PROCESS_H
#define VMSCOPE_ABI_GUEST_PROCESS_H

#define GUEST_PROCESS_FORK 1 /* pid, tid: the new one; parent; name; pgd; fs_base */
#define GUEST_PROCESS_EXEC 2 /* pid, tid; name; pgd: the new program's */
#define GUEST_PROCESS_EXIT 3 /* pid, tid; fs_base */
#define GUEST_PROCESS_KERNEL_EXIT 4 /* of a kernel thread: pid, tid; name; pgd; fs_base */

struct guest_process_event {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u64 pgd;     /* kernel virtual address of the page tables; of a kernel thread: of its stack */
	__u64 fs_base; /* of a kernel thread: CLOCK_MONOTONIC when it was made */
	__u32 kind; /* GUEST_PROCESS_* */
	__u32 pid;
	__u32 tid;
	__u32 parent;
	char name[16];
};
_Static_assert(sizeof(struct guest_process_event) == 56, "no hidden padding");

#endif
