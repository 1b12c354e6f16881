// SPDX-License-Identifier: GPL-2.0
/* A program that does nothing: the lowest possible cost of a sample. Only the example `floor` of crates/probes loads it. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

SEC("perf_event")
int nothing(void *ctx)
{
	return 0;
}
