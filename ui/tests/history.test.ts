import { describe, expect, it } from "vitest";
import type { ToolItem } from "../src/lib/fold";
import { exchangesOf, outcomeOf } from "../src/lib/history";
import type { Message, Run } from "../src/lib/wire";

const messages: Message[] = [
  { id: 1, run_id: "run_1", created_at: 1, role: "user", content: "hello" },
  { id: 2, run_id: "run_1", created_at: 2, role: "assistant", content: "Hi.", reasoning_content: "A greeting." },
  {
    id: 3, run_id: "run_2", created_at: 3, role: "user",
    content: [{ type: "text", text: "look" }, { type: "image_url", image_url: { url: "data:image/png;base64,AA" } }],
  },
  {
    id: 4, run_id: "run_2", created_at: 4, role: "assistant", content: "",
    tool_calls: [
      { id: "c1", function: { name: "read_file", arguments: "{}" } },
      { id: "c2", function: { name: "terminal", arguments: "{}" } },
    ],
  },
  { id: 5, run_id: "run_2", created_at: 5, role: "tool", tool_call_id: "c1", content: "text", failed: false },
  { id: 6, run_id: "run_2", created_at: 6, role: "user", content: "shorter" },
  { id: 7, run_id: "run_2", created_at: 7, role: "assistant", content: "Half an" },
];
const run = { id: "run_2", outcome: "incomplete", reason: "stream_interrupted", message: "Lost.", model: "a/b" };

describe("saved messages", () => {
  const exchanges = exchangesOf(messages, new Map([["run_2", run as unknown as Run]]));

  it("become one exchange per run, in order", () => {
    expect(exchanges.map(({ run, lastMessage }) => [run, lastMessage])).toEqual([["run_1", 2], ["run_2", 7]]);
    expect(exchanges[0]!.view.items).toMatchObject([{ kind: "reasoning", text: "A greeting." }, { kind: "text", text: "Hi." }]);
    expect(exchanges[1]!.asked).toHaveLength(2);
  });

  it("show tools with their results, steering where it came, and how the run ended", () => {
    const { items, outcome } = exchanges[1]!.view;
    expect(items).toMatchObject([
      { kind: "tool", name: "read_file", state: "done", output: "text" },
      { kind: "tool", name: "terminal", state: "not_run" },
      { kind: "steer", parts: [{ type: "text", text: "shorter" }] },
      { kind: "text", text: "Half an" },
    ]);
    expect(outcome).toEqual({ outcome: "incomplete", reason: "stream_interrupted", message: "Lost." });
  });

  it("that no run has brought are told apart by their questions", () => {
    const said = (role: "user" | "assistant", content: string): Message => ({ role, content });
    const bare = exchangesOf([said("user", "a"), said("assistant", "b"), said("user", "c"), said("assistant", "d")], new Map());
    expect(bare.map(({ asked }) => asked)).toEqual([[{ type: "text", text: "a" }], [{ type: "text", text: "c" }]]);
  });

  it("hand over the client's own calls, and show which tool failed", () => {
    const calls = { ...messages[3]!, run_id: "run_3" };
    const failed: Message = { ...messages[4]!, run_id: "run_3", failed: true };
    const waits = { id: "run_3", outcome: "requires_action", reason: "client_tools", usage: { output_tokens: 3 }, created_at: 1, ended_at: 4 };
    const { view } = exchangesOf([calls, failed], new Map([["run_3", waits as unknown as Run]]))[0]!;
    expect(view.items).toMatchObject([{ name: "read_file", state: "failed" }, { name: "terminal", state: "handed_over" }]);
    expect(view).toMatchObject({ run: "run_3", usage: { output_tokens: 3 }, began: 1, ended: 4 });
  });

  it("name what a call works on", () => {
    const call = (written: string): Message => ({
      id: 1, run_id: "r", role: "assistant", content: "", tool_calls: [{ id: "c", function: { name: "read_file", arguments: written } }],
    });
    const label = (written: string) => (exchangesOf([call(written)], new Map())[0]!.view.items[0] as ToolItem).label;
    expect(label('{"limit": 3, "path": "a\\n b.txt"}')).toBe("read_file a b.txt");
    expect(label('{"limit": 3}')).toBe("read_file");
    expect(label('{"path": "a')).toBe("read_file");
  });

  it("that cannot be read are shown as that, in their place", () => {
    const lost: Message = { id: 2, run_id: "r", role: "unknown", content: "[This message cannot be read.]" };
    const said: Message = { id: 1, run_id: "r", role: "user", content: "a" };
    const [exchange] = exchangesOf([said, lost], new Map());
    expect(exchange!.asked).toEqual([{ type: "text", text: "a" }]);
    expect(exchange!.view.items).toMatchObject([{ kind: "text", text: "[This message cannot be read.]" }]);
  });

  it("show a call of which nobody knows whether it was carried out as that, and one that was not", () => {
    for (const [executed, state] of [["unknown", "unknown"], ["no", "not_run"]] as const) {
      const result: Message = { ...messages[4]!, failed: true, executed };
      const { view } = exchangesOf([messages[3]!, result], new Map())[0]!;
      expect(view.items).toContainEqual(expect.objectContaining({ name: "read_file", state }));
    }
  });

  it("know of a failed run what the provider's no was about", () => {
    const failed = { outcome: "failed", reason: "upstream_error", message: "No.", error: { type: "rate_limit_error", code: null } };
    expect(outcomeOf(failed as Run)).toEqual({ outcome: "failed", reason: "upstream_error", message: "No.", error_type: "rate_limit_error" });
  });

  it("get no verdict when their run is no longer known", () => {
    expect(exchanges[0]!.view.outcome).toBeNull();
  });

  it("that are not whole say so themselves, also where nothing came", () => {
    const half: Message = { ...messages[6]!, outcome: "cancelled", reason: "user" };
    expect(exchangesOf([half], new Map())[0]!.view.outcome).toEqual({ outcome: "cancelled", reason: "user" });
    const none: Message = { id: 9, run_id: "run_4", role: "assistant", content: "", outcome: "failed", reason: "upstream_error" };
    const { view } = exchangesOf([{ ...messages[0]!, run_id: "run_4" }, none], new Map())[0]!;
    expect(view).toMatchObject({ items: [], outcome: { outcome: "failed", reason: "upstream_error" } });
    expect(exchangesOf([half], new Map([["run_2", run as unknown as Run]]))[0]!.view.outcome).toMatchObject({ message: "Lost." });
  });
});
