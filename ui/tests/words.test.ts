import { describe, expect, it } from "vitest";
import type { ToolItem } from "../src/lib/fold";
import { type AnsweredBy, LIVE_STATUSES, type Outcome, type OutcomeName } from "../src/lib/wire";
import { STATUS_WORDS, bytes, count, day, duration, ending, isGoing, toolRemark } from "../src/lib/words";

const outcomes: Outcome[] = [
  ...["max_output_tokens", "content_filter", "max_turns", "max_tool_calls", "stream_interrupted", "server_restart"].map(
    (reason): Outcome => ({ outcome: "incomplete", reason }),
  ),
  ...["upstream_error", "upstream_disconnected", "internal"].map((reason): Outcome => ({ outcome: "failed", reason })),
  ...["user", "client_disconnect", "timeout", "shutdown", "replaced"].map(
    (reason): Outcome => ({ outcome: "cancelled", reason }),
  ),
  ...["client_tools", "approval"].map((reason): Outcome => ({ outcome: "requires_action", reason })),
  { outcome: "incomplete", reason: "something new" },
];

describe("an ending", () => {
  it("is passed over in silence only when the run completed", () => {
    expect(ending({ outcome: "completed" }, 12)).toBeNull();
    for (const outcome of outcomes) {
      for (const kept of [0, 12]) {
        const told = ending(outcome, kept);
        expect(told?.title, JSON.stringify(outcome)).toBeTruthy();
        expect(told?.detail, JSON.stringify(outcome)).toBeTruthy();
        expect(`${told?.title} ${told?.detail}`).not.toMatch(/\bcompleted\b|\bdone\b\.$/i);
      }
    }
  });

  it("says what is kept", () => {
    expect(ending({ outcome: "incomplete", reason: "stream_interrupted" }, 12)?.detail).toContain("12 characters");
    expect(ending({ outcome: "cancelled", reason: "user" }, 0)?.detail).toContain("No text had arrived");
  });
});

describe("what would help", () => {
  it("is to go on from what there is, or to ask again where there is nothing to go on from", () => {
    const remedy = (outcome: Outcome, kept: number) => ending(outcome, kept)?.remedy;
    expect(remedy({ outcome: "incomplete", reason: "max_output_tokens" }, 12)).toBe("continue");
    expect(remedy({ outcome: "incomplete", reason: "content_filter" }, 12)).toBe("retry");
    expect(remedy({ outcome: "failed", reason: "upstream_error" }, 12)).toBe("retry");
    expect(remedy({ outcome: "cancelled", reason: "user" }, 12)).toBe("continue");
    expect(remedy({ outcome: "cancelled", reason: "user" }, 0)).toBe("retry");
    expect(remedy({ outcome: "requires_action", reason: "client_tools" }, 0)).toBeNull();
  });

  it("is told with the provider's own words and status", () => {
    const told = ending({ outcome: "failed", reason: "upstream_error", message: "No credit.", status: 402 }, 0);
    expect(told).toMatchObject({ title: "Failed", detail: "No credit. (status 402)", tone: "error" });
  });
});

describe("a call that did not simply run", () => {
  const remark = (tool: Partial<ToolItem>) => toolRemark({ arguments: "", bytesReceived: 0, approval: null, ...tool } as ToolItem);

  it("is never said to have been carried out", () => {
    expect(remark({ state: "dropped", bytesReceived: 12 })).toMatch(/12 bytes.*was not carried out/);
    expect(remark({ state: "dropped", arguments: "abc" })).toContain("3 bytes");
    expect(remark({ state: "denied" })).toContain("not carried out");
    expect(remark({ state: "not_run" })).toContain("not carried out");
    expect(remark({ state: "unknown" })).toContain("not known");
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
