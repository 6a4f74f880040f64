/** A run's log as a picture over time: turns, tools, tokens, and what deserves a mark. Pure geometry in seconds. */
import { ending, endingLine } from "./endings";
import type { Numbered } from "./wire";
import { resumedLine } from "./words";

export interface Span {
  kind: "turn" | "tool";
  label: string;
  from: number;
  /** Null: it has not ended. */
  to: number | null;
  tone: "plain" | "failed" | "dropped";
  row: number;
}
export interface Mark {
  at: number;
  number: number;
  label: string;
  tone: "info" | "warning" | "error";
}
export interface Timeline {
  began: number;
  seconds: number;
  spans: Span[];
  marks: Mark[];
  /** Characters that had arrived, in steps: [second, characters]. */
  growth: [number, number][];
  rows: number;
}

/** Everything up to the last event given. */
export function timeline(events: readonly Numbered[]): Timeline {
  const began = events[0]?.event.at ?? 0;
  const spans: Span[] = [];
  const marks: Mark[] = [];
  const growth: [number, number][] = [[0, 0]];
  /** Those that run. */
  const tools = new Map<string, Span>();
  let turn: Span | null = null;
  let rows = 0;
  let characters = 0;
  let seconds = 0;
  for (const { event, number } of events) {
    const at = Math.max(0, event.at - began);
    seconds = Math.max(seconds, at);
    const mark = (label: string, tone: Mark["tone"]) => marks.push({ at, number, label, tone });
    const tool = (call: string, name: string): Span => {
      const open = tools.get(call);
      if (open) return open;
      const span: Span = { kind: "tool", label: name, from: at, to: null, tone: "plain", row: ++rows };
      tools.set(call, span);
      spans.push(span);
      return span;
    };
    switch (event.type) {
      case "turn.started":
        if (turn) turn.to ??= at;
        turn = { kind: "turn", label: `Turn ${event.turn + 1}`, from: at, to: null, tone: "plain", row: 0 };
        spans.push(turn);
        break;
      case "upstream.answered":
        if (turn) turn.to = at;
        break;
      case "turn.cut":
        if (turn) Object.assign(turn, { to: at, tone: "failed" });
        break;
      case "text.added":
      case "reasoning.added":
      case "tool_call.arguments_added": {
        characters += "text" in event ? event.text.length : event.bytes;
        const last = growth.at(-1)!;
        if (last[0] === at) last[1] = characters;
        else growth.push([at, characters]);
        break;
      }
      case "tool.started":
        tool(event.call_id, event.label || event.name);
        break;
      case "tool.finished": {
        const span = tool(event.call_id, event.name);
        span.to = at;
        tools.delete(event.call_id); // the id may come again in another turn
        if (event.failed || event.executed !== "yes") span.tone = "failed";
        break;
      }
      case "tool_call.dropped": {
        const span = tool(event.call_id, event.name);
        Object.assign(span, { to: at, tone: "dropped" });
        mark(`${event.name} was not carried out`, "error");
        break;
      }
      case "approval.asked":
        mark(`Approval asked for ${event.name}`, "warning");
        break;
      case "approval.answered":
        mark(event.approved ? "Approved" : "Denied", event.approved ? "info" : "warning");
        break;
      case "upstream.retried":
        mark("Tried again", "warning");
        break;
      case "upstream.fell_back":
        mark(`${event.to_model} took over`, "warning");
        break;
      case "message.added":
        mark("A message was added", "info");
        break;
      case "run.warned":
        mark(event.message, "warning");
        break;
      case "run.delegated":
        mark(`${event.agent} is asked`, "info");
        break;
      case "usage.added":
        break;
      case "run.handed_over":
        break; // when it goes on there is something to see
      case "run.resumed":
        mark(resumedLine(event.reason), "info");
        break;
      case "run.ended": {
        const told = ending(event.outcome, characters);
        for (const span of spans) span.to ??= at;
        if (turn && told?.tone === "neutral") turn.tone = "plain"; // a stop is no failure
        if (told) mark(endingLine(event.outcome), told.tone === "neutral" ? "info" : told.tone);
        break;
      }
    }
  }
  return { began, seconds, spans, marks, growth, rows: rows + 1 };
}
