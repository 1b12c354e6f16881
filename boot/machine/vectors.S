/* SPDX-License-Identifier: Apache-2.0 */
/* An entry for each vector, 16 bytes apart. All end in trap() of guard.c, with a struct trap_frame. */

/* Does the processor push an error code with it? */
#define HAS_ERROR_CODE(v) ((v) == 8 || (v) >= 10 && (v) <= 14 || (v) == 17 || (v) == 21 || (v) == 29 || (v) == 30)

	.text
	.balign 16
	.globl vectors
vectors:
	.set vector, 0
	.rept 256
	.balign 16
	.if !(HAS_ERROR_CODE(vector))
	push $0
	.endif
	push $vector
	jmp enter
	.set vector, vector + 1
	.endr

#ifdef __x86_64__
enter:
	push %rax
	push %rbx
	push %rcx
	push %rdx
	push %rsi
	push %rdi
	push %rbp
	push %r8
	push %r9
	push %r10
	push %r11
	push %r12
	push %r13
	push %r14
	push %r15
	cld
	mov %rsp, %rdi
	call trap
	pop %r15
	pop %r14
	pop %r13
	pop %r12
	pop %r11
	pop %r10
	pop %r9
	pop %r8
	pop %rbp
	pop %rdi
	pop %rsi
	pop %rdx
	pop %rcx
	pop %rbx
	pop %rax
	add $16, %rsp
	iretq
#else
#include "segments.h"
enter:
	pusha
	push %ds
	push %es
	mov $DATA_SELECTOR(0), %eax
	mov %eax, %ds
	mov %eax, %es
	cld
	push %esp
	call trap
	add $4, %esp
	pop %es
	pop %ds
	popa
	add $8, %esp
	iret
#endif

	.section .note.GNU-stack, "", @progbits
