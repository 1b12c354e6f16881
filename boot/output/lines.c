/* SPDX-License-Identifier: Apache-2.0 */
/* Lines for programs, on COM1 and on debugcon. Either may be missing, or die in the middle of a line: all waits end. */
#include "output.h"

enum {
	COM1 = 0x3f8,
	DATA = COM1,
	INTERRUPT_ENABLE = COM1 + 1,
	FIFO_CONTROL = COM1 + 2, /* written; read: interrupt identification */
	LINE_CONTROL = COM1 + 3,
	MODEM_CONTROL = COM1 + 4,
	LINE_STATUS = COM1 + 5,
	SCRATCH = COM1 + 7,
	RECEIVED = 0x01, CAN_SEND = 0x20, ALL_SENT = 0x40, /* line status */
	DEBUGCON = 0xe9,
	FIFO_SIZE = 16,
	/* A FIFO is empty after 1.4 ms; a UART that a busy host emulates may take much longer. */
	PATIENCE_US = 50000,
	PATIENCE_READS = 100000, /* where there is no clock: a read takes about 1 us on a real machine */
	TIMEOUTS_TO_GIVE_UP = 20,
};

static struct {
	bool serial, debugcon;
	uint8_t burst;    /* bytes that the UART takes at once */
	uint8_t timeouts; /* one after another, of one burst */
	uint8_t undrained; /* times in all that the FIFO did not become empty */
	uint16_t length;
	char text[1024];
} line;

static bool scratch_holds(uint8_t byte)
{
	out8(SCRATCH, byte);
	return in8(SCRATCH) == byte;
}

static void serial_init(void)
{
	uint8_t scratch = in8(SCRATCH);

	line.timeouts = line.undrained = 0;
	line.serial = scratch_holds(0x5a) && scratch_holds(0xa5) && in8(LINE_STATUS) != 0xff;
	if (!line.serial)
		return;
	out8(SCRATCH, scratch);
	out8(INTERRUPT_ENABLE, 0);
	out8(LINE_CONTROL, 0x80); /* what follows is the divisor */
	out8(DATA, 1);            /* 115200 baud */
	out8(INTERRUPT_ENABLE, 0);
	out8(LINE_CONTROL, 0x03); /* 8n1 */
	out8(FIFO_CONTROL, 0x07);
	out8(MODEM_CONTROL, 0x03); /* DTR, RTS */
	line.burst = (in8(FIFO_CONTROL) & 0xc0) == 0xc0 ? FIFO_SIZE : 1;
}

/* Xen takes text at this port, too, for its own log; but it can't be read there. */
static bool debugcon_is_there(void)
{
	return in8(DEBUGCON) == DEBUGCON || equal(the_cpu.hypervisor, "XenVMMXenVMM");
}

void lines_init(void)
{
	serial_init();
	line.debugcon = debugcon_is_there();
	line.length = 0;
}

bool lines_have_serial(void)
{
	return line.serial;
}

bool lines_have_debugcon(void)
{
	return line.debugcon;
}

/* Only the clock tells how long a read takes, which in emulation is next to nothing. */
static bool serial_wait(uint8_t status)
{
	bool clock = the_cpu.has_lfence; /* which reading it needs */
	uint64_t end = clock ? tsc_end() + ticks_of_us(PATIENCE_US) : 0;

	for (unsigned reads = 0; clock ? tsc_end() < end : reads < PATIENCE_READS; reads++)
		if (in8(LINE_STATUS) & status)
			return true;
	return false;
}

/* A burst waits until it can go, or the UART counts as dead. Several waits are more than a long one: where the whole
 * machine stood still, the first one is over at once. */
static void serial_send(const char *text, size_t n)
{
	while (line.serial && n) {
		size_t burst = n < line.burst ? n : line.burst;

		if (!serial_wait(CAN_SEND)) {
			line.serial = ++line.timeouts < TIMEOUTS_TO_GIVE_UP;
			continue;
		}
		line.timeouts = 0;
		out8_string(DATA, text, burst);
		text += burst;
		n -= burst;
	}
}

static void flush(void)
{
	serial_send(line.text, line.length);
	if (line.debugcon)
		out8_string(DEBUGCON, line.text, line.length);
	line.length = 0;
}

static void add_text(const char *text, size_t n)
{
	while (n) {
		size_t room = sizeof(line.text) - line.length, part = n < room ? n : room;

		memcpy(line.text + line.length, text, part);
		line.length += part;
		text += part;
		n -= part;
		if (line.length == sizeof(line.text))
			flush();
	}
}

void line_add(const char *pattern, ...)
{
	char piece[256];
	va_list arguments;
	size_t length;

	va_start(arguments, pattern);
	length = format_list(piece, sizeof(piece), pattern, arguments);
	va_end(arguments);
	add_text(piece, length < sizeof(piece) ? length : sizeof(piece) - 1);
}

/* Bytes beyond ASCII count as Latin-1, so that every line is valid JSON whatever a machine's strings hold. */
void line_add_string(const char *text)
{
	add_text("\"", 1);
	for (; *text; text++) {
		uint8_t c = *text;

		if (c == '"' || c == '\\')
			line_add("\\%c", c);
		else if (c < 0x20 || 0x7f <= c)
			line_add("\\u%04x", c);
		else
			add_text(text, 1);
	}
	add_text("\"", 1);
}

/* Comes back with the FIFO empty: nothing is under way while operations are timed, the UART's own least of all. One
 * that never says so is not waited for any more. */
void line_end(void)
{
	add_text("\n", 1);
	flush();
	if (line.serial && line.undrained < TIMEOUTS_TO_GIVE_UP && !serial_wait(ALL_SENT))
		line.undrained++;
}

static enum key serial_key(void)
{
	enum { ESCAPE = 0x1b };

	if (!line.serial || !(in8(LINE_STATUS) & RECEIVED))
		return KEY_NONE;
	return in8(DATA) == ESCAPE ? KEY_ESCAPE : KEY_OTHER;
}

/* A key that goes down on a PS/2 keyboard; no controller reads as all ones. */
static enum key keyboard_key(void)
{
	enum { STATUS = 0x64, KEYBOARD = 0x60, FULL = 0x01, FROM_MOUSE = 0x20, ABSENT = 0xff, ESCAPE = 0x01, KEY_UP = 0x80 };
	uint8_t status = in8(STATUS), code;

	if (status == ABSENT || !(status & FULL))
		return KEY_NONE;
	code = in8(KEYBOARD);
	if (status & FROM_MOUSE || code & KEY_UP)
		return KEY_NONE;
	return code == ESCAPE ? KEY_ESCAPE : KEY_OTHER;
}

enum key key_wait(unsigned ms)
{
	enum { STEP_MS = 10 };

	for (unsigned waited = 0; waited < ms; waited += STEP_MS) {
		enum key key = keyboard_key();

		if (!key)
			key = serial_key();
		if (key)
			return key;
		delay_us(STEP_MS * 1000);
	}
	return KEY_NONE;
}
