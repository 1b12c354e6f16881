/* SPDX-License-Identifier: Apache-2.0 */
/* What CPUID tells. */
#include "cpu.h"
#include "machine.h"

enum { HYPERVISOR_LEAF = 0x40000000, EXTENDED_LEAF = 0x80000000u, BRAND_LEAF = 0x80000002u, POWER_LEAF = 0x80000007u };

struct cpu the_cpu;

static bool bit(uint32_t value, unsigned n)
{
	return value >> n & 1;
}

/* The registers' bytes in this order spell a name. */
static void spell(char *to, uint32_t first, uint32_t second, uint32_t third)
{
	memcpy(to, &first, 4);
	memcpy(to + 4, &second, 4);
	memcpy(to + 8, &third, 4);
	to[12] = 0;
}

static void read_version(uint32_t eax)
{
	the_cpu.stepping = eax & 15;
	the_cpu.model = eax >> 4 & 15;
	the_cpu.family = eax >> 8 & 15;
	if (the_cpu.family == 6 || the_cpu.family == 15)
		the_cpu.model |= (eax >> 16 & 15) << 4;
	if (the_cpu.family == 15)
		the_cpu.family += eax >> 20 & 255;
}

static void read_features(void)
{
	struct cpuid_leaf l = cpuid(1, 0);

	read_version(l.eax);
	the_cpu.has_pse = bit(l.edx, 3);
	the_cpu.has_msr = bit(l.edx, 5);
	the_cpu.has_pae = bit(l.edx, 6);
	the_cpu.has_apic = bit(l.edx, 9);
	the_cpu.has_sysenter = bit(l.edx, 11);
	the_cpu.has_mtrr = bit(l.edx, 12);
	the_cpu.has_pge = bit(l.edx, 13);
	the_cpu.has_clflush = bit(l.edx, 19);
	the_cpu.has_lfence = bit(l.edx, 26); /* SSE2 */
	the_cpu.has_monitor = bit(l.ecx, 3);
	the_cpu.has_x2apic = bit(l.ecx, 21);
	the_cpu.hypervisor_present = bit(l.ecx, 31);
}

static void read_extended(void)
{
	struct cpuid_leaf l = cpuid(EXTENDED_LEAF, 0);

	the_cpu.max_extended_leaf = l.eax < EXTENDED_LEAF ? 0 : l.eax;
	if (the_cpu.max_extended_leaf > EXTENDED_LEAF) {
		l = cpuid(EXTENDED_LEAF + 1, 0);
		the_cpu.has_syscall = bit(l.edx, 11);
		the_cpu.has_nx = bit(l.edx, 20);
		the_cpu.has_rdtscp = bit(l.edx, 27);
		the_cpu.has_long_mode = bit(l.edx, 29);
	}
	if (the_cpu.max_extended_leaf >= POWER_LEAF)
		the_cpu.invariant_tsc = bit(cpuid(POWER_LEAF, 0).edx, 8);
}

static void read_brand(void)
{
	if (the_cpu.max_extended_leaf < BRAND_LEAF + 2)
		return;
	for (unsigned i = 0; i < 3; i++) {
		struct cpuid_leaf l = cpuid(BRAND_LEAF + i, 0);

		memcpy(the_cpu.brand + 16 * i, &l, 16);
	}
}

void cpu_probe(void)
{
	struct cpuid_leaf l = cpuid(0, 0);

	the_cpu.max_leaf = l.eax;
	spell(the_cpu.vendor, l.ebx, l.edx, l.ecx);
	read_features();
	read_extended();
	read_brand();
	if (the_cpu.hypervisor_present) {
		l = cpuid(HYPERVISOR_LEAF, 0);
		spell(the_cpu.hypervisor, l.ebx, l.ecx, l.edx);
	}
}
