// Builds the page into dist/, or its unit tests into generated/.
import { readFile, readdir, rm, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const MAX_BYTES = 400_000; // of all files, compressed
const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const exported = here("../crates/export/src/page/");

// The components of exported pages are plain scripts that share one scope: one module here.
const components = {
  name: "components",
  setup(build) {
    build.onResolve({ filter: /^exported-page$/ }, () => ({
      path: "exported-page",
      namespace: "components",
    }));
    build.onLoad({ filter: /.*/, namespace: "components" }, async () => {
      const scripts = await Promise.all(
        ["common.js", "flame.js"].map((name) => readFile(exported + name, "utf8")),
      );
      return { contents: scripts.join("") + "export { colour, flameGraph, onNewColours };\n" };
    });
  },
};

const common = {
  bundle: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  plugins: [components],
};

async function buildPage() {
  const dist = here("dist/");
  for (const name of await readdir(dist)) if (name !== ".gitignore") await rm(dist + name);
  const { metafile } = await build({
    ...common,
    entryPoints: [here("src/main.tsx")],
    outdir: dist,
    entryNames: "[name]-[hash]",
    minify: true,
    metafile: true,
    absWorkingDir: here("."),
  });
  const names = Object.keys(metafile.outputs).map((path) => path.split("/").pop());
  const named = (end) => names.find((name) => name.endsWith(end));
  const index = (await readFile(here("src/index.html"), "utf8"))
    .replace("main.css", named(".css"))
    .replace("main.js", named(".js"));
  await writeFile(dist + "index.html", index);
  await writeFile(dist + "licenses.txt", await licenses());
  let bytes = 0;
  for (const name of [...names, "index.html", "licenses.txt"]) {
    const packed = gzipSync(await readFile(dist + name), { level: 9 });
    await writeFile(`${dist}${name}.gz`, packed);
    bytes += packed.length;
  }
  console.log(`ui/dist: ${bytes} bytes compressed`);
  if (MAX_BYTES < bytes) throw new Error(`the page must not have more than ${MAX_BYTES} bytes`);
}

// Of the libraries in the page.
async function licenses() {
  const { dependencies } = JSON.parse(await readFile(here("package.json"), "utf8"));
  const texts = Object.keys(dependencies).map(
    async (name) => `${name}\n\n${await readFile(here(`node_modules/${name}/LICENSE`), "utf8")}`,
  );
  return (await Promise.all(texts)).join("\n\n");
}

async function buildUnitTests() {
  const tests = (await readdir(here("src/model/"))).filter((name) => name.endsWith(".test.ts"));
  const contents = tests.map((name) => `import "./${name}";`).join("\n");
  await build({
    ...common,
    stdin: { contents, resolveDir: here("src/model/") },
    platform: "node",
    outfile: here("generated/unit.mjs"),
  });
}

await (process.argv[2] === "unit" ? buildUnitTests() : buildPage());
