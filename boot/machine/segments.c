/* SPDX-License-Identifier: Apache-2.0 */
/* GDT, LDT, TSS and IDT. */
#include "segments.h"
#include "machine.h"

#ifdef __x86_64__
#define CODE 0x00af9b000000ffffull
#else
#define CODE 0x00cf9b000000ffffull
#endif
#define CODE_32 0x00cf9b000000ffffull
#define CODE_64 0x00af9b000000ffffull
#define DATA 0x00cf93000000ffffull
#define LEVEL(ring) ((uint64_t)(ring) << 45)

enum { TYPE_LDT = 0x82, TYPE_TSS = 0x89, TYPE_INTERRUPT_GATE = 0x8e, TSS_BUSY = 2 };
enum { VECTOR_STRIDE = 16 }; /* of the stubs in vectors.S */
enum { IST_NMI = 1, IST_DOUBLE_FAULT = 2 };

struct __attribute__((packed)) tss {
#ifdef __x86_64__
	uint32_t unused_0;
	uint64_t stack[3]; /* of levels 0..2 */
	uint64_t unused_1;
	uint64_t ist[7];
	uint64_t unused_2;
	uint16_t unused_3;
#else
	uint32_t unused_0;
	struct {
		uint32_t pointer, segment;
	} stack[3];
	uint8_t unused_1[74];
#endif
	uint16_t io_map; /* beyond the end: there is none, IOPL decides */
};

_Static_assert(sizeof(struct tss) == 104, "struct tss is as the processor wants it");

struct gate {
	uint16_t offset_low, selector;
	uint8_t ist, type;
	uint16_t offset_middle;
#ifdef __x86_64__
	uint32_t offset_high, unused;
#endif
};

extern const uint8_t vectors[];  /* vectors.S */
extern void ring_back(void);     /* rings*.S */

uint64_t gdt[GDT_ENTRIES] __attribute__((aligned(16)));
static struct gate idt[256] __attribute__((aligned(16)));
static struct tss tss, spare_tss;
static uint64_t ldt[2];
static uint8_t trap_stack[16384] __attribute__((aligned(16)));
#ifdef __x86_64__
static uint8_t nmi_stack[8192] __attribute__((aligned(16)));
static uint8_t double_fault_stack[8192] __attribute__((aligned(16)));
#endif

static void describe(unsigned selector, const void *object, size_t size, uint64_t type)
{
	uint64_t base = (word)object;
	uint64_t *entry = &gdt[selector >> 3];

	entry[0] = (size - 1) | (base & 0xffffff) << 16 | type << 40 | (base >> 24 & 0xff) << 56;
#ifdef __x86_64__
	entry[1] = base >> 32;
#endif
}

static void build_gdt(void)
{
	uint64_t *fast = &gdt[SELECTOR_FAST >> 3];

	for (unsigned ring = 0; ring < 4; ring++) {
		gdt[CODE_SELECTOR(ring) >> 3] = CODE | LEVEL(ring);
		gdt[DATA_SELECTOR(ring) >> 3] = DATA | LEVEL(ring);
	}
	fast[0] = CODE;
	fast[1] = DATA;
	fast[2] = CODE_32 | LEVEL(3);
	fast[3] = fast[5] = DATA | LEVEL(3);
	fast[4] = CODE_64 | LEVEL(3);
	describe(SELECTOR_LDT, ldt, sizeof(ldt), TYPE_LDT);
	segments_spare_tss();
}

static void build_tss(void)
{
	tss.io_map = spare_tss.io_map = sizeof(tss);
#ifdef __x86_64__
	tss.stack[0] = (word)(trap_stack + sizeof(trap_stack));
	tss.ist[IST_NMI - 1] = (word)(nmi_stack + sizeof(nmi_stack));
	tss.ist[IST_DOUBLE_FAULT - 1] = (word)(double_fault_stack + sizeof(double_fault_stack));
#else
	tss.stack[0].pointer = (word)(trap_stack + sizeof(trap_stack));
	tss.stack[0].segment = DATA_SELECTOR(0);
#endif
	spare_tss = tss;
}

static unsigned ist_of(uint8_t vector)
{
#ifdef __x86_64__
	if (vector == VECTOR_NMI)
		return IST_NMI;
	if (vector == VECTOR_DOUBLE_FAULT)
		return IST_DOUBLE_FAULT;
#endif
	(void)vector;
	return 0;
}

static void set_gate(uint8_t vector, word entry, unsigned ring)
{
	struct gate gate = {
		.offset_low = entry,
		.selector = CODE_SELECTOR(0),
		.ist = ist_of(vector),
		.type = TYPE_INTERRUPT_GATE | ring << 5,
		.offset_middle = entry >> 16,
	};

#ifdef __x86_64__
	gate.offset_high = entry >> 32;
#endif
	idt[vector] = gate;
}

/* INT3, INTO and the two system calls work from every level. */
static unsigned usual_ring(uint8_t vector)
{
	return vector == 3 || vector == 4 || vector == VECTOR_SYSCALL || vector == VECTOR_RETURN ? 3 : 0;
}

void gate_set(uint8_t vector, void (*entry)(void), unsigned ring)
{
	if (entry)
		set_gate(vector, (word)entry, ring);
	else
		set_gate(vector, (word)(vectors + VECTOR_STRIDE * vector), usual_ring(vector));
}

struct table_register gdt_register(void)
{
	return (struct table_register){ sizeof(gdt) - 1, (word)gdt };
}

struct table_register idt_register(void)
{
	return (struct table_register){ sizeof(idt) - 1, (word)idt };
}

void segments_spare_tss(void)
{
	describe(SELECTOR_SPARE_TSS, &spare_tss, sizeof(spare_tss), TYPE_TSS);
}

static void load_code_segment(void)
{
#ifdef __x86_64__
	uint64_t selector = CODE_SELECTOR(0);

	__asm__ volatile("pushq %0; pushq $1f; lretq; 1:" : : "r"(selector) : "memory");
#else
	__asm__ volatile("ljmp %0, $1f; 1:" : : "i"(CODE_SELECTOR(0)) : "memory");
#endif
}

static void load_data_segments(void)
{
	__asm__ volatile("mov %0, %%ss; mov %0, %%ds; mov %0, %%es; mov %0, %%fs; mov %0, %%gs" : : "r"(DATA_SELECTOR(0)) : "memory");
}

void segments_load(void)
{
	struct table_register gdtr = gdt_register(), idtr = idt_register();

	__asm__ volatile("lgdt %0" : : "m"(gdtr));
	load_code_segment();
	load_data_segments();
	__asm__ volatile("lidt %0" : : "m"(idtr));
	__asm__ volatile("lldt %w0" : : "r"(0));
	describe(SELECTOR_TSS, &tss, sizeof(tss), TYPE_TSS); /* not busy */
	__asm__ volatile("ltr %w0" : : "r"(SELECTOR_TSS));
}

void segments_init(void)
{
	build_tss();
	build_gdt();
	for (unsigned vector = 0; vector < 256; vector++)
		gate_set(vector, NULL, 0);
	gate_set(VECTOR_RETURN, ring_back, 3);
	segments_load();
}
