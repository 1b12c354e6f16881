/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOOT_FONT_H
#define BOOT_FONT_H

#include "measure.h"

enum { GLYPHS = '~' - ' ' + 1, GLYPH_WIDTH = 8, GLYPH_HEIGHT = 16 };

/* The rows of a character, leftmost pixel highest; what is not ASCII looks like '?'. */
void font_glyph(char c, uint8_t glyph[GLYPH_HEIGHT]);

#endif
