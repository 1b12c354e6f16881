/* Runs a guest of its own, which does nothing but jump to itself at an address that many programs use. Needs root and
 * KVM, in a guest with the module kvm_amd or kvm_intel.
 * Usage: nested; for ever. */
#include <err.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define ADDRESS 0x1000
#define BYTES 0x1000

static int made(int result, const char *what)
{
	if (result < 0)
		err(1, "%s", what);
	return result;
}

int main(void)
{
	static const unsigned char jump_to_itself[] = { 0xeb, 0xfe };
	struct kvm_userspace_memory_region region = { .guest_phys_addr = ADDRESS, .memory_size = BYTES };
	struct kvm_regs regs = { .rip = ADDRESS, .rflags = 2 };
	struct kvm_sregs sregs;
	int kvm, vm, vcpu;
	void *memory;

	kvm = made(open("/dev/kvm", O_RDWR), "/dev/kvm");
	vm = made(ioctl(kvm, KVM_CREATE_VM, 0), "KVM_CREATE_VM");
	memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		err(1, "mmap");
	memcpy(memory, jump_to_itself, sizeof(jump_to_itself));
	region.userspace_addr = (unsigned long)memory;
	made(ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region), "KVM_SET_USER_MEMORY_REGION");
	vcpu = made(ioctl(vm, KVM_CREATE_VCPU, 0), "KVM_CREATE_VCPU");
	mmap(NULL, made(ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), "KVM_GET_VCPU_MMAP_SIZE"), PROT_READ | PROT_WRITE,
	     MAP_SHARED, vcpu, 0);
	made(ioctl(vcpu, KVM_GET_SREGS, &sregs), "KVM_GET_SREGS");
	sregs.cs.base = 0;
	sregs.cs.selector = 0;
	made(ioctl(vcpu, KVM_SET_SREGS, &sregs), "KVM_SET_SREGS");
	made(ioctl(vcpu, KVM_SET_REGS, &regs), "KVM_SET_REGS");
	for (;;)
		made(ioctl(vcpu, KVM_RUN, 0), "KVM_RUN");
}
