import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, expect, vi } from "vitest";

interface Asked {
  method: string;
  path: string;
  headers: IncomingMessage["headers"];
  body: string;
}

type Answer = (response: ServerResponse) => void;

/** What a test's server was asked, and how it answers: next, or whoever asks for "POST /v1/runs"; `{}` if nobody says. */
export const listener: { asked: Asked[]; answers: Answer[]; routes: Record<string, Answer> } = { asked: [], answers: [], routes: {} };

/** A server for each test of a file: over real sockets, it takes down what it is asked and answers as it is told. */
export function listenInEachTest(): void {
  const server = createServer((request, response) => {
    const pieces: Buffer[] = [];
    request.on("data", (piece: Buffer) => pieces.push(piece));
    request.on("end", () => {
      const body = Buffer.concat(pieces).toString();
      listener.asked.push({ method: request.method!, path: request.url!, headers: request.headers, body });
      const route = listener.routes[`${request.method} ${request.url!.split("?")[0]}`];
      (route ?? listener.answers.shift() ?? ((fine) => fine.end("{}")))(response);
    });
  });
  beforeEach(async () => {
    listener.asked = [];
    listener.answers = [];
    listener.routes = {};
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

/** An answer in JSON; `{ error: { message } }` with a status is a no. */
export const json =
  (body: unknown, status = 200, headers: Record<string, string> = {}): Answer =>
  (response) =>
    void response.writeHead(status, { "Content-Type": "application/json", ...headers }).end(JSON.stringify(body));

/** A connection that is lost before an answer. */
export const lost: Answer = (response) => void response.socket!.destroy();

/** The frames of events that follow each other, from a number on. */
export const frames = (events: object[], from = 0): string =>
  events.map((event, n) => `id: ${from + n}\ndata: ${JSON.stringify({ at: 100 + from + n, ...event })}\n\n`).join("");

/** A stream of events that goes on when it is told to. */
export function stream(first: object[]) {
  let response: ServerResponse | undefined;
  let sent = first.length;
  return {
    answer: (given: ServerResponse) => {
      response = given;
      given.writeHead(200, { "Content-Type": "text/event-stream" });
      given.write(frames(first));
    },
    arrived: () => vi.waitFor(() => expect(response).toBeDefined()),
    closed: (told: () => void) => void response!.on("close", told),
    end: (...events: object[]) => {
      const at = sent;
      sent += events.length;
      response!.end(frames(events, at));
    },
  };
}
