/* SPDX-License-Identifier: GPL-2.0 */
/* What the programs assume about the CPU's architecture. A port starts here. The rest that only x86-64 has:
 * vmcb.bpf.h and registers.bpf.h (AMD's and Intel's virtualisation), the interrupt vectors of tracer.bpf.c, and
 * thread.fsbase of guest_processes.bpf.c. */
#ifndef VMSCOPE_ARCH_BPF_H
#define VMSCOPE_ARCH_BPF_H

#ifndef __TARGET_ARCH_x86
#error "vmscope's BPF programs support x86-64 only"
#endif

/* arch/x86/include/asm/page_64_types.h, without KASAN */
#define THREAD_SIZE (4 * 4096)
/* arch/x86/include/asm/thread_info.h: a 32-bit system call */
#define TS_COMPAT 0x0002
/* arch/x86/entry/syscalls/syscall_64.tbl */
#define SYSCALL_RT_SIGRETURN 15

/* Earlier stores become visible before later ones. x86 keeps stores in order, so only the compiler must be stopped. */
#define store_barrier() barrier()

#endif
