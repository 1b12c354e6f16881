/* Calls of a known tree, for ever: each branch of main() takes as much of this thread's CPU time, SLICE_NS, as any other.
 *
 *   main -> recurse x 40 -> burn           recursion
 *   main -> qsort (libc) -> compare -> burn   back from a shared library
 *   main -> raise (libc) -> on_signal -> burn   through a signal's frame
 *   main -> jump ~> tail -> burn           a tail call: jump has no frame
 *   main -> look -> access (libc) -> kernel   a system call
 *   start_thread (libc) -> in_thread -> burn   a thread
 * Usage: calls */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 3000000
#define TURNS_AT_ONCE 20000
#define DEPTH 40
#define APART __attribute__((noinline, noclone))

static volatile double sink;

static long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return time.tv_sec * 1000000000L + time.tv_nsec;
}

/* A leaf without a frame. */
static APART void turn(void)
{
	double value = sink;

	for (int i = 0; i < TURNS_AT_ONCE; i++)
		value = value * 0.5 + 1.0;
	sink = value;
}

static APART void burn(void)
{
	long end = now() + SLICE_NS;

	while (now() < end)
		turn();
	sink = 0;
}

static APART int recurse(int depth)
{
	if (depth <= 1)
		burn();
	else
		sink = recurse(depth - 1);
	return depth;
}

static APART int compare(const void *one, const void *other)
{
	burn();
	return *(const int *)one - *(const int *)other;
}

static APART void sort(void)
{
	int numbers[2] = {2, 1};

	qsort(numbers, 2, sizeof(*numbers), compare);
	sink = numbers[0];
}

static APART void on_signal(int signal)
{
	burn();
	sink = signal;
}

static APART void send_signal(void)
{
	raise(SIGUSR1);
	sink = 0;
}

static APART void tail(int n)
{
	burn();
	sink = -n;
}

static APART void jump(int n)
{
	tail(n + 1);
}

static APART void look(void)
{
	long end = now() + SLICE_NS;

	while (now() < end)
		for (int i = 0; i < 20; i++)
			access("/no/such/file/anywhere", R_OK);
	sink = 0;
}

static APART void *in_thread(void *unused)
{
	for (;;) {
		burn();
		usleep(5 * SLICE_NS / 1000);
	}
	return unused;
}

int main(void)
{
	pthread_t thread;

	signal(SIGUSR1, on_signal);
	if (pthread_create(&thread, NULL, in_thread, NULL))
		return 1;
	for (;;) {
		recurse(DEPTH);
		sort();
		send_signal();
		jump(1);
		look();
	}
}
