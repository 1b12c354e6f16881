/* SPDX-License-Identifier: Apache-2.0 */
#include "disk.h"
#include "irq.h"

/* The first read may have to wait for a disk to spin up. */
enum { TRIAL_US = 2000000 };

static const struct disk *disk; /* the one that is open */
static bool under_way;          /* a command is */

static enum disk_state wait_polled(uint64_t deadline)
{
	enum disk_state state;

	while ((state = disk->poll()) == DISK_BUSY)
		if (past(deadline))
			return DISK_BUSY;
	under_way = false;
	return state;
}

static void write_command(void)
{
	disk->write_command();
	under_way = true;
}

static const char *reason_of(enum disk_state state)
{
	return state == DISK_BUSY ? "a read does not end" : "a read fails";
}

static const char *try_polled(void)
{
	enum disk_state state;

	write_command();
	disk->ring();
	state = wait_polled(deadline_us(TRIAL_US));
	return state == DISK_DONE ? NULL : reason_of(state);
}

/* Without sleeping: a CPU that sleeps till an interrupt that never comes sleeps for ever. */
static const char *try_interrupt(void)
{
	uint64_t deadline = deadline_us(TRIAL_US);
	enum disk_state state;

	write_command();
	irq_arm();
	disk->ring();
	if (!irq_spin(deadline))
		return "its interrupt does not arrive";
	state = wait_polled(deadline);
	return state == DISK_DONE ? NULL : reason_of(state);
}

static const char *prepare(const struct disk *wanted, bool interrupts)
{
	const char *reason;

	disk_finish();
	disk = wanted;
	under_way = false;
	reason = disk->open(interrupts);
	if (!reason)
		reason = interrupts ? try_interrupt() : try_polled();
	if (reason)
		disk_finish();
	return reason;
}

const char *disk_prepare_polled(const struct disk *wanted)
{
	return prepare(wanted, false);
}

const char *disk_prepare_interrupts(const struct disk *wanted)
{
	return prepare(wanted, true);
}

void disk_finish(void)
{
	if (disk)
		disk->close();
	disk = NULL;
}

/* A read that took too long for its sample may end later: it must not be taken for the next one. */
static bool ready(uint64_t deadline)
{
	return disk && (!under_way || wait_polled(deadline) != DISK_BUSY);
}

uint64_t disk_read_polled(void)
{
	uint64_t begin, end, deadline = deadline_us(SAMPLE_FAILED_US);
	enum disk_state state;

	if (!ready(deadline))
		return UINT64_MAX;
	write_command();
	begin = tsc_begin();
	disk->ring();
	state = wait_polled(deadline);
	end = tsc_end();
	return state == DISK_DONE ? end - begin : UINT64_MAX;
}

/* Gives when it began, or UINT64_MAX. */
static uint64_t read_sleeping(void)
{
	uint64_t begin, deadline = deadline_us(SAMPLE_FAILED_US);

	if (!ready(deadline))
		return UINT64_MAX;
	write_command();
	irq_arm();
	begin = tsc_begin();
	disk->ring();
	if (!irq_sleep(deadline) || wait_polled(deadline) != DISK_DONE)
		return UINT64_MAX;
	return begin;
}

uint64_t disk_read_sleeping(void)
{
	uint64_t begin = read_sleeping(), end = tsc_end();

	return begin == UINT64_MAX ? UINT64_MAX : end - begin;
}

uint64_t disk_read_to_handler(void)
{
	uint64_t begin = read_sleeping();

	return begin == UINT64_MAX ? UINT64_MAX : irq_time() - begin;
}
