/* A process with a short life: computes for about MILLISECONDS (default 300) of CPU time and ends. */
#include <stdlib.h>
#include <time.h>

static volatile double sink = 1.0;

__attribute__((noinline)) void short_work(void)
{
	double x = sink;

	for (int i = 0; i < 20000; i++)
		x = x * 1.0000001 + 0.0000001 / (x + 1.5);
	sink = x > 1e6 ? 1.0 : x;
}

static long cpu_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
	long limit = argc > 1 ? atol(argv[1]) : 300;

	while (cpu_ms() < limit)
		short_work();
	return 0;
}
