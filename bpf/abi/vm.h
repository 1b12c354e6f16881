/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What bpf/vms.bpf.c reports of VMs. The Rust twins are in crates/probes/src/vms.rs; both sides assert the sizes. */
#ifndef VMSCOPE_ABI_VM_H
#define VMSCOPE_ABI_VM_H

/* A memory slot of a VM: guest-physical pages, and where they lie in its process. */
struct memory_slot_found {
	__u64 kvm; /* tells VMs of one process apart */
	__u64 first_page;
	__u64 pages;   /* 0: the VM has more slots than could be reported */
	__u64 address; /* in the VMM's process */
	__u32 pid;
	__u32 flags; /* MEMORY_SLOT_* */
};
_Static_assert(sizeof(struct memory_slot_found) == 40, "no hidden padding");

#define MEMORY_SLOT_READ_ONLY 0x2 /* KVM_MEM_READONLY */

/* A vCPU's clock: guest TSC = host TSC * tsc_ratio >> (32 on AMD, 48 on Intel) + tsc_offset */
struct vcpu_clock_found {
	__u64 kvm;
	__u64 tsc_offset;
	__u64 tsc_ratio;
	__u32 pid;
	__u32 tid; /* 0: it has not run yet, or its thread has ended */
	__u32 number;
	__u32 protected_state; /* 1: its registers, and most likely its memory, are encrypted */
};
_Static_assert(sizeof(struct vcpu_clock_found) == 40, "no hidden padding");

#endif
