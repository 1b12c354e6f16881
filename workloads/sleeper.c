/* Sleeps in sleep_a and in sleep_b, in turns, for so many ms each. At the end it prints each function's name and the seconds
 * in which it was not on a CPU, by this machine's own clocks. The functions make the system call themselves: in a library
 * without frame pointers the stack would lack the library's caller.
 * Usage: sleeper A B TIMES */
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>

#define NOINLINE __attribute__((noinline, noclone))

static double seconds(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static double off_cpu(void)
{
	return seconds(CLOCK_MONOTONIC) - seconds(CLOCK_THREAD_CPUTIME_ID);
}

static inline __attribute__((always_inline)) void sleep_ms(long ms)
{
	struct timespec time = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
	long result = SYS_nanosleep;

	__asm__ volatile("syscall" : "+a"(result) : "D"(&time), "S"(0) : "rcx", "r11", "memory");
}

static volatile int turns;

NOINLINE void sleep_a(long ms)
{
	sleep_ms(ms);
	turns++;
}

NOINLINE void sleep_b(long ms)
{
	sleep_ms(ms);
	/* Not the same as sleep_a: identical functions could be folded into one. */
	turns--;
}

int main(int n, char **words)
{
	double begin, middle, a = 0, b = 0;

	if (n != 4) {
		fprintf(stderr, "usage: sleeper A B TIMES\n");
		return 2;
	}
	for (int times = atoi(words[3]); 0 < times; times--) {
		begin = off_cpu();
		sleep_a(atol(words[1]));
		middle = off_cpu();
		sleep_b(atol(words[2]));
		a += middle - begin;
		b += off_cpu() - middle;
	}
	printf("sleep_a %.6f\nsleep_b %.6f\n", a, b);
	return 0;
}
