/* Processes that each sleep for one known reason, so that a trace can be checked for it. Each is named after its reason,
 * `wait-timer` and so on; what helps it to sleep (who writes to its pipe, who holds its lock) is `help-pipe` and so on.
 * Usage: waits SECONDS FOLDER [REASON...]; all reasons when none is named. FOLDER should lie on a disk. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_US 20000
#define FILE_BYTES (16 << 20)
#define BLOCK 4096
#define WRITERS 6

static double seconds;
static const char *folder;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void be(const char *prefix, const char *reason)
{
	char name[16];

	snprintf(name, sizeof(name), "%s-%s", prefix, reason);
	prctl(PR_SET_NAME, name);
}

static void fail(const char *what)
{
	fprintf(stderr, "waits: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* A child that helps; it ends with its parent. */
static pid_t helper(const char *reason, void (*work)(int), int fd)
{
	pid_t pid = fork();

	if (pid < 0)
		fail("fork");
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	be("help", reason);
	for (;;) {
		usleep(PAUSE_US);
		work(fd);
	}
}

static void write_byte(int fd)
{
	if (write(fd, "x", 1) != 1)
		exit(0);
}

static void read_bytes(int fds[2], const char *reason, int with_poll, double end)
{
	struct pollfd wish = { .fd = fds[0], .events = POLLIN };
	pid_t pid = helper(reason, write_byte, fds[1]);
	char byte;

	while (now() < end) {
		if (with_poll && poll(&wish, 1, -1) != 1)
			fail("poll");
		if (read(fds[0], &byte, 1) != 1)
			fail("read");
	}
	kill(pid, SIGKILL);
}

static void timer(double end)
{
	while (now() < end)
		usleep(PAUSE_US);
}

static void in_pipe(double end)
{
	int fds[2];

	if (pipe(fds))
		fail("pipe");
	read_bytes(fds, "pipe", 0, end);
}

static void in_socket(double end)
{
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
		fail("socketpair");
	read_bytes(fds, "socket", 0, end);
}

static void in_poll(double end)
{
	int fds[2];

	if (pipe(fds))
		fail("pipe");
	read_bytes(fds, "poll", 1, end);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile int done;

static void *hold_mutex(void *unused)
{
	be("help", "futex");
	while (!done) {
		pthread_mutex_lock(&mutex);
		usleep(PAUSE_US);
		pthread_mutex_unlock(&mutex);
		usleep(100);
	}
	return unused;
}

static void in_futex(double end)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, hold_mutex, NULL))
		fail("pthread_create");
	while (now() < end) {
		pthread_mutex_lock(&mutex);
		pthread_mutex_unlock(&mutex);
		usleep(200);
	}
	done = 1;
	pthread_join(thread, NULL);
}

static void in_child(double end)
{
	while (now() < end) {
		pid_t pid = fork();

		if (pid < 0)
			fail("fork");
		if (!pid) {
			be("help", "child");
			usleep(PAUSE_US);
			_exit(0);
		}
		waitpid(pid, NULL, 0);
	}
}

static void in_vfork(double end)
{
	while (now() < end) {
		pid_t pid = vfork();

		if (pid < 0)
			fail("vfork");
		if (!pid) {
			usleep(PAUSE_US);
			_exit(0);
		}
		waitpid(pid, NULL, 0);
	}
}

static pid_t signalled;

static void send_signal(int unused)
{
	(void)unused;
	kill(signalled, SIGUSR1);
}

static void heard(int unused)
{
	(void)unused;
}

static void in_signal(double end)
{
	struct sigaction action = { .sa_handler = heard };
	pid_t pid;

	signalled = getpid();
	sigaction(SIGUSR1, &action, NULL);
	pid = helper("signal", send_signal, 0);
	while (now() < end)
		pause();
	kill(pid, SIGKILL);
}

static void file_of(const char *reason, char *path, size_t size)
{
	snprintf(path, size, "%s/waits-%s-%d", folder, reason, getpid());
}

/* A file whose blocks are on the disk and not in memory. */
static int cold_file(const char *reason, int flags)
{
	static char block[1 << 20];
	char path[4096];
	int fd;

	file_of(reason, path, sizeof(path));
	fd = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600);
	if (fd < 0)
		fail(path);
	memset(block, 1, sizeof(block));
	for (int at = 0; at < FILE_BYTES; at += sizeof(block))
		if (write(fd, block, sizeof(block)) != sizeof(block))
			fail(path);
	if (fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
		fail(path);
	if (flags) {
		close(fd);
		fd = open(path, O_RDWR | flags);
		if (fd < 0)
			fail(path);
	}
	unlink(path);
	return fd;
}

static void in_disk(double end)
{
	int fd = cold_file("disk", O_DIRECT);
	void *block;

	if (posix_memalign(&block, BLOCK, BLOCK))
		fail("memory");
	for (unsigned i = 1; now() < end; i = i * 1103515245 + 12345)
		if (pread(fd, block, BLOCK, (off_t)(i % (FILE_BYTES / BLOCK)) * BLOCK) != BLOCK)
			fail("read");
}

static void in_fsync(double end)
{
	char block[BLOCK] = { 1 };
	char path[4096];
	int fd;

	file_of("fsync", path, sizeof(path));
	fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
	if (fd < 0)
		fail(path);
	unlink(path);
	while (now() < end)
		if (pwrite(fd, block, sizeof(block), 0) != sizeof(block) || fsync(fd))
			fail(path);
}

static void in_fault(double end)
{
	int fd = cold_file("fault", 0);
	volatile char sum = 0;

	while (now() < end) {
		char *file = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);

		if (file == MAP_FAILED)
			fail("mmap");
		madvise(file, FILE_BYTES, MADV_RANDOM);
		for (int at = 0; at < FILE_BYTES && now() < end; at += 16 * BLOCK)
			sum += file[at];
		munmap(file, FILE_BYTES);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	}
}

static void in_flock(double end)
{
	char path[4096];
	pid_t pid;

	file_of("flock", path, sizeof(path));
	close(open(path, O_CREAT | O_RDWR, 0600));
	pid = fork();
	if (pid < 0)
		fail("fork");
	if (!pid) {
		int held = open(path, O_RDWR);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		be("help", "flock");
		for (;;) {
			flock(held, LOCK_EX);
			usleep(PAUSE_US);
			flock(held, LOCK_UN);
			usleep(100);
		}
	}
	int fd = open(path, O_RDWR);

	while (now() < end) {
		flock(fd, LOCK_EX);
		flock(fd, LOCK_UN);
		usleep(200);
	}
	kill(pid, SIGKILL);
	unlink(path);
}

/* Several processes make and remove files in one folder: all need the folder's inode lock, and who has it may wait for
 * the disk. */
static void in_inode(double end)
{
	char dir[4096], path[4200];

	file_of("inode", dir, sizeof(dir));
	if (mkdir(dir, 0700))
		fail(dir);
	for (int i = 0; i < WRITERS; i++) {
		pid_t pid = fork();

		if (pid < 0)
			fail("fork");
		if (pid)
			continue;
		be("wait", "inode");
		for (long n = 0; now() < end; n++) {
			snprintf(path, sizeof(path), "%s/%d-%ld", dir, i, n);
			int fd = open(path, O_CREAT | O_WRONLY, 0600);

			if (fd < 0)
				fail(path);
			close(fd);
			unlink(path);
			if (n % 16 == 0) {
				fd = open(dir, O_RDONLY);
				fsync(fd);
				close(fd);
			}
		}
		_exit(0);
	}
	be("help", "inode");
	while (wait(NULL) > 0)
		;
	rmdir(dir);
}

static double convoy_end;

static void *in_convoy(void *unused)
{
	volatile long work = 0;

	be("wait", "convoy");
	while (now() < convoy_end) {
		pthread_mutex_lock(&mutex);
		for (int i = 0; i < 20000; i++)
			work += i;
		pthread_mutex_unlock(&mutex);
	}
	return unused;
}

/* Threads that all work under one lock: one works, the rest wait in turn. */
static void convoy(double end)
{
	pthread_t threads[WRITERS];

	convoy_end = end;
	for (int i = 0; i < WRITERS; i++)
		if (pthread_create(&threads[i], NULL, in_convoy, NULL))
			fail("pthread_create");
	be("help", "convoy");
	for (int i = 0; i < WRITERS; i++)
		pthread_join(threads[i], NULL);
}

static const struct {
	const char *name;
	void (*wait)(double end);
} reasons[] = {
	{ "timer", timer },	{ "pipe", in_pipe },	 { "socket", in_socket }, { "poll", in_poll },
	{ "futex", in_futex },	{ "child", in_child },	 { "vfork", in_vfork },	  { "signal", in_signal },
	{ "disk", in_disk },	{ "fsync", in_fsync },	 { "fault", in_fault },	  { "flock", in_flock },
	{ "inode", in_inode },	{ "convoy", convoy },
};

static int wished(const char *name, int n, char **names)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(name, names[i]))
			return 1;
	return n == 0;
}

int main(int n, char **words)
{
	int status, failed = 0;

	if (n < 3) {
		fprintf(stderr, "usage: waits SECONDS FOLDER [REASON...]\n");
		return 2;
	}
	seconds = atof(words[1]);
	folder = words[2];
	for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
		pid_t pid;

		if (!wished(reasons[i].name, n - 3, words + 3))
			continue;
		pid = fork();
		if (pid < 0)
			fail("fork");
		if (!pid) {
			be("wait", reasons[i].name);
			reasons[i].wait(now() + seconds);
			exit(0);
		}
	}
	while (wait(&status) > 0)
		failed |= !WIFEXITED(status) || WEXITSTATUS(status);
	return failed;
}
