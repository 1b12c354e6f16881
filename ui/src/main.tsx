// The page: who is logged in, where it is, and the time that it shows.

import { render } from "preact";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { logOut } from "./api/client";
import { LASTS, type Place, type Range, formatPlace, parsePlace, spanOf } from "./model/place";
import { cut, fieldOf, visible } from "./model/text";
import { instant } from "./model/units";
import { AppContext } from "./parts/app";
import { Compare } from "./views/compare";
import { Finding } from "./views/finding";
import { Fleet } from "./views/fleet";
import { FunctionView } from "./views/function";
import { Health } from "./views/health";
import { Host } from "./views/host";
import { Login } from "./views/login";
import { Metering } from "./views/metering";
import { Search } from "./views/search";
import { Vm } from "./views/vm";
import "uplot/dist/uPlot.min.css";
import "./style.css";

// How often a range that ends now moves on: a long one has more to ask for, and changes less.
const liveMs = (range: Range) =>
  Math.max(15_000, "last" in range ? (1000 * range.last) / 240 : Infinity);

function Page() {
  const [place, setPlace] = useState(() => parsePlace(location.hash));
  const [now, setNow] = useState(Date.now);
  const [isLoggedOut, setLoggedOut] = useState(false);
  const last = "last" in place.range ? place.range.last : null;
  const content = useRef<HTMLElement>(null);
  const wasLoggedOut = useRef(false);

  useEffect(() => {
    const moved = () => setPlace(parsePlace(location.hash));
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => {
    if (!last || isLoggedOut) return undefined;
    // A hidden page has no reader.
    const tick = () => {
      if (!document.hidden) setNow(Date.now());
    };
    tick();
    const timer = setInterval(tick, liveMs(place.range));
    document.addEventListener("visibilitychange", tick);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", tick);
    };
  }, [last, isLoggedOut]);

  const subject = place.path.join("/");
  useEffect(() => {
    document.title = `${cut(visible(place.path.at(-1) ?? "fleet"), 60)} - vmscope`;
    scrollTo(0, 0);
  }, [subject]);

  useEffect(() => {
    // The form that had the focus is gone.
    if (wasLoggedOut.current && !isLoggedOut) content.current?.focus();
    wasLoggedOut.current = isLoggedOut;
  }, [isLoggedOut]);

  if (isLoggedOut)
    return (
      <Login
        onDone={() => {
          setLoggedOut(false);
          setNow(Date.now());
        }}
      />
    );
  const leave = () => setLoggedOut(true);
  return (
    <AppContext.Provider value={{ place, span: spanOf(place.range, now), logOut: leave }}>
      <a
        class="skip"
        href="#content"
        onClick={(event) => {
          event.preventDefault();
          content.current?.focus();
        }}
      >
        Skip to the content
      </a>
      <Header place={place} now={now} onLeave={() => void logOut().then(leave)} />
      {/* Another VM is another view: nothing of the last one stays. */}
      <main id="content" key={subject} ref={content} tabIndex={-1}>
        <View place={place} />
      </main>
    </AppContext.Provider>
  );
}

function View({ place: { path } }: { place: Place }) {
  const [view = "", first, second] = path;
  if (view === "") return <Fleet />;
  if (view === "host" && first !== undefined) return <Host host={first} />;
  if (view === "vm" && first !== undefined && second !== undefined)
    return <Vm host={first} vm={second} />;
  if (view === "finding" && first !== undefined) return <Finding id={first} />;
  if (view === "compare") return <Compare />;
  if (view === "function") return <FunctionView />;
  if (view === "search") return <Search />;
  if (view === "health") return <Health />;
  if (view === "metering") return <Metering />;
  return (
    <>
      <h1>There is no such page</h1>
      <p>
        <a href="#/">To the fleet</a>
      </p>
    </>
  );
}

function Header({ place, now, onLeave }: { place: Place; now: number; onLeave: () => void }) {
  const { range } = place;
  const links = [
    ["", "Fleet"],
    ["compare", "Compare"],
    ["metering", "Metering"],
    ["health", "Health"],
  ] as const;
  const search = (event: JSX.TargetedSubmitEvent<HTMLFormElement>) => {
    event.preventDefault();
    const q = fieldOf(event.currentTarget, "q");
    location.hash = formatPlace({ path: ["search"], range, more: { q } });
  };
  const choose = (event: JSX.TargetedEvent<HTMLSelectElement>) => {
    const last = Object.entries(LASTS).find(([name]) => name === event.currentTarget.value)?.[1];
    const { sel: _, ...more } = place.more;
    location.hash = formatPlace({
      ...place,
      more,
      range: last === undefined ? spanOf(range, now) : { last },
    });
  };
  const chosen =
    "last" in range
      ? Object.entries(LASTS).find(([, seconds]) => seconds === range.last)?.[0]
      : "fixed";
  const { from, to } = spanOf(range, now);
  return (
    <header class="top">
      <nav aria-label="Views">
        {links.map(([path, name]) => (
          <a
            key={path}
            href={formatPlace({ path: path ? [path] : [], range, more: {} })}
            aria-current={(place.path[0] ?? "") === path ? "page" : undefined}
          >
            {name}
          </a>
        ))}
      </nav>
      <form role="search" onSubmit={search}>
        <input
          type="search"
          name="q"
          aria-label="Search"
          placeholder="Search for a host, VM or function"
          value={place.path[0] === "search" ? (place.more["q"] ?? "") : ""}
          autocomplete="off"
          spellcheck={false}
        />
      </form>
      <label class="time">
        <span class="faint">
          {instant(from)} to {instant(to)}
        </span>
        <select aria-label="Time" value={chosen} onChange={choose}>
          {Object.keys(LASTS).map((name) => (
            <option key={name} value={name}>
              last {name}
            </option>
          ))}
          <option value="fixed">{"from" in range ? "fixed" : "keep this time"}</option>
        </select>
      </label>
      <button type="button" onClick={onLeave}>
        Log out
      </button>
    </header>
  );
}

const app = document.getElementById("app");
if (app) render(<Page />, app);
