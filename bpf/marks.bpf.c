// SPDX-License-Identifier: GPL-2.0
/* Stamps marks that a guest writes to an I/O port, as its VM exits: the same instants seen from both sides. */
#include "kernel.bpf.h"
#include <bpf/bpf_tracing.h>
#include "abi/vm.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct {
	__u32 pid;   /* the VM's process */
	__u32 nonce; /* upper bits of a mark's value; the lower ones are its number */
} config = {};

/* By the mark's number: when the host saw it, ns of CLOCK_MONOTONIC; 0: not yet. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MARKS);
	__type(key, __u32);
	__type(value, __u64);
} marks SEC(".maps");

#define KVM_PIO_OUT 1

/* Not tp_btf: Linux 6.1 takes the tracepoint's `const void *` for a structure that it does not know. */
SEC("raw_tp/kvm_pio")
int BPF_PROG(note_mark, unsigned int rw, unsigned int port, unsigned int size, unsigned int count, void *data)
{
	__u64 now = bpf_ktime_get_ns();
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 value = 0;
	__u64 *mark;
	__u32 key;

	if (rw != KVM_PIO_OUT || port != MARK_PORT || size != sizeof(value) || task->tgid != config.pid)
		return 0;
	if (bpf_probe_read_kernel(&value, sizeof(value), data) || (value & ~(MARKS - 1)) != config.nonce)
		return 0;
	key = value & (MARKS - 1);
	mark = bpf_map_lookup_elem(&marks, &key);
	if (mark && !*mark)
		*mark = now;
	return 0;
}
