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
#define SAMPLE_TASK 0x20   /* guest_pid and guest_tid are valid */

#define CPL_UNKNOWN 0xff
#define CPL_NESTED 0xfe /* the guest runs a guest of its own, whose registers say nothing of it: they are 0 */

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
	__u32 guest_pid;   /* process and thread that the guest's kernel says run; 0: an idle task */
	__u32 guest_tid;
};
_Static_assert(sizeof(struct sample) == 104, "no hidden padding");

#define KVM_REGISTERS 16 /* of kvm_vcpu_arch.regs: RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 to R15 */
#define ENTRY_REGISTERS 21 /* of struct pt_regs */

#define GUEST_REGISTERS 1  /* `registers` is valid, RSP apart */
#define GUEST_RSP 2	   /* RSP, too */
#define GUEST_ENTRY 4	   /* `entry` is valid */

/* The call stacks of the sample in the slot of the same number: the host's, and what the guest's is unwound from. */
struct stack {
	__s32 kernel_bytes; /* <= 0: none */
	__s32 user_bytes;
	__u64 kernel[STACK_DEPTH];
	__u64 user[STACK_DEPTH];
	__u32 guest; /* GUEST_* */
	__u32 chunks; /* the next ones in the CPU's ring of chunks are this sample's */
	__u64 registers[KVM_REGISTERS];
	__u64 entry[ENTRY_REGISTERS]; /* as the guest's kernel saved them at its entry */
};
_Static_assert(sizeof(struct stack) == 8 + 8 * (2 * STACK_DEPTH + 1 + KVM_REGISTERS + ENTRY_REGISTERS),
	       "no hidden padding");

/* A piece of a guest's stack. It lies in one page: neighbours may overlap. */
#define CHUNK_BYTES 1024
#define CHUNK_SLOTS 2048 /* per CPU */
#define KERNEL_CHUNKS 5 /* of a task's kernel stack at most, and of one for interrupts */
#define USER_CHUNKS 9
#define PYTHON_CHUNKS 1

struct stack_chunk {
	__u64 address;
	__u8 bytes[CHUNK_BYTES];
};

/* A chunk at this address, which is none of x86-64, has the code objects of Python's frames: a word each, the innermost
 * first. The highest byte tells whether C code called it. Behind them, if there is room, is one of the others. */
#define PYTHON_FRAMES (1ull << 63)
#define FRAME_MARK_SHIFT 56
#define FRAMES_END 0
#define FRAMES_UNREADABLE 1

/* A guest's process that runs CPython, and where that keeps its frames; filled in by user space. Others may have its element
 * of the array. */
#define INTERPRETERS 1024
#define INTERPRETER_OF(cr3, vmm) ((((__u32)((cr3) >> 13) * 0x9e3779b1u) ^ ((vmm) * 0x85ebca6bu)) >> 22)

struct interpreter {
	__u64 root;    /* of its page tables, without bit 12; 0: free */
	__u64 runtime; /* guest-virtual address of the pointer to the main interpreter */
	__u32 vmm;     /* the VM's process */
	__u32 threads; /* offsets: of the pointer to the first thread state in an interpreter; in a thread state: */
	__u32 next;    /* of the next thread state, */
	__u32 thread;  /* of pthread_self(), which is the FS base, */
	__u32 frame;   /* of its innermost frame, or of what has the pointer to that at ... */
	__u32 inner;   /* ... this offset; else ~0 */
	__u8 code;     /* words of a frame: code object, caller */
	__u8 caller;
	__u8 mark;     /* bits before the byte of the last word that tells whether C code called it */
	__u8 pad[5];
};
_Static_assert(sizeof(struct interpreter) == 48, "no hidden padding");

/* How many more chunks than one are copied of a user stack, by a hash of page tables and thread: user space has seen it cut
 * short. Threads may share an element. PTI sets bit 12 of CR3 in user mode. */
#define STACK_DEPTHS 4096
#define STACK_DEPTH_OF(cr3, tid) ((((__u32)((cr3) >> 13) * 0x9e3779b1u) ^ ((tid) * 0x85ebca6bu)) >> 20)

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

/* Where a page's last page-table entry was found. It is read again at each use. */
#define GUEST_PAGES 16

struct guest_page {
	__u64 address; /* guest-virtual, of the page */
	__u64 root;    /* page tables; 0: free */
	__u64 entry;   /* in the VM's process */
	__u64 shift;   /* bits of an offset in the page that the entry maps */
};

struct guest_view {
	__u64 current;    /* address of the pointer in the VM's process; 0: unknown */
	__u64 direct_map; /* guest-virtual address of guest-physical 0 */
	__u64 image;      /* the same, for addresses in the kernel's image; wraps */
	__u64 irq_stack;  /* as `current`, of the pointer to the last word of the stack for interrupts; 0: unknown */
	__u32 mm;         /* offsets in task_struct: mm, stack, thread.fsbase, */
	__u32 stack;
	__u32 fs_base;
	__u32 pid; /* pid, with tgid behind it, */
	__u32 comm;
	__u32 start_time;
	__u32 pgd;  /* in mm_struct: pgd, */
	__u32 tree; /* mm_mt.ma_root; 0: this kernel keeps mappings in another way */
	__u32 area_start; /* in vm_area_struct: vm_start, with vm_end behind it, vm_pgoff, vm_file */
	__u32 area_offset;
	__u32 area_file;
	__u32 file_path; /* in file: f_path, which is mount and dentry, f_inode, f_mapping */
	__u32 file_inode;
	__u32 file_pages;
	__u32 task_bytes; /* up to the last field of task_struct that is read */
	__u32 paging_levels; /* 4 or 5; else pages are not looked up */
	struct guest_slot slot[GUEST_SLOTS];
	struct guest_page page[GUEST_PAGES];
};
_Static_assert(sizeof(struct guest_view) == 4 * 8 + 16 * 4 + GUEST_SLOTS * 24 + GUEST_PAGES * 32, "no hidden padding");

/* A task of a guest that a sample hit in a page of code where none hit it before, and what is mapped there. It may hit again
 * where others took its place in the table of those. */
#define GUEST_CODES_SEEN (1u << 14)
#define GUEST_CODE_SLOTS 1024 /* per CPU */

struct guest_code {
	__u64 time_ns;
	__u64 cr3; /* 0: a kernel thread or an idle task */
	__u64 fs_base;
	__u64 stack; /* of its kernel stack, the first address */
	__u64 start_ns; /* guest's CLOCK_MONOTONIC when it was made */
	__u64 start; /* the executable mapping that user code lies in; 0: kernel code, or unknown */
	__u64 end;
	__u64 offset; /* in its file, in pages */
	__u64 file;   /* addresses of the guest's kernel: struct file, 0: none; mount, dentry, inode, page cache of the file */
	__u64 mount;
	__u64 dentry;
	__u64 inode;
	__u64 pages;
	__u32 vcpu; /* as in struct sample */
	__u32 pid;
	__u32 tid;
	__u32 pad;
	char comm[16];
};
_Static_assert(sizeof(struct guest_code) == 13 * 8 + 4 * 4 + 16, "no hidden padding");

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
