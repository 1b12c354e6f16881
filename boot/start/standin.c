/* SPDX-License-Identifier: MIT */
/* Until bench/report.c is there. */
#include "output.h"
#include "report.h"

#define WEAK __attribute__((weak))

WEAK void report_header(const struct report *report)
{
	line_add("{\"vmscope_boot\":1,\"plan\":");
	line_add_string(report->plan->name);
	line_add(",\"command_line\":");
	line_add_string(report->command_line);
	line_add(",\"bits\":%d,\"operations\":%u}", (int)sizeof(word) * 8, plan_count(report->plan));
	line_end();
}

WEAK void report_condition(const struct plan *plan, unsigned condition, const struct condition_report *found)
{
	char id[CONDITION_ID_SIZE];

	condition_id(&plan->conditions[condition], id, sizeof(id));
	line_add("{\"condition\":\"%s\",\"effective\":%u,\"reason\":\"%s\",\"cr0\":\"%x\",\"cr4\":\"%x\",\"ring\":%u,\"chase\":%u,\"bits\":%d}", id,
		 found->effective, found->reason ? found->reason : "", found->cr0, found->cr4, found->ring, found->chase_ticks_x100,
		 (int)sizeof(word) * 8);
	line_end();
}

WEAK void report_begin(const struct plan *plan, unsigned condition, unsigned operation, unsigned done)
{
	(void)plan, (void)condition, (void)operation, (void)done;
}

WEAK void report_result(const struct plan *plan, const struct result *result)
{
	(void)plan;
	line_add("{\"result\":\"%s\",\"status\":%u,\"vector\":%u,\"reason\":\"%s\",\"min\":%llu,\"batch\":%llu}", operations[result->operation].name,
		 result->status, result->vector, result->status >= STATUS_MISSING ? result->reason : "", (unsigned long long)result->single.min,
		 (unsigned long long)result->batch);
	line_end();
}

WEAK void report_warning(const char *pattern, ...)
{
	line_add("{\"warning\":\"%s\"}", pattern);
	line_end();
}

WEAK void report_plan_error(const struct plan_error *error)
{
	line_add("{\"error\":\"%s\"}", error->message);
	line_end();
}

WEAK void report_end(const struct run_end *end)
{
	line_add("{\"end\":\"complete\",\"results\":%u,\"bits\":%d}", end->results, (int)sizeof(word) * 8);
	line_end();
}

WEAK void report_show(const struct report *report)
{
	(void)report;
}
