// @vitest-environment jsdom
import type { ServerResponse } from "node:http";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { answerText, EMPTY, fold } from "../src/lib/fold";
import type { Numbered } from "../src/lib/wire";
import { Replay } from "../src/state/replay.svelte";
import { later, listener, listenInEachTest } from "./listener";

listenInEachTest();

/** A log of words, a second apart, longer than two of the stretches of which views are kept. */
const LENGTH = 620;
const LOG: Numbered[] = Array.from({ length: LENGTH }, (_, number) => ({
  number,
  event:
    number === 0
      ? { type: "run.started", run: "run_1", session: "s", model: "m", at: 0 }
      : number === LENGTH - 1
        ? { type: "run.ended", outcome: { outcome: "completed" }, at: number }
        : { type: "text.added", text: `${number} `, at: number },
})) as Numbered[];
const PLACES = [0, 1, 2, 248, 249, 250, 251, 252, 499, 500, 501, 502, LENGTH - 1, LENGTH];
const asOf = (count: number) => fold(EMPTY, LOG.slice(0, count));

let replay: Replay;
beforeEach(() => void (replay = new Replay("run_1")));
afterEach(() => replay.close());

describe("a long run that is replayed (T5.b)", () => {
  it("is at any of its events what it was then, forwards, backwards and anyhow", () => {
    replay.events = LOG;
    for (const places of [PLACES, PLACES.toReversed(), [400, 3, 600, 250, 500, 249, 0, LENGTH]]) {
      for (const place of places) {
        replay.seek(place);
        expect(replay.view, `as of ${place}`).toEqual(asOf(place));
        expect(replay.latest, "whatever is shown").toEqual(asOf(LENGTH));
      }
    }
  });

  it("grows by whatever comes, seen live or from an earlier moment", () => {
    for (const watched of [null, 1, 249]) {
      replay = new Replay("run_1");
      replay.shown = watched;
      for (let length = 1; length <= LENGTH; length += 7) {
        replay.events = LOG.slice(0, length);
        expect(replay.view).toEqual(asOf(Math.min(watched ?? length, length)));
        expect(replay.latest).toEqual(asOf(length));
      }
    }
  });

  it("is read from its log, and its end is what the server says of it then", async () => {
    const frames = LOG.map(({ number, event }) => `id: ${number}\ndata: ${JSON.stringify(event)}\n\n`);
    listener.answers = [
      (response) => response.end(JSON.stringify({ id: "run_1", status: "running" })),
      (response) => response.end(frames.join("")),
      (response) => response.end(JSON.stringify({ id: "run_1", status: "completed" })),
    ];
    await replay.open();
    expect([replay.events.length, replay.run?.status, replay.problem]).toEqual([LENGTH, "completed", ""]);
    expect(answerText(replay.view)).toBe(answerText(asOf(LENGTH)));
  });
});

describe("a run that cannot be read (T5.b)", () => {
  it("says since when, while its connection is lost, and reads on", async () => {
    const frame = (number: number) => `id: ${number}\ndata: ${JSON.stringify(LOG[number]!.event)}\n\n`;
    let second: ServerResponse | undefined;
    listener.answers = [
      (response) => response.end(JSON.stringify({ id: "run_1", status: "running" })),
      (response) => response.end(frame(0)),
      (response) => void (second = response),
      (response) => response.end(JSON.stringify({ id: "run_1", status: "completed" })),
    ];
    const opened = replay.open();
    await vi.waitFor(() => expect(replay.lostAt).not.toBeNull());
    expect(Math.abs(replay.lostAt! - Date.now() / 1000)).toBeLessThan(5);
    await vi.waitFor(() => expect(second).toBeDefined());
    second!.end(frame(LENGTH - 1));
    await opened;
    expect([replay.lostAt, replay.events.length]).toEqual([null, 2]);
    expect(listener.asked.map(({ path }) => path)).toEqual(["/v1/runs/run_1", "/v1/runs/run_1/events", "/v1/runs/run_1/events?after=0", "/v1/runs/run_1"]);
  });

  it("says why, unless nobody looks at it any more", async () => {
    const no = (response: ServerResponse) => void response.writeHead(404).end(JSON.stringify({ error: { message: "No such run." } }));
    listener.answers = [no];
    await replay.open();
    expect([replay.problem, replay.run]).toEqual(["No such run.", null]);
    const left = new Replay("run_2");
    const slow = later("{}");
    listener.answers = [slow.answer];
    const opened = left.open();
    await slow.arrived();
    left.close();
    await opened;
    expect(left.problem).toBe("");
  });
});

describe("the slider and the button (T5.b)", () => {
  beforeEach(() => {
    vi.useFakeTimers();
    replay.events = LOG;
  });
  afterEach(() => void vi.useRealTimers());

  it("follows the end again when it is moved there, and stops at the beginning", () => {
    replay.seek(LENGTH);
    expect(replay.shown).toBeNull();
    replay.seek(-5);
    expect(replay.shown).toBe(0);
    replay.seek(LENGTH - 1);
    expect(replay.shown).toBe(LENGTH - 1);
  });

  it("plays from where it is, or from the beginning, pauses, and ends at the end", () => {
    replay.play();
    expect([replay.playing, replay.shown]).toEqual([true, 1]);
    vi.advanceTimersByTime(3000);
    expect(replay.shown).toBe(4);
    replay.play();
    vi.advanceTimersByTime(60_000);
    expect([replay.playing, replay.shown]).toEqual([false, 4]);
    for (let n = 0; n < 3; n++) replay.play(); // as often as it is pressed, it plays once
    expect([replay.playing, replay.shown]).toEqual([true, 6]);
    vi.advanceTimersByTime(3000);
    expect(replay.shown).toBe(9);
    replay.play();
    replay.seek(LENGTH - 3);
    replay.play();
    vi.advanceTimersByTime(60_000);
    expect([replay.playing, replay.shown]).toEqual([false, null]);
  });

  it("shows what came in one moment at once, and waits no longer than a second", () => {
    const at = [0, 0, 0, 100, 100.001, 100.8];
    replay.events = LOG.slice(0, at.length).map(({ number, event }, n) => ({ number, event: { ...event, at: at[n]! } }));
    replay.play();
    expect(replay.shown).toBe(3);
    vi.advanceTimersByTime(1000);
    expect(replay.shown).toBe(5);
    vi.advanceTimersByTime(700);
    expect(replay.shown).toBe(5);
    vi.advanceTimersByTime(200);
    expect([replay.playing, replay.shown]).toEqual([false, null]);
  });
});
