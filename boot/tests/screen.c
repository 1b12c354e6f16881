/* SPDX-License-Identifier: Apache-2.0 */
/* Framebuffers of all depths and VGA text in this process's memory. `screen FOLDER` writes what they show there as PPM
 * files. */
#include <sys/mman.h>

#include "cpu.h"

static void fake_out8(uint16_t port, uint8_t value)
{
	(void)port, (void)value;
}
#define out8 fake_out8

#include "output/font.c"
#include "output/format.c"
#include "output/qr.c"
#include "output/screen.c"

#include "check.h"

enum { WIDTH = 328, HEIGHT = 250, PITCH = WIDTH * 4 + 64, GUARD = 0xa5 };

static const char *folder;

/* ---- what is on a framebuffer ---- */

static const struct framebuffer depths[] = {
	{ .width = WIDTH, .height = HEIGHT, .pitch = PITCH, .bits = 15, .red_position = 10, .green_position = 5 },
	{ .width = WIDTH, .height = HEIGHT, .pitch = PITCH, .bits = 16, .red_position = 11, .green_position = 5 },
	{ .width = WIDTH, .height = HEIGHT, .pitch = PITCH, .bits = 24, .red_position = 16, .green_position = 8 },
	{ .width = WIDTH, .height = HEIGHT, .pitch = PITCH, .bits = 32, .red_position = 16, .green_position = 8 },
	{ .width = WIDTH, .height = HEIGHT, .pitch = PITCH, .bits = 32, .green_position = 8, .blue_position = 16 },
};

static uint8_t *low_memory(uint64_t at, size_t size)
{
	uint8_t *memory = mmap((void *)at, size, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : MAP_32BIT), -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

static uint32_t pixel(const struct framebuffer *f, unsigned x, unsigned y)
{
	uint32_t value = 0;

	memcpy(&value, (uint8_t *)f->address + y * f->pitch + x * ((f->bits + 7) / 8), (f->bits + 7) / 8);
	return value;
}

/* 0 dark, 1 grey or white: what depth does not change. */
static bool light(const struct framebuffer *f, unsigned x, unsigned y)
{
	return pixel(f, x, y) != 0;
}

static void write_ppm(const struct framebuffer *f, const char *name)
{
	char path[300];
	FILE *file;

	if (!folder)
		return;
	snprintf(path, sizeof(path), "%s/%s.ppm", folder, name);
	file = fopen(path, "w");
	if (!file)
		return;
	fprintf(file, "P6\n%u %u\n255\n", f->width, f->height);
	for (unsigned y = 0; y < f->height; y++)
		for (unsigned x = 0; x < f->width; x++)
			fprintf(file, "%c%c%c", light(f, x, y) ? 255 : 0, light(f, x, y) ? 255 : 0, light(f, x, y) ? 255 : 0);
	fclose(file);
}

/* ---- tests ---- */

static void draw_something(void)
{
	for (unsigned i = 0; i < 40; i++)
		screen_print("%u: The quick brown fox\n", i);
	screen_print("%s", "cut here: 0123456789012345678901234567890123456789");
	screen_status("bottom %d", 7);
}

static void same_pixels(const struct framebuffer *a, const struct framebuffer *b)
{
	unsigned different = 0;

	for (unsigned y = 0; y < HEIGHT; y++)
		for (unsigned x = 0; x < WIDTH; x++)
			different += light(a, x, y) != light(b, x, y);
	CHECK(!different, "%u pixels differ between %u and %u bits", different, a->bits, b->bits);
}

static void every_depth(void)
{
	struct framebuffer frames[N_OF(depths)];

	for (unsigned i = 0; i < N_OF(depths); i++) {
		uint8_t *memory = low_memory(0, PITCH * (HEIGHT + 1));
		unsigned used = WIDTH * ((depths[i].bits + 7) / 8);

		if (!memory) {
			printf("skipped: no memory below 4 GiB\n");
			return;
		}
		frames[i] = depths[i];
		frames[i].address = (uint64_t)memory;
		memset(memory, GUARD, PITCH * (HEIGHT + 1));
		screen_init(&frames[i]);
		draw_something();
		CHECK(screen_columns() == 41 && screen_rows() == 14, "%u x %u", screen_columns(), screen_rows());
		CHECK(screen_width() == WIDTH && screen_height() == HEIGHT, "%u x %u", screen_width(), screen_height());
		for (unsigned y = 0; y < HEIGHT; y++)
			CHECK(memory[y * PITCH + used] == GUARD, "beyond line %u", y);
		CHECK(memory[PITCH * HEIGHT] == GUARD, "beyond the last line");
		CHECK(light(&frames[i], 0, 15 * 16 - 1) && !light(&frames[i], 0, HEIGHT - 1),
		      "the bottom line is light, the rest dark");
		same_pixels(&frames[0], &frames[i]);
		write_ppm(&frames[i], "text");
	}
	CHECK(pixel(&frames[0], 0, 14 * 16) == 26 * 0x421, "grey of 15 bits: %x", pixel(&frames[0], 0, 14 * 16));
	CHECK(pixel(&frames[1], 0, 14 * 16) == (26 << 11 | 52 << 5 | 26),
	      "grey of 16 bits: %x", pixel(&frames[1], 0, 14 * 16));
	CHECK(pixel(&frames[3], 0, 14 * 16) == 0xd0d0d0, "grey of 32 bits: %x", pixel(&frames[3], 0, 14 * 16));
}

static void qr_pixels(void)
{
	struct framebuffer f = depths[3];
	uint8_t modules[QR_MAX_SIDE * QR_MAX_SIDE];
	unsigned side = qr_encode("VMB1", modules), scale = 5;

	f.address = (uint64_t)low_memory(0, PITCH * HEIGHT);
	screen_init(&f);
	CHECK(qr_draw("VMB1", 10, 20, scale), "drawn");
	for (unsigned y = 0; y < side + 8; y++)
		for (unsigned x = 0; x < side + 8; x++) {
			bool dark = x - 4 < side && y - 4 < side && modules[(y - 4) * side + x - 4];

			CHECK(light(&f, 10 + x * scale, 20 + y * scale) != dark && light(&f, 14 + x * scale, 24 + y * scale) != dark,
			      "module %u, %u", x, y);
		}
	CHECK(!qr_draw("VMB1", 10, 20, 20), "too large");
	CHECK(!qr_draw("lower case", 10, 20, 1), "not alphanumeric");
	write_ppm(&f, "qr");
}

static void vga_text(void)
{
	struct framebuffer f = { .text = 1, .width = 80, .height = 25 };
	uint16_t *cells = (uint16_t *)low_memory(VGA_TEXT, 65536);

	if (!cells) {
		printf("skipped: VGA text, whose address is not to be had\n");
		return;
	}
	screen_init(&f);
	CHECK(screen_columns() == 80 && screen_rows() == 24 && !screen_width(), "80 x 24 and the bottom line");
	CHECK(cells[24 * 80 + 79] == BLANK, "cleared");
	screen_print("A%80sB", "");
	screen_status("S");
	CHECK(cells[0] == (NORMAL << 8 | 'A') && cells[80 + 1] == (NORMAL << 8 | 'B'), "wraps");
	CHECK(cells[24 * 80] == (INVERSE << 8 | 'S') && cells[24 * 80 + 1] == (INVERSE << 8 | ' '), "status");
	for (unsigned i = 0; i < 24; i++)
		screen_print("\n%u", i);
	CHECK(cells[13 * 80] == (NORMAL << 8 | '2') && cells[13 * 80 + 1] == (NORMAL << 8 | '3'),
	      "scrolled by half: %x", cells[13 * 80]);
	CHECK(cells[14 * 80] == BLANK && cells[24 * 80] == (INVERSE << 8 | 'S'), "room below, and the status is where it was");

	screen_clear();
	CHECK(qr_draw("VMB1:1/1:0123456789", 0, 0, 1), "half blocks");
	CHECK(cells[0] == 0x77df && cells[2 * 80 + 4] == 0x00df, "margin is light, the finder's corner dark");
}

static void no_screen(void)
{
	static const struct framebuffer bad[] = {
		{ 0 },
		{ .address = 1ull << 32, .width = 640, .height = 480, .pitch = 2560, .bits = 32 },
		{ .address = 0xfff00000, .width = 640, .height = 480, .pitch = 2560, .bits = 32 },
		{ .address = 0xe0000000, .width = 640, .height = 480, .pitch = 640, .bits = 32 },
		{ .address = 0xe0000000, .width = 640, .height = 480, .pitch = 640, .bits = 8 },
		{ .address = 0xe0000000, .width = 60000, .height = 60000, .pitch = 240000, .bits = 32 },
	};

	for (unsigned i = 0; i < N_OF(bad); i++) {
		screen_init(&bad[i]);
		screen_print("unseen %s\n", "this");
		screen_status("nor this");
		CHECK(!screen_columns() && !screen_rows() && !qr_draw("VMB1", 0, 0, 4), "case %u", i);
	}
}

int main(int n, char **arguments)
{
	folder = n > 1 ? arguments[1] : NULL;
	every_depth();
	qr_pixels();
	vga_text();
	no_screen();
	return done("screen");
}
