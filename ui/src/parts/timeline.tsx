// A chart over the view's time, of which a part can be selected: the view is then about that part.

import type { ComponentChildren } from "preact";
import { type Buckets, formatPlace, formatSpan, parseSpan, spanOf } from "../model/place";
import type { Span } from "../model/units";
import { useApp, useMore } from "./app";
import { Chart, type Series } from "./chart";

// What is selected, and what the view is about: that, or all of its time.
export function useSelection(): { selection: Span | null; about: Span } {
  const { place, span } = useApp();
  const selection = parseSpan(place.more["sel"]);
  return { selection, about: selection ?? span };
}

export function TimeLine(props: {
  label: string;
  buckets: Buckets;
  series: Series[];
  most?: number;
  amount: (value: number) => string;
  children?: ComponentChildren;
}) {
  const { children, ...chart } = props;
  const { place, span } = useApp();
  const { selection } = useSelection();
  const setMore = useMore();
  const select = (chosen: Span | null) => setMore({ sel: chosen ? formatSpan(chosen) : "" });
  const zoom = (range: Span) => {
    const { sel: _, ...more } = place.more;
    location.hash = formatPlace({ ...place, range, more });
  };
  return (
    <>
      <Chart {...chart} selection={selection} onSelect={select} onZoom={zoom} />
      <p class="controls">
        <button type="button" disabled={!selection} onClick={() => selection && zoom(selection)}>
          Zoom in
        </button>
        <button type="button" disabled={!selection} onClick={() => select(null)}>
          Clear the selection
        </button>
        {"from" in place.range && (
          <button type="button" onClick={() => zoom(wider(span))}>
            Zoom out
          </button>
        )}
        {children}
      </p>
    </>
  );
}

// Three times as long, but not into the future.
function wider({ from, to }: Span): Span {
  const now = spanOf({ last: 1 }, Date.now()).to;
  return { from: from - (to - from), to: Math.min(2 * to - from, Math.max(to, now)) };
}
