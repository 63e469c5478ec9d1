// Perfetto's trace processor as WebAssembly: feeds it the requests of a file, writes its responses.
//
// node perfetto_importer.mjs trace_processor.wasm REQUESTS RESPONSES
// Both files hold the bytes of perfetto.protos.TraceProcessorRpcStream. Of the host it gets a clock
// and a place for its log; it has no files.
// Source of the interface: Perfetto v52, src/trace_processor/rpc/wasm_bridge.cc.

import { readFileSync, writeFileSync } from "node:fs";

const [program, requests, responses] = process.argv.slice(2);
const CHUNK = 1 << 20;
const REFUSED = -52; // ENOSYS as WebAssembly's C library numbers it
let memory;
const view = () => new DataView(memory.buffer);
const bytes = (at, size) => new Uint8Array(memory.buffer, at >>> 0, size >>> 0);

function fail(what) {
  throw new Error(`the trace processor failed: ${what}`);
}

const known = {
  emscripten_get_now: () => 0,
  emscripten_date_now: () => 0,
  emscripten_get_heap_max: () => 2 ** 31,
  emscripten_resize_heap(size) {
    memory.grow(Math.ceil(((size >>> 0) - memory.buffer.byteLength) / 65536));
    return 1;
  },
  __assert_fail: () => fail("assertion"),
  _abort_js: () => fail("abort"),
  _tzset_js: () => {},
  clock_time_get(id, precision, at) {
    view().setBigUint64(at >>> 0, 0n, true);
    return 0;
  },
  environ_sizes_get(count, size) {
    view().setUint32(count >>> 0, 0, true);
    view().setUint32(size >>> 0, 0, true);
    return 0;
  },
  environ_get: () => 0,
  fd_write(file, vectors, count, written) {
    let size = 0;
    for (let k = 0; k < count; k++) {
      const at = view().getUint32((vectors >>> 0) + 8 * k, true);
      const length = view().getUint32((vectors >>> 0) + 8 * k + 4, true);
      process.stderr.write(bytes(at, length));
      size += length;
    }
    view().setUint32(written >>> 0, size, true);
    return 0;
  },
};

const module = new WebAssembly.Module(readFileSync(program));
const imports = {};
for (const one of WebAssembly.Module.imports(module)) {
  imports[one.module] ??= {};
  imports[one.module][one.name] = known[one.name] ?? (() => REFUSED);
}
const made = new WebAssembly.Instance(module, imports).exports;
memory = made.memory;

// A module with one function, (i32, i32) -> nothing, that calls ours: tables hold no other kind.
const wrapper = new WebAssembly.Module(new Uint8Array([
  0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, // magic, version
  1, 6, 1, 0x60, 2, 0x7f, 0x7f, 0, // types: one
  2, 7, 1, 1, 0x65, 1, 0x66, 0, 0, // imports: e.f
  7, 5, 1, 1, 0x66, 0, 0, // exports: f
]));
const replies = [];
const reply = (at, size) => replies.push(Buffer.from(bytes(at, size)));
const table = made.__indirect_function_table;
const place = table.grow(1);
table.set(place, new WebAssembly.Instance(wrapper, { e: { f: reply } }).exports.f);

made.emscripten_stack_init();
made.__wasm_call_ctors();
made.__main_argc_argv(0, 0);
const buffer = made.trace_processor_rpc_init(place, CHUNK) >>> 0;
const given = readFileSync(requests);
for (let at = 0; at < given.length; at += CHUNK) {
  const part = given.subarray(at, at + CHUNK);
  bytes(buffer, part.length).set(part);
  made.trace_processor_on_rpc_request(part.length);
}
writeFileSync(responses, Buffer.concat(replies));
