/* Makes its virtual CPU leave the guest over and over, for reasons that say nothing about anybody else on
 * the host: port I/O, CPUID and writes of a model-specific register, a third of the time each.
 * Needs root and the msr module. Usage: exits [SECONDS]; without it, for ever. */
#include <cpuid.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/io.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define POST_PORT 0x80
#define CMOS_INDEX 0x70
#define CMOS_DATA 0x71
#define CMOS_STATUS_A 0x0a
#define MISC_ENABLE 0x1a0
#define OPERATIONS_AT_ONCE 10
#define TURN_SECONDS 0.01

static volatile uint32_t sink;
static int msr;
static uint64_t misc_enable;

NOINLINE void do_port_io(void)
{
	for (int i = 0; i < OPERATIONS_AT_ONCE; i++) {
		/* Bit 7 keeps non-maskable interrupts as they are: on. */
		outb(CMOS_STATUS_A, CMOS_INDEX);
		sink = inb(CMOS_DATA);
		outb(0, POST_PORT);
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

/* A user program can't write one itself: the guest's kernel does, on its behalf, the value it had. */
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
	msr = open("/dev/cpu/0/msr", O_RDWR);
	if (msr < 0 || pread(msr, &misc_enable, sizeof(misc_enable), MISC_ENABLE) < 0) {
		perror("exits: /dev/cpu/0/msr");
		return -1;
	}
	if (ioperm(POST_PORT, 1, 1) || ioperm(CMOS_INDEX, 2, 1)) {
		perror("exits: ioperm");
		return -1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	double end = argc > 1 ? now() + atof(argv[1]) : 0;

	if (set_up())
		return 1;
	while (!end || now() < end) {
		take_turn(do_port_io);
		take_turn(do_cpuid);
		take_turn(do_msr_write);
	}
	return 0;
}
