// Hosts x time: how much of their vCPUs' time was stolen.

import { colour, onNewColours } from "exported-page";
import { useEffect, useRef, useState } from "preact/hooks";
import { type Buckets, spanOfBuckets } from "../model/place";
import { instant, percent, span as spanText } from "../model/units";
import { Name } from "./name";

export interface HeatRow {
  name: string;
  href: string;
  // Of each bucket, from 0 to 1; null: nothing is known.
  shares: (number | null)[];
}

const ROW_PX = 22;
// From this share on a cell has the full colour.
const FULL = 0.5;
const SCALE = [0, 0.02, 0.1, 0.25, 0.5];
// Small shares are seen, too.
const strength = (share: number) => Math.sqrt(Math.min(1, share / FULL));

export function HeatMap(props: {
  label: string;
  rows: HeatRow[];
  buckets: Buckets;
  onOpen: (row: HeatRow, bucket: number) => void;
}) {
  const { rows, buckets } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const [at, setAt] = useState<{ row: number; bucket: number } | null>(null);

  useEffect(() => {
    const abort = new AbortController();
    const redraw = () => canvas.current && draw(canvas.current, rows, buckets, at);
    redraw();
    onNewColours(redraw, abort.signal);
    const resized = new ResizeObserver(redraw);
    if (canvas.current) resized.observe(canvas.current);
    return () => {
      abort.abort();
      resized.disconnect();
    };
  }, [rows, buckets.start, buckets.length, buckets.count, at]);

  const pointed = (event: MouseEvent) => {
    const edges = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const row = Math.floor((event.clientY - edges.top) / ROW_PX);
    const bucket = Math.floor(((event.clientX - edges.left) / edges.width) * buckets.count);
    return 0 <= row && row < rows.length && 0 <= bucket && bucket < buckets.count
      ? { row, bucket }
      : null;
  };
  const open = (cell: { row: number; bucket: number } | null) => {
    const row = cell && rows[cell.row];
    if (row) props.onOpen(row, cell.bucket);
  };
  const onKey = (event: KeyboardEvent) => {
    const [down, right] = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
    }[event.key] ?? [0, 0];
    if (event.key === "Enter") return open(at);
    if (!down && !right) return;
    event.preventDefault();
    const last = at ?? { row: 0, bucket: buckets.count };
    const clamp = (value: number, count: number) => Math.max(0, Math.min(count - 1, value));
    setAt({
      row: clamp(last.row + (down ?? 0), rows.length),
      bucket: clamp(last.bucket + (right ?? 0), buckets.count),
    });
  };
  const row = at && rows[at.row];
  const share = at && row?.shares[at.bucket];
  return (
    <>
      <p class="said" aria-live="polite">
        {row && at ? (
          <>
            <Name name={row.name} />, {spanText(spanOfBuckets(buckets, at.bucket, at.bucket))}:{" "}
            {share === null || share === undefined ? "no data" : `${percent(share, 1)} stolen`}
          </>
        ) : (
          "Point at a cell; a click opens the host at that time."
        )}
      </p>
      <div class="heat-cells">
        <ul>
          {rows.map(({ name, href }) => (
            <li key={name}>
              <Name name={name} href={href} length={32} />
            </li>
          ))}
        </ul>
        <canvas
          ref={canvas}
          tabIndex={0}
          role="group"
          aria-label={`${props.label}. Arrow keys move, Enter opens the host.`}
          onMouseMove={(event) => setAt(pointed(event))}
          onMouseLeave={() => setAt(null)}
          onClick={(event) => open(pointed(event))}
          onKeyDown={onKey}
        />
        <p class="heat-times" aria-hidden="true">
          {[0, 0.25, 0.5, 0.75, 1].map((part) => (
            <span key={part}>{instant(buckets.start + part * buckets.count * buckets.length)}</span>
          ))}
        </p>
      </div>
      <ul class="legend">
        {SCALE.map((share) => (
          <li key={share}>
            <span class="swatch preempted" style={{ opacity: strength(share) }} />
            {percent(share, 1, 0)}
            {share === FULL && " and more"}
          </li>
        ))}
        <li class="faint">blank: no data</li>
      </ul>
    </>
  );
}

function draw(
  canvas: HTMLCanvasElement,
  rows: HeatRow[],
  { count }: Buckets,
  at: { row: number; bucket: number } | null,
) {
  canvas.style.height = `${rows.length * ROW_PX}px`;
  const [width, height] = [canvas.clientWidth, rows.length * ROW_PX];
  canvas.width = width * devicePixelRatio;
  canvas.height = height * devicePixelRatio;
  const context = canvas.getContext("2d");
  if (!context) return;
  context.scale(devicePixelRatio, devicePixelRatio);
  const [none, full, ink] = [colour("hover"), colour("preempted"), colour("ink")];
  rows.forEach(({ shares }, row) => {
    shares.forEach((share, bucket) => {
      if (share === null) return;
      const [left, right] = [
        Math.floor((bucket * width) / count),
        Math.floor(((bucket + 1) * width) / count),
      ];
      const gap = right - left > 4 ? 1 : 0;
      for (const [fill, alpha] of [
        [none, 1],
        [full, strength(share)],
      ] as const) {
        context.globalAlpha = alpha;
        context.fillStyle = fill;
        context.fillRect(left, row * ROW_PX + 1, right - left - gap, ROW_PX - 2);
      }
    });
  });
  context.globalAlpha = 1;
  if (!at) return;
  context.strokeStyle = ink;
  context.lineWidth = 2;
  context.strokeRect((at.bucket * width) / count, at.row * ROW_PX + 1, width / count, ROW_PX - 2);
}
