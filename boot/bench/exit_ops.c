/* SPDX-License-Identifier: Apache-2.0 */
/* Instructions that virtual machine monitors like to see: CPUID, time, MSRs, hypercalls, I/O ports. */
#include "text_operation.h"

#define EXIT .group = GROUP_EXIT, .modes = MODES, .rings = RINGS

/* ---- CPUID and time ---- */

TEXT_OPERATION(cpuid, DEAR, "xor %%eax, %%eax; xor %%ecx, %%ecx; cpuid", "", (: : : "eax", "ebx", "ecx", "edx"),
	       .name = "cpuid", .title = "CPUID, leaf 0", EXIT);

TEXT_OPERATION(rdtsc, 10, "rdtsc", "", (: : : "eax", "edx"),
	       .name = "rdtsc", .title = "RDTSC", EXIT);

static const char *prepare_rdtscp(void)
{
	return the_cpu.has_rdtscp ? NULL : "the processor has no RDTSCP";
}

TEXT_OPERATION(rdtscp, 10, "rdtscp", "", (: : : "eax", "ecx", "edx"),
	       .name = "rdtscp", .title = "RDTSCP", EXIT, .prepare = prepare_rdtscp);

TEXT_OPERATION(rdpmc, DEAR, "rdpmc", "", (: : "c"(0) : "eax", "edx"),
	       .name = "rdpmc", .title = "RDPMC, counter 0", EXIT);

/* ---- model-specific registers: what is written is what was there ---- */

static uint64_t msr_value;

static const char *read_msr(uint32_t msr)
{
	if (!the_cpu.has_msr)
		return "the processor has no MSRs";
	msr_value = rdmsr(msr);
	return NULL;
}

#define MSR_READ(id, msr, ...)                                                        \
	static const char *prepare_##id(void)                                         \
	{                                                                             \
		return read_msr(msr);                                                 \
	}                                                                             \
	TEXT_OPERATION(id##_read, DEAR, "rdmsr", "", (: : "c"(msr) : "eax", "edx"),   \
		       EXIT, .prepare = prepare_##id, __VA_ARGS__)

#define MSR_WRITE(id, msr, ...)                                                                                \
	TEXT_OPERATION(id##_write, DEAR, "wrmsr", "",                                                          \
		       (: : "c"(msr), "a"((uint32_t)msr_value), "d"((uint32_t)(msr_value >> 32)) : "memory"), \
		       EXIT, .prepare = prepare_##id, __VA_ARGS__)

/* Always the monitor's, as it emulates the APIC. */
MSR_READ(apic_base, 0x1b, .name = "rdmsr-apic-base", .title = "RDMSR of APIC_BASE");
MSR_WRITE(apic_base, 0x1b, .name = "wrmsr-apic-base", .title = "WRMSR of the same value to APIC_BASE");
/* Intel's; monitors may give it to others. */
MSR_READ(misc_enable, 0x1a0, .name = "rdmsr-misc-enable", .title = "RDMSR of MISC_ENABLE");
MSR_WRITE(misc_enable, 0x1a0, .name = "wrmsr-misc-enable", .title = "WRMSR of the same value to MISC_ENABLE");
/* Changed at every switch of tasks or system call: monitors let guests have them. */
MSR_READ(sysenter_cs, 0x174, .name = "rdmsr-sysenter-cs", .title = "RDMSR of SYSENTER_CS");
MSR_WRITE(sysenter_cs, 0x174, .name = "wrmsr-sysenter-cs", .title = "WRMSR of the same value to SYSENTER_CS");
MSR_READ(fs_base, 0xc0000100, .name = "rdmsr-fs-base", .title = "RDMSR of FS_BASE");
MSR_WRITE(fs_base, 0xc0000100, .name = "wrmsr-fs-base", .title = "WRMSR of the same value to FS_BASE");
MSR_READ(kernel_gs_base, 0xc0000102, .name = "rdmsr-kernel-gs-base", .title = "RDMSR of KERNEL_GS_BASE");
MSR_WRITE(kernel_gs_base, 0xc0000102, .name = "wrmsr-kernel-gs-base",
	  .title = "WRMSR of the same value to KERNEL_GS_BASE");
/* Says which mode there is, so writing it is the monitor's. */
MSR_READ(efer, 0xc0000080, .name = "rdmsr-efer", .title = "RDMSR of EFER");
MSR_WRITE(efer, 0xc0000080, .name = "wrmsr-efer", .title = "WRMSR of the same value to EFER");
/* Only read: writing it would change the clock that all is measured by. */
MSR_READ(tsc, 0x10, .name = "rdmsr-tsc", .title = "RDMSR of the TSC");

/* ---- hypercalls ---- */

/* Of a number without a meaning; other registers are 0, as some monitors look for the number there. One of the two
 * instructions is the other vendor's and faults, unless the monitor emulates it. */
#define HYPERCALL(instruction) "xor %%ecx, %%ecx; xor %%edx, %%edx; mov $0xffff, %%eax; " instruction

TEXT_OPERATION(vmcall, DEAR, HYPERCALL("vmcall"), "", (: : : "eax", "ebx", "ecx", "edx", "memory"),
	       .name = "vmcall", .title = "VMCALL (Intel) with an unknown number", EXIT);

TEXT_OPERATION(vmmcall, DEAR, HYPERCALL("vmmcall"), "", (: : : "eax", "ebx", "ecx", "edx", "memory"),
	       .name = "vmmcall", .title = "VMMCALL (AMD) with an unknown number", EXIT);

/* ---- ports ---- */

enum {
	PORT_NONE = 0x5e0,
	PORT_PIC_MASK = 0x21,
	PORT_PIT_CONTROL = 0x61, /* a timer port that reading doesn't change, unlike the counters' */
	PORT_RTC_INDEX = 0x70,
	PORT_RTC_DATA = 0x71,
	PORT_POST = 0x80,
};

#define PORT_READ(id, port, ...) \
	TEXT_OPERATION(id, DEAR, "inb %%dx, %%al", "", (: : "d"(port) : "eax"), EXIT, __VA_ARGS__)
#define PORT_WRITE(id, port, value, ...) \
	TEXT_OPERATION(id, DEAR, "outb %%al, %%dx", "", (: : "d"(port), "a"(value)), EXIT, __VA_ARGS__)

static uint8_t pic_mask_value;

static const char *prepare_pic(void)
{
	pic_mask_value = in8(PORT_PIC_MASK);
	return NULL;
}

/* A register that counts nothing; bit 7, which would hold NMIs back, is 0. */
enum { RTC_STATUS_D = 0x0d };

static const char *prepare_rtc(void)
{
	out8(PORT_RTC_INDEX, RTC_STATUS_D);
	return NULL;
}

PORT_READ(in_none, PORT_NONE, .name = "in-unused", .title = "IN from a port where nothing is (0x5e0)");
PORT_WRITE(out_post, PORT_POST, 0, .name = "out-unused", .title = "OUT to port 0x80, where nothing listens");
PORT_READ(in_pic, PORT_PIC_MASK, .name = "in-pic", .title = "IN from the PIC's mask (0x21)");
PORT_WRITE(out_pic, PORT_PIC_MASK, pic_mask_value, .name = "out-pic",
	   .title = "OUT of the same mask to the PIC (0x21)", .prepare = prepare_pic);
PORT_READ(in_pit, PORT_PIT_CONTROL, .name = "in-pit", .title = "IN from the PIT's control port (0x61)");
PORT_READ(in_rtc, PORT_RTC_DATA, .name = "in-rtc", .title = "IN from a register of the clock (0x71)",
	  .prepare = prepare_rtc);
PORT_WRITE(out_rtc, PORT_RTC_INDEX, RTC_STATUS_D, .name = "out-rtc",
	   .title = "OUT of a register's number to the clock (0x70)");
