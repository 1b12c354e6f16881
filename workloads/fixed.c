/* A fixed piece of work: A units in compute_a, then B units in compute_b, a unit being a million turns of
 * one loop. After each part it prints the function's name and how long it took in seconds, by this
 * machine's own clock.
 * Usage: fixed A B [TIMES] */
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

static void run(const char *name, void (*function)(long), long units)
{
	double start = now();

	for (long i = 0; i < units * CALLS_PER_UNIT; i++)
		function(TURNS_AT_ONCE);
	printf("%s %.6f\n", name, now() - start);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: fixed A B [TIMES]\n");
		return 2;
	}
	for (long times = argc > 3 ? atol(argv[3]) : 1; 0 < times; times--) {
		run("compute_a", compute_a, atol(argv[1]));
		run("compute_b", compute_b, atol(argv[2]));
	}
	return 0;
}
