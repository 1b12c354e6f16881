// SPDX-License-Identifier: GPL-2.0
/* Never loaded: its BTF says how the structures of bpf/abi/ lie in memory. crates/probes/tests/layouts.rs compares that with
 * what the Rust side reads. The programs' own BTF lacks those that are only local variables. */
#include <linux/bpf.h>
#include <linux/types.h>
#include "abi/guest_process.h"
#include "abi/quota.h"
#include "abi/sample.h"
#include "abi/switch.h"
#include "abi/trace.h"
#include "abi/vm.h"

struct sample sample;
struct stack stack;
struct stack_chunk stack_chunk;
struct ring ring;
struct vcpu_ref vcpu_ref;
struct guest_view guest_view;
struct guest_slot guest_slot;
struct guest_page guest_page;
struct guest_code guest_code;
struct interpreter interpreter;
struct vcpu_found vcpu_found;
struct switch_event switch_event;
struct quota_event quota_event;
struct memory_slot_found memory_slot_found;
struct vcpu_clock_found vcpu_clock_found;
struct trace_slot trace_slot;
struct trace_ring trace_ring;
struct user_stack user_stack;
struct guest_process_event guest_process_event;
