/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the programs of bpf/switches.bpf.c and bpf/exits.bpf.c write and user space reads. The Rust twins are in
 * crates/probes/src/switches.rs and exits.rs; both sides assert the sizes. */
#ifndef VMSCOPE_ABI_SWITCH_H
#define VMSCOPE_ABI_SWITCH_H

#define SWITCH_OUT 1  /* pid, tid: who got the CPU; off_cpu; exit_reason; with SWITCH_GUEST: where its guest stands */
#define SWITCH_IN 2   /* pid, tid: who had the CPU */
#define SWITCH_WAKE 3 /* off_cpu: OFFCPU_THROTTLED or OFFCPU_RUNNABLE */

/* Flags. */
#define SWITCH_GUEST 1 /* guest_ip, guest_fs_base, guest_stack and cpl */
#define SWITCH_CR3 2   /* guest_cr3 */

struct switch_event {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u64 guest_ip;
	__u64 guest_cr3;
	__u64 guest_fs_base;
	__u32 vcpu;    /* row given by user space */
	__u32 cpu;     /* that it left or got, or on whose queue it was put */
	__u32 pid;
	__u32 tid;
	__u32 exit_reason;
	__u8 kind; /* SWITCH_* */
	__u8 off_cpu; /* OFFCPU_* */
	__u8 cpl;   /* 0..3; else not known */
	__u8 flags; /* SWITCH_GUEST, SWITCH_CR3 */
	__u32 guest_stack; /* as in struct sample */
	__u32 pad;
};
_Static_assert(sizeof(struct switch_event) == 64, "no hidden padding");

/* VM exits are counted per vCPU in slots: AMD's exit codes up to 0xff, its nested page faults and the codes
 * behind them (0x400 to 0x403), all others; Intel's basic reasons are all below 0x100. */
#define EXIT_CODES 0x100
#define EXIT_NPF 0x400
#define EXIT_NPF_CODES 4
#define EXIT_OTHER (EXIT_CODES + EXIT_NPF_CODES)
#define EXIT_SLOTS (EXIT_OTHER + 1)

#endif
