// Perfetto's own trace processor, as its UI ships it (WebAssembly), on the command line.
//
//   node trace_processor.mjs DIR TRACE QUERY...    DIR holds engine_bundle.js and trace_processor.wasm
//
// Prints each query's rows, cells apart by tabs. Fails when the trace or a query is refused.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

// Field numbers and enums of Perfetto's trace_processor.proto.
const RPC = { request: 2, appendTraceData: 101, queryArgs: 103, fatalError: 5, appendResult: 201, queryResult: 203 };
const METHOD = { append: 1, finalize: 2, query: 3 };
const CELL = { null: 1, varint: 2, float64: 3, string: 4, blob: 5 };
const CHUNK_BYTES = 16 << 20;

const [dir, trace, ...queries] = process.argv.slice(2);

/** The engine as a browser's worker would run it: `send(bytes)` returns the replies. */
function engine() {
  class FileRequest {
    open(_method, name) { this.name = name; }
    send() { this.response = new Uint8Array(readFileSync(join(dir, this.name))).buffer; }
  }
  const spoken = (text) => { if (!/^warning: unsupported syscall|Loading trace|^\s*$/.test(text)) console.error(text); };
  const worker = vm.createContext({
    console: { log: spoken, warn: spoken, error: spoken }, XMLHttpRequest: FileRequest, WorkerGlobalScope: class {},
    location: { href: "http://localhost/engine_bundle.js" },
    URL, TextDecoder, TextEncoder, performance, crypto, setTimeout, clearTimeout, setInterval, clearInterval,
  });
  worker.self = worker;
  let replies = [];
  const port = { postMessage: (bytes) => replies.push(Buffer.from(bytes)) };
  const bytesOfWorker = vm.runInContext("(bytes) => Uint8Array.from(bytes)", worker);
  vm.runInContext(readFileSync(join(dir, "engine_bundle.js"), "utf8"), worker);
  worker.onmessage({ data: port });
  return async (bytes) => {
    replies = [];
    await port.onmessage({ data: bytesOfWorker(bytes) });
    return Buffer.concat(replies);
  };
}

function varint(number) {
  const bytes = [];
  for (let rest = BigInt(number); ; rest >>= 7n) {
    if (rest < 128n) return Buffer.from([...bytes, Number(rest)]);
    bytes.push(Number(rest & 127n) | 128);
  }
}
const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint((field << 3) | 2), varint(value.length), value]);

function readVarint(buffer, at) {
  let value = 0n;
  for (let shift = 0n; ; shift += 7n) {
    const byte = buffer[at++];
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) return [value, at];
  }
}

/** The fields of a message: [number, value], a value being a BigInt, a double or bytes. */
function* fields(buffer) {
  for (let at = 0, key, value; at < buffer.length;) {
    [key, at] = readVarint(buffer, at);
    const wire = Number(key & 7n);
    if (wire === 0) {
      [value, at] = readVarint(buffer, at);
    } else if (wire === 1) {
      value = buffer.readDoubleLE(at);
      at += 8;
    } else {
      const [length, start] = readVarint(buffer, at);
      at = start + Number(length);
      value = buffer.subarray(start, at);
    }
    yield [Number(key >> 3n), value];
  }
}

function* packed(buffer) {
  for (let at = 0, value; at < buffer.length;) {
    [value, at] = readVarint(buffer, at);
    yield value;
  }
}

/** Cells of one batch, in order. */
function cells(batch) {
  const kinds = [], varints = [], floats = [], texts = [], blobs = [];
  for (const [field, value] of fields(batch)) {
    if (field === 1) kinds.push(...[...packed(value)].map(Number));
    if (field === 2) varints.push(...[...packed(value)].map((cell) => BigInt.asIntN(64, cell)));
    if (field === 3) for (let at = 0; at < value.length; at += 8) floats.push(value.readDoubleLE(at));
    if (field === 4) blobs.push(`${value.length} bytes`);
    if (field === 5) texts.push(...value.toString("utf8").split("\0"));
  }
  const take = { [CELL.null]: () => "NULL", [CELL.varint]: () => varints.shift(), [CELL.float64]: () => floats.shift(),
    [CELL.string]: () => texts.shift(), [CELL.blob]: () => blobs.shift() };
  return kinds.map((kind) => String(take[kind]()));
}

function fail(text) {
  console.error(text);
  process.exit(1);
}

const send = engine();
// The engine finishes its start in promises of its own.
await new Promise((resolve) => setImmediate(resolve));
/** Asks once; the parts of the answer that stand in `field`. */
async function ask(method, more, field) {
  const request = bytes(1, Buffer.concat([number(RPC.request, method), ...more]));
  const found = [];
  for (const [, message] of fields(await send(request))) {
    for (const [at, value] of fields(message)) {
      if (at === RPC.fatalError) fail(value.toString("utf8"));
      if (at === field) found.push(value);
    }
  }
  return found;
}

const contents = readFileSync(trace);
for (let at = 0; at < contents.length; at += CHUNK_BYTES) {
  const chunk = bytes(RPC.appendTraceData, contents.subarray(at, at + CHUNK_BYTES));
  for (const result of await ask(METHOD.append, [chunk], RPC.appendResult)) {
    for (const [field, value] of fields(result)) if (field === 2) fail(value.toString("utf8"));
  }
}
await ask(METHOD.finalize, []);
for (const query of queries) {
  const args = bytes(RPC.queryArgs, bytes(1, Buffer.from(query)));
  let columns = 0, all = [];
  for (const result of await ask(METHOD.query, [args], RPC.queryResult)) {
    for (const [field, value] of fields(result)) {
      if (field === 1) columns++;
      if (field === 2) fail(`${query}: ${value.toString("utf8")}`);
      if (field === 3) all.push(...cells(value));
    }
  }
  for (let at = 0; at < all.length; at += columns) console.log(all.slice(at, at + columns).join("\t"));
}
process.exit(0);
