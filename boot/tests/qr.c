/* SPDX-License-Identifier: Apache-2.0 */
/* Codes are read again by a decoder that shares little with the encoder but the standard: it finds data modules by
 * looking where patterns are not, has its own tables of formats and alignment, and checks blocks by their syndromes.
 * `qr FOLDER` writes some codes there as PBM files, for other decoders. */
#include "output/format.c"
#include "output/qr.c"

#include "check.h"

enum { SIDE = QR_MAX_SIDE };

static uint8_t modules[SIDE * SIDE];

/* ---- a decoder ---- */

struct reader {
	unsigned side, version, mask;
	uint8_t words[MAX_CODEWORDS + 1];
	unsigned n_words;
	uint8_t data[MAX_CODEWORDS];
	unsigned n_data, bit;
};

static bool at(unsigned side, unsigned x, unsigned y)
{
	return modules[y * side + x];
}

/* From the format information around the first finder, bits 14..0 along row 8 and then up column 8. */
static unsigned read_format(unsigned side)
{
	static const uint8_t x[15] = { 0, 1, 2, 3, 4, 5, 7, 8, 8, 8, 8, 8, 8, 8, 8 };
	static const uint8_t y[15] = { 8, 8, 8, 8, 8, 8, 8, 8, 7, 5, 4, 3, 2, 1, 0 };
	unsigned format = 0;

	for (unsigned i = 0; i < 15; i++)
		format = format << 1 | at(side, x[i], y[i]);
	return format;
}

/* The other copy: up column 8 from the lower left finder's end, then along row 8 to the right edge. */
static unsigned read_second_format(unsigned side)
{
	unsigned format = 0;

	for (unsigned i = 0; i < 7; i++)
		format = format << 1 | at(side, 8, side - 1 - i);
	for (unsigned i = 0; i < 8; i++)
		format = format << 1 | at(side, side - 8 + i, 8);
	return format;
}

/* Middles of alignment patterns, from the standard's annex E. */
static const uint8_t middles[41][8] = {
	[2] = { 6, 18 }, [3] = { 6, 22 }, [4] = { 6, 26 }, [5] = { 6, 30 }, [6] = { 6, 34 }, [7] = { 6, 22, 38 },
	[8] = { 6, 24, 42 }, [9] = { 6, 26, 46 }, [10] = { 6, 28, 50 }, [11] = { 6, 30, 54 }, [14] = { 6, 26, 46, 66 },
	[15] = { 6, 26, 48, 70 }, [16] = { 6, 26, 50, 74 }, [20] = { 6, 34, 62, 90 }, [21] = { 6, 28, 50, 72, 94 },
	[32] = { 6, 34, 60, 86, 112, 138 }, [39] = { 6, 26, 54, 82, 110, 138, 166 }, [40] = { 6, 30, 58, 86, 114, 142, 170 },
};

static bool is_pattern(unsigned side, unsigned version, unsigned x, unsigned y)
{
	unsigned last = 0;

	if (x == 6 || y == 6 || (x < 9 && y < 9) || (x >= side - 8 && y < 9) || (x < 9 && y >= side - 8))
		return true;
	if (version >= 7 && ((x < 6 && y >= side - 11) || (y < 6 && x >= side - 11)))
		return true;
	while (last < 7 && middles[version][last + 1])
		last++;
	for (unsigned i = 0; last && i <= last; i++)
		for (unsigned j = 0; j <= last; j++) {
			unsigned left = middles[version][i] - 2, top = middles[version][j] - 2;

			if ((i == 0 && j == 0) || (i == 0 && j == last) || (i == last && j == 0))
				continue;
			if (left <= x && x <= left + 4 && top <= y && y <= top + 4)
				return true;
		}
	return false;
}

static bool unmasked(const struct reader *r, unsigned x, unsigned y)
{
	unsigned i = y, j = x;
	bool masks[8] = {
		(i + j) % 2 == 0, i % 2 == 0, j % 3 == 0, (i + j) % 3 == 0, (i / 2 + j / 3) % 2 == 0, (i * j) % 2 + (i * j) % 3 == 0,
		((i * j) % 2 + (i * j) % 3) % 2 == 0, ((i + j) % 2 + (i * j) % 3) % 2 == 0,
	};

	return at(r->side, x, y) ^ masks[r->mask];
}

static void read_words_of_code(struct reader *r)
{
	unsigned bits = 0;
	bool up = true;

	for (int right = r->side - 1; right > 0; right -= 2, up = !up) {
		right -= right == 6;
		for (unsigned i = 0; i < r->side; i++)
			for (int x = right; x > right - 2; x--) {
				unsigned y = up ? r->side - 1 - i : i;

				if (is_pattern(r->side, r->version, x, y))
					continue;
				r->words[bits / 8] = r->words[bits / 8] << 1 | unmasked(r, x, y);
				bits++;
			}
	}
	r->n_words = bits / 8;
}

static uint8_t power_of_2[255 * 2], logarithm[256];

static void make_tables(void)
{
	for (unsigned i = 0, n = 1; i < 255; i++, n = n << 1 ^ (n & 0x80 ? 0x11d : 0)) {
		power_of_2[i] = power_of_2[i + 255] = n;
		logarithm[n & 0xff] = i;
	}
}

/* A block without errors is 0 at all roots 2^0 .. 2^(check - 1). */
static bool syndromes_vanish(const uint8_t *block, unsigned n, unsigned check)
{
	for (unsigned root = 0; root < check; root++) {
		uint8_t sum = 0;

		for (unsigned i = 0; i < n; i++)
			sum = (sum ? power_of_2[logarithm[sum] + root] : 0) ^ block[i];
		if (sum)
			return false;
	}
	return true;
}

static void separate(struct reader *r)
{
	unsigned blocks = level_l[r->version].blocks, check = level_l[r->version].check;
	unsigned n_data = r->n_words - blocks * check, short_data = n_data / blocks, n_long = n_data % blocks;

	for (unsigned b = 0; b < blocks; b++) {
		bool is_long = b >= blocks - n_long;
		uint8_t block[255];
		unsigned n = 0;

		for (unsigned i = 0; i < short_data; i++)
			block[n++] = r->words[i * blocks + b];
		if (is_long)
			block[n++] = r->words[short_data * blocks + b - (blocks - n_long)];
		memcpy(r->data + r->n_data, block, n);
		r->n_data += n;
		for (unsigned i = 0; i < check; i++)
			block[n++] = r->words[n_data + i * blocks + b];
		CHECK(syndromes_vanish(block, n, check), "version %u block %u", r->version, b);
	}
}

static unsigned take_bits(struct reader *r, unsigned n)
{
	unsigned value = 0;

	for (; n; n--, r->bit++)
		value = value << 1 | (r->data[r->bit / 8] >> (7 - r->bit % 8) & 1);
	return value;
}

static void read_text(struct reader *r, char *to)
{
	static const char set[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ $%*+-./:";
	unsigned length;

	CHECK(take_bits(r, 4) == 2, "alphanumeric mode");
	length = take_bits(r, r->version < 10 ? 9 : r->version < 27 ? 11 : 13);
	for (; length > 1; length -= 2) {
		unsigned pair = take_bits(r, 11);

		*to++ = set[pair / 45 % 45];
		*to++ = set[pair % 45];
	}
	if (length)
		*to++ = set[take_bits(r, 6) % 45];
	*to = 0;
}

static void decode(unsigned side, char *to)
{
	/* The standard's table of format information, level L, masks 0..7. */
	static const uint16_t formats[8] = { 0x77c4, 0x72f3, 0x7daa, 0x789d, 0x662f, 0x6318, 0x6c41, 0x6976 };
	static struct reader r;
	unsigned format = read_format(side);

	r = (struct reader){ .side = side, .version = (side - 17) / 4, .mask = 8 };
	for (unsigned i = 0; i < 8; i++)
		if (formats[i] == format)
			r.mask = i;
	CHECK(r.mask < 8, "format information %x", format);
	CHECK(read_second_format(side) == format, "both copies of the format information");
	CHECK(at(side, 8, side - 8), "the dark module");
	r.mask %= 8;
	read_words_of_code(&r);
	separate(&r);
	read_text(&r, to);
}

/* ---- cases ---- */

static void finders(unsigned side)
{
	static const char rows[9][10] = { "#######..", "#.....#..", "#.###.#..", "#.###.#..", "#.###.#..", "#.....#..",
					  "#######..", "........." };

	for (unsigned y = 0; y < 8; y++)
		for (unsigned x = 0; x < 8; x++) {
			bool dark = rows[y][x] == '#';

			CHECK(at(side, x, y) == dark && at(side, side - 1 - x, y) == dark && at(side, x, side - 1 - y) == dark,
			      "finders at %u, %u of side %u", x, y, side);
		}
}

/* Text of every character, of a length. */
static void fill(char *text, unsigned length)
{
	static const char set[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ $%*+-./:";
	unsigned seed = length;

	for (unsigned i = 0; i < length; i++) {
		seed = seed * 1103515245 + 12345;
		text[i] = set[(seed >> 16) % 45];
	}
	text[length] = 0;
}

static void there_and_back(unsigned length, unsigned version)
{
	static char text[5000], back[5000];
	unsigned side;

	fill(text, length);
	side = qr_encode(text, modules);
	CHECK(side == 17 + 4 * version, "%u characters: side %u, expected version %u", length, side, version);
	if (!side)
		return;
	finders(side);
	decode(side, back);
	CHECK(!strcmp(text, back), "%u characters come back", length);
}

static void write_pbm(const char *folder, unsigned length)
{
	static char text[5000];
	char path[300];
	unsigned side, scale = 4, full;
	FILE *file;

	fill(text, length);
	side = qr_encode(text, modules);
	snprintf(path, sizeof(path), "%s/qr-%u.pbm", folder, length);
	file = fopen(path, "w");
	if (!file)
		return;
	full = (side + 8) * scale;
	fprintf(file, "P1\n%u %u\n", full, full);
	for (unsigned y = 0; y < full; y++)
		for (unsigned x = 0; x < full; x++) {
			unsigned column = x / scale - 4, row = y / scale - 4;

			fprintf(file, "%d\n", column < side && row < side && at(side, column, row));
		}
	fclose(file);
	snprintf(path, sizeof(path), "%s/qr-%u.txt", folder, length);
	file = fopen(path, "w");
	if (file)
		fprintf(file, "%s\n", text), fclose(file);
}

int main(int n, char **arguments)
{
	make_tables();
	/* How much fits into versions, as the standard has it. */
	there_and_back(0, 1);
	there_and_back(1, 1);
	there_and_back(25, 1);
	there_and_back(26, 2);
	there_and_back(195, 6);
	there_and_back(196, 7);
	there_and_back(224, 7);
	there_and_back(335, 9);
	there_and_back(336, 10);
	there_and_back(395, 10);
	there_and_back(468, 11);
	there_and_back(758, 15);
	there_and_back(854, 16);
	there_and_back(1249, 20);
	there_and_back(1250, 21);
	there_and_back(2840, 32);
	there_and_back(4087, 39);
	there_and_back(4296, 40);
	CHECK(with_remainder(7, 0x1f25, 12) == 0x07c94, "version information of version 7");
	CHECK(!qr_encode("lower case", modules), "not alphanumeric");
	there_and_back(4296, 40);
	{
		static char text[4298];

		fill(text, 4297);
		CHECK(!qr_encode(text, modules), "too long");
	}
	if (n > 1) {
		write_pbm(arguments[1], 20);
		write_pbm(arguments[1], 195);
		write_pbm(arguments[1], 1224);
	}
	return done("qr");
}
