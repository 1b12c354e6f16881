/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the sampler writes and user space reads. The Rust twins are in crates/probes/src/abi.rs and
 * crates/recording; both sides assert the sizes. */
#ifndef VMSCOPE_ABI_SAMPLE_H
#define VMSCOPE_ABI_SAMPLE_H

#define VCPU_NONE 0xffffffffu    /* not a vCPU thread */
#define VCPU_UNKNOWN 0xfffffffeu /* a guest was interrupted, its vCPU is not in the table yet */
#define STACK_NONE 0xffffffffu

#define SAMPLE_GUEST 0x01     /* the guest was interrupted */
#define SAMPLE_HOST_USER 0x02 /* host user mode was interrupted */
#define SAMPLE_CR3 0x04       /* guest_cr3 is valid */
#define SAMPLE_WAITS 0x08     /* halted_ns, polled_ns and runnable_ns are valid */
#define SAMPLE_KICKED 0x10    /* since the guest's sample before, the VMM took its vCPU out of KVM_RUN */

#define CPL_UNKNOWN 0xff

/* The number of a guest's kernel stack, the same for all addresses in it: stacks of x86-64 kernels are 16 KiB, and aligned.
 * 32 bits tell stacks of 64 TiB apart, more than the vmalloc area of a 4-level kernel. */
#define KERNEL_STACK(address) ((__u32)((address) >> 14))

/* `config.trigger`: an NMI finds KVM at any place, the timer's interrupt only where KVM lets it in. */
#define TRIGGER_INTERRUPT 0
#define TRIGGER_NMI 1

#define VENDOR_AMD 1
#define VENDOR_INTEL 2

#define STACK_DEPTH 64

/* Why a vCPU's thread is not on a CPU. */
#define OFFCPU_ON_CPU 0
#define OFFCPU_RUNNABLE 1
#define OFFCPU_THROTTLED 2
#define OFFCPU_HALTED 3
#define OFFCPU_ASLEEP 4
#define OFFCPU_PAUSED 5

struct sample {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u64 host_ip;
	__u64 guest_ip;
	__u64 guest_cr3;
	__u64 guest_fs_base;
	__u64 halted_ns;   /* kvm_vcpu.stat.generic.halt_wait_ns */
	__u64 polled_ns;   /* .halt_poll_success_ns + .halt_poll_fail_ns */
	__u64 runnable_ns; /* task_struct.sched_info.run_delay */
	__u32 pid;
	__u32 tid;
	__u32 vcpu; /* row given by user space, or VCPU_* */
	__u32 exit_reason;
	__u32 exit_info;
	__u32 stack; /* STACK_NONE from the kernel; user space fills in the interned stack's row */
	__u8 flags; /* SAMPLE_* */
	__u8 cpl;
	__u16 asid;
	__u32 guest_stack; /* KERNEL_STACK(guest's RSP) when cpl is 0; 0: unknown */
};
_Static_assert(sizeof(struct sample) == 96, "struct sample is part of the recording format");

/* The host call stack of the sample in the slot of the same number. */
struct stack {
	__s32 kernel_bytes; /* <= 0: none */
	__s32 user_bytes;
	__u64 kernel[STACK_DEPTH];
	__u64 user[STACK_DEPTH];
};
_Static_assert(sizeof(struct stack) == 8 + 2 * 8 * STACK_DEPTH, "no hidden padding");

/* More than any x86 host has. */
#define MAX_CPUS 2048

/* One per CPU. The sampler owns `head` and the counters, user space owns `tail`; each on its own cache
 * line. Slot number = head modulo the number of slots. */
struct ring {
	__u64 head;
	__u64 dropped;     /* ring full */
	__u64 read_errors; /* a vCPU's registers could not be read */
	__u64 unknown;     /* samples with VCPU_UNKNOWN */
	__u64 pad[4];
	__u64 tail;
	__u64 tail_pad[7];
};
_Static_assert(sizeof(struct ring) == 128, "two cache lines");

/* The table of vCPU threads: buckets picked by a multiplicative hash of the thread id. A hash map's lookup
 * costs several times as much, and threads that are no vCPUs would pay for it too. */
#define VCPU_BUCKET_BITS 12
#define VCPU_BUCKETS (1u << VCPU_BUCKET_BITS)
#define VCPU_BUCKET_SLOTS 8
#define VCPU_HASH 0x9e3779b1u /* bucket = (tid * VCPU_HASH) >> (32 - VCPU_BUCKET_BITS) */

/* User space fills in the rest before the thread id, and takes the id away first. */
struct vcpu_ref {
	__u32 tid; /* 0: free */
	__u32 row;
	__u64 vcpu; /* struct kvm_vcpu *, never dereferenced but through probe reads; or VCPU_PROTECTED, VCPU_WAITS */
	__u64 vmcb; /* AMD: struct vmcb * of the vCPU itself, not of a guest of its guest; only compared */
	__u32 kicked; /* its samples have SAMPLE_KICKED, up to one of the guest; written by its own thread */
	__u32 view;   /* its row in `guest_views`; 0: none */
};

#define VCPU_PROTECTED 1ull /* registers are encrypted, don't read them */
#define VCPU_WAITS 2ull     /* what it waits for is counted, as the finder found */
#define VCPU_FLAGS 3ull

struct vcpu_bucket {
	struct vcpu_ref ref[VCPU_BUCKET_SLOTS];
};
_Static_assert(sizeof(struct vcpu_bucket) == 32 * VCPU_BUCKET_SLOTS, "no hidden padding");

/* Where a guest's own kernel says who runs on a vCPU: `current_task` of its CPU. Addresses that it leads to are the guest's
 * to choose, so each is looked up in the VM's memory slots. */
#define GUEST_VIEWS 4096
#define GUEST_SLOTS 4

struct guest_slot {
	__u64 start; /* guest-physical */
	__u64 bytes;
	__u64 shift; /* what to add for the address in the VM's process; wraps */
};

struct guest_view {
	__u64 current;    /* address of the pointer in the VM's process; 0: unknown */
	__u64 direct_map; /* guest-virtual address of guest-physical 0 */
	__u64 image;      /* the same, for addresses in the kernel's image; wraps */
	__u32 mm;         /* offsets in task_struct: mm, stack, thread.fsbase */
	__u32 stack;
	__u32 fs_base;
	__u32 pgd; /* in mm_struct */
	struct guest_slot slot[GUEST_SLOTS];
};
_Static_assert(sizeof(struct guest_view) == 3 * 8 + 4 * 4 + GUEST_SLOTS * 24, "no hidden padding");

/* What the finder reports of each vCPU file it meets. */
struct vcpu_found {
	__u64 vcpu; /* struct kvm_vcpu * */
	__u64 kvm;  /* struct kvm *: the same for all vCPUs of a VM */
	__u64 vmcb; /* AMD: struct vmcb * */
	__u64 time_ns;
	__u64 halted_ns; /* the three as in struct sample */
	__u64 polled_ns;
	__u64 runnable_ns;
	__u32 pid; /* the VMM's process */
	__u32 tid; /* the thread that last ran it; 0: none yet, or it has ended */
	__u32 number;
	__u32 cpu; /* where the thread is, or was last */
	__u32 exit_reason;
	__u8 protected_state; /* 1: registers are encrypted */
	__u8 waits;           /* 1: the three are valid */
	__u8 off_cpu;         /* OFFCPU_* */
	__u8 pad;
};
_Static_assert(sizeof(struct vcpu_found) == 80, "no hidden padding");

#endif
