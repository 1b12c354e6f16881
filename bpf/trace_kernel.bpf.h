/* SPDX-License-Identifier: GPL-2.0 */
/* Kernel types and constants that only the trace probes use. See kernel.bpf.h. */
#ifndef VMSCOPE_TRACE_KERNEL_BPF_H
#define VMSCOPE_TRACE_KERNEL_BPF_H

#include <stdbool.h>
#include "kernel.bpf.h"

/* include/linux/sched.h */
#define PF_IO_WORKER 0x00000010
#define PF_USER_WORKER 0x00004000 /* since Linux 6.4; before, the bit was unused or an inherited flag */
#define PF_KTHREAD 0x00200000
#define TASK_INTERRUPTIBLE 0x0001
#define TASK_UNINTERRUPTIBLE 0x0002
#define TASK_STOPPED 0x0004
#define TASK_TRACED 0x0008
#define TASK_PARKED 0x0040
#define TASK_NOLOAD 0x0400 /* with TASK_UNINTERRUPTIBLE: an idle kernel thread */
#define MAX_ERRNO 4095
/* include/linux/mm_types.h */
#define VM_FAULT_MAJOR 0x0004
#define VM_FAULT_RETRY 0x0400
#define FAULT_FLAG_TRIED 0x20 /* the first try waited for a disk */
/* include/trace/events/lock.h */
#define LCB_F_SPIN (1 << 0)
#define LCB_F_READ (1 << 1)
#define LCB_F_WRITE (1 << 2)
#define LCB_F_RT (1 << 3)
#define LCB_F_PERCPU (1 << 4)
#define LCB_F_MUTEX (1 << 5)
/* include/uapi/linux/futex.h, arch/x86/entry/syscalls/syscall_64.tbl */
#define SYSCALL_SENDFILE 40
#define SYSCALL_COPY_FILE_RANGE 326
#define SYSCALL_FUTEX 202
#define FUTEX_CMD_MASK 0x7f
#define FUTEX_WAIT 0
#define FUTEX_LOCK_PI 6
#define FUTEX_WAIT_BITSET 9
#define FUTEX_LOCK_PI2 13
#define FUTEX_TID_MASK 0x3fffffff
/* kernel/locking/: flags in the low bits of a lock's owner pointer */
#define OWNER_FLAGS 7UL
#define RWSEM_READER_OWNED 1UL
/* include/linux/blk_types.h */
#define REQ_OP_MASK 0xff
#define REQ_OP_READ 0
#define REQ_OP_WRITE 1
#define REQ_OP_FLUSH 2
#define REQ_OP_DISCARD 3
#define REQ_OP_SECURE_ERASE 5
#define REQ_OP_WRITE_ZEROES 9

struct pt_regs {
	unsigned long di; /* a system call's first argument */
	unsigned long si;
	unsigned long dx;
	unsigned long orig_ax; /* system call number; -1 after rt_sigreturn has restored another frame */
} KERNEL_TYPE;

struct trace_event {
	int type;
} KERNEL_TYPE;

struct trace_event_call {
	struct trace_event event;
} KERNEL_TYPE;

/* Records of trace events, as perf and ftrace store them. */
struct trace_event_raw_sys_enter {
	long id;
	unsigned long args[6];
} KERNEL_TYPE;

struct trace_event_raw_sys_exit {
	long id;
	long ret;
} KERNEL_TYPE;

struct block_device {
	__u32 bd_dev;
} KERNEL_TYPE;

struct gendisk {
	struct block_device *part0;
} KERNEL_TYPE;

struct request_queue {
	struct gendisk *disk;
} KERNEL_TYPE;

typedef struct {
	__s64 counter;
} KERNEL_TYPE atomic64_t;
typedef atomic64_t atomic_long_t;

/* Files: include/linux/fs.h, include/linux/mm_types.h */

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
} KERNEL_TYPE;

struct files_struct {
	struct fdtable *fdt;
} KERNEL_TYPE;

struct task_struct___files {
	struct files_struct *files;
} KERNEL_TYPE;

struct inode;

struct rw_semaphore {
	atomic_long_t owner;
} KERNEL_TYPE;

struct address_space {
	struct inode *host;
	struct rw_semaphore invalidate_lock;
} KERNEL_TYPE;

struct super_block___files {
	__u32 s_dev;
} KERNEL_TYPE;

struct inode___files {
	__u16 i_mode;
	struct super_block___files *i_sb;
	unsigned long i_ino;
	__u32 i_rdev;
	__u32 i_nlink;
	struct rw_semaphore i_rwsem;
	struct hlist_head i_dentry;
	struct address_space i_data;
	__u32 i_generation;
} KERNEL_TYPE;

struct dentry___files {
	struct dentry___files *d_parent;
	struct qstr d_name;
	struct hlist_node d_u; /* a union, of which this is one */
} KERNEL_TYPE;

struct sock_common {
	unsigned short skc_family;
} KERNEL_TYPE;

struct sock {
	struct sock_common __sk_common;
} KERNEL_TYPE;

struct socket {
	struct sock *sk;
} KERNEL_TYPE;

enum pageflags { PG_head = 6 };

struct page {
	unsigned long compound_head; /* of a tail: the head's address and 1 */
	struct address_space *mapping;
} KERNEL_TYPE;

struct folio {
	struct address_space *mapping;
	unsigned int _folio_nr_pages;
} KERNEL_TYPE;

/* Since Linux 6.15. */
struct folio___6_15 {
	unsigned int _nr_pages;
} KERNEL_TYPE;

struct bio_vec {
	struct page *bv_page;
} KERNEL_TYPE;

struct bio {
	struct bio_vec *bi_io_vec;
} KERNEL_TYPE;

struct request {
	struct bio *bio;
	struct request_queue *q;
	unsigned int cmd_flags;
	unsigned int __data_len;
	__u64 __sector;
} KERNEL_TYPE;

struct mutex {
	atomic_long_t owner;
} KERNEL_TYPE;

#endif
