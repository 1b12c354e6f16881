/* SPDX-License-Identifier: Apache-2.0 */
/* QR codes (ISO/IEC 18004): alphanumeric mode, error correction level L, the smallest version that holds the text.
 *
 *   text -> bits -> data codewords -> blocks, each with its check codewords -> interleaved -> modules -> masked
 *
 * A module is a byte: its lowest bit says that it is dark, FUNCTION that it is part of a pattern, which carries no data
 * and is not masked.
 */
#include "output.h"

enum {
	VERSIONS = 40,
	MAX_CODEWORDS = 3706,
	MAX_CHECK = 30, /* codewords per block */
	DARK = 1,
	FUNCTION = 2,
	ALPHANUMERIC_MODE = 2,
	LEVEL_L = 1, /* as the format information writes it */
	FORMAT_MASK = 0x5412,
};

/* Of level L, by version: check codewords per block, and blocks. */
static const struct {
	uint8_t check, blocks;
} level_l[VERSIONS + 1] = {
	{ 0, 0 },   { 7, 1 },   { 10, 1 },  { 15, 1 },  { 20, 1 },  { 26, 1 },  { 18, 2 },  { 20, 2 },  { 24, 2 },
	{ 30, 2 },  { 18, 4 },  { 20, 4 },  { 24, 4 },  { 26, 4 },  { 30, 4 },  { 22, 6 },  { 24, 6 },  { 28, 6 },
	{ 30, 6 },  { 28, 7 },  { 28, 8 },  { 28, 8 },  { 28, 9 },  { 30, 9 },  { 30, 10 }, { 26, 12 }, { 28, 12 },
	{ 30, 12 }, { 30, 13 }, { 30, 14 }, { 30, 15 }, { 30, 16 }, { 30, 17 }, { 30, 18 }, { 30, 19 }, { 30, 19 },
	{ 30, 20 }, { 30, 21 }, { 30, 22 }, { 30, 24 }, { 30, 25 },
};

struct symbol {
	uint8_t *modules;
	unsigned version, side;
};

struct bits {
	uint8_t *bytes;
	unsigned count;
};

/* ---- text to codewords ---- */

static int alphanumeric_value(char c)
{
	static const char set[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ $%*+-./:";

	for (int i = 0; set[i]; i++)
		if (set[i] == c)
			return i;
	return -1;
}

static void add_bits(struct bits *bits, uint32_t value, unsigned n)
{
	while (n--) {
		uint8_t *byte = bits->bytes + bits->count / 8;

		if (bits->count % 8 == 0)
			*byte = 0;
		*byte |= (value >> n & 1) << (7 - bits->count % 8);
		bits->count++;
	}
}

static unsigned length_bits(unsigned version)
{
	return version < 10 ? 9 : version < 27 ? 11 : 13;
}

/* Alignment patterns along a side. */
static unsigned alignments(unsigned version)
{
	return version == 1 ? 0 : version / 7 + 2;
}

/* What is left of the square once all patterns and both kinds of information have their modules. */
static unsigned codewords(unsigned version)
{
	unsigned side = 17 + 4 * version, n = alignments(version);
	unsigned modules = side * side - 3 * 64 - 2 * 15 - 1 - 2 * (side - 16);

	if (n)
		modules -= (n * n - 3) * 25 - 2 * (n - 2) * 5; /* those on a timing pattern share 5 modules with it */
	if (version >= 7)
		modules -= 2 * 18;
	return modules / 8;
}

static unsigned data_codewords(unsigned version)
{
	return codewords(version) - level_l[version].check * level_l[version].blocks;
}

static unsigned smallest_version(size_t length)
{
	for (unsigned version = 1; version <= VERSIONS; version++)
		if (4 + length_bits(version) + length / 2 * 11 + length % 2 * 6 <= 8 * data_codewords(version))
			return version;
	return 0;
}

static bool add_text(struct bits *bits, const char *text, size_t length)
{
	for (size_t i = 0; i < length; i += 2) {
		int first = alphanumeric_value(text[i]), second = i + 1 < length ? alphanumeric_value(text[i + 1]) : 0;

		if (first < 0 || second < 0)
			return false;
		if (i + 1 < length)
			add_bits(bits, first * 45 + second, 11);
		else
			add_bits(bits, first, 6);
	}
	return true;
}

static bool encode_data(const char *text, size_t length, unsigned version, uint8_t *data)
{
	struct bits bits = { data, 0 };
	unsigned capacity = 8 * data_codewords(version), rest;

	add_bits(&bits, ALPHANUMERIC_MODE, 4);
	add_bits(&bits, length, length_bits(version));
	if (!add_text(&bits, text, length))
		return false;
	rest = capacity - bits.count;
	add_bits(&bits, 0, rest < 4 ? rest : 4);
	add_bits(&bits, 0, (8 - bits.count % 8) % 8);
	for (unsigned i = 0; bits.count < capacity; i++)
		add_bits(&bits, i % 2 ? 0x11 : 0xec, 8);
	return true;
}

/* ---- error correction: remainders of polynomials over GF(256) with x^8 + x^4 + x^3 + x^2 + 1 ---- */

static uint8_t multiply(uint8_t a, uint8_t b)
{
	unsigned product = 0;

	for (int bit = 7; bit >= 0; bit--) {
		product = product << 1 ^ (product >> 7) * 0x11d;
		product ^= (b >> bit & 1) * a;
	}
	return product;
}

/* (x - 1)(x - 2)(x - 4)..., its leading coefficient left out. */
static void generator(uint8_t *coefficients, unsigned degree)
{
	uint8_t root = 1;

	memset(coefficients, 0, degree);
	coefficients[degree - 1] = 1;
	for (unsigned i = 0; i < degree; i++) {
		for (unsigned j = 0; j < degree; j++)
			coefficients[j] = multiply(coefficients[j], root) ^ (j + 1 < degree ? coefficients[j + 1] : 0);
		root = multiply(root, 2);
	}
}

static void check_codewords(const uint8_t *data, unsigned n, const uint8_t *divisor, unsigned degree,
			    uint8_t *remainder)
{
	memset(remainder, 0, degree);
	for (unsigned i = 0; i < n; i++) {
		uint8_t factor = data[i] ^ remainder[0];

		for (unsigned j = 0; j < degree; j++)
			remainder[j] = (j + 1 < degree ? remainder[j + 1] : 0) ^ multiply(divisor[j], factor);
	}
}

/* Blocks' codewords take turns, so that a stain hurts each of them a little. Later blocks may be longer by one. */
static void interleave(const uint8_t *data, unsigned version, uint8_t *out)
{
	unsigned blocks = level_l[version].blocks, check = level_l[version].check, n = data_codewords(version);
	unsigned shorter = n / blocks, n_shorter = blocks - n % blocks;
	uint8_t divisor[MAX_CHECK], remainder[MAX_CHECK];

	generator(divisor, check);
	for (unsigned block = 0; block < blocks; block++) {
		unsigned length = shorter + (block >= n_shorter);

		for (unsigned i = 0; i < length; i++)
			out[i < shorter ? i * blocks + block : n - blocks + block] = data[i];
		check_codewords(data, length, divisor, check, remainder);
		for (unsigned i = 0; i < check; i++)
			out[n + i * blocks + block] = remainder[i];
		data += length;
	}
}

/* ---- patterns ---- */

static void set_module(struct symbol *s, unsigned x, unsigned y, bool dark)
{
	s->modules[y * s->side + x] = FUNCTION | dark;
}

static int absolute(int n)
{
	return n < 0 ? -n : n;
}

/* How many steps a king of chess is away from the middle. */
static int distance(int x, int y)
{
	return absolute(x) < absolute(y) ? absolute(y) : absolute(x);
}

/* Rings around a middle: a finder with its separator (radius 4), or an alignment pattern (radius 2). */
static void draw_rings(struct symbol *s, int middle_x, int middle_y, int radius)
{
	for (int y = -radius; y <= radius; y++)
		for (int x = -radius; x <= radius; x++) {
			int d = distance(x, y);
			bool dark = radius == 2 ? d != 1 : d != 2 && d != 4;

			if (middle_x + x >= 0 && middle_x + x < (int)s->side && middle_y + y >= 0 && middle_y + y < (int)s->side)
				set_module(s, middle_x + x, middle_y + y, dark);
		}
}

/* Equally far from each other, an even number of modules, from the far end on; what is left over lies between the first
 * two. The standard's table rounds up, but once. */
static unsigned alignment_position(const struct symbol *s, unsigned i)
{
	unsigned gaps = alignments(s->version) - 1, whole = s->side - 13;
	unsigned step = s->version == 32 ? 26 : (whole + 2 * gaps - 1) / (2 * gaps) * 2;

	return i ? s->side - 7 - (gaps - i) * step : 6;
}

static void draw_alignments(struct symbol *s)
{
	unsigned last = alignments(s->version) - 1;

	if (s->version == 1)
		return;
	for (unsigned i = 0; i <= last; i++)
		for (unsigned j = 0; j <= last; j++)
			if (!(i == 0 && j == 0) && !(i == 0 && j == last) && !(i == last && j == 0))
				draw_rings(s, alignment_position(s, i), alignment_position(s, j), 2);
}

/* A code word of a BCH code: the value, then the remainder of its division by a polynomial. */
static uint32_t with_remainder(uint32_t value, uint32_t divisor, unsigned degree)
{
	uint32_t rest = value << degree;

	for (int bit = 31; bit >= (int)degree; bit--)
		if (rest >> bit & 1)
			rest ^= divisor << (bit - degree);
	return value << degree | rest;
}

static void draw_format(struct symbol *s, unsigned mask)
{
	uint32_t format = with_remainder(LEVEL_L << 3 | mask, 0x537, 10) ^ FORMAT_MASK;

	for (unsigned i = 0; i < 15; i++) {
		bool dark = format >> i & 1;

		if (i < 8)
			set_module(s, s->side - 1 - i, 8, dark);
		else
			set_module(s, 8, s->side - 15 + i, dark);
		/* Again around the first finder; row and column 6 are timing patterns. */
		if (i < 8)
			set_module(s, 8, i + (i > 5), dark);
		else
			set_module(s, 14 - i + (i < 9), 8, dark);
	}
	set_module(s, 8, s->side - 8, true);
}

static void draw_version(struct symbol *s)
{
	uint32_t information = with_remainder(s->version, 0x1f25, 12);

	if (s->version < 7)
		return;
	for (unsigned i = 0; i < 18; i++) {
		set_module(s, i / 3, s->side - 11 + i % 3, information >> i & 1);
		set_module(s, s->side - 11 + i % 3, i / 3, information >> i & 1);
	}
}

static void draw_patterns(struct symbol *s)
{
	memset(s->modules, 0, s->side * s->side);
	for (unsigned i = 0; i < s->side; i++) {
		set_module(s, i, 6, i % 2 == 0);
		set_module(s, 6, i, i % 2 == 0);
	}
	draw_rings(s, 3, 3, 4);
	draw_rings(s, s->side - 4, 3, 4);
	draw_rings(s, 3, s->side - 4, 4);
	draw_alignments(s);
	draw_format(s, 0);
	draw_version(s);
}

/* ---- data and masks ---- */

static void draw_bits_of_row(struct symbol *s, unsigned right, unsigned y, struct bits *bits, unsigned n)
{
	for (unsigned x = right; x + 2 > right; x--) {
		uint8_t *module = s->modules + y * s->side + x;

		if (*module & FUNCTION)
			continue;
		*module = bits->count < n && (bits->bytes[bits->count / 8] >> (7 - bits->count % 8) & 1);
		bits->count++;
	}
}

/* Two columns at a time, up and down in turn, from the right; the column of the timing pattern is left out. */
static void draw_codewords(struct symbol *s, uint8_t *words, unsigned n)
{
	struct bits bits = { words, 0 };
	bool up = true;

	for (unsigned right = s->side - 1; right < s->side; right -= 2, up = !up) {
		if (right == 6)
			right--;
		for (unsigned i = 0; i < s->side; i++)
			draw_bits_of_row(s, right, up ? s->side - 1 - i : i, &bits, 8 * n);
	}
}

static bool mask_at(unsigned mask, unsigned x, unsigned y)
{
	switch (mask) {
	case 0: return (x + y) % 2 == 0;
	case 1: return y % 2 == 0;
	case 2: return x % 3 == 0;
	case 3: return (x + y) % 3 == 0;
	case 4: return (x / 3 + y / 2) % 2 == 0;
	case 5: return x * y % 2 + x * y % 3 == 0;
	case 6: return (x * y % 2 + x * y % 3) % 2 == 0;
	default: return ((x + y) % 2 + x * y % 3) % 2 == 0;
	}
}

/* A second time takes it off again. */
static void apply_mask(struct symbol *s, unsigned mask)
{
	for (unsigned y = 0; y < s->side; y++)
		for (unsigned x = 0; x < s->side; x++)
			if (!(s->modules[y * s->side + x] & FUNCTION))
				s->modules[y * s->side + x] ^= mask_at(mask, x, y);
}

/* Runs of one colour, and what looks like a finder (1:1:3:1:1 with four light modules on one side), along a line. */
static unsigned line_penalty(const uint8_t *first, unsigned step, unsigned side)
{
	unsigned penalty = 0, run = 0, window = 0;

	for (unsigned i = 0; i < side; i++) {
		unsigned dark = first[i * step] & DARK;

		run = i && dark == (window & 1) ? run + 1 : 1;
		if (run >= 5)
			penalty += run == 5 ? 3 : 1;
		window = (window << 1 | dark) & 0x7ff;
		if (i >= 10 && (window == 0x05d || window == 0x5d0))
			penalty += 40;
	}
	return penalty;
}

static unsigned square_penalty(const struct symbol *s)
{
	unsigned penalty = 0;

	for (unsigned y = 0; y + 1 < s->side; y++)
		for (unsigned x = 0; x + 1 < s->side; x++) {
			const uint8_t *m = s->modules + y * s->side + x;
			unsigned dark = (m[0] & DARK) + (m[1] & DARK) + (m[s->side] & DARK) + (m[s->side + 1] & DARK);

			if (dark == 0 || dark == 4)
				penalty += 3;
		}
	return penalty;
}

static unsigned balance_penalty(const struct symbol *s)
{
	unsigned all = s->side * s->side, dark = 0;

	for (unsigned i = 0; i < all; i++)
		dark += s->modules[i] & DARK;
	return absolute((int)(dark * 20) - (int)(all * 10)) / (int)all * 10;
}

static unsigned penalty(const struct symbol *s)
{
	unsigned sum = square_penalty(s) + balance_penalty(s);

	for (unsigned i = 0; i < s->side; i++)
		sum += line_penalty(s->modules + i * s->side, 1, s->side) + line_penalty(s->modules + i, s->side, s->side);
	return sum;
}

static void choose_mask(struct symbol *s)
{
	unsigned best = 0, least = ~0u;

	for (unsigned mask = 0; mask < 8; mask++) {
		unsigned p;

		apply_mask(s, mask);
		draw_format(s, mask);
		p = penalty(s);
		if (p < least) {
			least = p;
			best = mask;
		}
		apply_mask(s, mask);
	}
	apply_mask(s, best);
	draw_format(s, best);
}

unsigned qr_encode(const char *text, uint8_t *modules)
{
	static uint8_t data[MAX_CODEWORDS], words[MAX_CODEWORDS];
	size_t length = strlen(text);
	unsigned version = smallest_version(length);
	struct symbol symbol = { modules, version, 17 + 4 * version };

	if (!version || !encode_data(text, length, version, data))
		return 0;
	interleave(data, version, words);
	draw_patterns(&symbol);
	draw_codewords(&symbol, words, codewords(version));
	choose_mask(&symbol);
	for (unsigned i = 0; i < symbol.side * symbol.side; i++)
		modules[i] &= DARK;
	return symbol.side;
}
