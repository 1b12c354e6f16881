/* Two threads of one process, named alpha and beta, that each compute for ever in a function of
 * their own: only the thread tells them apart when they share a CPU and a page table.
 * Usage: threads */
#define _GNU_SOURCE
#include <pthread.h>

#define NOINLINE __attribute__((noinline, noclone))

static volatile double sinks[2];

NOINLINE void alpha_work(void)
{
	for (long i = 0; i < 100000; i++)
		sinks[0] = sinks[0] * 0.5 + 1.0;
}

NOINLINE void beta_work(void)
{
	for (long i = 0; i < 100000; i++)
		sinks[1] = sinks[1] * 0.25 + 2.0;
}

static void *alpha(void *unused)
{
	pthread_setname_np(pthread_self(), "alpha");
	for (;;)
		alpha_work();
	return unused;
}

static void *beta(void *unused)
{
	pthread_setname_np(pthread_self(), "beta");
	for (;;)
		beta_work();
	return unused;
}

int main(void)
{
	pthread_t threads[2];

	if (pthread_create(&threads[0], NULL, alpha, NULL) || pthread_create(&threads[1], NULL, beta, NULL))
		return 1;
	pthread_join(threads[0], NULL);
	return 0;
}
