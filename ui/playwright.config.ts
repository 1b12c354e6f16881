// One server, one browser: Debian's Chromium.

import { defineConfig } from "@playwright/test";

export default defineConfig({
  testDir: "tests",
  globalSetup: "./tests/server.ts",
  // The server is one, and what a test does to it others would see.
  workers: 1,
  timeout: 60_000,
  reporter: "list",
  use: {
    ignoreHTTPSErrors: true,
    screenshot: "only-on-failure",
    viewport: { width: 1366, height: 900 },
    timezoneId: "UTC",
    locale: "en-GB",
    launchOptions: { executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] },
  },
});
