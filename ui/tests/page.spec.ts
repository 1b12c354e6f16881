import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { type Browser, type Page, expect, test } from "@playwright/test";
import { readToken, replayHostile, replayMore, start, stop, url } from "./server";

// Those that `make test` runs.
const QUICK = { tag: "@quick" };
const RANGE = "last=15m";
const VM = `#/vm/kvm-0001/web?${RANGE}`;

async function logIn(page: Page, place = ""): Promise<void> {
  await page.goto(`${url()}/${place}`);
  await page.getByLabel("Token").fill(readToken());
  await page.getByRole("button", { name: "Log in" }).click();
  await loaded(page);
}

async function loaded(page: Page): Promise<void> {
  await expect(page.getByRole("navigation", { name: "Views" })).toBeVisible();
  await expect(page.locator("[aria-busy=true]")).toHaveCount(0, { timeout: 30_000 });
}

async function goTo(page: Page, place: string): Promise<void> {
  await page.goto(`${url()}/${place}`);
  await loaded(page);
}

// The rows of a table, as text.
const rows = (page: Page, label: string) =>
  page.getByRole("table", { name: label, exact: true }).locator("tbody tr");

// Drags over a part of the chart.
async function brush(page: Page, from: number, to: number): Promise<void> {
  const plot = page.locator(".u-over");
  await plot.evaluate((plot) => plot.scrollIntoView({ block: "center" }));
  const box = await plot.boundingBox();
  if (!box) throw new Error("there is no chart");
  const y = box.y + box.height / 2;
  await page.mouse.move(box.x + from * box.width, y);
  await page.mouse.down();
  await page.mouse.move(box.x + ((from + to) / 2) * box.width, y);
  await page.mouse.move(box.x + to * box.width, y);
  await page.mouse.up();
  await expect(page).toHaveURL(/sel=/);
}

test("log in, and stay so in another tab, until logging out", QUICK, async ({ page, context }) => {
  await page.goto(url());
  await page.getByLabel("Token").fill("wrong");
  await page.getByRole("button", { name: "Log in" }).click();
  await expect(page.getByRole("alert")).toContainText("the token is not known");
  await logIn(page);
  await expect(page.getByRole("heading", { name: "Fleet" })).toBeVisible();
  // Scripts don't see the token.
  expect(
    await page.evaluate(() => [
      document.cookie,
      Object.keys(sessionStorage).length,
      Object.keys(localStorage).length,
    ]),
  ).toEqual(["", 0, 0]);
  const tab = await context.newPage();
  await goTo(tab, "#/health");
  await expect(tab.getByRole("table", { name: "Agents" })).toContainText("kvm-0002");
  await tab.getByRole("button", { name: "Log out" }).click();
  await expect(tab.getByLabel("Token")).toBeVisible();
  await page.reload();
  await expect(page.getByLabel("Token")).toBeVisible();
});

test("from the fleet to the culprit", async ({ page }) => {
  await logIn(page, `#/?${RANGE}`);
  // The server has found it by itself.
  const finding = page.locator(".finding").filter({ hasText: "3.00 CPUs are wanted" }).first();
  await expect(finding).toBeVisible({ timeout: 60_000 });
  // It began before it was found.
  const [, since = "", found = ""] =
    /since (\S+), found at (\S+)$/.exec(await finding.innerText()) ?? [];
  expect(since < found, `since ${since}, found at ${found}`).toBe(true);
  await expect(rows(page, "VMs that lost most").filter({ hasText: "kvm-0001" })).toHaveCount(3);
  // The heat map by keyboard: the last cell of the first host.
  const map = page.getByRole("group", { name: /Stolen time by host/ });
  await map.press("ArrowRight");
  await map.press("Enter");
  await expect(page.getByRole("heading", { level: 1, name: /^Host / })).toBeVisible();
  await goTo(page, `#/host/kvm-0001?${RANGE}`);
  await expect(page.getByText("The VMs wanted 3.00 CPUs, and there are 2.")).toBeVisible();
  const victim = page
    .getByRole("table", { name: "Who takes CPU time from whom" })
    .locator("tr")
    .filter({ hasText: /^web/ });
  await expect(victim).toContainText("%");
  await victim.getByRole("link", { name: "web" }).click();
  await loaded(page);
  await expect(page.locator(".verdict")).toContainText(/waited for a CPU .* taken by VM (ci|db)/);
  await expect(page.locator(".verdict")).toContainText("compute_a");
  // What did the thief run?
  await page.getByRole("table", { name: "Thieves" }).getByRole("link", { name: "VM ci" }).click();
  await expect(page.getByRole("heading", { level: 1, name: "VM ci" })).toBeVisible();
});

test("brush, zoom, apparent time", QUICK, async ({ page }) => {
  await logIn(page, VM);
  await brush(page, 0.6, 0.8);
  await loaded(page);
  await expect(
    page.getByRole("heading", { name: "Why it was slow in the selected time" }),
  ).toBeVisible();
  await expect(page.locator(".frame").filter({ hasText: "compute_a" }).first()).toBeVisible();
  await expect(page.locator(".frame.preempted")).toHaveCount(0);
  await page.getByLabel("apparent").check();
  await expect(page.locator(".frame.preempted").first()).toBeVisible();
  await page.getByRole("button", { name: "Zoom in" }).click();
  await expect(page).toHaveURL(/from=.*time=apparent/);
  await loaded(page);
  // By keyboard down to a second.
  const chart = page.getByRole("group", { name: /States of the vCPUs/ });
  await chart.press("ArrowRight");
  await chart.press("Shift+ArrowRight");
  await chart.press("Enter");
  await expect(page.getByText(/\(20\.0 s\)/).first()).toBeVisible();
  await loaded(page);
  await chart.press("ArrowRight");
  await expect(page.getByText(/Selected: .*\(1\.00 s\)/)).toBeVisible();
  await expect(page.locator(".frame").filter({ hasText: "compute_a" }).first()).toBeVisible();
  await expect(page.getByText("slices of 10 s")).toHaveCount(0);
  await chart.press("Escape");
  await expect(page).not.toHaveURL(/sel=/);
  await page.getByRole("button", { name: "Zoom out" }).click();
  await loaded(page);
  // A function of the table is shown in the flame graph.
  await rows(page, "Functions")
    .filter({ hasText: "compute_a" })
    .first()
    .getByRole("button", { name: /in the flame graph/ })
    .first()
    .click();
  await expect(page.locator(".frame.match").first()).toBeVisible();
  // The table is sorted by what is clicked.
  await page
    .getByRole("table", { name: "Functions" })
    .getByRole("button", { name: "Function" })
    .click();
  await expect(page.getByRole("columnheader", { name: "Function" })).toHaveAttribute(
    "aria-sort",
    "ascending",
  );
});

test("the evidence of a finding", async ({ page, browser }) => {
  await logIn(page, `#/?${RANGE}`);
  const finding = page.locator(".finding").filter({ hasText: "3.00 CPUs are wanted" }).first();
  await finding.getByRole("link").click({ timeout: 60_000 });
  await loaded(page);
  await expect(page.getByRole("heading", { level: 1, name: "Finding" })).toBeVisible();
  await expect(rows(page, "Who wants the CPUs").filter({ hasText: "VM ci" })).toContainText("CPUs");
  await expect(
    rows(page, "What changed").filter({ hasText: "steal type 1" }).first(),
  ).toContainText("%");
  await expect(rows(page, "What to do").first()).toContainText("CPUs");
  await expect(page.locator(".u-over")).toBeVisible();
  // Its address is enough for another user.
  const other = await (
    await browser.newContext({ ignoreHTTPSErrors: true, timezoneId: "UTC", locale: "en-GB" })
  ).newPage();
  await logIn(other, new URL(page.url()).hash);
  expect(await other.locator(".verdict").first().innerText()).toBe(
    await page.locator(".verdict").first().innerText(),
  );
  // From the evidence to the culprit.
  await rows(page, "Who wants the CPUs").filter({ hasText: "VM ci" }).getByRole("link").click();
  await expect(page.getByRole("heading", { level: 1, name: "VM ci" })).toBeVisible();
  await goTo(page, "#/finding/0123456789abcdef");
  await expect(page.getByText("The server does not know this finding")).toBeVisible();
});

test("compare a VM with the time before, and with another", async ({ page }) => {
  await logIn(page, VM);
  await brush(page, 0.7, 0.8);
  await loaded(page);
  await page.getByRole("link", { name: "Compare with the time before" }).click();
  await loaded(page);
  await expect(
    rows(page, "Functions by change").filter({ hasText: "compute_a" }).first(),
  ).toBeVisible();
  await page.getByRole("group", { name: /^B/ }).getByLabel("VM").fill("ci");
  await page.getByRole("button", { name: "Compare", exact: true }).click();
  await loaded(page);
  await expect(page.locator(".frame.grew-3").first()).toBeVisible();
  await expect(page.locator(".frame.shrank-3").first()).toBeVisible();
  await expect(
    rows(page, "Functions by change").filter({ hasText: "compute_a" }).first(),
  ).toContainText("-");
});

test("what to charge, as a table and as a file", QUICK, async ({ page }) => {
  await logIn(page, `#/metering?${RANGE}`);
  await expect(rows(page, "VMs to charge").first()).toContainText("kvm-00");
  await expect(rows(page, "Processes to charge").first()).toContainText("kvm-00");
  const file = page.waitForEvent("download");
  await page.getByRole("link", { name: "All lines as CSV" }).click();
  const text = readFileSync(await (await file).path(), "utf8");
  const lines = text.trimEnd().split("\r\n");
  expect(lines[0]).toMatch(/^day,host,vm,project,owner,line,process,corrected,apparent,/);
  // Apparent time is corrected time and what was lost, in each line.
  for (const line of lines.slice(1)) {
    const [corrected = 0, apparent, outside = 0, vmm = 0, throttled = 0] = line
      .split(",")
      .slice(-6, -1)
      .map(Number);
    expect(apparent, line).toBe(corrected + outside + vmm + throttled);
  }
  await rows(page, "VMs to charge").first().getByRole("link", { name: "ci" }).click();
  await expect(page).toHaveURL(/#\/vm\/kvm-00/);
});

test("search a function, and find where it runs", async ({ page }) => {
  await logIn(page, `#/?${RANGE}`);
  await page.getByRole("searchbox", { name: "Search", exact: true }).fill("COMPUTE_A");
  await page.keyboard.press("Enter");
  await loaded(page);
  await rows(page, "functions found").first().getByRole("link").click();
  await loaded(page);
  await expect(page.getByRole("heading", { level: 1 })).toContainText("compute_a");
  await expect(
    rows(page, "Where the function runs").filter({ hasText: "kvm-0002" }).first(),
  ).toContainText("web");
  await goTo(page, `#/search?q=kvm-0002&${RANGE}`);
  await expect(rows(page, "hosts found")).toHaveCount(1);
  await expect(rows(page, "VMs found")).toHaveCount(3);
  await goTo(page, `#/search?q=nothing+of+the+kind&${RANGE}`);
  await expect(page.getByText("Nothing of this name")).toBeVisible();
});

test("an address shows the same in a second browser", async ({ page, browser }) => {
  await logIn(page, VM);
  await page.getByLabel("Time", { exact: true }).selectOption("fixed");
  await brush(page, 0.5, 0.7);
  await loaded(page);
  const shown = await page.locator(".verdict").innerText();
  const other = await (
    await browser.newContext({ ignoreHTTPSErrors: true, timezoneId: "UTC", locale: "en-GB" })
  ).newPage();
  await logIn(other, new URL(page.url()).hash);
  expect(await other.locator(".verdict").innerText()).toBe(shown);
});

// All views, with what they need.
const VIEWS = {
  fleet: `#/?${RANGE}`,
  host: `#/host/kvm-0001?${RANGE}`,
  vm: `${VM}&time=apparent`,
  compare: `#/compare?host=kvm-0001&vm=web&vm_b=ci&${RANGE}`,
  function: `#/function?name=compute_a&${RANGE}`,
  search: `#/search?q=compute&${RANGE}`,
  metering: `#/metering?${RANGE}`,
  health: `#/health?${RANGE}`,
};
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

interface Violation {
  id: string;
  impact: string;
  nodes: { target: string[] }[];
}

async function violations(page: Page): Promise<string[]> {
  await page.evaluate(axe);
  const found = await page.evaluate<Violation[]>("axe.run().then(({ violations }) => violations)");
  return found
    .filter(({ impact }) => impact !== "minor")
    .map(
      ({ id, nodes }) =>
        `${id}: ${nodes
          .slice(0, 3)
          .map(({ target }) => target.join(" "))
          .join(", ")}`,
    );
}

async function themed(
  browser: Browser,
  colorScheme: "light" | "dark",
  width = 1366,
): Promise<Page> {
  return (
    await browser.newContext({
      ignoreHTTPSErrors: true,
      colorScheme,
      viewport: { width, height: 900 },
      timezoneId: "UTC",
      locale: "en-GB",
    })
  ).newPage();
}

for (const theme of ["light", "dark"] as const) {
  test(`accessible, ${theme}`, async ({ browser }) => {
    const page = await themed(browser, theme);
    const problems: string[] = [];
    page.on(
      "console",
      (message) =>
        message.type() === "error" &&
        !message.text().includes("401") &&
        problems.push(message.text()),
    );
    await page.goto(url());
    await expect(page.getByLabel("Token")).toBeVisible();
    problems.push(...(await violations(page)));
    await logIn(page);
    await expect.poll(() => findings(page), { timeout: 60_000 }).not.toEqual([]);
    for (const [view, place] of Object.entries({
      ...VIEWS,
      finding: `#/finding/${(await findings(page))[0]}?${RANGE}`,
    })) {
      await goTo(page, place);
      problems.push(...(await violations(page)).map((text) => `${view}: ${text}`));
      // The gallery in docs/fleet-page.md.
      if (process.env["UPDATE"])
        await page.screenshot({ path: `../docs/page/${view}-${theme}.png` });
    }
    expect(problems).toEqual([]);
  });
}

test("a phone shows every view without scrolling sideways", async ({ browser }) => {
  const page = await themed(browser, "light", 390);
  await logIn(page);
  for (const [view, place] of Object.entries({
    ...VIEWS,
    finding: `#/finding/${(await findings(page))[0]}?${RANGE}`,
  })) {
    await goTo(page, place);
    expect(
      await page.evaluate(() => document.documentElement.scrollWidth),
      view,
    ).toBeLessThanOrEqual(390);
  }
});

test("new windows appear by themselves", async ({ page }) => {
  await logIn(page, "#/health?last=15m");
  await expect(rows(page, "Agents").filter({ hasText: "late-0001" })).toHaveCount(0);
  await replayMore("late");
  await expect(rows(page, "Agents").filter({ hasText: "late-0001" })).toHaveCount(1, {
    timeout: 40_000,
  });
});

test("the server is lost and regained", async ({ page }) => {
  await logIn(page, VM);
  stop();
  try {
    await page.getByLabel("apparent").check();
    // A selection needs no answer of the server.
    await brush(page, 0.5, 0.7);
    await expect(
      page.getByRole("heading", { name: "Why it was slow in the selected time" }),
    ).toBeVisible();
    await page.getByRole("button", { name: "Zoom in" }).click();
    await expect(page.getByRole("alert").first()).toContainText("does not answer");
    // What was there stays.
    await expect(page.locator(".verdict")).toBeVisible();
  } finally {
    await start();
  }
  await expect(page.getByRole("alert")).toHaveCount(0, { timeout: 15_000 });
  await loaded(page);
  await expect(page.locator(".verdict")).toBeVisible();
});

test("by keyboard: log in, skip to the content, walk a flame graph", QUICK, async ({ page }) => {
  const focused = () => page.evaluate(() => document.activeElement?.matches("main") ?? false);
  await page.goto(`${url()}/${VM}`);
  await expect(page.getByLabel("Token")).toBeFocused();
  await page.keyboard.type(readToken());
  await page.keyboard.press("Enter");
  await loaded(page);
  expect(await focused()).toBe(true);
  await page.reload();
  await loaded(page);
  await page.keyboard.press("Tab");
  const skip = page.getByRole("link", { name: "Skip to the content" });
  await expect(skip).toBeFocused();
  await expect(skip).toBeInViewport();
  await page.keyboard.press("Enter");
  expect(await focused()).toBe(true);
  await expect(skip).not.toBeInViewport();
  const flame = page.locator(".flame").first();
  const said = page.locator(".flame-box .said").first();
  for (
    let tries = 0;
    tries < 100 && !(await flame.evaluate((flame) => flame === document.activeElement));
    tries++
  )
    await page.keyboard.press("Tab");
  await expect(flame).toBeFocused();
  expect(await flame.evaluate((flame) => getComputedStyle(flame).outlineStyle)).not.toBe("none");
  const hint = await said.innerText();
  const steps = [hint];
  for (const key of ["ArrowDown", "ArrowDown", "ArrowUp"]) {
    await page.keyboard.press(key);
    steps.push(await said.innerText());
  }
  // Down to the largest process, to the largest of what it called, and up again.
  expect(steps[1]).toContain("%");
  expect(new Set(steps).size).toBe(3);
  expect(steps[3]).toBe(steps[1]);
  await page.keyboard.press("Escape");
  await expect(said).toHaveText(hint);
});

test("an answer stays readable while it is queried again", QUICK, async ({ page }) => {
  await logIn(page, `#/health?${RANGE}`);
  let go = () => {};
  const held = new Promise<void>((done) => (go = done));
  await page.route("**/v1/health?*", async (route) => {
    await held;
    await route.continue();
  });
  await page.getByLabel("Time", { exact: true }).selectOption("1h");
  await expect(page.locator("[aria-busy=true]").first()).toBeVisible();
  await expect(rows(page, "Agents").first()).toBeVisible();
  const faded = await page.evaluate(
    () =>
      [...document.querySelectorAll("main, main *")].filter(
        (element) => getComputedStyle(element).opacity !== "1",
      ).length,
  );
  expect(faded).toBe(0);
  expect(await violations(page)).toEqual([]);
  go();
  await loaded(page);
});

test(
  "an agent that stopped is silent, and windows one after the other have no gaps",
  QUICK,
  async ({ page }) => {
    const now = Date.now();
    const range = (minutes: number) =>
      new URLSearchParams({
        from: new Date(now - 900_000).toISOString(),
        to: new Date(now + 60_000 * minutes).toISOString(),
      });
    await logIn(page, `#/health?${range(19)}`);
    const cells = rows(page, "Agents").filter({ hasText: "kvm-0001" }).locator("td");
    await expect(cells.nth(1)).toHaveText(/^silent for \d+\.\d min$/);
    await expect(cells.nth(5)).toHaveText("none");
  },
);

// Of each column that shows numbers: whether they have one unit and the order that its title says.
async function disorder(page: Page): Promise<string[]> {
  const problems: string[] = [];
  for (const table of await page.locator("table:has(th button)").all()) {
    const label = await table.getAttribute("aria-label");
    for (const [at, title] of (await table.locator("th").all()).entries()) {
      await title.getByRole("button").click();
      const order = await title.getAttribute("aria-sort");
      const texts = (await table.locator(`tbody td:nth-child(${at + 1})`).allInnerTexts()).map(
        (text) => text.trim(),
      );
      const figures = texts
        .filter((text) => !["", "-", "none", "not counted"].includes(text))
        .map((text) => /^<?([+-]?[\d,]+(?:\.\d+)?) ?([a-z%]*)$/i.exec(text));
      if (figures.length === 0 || figures.includes(null)) continue;
      const values = figures.map((figure) => Number(figure?.[1]?.replaceAll(",", "")));
      const sign = order === "ascending" ? 1 : -1;
      if (values.some((value, index) => sign * value < sign * (values[index - 1] ?? value)))
        problems.push(`${label}, ${await title.innerText()}: ${order} is ${texts.join("; ")}`);
      if (new Set(figures.map((figure) => figure?.[2])).size > 1)
        problems.push(`${label}, ${await title.innerText()}: ${texts.join("; ")}`);
    }
  }
  return problems;
}

test("tables are sorted by what they show, in one unit for each column", async ({ page }) => {
  await logIn(page);
  const problems: string[] = [];
  for (const [view, place] of Object.entries(VIEWS)) {
    await goTo(page, place);
    await expect(page.locator("table").first()).toBeVisible();
    problems.push(...(await disorder(page)).map((problem) => `${view}: ${problem}`));
  }
  expect(problems).toEqual([]);
});

test("a VM without a name opens, and one whose name has 4 KiB", async ({ page }) => {
  await replayHostile("odd");
  await logIn(page, `#/host/odd-0001?${RANGE}`);
  const vms = page.getByRole("table", { name: "VMs of this host" });
  // One long word leaves the other columns their place.
  const last = await vms.locator("th").last().boundingBox();
  expect((last?.x ?? Infinity) + (last?.width ?? 0)).toBeLessThanOrEqual(1366);
  for (const [link, vm] of [
    ["[no name]", ""],
    [/^unbroken/, "unbroken".repeat(512)],
  ] as const) {
    await goTo(page, `#/host/odd-0001?${RANGE}`);
    await vms.getByRole("link", { name: link }).click();
    await loaded(page);
    expect(decodeURIComponent(new URL(page.url()).hash.split("?")[0] ?? "")).toBe(
      `#/vm/odd-0001/${vm}`,
    );
    await expect(page.getByRole("alert")).toHaveCount(0);
    await expect(page.locator(".frame").first()).toBeVisible();
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(
      1366,
    );
  }
});

test("hostile names are text", async ({ page }) => {
  await replayHostile("evil");
  let isRun = false;
  page.on("dialog", () => (isRun = true));
  page.on("request", (request) =>
    expect(
      request.url().startsWith(url()) || request.url().startsWith("data:,"),
      request.url(),
    ).toBe(true),
  );
  await logIn(page, `#/host/evil-0001?${RANGE}`);
  const evil = "<img src=x onerror=alert(1)>\\u{1b}[31m\\u{202e}gpj.exe";
  const vms = page.getByRole("table", { name: "VMs of this host" }).getByRole("link");
  const vm = vms.filter({ hasText: "<img" });
  await expect(vm).toContainText(evil);
  await clean(page);
  await vm.click();
  await loaded(page);
  await expect(page.getByRole("heading", { level: 1 })).toContainText(evil);
  await expect(page.locator(".frame").first()).toBeVisible();
  await clean(page);
  // A long name is cut, and whole on demand.
  const name = rows(page, "Functions").first().locator("td").first();
  expect((await name.innerText()).length).toBeLessThan(150);
  await name.getByRole("button", { name: /^all/ }).click();
  expect((await name.innerText()).length).toBeGreaterThan(1000);
  await clean(page);
  const places = [
    `#/?${RANGE}`,
    `#/search?q=onerror&${RANGE}`,
    `#/health?${RANGE}`,
    `#/metering?${RANGE}`,
    `#/function?name=${encodeURIComponent("<b>\u202e")}&${RANGE}`,
    "#/%3Cimg%20src=x%20onerror=alert(1)%3E",
  ];
  for (const place of places) {
    await goTo(page, place);
    await clean(page);
  }
  for (const finding of await findings(page)) {
    await goTo(page, `#/finding/${finding}?${RANGE}`);
    await clean(page);
  }
  expect(isRun).toBe(false);
});

// Their ids.
async function findings(page: Page): Promise<string[]> {
  const { findings } = await page.evaluate(
    async () => (await (await fetch("/v1/findings")).json()) as { findings: { id: string }[] },
  );
  return findings.map(({ id }) => id);
}

// Nothing of a name became markup, and nothing that can't be seen is there.
async function clean(page: Page): Promise<void> {
  const found = await page.evaluate(() => ({
    images: document.querySelectorAll("#app img, #app script, #app b").length,
    // eslint-disable-next-line no-control-regex -- it is looked for
    text: /[\u202a-\u202e\u2066-\u2069\u200b\u001b]/.test(document.body.innerText + document.title),
  }));
  expect(found).toEqual({ images: 0, text: false });
}
