/* Spends its time in the kernel: small system calls, one after the other, for ever.
 * Usage: syscalls [ROUNDS]; without it, for ever. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char buffer[65536];

__attribute__((noinline)) void read_zeros(int fd)
{
	for (int i = 0; i < 20; i++)
		if (read(fd, buffer, sizeof(buffer)) < 0)
			_exit(1);
}

__attribute__((noinline)) void write_null(int fd)
{
	for (int i = 0; i < 200; i++)
		if (write(fd, buffer, 4096) < 0)
			_exit(1);
}

__attribute__((noinline)) void ask_parent(void)
{
	for (int i = 0; i < 2000; i++)
		syscall(SYS_getppid);
}

__attribute__((noinline)) void look_up_file(void)
{
	struct stat st;

	for (int i = 0; i < 500; i++)
		if (stat("/proc/self/status", &st) < 0)
			_exit(1);
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 0;
	int zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_WRONLY);

	if (zero < 0 || null < 0)
		return 1;
	for (long i = 0; !rounds || i < rounds; i++) {
		read_zeros(zero);
		write_null(null);
		ask_parent();
		look_up_file();
	}
	return 0;
}
