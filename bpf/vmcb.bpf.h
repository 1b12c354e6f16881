/* SPDX-License-Identifier: GPL-2.0 */
/* AMD's virtual machine control block as the hardware lays it out (APM vol. 2, appendix B): the parts that
 * the programs read, each by one read. */
#ifndef VMSCOPE_VMCB_BPF_H
#define VMSCOPE_VMCB_BPF_H

#include <linux/types.h>

#define VMCB_SAVE_AREA 0x400
#define VMCB_CONTROL 0x58
#define VMCB_EXIT_CODE 0x70
#define VMCB_FS_BASE (VMCB_SAVE_AREA + 0x48)
#define VMCB_CPL (VMCB_SAVE_AREA + 0xcb)
#define VMCB_PAGING (VMCB_SAVE_AREA + 0x150)

/* Of the control area: from ASID to EXITINTINFO. */
struct vmcb_control {
	__u32 asid;
	__u8 to_exit_code[0x70 - 0x5c];
	__u64 exit_code;
	__u8 to_exit_int_info[0x88 - 0x78];
	__u64 exit_int_info;
};
_Static_assert(__builtin_offsetof(struct vmcb_control, exit_code) == VMCB_EXIT_CODE - VMCB_CONTROL, "VMCB");
_Static_assert(__builtin_offsetof(struct vmcb_control, exit_int_info) == 0x88 - VMCB_CONTROL, "VMCB");

/* Of the save area: from CR3 to RIP. */
struct vmcb_paging {
	__u64 cr3;
	__u8 to_rip[0x178 - 0x158];
	__u64 rip;
};
_Static_assert(__builtin_offsetof(struct vmcb_paging, rip) == 0x178 - 0x150, "VMCB");

#endif
