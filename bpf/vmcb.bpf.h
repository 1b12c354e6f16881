/* SPDX-License-Identifier: GPL-2.0 */
/* AMD's virtual machine control block as the hardware lays it out (APM vol. 2, appendix B): the parts that
 * the programs read, each by one read. */
#ifndef VMSCOPE_VMCB_BPF_H
#define VMSCOPE_VMCB_BPF_H

#include <linux/types.h>

#define VMCB_ASID 0x58
#define VMCB_EXIT_CODE 0x70
#define VMCB_EXIT_INT_INFO 0x88
#define VMCB_SAVE_AREA 0x400
#define VMCB_FS_BASE (VMCB_SAVE_AREA + 0x48)
#define VMCB_CPL (VMCB_SAVE_AREA + 0xcb)
#define VMCB_CR3 (VMCB_SAVE_AREA + 0x150)
#define VMCB_RIP (VMCB_SAVE_AREA + 0x178)
#define VMCB_RSP (VMCB_SAVE_AREA + 0x1d8)

#define VMCB_FIELD(vmcb, type, offset) (*(type *)((char *)(vmcb) + (offset)))

/* Exit codes: the host was interrupted; L1 runs L2, whose VMCB is another. */
#define SVM_EXIT_INTR 0x60
#define SVM_EXIT_NMI 0x61
#define SVM_EXIT_VMRUN 0x80

/* Of the control area: from ASID to EXITINTINFO. */
struct vmcb_control {
	__u32 asid;
	__u8 to_exit_code[VMCB_EXIT_CODE - VMCB_ASID - 4];
	__u64 exit_code;
	__u8 to_exit_int_info[VMCB_EXIT_INT_INFO - VMCB_EXIT_CODE - 8];
	__u32 exit_int_info;
} __attribute__((packed));
_Static_assert(__builtin_offsetof(struct vmcb_control, exit_code) == VMCB_EXIT_CODE - VMCB_ASID, "VMCB");
_Static_assert(__builtin_offsetof(struct vmcb_control, exit_int_info) == VMCB_EXIT_INT_INFO - VMCB_ASID, "VMCB");

/* Of the save area: from CR3 to RSP. */
struct vmcb_paging {
	__u64 cr3;
	__u8 to_rip[VMCB_RIP - VMCB_CR3 - 8];
	__u64 rip;
	__u8 to_rsp[VMCB_RSP - VMCB_RIP - 8];
	__u64 rsp;
} __attribute__((packed));
_Static_assert(__builtin_offsetof(struct vmcb_paging, rip) == VMCB_RIP - VMCB_CR3, "VMCB");
_Static_assert(__builtin_offsetof(struct vmcb_paging, rsp) == VMCB_RSP - VMCB_CR3, "VMCB");

#endif
