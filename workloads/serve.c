/* A service of two threads that each answer a request every 20 ms: it is parsed, looked up and rendered, a fixed amount of
 * work each, in functions of 2:4:2 parts. These are measured at the start to take 6 ms. Build it with -DLOOKUP=12 for a
 * build whose lookup is three times as expensive.
 * Usage: serve */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#define NOINLINE __attribute__((noinline, noclone))
#define PERIOD_NS 20000000L
#define PARTS_NS 6000000L
#define PARTS 8
#define TRIES 20
#ifndef LOOKUP
#define LOOKUP 4
#endif

static volatile uint64_t sinks[4];
static long part = 30000;

#define WORK(parts, sink) \
	uint64_t x = (sink); \
	for (long i = 0; i < (parts) * part; i++) \
		x = x * 6364136223846793005u + 1; \
	(sink) = x

NOINLINE void parse_request(void)
{
	WORK(2, sinks[0]);
}

NOINLINE void look_up(void)
{
	WORK(LOOKUP, sinks[1]);
}

NOINLINE void render_answer(void)
{
	WORK(2, sinks[2]);
}

NOINLINE void all_parts(void)
{
	WORK(PARTS, sinks[3]);
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000L + now.tv_nsec;
}

/* The shortest try was disturbed least. */
static void measure_part(void)
{
	int64_t shortest = INT64_MAX;

	for (int i = 0; i < TRIES; i++) {
		int64_t ns = -now_ns();

		all_parts();
		ns += now_ns();
		shortest = ns < shortest ? ns : shortest;
	}
	part = part * PARTS_NS / (shortest < 1 ? 1 : shortest);
}

static void *serve(void *unused)
{
	int64_t next = now_ns();

	for (;;) {
		parse_request();
		look_up();
		render_answer();
		next += PERIOD_NS;
		/* Requests that came while it had no CPU are not made up for. */
		if (next < now_ns())
			next = now_ns();
		struct timespec at = { next / 1000000000L, next % 1000000000L };
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
	}
	return unused;
}

int main(void)
{
	pthread_t other;

	measure_part();
	if (pthread_create(&other, NULL, serve, NULL))
		return 1;
	serve(NULL);
	return 0;
}
