import { describe, expect, it } from "vitest";
import { LIVE_STATUSES, type Outcome, type OutcomeName } from "../src/lib/wire";
import { STATUS_WORDS, ending, isGoing } from "../src/lib/words";

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
