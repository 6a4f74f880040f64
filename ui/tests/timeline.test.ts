import { expect, it } from "vitest";
import { timeline } from "../src/lib/timeline";
import type { Numbered, RunEvent } from "../src/lib/wire";

const log = (...events: [number, object][]): Numbered[] =>
  events.map(([at, event], number) => ({ number, event: { at: 1000 + at, ...event } as unknown as RunEvent }));

it("draws turns, tools, growth and what went wrong, in seconds from the start", () => {
  const drawn = timeline(
    log(
      [0, { type: "run.started" }],
      [0, { type: "turn.started", turn: 0 }],
      [1, { type: "text.added", text: "1234" }],
      [2, { type: "upstream.answered" }],
      [2, { type: "tool.started", call_id: "c1", name: "t", label: "t x" }],
      [2, { type: "tool_call.arguments_added", index: 0, bytes: 3 }],
      [5, { type: "tool.finished", call_id: "c1", name: "t", failed: true, executed: "yes" }],
      [5, { type: "turn.started", turn: 1 }],
      [6, { type: "text.added", text: "56" }],
      [7, { type: "turn.cut", turn: 1, error: "reset" }],
      [7, { type: "tool_call.dropped", call_id: "c2", name: "u", executed: "no" }],
      [8, { type: "run.ended", outcome: { outcome: "incomplete", message: "Lost." } }],
    ),
  );
  expect(drawn.seconds).toBe(8);
  expect(drawn.rows).toBe(3);
  expect(drawn.spans).toMatchObject([
    { kind: "turn", label: "Turn 1", from: 0, to: 2, tone: "plain", row: 0 },
    { kind: "tool", label: "t x", from: 2, to: 5, tone: "failed", row: 1 },
    { kind: "turn", label: "Turn 2", from: 5, to: 7, tone: "failed", row: 0 },
    { kind: "tool", label: "u", from: 7, to: 7, tone: "dropped", row: 2 },
  ]);
  expect(drawn.growth).toEqual([[0, 0], [1, 4], [2, 7], [6, 9]]);
  expect(drawn.marks.map(({ tone, number, label }) => [tone, number, label])).toEqual([
    ["error", 10, "u was not carried out"],
    ["warning", 11, "Not finished. Lost."],
  ]);
});

it("does not colour a turn that was stopped on request as one that failed", () => {
  const { spans, marks } = timeline(
    log(
      [0, { type: "turn.started", turn: 0 }],
      [1, { type: "turn.cut", turn: 0, error: "Stopped by a stop request" }],
      [1, { type: "run.ended", outcome: { outcome: "cancelled", reason: "user" } }],
    ),
  );
  expect(spans).toMatchObject([{ label: "Turn 1", to: 1, tone: "plain" }]);
  expect(marks).toMatchObject([{ label: "Stopped on request.", tone: "info" }]);
});
