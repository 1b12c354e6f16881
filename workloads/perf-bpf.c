/* Attaches a BPF program to the tracepoints of system calls by perf, as other tools do. It returns 0: other perf events then
 * see no system calls. Prints `ready`, and stays until it is ended. Needs root, and tracefs at /sys/kernel/tracing. */
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static int number_of(const char *path)
{
	FILE *file = fopen(path, "r");
	int number;

	if (!file || fscanf(file, "%d", &number) != 1)
		fail(path);
	fclose(file);
	return number;
}

static int load(void)
{
	struct bpf_insn program[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 0 },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	union bpf_attr attributes = {
		.prog_type = BPF_PROG_TYPE_TRACEPOINT,
		.insns = (unsigned long)program,
		.insn_cnt = 2,
		.license = (unsigned long)"GPL",
	};
	int fd = syscall(SYS_bpf, BPF_PROG_LOAD, &attributes, sizeof(attributes));

	if (fd < 0)
		fail("bpf");
	return fd;
}

static void attach(int program, const char *path)
{
	struct perf_event_attr event = {
		.type = PERF_TYPE_TRACEPOINT,
		.size = sizeof(event),
		.config = number_of(path),
	};
	int fd = syscall(SYS_perf_event_open, &event, -1, 0, -1, 0);

	if (fd < 0 || ioctl(fd, PERF_EVENT_IOC_SET_BPF, program))
		fail("perf event");
}

int main(void)
{
	int program = load();

	attach(program, "/sys/kernel/tracing/events/raw_syscalls/sys_enter/id");
	attach(program, "/sys/kernel/tracing/events/raw_syscalls/sys_exit/id");
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}
