/** A session's saved messages as exchanges: what was asked, and the answer in the shape that fold.ts gives a live one. */
import { EMPTY, type Item, type RunView, type ToolItem } from "./fold";
import type { LogPart, Message, Outcome, Part, Run } from "./wire";

export interface PastExchange {
  run: string;
  at: number;
  asked: Part[];
  view: RunView;
  /** The last saved message: a fork taken here ends with this answer. */
  lastMessage: number | null;
}

/** Messages in order, gathered by run. */
export function exchangesOf(messages: readonly Message[], runs: ReadonlyMap<string, Run>): PastExchange[] {
  const groups: Message[][] = [];
  for (const message of messages) {
    const group = groups.at(-1);
    if (group && belongs(message, group)) group.push(message);
    else groups.push([message]);
  }
  return groups.map((group) => {
    const id = group[0]!.run_id ?? "";
    const answer = group.findIndex((message) => ["assistant", "tool", "unknown"].includes(message.role));
    const cut = answer < 0 ? group.length : answer;
    return {
      run: id,
      at: group[0]!.created_at ?? 0,
      asked: group.slice(0, cut).flatMap((message) => (message.role === "user" ? partsOf(message) : [])),
      view: viewOf(id, group.slice(cut), runs.get(id)),
      lastMessage: group.at(-1)!.id ?? null,
    };
  });
}

/** One run, one exchange. Messages that no run has brought begin a new one with each question. */
function belongs(message: Message, group: Message[]): boolean {
  if ((message.run_id ?? null) !== (group[0]!.run_id ?? null)) return false;
  return Boolean(message.run_id) || message.role !== "user" || group.at(-1)!.role === "user";
}

export function partsOf(message: Message): Part[] {
  if (typeof message.content === "string") return [{ type: "text", text: message.content }];
  return message.content ?? [];
}

function viewOf(id: string, messages: readonly Message[], run: Run | undefined): RunView {
  const items: Item[] = [];
  const tools = new Map<string, ToolItem>();
  messages.forEach((message, turn) => {
    const at = message.created_at ?? 0;
    switch (message.role) {
      case "user":
        items.push({
          kind: "steer",
          key: `s${turn}`,
          parts: partsOf(message).map(asLogPart),
          heard: messages.slice(turn + 1).some((later) => later.role === "assistant" && Boolean(later.content || !later.outcome)),
        });
        return;
      case "unknown":
      case "assistant": {
        if (message.reasoning_content) {
          const text = message.reasoning_content;
          items.push({ kind: "reasoning", key: `r${turn}`, turn, summary: false, text, began: at, ended: null });
        }
        const text = partsOf(message)
          .map((part) => (part.type === "text" ? part.text : ""))
          .join("");
        if (text) items.push({ kind: "text", key: `t${turn}`, turn, text });
        for (const call of message.tool_calls ?? []) {
          const tool = toolOf(call, at);
          tools.set(call.id, tool);
          items.push(tool);
        }
        return;
      }
      case "tool": {
        const tool = tools.get(message.tool_call_id ?? "");
        if (!tool) return;
        if (message.executed === "unknown") tool.state = "unknown";
        else if (message.executed === "no") tool.state = "not_run";
        else tool.state = message.failed ? "failed" : "done";
        tool.output = partsOf(message)
          .map((part) => (part.type === "text" ? part.text : ""))
          .join("");
        return;
      }
    }
  });
  const outcome = outcomeOf(run) ?? markOf(messages);
  for (const tool of tools.values()) if (tool.state === "not_run" && !tool.output && outcome?.outcome === "requires_action") tool.state = "handed_over";
  return {
    ...EMPTY,
    run: id,
    session: run?.session_id ?? "",
    model: run?.answered_by ?? run?.model ?? "",
    items,
    outcome,
    usage: run?.usage ?? {},
    began: run?.created_at ?? null,
    ended: run?.ended_at ?? null,
  };
}

function toolOf(call: NonNullable<Message["tool_calls"]>[number], at: number): ToolItem {
  return {
    kind: "tool",
    key: `c${call.id}`,
    call: call.id,
    name: call.function.name,
    label: `${call.function.name} ${subjectOf(call.function.arguments)}`.trim(),
    arguments: call.function.arguments,
    state: "not_run",
    output: "",
    began: at,
    ended: at,
    seconds: null,
    bytesReceived: 0,
    approval: null,
    question: false,
    run: null,
  };
}

/** What a call works on, as its label would say: the first text among its arguments. */
function subjectOf(written: string): string {
  try {
    const first = Object.values(JSON.parse(written) as object).find((value) => typeof value === "string");
    return String(first ?? "").replace(/\s+/g, " ").slice(0, 80);
  } catch {
    return ""; // not JSON: the card shows it as it is
  }
}

/** What an answer that is not whole says of itself: it holds where its run is no longer known, and in a fork. */
function markOf(messages: readonly Message[]): Outcome | null {
  const marked = messages.findLast((message) => message.outcome);
  if (!marked?.outcome) return null;
  return marked.reason ? { outcome: marked.outcome, reason: marked.reason } : { outcome: marked.outcome };
}

/** A saved answer whose run is no longer known gets no verdict from it. */
export function outcomeOf(run: Run | undefined): Outcome | null {
  if (!run?.outcome) return null;
  const outcome: Outcome = { outcome: run.outcome };
  if (run.reason) outcome.reason = run.reason;
  if (run.message && run.outcome !== "completed") outcome.message = run.message;
  if (run.error) outcome.error_type = run.error.type;
  return outcome;
}

function asLogPart(part: Part): LogPart {
  return part.type === "text" ? part : { type: "image", url: part.image_url.url };
}
