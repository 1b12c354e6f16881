/* SPDX-License-Identifier: Apache-2.0 */
/* What the processor is, and the instructions that C has no words for. */
#ifndef BOOT_CPU_H
#define BOOT_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uintptr_t word; /* as wide as a register */

struct cpuid_leaf {
	uint32_t eax, ebx, ecx, edx;
};

struct cpu {
	char vendor[13];
	char brand[49];
	char hypervisor[13]; /* "": none says so */
	uint32_t family, model, stepping;
	uint32_t max_leaf, max_extended_leaf;
	bool hypervisor_present;
	bool has_long_mode, has_pae, has_pse, has_pge, has_apic, has_x2apic, has_msr, has_mtrr;
	bool has_rdtscp, has_monitor, has_sysenter, has_syscall, has_nx, has_clflush, has_lfence;
	bool invariant_tsc;
};

/* As CPUID tells; read once by cpu_probe(). */
extern struct cpu the_cpu;
void cpu_probe(void);

static inline struct cpuid_leaf cpuid(uint32_t leaf, uint32_t subleaf)
{
	struct cpuid_leaf l;

	__asm__ volatile("cpuid" : "=a"(l.eax), "=b"(l.ebx), "=c"(l.ecx), "=d"(l.edx) : "a"(leaf), "c"(subleaf));
	return l;
}

static inline uint64_t rdmsr(uint32_t msr)
{
	uint32_t low, high;

	__asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(msr));
	return (uint64_t)high << 32 | low;
}

static inline void wrmsr(uint32_t msr, uint64_t value)
{
	__asm__ volatile("wrmsr" : : "c"(msr), "a"((uint32_t)value), "d"((uint32_t)(value >> 32)) : "memory");
}

static inline uint8_t in8(uint16_t port)
{
	uint8_t value;

	__asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port) : "memory");
	return value;
}

static inline uint16_t in16(uint16_t port)
{
	uint16_t value;

	__asm__ volatile("inw %1, %0" : "=a"(value) : "Nd"(port) : "memory");
	return value;
}

static inline uint32_t in32(uint16_t port)
{
	uint32_t value;

	__asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(port) : "memory");
	return value;
}

static inline void out8(uint16_t port, uint8_t value)
{
	__asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port) : "memory");
}

static inline void out16(uint16_t port, uint16_t value)
{
	__asm__ volatile("outw %0, %1" : : "a"(value), "Nd"(port) : "memory");
}

static inline void out32(uint16_t port, uint32_t value)
{
	__asm__ volatile("outl %0, %1" : : "a"(value), "Nd"(port) : "memory");
}

/* Many bytes by one instruction: a VM exits once for all of them. */
static inline void out8_string(uint16_t port, const void *bytes, size_t n)
{
	__asm__ volatile("rep outsb" : "+S"(bytes), "+c"(n) : "d"(port) : "memory");
}

/* Time before and after what is measured: the fences keep what is outside out and what is inside in. Never fenced with
 * CPUID, which exits in a VM; nor read by RDTSCP, which some machines lack. */
static inline uint64_t tsc_begin(void)
{
	uint32_t low, high;

	__asm__ volatile("lfence; rdtsc; lfence" : "=a"(low), "=d"(high) : : "memory");
	return (uint64_t)high << 32 | low;
}

static inline uint64_t tsc_end(void)
{
	uint32_t low, high;

	__asm__ volatile("lfence; rdtsc; lfence" : "=a"(low), "=d"(high) : : "memory");
	return (uint64_t)high << 32 | low;
}

static inline uint64_t mmio_read64(uint64_t address)
{
	return *(volatile uint64_t *)(word)address;
}

static inline uint32_t mmio_read32(uint64_t address)
{
	return *(volatile uint32_t *)(word)address;
}

static inline void mmio_write32(uint64_t address, uint32_t value)
{
	*(volatile uint32_t *)(word)address = value;
}

#endif
