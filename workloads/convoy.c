/* Threads of one process that duplicate and close a file for ever: all of them want the lock of its table of open files,
 * and wait for it on their CPUs. At the lowest priority if NICE is 19.
 * Usage: convoy [THREADS [NICE]] */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static int file;

static void *want_the_lock(void *unused)
{
	for (;;)
		close(dup(file));
	return unused;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 4;
	pthread_t thread;

	if (argc > 2 && nice(atoi(argv[2])) < 0)
		return 1;
	file = open("/dev/null", O_RDONLY);
	if (file < 0)
		return 1;
	while (--n > 0)
		if (pthread_create(&thread, NULL, want_the_lock, NULL))
			return 1;
	want_the_lock(NULL);
	return 0;
}
