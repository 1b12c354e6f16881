/* A VM without a VMM, whose memory is held in some way. It goes on until it is killed.
 *
 *   held_vm own MIB CPU ...     an io_uring of its own has its memory as a buffer
 *   held_vm other MIB CPU ...   another process has, which maps the same memory
 *   held_vm cells MIB CPU ...   two vCPUs and two memories, each where the other one's vCPU runs
 *
 * Memory is on the node of the CPU that it starts on, the vCPU on CPU; `...` is what a VMM's command line would say.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define CODE_AT 0x1000

/* jmp to itself */
static const uint8_t CODE[] = { 0xeb, 0xfe };

static int vm, kvm;

struct vcpu {
	int number, cpu;
};

static void run_on(int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		err(1, "CPU %d", cpu);
}

static void *run(void *argument)
{
	struct vcpu *vcpu = argument;
	struct kvm_sregs sregs;
	struct kvm_regs regs = { .rip = CODE_AT, .rflags = 2 };
	int fd = ioctl(vm, KVM_CREATE_VCPU, vcpu->number);

	run_on(vcpu->cpu);
	if (fd < 0 || mmap(NULL, ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ||
	    ioctl(fd, KVM_GET_SREGS, &sregs))
		err(1, "vCPU");
	sregs.cs.base = sregs.cs.selector = 0;
	if (ioctl(fd, KVM_SET_SREGS, &sregs) || ioctl(fd, KVM_SET_REGS, &regs))
		err(1, "registers");
	for (;;)
		ioctl(fd, KVM_RUN, 0);
}

static void pin(void *memory, size_t size)
{
	struct io_uring_params params = { 0 };
	struct iovec buffer = { memory, size };
	int ring = syscall(__NR_io_uring_setup, 4, &params);

	if (ring < 0 || syscall(__NR_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1))
		err(1, "io_uring");
}

static void *memory_of(int slot, size_t size, int cpu)
{
	int fd = memfd_create("memory", 0);
	void *memory;
	struct kvm_userspace_memory_region region = { .slot = slot, .guest_phys_addr = slot * size, .memory_size = size };

	if (fd < 0 || ftruncate(fd, size))
		err(1, "memory");
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		err(1, "memory");
	run_on(cpu);
	memset(memory, 1, size);
	if (slot == 0)
		memcpy((char *)memory + CODE_AT, CODE, sizeof(CODE));
	region.userspace_addr = (uintptr_t)memory;
	if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region))
		err(1, "memory of the VM");
	return memory;
}

int main(int argc, char **argv)
{
	int start = sched_getcpu(), cells = argc > 3 && !strcmp(argv[1], "cells");
	size_t size = argc > 3 ? (size_t)atoi(argv[2]) << 20 : 0;
	struct vcpu vcpus[] = { { 0, argc > 3 ? atoi(argv[3]) : 0 }, { 1, start } };
	pthread_t thread;
	void *memory;

	kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	vm = ioctl(kvm, KVM_CREATE_VM, 0);
	if (!size || vm < 0)
		err(1, "VM");
	memory = memory_of(0, size, start);
	if (cells)
		memory_of(1, size, vcpus[0].cpu);
	if (!strcmp(argv[1], "own"))
		pin(memory, size);
	if (!strcmp(argv[1], "other") && fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(vm);
		close(kvm);
		pin(memory, size);
		puts("pinned");
		fflush(stdout);
		for (;;)
			pause();
	}
	for (int i = 0; i <= cells; i++)
		if (pthread_create(&thread, NULL, run, &vcpus[i]))
			errx(1, "thread");
	sleep(1);
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}
