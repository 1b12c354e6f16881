// A server with a store of its own and the windows of a real recording, for all tests.

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import {
  cpSync,
  existsSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const programs =
  process.env["VMSCOPE_PROGRAMS"] ?? fileURLToPath(new URL("../../target/debug", import.meta.url));
const recording = fileURLToPath(new URL("recording", import.meta.url));
const PATIENCE_MS = 180_000;

// What tests know of it: Playwright hands the environment on to them.
export const folder = () => process.env["VMSCOPE_TEST_FOLDER"] ?? "";
export const url = () => process.env["VMSCOPE_TEST_URL"] ?? "";
export const readToken = () => readFileSync(join(folder(), "read"), "utf8");

const program = (name: string, words: string[], input = "") =>
  execFileSync(join(programs, name), words, {
    input,
    encoding: "utf8",
    stdio: ["pipe", "pipe", "inherit"],
  }).trim();

let child: ChildProcess | null = null;

export async function start(): Promise<void> {
  const started = spawn(
    join(programs, "vmscope-server"),
    ["--config", join(folder(), "server.toml")],
    { stdio: ["ignore", "ignore", "pipe"] },
  );
  child = started;
  await new Promise<void>((done, failed) => {
    started.on("exit", (code) => failed(new Error(`vmscope-server ended: ${code}`)));
    let said = "";
    let isUp = false;
    started.stderr?.on("data", (text: Buffer) => {
      said += text.toString();
      const fingerprint = /authority SHA-256 (\w+)/.exec(said)?.[1];
      // What it says later, at its end too, changes nothing.
      if (!isUp && said.includes("listening on") && fingerprint) {
        isUp = true;
        writeFileSync(join(folder(), "fingerprint"), fingerprint);
        writeFileSync(join(folder(), "pid"), String(started.pid));
        done();
      }
    });
  });
  started.removeAllListeners("exit");
  started.unref();
}

// The server may have been started by another process of the tests.
export function stop(): void {
  process.kill(serverPid(), "SIGKILL");
}

// Sends a recording as so many windows of each host; the last ones end now.
async function replay(name: string, from: string, hosts: number, rounds: number): Promise<void> {
  const fingerprint = readFileSync(join(folder(), "fingerprint"), "utf8");
  const words = [
    from,
    "--server",
    url(),
    "--token",
    "-",
    "--fingerprint",
    fingerprint,
    "--name",
    name,
  ];
  program(
    "vmscope",
    ["replay", ...words, "--hosts", String(hosts), "--rounds", String(rounds)],
    readFileSync(join(folder(), "agent"), "utf8"),
  );
  for (const until = Date.now() + PATIENCE_MS; ;) {
    const metrics = execFileSync("curl", ["-sk", `${url()}/metrics`], { encoding: "utf8" });
    if (/^vmscope_server_analyses_left 0$/m.test(metrics)) return;
    if (until < Date.now()) throw new Error("the windows were not analysed in time");
    await new Promise((done) => setTimeout(done, 200));
  }
}

// Makes a store of this server that has many hosts out of the one that it has, or takes one that was made so before.
export function multiply(hosts: number, hours: number, made?: string): string {
  const few = join(folder(), "store");
  const many = made ?? join(folder(), "many");
  const said = existsSync(many)
    ? "made before"
    : program("examples/fleet_days", [
        few,
        many,
        String(Math.floor(Date.now() / 1000)),
        String(hosts),
        String(hours),
      ]);
  cpSync(join(few, "auth"), join(many, "auth"), { recursive: true });
  rmSync(few, { recursive: true });
  symlinkSync(many, few);
  return said;
}

export const serverPid = () => Number(readFileSync(join(folder(), "pid"), "utf8"));
export const replayMore = (name: string, rounds = 1) => replay(name, recording, 1, rounds);

// A host whose VMs, processes, modules and functions have hostile names.
export async function replayHostile(name: string): Promise<void> {
  const hostile = join(folder(), `hostile-${name}`);
  program("examples/hostile_names", [recording, hostile]);
  await replay(name, hostile, 1, 3);
}

// A folder of its own for a server, which listens at a free port.
export async function configure(): Promise<void> {
  process.env["VMSCOPE_TEST_FOLDER"] = mkdtempSync(join(tmpdir(), "vmscope-ui-"));
  const port = await new Promise<number>((done) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const address = server.address();
      server.close(() => done(typeof address === "object" ? (address?.port ?? 0) : 0));
    });
  });
  process.env["VMSCOPE_TEST_URL"] = `https://127.0.0.1:${port}`;
  const config = join(folder(), "server.toml");
  writeFileSync(
    config,
    `listen = "127.0.0.1:${port}"\nstore = "${folder()}/store"\nstate = "${folder()}/state"\n`,
  );
  for (const role of ["agent", "read"])
    writeFileSync(
      join(folder(), role),
      program("vmscope-server", ["token", "--role", role, "--name", "test", "--config", config]),
    );
}

export function tearDown(): void {
  child?.kill();
  stop();
  rmSync(folder(), { recursive: true });
}

export default async function setUp(): Promise<() => void> {
  await configure();
  await start();
  // kvm-0001 and kvm-0002 for ten minutes.
  await replay("kvm", recording, 2, 30);
  return tearDown;
}
