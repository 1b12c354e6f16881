// How long the page takes with a day of a large fleet, and what memory: prints figures, asserts none of them.

import { readFileSync, writeFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { type Browser, type Page, expect, test } from "@playwright/test";
import {
  configure,
  multiply,
  readToken,
  replayMore,
  serverPid,
  start,
  stop,
  tearDown,
  url,
} from "../tests/server";

const HOSTS = Number(process.env["VMSCOPE_BENCH_HOSTS"] ?? 200);
const HOURS = 24;
const TIMES = 3;
const BRUSHES = 40;
const MIB = 1 << 20;

test("a day of a large fleet", async ({ browser, page }) => {
  await configure();
  try {
    await start();
    await replayMore("kvm", 3);
    stop();
    const figures: Record<string, unknown> = {
      data: multiply(HOSTS, HOURS, process.env["VMSCOPE_BENCH_STORE"]),
      hosts: HOSTS,
      hours: HOURS,
      cpus: availableParallelism(),
    };
    const began = Date.now();
    await start();
    await logIn(page);
    const measure = async (name: string, figure: () => unknown) => {
      figures[name] = await figure();
      console.log(name, JSON.stringify(figures[name]));
    };
    await measure("until all sums are read, s", () => summedUp(page, began));
    await measure("fleet, 24 h", () => fleet(page));
    await measure("VM, 1 h", () => view(page, "#/vm/kvm-0001/web?last=1h"));
    await measure("VM, 24 h", () => view(page, "#/vm/kvm-0001/web?last=24h"));
    await measure("brush, 24 h", () => brushes(page));
    await measure("tab, MiB", () => tab(browser, page));
    await measure("host, 24 h", () => view(page, "#/host/kvm-0001?last=24h"));
    await measure("health, 24 h", () => view(page, "#/health?last=24h"));
    await measure("server, MiB", () => Math.round(resident(serverPid()) / MIB));
    writeFileSync(
      process.env["VMSCOPE_BENCH_FILE"] ?? "bench-ui.json",
      `${JSON.stringify(figures, null, 2)}\n`,
    );
  } finally {
    tearDown();
  }
});

async function logIn(page: Page): Promise<void> {
  await page.goto(`${url()}/#/`);
  await page.getByLabel("Token").fill(readToken());
  await page.getByRole("button", { name: "Log in" }).click();
  await expect(page.getByRole("navigation", { name: "Views" })).toBeVisible();
}

async function summedUp(page: Page, began: number): Promise<number> {
  const to = new Date().toISOString();
  const path = `/v1/fleet?from=${new Date(Date.now() - 3_600_000).toISOString()}&to=${to}&slots=60`;
  for (;;) {
    const { reading } = await page.evaluate(
      async (path) => (await (await fetch(path)).json()) as { reading: number },
      path,
    );
    if (reading === 0) return (Date.now() - began) / 1000;
    await new Promise((done) => setTimeout(done, 500));
  }
}

const median = (times: number[]) =>
  Math.round(times.sort((a, b) => a - b)[Math.floor(times.length / 2)] ?? 0);

// From the request of the page until everything that it asks for is drawn, and until it answers a key.
async function fleet(page: Page): Promise<object> {
  const [drawn, answered]: [number[], number[]] = [[], []];
  for (let time = 0; time < TIMES; time++) {
    await page.goto("about:blank");
    await page.goto(`${url()}/#/?last=24h`, { waitUntil: "commit" });
    const map = page.getByRole("group", { name: /Stolen time by host/ });
    await map.waitFor();
    await map.press("ArrowRight");
    await page.locator(".said", { hasText: /stolen|no data/ }).waitFor();
    answered.push(await page.evaluate(() => performance.now()));
    await settled(page);
    drawn.push(await page.evaluate(() => performance.now()));
  }
  return {
    "interactive, ms": median(answered),
    "all drawn, ms": median(drawn),
    rows: await page.locator(".heat-cells li").count(),
  };
}

async function view(page: Page, place: string): Promise<object> {
  const drawn: number[] = [];
  for (let time = 0; time < TIMES; time++) {
    await page.goto("about:blank");
    await page.goto(`${url()}/${place}`, { waitUntil: "commit" });
    await page.locator(".u-over, table").first().waitFor();
    await settled(page);
    drawn.push(await page.evaluate(() => performance.now()));
  }
  const [first, ...later] = drawn;
  return {
    "all drawn, first time, ms": Math.round(first ?? 0),
    "then, ms": median(later),
    lacks: await page.locator(".partial").allInnerTexts(),
  };
}

const settled = (page: Page) =>
  page.waitForFunction(
    () => document.querySelector("main h2") && !document.querySelector("[aria-busy=true]"),
    undefined,
    { timeout: 300_000, polling: "raf" },
  );

// From letting go of the mouse until everything is drawn for what was selected.
async function brushes(page: Page): Promise<object> {
  const plot = page.locator(".u-over");
  await plot.evaluate((plot) => plot.scrollIntoView({ block: "center" }));
  const box = await plot.boundingBox();
  if (!box) throw new Error("there is no chart");
  const times: number[] = [];
  for (let number = 0; number < BRUSHES; number++) {
    const from = (number * 0.618) % 0.8;
    const [left, y] = [box.x + from * box.width, box.y + box.height / 2];
    const before = await page.locator(".verdict").locator("..").locator("p.faint").innerText();
    await page.evaluate((before) => {
      const done = (time: number) => {
        (window as unknown as { brushed: Promise<number> }).brushed = Promise.resolve(time);
      };
      (window as unknown as { brushed: Promise<number> | null }).brushed = null;
      addEventListener(
        "mouseup",
        () => {
          const began = performance.now();
          const look = () => {
            const said = document
              .querySelector(".verdict")
              ?.parentElement?.querySelector("p.faint")?.textContent;
            if (said === before || document.querySelector("[aria-busy=true]"))
              requestAnimationFrame(look);
            // The frame after the one in which the last change was made has been drawn.
            else
              requestAnimationFrame(() =>
                requestAnimationFrame(() => done(performance.now() - began)),
              );
          };
          requestAnimationFrame(look);
        },
        { once: true, capture: true },
      );
    }, before);
    await page.mouse.move(left, y);
    await page.mouse.down();
    await page.mouse.move(left + 0.1 * box.width, y, { steps: 4 });
    await page.mouse.up();
    times.push(
      (await page
        .waitForFunction(() => (window as unknown as { brushed: Promise<number> | null }).brushed)
        .then((handle) => handle.jsonValue())) as number,
    );
  }
  times.sort((a, b) => a - b);
  return {
    "median, ms": median(times),
    "95 %, ms": Math.round(times[Math.floor(0.95 * times.length)] ?? 0),
    times: times.length,
  };
}

const resident = (pid: number) =>
  1024 * Number(/VmRSS:\s*(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1] ?? 0);

// Of the page's own memory, and of its process.
async function tab(browser: Browser, page: Page): Promise<object> {
  const own = await page.context().newCDPSession(page);
  await own.send("HeapProfiler.collectGarbage");
  const { usedSize } = await own.send("Runtime.getHeapUsage");
  const all = await browser.newBrowserCDPSession();
  const { processInfo } = await all.send("SystemInfo.getProcessInfo");
  const renderers = processInfo
    .filter(({ type }) => type === "renderer")
    .map(({ id }) => resident(id));
  return {
    "JavaScript heap": Math.round(usedSize / MIB),
    resident: Math.round(Math.max(...renderers) / MIB),
  };
}
