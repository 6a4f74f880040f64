/** The server's resources by name. Shapes are in wire.ts, manners in http.ts. */
import type { Http } from "./http";
import type { Key, KeyLimits, List, Message, Model, Part, Role, Run, Session, Stopped, UsageRow } from "./wire";

export interface NewRun {
  content: Part[];
  session?: string | null;
  model?: string;
  instructions?: string;
  title?: string;
}

export interface NewKey extends Partial<KeyLimits> {
  name: string;
  role: Role;
  models?: string[];
  /** A day. */
  expires_at?: string;
}

export interface RunFilter {
  status?: string;
  model?: string;
  session_id?: string;
  before?: string;
  limit?: number;
}

export class Api {
  constructor(private readonly http: Http) {}

  models(): Promise<List<Model>> {
    return this.http.json("/v1/models");
  }

  /** Whose key this is. */
  me(): Promise<Pick<Key, "name" | "role">> {
    return this.http.json("/v1/me");
  }
  async keys(): Promise<Key[]> {
    return (await this.http.json<List<Key>>("/v1/keys")).data;
  }
  /** The answer has the key itself, this once. */
  createKey(body: NewKey): Promise<Key & { key: string }> {
    return this.http.json("/v1/keys", { method: "POST", body });
  }
  revokeKey(name: string): Promise<unknown> {
    return this.http.json(`/v1/keys/${encodeURIComponent(name)}`, { method: "DELETE" });
  }
  async usage(since: string): Promise<UsageRow[]> {
    return (await this.http.json<List<UsageRow>>(`/v1/usage?${query({ since })}`)).data;
  }

  /** `before` is the `next` of the page before. */
  sessions(search: string, before = "", limit = 50): Promise<List<Session>> {
    return this.http.json(`/v1/sessions?${query({ search, before, limit })}`);
  }
  session(id: string, signal?: AbortSignal): Promise<Session> {
    return this.http.json(`/v1/sessions/${encodeURIComponent(id)}`, { signal });
  }
  createSession(body: { title?: string; metadata?: Record<string, unknown> }): Promise<Session> {
    return this.http.json("/v1/sessions", { method: "POST", body });
  }
  updateSession(id: string, body: { title?: string; metadata?: Record<string, unknown> }): Promise<Session> {
    return this.http.json(`/v1/sessions/${encodeURIComponent(id)}`, { method: "PATCH", body });
  }
  deleteSession(id: string): Promise<unknown> {
    return this.http.json(`/v1/sessions/${encodeURIComponent(id)}`, { method: "DELETE" });
  }
  forkSession(id: string, body: { at?: number; title?: string } = {}): Promise<Session> {
    return this.http.json(`/v1/sessions/${encodeURIComponent(id)}/fork`, { method: "POST", body });
  }
  async messages(id: string, signal?: AbortSignal): Promise<Message[]> {
    return (await this.http.json<List<Message>>(`/v1/sessions/${encodeURIComponent(id)}/messages`, { signal })).data;
  }

  runs(filter: RunFilter, signal?: AbortSignal): Promise<List<Run>> {
    return this.http.json(`/v1/runs?${query({ limit: 50, ...filter })}`, { signal });
  }
  run(id: string, signal?: AbortSignal): Promise<Run> {
    return this.http.json(`/v1/runs/${id}`, { signal });
  }
  /**
   * What becomes of it when nobody reads it: it goes on, or it ends after so many seconds. The key makes it safe to ask
   * again after a lost connection.
   */
  startRun(run: NewRun, key: string, onDisconnect: "continue" | number): Promise<{ run_id: string; session_id: string }> {
    const body = { ...asBody(run), on_disconnect: onDisconnect };
    return this.http.json("/v1/runs", { method: "POST", body, headers: { "Idempotency-Key": key } });
  }
  events(id: string, after: number, signal: AbortSignal): Promise<Response> {
    return this.http.open(`/v1/runs/${id}/events${after < 0 ? "" : `?after=${after}`}`, { signal });
  }
  /** Gets through also when the page is left at the same moment. */
  stop(id: string): Promise<Stopped> {
    return this.http.json(`/v1/runs/${id}/stop`, { method: "POST", keepalive: true });
  }
  approve(id: string, call: string, approved: boolean): Promise<unknown> {
    return this.http.json(`/v1/runs/${id}/approval`, { method: "POST", body: { approved, call_id: call } });
  }
  steer(id: string, content: Part[]): Promise<unknown> {
    return this.http.json(`/v1/runs/${id}/messages`, { method: "POST", body: { content: plain(content) } });
  }
}

function asBody(run: NewRun): Record<string, unknown> {
  const body: Record<string, unknown> = { input: [{ role: "user", content: plain(run.content) }] };
  if (run.session) body["session_id"] = run.session;
  if (run.model) body["model"] = run.model;
  if (run.instructions) body["instructions"] = run.instructions;
  return body;
}

/** Text alone is sent as text. */
function plain(content: Part[]): string | Part[] {
  const [first, ...rest] = content;
  return first?.type === "text" && !rest.length ? first.text : content;
}

function query(values: Record<string, string | number | undefined>): string {
  const kept = Object.entries(values).filter(([, value]) => value !== undefined && value !== "");
  return new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
}

/** A name that nobody else will choose; also where the page is not served over a secure connection. */
export function makeKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
