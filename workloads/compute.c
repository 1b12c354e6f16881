/* Two floating-point functions that take 80 and 20 per cent of the time by construction: the same
 * loop, 4:1 iterations, in turns too short for a sampler to fall into step with.
 * Usage: compute [SECONDS]; without it, for ever. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NOINLINE __attribute__((noinline, noclone))

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

int main(int argc, char **argv)
{
	time_t end = argc > 1 ? time(NULL) + atol(argv[1]) : 0;

	for (unsigned long turn = 0; !end || time(NULL) < end; turn++)
		for (int i = 0; i < 100; i++) {
			compute_a(4000);
			compute_b(1000);
		}
	return 0;
}
