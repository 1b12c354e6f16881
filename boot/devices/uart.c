/* SPDX-License-Identifier: Apache-2.0 */
/* A byte through a serial port that is looped back inside: COM2 if there is one, otherwise COM1, while no line goes
 * out. */
#include "devices.h"

enum { COM1 = 0x3f8, COM2 = 0x2f8 };

enum { DATA = 0, INTERRUPTS = 1, FIFO = 2, LINE = 3, MODEM = 4, LINE_STATUS = 5, SCRATCH = 7, DIVISOR = 0 };
enum { EIGHT_BITS = 0x03, DIVISOR_VISIBLE = 0x80, LOOPBACK = 0x10, RECEIVED = 0x01, ALL_SENT = 0x40 };
enum { DRAIN_US = 50000, DIVISOR_115200 = 1 };

static uint16_t port; /* 0: none */
static uint8_t modem, line, interrupts;
static uint8_t divisor[2];
static uint8_t next_byte;

static bool is_there(uint16_t where)
{
	uint8_t before = in8(where + SCRATCH);
	bool there;

	out8(where + SCRATCH, 0x5a);
	there = in8(where + SCRATCH) == 0x5a;
	out8(where + SCRATCH, 0xa5);
	there = there && in8(where + SCRATCH) == 0xa5;
	out8(where + SCRATCH, before);
	return there;
}

static uint16_t find(void)
{
	return is_there(COM2) ? COM2 : is_there(COM1) ? COM1 : 0;
}

/* Lines that were printed lie in the FIFO for a while. */
static bool wait_all_sent(void)
{
	uint64_t deadline = deadline_us(DRAIN_US);

	while (!(in8(port + LINE_STATUS) & ALL_SENT))
		if (past(deadline))
			return false;
	return true;
}

static void drop_received(void)
{
	for (unsigned i = 0; i < 256 && in8(port + LINE_STATUS) & RECEIVED; i++)
		in8(port + DATA);
}

static void read_divisor(void)
{
	out8(port + LINE, EIGHT_BITS | DIVISOR_VISIBLE);
	divisor[0] = in8(port + DIVISOR);
	divisor[1] = in8(port + DIVISOR + 1);
}

/* Leaves the divisor hidden. */
static void write_divisor(uint8_t low, uint8_t high)
{
	out8(port + LINE, EIGHT_BITS | DIVISOR_VISIBLE);
	out8(port + DIVISOR, low);
	out8(port + DIVISOR + 1, high);
	out8(port + LINE, EIGHT_BITS);
}

static const char *enter_loopback(void)
{
	if (!wait_all_sent()) {
		port = 0;
		return "its serial port does not finish sending";
	}
	modem = in8(port + MODEM);
	line = in8(port + LINE);
	interrupts = in8(port + INTERRUPTS);
	out8(port + INTERRUPTS, 0);
	read_divisor();
	write_divisor(DIVISOR_115200, 0);
	out8(port + MODEM, LOOPBACK);
	drop_received();
	return NULL;
}

const char *uart_prepare(void)
{
	const char *reason;

	port = find();
	if (!port)
		return "no serial port";
	reason = enter_loopback();
	if (reason)
		return reason;
	if (uart_round_trip() != UINT64_MAX)
		return NULL;
	uart_finish();
	return "its serial port does not loop back";
}

uint64_t uart_round_trip(void)
{
	uint64_t begin, end, deadline = deadline_us(SAMPLE_FAILED_US);
	uint8_t byte = ++next_byte, got;

	if (!port)
		return UINT64_MAX;
	drop_received(); /* what came too late for an earlier sample */
	begin = tsc_begin();
	out8(port + DATA, byte);
	while (!(in8(port + LINE_STATUS) & RECEIVED))
		if (past(deadline))
			return UINT64_MAX;
	got = in8(port + DATA);
	end = tsc_end();
	return got == byte ? end - begin : UINT64_MAX;
}

void uart_finish(void)
{
	if (!port)
		return;
	wait_all_sent();
	drop_received();
	write_divisor(divisor[0], divisor[1]);
	out8(port + LINE, line);
	out8(port + MODEM, modem);
	out8(port + INTERRUPTS, interrupts);
	port = 0;
}

/* ---- reading a register ---- */

static uint16_t register_port;

const char *uart_register_prepare(void)
{
	uint16_t where = find();

	register_port = where + SCRATCH;
	return where ? NULL : "no serial port";
}

void uart_register_read_once(uint32_t turns)
{
	for (; turns; turns--)
		in8(register_port);
}

void uart_register_read(uint32_t turns)
{
	for (; turns; turns--)
		for (unsigned i = 0; i < DEVICE_UNROLL; i++)
			in8(register_port);
}
