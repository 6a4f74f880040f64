/** What is shown of a run, compared whole: nothing may be missing from it, and nothing be made up. */
import { describe, expect, it } from "vitest";
import { EMPTY, fold, type RunView } from "../src/lib/fold";
import { exchangesOf } from "../src/lib/history";
import type { Message, Numbered, Run, RunEvent } from "../src/lib/wire";
import { clock, STATUS_WORDS, TOOL_WORDS } from "../src/lib/words";

const log = (...events: object[]): Numbered[] =>
  events.map((event, number) => ({ number, event: { at: 100 + number, ...event } as RunEvent }));

const LOG = log(
  { type: "run.started", run: "run_1", session: "s", model: "a/b" }, // at 100
  { type: "turn.started", turn: 0, model: "a/b" },
  { type: "upstream.retried", model: "a/b", attempt: 1, error: "Busy.", wait_seconds: 1 },
  { type: "reasoning.added", text: "Hm." },
  { type: "reasoning.added", text: "So:", summary: true },
  { type: "text.added", text: "I look." },
  { type: "tool_call.began", index: 0, call_id: "c1", name: "read_file" },
  { type: "tool_call.arguments_added", index: 0, bytes: 7 },
  { type: "tool_call.arguments_added", index: 0, bytes: 5 },
  { type: "upstream.answered", finish: "tool_calls", model: "a/c", usage: { input_tokens: 10, output_tokens: 4, cached_tokens: 3, reasoning_tokens: 2 } },
  { type: "approval.asked", call_id: "c1", name: "read_file", arguments: "{}", seconds: 300 }, // at 110
  { type: "approval.answered", call_id: "c1", approved: true, by: "client" },
  { type: "tool.started", call_id: "c1", name: "read_file", arguments: "{}", label: "read_file x" },
  { type: "message.added", message: { parts: [{ type: "text", text: "Shorter." }] } },
  { type: "tool.finished", call_id: "c1", name: "read_file", output: "text", seconds: 0.5, executed: "yes" },
  { type: "turn.started", turn: 1, model: "a/b" },
  { type: "upstream.fell_back", from_model: "a/b", to_model: "c/d", error: "Away." },
  { type: "text.added", text: "Done." },
  { type: "upstream.answered", finish: "stop", model: "c/d", usage: { input_tokens: 20, output_tokens: 6, cached_tokens: 1, reasoning_tokens: 1 } },
  { type: "run.warned", message: "Little room." },
);
const ENDED = { number: 20, event: { type: "run.ended", outcome: { outcome: "completed" }, at: 120 } as RunEvent };
const SHOWN: RunView = {
  run: "run_1",
  session: "s",
  model: "c/d",
  last: 19,
  items: [
    { kind: "notice", key: "n2", level: "info", text: "a/b did not answer (Busy). Trying again, attempt 2." },
    { kind: "reasoning", key: "r3", turn: 0, summary: false, text: "Hm.", began: 103, ended: 104 },
    { kind: "reasoning", key: "r4", turn: 0, summary: true, text: "So:", began: 104, ended: 105 },
    { kind: "text", key: "t5", turn: 0, text: "I look." },
    {
      kind: "tool",
      key: "c6",
      call: "c1",
      name: "read_file",
      label: "read_file x",
      arguments: "{}",
      state: "done",
      output: "text",
      began: 112,
      ended: 114,
      seconds: 0.5,
      bytesReceived: 12,
      approval: { expires: 410, by: "client", approved: true },
      question: false,
      run: null,
    },
    { kind: "steer", key: "s13", parts: [{ type: "text", text: "Shorter." }], heard: true },
    { kind: "notice", key: "n16", level: "warning", text: "a/b failed (Away). c/d answers instead." },
    { kind: "text", key: "t17", turn: 1, text: "Done." },
    { kind: "notice", key: "n19", level: "warning", text: "Little room." },
  ],
  turn: 1,
  outcome: null,
  usage: { input_tokens: 30, output_tokens: 10, cached_tokens: 4, reasoning_tokens: 3 },
  began: 100,
  firstToken: 103,
  ended: null,
  calls: {},
};

describe("what is shown of a run (R1, T3)", () => {
  it("is all that its log says, at once or event by event, and what was shown before stays as it was", () => {
    expect(fold(EMPTY, LOG)).toEqual(SHOWN);
    const views = LOG.reduce<RunView[]>((views, event) => [...views, fold(views.at(-1)!, [event])], [EMPTY]);
    expect(views.at(-1)).toEqual(SHOWN);
    views.forEach((view, count) => expect(view, `after ${count}`).toEqual(fold(EMPTY, LOG.slice(0, count))));
    expect(fold(SHOWN, LOG), "nothing twice").toBe(SHOWN);
  });

  it("ends with what its end says, which has the last word on what it cost", () => {
    expect(fold(SHOWN, [ENDED])).toEqual({ ...SHOWN, last: 20, outcome: { outcome: "completed" }, ended: 120 });
    const counted = { ...ENDED, event: { ...ENDED.event, usage: { input_tokens: 1 } } as RunEvent };
    expect(fold(SHOWN, [counted]).usage).toEqual({ input_tokens: 1 });
  });

  it("has a card for each call, also where the same id comes again in a later turn", () => {
    const again = log(
      ...LOG.slice(0, 15).map(({ event }) => event),
      { type: "turn.started", turn: 1, model: "a/b" },
      { type: "tool_call.began", index: 0, call_id: "c1", name: "read_file" },
      { type: "tool_call.arguments_added", index: 0, bytes: 1 },
    );
    const cards = fold(EMPTY, again).items.filter((item) => item.kind === "tool");
    expect(cards.map(({ key, state, bytesReceived, began }) => [key, state, bytesReceived, began])).toEqual([
      ["c6", "done", 12, 112],
      ["c16", "writing", 1, 116],
    ]);
  });
});

describe("a saved exchange (T3.d)", () => {
  const messages: Message[] = [
    { id: 1, run_id: "run_1", created_at: 0, role: "user", content: "look" },
    {
      id: 2, run_id: "run_1", created_at: 4, role: "assistant", content: "I look.", reasoning_content: "Hm.",
      tool_calls: [{ id: "c1", function: { name: "read_file", arguments: '{"n": 1, "path": "a  b"}' } }],
    },
    { id: 3, run_id: "run_1", created_at: 5, role: "tool", tool_call_id: "c1", content: "gone", failed: true },
    { id: 4, run_id: "run_1", created_at: 6, role: "assistant", content: "No." },
  ];
  const run = {
    id: "run_1", session_id: "s", model: "agent", answered_by: "a/b", created_at: 0, ended_at: 7, outcome: "failed", reason: "internal",
    message: "Broken.", error: { type: "server_error", code: null }, usage: { input_tokens: 1 },
  } as Run;

  it("is all that was saved of it", () => {
    expect(exchangesOf(messages, new Map([["run_1", run]]))).toEqual([
      {
        run: "run_1",
        at: 0,
        asked: [{ type: "text", text: "look" }],
        lastMessage: 4,
        view: {
          ...EMPTY,
          run: "run_1",
          session: "s",
          model: "a/b",
          items: [
            { kind: "reasoning", key: "r0", turn: 0, summary: false, text: "Hm.", began: 4, ended: null },
            { kind: "text", key: "t0", turn: 0, text: "I look." },
            {
              kind: "tool", key: "cc1", call: "c1", name: "read_file", label: "read_file a b", arguments: '{"n": 1, "path": "a  b"}',
              state: "failed", output: "gone", began: 4, ended: 4, seconds: null, bytesReceived: 0, approval: null, question: false, run: null,
            },
            { kind: "text", key: "t2", turn: 2, text: "No." },
          ],
          outcome: { outcome: "failed", reason: "internal", message: "Broken.", error_type: "server_error" },
          usage: { input_tokens: 1 },
          began: 0,
          ended: 7,
        },
      },
    ]);
  });

  it("says of itself how it ended where its run is no longer known, with a reason if there is one", () => {
    const marked = (mark: object) => exchangesOf([{ ...messages[3]!, ...mark } as Message], new Map())[0]!.view.outcome;
    expect([marked({}), marked({ outcome: "cancelled", reason: "user" }), marked({ outcome: "incomplete", reason: null })]).toEqual([
      null,
      { outcome: "cancelled", reason: "user" },
      { outcome: "incomplete" },
    ]);
  });
});

describe("words (T3)", () => {
  it("are there for every state, and none stands for nothing", () => {
    expect(TOOL_WORDS).toEqual({
      writing: "being written", ready: "about to start", asking: "needs your approval", running: "running", done: "done", failed: "failed",
      denied: "denied", not_run: "not carried out", dropped: "not carried out", unknown: "interrupted", handed_over: "for the client",
    });
    expect(STATUS_WORDS).toEqual({
      queued: "Queued", running: "Running", waiting_approval: "Needs approval", completed: "Completed", incomplete: "Not finished",
      failed: "Failed", cancelled: "Stopped", requires_action: "Waits for client",
    });
  });

  it("tell the time, and the day where it was not today", () => {
    const now = Date.now() / 1000;
    expect(clock(now - 3600)).toMatch(/^\d\d:\d\d:\d\d$/);
    expect(clock(now - 13 * 3600)).toMatch(/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$/);
  });
});
