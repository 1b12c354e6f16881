/* SPDX-License-Identifier: Apache-2.0 */
/* What the loader tells: memory, command line, framebuffer. Multiboot 1 and PVH; only the 32-bit program is loaded. */
#include "loader.h"
#include "acpi.h"
#include "memory.h"
#include "shared.h"

#ifndef __x86_64__

enum { MULTIBOOT_LOADED = 0x2badb002 };
enum { HAS_SIZES = 1 << 0, HAS_COMMAND_LINE = 1 << 2, HAS_MAP = 1 << 6, HAS_LOADER_NAME = 1 << 9, HAS_FRAMEBUFFER = 1 << 12 };
enum { FRAMEBUFFER_RGB = 1, FRAMEBUFFER_TEXT = 2 };
enum { MEMORY_USABLE = 1, MEMORY_ACPI = 3, MEMORY_ACPI_NVS = 4 };

struct multiboot {
	uint32_t flags, kib_low, kib_high, boot_device, command_line;
	uint32_t n_modules, modules, symbols[4];
	uint32_t map_bytes, map;
	uint32_t drives_bytes, drives, configuration, loader_name, apm;
	uint32_t vbe[4];
	uint64_t framebuffer __attribute__((packed));
	uint32_t pitch, width, height;
	uint8_t bits, type;
	uint8_t red_position, red_bits, green_position, green_bits, blue_position, blue_bits;
};

struct __attribute__((packed)) multiboot_piece {
	uint32_t size; /* of what follows */
	uint64_t start, bytes;
	uint32_t type;
};

struct pvh {
	uint32_t magic, version, flags, n_modules;
	uint64_t modules, command_line, acpi_root;
	uint64_t map; /* from version 1 on */
	uint32_t n_pieces, unused;
};

struct pvh_piece {
	uint64_t start, bytes;
	uint32_t type, unused;
};

/* The BIOS's own notes, which firmware without a BIOS doesn't keep: KiB of memory below 640, video mode, columns. */
enum { BIOS_KIB = 0x413, BIOS_VIDEO_MODE = 0x449, BIOS_COLUMNS = 0x44a, BIOS_LAST_ROW = 0x484 };
enum { VGA_TEXT = 0xb8000, VIDEO_MODE_COLOUR_TEXT = 3 };

/* gcc takes such low addresses for NULL with an offset. */
static volatile uint8_t *low_memory(uint32_t address)
{
	__asm__("" : "+r"(address));
	return (volatile uint8_t *)address;
}

static unsigned bios_word(uint32_t address)
{
	return low_memory(address)[0] | low_memory(address)[1] << 8;
}

static bool bios_is_there(void)
{
	unsigned kib = bios_word(BIOS_KIB);

	return kib >= 500 && kib <= 640;
}

static void copy_command_line(const char *from)
{
	for (unsigned i = 0; i < sizeof(shared->command_line) - 1 && from[i]; i++)
		shared->command_line[i] = from[i];
}

/* All but GRUB 2 put the program's path before the command line. */
static void drop_path(const char *loader)
{
	char *line = shared->command_line;
	size_t n = 0, length = strlen(line);

	if (!memcmp(loader, "GRUB 2", 6))
		return;
	while (line[n] && line[n] != ' ')
		n++;
	while (line[n] == ' ')
		n++;
	memmove(line, line + n, length - n + 1);
}

static void note_piece(uint64_t start, uint64_t bytes, uint32_t type)
{
	if (type == MEMORY_USABLE)
		memory_note(start, bytes);
}

static void look_for_acpi(uint64_t start, uint64_t bytes, uint32_t type)
{
	if (type == MEMORY_ACPI || type == MEMORY_ACPI_NVS)
		acpi_find_in(start, bytes);
}

static void each_multiboot_piece(const struct multiboot *from, void (*see)(uint64_t, uint64_t, uint32_t))
{
	for (uint32_t at = from->map; at < from->map + from->map_bytes;) {
		const struct multiboot_piece *piece = (const void *)at;

		see(piece->start, piece->bytes, piece->type);
		at += piece->size + sizeof(piece->size);
	}
}

static void read_framebuffer(const struct multiboot *from)
{
	struct framebuffer *to = &shared->framebuffer;

	if (from->framebuffer >> 32)
		return; /* not mapped */
	if (from->type == FRAMEBUFFER_RGB) {
		*to = (struct framebuffer){
			.address = from->framebuffer,
			.width = from->width,
			.height = from->height,
			.pitch = from->pitch,
			.bits = from->bits,
			.red_position = from->red_position,
			.green_position = from->green_position,
			.blue_position = from->blue_position,
		};
	} else if (from->type == FRAMEBUFFER_TEXT) {
		*to = (struct framebuffer){
			.address = from->framebuffer,
			.width = from->width,
			.height = from->height,
			.pitch = from->pitch,
			.text = 1,
		};
	}
}

/* Where the loader tells of no screen, a BIOS leaves VGA text. */
static void guess_framebuffer(void)
{
	if (!bios_is_there() || *low_memory(BIOS_VIDEO_MODE) != VIDEO_MODE_COLOUR_TEXT)
		return;
	shared->framebuffer = (struct framebuffer){
		.address = VGA_TEXT,
		.width = bios_word(BIOS_COLUMNS),
		.height = *low_memory(BIOS_LAST_ROW) + 1,
		.pitch = 2 * bios_word(BIOS_COLUMNS),
		.text = 1,
	};
}

static void read_multiboot(const struct multiboot *from)
{
	shared->facts.loader = LOADER_MULTIBOOT;
	if (from->flags & HAS_COMMAND_LINE) {
		copy_command_line((const char *)from->command_line);
		drop_path(from->flags & HAS_LOADER_NAME ? (const char *)from->loader_name : "");
	}
	if (from->flags & HAS_MAP)
		each_multiboot_piece(from, note_piece);
	else if (from->flags & HAS_SIZES)
		memory_note(IMAGE_START, (uint64_t)from->kib_high << 10);
	if (from->flags & HAS_FRAMEBUFFER)
		read_framebuffer(from);
	acpi_find(0);
	if (from->flags & HAS_MAP)
		each_multiboot_piece(from, look_for_acpi);
}

static void read_pvh(const struct pvh *from)
{
	const struct pvh_piece *pieces = (const void *)(word)from->map;

	shared->facts.loader = LOADER_PVH;
	if (from->command_line)
		copy_command_line((const char *)(word)from->command_line);
	for (uint32_t i = 0; from->version >= 1 && i < from->n_pieces; i++)
		note_piece(pieces[i].start, pieces[i].bytes, pieces[i].type);
	acpi_find(from->acpi_root);
}

void loader_read(uint32_t magic, uint32_t information)
{
	if (magic == MULTIBOOT_LOADED)
		read_multiboot((const void *)information);
	else
		read_pvh((const void *)information);
	shared->memory = the_memory;
	if (!shared->framebuffer.width)
		guess_framebuffer();
	if (bios_is_there())
		shared->facts.firmware = FIRMWARE_BIOS;
	else if (shared->framebuffer.width)
		shared->facts.firmware = FIRMWARE_UEFI;
}

#endif
