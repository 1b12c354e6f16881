/* Starts short-lived processes, one after the other, for ever: forks, executes `shortlived` (found
 * beside itself), waits for it.
 * Usage: forker [MILLISECONDS of each process [PAUSE between them, ms]] */
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char self[PATH_MAX], program[PATH_MAX + 16];
	const char *life = argc > 1 ? argv[1] : "300";
	useconds_t pause_us = (argc > 2 ? atol(argv[2]) : 50) * 1000;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n < 0)
		return 1;
	self[n] = '\0';
	snprintf(program, sizeof(program), "%s/shortlived", dirname(self));
	for (;;) {
		pid_t child = fork();

		if (child == 0) {
			execl(program, "shortlived", life, (char *)NULL);
			_exit(127);
		}
		if (child < 0)
			return 1;
		waitpid(child, NULL, 0);
		usleep(pause_us);
	}
}
