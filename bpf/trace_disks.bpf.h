/* SPDX-License-Identifier: GPL-2.0 */
/* Requests to disks. */
#ifndef VMSCOPE_TRACE_DISKS_BPF_H
#define VMSCOPE_TRACE_DISKS_BPF_H

#include "trace_files.bpf.h"
#include <bpf/bpf_tracing.h>

static __always_inline __u32 op_of(unsigned int flags)
{
	switch (flags & REQ_OP_MASK) {
	case REQ_OP_READ:
		return TRACE_OP_READ;
	case REQ_OP_WRITE:
		return TRACE_OP_WRITE;
	case REQ_OP_FLUSH:
		return TRACE_OP_FLUSH;
	case REQ_OP_DISCARD:
	case REQ_OP_SECURE_ERASE:
	case REQ_OP_WRITE_ZEROES:
		return TRACE_OP_DISCARD;
	}
	return TRACE_OP_OTHER;
}

/* Commands that a driver makes may have no disk. */
static __always_inline bool has_disk(struct request *request)
{
	return request->q->disk;
}

static __always_inline int emit_request(__u32 kind, struct request *request)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 op = op_of(request->cmd_flags);
	/* A flush has no sector: the kernel says -1. */
	__u64 sector = op == TRACE_OP_FLUSH ? 0 : request->__sector;
	struct ring_space space;

	if (!has_disk(request) || !ring_reserve(&space, kind, 3))
		return 0;
	write_more(&space, 2, op, request->__data_len);
	write_more(&space, 1, sector, halves(request->q->disk->part0->bd_dev, task->pid));
	write_slot(&space, 0, kind, space.time, (__u64)request);
	return 0;
}

SEC("tp_btf/block_rq_insert")
int BPF_PROG(block_rq_insert, struct request *request)
{
	return emit_request(TRACE_BLOCK_INSERT, request);
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(block_rq_issue, struct request *request)
{
	emit_request(TRACE_BLOCK_ISSUE, request);
	if (config.files_mask && has_disk(request))
		emit_request_file(request);
	return 0;
}

SEC("tp_btf/block_rq_requeue")
int BPF_PROG(block_rq_requeue, struct request *request)
{
	return has_disk(request) ? emit(TRACE_BLOCK_REQUEUE, (__u64)request) : 0;
}

/* A queued request was merged into another one. */
SEC("tp_btf/block_rq_merge")
int BPF_PROG(block_rq_merge, struct request *request)
{
	return has_disk(request) ? emit(TRACE_BLOCK_MERGE, (__u64)request) : 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(block_rq_complete, struct request *request, __u8 error, unsigned int bytes)
{
	return has_disk(request) ? emit_more(TRACE_BLOCK_COMPLETE, (__u64)request, 0, bytes) : 0;
}

#endif
