import { describe, expect, it } from "vitest";
import type { ToolItem } from "../src/lib/fold";
import { type AnsweredBy, LIVE_STATUSES, type OutcomeName } from "../src/lib/wire";
import { STATUS_WORDS, bytes, count, day, duration, isGoing, splitReminders, toolRemark } from "../src/lib/words";

describe("a call that did not simply run", () => {
  const remark = (tool: Partial<ToolItem>) => toolRemark({ arguments: "", bytesReceived: 0, approval: null, ...tool } as ToolItem);

  it("is never said to have been carried out", () => {
    expect(remark({ state: "dropped", bytesReceived: 12 })).toMatch(/12 bytes.*was not carried out/);
    expect(remark({ state: "dropped", arguments: "abc" })).toContain("3 bytes");
    expect(remark({ state: "denied" })).toContain("not carried out");
    expect(remark({ state: "not_run" })).toContain("not carried out");
    expect(remark({ state: "unknown" })).toContain("not known");
    expect(remark({ state: "dropped", bytesReceived: 12 })).not.toMatch(/stream|connection/i); // a stop ends one too
    for (const state of ["done", "failed", "running", "handed_over"] as const) expect(remark({ state })).toBeNull();
  });

  it("says who denied it", () => {
    const denied = (by: AnsweredBy) => remark({ state: "denied", approval: { expires: 0, by, approved: false } });
    expect(denied("timeout")).toContain("Nobody answered in time");
    expect(denied("stop")).toContain("stopped before anybody answered");
    expect(denied("nobody")).toContain("nobody to ask");
    expect(denied("client")).toContain("Denied");
    expect(remark({ state: "not_run", output: "This call needs approval and there is nobody to ask." })).toContain("nobody to ask");
  });
});

describe("what a client put beside a person's words", () => {
  it("is told apart from them", () => {
    const text = "<system-reminder>\nBe brief.\n</system-reminder>\nWhy?\n<system-reminder>It is Monday.</system-reminder>";
    expect(splitReminders(text)).toEqual({ said: "Why?", beside: "Be brief.\n\nIt is Monday." });
    expect(splitReminders(" as it was typed \n")).toEqual({ said: " as it was typed \n", beside: "" });
    expect(splitReminders("a <system-reminder> b")).toEqual({ said: "a <system-reminder> b", beside: "" });
  });
});

describe("figures", () => {
  it("have the unit that fits", () => {
    const shown: [number, string][] = [
      [0, "0 s"], [0.25, "250 ms"], [1, "1.0 s"], [9.94, "9.9 s"], [10, "10 s"], [60, "1 min 0 s"], [125, "2 min 5 s"],
      [3600, "1 h 0 min"], [7380, "2 h 3 min"],
    ];
    for (const [seconds, words] of shown) expect(duration(seconds)).toBe(words);
    expect([bytes(1), bytes(1023), bytes(1024)]).toEqual(["1 byte", "1,023 bytes", "1.0 kB"]);
    expect([count(0, "run"), count(1, "run"), count(1200, "run")]).toEqual(["0 runs", "1 run", "1,200 runs"]);
  });

  it("stand under the day they belong to", () => {
    const noon = new Date(2026, 4, 20, 12).getTime() / 1000;
    const hours = (n: number) => day(noon - n * 3600, noon);
    expect([hours(0), hours(12), hours(13), hours(36), hours(37), hours(24 * 6), hours(24 * 30)]).toEqual([
      "Today", "Today", "Yesterday", "Yesterday", "This week", "This week", "April 2026",
    ]);
  });
});

describe("a state", () => {
  it("has a word of its own, and no unfinished one has that of success", () => {
    const words = Object.entries(STATUS_WORDS);
    expect(new Set(words.map(([, word]) => word)).size).toBe(words.length);
    expect(words.filter(([, word]) => word === "Completed").map(([name]) => name)).toEqual(["completed"]);
  });

  it("goes on until it has an outcome", () => {
    const ended: OutcomeName[] = ["completed", "incomplete", "failed", "cancelled", "requires_action"];
    expect(LIVE_STATUSES.every(isGoing)).toBe(true);
    expect(ended.some(isGoing)).toBe(false);
  });
});
