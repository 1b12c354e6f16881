/* SPDX-License-Identifier: Apache-2.0 */
/* The screen as rows of characters: VGA text, or a linear framebuffer with characters drawn into it.
 *
 * What is on the screen is kept in `cells` and never read back: each access to video memory may be an exit in a VM, and
 * is slow on a real machine. Only cells that change are written, and scrolling goes by several rows at once.
 */
#include "font.h"
#include "output.h"

enum {
	MAX_COLUMNS = 240,
	MAX_ROWS = 100,
	VGA_TEXT = 0xb8000,
	BIG_SCREEN = 2560, /* pixels: twice as large letters from here on */
	NORMAL = 0x07, INVERSE = 0x70, /* VGA attributes: light grey on black, and the other way round */
	BLANK = NORMAL << 8 | ' ',
};

enum kind { NO_SCREEN, TEXT, GRAPHICS };

static struct {
	enum kind kind;
	struct framebuffer frame;
	unsigned columns, rows; /* the bottom line is row `rows` */
	unsigned x, y;          /* where the next character goes; x may be `columns` */
	unsigned scale;
	unsigned bytes; /* of a pixel */
	uint32_t ink, paper;
	uint16_t cells[MAX_ROWS][MAX_COLUMNS];
	uint8_t glyphs[GLYPHS][GLYPH_HEIGHT];
} screen;

/* ---- pixels ---- */

static uint32_t colour(uint8_t red, uint8_t green, uint8_t blue)
{
	const struct framebuffer *f = &screen.frame;
	unsigned lost = f->bits < 24 ? 3 : 0, lost_green = f->bits == 16 ? 2 : lost;

	return (uint32_t)(red >> lost) << f->red_position | (uint32_t)(green >> lost_green) << f->green_position |
	       (uint32_t)(blue >> lost) << f->blue_position;
}

static void pixels(volatile uint8_t *to, unsigned n, uint32_t value)
{
	for (; n; n--, to += screen.bytes) {
		if (screen.bytes == 4) {
			*(volatile uint32_t *)to = value;
		} else if (screen.bytes == 2) {
			*(volatile uint16_t *)to = value;
		} else {
			to[0] = value;
			to[1] = value >> 8;
			to[2] = value >> 16;
		}
	}
}

static void rectangle(unsigned left, unsigned top, unsigned width, unsigned height, uint32_t value)
{
	uint64_t at = screen.frame.address + (uint64_t)top * screen.frame.pitch + left * screen.bytes;

	for (; height; height--, at += screen.frame.pitch)
		pixels((volatile uint8_t *)(word)at, width, value);
}

static void draw_row_of_glyph(unsigned left, unsigned top, uint8_t row, uint32_t ink, uint32_t paper)
{
	for (unsigned x = 0, run; x < GLYPH_WIDTH; x += run) {
		bool set = row >> (GLYPH_WIDTH - 1 - x) & 1;

		for (run = 1; x + run < GLYPH_WIDTH && (row >> (GLYPH_WIDTH - 1 - x - run) & 1) == set; run++)
			;
		rectangle(left + x * screen.scale, top, run * screen.scale, screen.scale, set ? ink : paper);
	}
}

static void draw_cell(unsigned column, unsigned row, uint16_t cell)
{
	bool inverse = cell >> 8 == INVERSE;
	const uint8_t *glyph = screen.glyphs[(cell & 0xff) - ' '];

	for (unsigned y = 0; y < GLYPH_HEIGHT; y++)
		draw_row_of_glyph(column * GLYPH_WIDTH * screen.scale, (row * GLYPH_HEIGHT + y) * screen.scale, glyph[y],
				  inverse ? screen.paper : screen.ink, inverse ? screen.ink : screen.paper);
}

/* ---- cells ---- */

static void put_cell(unsigned column, unsigned row, uint16_t cell)
{
	if (screen.cells[row][column] == cell)
		return;
	screen.cells[row][column] = cell;
	if (screen.kind == TEXT)
		((volatile uint16_t *)VGA_TEXT)[row * screen.columns + column] = cell;
	else
		draw_cell(column, row, cell);
}

static uint16_t cell_of(char c, uint8_t attribute)
{
	return attribute << 8 | (' ' <= c && c <= '~' ? c : '?');
}

/* Half a screen at once: a scrolled row costs as much as all of them. */
static void scroll(void)
{
	unsigned by = (screen.rows + 1) / 2;

	for (unsigned row = 0; row < screen.rows; row++)
		for (unsigned column = 0; column < screen.columns; column++)
			put_cell(column, row, row + by < screen.rows ? screen.cells[row + by][column] : BLANK);
	screen.y -= by;
}

static void new_line(void)
{
	screen.x = 0;
	screen.y++;
}

static void print_char(char c)
{
	if (c == '\n') {
		new_line();
		return;
	}
	if (screen.x == screen.columns)
		new_line();
	if (screen.y == screen.rows)
		scroll();
	put_cell(screen.x++, screen.y, cell_of(c, NORMAL));
}

/* ---- setting up ---- */

static bool is_usable(const struct framebuffer *f)
{
	bool known = f->bits == 15 || f->bits == 16 || f->bits == 24 || f->bits == 32;
	uint32_t row = f->width * ((f->bits + 7u) / 8);

	return known && f->address && f->width >= 320 && f->height >= 200 && f->width <= 16384 && f->height <= 16384 &&
	       f->pitch >= row && f->address + (uint64_t)f->pitch * f->height <= 1ull << 32;
}

static unsigned at_most(unsigned n, unsigned limit)
{
	return n < limit ? n : limit;
}

static void start_graphics(void)
{
	const struct framebuffer *f = &screen.frame;

	screen.kind = GRAPHICS;
	screen.bytes = (f->bits + 7) / 8;
	screen.scale = f->width < BIG_SCREEN ? 1 : 2;
	screen.columns = at_most(f->width / (GLYPH_WIDTH * screen.scale), MAX_COLUMNS);
	screen.rows = at_most(f->height / (GLYPH_HEIGHT * screen.scale), MAX_ROWS) - 1;
	screen.ink = colour(0xd0, 0xd0, 0xd0);
	screen.paper = colour(0, 0, 0);
	for (unsigned i = 0; i < GLYPHS; i++)
		font_glyph(' ' + i, screen.glyphs[i]);
}

static void start_text(void)
{
	const struct framebuffer *f = &screen.frame;

	screen.kind = TEXT;
	screen.columns = f->width && f->width <= 132 ? f->width : 80;
	screen.rows = (f->height && f->height <= 60 ? f->height : 25) - 1;
	out8(0x3d4, 0x0a); /* no cursor */
	out8(0x3d5, 0x20);
}

void screen_init(const struct framebuffer *framebuffer)
{
	screen.frame = *framebuffer;
	screen.kind = NO_SCREEN;
	screen.columns = screen.rows = 0;
	if (is_usable(framebuffer))
		start_graphics();
	else if (framebuffer->text)
		start_text();
	screen_clear();
}

/* ---- what others see ---- */

void screen_clear(void)
{
	screen.x = screen.y = 0;
	if (screen.kind == NO_SCREEN)
		return;
	if (screen.kind == GRAPHICS)
		rectangle(0, 0, screen.frame.width, screen.frame.height, screen.paper);
	for (unsigned row = 0; row <= screen.rows; row++)
		for (unsigned column = 0; column < screen.columns; column++) {
			screen.cells[row][column] = BLANK;
			if (screen.kind == TEXT)
				((volatile uint16_t *)VGA_TEXT)[row * screen.columns + column] = BLANK;
		}
}

void screen_print(const char *pattern, ...)
{
	char text[512];
	va_list arguments;

	if (screen.kind == NO_SCREEN)
		return;
	va_start(arguments, pattern);
	format_list(text, sizeof(text), pattern, arguments);
	va_end(arguments);
	for (const char *c = text; *c; c++)
		print_char(*c);
}

void screen_status(const char *pattern, ...)
{
	char text[MAX_COLUMNS + 1];
	va_list arguments;
	const char *c = text;

	va_start(arguments, pattern);
	format_list(text, sizeof(text), pattern, arguments);
	va_end(arguments);
	for (unsigned column = 0; column < screen.columns; column++)
		put_cell(column, screen.rows, cell_of(*c ? *c++ : ' ', INVERSE));
}

unsigned screen_columns(void)
{
	return screen.columns;
}

unsigned screen_rows(void)
{
	return screen.rows;
}

unsigned screen_width(void)
{
	return screen.kind == GRAPHICS ? screen.frame.width : 0;
}

unsigned screen_height(void)
{
	return screen.kind == GRAPHICS ? screen.frame.height : 0;
}

/* ---- QR codes ---- */

static bool is_dark(const uint8_t *modules, unsigned side, int x, int y)
{
	return x >= 0 && y >= 0 && (unsigned)x < side && (unsigned)y < side && modules[y * side + x];
}

static bool draw_in_pixels(const uint8_t *modules, unsigned side, unsigned left, unsigned top, unsigned scale)
{
	unsigned full = (side + 2 * QR_MARGIN) * scale;
	uint32_t light = colour(0xff, 0xff, 0xff);

	if (!scale || left + full > screen.frame.width || top + full > screen.frame.height)
		return false;
	rectangle(left, top, full, full, light);
	for (unsigned y = 0; y < side; y++)
		for (unsigned x = 0; x < side; x++)
			if (modules[y * side + x])
				rectangle(left + (x + QR_MARGIN) * scale, top + (y + QR_MARGIN) * scale, scale, scale, screen.paper);
	return true;
}

/* Two modules in a character: the upper one is its ink, the lower one its paper. */
static bool draw_in_characters(const uint8_t *modules, unsigned side, unsigned left, unsigned top)
{
	enum { UPPER_HALF = 0xdf, LIGHT = 7, DARK = 0 };
	int full = side + 2 * QR_MARGIN;

	if (left + full > screen.columns || top + (full + 1) / 2 > screen.rows + 1)
		return false;
	for (int y = 0; y < full; y += 2)
		for (int x = 0; x < full; x++) {
			uint16_t upper = is_dark(modules, side, x - QR_MARGIN, y - QR_MARGIN) ? DARK : LIGHT;
			uint16_t lower = is_dark(modules, side, x - QR_MARGIN, y + 1 - QR_MARGIN) ? DARK : LIGHT;

			put_cell(left + x, top + y / 2, lower << 12 | upper << 8 | UPPER_HALF);
		}
	return true;
}

bool qr_draw(const char *text, unsigned left, unsigned top, unsigned scale)
{
	static uint8_t modules[QR_MAX_SIDE * QR_MAX_SIDE];
	unsigned side = screen.kind == NO_SCREEN ? 0 : qr_encode(text, modules);

	if (!side)
		return false;
	if (screen.kind == TEXT)
		return draw_in_characters(modules, side, left, top);
	return draw_in_pixels(modules, side, left, top, scale);
}
