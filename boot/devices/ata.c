/* SPDX-License-Identifier: Apache-2.0 */
/* A disk on the first ATA channel at its old ports, by programmed I/O. */
#include "disk.h"
#include "irq.h"

enum { ATA_LINE = 14 };

enum {
	DATA = 0x1f0,
	SECTOR_COUNT = 0x1f2,
	LBA_LOW = 0x1f3,
	LBA_MID = 0x1f4,
	LBA_HIGH = 0x1f5,
	DRIVE = 0x1f6,
	STATUS = 0x1f7, /* reading it takes the interrupt back */
	COMMAND = 0x1f7,
	OTHER_STATUS = 0x3f6, /* reading this doesn't */
	CONTROL = 0x3f6,
};

enum { ERROR = 0x01, REQUEST = 0x08, FAULT = 0x20, BUSY = 0x80 };
enum { NO_INTERRUPTS = 0x02, RESET = 0x04 };
enum { BY_LBA = 0xe0, DRIVE_1 = 0x10 };
enum { IDENTIFY = 0xec, READ_SECTORS = 0x20 };
enum { WORDS = 256, READY_US = 1000000, RESET_US = 5 };

static uint16_t block[WORDS];
static uint8_t drive;  /* BY_LBA, and DRIVE_1 or not */
static uint8_t control; /* what CONTROL is to be */
static bool found;
static uint64_t status_valid; /* from when on the status is the new command's */

/* The drive takes 400 ns to put up its status; reading the port 15 times takes at least that. Not for timed windows: in
 * a VM each read exits. */
static void settle(void)
{
	for (unsigned i = 0; i < 15; i++)
		in8(OTHER_STATUS);
}

static bool wait_not_busy(uint32_t us)
{
	uint64_t deadline = deadline_us(us);

	while (in8(OTHER_STATUS) & BUSY)
		if (past(deadline))
			return false;
	return true;
}

static void read_data(void)
{
	void *to = block;
	word n = WORDS;

	__asm__ volatile("cld; rep insw" : "+D"(to), "+c"(n) : "d"((uint16_t)DATA) : "memory");
}

static enum disk_state poll(void)
{
	uint8_t status;

	if (!past(status_valid))
		return DISK_BUSY;
	status = in8(OTHER_STATUS);
	if (status & BUSY)
		return DISK_BUSY;
	if (status & (ERROR | FAULT))
		return DISK_FAILED;
	if (!(status & REQUEST))
		return DISK_BUSY;
	read_data();
	return DISK_DONE;
}

static bool acknowledge(void)
{
	return !(in8(STATUS) & BUSY);
}

static enum disk_state identify(void)
{
	uint64_t deadline = deadline_us(READY_US);
	enum disk_state state;

	out8(COMMAND, IDENTIFY);
	settle();
	while ((state = poll()) == DISK_BUSY && !past(deadline))
		if (in8(OTHER_STATUS) == 0) /* no device takes the command */
			return DISK_FAILED;
	in8(STATUS);
	return state;
}

static bool is_disk(uint8_t which)
{
	out8(DRIVE, which);
	settle();
	if (in8(OTHER_STATUS) == 0 || !wait_not_busy(READY_US))
		return false;
	return identify() == DISK_DONE; /* CD drives refuse it: they have an IDENTIFY of their own */
}

/* An empty bus reads as ones, or as the last byte written to another port: what can be written can be read. */
static bool channel_present(void)
{
	if (in8(OTHER_STATUS) == 0xff && in8(STATUS) == 0xff)
		return false;
	out8(SECTOR_COUNT, 0x55);
	out8(LBA_LOW, 0xaa);
	return in8(SECTOR_COUNT) == 0x55 && in8(LBA_LOW) == 0xaa;
}

static const char *open(bool interrupts)
{
	found = false;
	if (!channel_present())
		return "no ATA disk at port 0x1f0";
	control = NO_INTERRUPTS;
	out8(CONTROL, control);
	drive = BY_LBA;
	if (!is_disk(drive)) {
		drive = BY_LBA | DRIVE_1;
		if (!is_disk(drive))
			return "no ATA disk at port 0x1f0";
	}
	found = true;
	if (interrupts) {
		irq_by_isa(ATA_LINE, acknowledge);
		control = 0;
		out8(CONTROL, control);
	}
	return NULL;
}

static void write_command(void)
{
	out8(DRIVE, drive);
	out8(SECTOR_COUNT, 1);
	out8(LBA_LOW, 0);
	out8(LBA_MID, 0);
	out8(LBA_HIGH, 0);
}

static void ring(void)
{
	out8(COMMAND, READ_SECTORS);
	status_valid = tsc_end() + ticks_of_us(1) / 2;
}

/* A reset ends a command that is under way. */
static void close(void)
{
	if (!found)
		return;
	out8(CONTROL, NO_INTERRUPTS);
	irq_close();
	if (in8(OTHER_STATUS) & (BUSY | REQUEST)) {
		out8(CONTROL, NO_INTERRUPTS | RESET);
		delay_us(RESET_US);
		out8(CONTROL, NO_INTERRUPTS);
		wait_not_busy(READY_US);
	}
	in8(STATUS);
	found = false;
}

const struct disk ata_disk = { open, write_command, ring, poll, close };
