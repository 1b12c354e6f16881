import { flameGraph } from "exported-page";
import { useEffect, useRef } from "preact/hooks";
import { type FlameData, changeClass } from "../model/profile";
import { duration, percent } from "../model/units";

// A flame graph, or with two sides how the second differs from the first. `find` gets what searches in it.
export function Flame(props: {
  data: FlameData;
  bySide: number[][];
  find?: { current: ((text: string) => void) | null };
}) {
  const box = useRef<HTMLDivElement>(null);
  const { data, bySide, find } = props;
  useEffect(() => {
    if (!box.current) return;
    const abort = new AbortController();
    const { signal } = abort;
    const sides = (node: number) => [bySide[node]?.[0] ?? 0, bySide[node]?.[1] ?? 0] as const;
    const options =
      bySide[0]?.length === 2
        ? {
            amount: (share: number) => `${percent(share, 1, 2)} of the vCPUs' time`,
            signal,
            paint: (node: number) => (node === 0 ? undefined : changeClass(...sides(node))),
            remark: (node: number) =>
              `A ${percent(sides(node)[0], 1, 2)}, B ${percent(sides(node)[1], 1, 2)}`,
          }
        : { amount: duration, signal };
    const made = flameGraph(box.current, data, options);
    if (find) find.current = made;
    return () => {
      abort.abort();
      box.current?.replaceChildren();
    };
  }, [data]);
  return <div ref={box} class="flame-box" />;
}
