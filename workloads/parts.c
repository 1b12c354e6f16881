/* Threads that each do one step after another: programs of known parts, each of which can be left out. A word that ends in a
 * colon begins a thread and names it; the steps of the thread follow. A single thread is the program's first one. Of several,
 * the first one joins all in their order.
 * Usage: parts NAME: STEP... [NAME: STEP...]...
 *   burn S        compute for S seconds of this thread's CPU time
 *   sleep S       sleep for S seconds
 *   lock, unlock  one mutex for all threads
 *   take, give    one semaphore for all threads, which one of them can have at a time
 *   await, raise  wait until a flag is up, by a condition variable; raise it
 *   meet          wait at a barrier until all threads are there
 *   read, write   one byte of the standard input or output
 *   repeat N      do all steps after this one N times */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 16
#define TURNS_AT_ONCE 20000

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t of_flag = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t flag_is_up = PTHREAD_COND_INITIALIZER;
static int flag;
static sem_t semaphore;
static pthread_barrier_t barrier;

static double seconds_of(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void burn(double seconds)
{
	double end = seconds_of(CLOCK_THREAD_CPUTIME_ID) + seconds;
	volatile double sink = 0;

	while (seconds_of(CLOCK_THREAD_CPUTIME_ID) < end)
		for (int i = 0; i < TURNS_AT_ONCE; i++)
			sink = sink * 0.5 + 1.0;
}

static void sleep_for(double seconds)
{
	struct timespec time = { (time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9) };

	clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

static void await_flag(void)
{
	pthread_mutex_lock(&of_flag);
	while (!flag)
		pthread_cond_wait(&flag_is_up, &of_flag);
	pthread_mutex_unlock(&of_flag);
}

static void raise_flag(void)
{
	pthread_mutex_lock(&of_flag);
	flag = 1;
	pthread_cond_broadcast(&flag_is_up);
	pthread_mutex_unlock(&of_flag);
}

static int is_name(const char *word)
{
	return word[strlen(word) - 1] == ':';
}

static void read_byte(void)
{
	char byte;

	if (read(STDIN_FILENO, &byte, 1) != 1)
		exit(1);
}

static void write_byte(void)
{
	if (write(STDOUT_FILENO, "x", 1) != 1)
		exit(1);
}

static void lock(void)
{
	pthread_mutex_lock(&mutex);
}

static void unlock(void)
{
	pthread_mutex_unlock(&mutex);
}

static void take(void)
{
	sem_wait(&semaphore);
}

static void give(void)
{
	sem_post(&semaphore);
}

static void meet(void)
{
	pthread_barrier_wait(&barrier);
}

static const struct {
	const char *name;
	void (*now)(void);
	void (*for_seconds)(double);
} known[] = {
	{ "burn", .for_seconds = burn },
	{ "sleep", .for_seconds = sleep_for },
	{ "lock", lock },
	{ "unlock", unlock },
	{ "take", take },
	{ "give", give },
	{ "await", await_flag },
	{ "raise", raise_flag },
	{ "meet", meet },
	{ "read", read_byte },
	{ "write", write_byte },
};

/* Returns how many words it takes besides its own. */
static int step(char **words)
{
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (strcmp(known[i].name, words[0]))
			continue;
		if (known[i].now)
			return known[i].now(), 0;
		if (words[1])
			return known[i].for_seconds(atof(words[1])), 1;
	}
	fprintf(stderr, "parts: unknown step %s, or no seconds\n", words[0]);
	exit(2);
}

static void steps(char **words, int times)
{
	while (times--)
		for (char **word = words; *word && !is_name(*word); word++) {
			if (!strcmp(*word, "repeat") && word[1])
				return steps(word + 2, atoi(word[1]));
			word += step(word);
		}
}

static void *thread(void *words)
{
	char name[16];

	snprintf(name, sizeof(name), "%s", *(char **)words);
	name[strcspn(name, ":")] = 0;
	prctl(PR_SET_NAME, name);
	steps((char **)words + 1, 1);
	return NULL;
}

int main(int n_words, char **words)
{
	char **begins[MAX_THREADS];
	pthread_t threads[MAX_THREADS];
	int n = 0;

	for (int i = 1; i < n_words; i++)
		if (is_name(words[i]) && n < MAX_THREADS)
			begins[n++] = words + i;
	if (n_words < 2 || !n || begins[0] != words + 1) {
		fprintf(stderr, "usage: parts NAME: STEP... [NAME: STEP...]...\n");
		return 2;
	}
	sem_init(&semaphore, 0, 1);
	pthread_barrier_init(&barrier, NULL, n);
	if (n == 1)
		return thread(begins[0]), 0;
	for (int i = 0; i < n; i++)
		if (pthread_create(&threads[i], NULL, thread, begins[i]))
			return 1;
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
