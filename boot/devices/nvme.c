/* SPDX-License-Identifier: Apache-2.0 */
/* The first NVMe controller: an admin queue, one pair of I/O queues, one command at a time. */
#include "disk.h"
#include "irq.h"
#include "map.h"

#define CLASS_NVME 0x01080200u

/* Registers. */
enum {
	CAPABILITIES = 0x00,
	CONFIGURATION = 0x14,
	STATUS = 0x1c,
	ADMIN_SIZES = 0x24,
	ADMIN_COMMANDS = 0x28,
	ADMIN_COMPLETIONS = 0x30,
	DOORBELLS = 0x1000,
};

enum { ENABLE = 1 << 0, COMMANDS_64_BYTES = 6 << 16, COMPLETIONS_16_BYTES = 4 << 20 };
enum { READY = 1 << 0, FATAL = 1 << 1 };

enum { ADMIN_CREATE_SUBMISSION = 0x01, ADMIN_CREATE_COMPLETION = 0x05, ADMIN_IDENTIFY = 0x06, IO_READ = 0x02 };
enum { CONTIGUOUS = 1 << 0, WITH_INTERRUPTS = 1 << 1 };

enum { PAGE = 4096, N_ENTRIES = 8, ADMIN_US = 2000000, NAMESPACE = 1 };

struct command {
	uint32_t opcode_and_id; /* id << 16 | opcode */
	uint32_t namespace;
	uint64_t reserved, metadata, page, more_pages;
	uint32_t arguments[6];
};

struct completion {
	uint32_t result, reserved;
	uint16_t head, queue, id;
	uint16_t status; /* bit 0: phase, which turns over with each round through the queue */
};

_Static_assert(sizeof(struct command) == 64 && sizeof(struct completion) == 16, "as the controller has them");

/* A submission queue and its completion queue, of the same number. */
struct queue {
	volatile struct command *commands;
	volatile struct completion *completions;
	unsigned number, tail, head, phase;
	enum disk_state state; /* of the command that was started last */
};

static struct {
	pci_function function;
	uint16_t pci_command; /* the register, before */
	uint64_t registers;
	unsigned doorbell_stride;
	uint32_t ready_us; /* how long it may take to start or stop */
	struct queue admin, io;
	uint8_t *block;
} nvme;

static uint32_t get(unsigned offset)
{
	return mmio_read32(nvme.registers + offset);
}

static void put(unsigned offset, uint32_t value)
{
	mmio_write32(nvme.registers + offset, value);
}

static void put64(unsigned offset, uint64_t value)
{
	put(offset, (uint32_t)value);
	put(offset + 4, value >> 32);
}

/* ---- queues ---- */

static bool queue_take(struct queue *queue, unsigned number)
{
	memset(queue, 0, sizeof(*queue));
	queue->commands = arena_take(PAGE, PAGE);
	queue->completions = arena_take(PAGE, PAGE);
	if (!queue->commands || !queue->completions)
		return false;
	memset((void *)queue->commands, 0, PAGE);
	memset((void *)queue->completions, 0, PAGE);
	queue->number = number;
	queue->phase = 1;
	return true;
}

static void queue_write(struct queue *queue, const struct command *command)
{
	queue->commands[queue->tail] = *command;
	queue->tail = (queue->tail + 1) % N_ENTRIES;
	queue->state = DISK_BUSY;
}

static void queue_ring(struct queue *queue)
{
	put(DOORBELLS + 2 * queue->number * nvme.doorbell_stride, queue->tail);
}

/* Takes a completion out of the queue, if there is one. */
static bool queue_complete(struct queue *queue)
{
	uint16_t status = queue->completions[queue->head].status;

	if ((status & 1) != queue->phase)
		return false;
	queue->state = status >> 1 ? DISK_FAILED : DISK_DONE;
	queue->head = (queue->head + 1) % N_ENTRIES;
	if (queue->head == 0)
		queue->phase ^= 1;
	put(DOORBELLS + (2 * queue->number + 1) * nvme.doorbell_stride, queue->head);
	return true;
}

static bool admin(const struct command *command)
{
	uint64_t deadline = deadline_us(ADMIN_US);

	queue_write(&nvme.admin, command);
	queue_ring(&nvme.admin);
	while (!queue_complete(&nvme.admin))
		if (past(deadline))
			return false;
	return nvme.admin.state == DISK_DONE;
}

/* ---- setting up ---- */

static bool wait_ready(uint32_t wanted)
{
	uint64_t deadline = deadline_us(nvme.ready_us);

	while ((get(STATUS) & READY) != wanted)
		if (get(STATUS) & FATAL || past(deadline))
			return false;
	return true;
}

/* A controller that firmware or a loader left running is stopped, too. */
static bool stop(void)
{
	put(CONFIGURATION, get(CONFIGURATION) & ~ENABLE);
	return wait_ready(0);
}

static bool start(void)
{
	put(ADMIN_SIZES, (N_ENTRIES - 1) << 16 | (N_ENTRIES - 1));
	put64(ADMIN_COMMANDS, (word)nvme.admin.commands);
	put64(ADMIN_COMPLETIONS, (word)nvme.admin.completions);
	put(CONFIGURATION, ENABLE | COMMANDS_64_BYTES | COMPLETIONS_16_BYTES);
	return wait_ready(READY);
}

static const char *find(void)
{
	struct pci_bar bar;
	const char *reason;
	uint64_t capabilities;

	nvme.function = pci_find(PCI_CLASS, 0xffffff00, CLASS_NVME);
	if (!nvme.function)
		return "no NVMe controller";
	reason = pci_bar(nvme.function, 0, &bar);
	if (reason)
		return reason;
	nvme.pci_command = pci_enable(nvme.function);
	nvme.registers = bar.address;
	capabilities = mmio_read64(bar.address + CAPABILITIES);
	nvme.doorbell_stride = 4u << (capabilities >> 32 & 15);
	nvme.ready_us = ((capabilities >> 24 & 0xff) + 1) * 500000;
	return NULL;
}

static const char *check_namespace(void)
{
	struct command identify = { ADMIN_IDENTIFY, NAMESPACE, .page = (word)nvme.block };
	uint64_t n_blocks;
	unsigned format, block_bits;

	if (!admin(&identify))
		return "the NVMe controller does not identify namespace 1";
	memcpy(&n_blocks, nvme.block, sizeof(n_blocks));
	if (!n_blocks)
		return "no NVMe namespace 1";
	format = nvme.block[26] & 15;
	block_bits = nvme.block[128 + 4 * format + 2];
	return 1u << (block_bits & 31) <= PAGE ? NULL : "its blocks are larger than 4 KiB";
}

static bool create_io_queues(bool interrupts)
{
	uint32_t size_and_number = (N_ENTRIES - 1) << 16 | 1;
	uint32_t how = CONTIGUOUS | (interrupts ? WITH_INTERRUPTS : 0);
	struct command completions = { ADMIN_CREATE_COMPLETION, .page = (word)nvme.io.completions,
				       .arguments = { size_and_number, how } };
	struct command commands = { ADMIN_CREATE_SUBMISSION, .page = (word)nvme.io.commands,
				    .arguments = { size_and_number, 1 << 16 | CONTIGUOUS } };

	return admin(&completions) && admin(&commands);
}

/* Admin commands are polled for, and may leave an interrupt behind: it isn't taken for a read's. */
static bool acknowledge(void)
{
	return queue_complete(&nvme.io);
}

/* Before the queues are created: each gets its vector from how the controller interrupts at that time. */
static const char *set_up_interrupts(void)
{
	if (!irq_by_msix(nvme.function, acknowledge) || !irq_by_msi(nvme.function, acknowledge))
		return NULL;
	return irq_by_line(nvme.function, acknowledge);
}

static const char *open(bool interrupts)
{
	const char *reason;

	memset(&nvme, 0, sizeof(nvme));
	reason = find();
	if (reason)
		return reason;
	nvme.block = arena_take(PAGE, PAGE);
	if (!nvme.block || !queue_take(&nvme.admin, 0) || !queue_take(&nvme.io, 1))
		return "no memory for its queues";
	if (!stop())
		return "the NVMe controller does not stop";
	reason = interrupts ? set_up_interrupts() : NULL;
	if (reason)
		return reason;
	if (!start())
		return "the NVMe controller does not start";
	reason = check_namespace();
	if (reason)
		return reason;
	return create_io_queues(interrupts) ? NULL : "the NVMe controller creates no queues";
}

/* ---- reading ---- */

static void write_command(void)
{
	struct command read = { IO_READ, NAMESPACE, .page = (word)nvme.block };

	queue_write(&nvme.io, &read); /* block 0, and one (0) of them */
}

static void ring(void)
{
	queue_ring(&nvme.io);
}

static enum disk_state poll(void)
{
	if (nvme.io.state == DISK_BUSY)
		queue_complete(&nvme.io);
	return nvme.io.state;
}

static void close(void)
{
	if (nvme.registers) {
		stop();
		irq_close();
		pci_disable(nvme.function, nvme.pci_command);
	}
	map_release();
	memset(&nvme, 0, sizeof(nvme));
}

const struct disk nvme_disk = { open, write_command, ring, poll, close };
