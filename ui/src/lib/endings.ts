/** How a run's end is put to a person: one table (R2), the same words in chat, compare and runs. */
import type { Outcome, OutcomeName } from "./wire";
import { count } from "./words";

/** What would help: ask the model to go on, or send the same again. */
type Remedy = "continue" | "retry" | null;
type Tone = "warning" | "error" | "neutral";

export interface Ending {
  title: string;
  /** In the server's or the provider's words where they say more than the reason does; empty: the title says it all. */
  why: string;
  kept: string;
  /** What the reader can do about it; empty where the button beside it says all. */
  advice: string;
  /** When the provider wants to be asked again, in seconds from the end; null: it did not say. */
  retrySeconds: number | null;
  remedy: Remedy;
  tone: Tone;
}

interface Row {
  title: string;
  why: string;
  remedy: Remedy;
  tone: Tone;
}

const cut = (why: string, remedy: Remedy = "continue"): Row => ({ title: "Not finished", why, remedy, tone: "warning" });
const failed = (title: string, why = ""): Row => ({ title, why, remedy: "retry", tone: "error" });
const stopped = (why: string, tone: Tone = "warning"): Row => ({ title: "Stopped", why, remedy: "continue", tone });
const waiting = (title: string, why: string): Row => ({ title, why, remedy: null, tone: "neutral" });

/** The sentences are those of the server (outcomes.py), so that page, terminal and API say the same. */
const ENDINGS: Record<Exclude<OutcomeName, "completed">, Record<string, Row>> = {
  incomplete: {
    max_output_tokens: cut("The answer was cut off: the model reached its output limit."),
    content_filter: cut("The answer was cut off by the provider's content filter.", "retry"),
    max_turns: cut("The run used up its model turns before the task was done."),
    max_tool_calls: cut("The run used up its tool calls before the task was done."),
    stream_interrupted: cut("The connection to the model was lost before the answer was whole."),
    server_restart: cut("The server was restarted before the run had ended."),
    "": cut("The answer is not whole."),
  },
  failed: {
    upstream_error: failed("The provider reported an error"),
    upstream_disconnected: failed("The model could not be reached"),
    internal: failed("Failed inside the server"),
    "": failed("Failed"),
  },
  cancelled: {
    user: { ...stopped("", "neutral"), title: "Stopped on request" },
    client_disconnect: stopped("The client left before the run ended."),
    timeout: stopped("The run reached its time limit."),
    shutdown: stopped("The server was shut down while the run was going."),
    replaced: stopped("A newer run on the same session replaced this one.", "neutral"),
    "": stopped("The run was cancelled."),
  },
  requires_action: {
    client_tools: waiting(
      "Waiting for another program",
      "The model called tools that the program which started this run has to carry out.",
    ),
    approval: waiting("Waiting for approval", "The run goes on when somebody approves or denies what it wants to do."),
    "": waiting("Waiting", "The run waits for whoever started it."),
  },
};

const CREDIT = "Check the account's credit with the provider.";
const TOO_LONG = "The conversation is too long for this model: begin a new chat, or choose a model with more room.";
/** What a provider's no is about, and what to do about it, by its code and then by its status. */
const BY_CODE: Record<string, string> = { insufficient_quota: CREDIT, context_length_exceeded: TOO_LONG };
const BY_STATUS: Record<number, string> = {
  401: "Check this provider's API key in the server's settings.",
  402: CREDIT,
  403: "Check whether this provider's API key may use the model.",
  404: "Check the model's name, and the provider's address in the server's settings.",
  413: TOO_LONG,
};

/** Where a list says no more. */
const BY_TYPE: Record<string, number> = { authentication_error: 401, invalid_request_error: 400, rate_limit_error: 429 };

/** What to say of an ending that is not success; null for the one that is. */
export function ending(outcome: Outcome, keptCharacters: number): Ending | null {
  if (outcome.outcome === "completed") return null;
  const row = rowOf(outcome);
  const refused = outcome.outcome === "failed" && outcome.reason === "upstream_error" ? refusal(outcome) : null;
  // A stop needs no reason beside itself; elsewhere the server may know more than the reason says.
  const said = outcome.reason === "user" ? "" : outcome.message || row.why;
  const kept = keptCharacters
    ? `What had arrived is kept: ${count(keptCharacters, "character")}.`
    : outcome.outcome === "failed" || row.remedy === null
      ? ""
      : "No text had arrived yet.";
  return {
    title: `${refused?.title ?? row.title}${outcome.status ? ` (status ${outcome.status})` : ""}`,
    why: asSentence(said),
    kept,
    advice: refused?.advice ?? "",
    retrySeconds: refused?.retrySeconds ?? null,
    // Nothing to go on from: the same is asked again.
    remedy: row.remedy === "continue" && !keptCharacters ? "retry" : row.remedy,
    tone: row.tone,
  };
}

/** The same in a list: in one line, without what is kept and what to do. */
export function endingLine(outcome: Outcome): string {
  const told = ending(outcome, 0);
  return told ? `${told.title}. ${told.why}`.trim() : "";
}

function rowOf({ outcome, reason = "" }: Outcome): Row {
  const rows = ENDINGS[outcome as keyof typeof ENDINGS] as Record<string, Row> | undefined;
  // A newer server may end a run in a way that this page does not know: that is no success either.
  return rows?.[reason] ?? rows?.[""] ?? cut(`The run ended as "${outcome}".`, null);
}

/** The provider answered, and the answer is no: that is no broken stream. Null: there is only its message. */
function refusal(outcome: Outcome): Pick<Ending, "title" | "advice" | "retrySeconds"> | null {
  const status = outcome.status ?? BY_TYPE[outcome.error_type ?? ""] ?? 0;
  const retrySeconds = outcome.retry_after_seconds ?? null;
  const advice = BY_CODE[outcome.code ?? ""] ?? BY_STATUS[status] ?? "";
  if (!advice && status === 429) {
    return { title: "Rate limited by the provider", advice: "Try again in a moment.", retrySeconds };
  }
  if (!advice && (status >= 500 || status === 408)) {
    return { title: ENDINGS.failed["upstream_error"]!.title, advice: "It may work in a moment.", retrySeconds };
  }
  return status || advice ? { title: "Refused by the provider", advice, retrySeconds: null } : null;
}

function asSentence(text: string): string {
  const trimmed = text.trim();
  return !trimmed || /[.!?…:)"'”]$/.test(trimmed) ? trimmed : `${trimmed}.`;
}
