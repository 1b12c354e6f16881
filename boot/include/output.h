/* SPDX-License-Identifier: Apache-2.0 */
/* What people and programs get to see: serial lines, debugcon, the screen, QR codes. Nothing here is called inside a
 * timed window. */
#ifndef BOOT_OUTPUT_H
#define BOOT_OUTPUT_H

#include <stdarg.h>

#include "machine.h"

/* ---- text ---- */

/* snprintf with %s %.5s %c %d %u %x %X %% (also l, ll), widths, '*', '-' and '0'; always ends in NUL, gives the length
 * it wanted. */
int format(char *to, size_t size, const char *pattern, ...) __attribute__((format(printf, 3, 4)));
int format_list(char *to, size_t size, const char *pattern, va_list arguments) __attribute__((format(printf, 3, 0)));

/* The usual CRC-32 (IEEE 802.3), a piece at a time: starts with 0. */
uint32_t crc32(uint32_t crc, const void *data, size_t size);

/* ---- lines for programs ---- */

/* Finds COM1 (by its scratch register) and debugcon (port 0xe9 reads 0xe9, or this is Xen). Either may be missing. */
void lines_init(void);
bool lines_have_serial(void);
bool lines_have_debugcon(void);
/* Appends a piece of the line, or ends it. */
void line_add(const char *pattern, ...) __attribute__((format(printf, 1, 2)));
void line_add_string(const char *text); /* in quotes, escaped for JSON */
void line_end(void);

/* ---- the screen ---- */

struct framebuffer {
	uint64_t address;
	uint32_t width, height, pitch;
	uint8_t bits; /* 0: none, VGA text at 0xb8000 or no screen at all */
	uint8_t red_position, green_position, blue_position;
	uint8_t text; /* VGA text mode of width x height characters */
};

void screen_init(const struct framebuffer *framebuffer);
void screen_print(const char *pattern, ...) __attribute__((format(printf, 1, 2)));
/* The bottom line: what is being measured, and how much is done. */
void screen_status(const char *pattern, ...) __attribute__((format(printf, 1, 2)));
void screen_clear(void);
/* In characters, without the bottom line; 0: there is no screen. */
unsigned screen_columns(void), screen_rows(void);
/* In pixels; 0 in text mode. */
unsigned screen_width(void), screen_height(void);

enum key { KEY_NONE, KEY_OTHER, KEY_ESCAPE };
/* Waits for a key of a PS/2 keyboard or a byte on the serial line; KEY_NONE: none came in time. */
enum key key_wait(unsigned ms);

/* ---- QR codes ---- */

/* Draws text in QR's alphanumeric set ("0-9A-Z $%*+-./:") as one code; false: it is too long, or there is no
 * framebuffer. In text mode, half blocks draw codes of up to 41 modules. */
bool qr_draw(const char *text, unsigned left, unsigned top, unsigned scale);
/* The same without a screen, for tests: modules as bytes 0/1, row by row; the side's length, or 0. */
enum { QR_MAX_SIDE = 177, QR_MARGIN = 4 /* light modules around it */ };
unsigned qr_encode(const char *text, uint8_t *modules);

#endif
