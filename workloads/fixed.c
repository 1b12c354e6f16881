/* A fixed piece of work: A units in compute_a, then B units in compute_b, a unit being a million turns of
 * one loop. After each part it prints the function's name and how long it took in seconds, by this
 * machine's own clock.
 * Usage: fixed A B [TIMES [FRAMES]]
 * Its stack has 7 frames, and FRAMES more. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NOINLINE __attribute__((noinline, noclone))
#define TURNS_AT_ONCE 4000
#define CALLS_PER_UNIT 250

static volatile double sink;

#define LOOP(n, x) \
	for (long i = 0; i < (n); i++) \
		(x) = (x) * 1.0000001 + 0.0000001 / ((x) + 1.5);

NOINLINE void compute_a(long n)
{
	double x = sink;
	LOOP(n, x)
	sink = x > 1e6 ? 1.0 : x;
}

NOINLINE void compute_b(long n)
{
	double x = sink;
	LOOP(n, x)
	/* Not the same as compute_a: identical functions could be folded into one. */
	sink = x > 1e6 ? 2.0 : x;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

NOINLINE static void run(const char *name, void (*function)(long), long units)
{
	double start = now();

	for (long i = 0; i < units * CALLS_PER_UNIT; i++)
		function(TURNS_AT_ONCE);
	printf("%s %.6f\n", name, now() - start);
	fflush(stdout);
}

NOINLINE void work(long times, long a, long b, long frames)
{
	if (0 < frames)
		work(times, a, b, frames - 1);
	else
		for (; 0 < times; times--) {
			run("compute_a", compute_a, a);
			run("compute_b", compute_b, b);
		}
	/* The call above is no jump. */
	__asm__ volatile("");
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: fixed A B [TIMES [FRAMES]]\n");
		return 2;
	}
	work(argc > 3 ? atol(argv[3]) : 1, atol(argv[1]), atol(argv[2]), argc > 4 ? atol(argv[4]) : 0);
	return 0;
}
