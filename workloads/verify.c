/*
 * verify MIB FILE [PAGES_PER_S]: writes to memory, and checks what it wrote. With 2000000000 it does not rest.
 *
 * Each page holds words that follow from its number and its generation. A step checks a page at random and gives it the
 * next generation, then checks the next page in turn. FILE has, several times a second, how many checks there were, how
 * often all pages were checked in turn, and how many words were wrong:
 *
 *     checks 51200 sweeps 3 errors 0
 *
 * SIGUSR1 spoils a word of the page that is checked next, so that one can see that it is found.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))
#define STEPS_A_TURN 32

static uint64_t *memory;
static uint32_t *generations;
static uint64_t checks, sweeps, errors;
static volatile sig_atomic_t spoil;

static void on_signal(int signal)
{
	spoil = signal;
}

static uint64_t word(uint64_t page, uint64_t generation, uint64_t at)
{
	uint64_t x = page * 0x9e3779b97f4a7c15 + generation * 0xbf58476d1ce4e5b9 + at;

	x ^= x >> 31;
	x *= 0x94d049bb133111eb;
	return x ^ (x >> 29);
}

static void __attribute__((noinline)) write_page(uint64_t page)
{
	for (uint64_t at = 0; at < WORDS; at++)
		memory[page * WORDS + at] = word(page, generations[page], at);
}

static void __attribute__((noinline)) check_page(uint64_t page)
{
	for (uint64_t at = 0; at < WORDS; at++)
		errors += memory[page * WORDS + at] != word(page, generations[page], at);
	checks++;
}

static void tell(int file)
{
	char text[128];
	/* As long each time: no reader gets half of a number. */
	int length = snprintf(text, sizeof(text), "checks %020lu sweeps %010lu errors %010lu\n", checks, sweeps, errors);

	if (pwrite(file, text, length, 0) != length)
		exit(1);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: verify MIB FILE [PAGES_PER_S]\n");
		return 2;
	}
	uint64_t pages = strtoull(argv[1], NULL, 10) * 256, next = 0, random = 88172645463325252;
	uint64_t a_second = argc > 3 ? strtoull(argv[3], NULL, 10) : 1000;
	int file = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC, 0644);

	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	generations = calloc(pages, sizeof(*generations));
	if (pages == 0 || a_second == 0 || file < 0 || memory == MAP_FAILED || !generations) {
		perror("verify");
		return 1;
	}
	for (uint64_t page = 0; page < pages; page++)
		write_page(page);

	signal(SIGUSR1, on_signal);

	struct timespec pause = { 0, 0 };
	uint64_t ns = 1000000000 / a_second * STEPS_A_TURN;
	pause.tv_sec = ns / 1000000000;
	pause.tv_nsec = ns % 1000000000;
	for (;;) {
		for (int step = 0; step < STEPS_A_TURN; step++) {
			random ^= random << 13;
			random ^= random >> 7;
			random ^= random << 17;
			uint64_t page = random % pages;

			check_page(page);
			generations[page]++;
			write_page(page);
			check_page(next);
			next = (next + 1) % pages;
			sweeps += next == 0;
		}
		if (spoil) {
			spoil = 0;
			memory[next * WORDS] ^= 1;
		}
		tell(file);
		if (ns > 0)
			nanosleep(&pause, NULL);
	}
}
