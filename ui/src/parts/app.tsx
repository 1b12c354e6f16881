// What all parts of the page share: where it is, when, and how it asks.

import { type ComponentChildren, createContext } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";
import { LoggedOut, Unreachable } from "../api/client";
import type { Table } from "../api/questions";
import { type Place, type Range, formatPlace } from "../model/place";
import { visible } from "../model/text";
import type { Span } from "../model/units";

export interface App {
  place: Place;
  // The place's range, as instants.
  span: Span;
  logOut: () => void;
}

export const AppContext = createContext<App | null>(null);

export function useApp(): App {
  const app = useContext(AppContext);
  if (!app) throw new Error("the application is not there");
  return app;
}

// A place with the same time, unless there is another; of hosts and VMs the same part of it is selected.
export function usePlaces(): (
  path: string[],
  more?: Record<string, string>,
  range?: Range,
) => string {
  const { place } = useApp();
  const { sel } = place.more;
  return (path, more = {}, range = place.range) => {
    const keeps = sel !== undefined && ["host", "vm"].includes(path[0] ?? "");
    return formatPlace({ path, more: keeps ? { sel, ...more } : more, range });
  };
}

// Goes to the same view with other parameters; empty ones are left out. The way back stays as it was.
export function useMore(): (changed: Record<string, string>) => void {
  const { place } = useApp();
  return (changed) => {
    const more = Object.fromEntries(
      Object.entries({ ...place.more, ...changed }).filter(([, value]) => value !== ""),
    );
    location.replace(formatPlace({ ...place, more }));
  };
}

export interface Answered<T, About = unknown> {
  value?: T;
  // The subject of the value: until the next answer comes, that of the last query.
  about?: About;
  error?: Error;
  isLoading: boolean;
}

const READING_MS = 2000;
const RETRY_MS = 5000;

// The answer to a query. Until the next one comes the last answer stays.
export function useAnswer<T, About>(
  key: string,
  ask: (signal: AbortSignal) => Promise<T>,
  about?: About,
): Answered<T, About> {
  const { logOut } = useApp();
  const [answer, setAnswer] = useState<{
    key: string;
    value?: T;
    about?: About | undefined;
    error?: Error;
  }>({ key: "" });
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    const failed = (error: unknown) => {
      if (abort.signal.aborted) return;
      if (error instanceof LoggedOut) return logOut();
      if (error instanceof Unreachable) timer = window.setTimeout(run, RETRY_MS);
      setAnswer((last) => ({
        ...last,
        key,
        error: error instanceof Error ? error : new Error(String(error)),
      }));
    };
    const run = () => {
      ask(abort.signal).then((value) => setAnswer({ key, value, about }), failed);
    };
    run();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [key]);
  const isLoading = answer.key !== key;
  return {
    ...(answer.value === undefined ? {} : { value: answer.value }),
    ...(answer.about === undefined ? {} : { about: answer.about }),
    ...(isLoading || !answer.error ? {} : { error: answer.error }),
    isLoading,
  };
}

// An answer from sums that the server keeps, which is queried again while the server still reads: it then has more.
export function useSums<T extends { reading: number }>(
  key: string,
  ask: (signal: AbortSignal) => Promise<T>,
): Answered<T> {
  const [again, setAgain] = useState(0);
  const answered = useAnswer(`${key} ${again}`, ask);
  const { value } = answered;
  useEffect(() => {
    if (!value || value.reading === 0) return undefined;
    const timer = setTimeout(() => setAgain((again) => again + 1), READING_MS);
    return () => clearTimeout(timer);
  }, [value]);
  return answered;
}

// A table, or why it is not there.
export function Shown<Row>(props: {
  of: Answered<Table<Row>>;
  empty: ComponentChildren;
  children: (rows: Row[]) => ComponentChildren;
}) {
  const { value, error, isLoading } = props.of;
  return (
    <div class={isLoading && value ? "stale" : ""} aria-busy={isLoading}>
      {error && (
        <p class="error" role="alert">
          {error instanceof Unreachable
            ? "The server does not answer. This page tries again every 5 s."
            : `This can't be shown: ${visible(error.message)}.`}
        </p>
      )}
      {value?.partial.map((reason) => (
        <p class="partial" key={reason}>
          Incomplete: {visible(reason)}.
        </p>
      ))}
      {value ? (
        value.rows.length === 0 ? (
          <p class="faint">{props.empty}</p>
        ) : (
          props.children(value.rows)
        )
      ) : (
        !error && <p class="loading">Loading…</p>
      )}
    </div>
  );
}

export function Section(props: { title: string; about?: string; children: ComponentChildren }) {
  return (
    <section>
      <h2>{props.title}</h2>
      {props.about && <p class="faint">{props.about}</p>}
      {props.children}
    </section>
  );
}
