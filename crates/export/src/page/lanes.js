
"use strict";
// Lanes of timelines as typed arrays: from JSON (page/lanes.rs has its form), and those of several tasks in one.
function timelineLanes(nDoings) {
  // Doings that are none: a mixture, and a time in which nothing is there.
  const MIXED = 255, GAP = 254;

  // The arrays of a lane's pieces: where each ends (ns), its doing or MIXED, and its word or its row in `mixed`.
  function unpack({ from, pieces }) {
    const ends = [], kinds = [], extra = [], mixed = [], totals = new Float64Array(nDoings);
    for (let at = 0, end = from; at < pieces.length;) {
      const length = pieces[at];
      end += length;
      ends.push(end);
      if (pieces[at + 1] < 0) {
        const stop = at + 2 - 3 * pieces[at + 1], shares = pieces.slice(at + 2, stop);
        for (let n = 0; n < shares.length; n += 3) totals[shares[n]] += length * shares[n + 1] / 1000;
        kinds.push(MIXED);
        extra.push(mixed.push(shares) - 1);
        at = stop;
      } else {
        totals[pieces[at + 1]] += length;
        kinds.push(pieces[at + 1]);
        extra.push(pieces[at + 2]);
        at += 3;
      }
    }
    return { from, ends: Float64Array.from(ends), kinds: Uint8Array.from(kinds), extra: Int32Array.from(extra), mixed, totals };
  }

  // Lanes that are not there at the same time as one; each piece knows whose it is.
  function pack(lanes) {
    const ends = [], kinds = [], extra = [], mixed = [], owners = [], totals = new Float64Array(nDoings);
    for (const lane of lanes) {
      if (ends.length && ends[ends.length - 1] < lane.from) {
        ends.push(lane.from);
        kinds.push(GAP);
        extra.push(-1);
        owners.push(lane);
      }
      lane.kinds.forEach((kind, piece) => {
        ends.push(lane.ends[piece]);
        kinds.push(kind);
        extra.push(lane.extra[piece] + (kind === MIXED ? mixed.length : 0));
        owners.push(lane);
      });
      for (const shares of lane.mixed) mixed.push(shares);
      lane.totals.forEach((ns, kind) => { totals[kind] += ns; });
    }
    const names = [...new Set(lanes.map((lane) => lane.name.replace(/ \(\d+\)$/, "")))];
    const name = lanes.length === 1 ? lanes[0].name : `${names.slice(0, 3).join(", ")}${names.length > 3 ? ", …" : ""} ×${lanes.length}`;
    const about = lanes.length === 1 ? lanes[0].about : `${lanes.length} tasks, one after the other`;
    return { ...lanes[0], name, about, ends: Float64Array.from(ends), kinds: Uint8Array.from(kinds), extra: Int32Array.from(extra), mixed, owners, totals };
  }

  // As few lanes as the tasks' lines allow, in the order of the lines.
  function shared(tasks) {
    const lines = new Map();
    for (const task of tasks) lines.set(task.line, [...(lines.get(task.line) ?? []), task]);
    const numbers = [...lines.keys()].sort((one, other) => one - other);
    return numbers.map((line) => pack(lines.get(line).sort((one, other) => one.from - other.from)));
  }

  // The first piece that ends after `at`.
  function pieceAt(lane, at) {
    let low = 0, high = lane.ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.ends[middle] <= at) low = middle + 1; else high = middle;
    }
    return low;
  }
  const beginOf = (lane, piece) => piece ? lane.ends[piece - 1] : lane.from;

  return { MIXED, GAP, unpack, shared, pieceAt, beginOf };
}
