/** What the server says over HTTP, word for word. Nothing here belongs to the page. */

export interface Usage {
  input_tokens?: number;
  output_tokens?: number;
  total_tokens?: number;
  cached_tokens?: number;
  reasoning_tokens?: number;
}

export type OutcomeName = "completed" | "incomplete" | "failed" | "cancelled" | "requires_action";
export const LIVE_STATUSES = ["queued", "running", "waiting_approval"] as const;
export type RunStatus = (typeof LIVE_STATUSES)[number] | OutcomeName;

export interface Outcome {
  outcome: OutcomeName;
  reason?: string;
  message?: string;
  status?: number;
  code?: string;
  retry_after_seconds?: number;
  /** Of a run in a list, which does not tell the status: what the provider's no is about. */
  error_type?: string;
}

export interface OpenApproval {
  call_id: string;
  tool: string;
  arguments: string;
  expires_at: number;
}

export interface Run {
  id: string;
  status: RunStatus;
  outcome: OutcomeName | null;
  reason: string | null;
  message: string | null;
  /** What the provider's no is about, of a run that failed. */
  error?: { type: string; code: string | null } | null;
  session_id: string;
  /** What it was asked for by: a model, or an agent. */
  model: string;
  /** The model that is answering, or answered last. */
  answered_by?: string;
  /** The run whose agent has asked for this one. */
  parent_run_id?: string | null;
  /** The server that has it, where several share a store. */
  replica?: string;
  surface: string;
  created_at: number;
  ended_at: number | null;
  usage: Usage;
  text: string;
  events: number;
  approvals: OpenApproval[];
  metadata: Record<string, unknown>;
  input?: Message[];
}

export interface Session {
  id: string;
  title: string;
  created_at: number;
  updated_at: number;
  runs: number;
  active_run: string | null;
  metadata: Record<string, unknown>;
}

export interface Model {
  id: string;
  owned_by?: string;
  /** Of an agent: the model behind it. */
  answered_by?: string;
}

export interface List<T> {
  data: T[];
  has_more?: boolean;
  /** Where the next page begins. */
  next?: string | null;
}

export type Part =
  | { type: "text"; text: string }
  | { type: "image_url"; image_url: { url: string } };

export interface Message {
  id?: number;
  run_id?: string;
  created_at?: number;
  /** "unknown": what is stored cannot be read, and `content` says so. */
  role: "user" | "assistant" | "tool" | "system" | "developer" | "unknown";
  content: string | Part[] | null;
  reasoning_content?: string;
  tool_calls?: { id: string; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
  name?: string;
  failed?: boolean;
  /** Of a tool's result: was it carried out? Absent where it was. */
  executed?: "no" | "unknown";
  /** How an answer ended that is not whole; absent where it is. */
  outcome?: OutcomeName;
  reason?: string | null;
}

export interface Stopped {
  run_id: string;
  stopped: boolean;
  status: RunStatus;
  outcome: OutcomeName | null;
  reason: string | null;
  text: string;
}

/** Who answered an approval: a person, a client that has nobody to ask, the time that was up, the run's end. */
export type AnsweredBy = "client" | "nobody" | "timeout" | "stop";
type Executed = "yes" | "no" | "unknown";
type At = { at: number };

/** The events of a run's log. Fields that have their default value are left out by the server. */
export type RunEvent = At &
  (
    | { type: "run.started"; run: string; session: string; model: string }
    | { type: "turn.started"; turn: number; model: string }
    | { type: "text.added"; text: string }
    | { type: "reasoning.added"; text: string; summary?: boolean }
    | { type: "reasoning.signed" }
    | { type: "tool_call.began"; index: number; call_id: string; name: string }
    | { type: "tool_call.arguments_added"; index: number; bytes: number }
    | { type: "tool_call.annotated"; index: number }
    | { type: "tool_call.ready"; call_id: string; name: string; arguments: string }
    | { type: "tool_call.dropped"; call_id: string; name: string; bytes_received: number; executed: Executed }
    | { type: "upstream.retried"; model: string; attempt: number; error: string; wait_seconds: number }
    | { type: "upstream.fell_back"; from_model: string; to_model: string; error: string }
    | { type: "upstream.answered"; finish: string; model: string; usage?: Usage }
    | { type: "turn.cut"; turn: number; error: string }
    | { type: "tool.started"; call_id: string; name: string; arguments: string; label: string; repeatable?: boolean }
    | {
        type: "tool.finished";
        call_id: string;
        name: string;
        output: string;
        failed?: boolean;
        seconds?: number;
        executed: Executed;
      }
    | { type: "approval.asked"; call_id: string; name: string; arguments: string; seconds: number }
    | { type: "approval.answered"; call_id: string; approved: boolean; by: AnsweredBy }
    | { type: "message.added"; message: { parts: LogPart[] } }
    | { type: "run.warned"; message: string }
    | { type: "run.delegated"; call_id: string; run: string; agent: string }
    | { type: "usage.added"; usage: Usage }
    | { type: "run.handed_over" }
    | { type: "run.resumed"; attempt: number; reason: "server_restart" | "handed_over"; cut?: string; repeated?: string[] }
    | { type: "run.ended"; outcome: Outcome; usage?: Usage }
  );

/** Parts of a message as the log keeps them. */
export type LogPart = { type: "text"; text: string } | { type: "image"; url: string };

export interface Numbered {
  number: number;
  event: RunEvent;
}

export type Role = "user" | "viewer" | "admin";

/** What a key may use; null: as much as it likes. */
export interface KeyLimits {
  requests_per_minute: number | null;
  concurrent_runs: number | null;
  tokens_per_day: number | null;
  cost_per_day: number | null;
  stored_bytes: number | null;
}

/** A key of a team, without the key itself. */
export interface Key extends KeyLimits {
  name: string;
  role: Role;
  models: string[] | null;
  created_at: number | null;
  expires_at: number | null;
  /** In holdfast.toml, where alone it can be taken out. */
  declared: boolean;
}

/** What one key used on one day, of one model. */
export interface UsageRow {
  day: string;
  key: string;
  agent: string;
  model: string;
  requests: number;
  input_tokens: number;
  cached_tokens: number;
  output_tokens: number;
  /** Only where a price is known. */
  cost?: number;
}
