// SPDX-License-Identifier: GPL-2.0
/* Memory slots and clocks of VMs: two iterators over open files, which run only while user space reads them. A VM may
 * end at any time, so its structures are probed and never dereferenced. */
#include "files.bpf.h"
#include "abi/vm.h"

char LICENSE[] SEC("license") = "GPL";

#define SLOT_BUCKETS 128 /* include/linux/kvm_host.h: DECLARE_HASHTABLE(id_hash, 7) */
#define SLOTS_PER_BUCKET 8

/* Linux 5.17 and later: two sets of slots, of which one is in use; each slot has a list node for each set. */
struct kvm_memslots {
	struct hlist_head id_hash[SLOT_BUCKETS];
	int node_idx;
} KERNEL_TYPE;

struct kvm___slots {
	struct kvm_memslots *memslots[1]; /* [1]: system management mode */
} KERNEL_TYPE;

struct kvm_memory_slot {
	struct hlist_node id_node[2];
	__u64 base_gfn;
	unsigned long npages;
	unsigned long userspace_addr;
	__u32 flags;
} KERNEL_TYPE;

struct kvm_vcpu_arch___clock {
	__u64 l1_tsc_offset;
	__u64 l1_tsc_scaling_ratio;
} KERNEL_TYPE;

struct kvm_vcpu___clock {
	struct kvm_vcpu_arch___clock arch;
} KERNEL_TYPE;

static __always_inline int report_slot(struct seq_file *seq, struct memory_slot_found *found, struct hlist_node *node,
				       __u32 node_idx)
{
	/* `node` is slot->id_node[node_idx]. */
	struct kvm_memory_slot *slot =
		(void *)node - bpf_core_field_offset(struct kvm_memory_slot, id_node) - node_idx * 2 * sizeof(void *);

	if (bpf_core_read(&found->first_page, sizeof(found->first_page), &slot->base_gfn) ||
	    bpf_core_read(&found->pages, sizeof(found->pages), &slot->npages) ||
	    bpf_core_read(&found->address, sizeof(found->address), &slot->userspace_addr) ||
	    bpf_core_read(&found->flags, sizeof(found->flags), &slot->flags) || !found->pages)
		return 0;
	return bpf_seq_write(seq, found, sizeof(*found));
}

static __always_inline int report_bucket(struct seq_file *seq, struct memory_slot_found *found,
					 struct hlist_head *bucket, __u32 node_idx)
{
	struct hlist_node *node = NULL;

	if (bpf_probe_read_kernel(&node, sizeof(node), bucket))
		return 0;
	for (int i = 0; i < SLOTS_PER_BUCKET; i++) {
		if (!node)
			return 0;
		if (report_slot(seq, found, node, node_idx))
			return 0;
		if (bpf_probe_read_kernel(&node, sizeof(node), node))
			return 0;
	}
	if (node) {
		found->pages = 0;
		bpf_seq_write(seq, found, sizeof(*found));
	}
	return 0;
}

SEC("iter/task_file")
int find_slots(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct memory_slot_found found = {};
	struct kvm_memslots *slots = NULL;
	struct kvm___slots *kvm;
	int node_idx = 0;

	if (!is_new_file(task, file))
		return 0;
	if (!bpf_core_field_exists(struct kvm_memory_slot, id_node) || !is_vm_file(file))
		return 0;
	kvm = file->private_data;
	found.kvm = (__u64)kvm;
	found.pid = task->tgid;
	if (!is_own_vm(task, (struct kvm *)kvm))
		return 0;
	if (bpf_core_read(&slots, sizeof(slots), &kvm->memslots[0]) || !slots ||
	    bpf_core_read(&node_idx, sizeof(node_idx), &slots->node_idx))
		return 0;
	for (int i = 0; i < SLOT_BUCKETS; i++) {
		struct hlist_head *first = (void *)slots + bpf_core_field_offset(struct kvm_memslots, id_hash);

		report_bucket(ctx->meta->seq, &found, first + i, node_idx & 1);
	}
	return 0;
}

SEC("iter/task_file")
int find_clocks(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct vcpu_clock_found found = {};
	struct kvm_vcpu___clock *clock = NULL;
	__u8 protected_state = 0;
	struct task_struct *thread;
	struct kvm_vcpu *vcpu;

	if (!is_new_file(task, file))
		return 0;
	if (!bpf_core_field_exists(clock->arch.l1_tsc_offset) || !is_vcpu_file(file))
		return 0;
	vcpu = file->private_data;
	clock = (void *)vcpu;
	found.pid = task->tgid;
	if (bpf_core_read(&found.kvm, sizeof(found.kvm), &vcpu->kvm) ||
	    bpf_core_read(&found.number, sizeof(found.number), &vcpu->vcpu_id) ||
	    bpf_core_read(&found.tsc_offset, sizeof(found.tsc_offset), &clock->arch.l1_tsc_offset) ||
	    bpf_core_read(&found.tsc_ratio, sizeof(found.tsc_ratio), &clock->arch.l1_tsc_scaling_ratio) ||
	    !is_own_vm(task, (struct kvm *)found.kvm))
		return 0;
	thread = thread_of(vcpu, task);
	if (thread)
		bpf_core_read(&found.tid, sizeof(found.tid), &thread->pid);
	if (bpf_core_field_exists(vcpu->arch.guest_state_protected) &&
	    !bpf_core_read(&protected_state, sizeof(protected_state), &vcpu->arch.guest_state_protected))
		found.protected_state = protected_state;
	bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}
