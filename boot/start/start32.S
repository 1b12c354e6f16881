/* SPDX-License-Identifier: Apache-2.0 */
/* Where loaders enter: Multiboot 1 (grub, QEMU) and PVH (QEMU, Xen, small VMMs). Both come in 32-bit protected mode with
 * flat segments, paging and interrupts off; EBX has the address of what the loader tells. */
#include "shared.h"

#define MULTIBOOT_MAGIC 0x1badb002
#define MULTIBOOT_FLAGS (1 << 1 | 1 << 2) /* memory map, video mode */
#define PVH_MAGIC 0x336ec578              /* as in its struct hvm_start_info */
#define NOTE_PHYS32_ENTRY 18
#define CR0_START 0x31 /* protected mode, x87 errors as exceptions; whatever else the firmware left is off */

	.section .multiboot, "a"
	.balign 4
	.long MULTIBOOT_MAGIC
	.long MULTIBOOT_FLAGS
	.long -(MULTIBOOT_MAGIC + MULTIBOOT_FLAGS)
	.long 0, 0, 0, 0, 0 /* the ELF header tells addresses */
	.long 0             /* a linear framebuffer of about */
	.long 1024, 768, 32

	.section .note, "a", @note
	.balign 4
	.long 2f - 1f, 4f - 3f, NOTE_PHYS32_ENTRY
1:	.asciz "Xen"
2:	.balign 4
3:	.long start_pvh
4:	.balign 4

	.text
	.globl start_multiboot
start_multiboot:
	jmp start

start_pvh:
	mov $PVH_MAGIC, %eax

start:
	cli
	cld
	mov $stack_top, %esp
	push $0 /* flags: nothing left over, no nested task */
	popf
	mov $CR0_START, %ecx
	mov %ecx, %cr0
	xor %ecx, %ecx
	mov %ecx, %cr4
	push %ebx
	push %eax
	call main
1:	hlt
	jmp 1b

/* void jump_to_64(void): paging is off. */
	.globl jump_to_64
jump_to_64:
	mov $program64, %esi
	mov $PROGRAM64_ADDRESS, %edi
	mov $program64_end - program64, %ecx
	rep movsb
	mov $PROGRAM64_ADDRESS, %eax
	jmp *%eax

	.section .rodata
program64:
	.incbin "program64.bin"
program64_end:

	.bss
	.balign 16
	.skip 32768
stack_top:

	.section .note.GNU-stack, "", @progbits
