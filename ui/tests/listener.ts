import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, expect, vi } from "vitest";

interface Asked {
  method: string;
  path: string;
  headers: IncomingMessage["headers"];
  body: string;
}

/** What a test's server was asked, and how it answers next; `{}` if nobody says. */
export const listener: { asked: Asked[]; answers: ((response: ServerResponse) => void)[] } = { asked: [], answers: [] };

/** A server for each test of a file: over real sockets, it takes down what it is asked and answers as it is told. */
export function listenInEachTest(): void {
  const server = createServer((request, response) => {
    const pieces: Buffer[] = [];
    request.on("data", (piece: Buffer) => pieces.push(piece));
    request.on("end", () => {
      const body = Buffer.concat(pieces).toString();
      listener.asked.push({ method: request.method!, path: request.url!, headers: request.headers, body });
      (listener.answers.shift() ?? ((fine) => fine.end("{}")))(response);
    });
  });
  beforeEach(async () => {
    listener.asked = [];
    listener.answers = [];
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    const { fetch } = globalThis;
    const { port } = server.address() as AddressInfo;
    // What a page asks for is on its own server; Node has to be told where that is.
    vi.stubGlobal("fetch", (path: string, init: RequestInit) => fetch(`http://127.0.0.1:${port}${path}`, init));
  });
  afterEach(() => {
    vi.unstubAllGlobals();
    server.closeAllConnections();
    return new Promise((done) => server.close(done));
  });
}

/** An answer that is given later: `arrived` when it was asked for, `give` to give it to whoever still wants it. */
export function later(body: string) {
  let waiting: ServerResponse | undefined;
  return {
    answer: (response: ServerResponse) => void (waiting = response),
    arrived: () => vi.waitFor(() => expect(waiting).toBeDefined()),
    give: () => void waiting!.end(body),
  };
}
