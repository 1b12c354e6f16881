import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { byName } from "../model/text";
import { durations } from "../model/units";

export interface Column<Row> {
  title: string;
  // What it is sorted by; numbers stand to the right.
  value: (row: Row) => number | string;
  cell: (row: Row) => ComponentChildren;
}

// A column of lengths of time, all in one unit.
export function timeColumn<Row>(
  title: string,
  rows: readonly Row[],
  value: (row: Row) => number,
  cell: (text: string, row: Row) => ComponentChildren = (text) => text,
): Column<Row> {
  const text = durations(rows.map(value));
  return { title, value, cell: (row) => cell(text(value(row)), row) };
}

// Rows in the order given, until a column's title is clicked.
export function DataTable<Row>(props: {
  label: string;
  columns: Column<Row>[];
  rows: Row[];
  first?: number;
}) {
  const few = props.first ?? 25;
  const [order, setOrder] = useState<{ column: number; sign: 1 | -1 } | null>(null);
  const [isAll, setAll] = useState(false);
  const sorted = order ? sort(props.rows, props.columns[order.column], order.sign) : props.rows;
  const first = props.rows[0];
  const isNumber = props.columns.map(
    (column) => first !== undefined && typeof column.value(first) === "number",
  );
  const turn = (column: number) => {
    const start = isNumber[column] ? -1 : 1;
    setOrder(
      order?.column === column
        ? { column, sign: order.sign === 1 ? -1 : 1 }
        : { column, sign: start },
    );
  };
  const direction = (column: number) =>
    order?.column !== column ? "none" : order.sign === 1 ? "ascending" : "descending";
  return (
    <div class="scroll">
      <table aria-label={props.label}>
        <thead>
          <tr>
            {props.columns.map((column, index) => (
              <th
                key={index}
                scope="col"
                class={isNumber[index] ? "number" : ""}
                aria-sort={direction(index)}
              >
                <button type="button" onClick={() => turn(index)}>
                  {column.title}
                </button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {(isAll ? sorted : sorted.slice(0, few)).map((row, at) => (
            <tr key={at}>
              {props.columns.map((column, index) => (
                <td key={index} class={isNumber[index] ? "number" : ""}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {few < sorted.length && (
        <button type="button" class="more" onClick={() => setAll(!isAll)}>
          {isAll ? `Show ${few} rows` : `Show all ${sorted.length} rows`}
        </button>
      )}
    </div>
  );
}

function sort<Row>(rows: Row[], column: Column<Row> | undefined, sign: 1 | -1): Row[] {
  if (!column) return rows;
  return [...rows].sort((a, b) => {
    const [x, y] = [column.value(a), column.value(b)];
    return (
      sign *
      (typeof x === "number" && typeof y === "number"
        ? Number(x > y) - Number(x < y)
        : byName(String(x), String(y)))
    );
  });
}

// A number, and a bar for its share of the largest.
export function Bar(props: { share: number; paint: string; children: ComponentChildren }) {
  return (
    <span class="bar">
      <svg class={props.paint} viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
        <rect width={Math.max(0, Math.min(100, 100 * props.share))} height="10" />
      </svg>
      {props.children}
    </span>
  );
}
