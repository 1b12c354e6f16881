/* SPDX-License-Identifier: Apache-2.0 */
/* To a privilege level and back. */
#include "segments.h"

#define FLAGS 0x3002 /* IOPL 3; interrupts off */

	.text

/* unsigned ring_call(void (*body)(void *), void *argument, unsigned ring, void *stack): 0 if body came back, else what
 * ring_end was called with. An IRET to level 0 doesn't change the stack. */
	.globl ring_call
ring_call:
	push %ebp
	push %ebx
	push %esi
	push %edi
	pushf
	mov 24(%esp), %esi
	mov 28(%esp), %edi
	mov 32(%esp), %ebx
	mov 36(%esp), %ecx
	mov %esp, ring_0_stack
	movb $1, guard_active

	imul $DATA_SELECTOR(1) - DATA_SELECTOR(0), %ebx, %eax
	lea DATA_SELECTOR(0)(%eax), %edx
	lea CODE_SELECTOR(0)(%eax), %eax
	test %ebx, %ebx
	jnz 1f
	mov %ecx, %esp
	jmp 2f
1:	push %edx
	push %ecx
2:	push $FLAGS
	push %eax
	push $at_ring
	mov %edx, %ds
	mov %edx, %es
	mov %edx, %fs
	mov %edx, %gs
	iret

at_ring:
	push %edi
	call *%esi
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
	mov 4(%esp), %eax

/* By IRET: after an NMI no other comes before one. */
back:
	mov $DATA_SELECTOR(0), %edx
	mov %edx, %ss
	mov %edx, %ds
	mov %edx, %es
	mov %edx, %fs
	mov %edx, %gs
	mov ring_0_stack, %esp
	pushf
	push $CODE_SELECTOR(0)
	push $1f
	iret
1:	cld
	popf
	pop %edi
	pop %esi
	pop %ebx
	pop %ebp
	ret

	.bss
	.balign 4
ring_0_stack:
	.skip 4

	.section .note.GNU-stack, "", @progbits
