// Shares over time, stacked, with a range that can be selected by mouse, touch or keyboard.

import { colour, onNewColours } from "exported-page";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { type Buckets, bucketAt, spanOfBuckets } from "../model/place";
import type { Series } from "../model/series";
import { type Span, instant, span as spanText } from "../model/units";

export type { Series };

interface Props {
  label: string;
  buckets: Buckets;
  series: Series[];
  // How a value is worded.
  amount: (value: number) => string;
  // The most that values add up to; absent: what they do.
  most?: number;
  // When something began.
  mark?: Span;
  selection: Span | null;
  onSelect: (selection: Span | null) => void;
  onZoom: (span: Span) => void;
}

const HEIGHT = 220;
// A shorter move of the mouse is a click.
const MIN_DRAG_PX = 3;

export function Chart(props: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [hovered, setHovered] = useState<number | null>(null);
  const [theme, setTheme] = useState(0);
  const { buckets, series, selection } = props;

  useEffect(() => {
    const abort = new AbortController();
    onNewColours(() => setTheme((theme) => theme + 1), abort.signal);
    return () => abort.abort();
  }, []);
  useEffect(() => {
    const parent = box.current;
    if (!parent) return;
    const made = new uPlot(options(parent, props, latest, setHovered), stacked(props), parent);
    plot.current = made;
    // Of the same width nothing is drawn again.
    const resized = new ResizeObserver(() => {
      if (parent.clientWidth !== made.width)
        made.setSize({ width: parent.clientWidth, height: HEIGHT });
      drawSelection(made, latest.current.selection);
    });
    resized.observe(parent);
    return () => {
      resized.disconnect();
      made.destroy();
    };
  }, [
    buckets.start,
    buckets.length,
    buckets.count,
    series.map((one) => one.name).join("\n"),
    theme,
  ]);
  useEffect(() => {
    plot.current?.setData(stacked(props));
  }, [series]);
  // Not whenever something is pointed at: that would end a selection that is being drawn.
  useEffect(() => {
    if (plot.current) drawSelection(plot.current, selection);
  }, [series, theme, selection?.from, selection?.to]);

  const shown = hovered === null ? null : spanOfBuckets(buckets, hovered, hovered);
  return (
    <div class="chart-box">
      <div
        ref={box}
        class="plot"
        tabIndex={0}
        role="group"
        aria-label={`${props.label}. Arrow keys select, with Shift a range; Enter zooms, Escape clears.`}
        onKeyDown={(event) => onKey(event, props)}
      />
      <p class="said" aria-live="polite">
        {shown
          ? spanText(shown)
          : selection
            ? `Selected: ${spanText(selection)}`
            : "Drag to select a range, or click."}
      </p>
      <ul class="legend">
        {series.map((one) => (
          <li key={one.name}>
            <span class={`swatch ${one.colour}`} />
            <bdi>{one.name}</bdi>{" "}
            <span class="faint">
              {hovered === null ? "" : props.amount(one.values[hovered] ?? 0)}
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}

// Each series with those below it, the highest first: what is lower is drawn over it.
function stacked({ buckets, series }: Props): uPlot.AlignedData {
  const times = Array.from(
    { length: buckets.count },
    (_, at) => (buckets.start + at * buckets.length) / 1000,
  );
  const sums: (number | null)[][] = [];
  const below: number[] = times.map(() => 0);
  for (const { values } of series) {
    sums.unshift(
      values.map((value, at) => (value === null ? null : (below[at] = (below[at] ?? 0) + value))),
    );
  }
  return [times, ...sums];
}

function options(
  parent: HTMLElement,
  props: Props,
  latest: { current: Props },
  onHover: (at: number | null) => void,
): uPlot.Options {
  const { buckets, series } = props;
  const axis: uPlot.Axis = {
    stroke: colour("faint"),
    grid: { stroke: colour("line"), width: 1 },
    ticks: { stroke: colour("line"), width: 1 },
  };
  const end = (buckets.start + buckets.count * buckets.length) / 1000;
  const bars = uPlot.paths.bars?.({ size: [1, Infinity], align: 1, gap: 0 });
  return {
    width: parent.clientWidth,
    height: HEIGHT,
    padding: [8, 32, 0, 0],
    legend: { show: false },
    scales: {
      x: { range: [buckets.start / 1000, end] },
      y: { range: (_, __, max) => [0, latest.current.most ?? (max || 1)] },
    },
    axes: [
      { ...axis, values: (_, times) => times.map((time) => instant(time * 1000)), space: 110 },
      { ...axis, size: 72, values: (_, values) => values.map(props.amount) },
    ],
    cursor: {
      y: false,
      points: { show: false },
      drag: { x: true, y: false, setScale: false, dist: MIN_DRAG_PX },
    },
    series: [
      {},
      ...series
        .map((one) => ({
          fill: colour(one.colour),
          width: 0,
          points: { show: false },
          ...(bars ? { paths: bars } : {}),
        }))
        .reverse(),
    ],
    hooks: {
      draw: [(plot) => latest.current.mark && drawMark(plot, latest.current.mark)],
      setCursor: [
        (plot) =>
          onHover(
            plot.cursor.left === undefined || plot.cursor.left < 0
              ? null
              : bucketAt(buckets, 1000 * plot.posToVal(plot.cursor.left, "x")),
          ),
      ],
      setSelect: [
        (plot) => {
          if (plot.select.width > 0)
            latest.current.onSelect(
              selected(plot, buckets, plot.select.left, plot.select.left + plot.select.width - 1),
            );
        },
      ],
      ready: [
        (plot) => {
          let down = 0;
          plot.over.addEventListener("mousedown", ({ clientX }) => (down = clientX));
          plot.over.addEventListener("click", ({ clientX }) => {
            const left = plot.cursor.left ?? -1;
            // A drag ends with a click, too.
            if (left >= 0 && Math.abs(clientX - down) < MIN_DRAG_PX)
              latest.current.onSelect(selected(plot, buckets, left, left));
          });
        },
      ],
    },
  };
}

function selected(plot: uPlot, buckets: Buckets, left: number, right: number): Span {
  const at = (pixel: number) => bucketAt(buckets, 1000 * plot.posToVal(pixel, "x"));
  return spanOfBuckets(buckets, at(left), at(right));
}

// At least as wide as can be seen.
function drawMark(plot: uPlot, { from, to }: Span) {
  const { ctx, bbox } = plot;
  const [left, right] = [from, to].map((ms) => plot.valToPos(ms / 1000, "x", true)) as [
    number,
    number,
  ];
  const width = Math.max(right - left, 3 * devicePixelRatio);
  ctx.save();
  ctx.fillStyle = colour("mark");
  ctx.globalAlpha = 0.25;
  ctx.fillRect(left, bbox.top, width, bbox.height);
  ctx.globalAlpha = 1;
  for (const edge of [left, left + width])
    ctx.fillRect(edge - devicePixelRatio / 2, bbox.top, devicePixelRatio, bbox.height);
  ctx.restore();
}

function drawSelection(plot: uPlot, selection: Span | null) {
  const at = (ms: number) => plot.valToPos(ms / 1000, "x");
  const clamp = (pixel: number) => Math.max(0, Math.min(plot.over.clientWidth, pixel));
  const [left, right] = selection ? [clamp(at(selection.from)), clamp(at(selection.to))] : [0, 0];
  plot.setSelect({ left, width: right - left, top: 0, height: plot.over.clientHeight }, false);
}

function onKey(event: KeyboardEvent, { buckets, selection, onSelect, onZoom }: Props) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step !== undefined) {
    const first = selection ? bucketAt(buckets, selection.from) : step > 0 ? -1 : buckets.count;
    const last = selection ? bucketAt(buckets, selection.to - 1) : first;
    const moved = Math.max(0, Math.min(buckets.count - 1, (step > 0 ? last : first) + step));
    onSelect(
      event.shiftKey && selection
        ? spanOfBuckets(buckets, step > 0 ? first : moved, step > 0 ? moved : last)
        : spanOfBuckets(buckets, moved, moved),
    );
  } else if (event.key === "Enter" && selection) onZoom(selection);
  else if (event.key === "Escape") onSelect(null);
  else return;
  event.preventDefault();
}
