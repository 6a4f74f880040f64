import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Api } from "../src/lib/api";
import { Http } from "../src/lib/http";

/** A server that takes down what it is asked, over real sockets. */
let asked: { path: string; headers: IncomingMessage["headers"]; body: Record<string, unknown> }[] = [];
const server = createServer((request, response) => {
  const pieces: Buffer[] = [];
  request.on("data", (piece: Buffer) => pieces.push(piece));
  request.on("end", () => {
    const body = JSON.parse(Buffer.concat(pieces).toString()) as Record<string, unknown>;
    asked.push({ path: request.url!, headers: request.headers, body });
    response.end(JSON.stringify({ run_id: "run_1", session_id: "s" }));
  });
});
beforeEach(async () => {
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const { fetch } = globalThis;
  const { port } = server.address() as AddressInfo;
  // What a page asks for is on its own server; Node has to be told where that is.
  vi.stubGlobal("fetch", (path: string, init: RequestInit) => fetch(`http://127.0.0.1:${port}${path}`, init));
});
afterEach(() => {
  vi.unstubAllGlobals();
  asked = [];
  server.closeAllConnections();
  return new Promise((done) => server.close(done));
});

const nothing = () => undefined;
const api = new Api(
  new Http({ key: () => null, refused: () => Promise.resolve(), reached: nothing, unreachable: nothing }),
);
const run = { content: [{ type: "text" as const, text: "Hello" }], session: "s", model: "m" };

describe("how a run is begun", () => {
  it("in a chat it goes on whoever leaves, and its key makes it safe to ask again (T3.f)", async () => {
    await api.startRun(run, "key-1");
    expect(asked[0]!.path).toBe("/v1/runs");
    expect(asked[0]!.headers["idempotency-key"]).toBe("key-1");
    expect(asked[0]!.body).toEqual({
      input: [{ role: "user", content: "Hello" }],
      session_id: "s",
      model: "m",
      on_disconnect: "continue",
    });
  });

  it("in a pane it ends with its reader, and its events are the answer (T4.b)", async () => {
    await api.attachRun(run, new AbortController().signal);
    expect(asked[0]!.path).toBe("/v1/runs");
    expect(asked[0]!.body).toEqual({
      input: [{ role: "user", content: "Hello" }],
      session_id: "s",
      model: "m",
      on_disconnect: "cancel",
      stream: true,
    });
  });
});
