/* SPDX-License-Identifier: Apache-2.0 */
/* Guarded calls: a body runs at some privilege level, and whatever it does, its caller goes on.
 *
 *   guarded_call --IRET--> body --INT--> ring_back ------------+--> guarded_call
 *                           |                                  |
 *                           +-- fault, NMI --> trap --> ring_end
 */
#include "guard.h"
#include "interrupts.h"
#include "output.h"
#include "power.h"
#include "segments.h"

enum { STACK_SIZE = 32768, N_EXCEPTIONS = 32 };

/* rings*.S */
unsigned ring_call(void (*body)(void *), void *argument, unsigned ring, void *stack);
__attribute__((noreturn)) void ring_end(unsigned outcome);
void trap(struct trap_frame *frame);

struct trap_frame *the_trap_frame;
interrupt_handler interrupt_handlers[256];

static uint8_t stack[STACK_SIZE] __attribute__((aligned(16)));
volatile uint8_t guard_active; /* set and cleared by rings*.S, so that no NMI falls between */
static struct guarded found;

/* What a body may leave behind that nothing works with. */
struct control {
	word cr0, cr3, cr4;
};

static struct control control_read(void)
{
	struct control c;

	__asm__ volatile("mov %%cr0, %0; mov %%cr3, %1; mov %%cr4, %2" : "=r"(c.cr0), "=r"(c.cr3), "=r"(c.cr4));
	return c;
}

static void control_write(const struct control *c)
{
	__asm__ volatile("mov %0, %%cr4; mov %1, %%cr3; mov %2, %%cr0" : : "r"(c->cr4), "r"(c->cr3), "r"(c->cr0) : "memory");
}

struct guarded guarded_call(void (*body)(void *), void *argument, unsigned ring, unsigned timeout_ms)
{
	struct control before = control_read();

	found = (struct guarded){ .outcome = OUTCOME_DONE };
	if (watchdog_works())
		watchdog_arm(timeout_ms);
	ring_call(body, argument, ring, stack + sizeof(stack));
	if (watchdog_works())
		watchdog_disarm();
	if (found.outcome != OUTCOME_DONE) {
		control_write(&before);
		segments_load();
	}
	return found;
}

void interrupt_set(uint8_t vector, interrupt_handler handler)
{
	interrupt_handlers[vector] = handler;
}

__attribute__((noreturn)) static void end(enum outcome outcome, const struct trap_frame *frame)
{
	guard_active = 0;
	found = (struct guarded){ outcome, frame->vector, frame->error_code, frame->ip };
	ring_end(outcome);
}

/* Nothing can go on: it is our own code that failed. */
static void fail(const struct trap_frame *frame)
{
	line_end(); /* of whatever was being written */
	line_add("{\"error\":\"exception %u at 0x%llx, code 0x%x\"}", (unsigned)frame->vector, (unsigned long long)frame->ip,
		 (unsigned)frame->error_code);
	line_end();
	screen_print("Exception %u at 0x%llx, code 0x%x: this is a defect of vmscope's.\n", (unsigned)frame->vector,
		     (unsigned long long)frame->ip, (unsigned)frame->error_code);
	power_off();
	wait_for_ever();
}

void trap(struct trap_frame *frame)
{
	the_trap_frame = frame;
	if (interrupt_handlers[frame->vector]) {
		interrupt_handlers[frame->vector]();
	} else if (frame->vector == VECTOR_NMI) {
		if (guard_active && watchdog_expired())
			end(OUTCOME_TIMEOUT, frame);
	} else if (frame->vector < N_EXCEPTIONS) {
		if (guard_active)
			end(OUTCOME_FAULT, frame);
		fail(frame);
	} else {
		interrupt_dispatch(frame->vector);
	}
}
