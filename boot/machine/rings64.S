/* SPDX-License-Identifier: Apache-2.0 */
/* To a privilege level and back. */
#include "segments.h"

#define FLAGS 0x3002 /* IOPL 3; interrupts off */

	.text

/* unsigned ring_call(void (*body)(void *), void *argument, unsigned ring, void *stack): 0 if body came back, else what
 * ring_end was called with. */
	.globl ring_call
ring_call:
	push %rbp
	push %rbx
	push %r12
	push %r13
	push %r14
	push %r15
	pushf
	mov %rsp, ring_0_stack
	movb $1, guard_active

	imul $DATA_SELECTOR(1) - DATA_SELECTOR(0), %edx, %eax
	lea DATA_SELECTOR(0)(%rax), %edx
	lea CODE_SELECTOR(0)(%rax), %eax
	push %rdx
	push %rcx
	push $FLAGS
	push %rax
	push $at_ring
	mov %edx, %ds
	mov %edx, %es
	mov %rdi, %rax
	mov %rsi, %rdi
	iretq

at_ring:
	call *%rax
	int $VECTOR_RETURN

/* The gate of VECTOR_RETURN. */
	.globl ring_back
ring_back:
	movb $0, guard_active
	xor %eax, %eax
	jmp back

/* void ring_end(unsigned outcome): leaves the body for good, from a handler at level 0. */
	.globl ring_end
ring_end:
	mov %edi, %eax

/* By IRET: after an NMI no other comes before one. */
back:
	mov $DATA_SELECTOR(0), %edx
	mov %edx, %ds
	mov %edx, %es
	mov ring_0_stack, %rcx
	push %rdx
	push %rcx
	pushf
	push $CODE_SELECTOR(0)
	push $1f
	iretq
1:	cld
	popf
	pop %r15
	pop %r14
	pop %r13
	pop %r12
	pop %rbx
	pop %rbp
	ret

	.bss
	.balign 8
ring_0_stack:
	.skip 8

	.section .note.GNU-stack, "", @progbits
