/* Makes its virtual CPU leave the guest over and over, for reasons that say nothing about anybody else on
 * the host: port I/O, CPUID and writes of a model-specific register, a third of the time each. Ports and
 * registers are reached through the guest's kernel, which has neither /dev/port nor, on emulated CPUs,
 * an ioperm() that works. Needs root and the msr module.
 * Usage: exits [SECONDS]; without it, for ever. Or: exits cpuid; nothing but CPUID, for ever. */
#include <cpuid.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define HOST_BRIDGE "/sys/bus/pci/devices/0000:00:00.0/config"
#define MSRS "/dev/cpu/0/msr"
#define MISC_ENABLE 0x1a0
#define OPERATIONS_AT_ONCE 10
#define TURN_SECONDS 0.01

static volatile uint32_t sink;
static int bridge, msr;
static uint64_t misc_enable;

/* Without memory-mapped configuration, a read of it is an OUT to port 0xcf8 and an IN from 0xcfc. */
NOINLINE void do_port_io(void)
{
	uint32_t id;

	for (int i = 0; i < OPERATIONS_AT_ONCE; i++) {
		if (pread(bridge, &id, sizeof(id), 0) < 0)
			_exit(1);
		sink = id;
	}
}

NOINLINE void do_cpuid(void)
{
	unsigned int a, b, c, d;

	for (int i = 0; i < OPERATIONS_AT_ONCE; i++) {
		__cpuid(0, a, b, c, d);
		sink = a + b + c + d;
	}
}

/* The register keeps the value that it had. */
NOINLINE void do_msr_write(void)
{
	for (int i = 0; i < OPERATIONS_AT_ONCE; i++)
		if (pwrite(msr, &misc_enable, sizeof(misc_enable), MISC_ENABLE) < 0)
			_exit(1);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void take_turn(void (*function)(void))
{
	for (double end = now() + TURN_SECONDS; now() < end;)
		function();
}

/* Without this the kernel complains of every write, on the console: that would be port I/O too. */
static void allow_msr_writes(void)
{
	FILE *file = fopen("/sys/module/msr/parameters/allow_writes", "w");

	if (file) {
		fputs("on", file);
		fclose(file);
	}
}

static int set_up(void)
{
	allow_msr_writes();
	msr = open(MSRS, O_RDWR);
	if (msr < 0 || pread(msr, &misc_enable, sizeof(misc_enable), MISC_ENABLE) < 0) {
		perror("exits: " MSRS);
		return -1;
	}
	bridge = open(HOST_BRIDGE, O_RDONLY);
	if (bridge < 0) {
		perror("exits: " HOST_BRIDGE);
		return -1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	double end = argc > 1 ? now() + atof(argv[1]) : 0;

	while (argc > 1 && !strcmp(argv[1], "cpuid"))
		do_cpuid();
	if (set_up())
		return 1;
	while (!end || now() < end) {
		take_turn(do_port_io);
		take_turn(do_cpuid);
		take_turn(do_msr_write);
	}
	return 0;
}
