/* SPDX-License-Identifier: Apache-2.0 */
/* Where the second CPU starts: in real mode, at the page that the start-up IPI named. From there to this program's mode. */

#define CODE_32 0x08
#define DATA 0x10
#define CODE_64 0x18
#define NO_CACHES 0x60000000 /* CR0.CD and NW, as INIT leaves them */
#define PROTECTED 1
#define PAGING 0x80000000
#define PAE 0x20
#define MSR_EFER 0xc0000080

	.text
	.code16
	.globl ap_trampoline, ap_trampoline_end
ap_trampoline:
	cli
	cld
	mov %cs, %ax
	mov %ax, %ds
	lgdtl gdt_register - ap_trampoline
	mov %cr0, %eax
	and $~NO_CACHES, %eax
	or $PROTECTED, %eax
	mov %eax, %cr0
	ljmpl $CODE_32, $protected
	.balign 4
gdt_register:
	.word gdt_end - gdt_start - 1
	.long gdt_start
ap_trampoline_end:

	.code32
protected:
	mov $DATA, %eax
	mov %eax, %ds
	mov %eax, %es
	mov %eax, %fs
	mov %eax, %gs
	mov %eax, %ss
#ifdef __x86_64__
	mov %cr4, %eax
	or $PAE, %eax
	mov %eax, %cr4
	mov ap_cr3, %eax
	mov %eax, %cr3
	mov $MSR_EFER, %ecx
	mov ap_efer, %eax
	xor %edx, %edx
	wrmsr
	mov %cr0, %eax
	or $PAGING, %eax
	mov %eax, %cr0
	ljmp $CODE_64, $long_mode
	.code64
long_mode:
	mov $stack_top, %rsp
#else
	mov $stack_top, %esp
#endif
	call second_cpu_main

	.section .rodata
	.balign 8
gdt_start:
	.quad 0
	.quad 0x00cf9b000000ffff /* 32-bit code; accessed already: no writes here */
	.quad 0x00cf93000000ffff
	.quad 0x00af9b000000ffff /* 64-bit code */
gdt_end:

	.bss
	.balign 16
	.skip 4096
stack_top:

	.section .note.GNU-stack, "", @progbits
