// The page with a large fleet: `make bench-ui`.

import { defineConfig } from "@playwright/test";
import tests from "../playwright.config";

export default defineConfig({
  ...tests,
  testDir: ".",
  testMatch: "*.bench.ts",
  globalSetup: [],
  timeout: 3 * 3_600_000,
});
