/* SPDX-License-Identifier: Apache-2.0 */
/* What a disk's driver does for the operations: read the first block, again and again. */
#ifndef BOOT_DEVICES_DISK_H
#define BOOT_DEVICES_DISK_H

#include "devices.h"

enum disk_state { DISK_BUSY, DISK_DONE, DISK_FAILED };

struct disk {
	/* Finds it and sets it up, with interrupts or without: a reason why there is none, or NULL. */
	const char *(*open)(bool interrupts);
	/* Writes down the command, as far as the device doesn't look at it yet. */
	void (*write_command)(void);
	/* Tells the device. */
	void (*ring)(void);
	/* DISK_DONE once the block is in memory. */
	enum disk_state (*poll)(void);
	/* Leaves it quiet, even if `open` failed half-way or a command is under way. */
	void (*close)(void);
};

extern const struct disk ata_disk, virtio_disk, nvme_disk;

/* For operations' `prepare`: opens a disk and reads from it once, for trial. */
const char *disk_prepare_polled(const struct disk *disk);
const char *disk_prepare_interrupts(const struct disk *disk);
void disk_finish(void);

/* Ticks of one read of the disk that is open. */
uint64_t disk_read_polled(void);
uint64_t disk_read_sleeping(void); /* to where the code that slept has the data */
uint64_t disk_read_to_handler(void); /* to the interrupt handler's first instruction */

#endif
