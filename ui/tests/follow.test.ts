// @vitest-environment jsdom
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { FrameBatch, follow, pause, REACHED } from "../src/lib/follow";
import { ApiError, UnreachableError } from "../src/lib/http";
import type { Numbered } from "../src/lib/wire";

/** A server that answers each connection as it is told, over real sockets. */
let answers: ((response: ServerResponse, after: number) => void)[] = [];
let asked: number[] = [];
const server = createServer((request, response) => {
  const after = Number(new URL(request.url!, "http://x").searchParams.get("after"));
  asked.push(after);
  (answers.shift() ?? ((refused) => refused.writeHead(404).end()))(response, after);
});
beforeEach(() => new Promise<void>((done) => server.listen(0, "127.0.0.1", done)));
afterEach(() => {
  answers = [];
  asked = [];
  vi.useRealTimers();
  server.closeAllConnections();
  return new Promise((done) => server.close(done));
});

const frame = (number: number, type = "text.added") =>
  `id: ${number}\nevent: ${type}\ndata: ${JSON.stringify({ type, text: `${number} `, at: 0, outcome: {} })}\n\n`;

async function open(after: number, signal: AbortSignal): Promise<Response> {
  const { port } = server.address() as AddressInfo;
  try {
    const response = await fetch(`http://127.0.0.1:${port}/?after=${after}`, { signal });
    if (!response.ok) throw new ApiError(response.status, "no");
    return response;
  } catch (error) {
    if (error instanceof ApiError || signal.aborted) throw error;
    throw new UnreachableError(error);
  }
}

async function read(after = -1, signal = new AbortController().signal) {
  const numbers: number[] = [];
  const connected: boolean[] = [];
  const follower = {
    events: (events: Numbered[]) => void numbers.push(...events.map(({ number }) => number)),
    connected: (yes: boolean) => void connected.push(yes),
  };
  await follow(open, after, follower, signal);
  return { numbers, connected };
}

it("goes on after a broken connection, a clean end without the end, and a repetition: nothing twice, nothing missing", async () => {
  answers = [
    (response) => response.write(frame(0) + frame(1) + "id: 2\nda", () => response.destroy()),
    (response) => response.end(frame(2)),
    (response) => response.end(frame(1) + frame(2) + frame(3) + frame(4, "run.ended")),
  ];
  const { numbers, connected } = await read();
  expect(numbers).toEqual([0, 1, 2, 3, 4]);
  expect(asked).toEqual([-1, 1, 2]);
  expect(connected).toEqual([true, false, true, false, true]);
});

it("waits as shortly as at first once something has come again", async () => {
  const waits = vi.spyOn(globalThis, "setTimeout");
  answers = [0, 1, 2].map((number) => (response: ServerResponse) => response.end(frame(number)));
  answers.push((response) => response.end(frame(3, "run.ended")));
  expect((await read()).numbers).toEqual([0, 1, 2, 3]);
  // Ours are drawn by lot, and so no whole numbers; fetch has timers too.
  const taken = waits.mock.calls.map(([, wait]) => wait ?? 0).filter((wait) => !Number.isInteger(wait));
  waits.mockRestore();
  expect([taken.length, Math.max(...taken) / Math.min(...taken) < 2]).toEqual([3, true]);
});

it("waits for a server that is starting behind a proxy", async () => {
  answers = [(response) => response.writeHead(502).end(), (response) => response.end(frame(0, "run.ended"))];
  expect((await read()).numbers).toEqual([0]);
});

it("waits out what passes, and nothing else", async () => {
  for (const status of [429, 503, 504]) {
    answers = [(response) => response.writeHead(status).end(), (response) => response.end(frame(0, "run.ended"))];
    expect((await read()).numbers).toEqual([0]);
  }
  asked = [];
  for (const status of [400, 403, 500]) {
    answers = [(response) => response.writeHead(status).end(), (response) => response.end(frame(0, "run.ended"))];
    await expect(read()).rejects.toThrow(ApiError);
  }
  expect(asked).toHaveLength(3);
});

it("tries again at once when the network or the server is back or somebody looks", async () => {
  const events = [
    () => dispatchEvent(new Event("online")),
    () => dispatchEvent(new Event(REACHED)),
    () => document.dispatchEvent(new Event("visibilitychange")),
  ];
  for (const event of events) {
    const waiting = pause(60, new AbortController().signal);
    event();
    await waiting;
  }
  const controller = new AbortController();
  const waiting = pause(60, controller.signal);
  controller.abort();
  await expect(waiting).rejects.toThrow(/abort/i);
  await expect(pause(60, controller.signal)).rejects.toThrow(/abort/i);
});

it("hands on what came within a frame together, in order, and once", async () => {
  const received: number[][] = [];
  const batch = new FrameBatch((events) => received.push(events.map(({ number }) => number)));
  const numbered = (...numbers: number[]) => numbers.map((number) => ({ number }) as Numbered);
  batch.add(numbered(0, 1));
  batch.add(numbered(2));
  expect(received).toEqual([]);
  await vi.waitFor(() => expect(received).toEqual([[0, 1, 2]]));
  batch.add(numbered(3));
  batch.flush();
  batch.flush();
  expect(received).toEqual([[0, 1, 2], [3]]);
});

it("takes the word of a server that has nothing more to tell", async () => {
  answers = [(response) => response.writeHead(204).end()];
  expect((await read(7)).numbers).toEqual([]);
  expect(asked).toEqual([7]);
});

it("begins after the event it is told", async () => {
  answers = [(response, after) => response.end(frame(after + 1, "run.ended"))];
  expect((await read(41)).numbers).toEqual([42]);
});

it("throws what the server refuses with, and does not ask again", async () => {
  await expect(read()).rejects.toThrow(ApiError);
  expect(asked).toHaveLength(1);
});

it("takes an end that is not in the log for what it is: the server cannot read on", async () => {
  answers = [(response) => response.end(frame(0) + 'event: run.ended\ndata: {"type":"run.ended","outcome":{"message":"Disk."}}\n\n')];
  await expect(read()).rejects.toThrow("Disk.");
});

it("stops at once when it is told to, also while nothing comes", async () => {
  const controller = new AbortController();
  answers = [(response) => response.write(frame(0), () => setTimeout(() => controller.abort(), 20))];
  await expect(read(-1, controller.signal)).rejects.toThrow(/abort/i);
});

it("gives up a connection that falls silent, also after it has said something, and goes on with another", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] }); // the page's patience alone: the sockets keep their own
  let first!: ServerResponse;
  answers = [(response) => void (first = response).write(frame(0)), (response) => response.end(frame(2, "run.ended"))];
  const numbers: number[] = [];
  const follower = {
    events: (events: Numbered[]) => void numbers.push(...events.map(({ number }) => number)),
    connected: () => undefined,
  };
  const reading = follow(open, -1, follower, new AbortController().signal);
  await vi.waitFor(() => expect(numbers).toEqual([0]));
  await vi.advanceTimersByTimeAsync(40_000);
  first.write(frame(1)); // still alive
  await vi.waitFor(() => expect(numbers).toEqual([0, 1]));
  await vi.advanceTimersByTimeAsync(40_000);
  expect(asked).toEqual([-1]);
  await vi.advanceTimersByTimeAsync(10_000);
  await vi.waitFor(() => expect(numbers).toEqual([0, 1, 2]));
  await reading;
  expect(asked).toEqual([-1, 1]);
});
