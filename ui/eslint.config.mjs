// What the page's sources keep to, beside what tsc checks.
import js from "@eslint/js";
import hooks from "eslint-plugin-react-hooks";
import { defineConfig } from "eslint/config";
import ts from "typescript-eslint";

export default defineConfig(
  { ignores: ["dist/", "generated/", "**/*.mjs"] },
  js.configs.recommended,
  ts.configs.recommendedTypeChecked,
  { languageOptions: { parserOptions: { project: "./tsconfig.json" } } },
  {
    plugins: { "react-hooks": hooks },
    rules: {
      eqeqeq: "error",
      // Effects name what they answer to, which is less than all that they use.
      "react-hooks/rules-of-hooks": "error",
      // Rests without a part.
      "@typescript-eslint/no-unused-vars": ["error", { ignoreRestSiblings: true }],
      "@typescript-eslint/no-floating-promises": [
        "error",
        { allowForKnownSafeCalls: [{ from: "package", name: ["test"], package: "node:test" }] },
      ],
    },
  },
);
