import { describe, expect, it } from "vitest";
import { answerText, EMPTY, fold, lastSaid, outputTokens, type RunView, type ToolItem } from "../src/lib/fold";
import type { Numbered, RunEvent } from "../src/lib/wire";

type Bare = RunEvent extends infer E ? (E extends RunEvent ? Omit<E, "at"> & { at?: number } : never) : never;

/** A log: each event one second after the one before. */
function log(...events: Bare[]): Numbered[] {
  return events.map((event, number) => ({ number, event: { at: 100 + number, ...event } as RunEvent }));
}
const started: Bare[] = [
  { type: "run.started", run: "run_1", session: "s", model: "a/b" },
  { type: "turn.started", turn: 0, model: "a/b" },
];
const text = (words: string): Bare => ({ type: "text.added", text: words });
const began: Bare = { type: "tool_call.began", index: 0, call_id: "c1", name: "write_file" };
const args = (bytes: number): Bare => ({ type: "tool_call.arguments_added", index: 0, bytes });
const answered: Bare = { type: "upstream.answered", finish: "tool_calls", model: "a/b" };
const ended: Bare = { type: "run.ended", outcome: { outcome: "completed" } };

const tool = (view: RunView): ToolItem => view.items.find((item) => item.kind === "tool")!;

describe("the fold of a run's events", () => {
  it("joins text and keeps reasoning apart, with how long it took", () => {
    const view = fold(
      EMPTY,
      log(...started, { type: "reasoning.added", text: "Hm" }, { type: "reasoning.added", text: "m." }, text("Yes"), text("."), ended),
    );
    expect(view.items.map((item) => item.kind)).toEqual(["reasoning", "text"]);
    expect(view.items[0]).toMatchObject({ text: "Hmm.", began: 102, ended: 104 });
    expect(answerText(view)).toBe("Yes.");
    expect(view).toMatchObject({ run: "run_1", session: "s", firstToken: 102, ended: 106, outcome: { outcome: "completed" } });
  });

  it("names the run of another agent that is asked as a tool", () => {
    const asked: Bare = { type: "run.delegated", call_id: "c1", run: "run_2", agent: "research" };
    const view = fold(EMPTY, log(...started, began, args(2), answered, asked));
    expect(tool(view)).toMatchObject({ name: "write_file", run: "run_2" });
  });

  it("takes an approval without a call for a question, which is over when it is answered", () => {
    const asked: Bare = { type: "approval.asked", call_id: "c9", name: "send_mail", arguments: "{}", seconds: 9 };
    const yes: Bare = { type: "approval.answered", call_id: "c9", approved: true, by: "client" };
    expect(tool(fold(EMPTY, log(...started, asked, yes)))).toMatchObject({ state: "done", question: true });
    expect(tool(fold(EMPTY, log(...started, { ...began, call_id: "c9" }, answered, asked, yes))).state).toBe("ready");
  });

  it("adds up what an agent of one's own says that it has used", () => {
    const used: Bare = { type: "usage.added", usage: { input_tokens: 3, output_tokens: 2 } };
    expect(fold(EMPTY, log(...started, used, used)).usage).toMatchObject({ input_tokens: 6, output_tokens: 4 });
  });

  it("says of a dropped call that it was not carried out, and how much of it had come", () => {
    const view = fold(
      EMPTY,
      log(...started, began, args(12), { type: "turn.cut", turn: 0, error: "Connection lost." }, {
        type: "tool_call.dropped",
        call_id: "c1",
        name: "write_file",
        bytes_received: 12,
        executed: "no",
      }, text("Stream stalled mid tool-call (write_file): the action was not carried out."), {
        type: "run.ended",
        outcome: { outcome: "incomplete", reason: "stream_interrupted" },
      }),
    );
    expect(tool(view)).toMatchObject({ state: "dropped", name: "write_file", bytesReceived: 12 });
    expect(view.outcome?.outcome).toBe("incomplete");
    expect(answerText(view)).toContain("was not carried out");
  });

  it("never leaves a card looking alive after the run has ended", () => {
    const stopped: Bare = { type: "run.ended", outcome: { outcome: "cancelled", reason: "user" } };
    const writing = fold(EMPTY, log(...started, began, args(1), stopped));
    const ready = fold(EMPTY, log(...started, began, args(2), answered, stopped));
    const running = fold(
      EMPTY,
      log(...started, began, answered, { type: "tool.started", call_id: "c1", name: "x", arguments: "{}", label: "x" }, stopped),
    );
    expect([writing, ready, running].map((view) => tool(view).state)).toEqual(["dropped", "not_run", "unknown"]);
  });

  it("keeps what had arrived when the stream was interrupted", () => {
    const view = fold(
      EMPTY,
      log(...started, text("Half an ans"), { type: "turn.cut", turn: 0, error: "reset" }, {
        type: "run.ended",
        outcome: { outcome: "incomplete", reason: "stream_interrupted", message: "The connection was lost." },
      }),
    );
    expect(answerText(view)).toBe("Half an ans");
    expect(view.outcome).toEqual({ outcome: "incomplete", reason: "stream_interrupted", message: "The connection was lost." });
    expect(view.items.map((item) => item.kind)).toEqual(["text"]); // its end says why, once
  });

  it("gives the same view however the log is cut and however often it is replayed", () => {
    const events = log(...started, text("a"), began, args(1), args(1), answered, {
      type: "tool.started", call_id: "c1", name: "write_file", arguments: "{}", label: "write_file x",
    }, { type: "tool.finished", call_id: "c1", name: "write_file", output: "ok", seconds: 1.5, executed: "yes" }, {
      type: "turn.started", turn: 1, model: "a/b",
    }, text("b"), text("c"), ended);
    const whole = fold(EMPTY, events);
    for (let cut = 0; cut <= events.length; cut++) {
      const first = fold(EMPTY, events.slice(0, cut));
      expect(fold(first, events)).toEqual(whole);
      expect(fold(fold(first, events.slice(cut)), events)).toEqual(whole);
    }
    expect(fold(whole, events)).toBe(whole);
    expect(answerText(whole)).toBe("abc");
    expect(tool(whole)).toMatchObject({ state: "done", output: "ok", seconds: 1.5, label: "write_file x" });
  });

  it("changes only what an event touched and leaves the old view as it was", () => {
    const events = log(...started, text("a"), began, args(2), answered, { type: "turn.started", turn: 1, model: "" }, text("b"), text("c"));
    const before = fold(EMPTY, events.slice(0, -1));
    const copy = structuredClone(before);
    const after = fold(before, events);
    expect(before).toEqual(copy);
    expect(after.items[0]).toBe(before.items[0]);
    expect(after.items[1]).toBe(before.items[1]);
    expect(after.items[2]).not.toBe(before.items[2]);
  });

  it("keeps interleaved calls of one turn apart", () => {
    const view = fold(
      EMPTY,
      log(...started, began, { type: "tool_call.began", index: 1, call_id: "c2", name: "read_file" }, args(2), {
        type: "tool_call.arguments_added", index: 1, bytes: 5,
      }, args(1), { type: "tool_call.arguments_added", index: 1, bytes: 1 }, answered),
    );
    expect(view.items).toMatchObject([
      { call: "c1", bytesReceived: 3, arguments: "", state: "ready" },
      { call: "c2", bytesReceived: 6, arguments: "", state: "ready" },
    ]);
  });

  it("shows a call of the client's own when it is whole, and hands it over", () => {
    const ready: Bare = { type: "tool_call.ready", call_id: "c1", name: "write_file", arguments: '{"a":1}' };
    const waiting: Bare = { type: "run.ended", outcome: { outcome: "requires_action", reason: "client_tools" } };
    const view = fold(EMPTY, log(...started, began, args(7), answered, ready, waiting));
    expect(tool(view)).toMatchObject({ state: "handed_over", arguments: '{"a":1}' });
  });

  it("keeps calls of different turns apart though they have the same id", () => {
    const done: Bare = { type: "tool.finished", call_id: "c1", name: "write_file", output: "1", seconds: 1, executed: "yes" };
    const view = fold(
      EMPTY,
      log(...started, began, args(3), answered, done, { type: "turn.started", turn: 1, model: "" }, began, args(4), answered, {
        ...done, output: "2",
      } as Bare),
    );
    expect(view.items).toMatchObject([
      { call: "c1", bytesReceived: 3, output: "1" },
      { call: "c1", bytesReceived: 4, output: "2" },
    ]);
  });

  it("shows a steering message where it came, and the text after it as a part of its own", () => {
    const view = fold(
      EMPTY,
      log(...started, text("one"), { type: "message.added", message: { parts: [{ type: "text", text: "shorter" }] } }, {
        type: "turn.started", turn: 1, model: "a/b",
      }, text("two"), ended),
    );
    expect(view.items.map((item) => item.kind)).toEqual(["text", "steer", "text"]);
    expect(view.items[1]).toMatchObject({ parts: [{ type: "text", text: "shorter" }] });
  });

  it("keeps a steering message behind the turn that it came in, and no word is broken by it", () => {
    const steer: Bare = { type: "message.added", message: { parts: [{ type: "text", text: "shorter" }] } };
    const during = fold(EMPTY, log(...started, text("Hel"), steer, text("lo"), began));
    expect(during.items.map((item) => item.kind)).toEqual(["text", "tool", "steer"]);
    expect(during.items).toMatchObject([{ text: "Hello" }, {}, { heard: false }]);
    expect(lastSaid(during.items)?.kind).toBe("tool");
    const next = { type: "turn.started", turn: 1, model: "a/b" } as const;
    const after = fold(EMPTY, log(...started, text("Hel"), steer, text("lo"), next, text("two"), ended));
    expect(after.items).toMatchObject([{ text: "Hello" }, { kind: "steer", heard: true }, { text: "two" }]);
  });

  it("asks for approval, then runs or denies", () => {
    const asked: Bare[] = [...started, began, answered, {
      type: "approval.asked", call_id: "c1", name: "write_file", arguments: '{"path":"x"}', seconds: 300,
    }];
    const waiting = fold(EMPTY, log(...asked));
    expect(tool(waiting)).toMatchObject({ state: "asking", arguments: '{"path":"x"}', approval: { expires: 404 } });
    const approved = fold(EMPTY, log(...asked, { type: "approval.answered", call_id: "c1", approved: true, by: "client" }));
    expect(tool(approved).state).toBe("ready");
    const denied = fold(
      EMPTY,
      log(...asked, { type: "approval.answered", call_id: "c1", approved: false, by: "timeout" }, {
        type: "tool.finished", call_id: "c1", name: "write_file", output: "Denied.", failed: true, executed: "no",
      }),
    );
    expect(tool(denied)).toMatchObject({ state: "denied", seconds: null, approval: { by: "timeout", approved: false } });
  });

  it("hands the client's own tools over when the run ends for them", () => {
    const view = fold(EMPTY, log(...started, began, args(2), answered, {
      type: "run.ended", outcome: { outcome: "requires_action", reason: "client_tools" },
    }));
    expect(tool(view).state).toBe("handed_over");
  });

  it("tells of retries and of the model that took over", () => {
    const view = fold(
      EMPTY,
      log(...started, { type: "upstream.retried", model: "a/b", attempt: 1, error: "reset.", wait_seconds: 1 }, {
        type: "upstream.fell_back", from_model: "a/b", to_model: "c/d", error: "reset.",
      }, text("hello")),
    );
    expect(view.items.map((item) => (item.kind === "notice" ? item.level : item.kind))).toEqual(["info", "warning", "text"]);
    expect(view.model).toBe("c/d");
  });

  it("estimates tokens while they come and takes the provider's count at the end", () => {
    const going = fold(EMPTY, log(...started, text("x".repeat(40))));
    expect(outputTokens(going)).toEqual({ count: 10, exact: false });
    const done = fold(EMPTY, log(...started, text("x".repeat(40)), { ...ended, usage: { output_tokens: 12 } } as Bare));
    expect(outputTokens(done)).toEqual({ count: 12, exact: true });
    const uncounted = fold(EMPTY, log(...started, text("x".repeat(40)), { ...ended, usage: { output_tokens: 0 } } as Bare));
    expect(outputTokens(uncounted)).toEqual({ count: 10, exact: false });
  });

  it("passes over events of a newer server that it does not know", () => {
    const unknown = { type: "moon.rose", at: 1 } as unknown as Bare;
    expect(answerText(fold(EMPTY, log(...started, text("a"), unknown, text("b"))))).toBe("ab");
  });
});

describe("a run that goes on after its server was gone", () => {
  const resumed: Bare = { type: "run.resumed", attempt: 2, reason: "server_restart", cut: "text" };

  it("keeps the words in one piece and says so above them, once", () => {
    const cut: Bare = { type: "turn.cut", turn: 0, error: "the server was gone" };
    const again: Bare = { type: "turn.started", turn: 0, model: "a/b" };
    const view = fold(EMPTY, log(...started, text("```\none "), cut, resumed, again, text("two\n```"), ended));
    expect(view.items).toMatchObject([
      { kind: "notice", level: "info", text: "The server was gone; the run goes on." },
      { kind: "text", text: "```\none two\n```" },
    ]);
    expect(answerText(view)).toBe("```\none two\n```");
  });

  it("says so behind a tool that was cut off, and nothing of a hand-over before it is over", () => {
    const running: Bare = { type: "tool.started", call_id: "c1", name: "x", arguments: "{}", label: "x" };
    const unknown: Bare = { type: "tool.finished", call_id: "c1", name: "x", output: "", failed: true, executed: "unknown" };
    const left = fold(EMPTY, log(...started, began, answered, running, { type: "run.handed_over" }));
    expect(left.items.map((item) => item.kind)).toEqual(["tool"]);
    const handedOver: Bare = { ...resumed, reason: "handed_over", cut: "tool" };
    const view = fold(EMPTY, log(...started, began, answered, running, unknown, handedOver));
    expect(view.items).toMatchObject([
      { kind: "tool", state: "unknown" },
      { kind: "notice", text: "The server was stopped; the run goes on." },
    ]);
  });
});
