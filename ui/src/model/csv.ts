// Tables as files for spreadsheets (RFC 4180).

import { visible } from "./text";

// Text that a spreadsheet would take for a formula gets an apostrophe before it.
function field(value: string | number | null): string {
  if (typeof value === "number") return String(value);
  const safe = visible(value ?? "").replace(/^[=+\-@\t\r]/, "'$&");
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function csv<Row extends object>(columns: readonly (keyof Row)[], rows: Row[]): string {
  const line = (row: Row) => columns.map((name) => field(row[name] as string | number | null));
  return [columns.map(String), ...rows.map(line)].map((cells) => `${cells.join(",")}\r\n`).join("");
}
