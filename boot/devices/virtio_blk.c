/* SPDX-License-Identifier: Apache-2.0 */
/* The first virtio block device on PCI, modern (virtio 1.0) or legacy: one queue, one request at a time. */
#include "disk.h"
#include "irq.h"
#include "map.h"

/* device << 16 | vendor */
#define MODERN_BLOCK 0x10421af4u
#define TRANSITIONAL_BLOCK 0x10011af4u

enum { ACKNOWLEDGE = 1, DRIVER = 2, DRIVER_OK = 4, FEATURES_OK = 8 };
/* Features, in the upper 32 bits: the device follows the 1.0 standard; it reaches memory as the platform says. */
enum { VERSION_1 = 1 << 0, ACCESS_PLATFORM = 1 << 1 };

enum { PAGE = 4096, SECTOR = 512, MAX_ENTRIES = 8, RESET_US = 1000000, NO_VECTOR = 0xffff };

/* ---- what lies in memory ---- */

struct descriptor {
	uint64_t address;
	uint32_t length;
	uint16_t flags, next;
};

enum { NEXT = 1, DEVICE_WRITES = 2 };

/* Of struct available and struct used only what we look at; `used` entries follow. */
struct available {
	uint16_t flags, index, ring[];
};

enum { NO_INTERRUPTS = 1 };

struct used {
	uint16_t flags, index;
};

struct request {
	uint32_t type, reserved;
	uint64_t sector;
	uint8_t data[SECTOR];
	uint8_t status;
};

enum { REQUEST_READ = 0, REQUEST_HEADER = 16, STATUS_UNTOUCHED = 0xff };

/* ---- registers ---- */

/* Modern: the common configuration. */
enum {
	DEVICE_FEATURE_SELECT = 0,
	DEVICE_FEATURE = 4,
	DRIVER_FEATURE_SELECT = 8,
	DRIVER_FEATURE = 12,
	CONFIG_VECTOR = 16,
	DEVICE_STATUS = 20,
	QUEUE_SELECT = 22,
	QUEUE_SIZE = 24,
	QUEUE_VECTOR = 26,
	QUEUE_ENABLE = 28,
	QUEUE_NOTIFY_OFFSET = 30,
	QUEUE_DESCRIPTORS = 32,
	QUEUE_AVAILABLE = 40,
	QUEUE_USED = 48,
};

/* Modern: kinds of vendor capabilities, and what is in one. */
enum { COMMON_CONFIGURATION = 1, NOTIFICATIONS = 2, INTERRUPT_STATUS = 3, N_PARTS };
enum { CAPABILITY_KIND = 3, CAPABILITY_BAR = 4, CAPABILITY_OFFSET = 8, CAPABILITY_MULTIPLIER = 16 };

/* Legacy: ports. */
enum {
	LEGACY_DRIVER_FEATURE = 4,
	LEGACY_QUEUE_PAGE = 8,
	LEGACY_QUEUE_SIZE = 12,
	LEGACY_QUEUE_SELECT = 14,
	LEGACY_NOTIFY = 16,
	LEGACY_STATUS = 18,
	LEGACY_INTERRUPT_STATUS = 19,
};

static struct {
	pci_function function;
	uint16_t pci_command; /* the register, before */
	bool is_legacy, by_msix;
	uint16_t port;           /* legacy */
	uint64_t parts[N_PARTS]; /* modern: addresses, by kind; of notifications: the queue's */
	volatile struct descriptor *descriptors;
	volatile struct available *available;
	volatile struct used *used;
	volatile struct request *request;
	unsigned n_entries;
	uint16_t n_started;
} virtio;

static volatile uint8_t *common8(unsigned offset)
{
	return (volatile uint8_t *)(word)(virtio.parts[COMMON_CONFIGURATION] + offset);
}

static volatile uint16_t *common16(unsigned offset)
{
	return (volatile uint16_t *)(word)(virtio.parts[COMMON_CONFIGURATION] + offset);
}

static volatile uint32_t *common32(unsigned offset)
{
	return (volatile uint32_t *)(word)(virtio.parts[COMMON_CONFIGURATION] + offset);
}

static uint8_t get_status(void)
{
	return virtio.is_legacy ? in8(virtio.port + LEGACY_STATUS) : *common8(DEVICE_STATUS);
}

static void put_status(uint8_t status)
{
	if (virtio.is_legacy)
		out8(virtio.port + LEGACY_STATUS, status);
	else
		*common8(DEVICE_STATUS) = status;
}

static void add_status(uint8_t bits)
{
	put_status(get_status() | bits);
}

static bool reset(void)
{
	uint64_t deadline = deadline_us(RESET_US);

	put_status(0);
	while (get_status())
		if (past(deadline))
			return false;
	return true;
}

/* ---- finding it ---- */

/* Where a vendor capability's registers are. */
static const char *find_part(unsigned capability, uint64_t *address)
{
	struct pci_bar bar;
	const char *reason = pci_bar(virtio.function, pci_read8(virtio.function, capability + CAPABILITY_BAR), &bar);

	if (!reason && bar.is_port)
		reason = "its registers are ports, not memory";
	if (!reason)
		*address = bar.address + pci_read32(virtio.function, capability + CAPABILITY_OFFSET);
	return reason;
}

/* The first capability of each kind is the one that the device likes best. */
static const char *find_parts(unsigned *notifications)
{
	unsigned capability = 0;

	while ((capability = pci_capability(virtio.function, PCI_CAPABILITY_VENDOR, capability))) {
		unsigned kind = pci_read8(virtio.function, capability + CAPABILITY_KIND);
		const char *reason;

		if (kind == 0 || kind >= N_PARTS || virtio.parts[kind])
			continue;
		reason = find_part(capability, &virtio.parts[kind]);
		if (reason)
			return reason;
		if (kind == NOTIFICATIONS)
			*notifications = capability;
	}
	return NULL;
}

static const char *find(unsigned *notifications)
{
	struct pci_bar bar;
	const char *reason;

	virtio.function = pci_find(PCI_ID, ~0u, MODERN_BLOCK);
	if (!virtio.function)
		virtio.function = pci_find(PCI_ID, ~0u, TRANSITIONAL_BLOCK);
	if (!virtio.function)
		return "no virtio block device";
	virtio.pci_command = pci_enable(virtio.function);
	reason = find_parts(notifications);
	if (reason)
		return reason;
	if (virtio.parts[COMMON_CONFIGURATION] && virtio.parts[NOTIFICATIONS] && virtio.parts[INTERRUPT_STATUS])
		return NULL;
	virtio.is_legacy = true;
	reason = pci_bar(virtio.function, 0, &bar);
	virtio.port = bar.address;
	return reason ? reason : bar.is_port ? NULL : "no virtio registers";
}

/* ---- setting it up ---- */

static size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

/* As legacy devices want it: one piece, `used` on a page of its own. */
static bool take_queue(void)
{
	unsigned n = virtio.n_entries;
	size_t first = round_up(n * sizeof(struct descriptor) + sizeof(struct available) + 2 * n + 2, PAGE);
	size_t all = first + round_up(sizeof(struct used) + 8 * n + 2, PAGE);
	uint8_t *memory = arena_take(all, PAGE);

	virtio.request = arena_take(PAGE, PAGE);
	if (!memory || !virtio.request)
		return false;
	memset(memory, 0, all);
	virtio.descriptors = (void *)memory;
	virtio.available = (void *)(memory + n * sizeof(struct descriptor));
	virtio.used = (void *)(memory + first);
	return true;
}

static void describe(unsigned i, volatile void *what, uint32_t length, uint16_t flags)
{
	virtio.descriptors[i].address = (word)what;
	virtio.descriptors[i].length = length;
	virtio.descriptors[i].flags = flags;
	virtio.descriptors[i].next = i + 1;
}

/* The same request each time: header, data, status. */
static void fill_queue(bool interrupts)
{
	volatile struct request *request = virtio.request;

	request->type = REQUEST_READ;
	request->reserved = 0;
	request->sector = 0;
	describe(0, request, REQUEST_HEADER, NEXT);
	describe(1, request->data, SECTOR, NEXT | DEVICE_WRITES);
	describe(2, &request->status, 1, DEVICE_WRITES);
	virtio.available->flags = interrupts ? 0 : NO_INTERRUPTS;
}

static const char *agree_on_features(void)
{
	uint32_t wanted;

	if (virtio.is_legacy) {
		out32(virtio.port + LEGACY_DRIVER_FEATURE, 0);
		return NULL;
	}
	*common32(DEVICE_FEATURE_SELECT) = 1;
	wanted = *common32(DEVICE_FEATURE) & (VERSION_1 | ACCESS_PLATFORM);
	*common32(DRIVER_FEATURE_SELECT) = 0;
	*common32(DRIVER_FEATURE) = 0;
	*common32(DRIVER_FEATURE_SELECT) = 1;
	*common32(DRIVER_FEATURE) = wanted;
	add_status(FEATURES_OK);
	return get_status() & FEATURES_OK ? NULL : "the virtio device refuses our features";
}

static unsigned queue_size(void)
{
	unsigned size;

	if (virtio.is_legacy) {
		out16(virtio.port + LEGACY_QUEUE_SELECT, 0);
		return in16(virtio.port + LEGACY_QUEUE_SIZE); /* it can't be chosen */
	}
	*common16(QUEUE_SELECT) = 0;
	size = *common16(QUEUE_SIZE);
	return size < MAX_ENTRIES ? size : MAX_ENTRIES;
}

static void put_address(unsigned offset, volatile void *address)
{
	*common32(offset) = (word)address;
	*common32(offset + 4) = 0; /* the arena lies below 4 GiB */
}

static const char *tell_queue_modern(unsigned notifications)
{
	*common16(QUEUE_SIZE) = virtio.n_entries;
	*common16(CONFIG_VECTOR) = NO_VECTOR;
	*common16(QUEUE_VECTOR) = virtio.by_msix ? 0 : NO_VECTOR;
	if (virtio.by_msix && *common16(QUEUE_VECTOR) != 0)
		return "the virtio device takes no interrupt vector";
	put_address(QUEUE_DESCRIPTORS, virtio.descriptors);
	put_address(QUEUE_AVAILABLE, virtio.available);
	put_address(QUEUE_USED, virtio.used);
	virtio.parts[NOTIFICATIONS] += (uint64_t)*common16(QUEUE_NOTIFY_OFFSET) *
				       pci_read32(virtio.function, notifications + CAPABILITY_MULTIPLIER);
	*common16(QUEUE_ENABLE) = 1;
	return NULL;
}

static const char *tell_queue(unsigned notifications)
{
	if (!virtio.is_legacy)
		return tell_queue_modern(notifications);
	out32(virtio.port + LEGACY_QUEUE_PAGE, (word)virtio.descriptors / PAGE);
	return NULL;
}

static uint8_t read_interrupt_status(void)
{
	if (virtio.is_legacy)
		return in8(virtio.port + LEGACY_INTERRUPT_STATUS);
	return *(volatile uint8_t *)(word)virtio.parts[INTERRUPT_STATUS];
}

static bool request_is_used(void)
{
	return virtio.used->index == virtio.n_started;
}

/* A line is taken back by reading the status; a message needs no word. */
static bool acknowledge(void)
{
	return (virtio.by_msix || read_interrupt_status() & 1) && request_is_used();
}

/* Legacy devices' registers move when MSI-X is on: they keep to their line. */
static const char *set_up_interrupts(void)
{
	virtio.by_msix = !virtio.is_legacy && !irq_by_msix(virtio.function, acknowledge);
	return virtio.by_msix ? NULL : irq_by_line(virtio.function, acknowledge);
}

static const char *open(bool interrupts)
{
	const char *reason;
	unsigned notifications = 0;

	memset(&virtio, 0, sizeof(virtio));
	reason = find(&notifications);
	if (reason)
		return reason;
	if (!reset())
		return "the virtio device does not reset";
	add_status(ACKNOWLEDGE);
	add_status(DRIVER);
	reason = agree_on_features();
	if (!reason && interrupts)
		reason = set_up_interrupts();
	if (reason)
		return reason;
	virtio.n_entries = queue_size();
	if (virtio.n_entries < 4)
		return "the virtio device's queue is too short";
	if (!take_queue())
		return "no memory for its queue";
	fill_queue(interrupts);
	reason = tell_queue(notifications);
	add_status(DRIVER_OK);
	return reason;
}

/* ---- reading ---- */

static void write_command(void)
{
	virtio.request->status = STATUS_UNTOUCHED;
	virtio.available->ring[virtio.n_started % virtio.n_entries] = 0;
}

/* Devices that poll see the index; the others wait for a notification. */
static void ring(void)
{
	virtio.available->index = ++virtio.n_started;
	if (virtio.is_legacy)
		out16(virtio.port + LEGACY_NOTIFY, 0);
	else
		*(volatile uint16_t *)(word)virtio.parts[NOTIFICATIONS] = 0;
}

static enum disk_state poll(void)
{
	if (!request_is_used())
		return DISK_BUSY;
	return virtio.request->status == 0 ? DISK_DONE : DISK_FAILED;
}

static void close(void)
{
	if (virtio.port || virtio.parts[COMMON_CONFIGURATION]) {
		reset();
		irq_close();
	}
	if (virtio.function)
		pci_disable(virtio.function, virtio.pci_command);
	map_release();
	memset(&virtio, 0, sizeof(virtio));
}

const struct disk virtio_disk = { open, write_command, ring, poll, close };
