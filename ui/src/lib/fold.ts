/**
 * The fold of a run's events into what is shown of it (R1 on the page): chat, compare and replay all use this one.
 * Pure: a view and events in, a new view out; what did not change keeps its identity, so only that is drawn again.
 */
import type { AnsweredBy, LogPart, Numbered, Outcome, RunEvent, Usage } from "./wire";
import { resumedLine } from "./words";

export type ToolState =
  | "writing" // the model is still writing the arguments
  | "ready" // written, not begun
  | "asking" // waits for somebody's approval
  | "running"
  | "done"
  | "failed"
  | "denied"
  | "not_run" // never begun, though nobody denied it
  | "dropped" // the stream died while the arguments came: never carried out
  | "unknown" // it was running when the run or the server stopped
  | "handed_over"; // the client's own tool

export interface ToolItem {
  kind: "tool";
  key: string;
  call: string;
  name: string;
  label: string;
  arguments: string;
  state: ToolState;
  output: string;
  began: number;
  ended: number | null;
  seconds: number | null;
  bytesReceived: number;
  approval: { expires: number; by: AnsweredBy | null; approved: boolean | null } | null;
  /** It is no call, but a question that an agent of one's own asks. */
  question: boolean;
  /** The run of another agent, where the tool is one. */
  run: string | null;
}
export interface TextItem {
  kind: "text";
  key: string;
  turn: number;
  text: string;
}
export interface ReasoningItem {
  kind: "reasoning";
  key: string;
  turn: number;
  summary: boolean;
  text: string;
  began: number;
  ended: number | null;
}
export interface SteerItem {
  kind: "steer";
  key: string;
  parts: LogPart[];
  /** A turn has begun since. Until then it stands behind all that the turn it came in says and does. */
  heard: boolean;
}
export interface NoticeItem {
  kind: "notice";
  key: string;
  level: "info" | "warning";
  text: string;
}
export type Item = TextItem | ReasoningItem | ToolItem | SteerItem | NoticeItem;

export interface RunView {
  run: string;
  session: string;
  model: string;
  /** The number of the last event that was folded in; -1 before the first. */
  last: number;
  items: readonly Item[];
  turn: number;
  outcome: Outcome | null;
  usage: Usage;
  began: number | null;
  firstToken: number | null;
  ended: number | null;
  /** Which call each index of the current turn is. */
  calls: Readonly<Record<number, string>>;
}

export const EMPTY: RunView = Object.freeze({
  run: "",
  session: "",
  model: "",
  last: -1,
  items: [],
  turn: -1,
  outcome: null,
  usage: {},
  began: null,
  firstToken: null,
  ended: null,
  calls: {},
});

/** The view after these events. One that was folded in before is passed over, so a replay adds nothing twice. */
export function fold(view: RunView, events: readonly Numbered[]): RunView {
  const draft = new Draft(view);
  for (const { number, event } of events) {
    if (number <= draft.view.last) continue;
    draft.apply(event, number);
    draft.view.last = number;
  }
  return draft.changed ? draft.view : view;
}

/** A working copy. Items are copied when first touched, so that the old view stays as it was. */
class Draft {
  view: RunView;
  items: Item[];
  changed = false;
  #fresh = new Set<Item>();

  constructor(view: RunView) {
    this.items = [...view.items];
    this.view = { ...view, items: this.items };
  }

  apply(event: RunEvent, number: number): void {
    this.changed = true;
    const view = this.view;
    if (event.type !== "reasoning.added") this.#endReasoning(event.at);
    switch (event.type) {
      case "run.started":
        view.run = event.run;
        view.session = event.session;
        view.model = event.model;
        view.began = event.at;
        return;
      case "turn.started":
        for (const item of this.items) if (item.kind === "steer" && !item.heard) this.#own(item).heard = true;
        view.turn = event.turn;
        view.calls = {};
        return;
      case "text.added":
        view.firstToken ??= event.at;
        return this.#text(event.text, number);
      case "reasoning.added":
        view.firstToken ??= event.at;
        return this.#reasoning(event.text, event.summary ?? false, event.at, number);
      case "reasoning.signed":
      case "tool_call.annotated":
        return;
      case "tool_call.began":
        view.firstToken ??= event.at;
        view.calls = { ...view.calls, [event.index]: event.call_id };
        this.#card(event.call_id, event.name, event.at, number); // some providers use the same ids in every turn
        return;
      case "tool_call.arguments_added": {
        const call = view.calls[event.index];
        if (call !== undefined) this.#tool(call, "", event.at, number).bytesReceived += event.bytes;
        return;
      }
      case "tool_call.ready":
        this.#tool(event.call_id, event.name, event.at, number).arguments = event.arguments;
        return;
      case "tool_call.dropped": {
        const tool = this.#tool(event.call_id, event.name, event.at, number);
        tool.state = event.executed === "unknown" ? "unknown" : "dropped";
        tool.bytesReceived = event.bytes_received;
        tool.ended = event.at;
        return;
      }
      case "upstream.retried":
        return this.#notice(
          "info",
          `${event.model} did not answer (${trimmed(event.error)}). Trying again, attempt ${event.attempt + 1}.`,
          number,
        );
      case "upstream.fell_back":
        view.model = event.to_model;
        return this.#notice(
          "warning",
          `${event.from_model} failed (${trimmed(event.error)}). ${event.to_model} answers instead.`,
          number,
        );
      case "upstream.answered":
        view.usage = added(view.usage, event.usage ?? {});
        if (event.model) view.model = event.model;
        for (const call of Object.values(view.calls)) {
          const tool = this.#tool(call, "", event.at, number);
          if (tool.state === "writing") tool.state = "ready";
        }
        return;
      case "turn.cut": // why is told once, by the end of the run
        return;
      case "tool.started": {
        const tool = this.#tool(event.call_id, event.name, event.at, number);
        tool.label = event.label;
        tool.arguments = event.arguments;
        tool.state = "running";
        tool.began = event.at;
        return;
      }
      case "tool.finished": {
        const tool = this.#tool(event.call_id, event.name, event.at, number);
        if (event.executed === "unknown") tool.state = "unknown";
        else if (event.executed === "no") tool.state = tool.approval?.approved === false ? "denied" : "not_run";
        else tool.state = event.failed ? "failed" : "done";
        tool.output = event.output;
        tool.seconds = event.executed === "no" ? null : (event.seconds ?? 0);
        tool.ended = event.at;
        return;
      }
      case "approval.asked": {
        const tool = this.#tool(event.call_id, event.name, event.at, number);
        if (tool.state === "writing") tool.question = true; // what was called has been written by now
        tool.arguments = event.arguments;
        tool.state = "asking";
        tool.approval = { expires: event.at + event.seconds, by: null, approved: null };
        return;
      }
      case "approval.answered": {
        const tool = this.#tool(event.call_id, "", event.at, number);
        tool.approval = { expires: tool.approval?.expires ?? 0, by: event.by, approved: event.approved };
        tool.state = !event.approved ? "denied" : tool.question ? "done" : "ready";
        return;
      }
      case "message.added":
        this.items.push({ kind: "steer", key: `s${number}`, parts: event.message.parts, heard: false });
        return;
      case "run.warned":
        return this.#notice("warning", event.message, number);
      case "run.delegated":
        this.#tool(event.call_id, event.agent, event.at, number).run = event.run;
        return;
      case "usage.added":
        view.usage = added(view.usage, event.usage);
        return;
      case "run.handed_over": // that it goes on is told when it does
        return;
      case "run.resumed":
        return this.#resumed(resumedLine(event.reason), number);
      case "run.ended":
        view.outcome = event.outcome;
        view.usage = event.usage ?? view.usage;
        view.ended = event.at;
        return this.#settle(event.at);
      default: {
        const unknown: never = event; // a newer server may say more than this page knows
        void unknown;
      }
    }
  }

  #text(text: string, number: number): void {
    const last = lastSaid(this.items);
    if (last?.kind === "text" && last.turn === this.view.turn) this.#own(last).text += text;
    else this.#append({ kind: "text", key: `t${number}`, turn: this.view.turn, text });
  }

  #reasoning(text: string, summary: boolean, at: number, number: number): void {
    const last = lastSaid(this.items);
    const turn = this.view.turn;
    if (last?.kind === "reasoning" && last.turn === turn && last.summary === summary && last.ended === null) {
      this.#own(last).text += text;
      return;
    }
    this.#endReasoning(at);
    this.#append({ kind: "reasoning", key: `r${number}`, turn, summary, text, began: at, ended: null });
  }

  #endReasoning(at: number): void {
    const last = lastSaid(this.items);
    if (last?.kind === "reasoning" && last.ended === null) this.#own(last).ended = at;
  }

  #notice(level: NoticeItem["level"], text: string, number: number): void {
    this.#append({ kind: "notice", key: `n${number}`, level, text });
  }

  /** Above the words that were cut off: they go on in one piece, whatever list or code they were in the middle of. */
  #resumed(text: string, number: number): void {
    const last = lastSaid(this.items);
    const notice: NoticeItem = { kind: "notice", key: `n${number}`, level: "info", text };
    if (last?.kind === "text" && last.turn === this.view.turn) this.items.splice(this.items.indexOf(last), 0, notice);
    else this.#append(notice);
  }

  /** The newest card of a call, made when it is first heard of. */
  #tool(call: string, name: string, at: number, number: number): ToolItem {
    const known = this.items.findLast((item): item is ToolItem => item.kind === "tool" && item.call === call);
    return known ? this.#own(known) : this.#card(call, name, at, number);
  }

  #card(call: string, name: string, at: number, number: number): ToolItem {
    const tool: ToolItem = {
      kind: "tool",
      key: `c${number}`,
      call,
      name,
      label: name,
      arguments: "",
      state: "writing",
      output: "",
      began: at,
      ended: null,
      seconds: null,
      bytesReceived: 0,
      approval: null,
      question: false,
      run: null,
    };
    this.#append(tool);
    this.#fresh.add(tool);
    return tool;
  }

  /** Behind all that was said and done, and before what no turn has heard yet. */
  #append(item: Item): void {
    const unheard = this.items.findIndex((other) => other.kind === "steer" && !other.heard);
    this.items.splice(unheard < 0 ? this.items.length : unheard, 0, item);
  }

  /** When a run has ended nothing goes on any more, and no card may look as if it did. */
  #settle(at: number): void {
    for (const item of this.items) {
      if (item.kind !== "tool") continue;
      const state = SETTLED[item.state];
      if (state === undefined) continue;
      const tool = this.#own(item);
      const handedOver = item.state === "ready" && this.view.outcome?.outcome === "requires_action";
      tool.state = handedOver ? "handed_over" : state;
      tool.ended ??= at;
    }
  }

  #own<T extends Item>(item: T): T {
    if (this.#fresh.has(item)) return item;
    const copy = { ...item };
    this.items[this.items.lastIndexOf(item)] = copy;
    this.#fresh.add(copy);
    return copy;
  }
}

const SETTLED: Partial<Record<ToolState, ToolState>> = {
  writing: "dropped",
  ready: "not_run",
  asking: "not_run",
  running: "unknown",
};

/** What the model said or did last. */
export function lastSaid(items: readonly Item[]): Item | undefined {
  return items.findLast((item) => item.kind !== "steer" || item.heard);
}

/** All text of the answer, without reasoning. */
export function answerText(view: RunView): string {
  return view.items
    .filter((item) => item.kind === "text")
    .map((item) => item.text)
    .join("");
}

/** Tokens of output so far: the provider's count, or an estimate while there is none. */
export function outputTokens(view: RunView): { count: number; exact: boolean } {
  if (view.ended !== null && view.usage.output_tokens) return { count: view.usage.output_tokens, exact: true };
  let characters = 0;
  for (const item of view.items) {
    if (item.kind === "text" || item.kind === "reasoning") characters += item.text.length;
    else if (item.kind === "tool") characters += item.bytesReceived;
  }
  return { count: Math.max(Math.ceil(characters / 4), view.usage.output_tokens ?? 0), exact: false };
}

function added(a: Usage, b: Usage): Usage {
  return {
    input_tokens: (a.input_tokens ?? 0) + (b.input_tokens ?? 0),
    output_tokens: (a.output_tokens ?? 0) + (b.output_tokens ?? 0),
    cached_tokens: (a.cached_tokens ?? 0) + (b.cached_tokens ?? 0),
    reasoning_tokens: (a.reasoning_tokens ?? 0) + (b.reasoning_tokens ?? 0),
  };
}

/** An error as part of a sentence: without the full stop it may bring. */
function trimmed(error: string): string {
  return error.trim().replace(/[.\s]+$/, "");
}
