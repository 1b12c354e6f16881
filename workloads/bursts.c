/* Computes for BUSY seconds, sleeps for IDLE seconds, and so on for ever; a burst begins every
 * BUSY + IDLE seconds, however long it took to wake up.
 * Usage: bursts BUSY IDLE */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile double sink;

__attribute__((noinline)) void compute_burst(void)
{
	double x = sink;

	for (long i = 0; i < 2000; i++)
		x = x * 1.0000001 + 0.0000001 / (x + 1.5);
	sink = x > 1e6 ? 1.0 : x;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void sleep_until(double end)
{
	struct timespec t = { (time_t)end, (long)((end - (time_t)end) * 1e9) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
		;
}

int main(int argc, char **argv)
{
	double busy, idle;

	if (argc < 3) {
		fprintf(stderr, "usage: bursts BUSY IDLE\n");
		return 2;
	}
	busy = atof(argv[1]);
	idle = atof(argv[2]);
	for (double start = now();; start += busy + idle) {
		while (now() < start + busy)
			compute_burst();
		sleep_until(start + busy + idle);
	}
}
