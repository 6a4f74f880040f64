/** How things are put to a person: tools, states, durations, numbers, times. How a run ended is in endings.ts. */
import type { ToolItem, ToolState } from "./fold";
import { LIVE_STATUSES, type RunStatus } from "./wire";

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

/** What is said of a run that goes on after its server was gone (R15). */
export function resumedLine(reason: "server_restart" | "handed_over"): string {
  return reason === "handed_over" ? "The server was stopped; the run goes on." : "The server was gone; the run goes on.";
}

/** The sentence under a card whose call did not simply run. */
export function toolRemark(tool: ToolItem): string | null {
  switch (tool.state) {
    case "dropped":
      return (
        `The answer ended while this call was being written (${bytes(tool.bytesReceived || tool.arguments.length)} ` +
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
      return "It was running when it was cut off. Whether it finished is not known; look before you repeat it.";
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

/** Tokens as the provider counted them; providers need not. */
export function counted(tokens: number | undefined): string {
  return tokens ? number(tokens) : "–";
}

/** Tokens of output: the provider's count, or what they are about. */
export function tokenWords({ count, exact }: { count: number; exact: boolean }): string {
  return exact ? number(count) : `≈ ${number(count)}`;
}

const REMINDER = ["<system-reminder>", "</system-reminder>"] as const;

/** What a person said, and the instructions that their client put beside it for the model, as Claude Code does. */
export function splitReminders(text: string): { said: string; beside: string } {
  const said: string[] = [];
  const beside: string[] = [];
  let at = 0;
  for (;;) {
    const begin = text.indexOf(REMINDER[0], at);
    const end = begin < 0 ? -1 : text.indexOf(REMINDER[1], begin);
    if (end < 0) break;
    said.push(text.slice(at, begin));
    beside.push(text.slice(begin + REMINDER[0].length, end).trim());
    at = end + REMINDER[1].length;
  }
  if (!beside.length) return { said: text, beside: "" };
  said.push(text.slice(at));
  return { said: said.map((piece) => piece.trim()).filter(Boolean).join("\n"), beside: beside.join("\n\n") };
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
