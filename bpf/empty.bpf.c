// SPDX-License-Identifier: GPL-2.0
/* Programs that do nothing: the lowest possible cost of a sample (the example `floor` of crates/probes), and of a system call
 * that is traced for all tasks (the example `strangers` of crates/tracer). */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

SEC("perf_event")
int nothing(void *ctx)
{
	return 0;
}

SEC("raw_tp/sys_enter")
int nothing_at_calls(void *ctx)
{
	return 0;
}
