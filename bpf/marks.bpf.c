// SPDX-License-Identifier: GPL-2.0
/* Takes the times of marks: instants that a guest and its host both see. A guest makes a mark by writing a number to a
 * port and reading the answer. */
#include "kernel.bpf.h"
#include <bpf/bpf_tracing.h>
#include "abi/vm.h"

char LICENSE[] SEC("license") = "GPL";

/* arch/x86/kvm/trace.h */
#define KVM_PIO_IN 0
#define KVM_PIO_OUT 1

const volatile struct {
	__u32 pid; /* the VM's process */
} config = {};

/* By the mark's number. The last one counts all other writes to the port. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MARKS + 1);
	__type(key, __u32);
	__type(value, struct mark_seen);
} marks SEC(".maps");

static __always_inline __u32 number_of(__u32 address)
{
	__u32 number = (address - MARK_ADDRESS) / 4;

	return address % 4 == 0 && number < MARKS ? number : MARKS;
}

/* The guest's kernel holds a lock from the write to the answer, so there is one mark at a time. */
static __u32 last;

static __always_inline void note_write(__u64 now, unsigned int size, void *data)
{
	__u32 address = 0, number;
	struct mark_seen *mark;

	/* A write that is no readable address counts as no mark. */
	if (size == sizeof(address))
		bpf_probe_read_kernel(&address, sizeof(address), data);
	number = number_of(address);
	mark = bpf_map_lookup_elem(&marks, &number);
	if (mark && !__sync_fetch_and_add(&mark->count, 1))
		mark->written = now;
	last = number;
}

static __always_inline void note_answer(__u64 now)
{
	__u32 number = last;
	struct mark_seen *mark = bpf_map_lookup_elem(&marks, &number);

	if (mark && mark->count == 1)
		mark->answered = now;
}

/* KVM traces a read when the answer is known, just before the guest continues. */
SEC("raw_tp/kvm_pio")
int BPF_PROG(note_mark, unsigned int rw, unsigned int port, unsigned int size, unsigned int count, void *data)
{
	__u64 now = bpf_ktime_get_ns();
	struct task_struct *task = bpf_get_current_task_btf();

	if (task->tgid != config.pid)
		return 0;
	if (rw == KVM_PIO_OUT && port == MARK_PORT)
		note_write(now, size, data);
	else if (rw == KVM_PIO_IN && port == MARK_ANSWER_PORT)
		note_answer(now);
	return 0;
}
