/* SPDX-License-Identifier: Apache-2.0 */
/* Results as rows of text for people. */
#ifndef BOOT_TABLE_H
#define BOOT_TABLE_H

#include "report.h"

/* While the plan runs: each goes to where the screen is. */
void table_title(const struct report *report);
void table_print_condition(const struct plan *plan, unsigned condition, const struct condition_report *found);
void table_print_result(const struct result *result);

/* Afterwards: as many columns of rows as the screen has place for. */
unsigned table_pages(const struct report *report);
void table_print_page(const struct report *report, unsigned page);

#endif
