// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { answerText, EMPTY, fold } from "../src/lib/fold";
import type { Numbered } from "../src/lib/wire";
import { Replay } from "../src/state/replay.svelte";
import { listener, listenInEachTest } from "./listener";

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
