/** How things are put to a person: endings, durations, numbers, times. */
import type { ToolItem, ToolState } from "./fold";
import { LIVE_STATUSES, type Outcome, type RunStatus } from "./wire";

export interface Ending {
  title: string;
  detail: string;
  /** What would help: ask the model to go on, or send the same again. */
  remedy: "continue" | "retry" | null;
  tone: "warning" | "error" | "neutral";
}

const INCOMPLETE: Record<string, string> = {
  max_output_tokens: "The model reached its output limit.",
  content_filter: "The provider's content filter cut the answer off.",
  max_turns: "The run used up its model turns before the task was done.",
  max_tool_calls: "The run used up its tool calls before the task was done.",
  stream_interrupted: "The connection to the model was lost.",
  server_restart: "The server was restarted while this run was going.",
};
const FAILED: Record<string, string> = {
  upstream_error: "The model's provider reported an error.",
  upstream_disconnected: "The model could not be reached.",
  internal: "Something went wrong inside the server.",
};
const CANCELLED: Record<string, string> = {
  client_disconnect: "The connection to this run was closed.",
  timeout: "The run reached its time limit.",
  shutdown: "The server was shut down while this run was going.",
  replaced: "A newer message replaced this run.",
};

/** What to say of an ending that is not success; null for the one that is. */
export function ending(outcome: Outcome, keptCharacters: number): Ending | null {
  const kept = keptCharacters
    ? `What had arrived is kept: ${count(keptCharacters, "character")}.`
    : "No text had arrived yet.";
  switch (outcome.outcome) {
    case "completed":
      return null;
    case "incomplete": {
      const why = outcome.message || INCOMPLETE[outcome.reason ?? ""] || "The answer is not whole.";
      const remedy = outcome.reason === "content_filter" ? "retry" : "continue";
      return { title: "Not finished", detail: `${why} ${kept}`, remedy, tone: "warning" };
    }
    case "failed": {
      const status = outcome.status ? ` (status ${outcome.status})` : "";
      const why = outcome.message || FAILED[outcome.reason ?? ""] || "The run failed.";
      return { title: "Failed", detail: `${why}${status} ${keptCharacters ? kept : ""}`.trim(), remedy: "retry", tone: "error" };
    }
    case "cancelled": {
      const why = outcome.message || CANCELLED[outcome.reason ?? ""] || "The run was cancelled.";
      const remedy = keptCharacters ? "continue" : "retry";
      if (outcome.reason === "user") return { title: "Stopped on request", detail: kept, remedy, tone: "neutral" };
      return { title: "Stopped", detail: `${why} ${kept}`, remedy, tone: "neutral" };
    }
    case "requires_action":
      return {
        title: "Waiting for another program",
        detail: "The model called tools that the program which started this run has to carry out.",
        remedy: null,
        tone: "neutral",
      };
  }
}

export const TOOL_WORDS: Record<ToolState, string> = {
  writing: "being written",
  ready: "about to start",
  asking: "needs your approval",
  running: "running",
  done: "done",
  failed: "failed",
  denied: "denied",
  not_run: "not carried out",
  dropped: "not carried out",
  unknown: "interrupted",
  handed_over: "for the client",
};

/** The sentence under a card whose call did not simply run. */
export function toolRemark(tool: ToolItem): string | null {
  switch (tool.state) {
    case "dropped":
      return (
        `The stream broke while this call was being written (${bytes(tool.bytesReceived || tool.arguments.length)} ` +
        "had arrived). The action was not carried out."
      );
    case "denied":
      if (tool.approval?.by === "timeout") return "Nobody answered in time, so it was denied.";
      if (tool.approval?.by === "nobody") return "There was nobody to ask, so it was denied.";
      if (tool.approval?.by === "stop") return "The run was stopped before anybody answered.";
      return "Denied. The action was not carried out.";
    case "not_run":
      return tool.output || "The run ended before this call began. The action was not carried out.";
    case "unknown":
      return "It was running when the run was stopped. Whether it finished is not known; look before you repeat it.";
    default:
      return null;
  }
}

export const STATUS_WORDS: Record<RunStatus, string> = {
  queued: "Queued",
  running: "Running",
  waiting_approval: "Needs approval",
  completed: "Completed",
  incomplete: "Not finished",
  failed: "Failed",
  cancelled: "Stopped",
  requires_action: "Waits for client",
};

export function isGoing(status: RunStatus): boolean {
  return (LIVE_STATUSES as readonly string[]).includes(status);
}

export function duration(seconds: number): string {
  if (seconds < 0.0005) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function bytes(n: number): string {
  return n < 1024 ? count(n, "byte") : `${(n / 1024).toFixed(1)} kB`;
}

export function count(n: number, noun: string): string {
  return `${number(n)} ${noun}${n === 1 ? "" : "s"}`;
}

export function number(n: number): string {
  return n.toLocaleString("en");
}

/** The beginning of a Markdown text in one line, without its marks. */
export function preview(text: string): string {
  const bare = text.slice(0, 400).replace(/```\w*|\|?[ :]*-{3,}[ :]*\|?|[|>#]+/g, " ").replace(/[*`~]+/g, "");
  return bare.replace(/\s+/g, " ").trim().slice(0, 160);
}

const DAY_SECONDS = 86_400;

/** Under which heading a session is listed. */
export function day(at: number, now: number): string {
  const midnight = new Date(now * 1000).setHours(0, 0, 0, 0) / 1000;
  if (at >= midnight) return "Today";
  if (at >= midnight - DAY_SECONDS) return "Yesterday";
  if (at >= midnight - 6 * DAY_SECONDS) return "This week";
  return new Date(at * 1000).toLocaleDateString("en", { month: "long", year: "numeric" });
}

export function clock(at: number): string {
  const date = new Date(at * 1000);
  const time = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return Date.now() / 1000 - at < DAY_SECONDS / 2 ? time : `${date.toLocaleDateString("en-CA")} ${time}`;
}
