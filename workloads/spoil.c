/* Does to the trace that is being taken of this machine what its root may do: writes garbage into the memory that its
 * events lie in, once the reader has taken some. Needs root.
 * Usage: spoil slots|heads
 *   slots: events of a kind that there is not, for a second
 *   heads: more events than the rings hold */
#include <linux/bpf.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NO_KIND 200
#define KIND_SHIFT 48
#define TAIL 8 /* words from a ring's begin, as in bpf/abi/trace.h */
#define HEAD 0
#define ENOUGH_TAKEN 1000
#define MAX_RINGS 64
#define TRIES 600
#define PAUSE_US 100000
#define ROUNDS 100
#define ROUND_US 10000

/* An array map in this process's memory. */
struct array {
	uint64_t *words;
	size_t entries, words_per_entry;
};

static long bpf(int command, union bpf_attr *attributes)
{
	return syscall(SYS_bpf, command, attributes, sizeof(*attributes));
}

/* The map of this id, when it has that name; else -1. */
static int open_map(uint32_t id, const char *name, struct bpf_map_info *info)
{
	union bpf_attr by_id = { .map_id = id };
	int fd = bpf(BPF_MAP_GET_FD_BY_ID, &by_id);
	union bpf_attr ask = { .info = { .bpf_fd = fd, .info_len = sizeof(*info), .info = (uintptr_t)info } };

	if (fd < 0)
		return -1;
	if (!bpf(BPF_OBJ_GET_INFO_BY_FD, &ask) && !strcmp(info->name, name))
		return fd;
	close(fd);
	return -1;
}

static int find_map(const char *name, struct bpf_map_info *info)
{
	union bpf_attr next = { 0 };

	while (!bpf(BPF_MAP_GET_NEXT_ID, &next)) {
		int fd = open_map(next.next_id, name, info);

		if (0 <= fd)
			return fd;
		next.start_id = next.next_id;
	}
	return -1;
}

static int map_array(const char *name, struct array *array)
{
	struct bpf_map_info info = { 0 };
	int fd = find_map(name, &info);
	size_t page = sysconf(_SC_PAGESIZE), bytes = (size_t)info.max_entries * info.value_size;
	void *memory;

	if (fd < 0)
		return -1;
	memory = mmap(NULL, (bytes + page - 1) / page * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (memory == MAP_FAILED)
		return -1;
	array->words = memory;
	array->entries = info.max_entries;
	array->words_per_entry = info.value_size / sizeof(uint64_t);
	return 0;
}

static uint64_t counter(const struct array *rings, size_t ring, size_t word)
{
	return ((volatile uint64_t *)rings->words)[ring * rings->words_per_entry + word];
}

/* Whether the host has what came before the first call: that this program began. */
static int events_are_taken(const struct array *rings)
{
	static uint64_t heads[MAX_RINGS];
	static int is_later;
	size_t n = rings->entries < MAX_RINGS ? rings->entries : MAX_RINGS;
	uint64_t taken = 0;

	for (size_t ring = 0; ring < n && !is_later; ring++)
		heads[ring] = counter(rings, ring, HEAD);
	is_later = 1;
	for (size_t ring = 0; ring < n; ring++) {
		uint64_t tail = counter(rings, ring, TAIL);

		if (tail < heads[ring])
			return 0;
		taken += tail;
	}
	return ENOUGH_TAKEN <= taken;
}

static int wait_for_trace(struct array *rings, struct array *slots)
{
	rings->words = NULL;
	for (int i = 0; i < TRIES; i++) {
		if (!rings->words && (map_array("rings", rings) || map_array("slots", slots)))
			rings->words = NULL;
		if (rings->words && events_are_taken(rings))
			return 0;
		usleep(PAUSE_US);
	}
	return -1;
}

/* Their generations stay: they look written when the reader expects them. */
static void spoil_slots(struct array *slots)
{
	for (int round = 0; round < ROUNDS; round++) {
		for (size_t slot = 0; slot < slots->entries; slot++) {
			uint64_t *tag = &slots->words[slot * slots->words_per_entry];

			if (*tag)
				*tag = (*tag & ~(0xffULL << KIND_SHIFT)) | (uint64_t)NO_KIND << KIND_SHIFT;
		}
		usleep(ROUND_US);
	}
}

static void spoil_heads(struct array *rings)
{
	for (size_t ring = 0; ring < rings->entries; ring++)
		rings->words[ring * rings->words_per_entry] += 1ULL << 40;
}

int main(int argc, char **argv)
{
	struct array rings, slots;

	if (argc != 2 || (strcmp(argv[1], "slots") && strcmp(argv[1], "heads"))) {
		fprintf(stderr, "usage: spoil slots|heads\n");
		return 2;
	}
	if (wait_for_trace(&rings, &slots)) {
		fprintf(stderr, "spoil: this machine is not traced\n");
		return 1;
	}
	if (!strcmp(argv[1], "slots"))
		spoil_slots(&slots);
	else
		spoil_heads(&rings);
	return 0;
}
