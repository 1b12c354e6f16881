/* SPDX-License-Identifier: Apache-2.0 */
/* Text from numbers, without libc. */
#include "output.h"

struct text {
	char *to;
	size_t size;
	size_t length; /* wanted; may exceed size */
};

struct directive {
	bool left, zero, has_precision;
	unsigned longs; /* how many 'l' */
	unsigned width, precision;
	char kind;
};

static void put(struct text *text, char c)
{
	if (text->length + 1 < text->size)
		text->to[text->length] = c;
	text->length++;
}

static void put_padded(struct text *text, const struct directive *d, const char *sign, const char *body,
		       unsigned length)
{
	unsigned used = length + (*sign != 0);
	unsigned padding = used < d->width ? d->width - used : 0;

	if (!d->left && !d->zero)
		for (; padding; padding--)
			put(text, ' ');
	if (*sign)
		put(text, *sign);
	if (!d->left)
		for (; padding; padding--)
			put(text, '0');
	while (length--)
		put(text, *body++);
	for (; padding; padding--)
		put(text, ' ');
}

static void put_number(struct text *text, const struct directive *d, uint64_t n, bool negative)
{
	const char *digits = d->kind == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
	unsigned base = d->kind == 'x' || d->kind == 'X' ? 16 : 10;
	char reversed[20], *first = reversed + sizeof(reversed);

	do {
		*--first = digits[n % base];
	} while (n /= base);
	put_padded(text, d, negative ? "-" : "", first, reversed + sizeof(reversed) - first);
}

static void put_string(struct text *text, struct directive *d, const char *string)
{
	unsigned length = 0;

	if (!string)
		string = "(null)";
	while ((!d->has_precision || length < d->precision) && string[length])
		length++;
	d->zero = false;
	put_padded(text, d, "", string, length);
}

/* Bounded, as a pattern is no place for surprises either. */
static const char *read_width(const char *p, unsigned *width)
{
	for (*width = 0; *p >= '0' && *p <= '9'; p++)
		if (*width < 1000)
			*width = *width * 10 + (*p - '0');
	return p;
}

/* What stands between '%' and the letter; a '*' sets `*star`. */
static const char *read_directive(const char *p, struct directive *d, bool *star_width, bool *star_precision)
{
	*d = (struct directive){ 0 };
	*star_width = *star_precision = false;
	for (; *p == '-' || *p == '0'; p++)
		*(*p == '-' ? &d->left : &d->zero) = true;
	if (*p == '*')
		*star_width = true, p++;
	else
		p = read_width(p, &d->width);
	if (*p == '.') {
		d->has_precision = true;
		if (*++p == '*')
			*star_precision = true, p++;
		else
			p = read_width(p, &d->precision);
	}
	for (; *p == 'l' || *p == 'z'; p++)
		d->longs += *p == 'z' ? sizeof(size_t) / sizeof(unsigned) - 1 : 1;
	d->kind = *p;
	return p;
}

static unsigned not_negative(int n)
{
	return n < 0 ? 0 : n;
}

int format_list(char *to, size_t size, const char *pattern, va_list arguments)
{
	struct text text = { to, size, 0 };

	for (; *pattern; pattern++) {
		struct directive d;
		bool star_width, star_precision;

		if (*pattern != '%') {
			put(&text, *pattern);
			continue;
		}
		pattern = read_directive(pattern + 1, &d, &star_width, &star_precision);
		if (star_width)
			d.width = not_negative(va_arg(arguments, int));
		if (star_precision)
			d.precision = not_negative(va_arg(arguments, int));
		if (d.kind == 's') {
			put_string(&text, &d, va_arg(arguments, const char *));
		} else if (d.kind == 'c') {
			char c = va_arg(arguments, int);

			put_padded(&text, &d, "", &c, 1);
		} else if (d.kind == 'd') {
			long long n = d.longs > 1 ? va_arg(arguments, long long) :
				      d.longs ? va_arg(arguments, long) : va_arg(arguments, int);

			put_number(&text, &d, n < 0 ? 0 - (uint64_t)n : (uint64_t)n, n < 0);
		} else if (d.kind == 'u' || d.kind == 'x' || d.kind == 'X') {
			put_number(&text, &d, d.longs > 1 ? va_arg(arguments, unsigned long long) :
				   d.longs ? va_arg(arguments, unsigned long) : va_arg(arguments, unsigned), false);
		} else if (d.kind) {
			put(&text, d.kind);
		} else {
			break;
		}
	}
	if (size)
		to[text.length < size ? text.length : size - 1] = 0;
	return text.length;
}

int format(char *to, size_t size, const char *pattern, ...)
{
	va_list arguments;
	int length;

	va_start(arguments, pattern);
	length = format_list(to, size, pattern, arguments);
	va_end(arguments);
	return length;
}

uint32_t crc32(uint32_t crc, const void *data, size_t size)
{
	const uint8_t *byte = data;

	for (crc = ~crc; size; size--) {
		crc ^= *byte++;
		for (unsigned bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
	}
	return ~crc;
}
