/**
 * Reading a run's events: over any number of broken connections, each event once, to the end (R7, T3).
 * The caller says how a connection is opened after event N; this module knows when to open the next one.
 */
import { ApiError, UnreachableError } from "./http";
import { type Frame, SseDecoder } from "./sse";
import type { Numbered, RunEvent } from "./wire";

/** Longer than the server's keepalive: a connection this quiet is dead, even if nobody said so. */
const SILENCE_SECONDS = 45;
const FIRST_WAIT_SECONDS = 0.25;
const LONGEST_WAIT_SECONDS = 8;

export interface Follower {
  /** New events, in order. */
  events(events: Numbered[]): void;
  /** Is there a connection? */
  connected(yes: boolean): void;
}

/** Resolves after `run.ended`. Throws what the server refuses with (ApiError), and AbortError. */
export async function follow(
  open: (after: number, signal: AbortSignal) => Promise<Response>,
  after: number,
  follower: Follower,
  signal: AbortSignal,
): Promise<void> {
  let last = after;
  let wait = FIRST_WAIT_SECONDS;
  for (;;) {
    try {
      const response = await open(last, signal);
      follower.connected(true);
      if (response.status === 204) return; // the run has ended, and we have seen all of it
      const ended = await readEvents(response, signal, (events) => {
        const fresh = events.filter(({ number }) => number > last);
        if (!fresh.length) return;
        last = fresh.at(-1)!.number;
        wait = FIRST_WAIT_SECONDS;
        follower.events(fresh);
      });
      if (ended) return;
    } catch (error) {
      if (signal.aborted) throw signal.reason;
      if (!isPassing(error)) throw error;
    }
    follower.connected(false);
    await pause(wait * (0.75 + Math.random() / 2), signal);
    wait = Math.min(wait * 2, LONGEST_WAIT_SECONDS);
  }
}

/** Will it be better in a moment? The network may come back, and so may a server behind a proxy. */
function isPassing(error: unknown): boolean {
  if (error instanceof ApiError) return [429, 502, 503, 504].includes(error.status);
  return error instanceof UnreachableError || error instanceof TypeError;
}

/** Reads one response to its end; true when the run's last event was in it. */
async function readEvents(
  response: Response,
  signal: AbortSignal,
  receive: (events: Numbered[]) => void,
): Promise<boolean> {
  if (!response.body) return false;
  const reader = response.body.getReader();
  const decoder = new SseDecoder();
  const stop = () => void reader.cancel().catch(() => undefined); // it is already broken, which is what we wanted
  let silence = setTimeout(stop, SILENCE_SECONDS * 1000);
  signal.addEventListener("abort", stop);
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (signal.aborted) throw signal.reason;
      if (done) return false;
      clearTimeout(silence);
      silence = setTimeout(stop, SILENCE_SECONDS * 1000);
      const events = decoder.feed(value).map(parse);
      if (events.length) receive(events);
      if (events.at(-1)?.event.type === "run.ended") return true;
    }
  } finally {
    clearTimeout(silence);
    signal.removeEventListener("abort", stop);
  }
}

function parse({ id, data }: Frame): Numbered {
  const event = JSON.parse(data) as RunEvent;
  // What has no number is not in the log: the server says that it cannot read on.
  if (id === "") throw new ApiError(500, (event.type === "run.ended" && event.outcome.message) || "The log cannot be read.");
  return { number: Number(id), event };
}

/** What the window hears when the server answers again after a silence. */
export const REACHED = "holdfast:reached";

/** Waits, but not after the network, the server or the person is back: then at once. */
export function pause(seconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const finish = (done: () => void) => {
      clearTimeout(timer);
      signal.removeEventListener("abort", aborted);
      removeEventListener("online", back);
      removeEventListener(REACHED, back);
      document.removeEventListener("visibilitychange", visible);
      done();
    };
    const aborted = () => finish(() => reject(signal.reason));
    const back = () => finish(resolve);
    const visible = () => document.visibilityState === "visible" && finish(resolve);
    const timer = setTimeout(back, seconds * 1000);
    if (signal.aborted) return aborted();
    signal.addEventListener("abort", aborted);
    addEventListener("online", back);
    addEventListener(REACHED, back);
    document.addEventListener("visibilitychange", visible);
  });
}

/** Gathers events and hands them on once per frame, or a little later in a tab that is not painted. */
export class FrameBatch {
  #events: Numbered[] = [];
  #frame = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly receive: (events: Numbered[]) => void) {}

  add(events: Numbered[]): void {
    for (const event of events) this.#events.push(event);
    if (this.#timer !== undefined) return;
    this.#frame = requestAnimationFrame(() => this.flush());
    this.#timer = setTimeout(() => this.flush(), 200);
  }

  flush(): void {
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const events = this.#events;
    this.#events = [];
    if (events.length) this.receive(events);
  }
}
