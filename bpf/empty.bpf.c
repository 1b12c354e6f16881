// SPDX-License-Identifier: GPL-2.0
/* Nothing: the floor under the cost of any program on the sampling interrupt. Only the measuring example
 * of crates/probes loads it. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

SEC("perf_event")
int nothing(void *ctx)
{
	return 0;
}
