// Requests to the server, as /openapi.json describes them.

import createClient from "openapi-fetch";
import type { components, paths } from "../../generated/api";

export type Answer = components["schemas"]["Answer"];
export type FleetAnswer = components["schemas"]["FleetAnswer"];
export type HealthAnswer = components["schemas"]["HealthAnswer"];
export type HostHealth = HealthAnswer["hosts"][number];
export type SecondsAnswer = Present<components["schemas"]["SecondsAnswer"]>;
export type VmTimes = components["schemas"]["VmTimes"];
export type FindingCause = FindingEntry["cause"];
export type FindingChange = FindingEntry["changes"][number];
export type FindingCode = Present<components["schemas"]["FindingCode"]>;
export type FindingEntry = Present<components["schemas"]["FindingEntry"]>;
export type FindingFunction = Present<components["schemas"]["FindingFunction"]>;
export type FindingList = Present<components["schemas"]["FindingList"]>;
export type FindingMeasure = FindingChange["measure"];
export type FindingOwner = Present<components["schemas"]["FindingOwner"]>;
export type HostEntry = components["schemas"]["HostEntry"];

// What is not known is absent, never null.
type Present<T> = T extends (infer Item)[]
  ? Present<Item>[]
  : T extends object
    ? { [Key in keyof T]: Present<Exclude<T[Key], null>> }
    : T;

const client = createClient<paths>({ baseUrl: location.origin, credentials: "same-origin" });

// The browser has no token that is good.
export class LoggedOut extends Error {}
// There is no such thing.
export class NotThere extends Error {}
// The server did not answer.
export class Unreachable extends Error {}

// The server answers four queries at a time by default, to all users together.
const MAX_RUNNING = 3;
const MAX_TRIES = 3;
let running = 0;
const waiting: (() => void)[] = [];

interface Reply<T> {
  data?: T | undefined;
  error?: { error: string } | undefined;
  response: Response;
}

// Waits for its turn, and tries again when the server says so.
async function ask<T>(request: () => Promise<Reply<T>>, signal: AbortSignal): Promise<T> {
  if (running >= MAX_RUNNING) await new Promise<void>((turn) => waiting.push(turn));
  running++;
  try {
    for (let tries = 1; ; tries++) {
      signal.throwIfAborted();
      const { data, error, response } = await request().catch((cause: unknown) => {
        signal.throwIfAborted();
        throw new Unreachable("the server does not answer", { cause });
      });
      if (data !== undefined) return data;
      if (response.status === 401) throw new LoggedOut(error?.error);
      if (response.status === 404) throw new NotThere(error?.error);
      const seconds = Number(response.headers.get("retry-after"));
      if (!(seconds > 0) || tries === MAX_TRIES)
        throw new Error(error?.error ?? `the server answers ${response.status}`);
      await new Promise((done) => setTimeout(done, 1000 * Math.min(seconds, 10)));
    }
  } finally {
    running--;
    waiting.shift()?.();
  }
}

export interface Question {
  sql: string;
  from: string;
  to: string;
  host?: string;
}

export function sql(body: Question, signal: AbortSignal): Promise<Answer> {
  return ask(() => client.POST("/v1/sql", { body, signal }), signal);
}

// The answer to a ready-made query.
export function ready(
  name: string,
  query: { from: string; to: string; host?: string },
  signal: AbortSignal,
): Promise<Answer> {
  const params = { path: { query: name }, query };
  return ask(() => client.GET("/v1/tables/{query}", { params, signal }), signal);
}

export async function findings(
  query: { host?: string; vm?: string },
  signal: AbortSignal,
): Promise<FindingList> {
  return (await ask(
    () => client.GET("/v1/findings", { params: { query }, signal }),
    signal,
  )) as FindingList;
}

// What all hosts lost, of which the server has the sums.
export function fleet(
  query: { from: string; to: string; slots: number },
  signal: AbortSignal,
): Promise<FleetAnswer> {
  return ask(() => client.GET("/v1/fleet", { params: { query }, signal }), signal);
}

// What agents collected and noted, of which the server has the sums.
export function health(
  query: { from: string; to: string },
  signal: AbortSignal,
): Promise<HealthAnswer> {
  return ask(() => client.GET("/v1/health", { params: { query }, signal }), signal);
}

// A window's name: `HOST/BOOT/START`.
export type WindowId = [host: string, boot: string, start: string];

// What a VM did in a window, second by second; null: the window is not stored any more.
export async function seconds(
  [host, boot, start]: WindowId,
  vm: string,
  signal: AbortSignal,
): Promise<SecondsAnswer | null> {
  const request = () =>
    client.GET("/v1/windows/{host}/{boot}/{start}/seconds", {
      params: { path: { host, boot, start }, query: { vm } },
      signal,
    });
  try {
    return (await ask(request, signal)) as SecondsAnswer;
  } catch (error) {
    if (error instanceof NotThere) return null;
    throw error;
  }
}

export function hosts(signal: AbortSignal): Promise<HostEntry[]> {
  return ask(() => client.GET("/v1/hosts", { signal }), signal);
}

// Why the token is not taken; null: it is.
export async function logIn(token: string): Promise<string | null> {
  try {
    const { error } = await client.POST("/v1/session", { body: { token } });
    return error?.error ?? null;
  } catch {
    return "the server does not answer";
  }
}

export async function logOut(): Promise<void> {
  await client.DELETE("/v1/session").catch(() => undefined);
}
