/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on devices: how long a program waits for them, and what a register of theirs costs. */
#include "disk.h"
#include "pci.h"

static const char *prepare_ata_polled(void)
{
	return disk_prepare_polled(&ata_disk);
}

static const char *prepare_ata_irq(void)
{
	return disk_prepare_interrupts(&ata_disk);
}

static const char *prepare_virtio_polled(void)
{
	return disk_prepare_polled(&virtio_disk);
}

static const char *prepare_virtio_irq(void)
{
	return disk_prepare_interrupts(&virtio_disk);
}

static const char *prepare_nvme_polled(void)
{
	return disk_prepare_polled(&nvme_disk);
}

static const char *prepare_nvme_irq(void)
{
	return disk_prepare_interrupts(&nvme_disk);
}

static const char *prepare_pci(void)
{
	return pci_present() ? NULL : "no PCI configuration ports";
}

/* Of the host bridge, which is always there. */
static void read_pci_id(void)
{
	pci_read32(1u << 31, PCI_ID);
}

static void pci_config_read_once(uint32_t turns)
{
	for (; turns; turns--)
		read_pci_id();
}

static void pci_config_read(uint32_t turns)
{
	for (; turns; turns--)
		for (unsigned i = 0; i < DEVICE_UNROLL; i++)
			read_pci_id();
}

/* Sleeping needs STI and HLT, and handlers run at ring 0. */
#define DISK_READ(id, what, where, how, ticks)                                                           \
	{                                                                                                \
		.name = id, .title = what, .group = GROUP_IO, .timing = TIMING_OWN, .modes = MODES,      \
		.rings = where, .prepare = how, .sample = ticks, .finish = disk_finish, .bytes = 512,    \
		.timeout_ms = SAMPLE_TIMEOUT_MS                                                          \
	}

#define REGISTER_READ(id, what, how, body)                                                               \
	{                                                                                                \
		.name = id, .title = what, .group = GROUP_IO, .timing = TIMING_REPEATED, .modes = MODES, \
		.rings = RINGS, .unroll = DEVICE_UNROLL, .prepare = how, .run = body, .once = body##_once \
	}

OPERATIONS(device) = {
	DISK_READ("ata-read-polled", "a sector from an ATA disk, polled for", RINGS, prepare_ata_polled,
		  disk_read_polled),
	DISK_READ("ata-read-irq", "a sector from an ATA disk, slept for", RING0, prepare_ata_irq, disk_read_sleeping),
	DISK_READ("ata-read-to-handler", "an ATA disk's interrupt after a command to read a sector", RING0,
		  prepare_ata_irq, disk_read_to_handler),
	DISK_READ("virtio-read-polled", "a sector from a virtio disk, polled for", RINGS, prepare_virtio_polled,
		  disk_read_polled),
	DISK_READ("virtio-read-irq", "a sector from a virtio disk, slept for", RING0, prepare_virtio_irq,
		  disk_read_sleeping),
	DISK_READ("virtio-read-to-handler", "a virtio disk's interrupt after a command to read a sector", RING0,
		  prepare_virtio_irq, disk_read_to_handler),
	DISK_READ("nvme-read-polled", "a block from an NVMe disk, polled for", RINGS, prepare_nvme_polled,
		  disk_read_polled),
	DISK_READ("nvme-read-irq", "a block from an NVMe disk, slept for", RING0, prepare_nvme_irq, disk_read_sleeping),
	DISK_READ("nvme-read-to-handler", "an NVMe disk's interrupt after a command to read a block", RING0,
		  prepare_nvme_irq, disk_read_to_handler),
	{
		.name = "serial-round-trip", .title = "a byte out of a serial port and back in", .group = GROUP_IO,
		.timing = TIMING_OWN, .modes = MODES, .rings = RINGS, .prepare = uart_prepare,
		.sample = uart_round_trip, .finish = uart_finish, .bytes = 1, .timeout_ms = SAMPLE_TIMEOUT_MS,
	},
	REGISTER_READ("uart-register-read", "a serial port's scratch register", uart_register_prepare,
		      uart_register_read),
	REGISTER_READ("mmio-hpet-read", "the HPET's counter, in memory", hpet_prepare, hpet_read),
	REGISTER_READ("pci-config-read", "a PCI configuration register: a port written, a port read", prepare_pci,
		      pci_config_read),
};
