/* SPDX-License-Identifier: Apache-2.0 */
/* The way to 64-bit mode: identity mapping of 4 GiB by 2 MiB pages, in tables of its own, and a GDT for the jump. */
#include "shared.h"

#define CR0_PAGING (1 << 31)
#define CR4_PAE (1 << 5)
#define MSR_EFER 0xc0000080
#define EFER_LONG_MODE (1 << 8)
#define TABLE 0x07 /* present, writable, user */
#define LARGE 0x87 /* the same as a page of 2 MiB */
#define N_GIB 4

/* The 32-bit program jumps to the very first byte. */
	.section .start, "ax"
	.code32
	.globl start64
start64:
	mov $bss_start, %edi
	mov $bss_end, %ecx
	sub %edi, %ecx
	xor %eax, %eax
	rep stosb

	movl $start_pointers + TABLE, start_top
	mov $start_pointers, %edi
	mov $start_directories + TABLE, %eax
	mov $N_GIB, %ecx
1:	mov %eax, (%edi)
	add $4096, %eax
	add $8, %edi
	loop 1b

	mov $start_directories, %edi
	mov $LARGE, %eax
	mov $N_GIB * 512, %ecx
2:	mov %eax, (%edi)
	add $1 << 21, %eax
	add $8, %edi
	loop 2b

	mov $CR4_PAE, %eax
	mov %eax, %cr4
	mov $start_top, %eax
	mov %eax, %cr3
	mov $MSR_EFER, %ecx
	rdmsr
	or $EFER_LONG_MODE, %eax
	wrmsr
	mov %cr0, %eax
	or $CR0_PAGING, %eax
	mov %eax, %cr0
	lgdt start_gdt_register
	ljmp $8, $3f

	.code64
3:	mov $16, %eax
	mov %eax, %ss
	mov %eax, %ds
	mov %eax, %es
	mov $stack_top, %esp
	call main
4:	hlt
	jmp 4b

	.section .rodata
	.balign 8
start_gdt:
	.quad 0
	.quad 0x00af9b000000ffff
	.quad 0x00cf93000000ffff
start_gdt_register:
	.word . - start_gdt - 1
	.long start_gdt

	.bss
	.balign 4096
start_top:
	.skip 4096
start_pointers:
	.skip 4096
start_directories:
	.skip N_GIB * 4096
	.skip 32768
stack_top:

	.section .note.GNU-stack, "", @progbits
