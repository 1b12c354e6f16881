/* Gives work to kernel threads, for ever: kworkers pass a terminal's input on and take network namespaces down; files
 * that are closed are freed by RCU, whose thread ends grace periods and whose callbacks ksoftirqd helps to call.
 * Usage: kernel-work */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static void type_on_terminal(void)
{
	int terminal = posix_openpt(O_RDWR | O_NOCTTY), line;
	struct termios settings;
	char text[1024];

	if (terminal < 0 || grantpt(terminal) || unlockpt(terminal))
		_exit(1);
	line = open(ptsname(terminal), O_RDWR | O_NOCTTY);
	if (line < 0 || tcgetattr(line, &settings))
		_exit(1);
	settings.c_lflag &= ~ECHO;
	if (tcsetattr(line, TCSANOW, &settings))
		_exit(1);
	for (size_t i = 0; i < sizeof(text); i++)
		text[i] = i % 64 == 63 ? '\n' : 'a';
	if (fork() == 0)
		while (0 < read(line, text, sizeof(text)))
			;
	while (0 < write(terminal, text, sizeof(text)))
		;
	_exit(1);
}

static void close_files(void)
{
	for (;;) {
		int file = open("/dev/null", O_RDONLY);

		if (file < 0)
			_exit(1);
		close(file);
	}
}

static void make_namespaces(void)
{
	for (;;) {
		pid_t child = fork();

		if (child == 0)
			_exit(unshare(CLONE_NEWNET) != 0);
		if (child < 0 || waitpid(child, NULL, 0) < 0)
			_exit(1);
	}
}

int main(void)
{
	if (fork() == 0)
		type_on_terminal();
	if (fork() == 0)
		close_files();
	if (fork() == 0)
		make_namespaces();
	/* None of them ever ends, unless it can't do its work. */
	return wait(NULL) < 0 || 1;
}
