/** One way to ask the server: the key goes along, errors have names, a refused key is asked for again. */

/** The server answered, and the answer is no. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code: string | null = null,
    /** When to try again, if the server said so. */
    readonly retrySeconds: number | null = null,
  ) {
    super(message);
    this.name = "ApiError";
  }
}

/** There was no answer at all. */
export class UnreachableError extends Error {
  constructor(cause: unknown) {
    super("The server cannot be reached.", { cause });
    this.name = "UnreachableError";
  }
}

export interface Hooks {
  key(): string | null;
  /** Resolves once there is another key than the one that was refused. */
  refused(key: string | null): Promise<void>;
  reached(): void;
  unreachable(): void;
}

export interface Ask {
  method?: "GET" | "POST" | "PATCH" | "DELETE";
  body?: unknown;
  headers?: Record<string, string>;
  keepalive?: boolean;
  signal?: AbortSignal | undefined;
}

export class Http {
  constructor(private readonly hooks: Hooks) {}

  async json<T>(path: string, ask: Ask = {}): Promise<T> {
    const response = await this.open(path, ask);
    return (await response.json()) as T;
  }

  /** The response once its headers are there. Throws ApiError, UnreachableError, or the signal's AbortError. */
  async open(path: string, ask: Ask = {}): Promise<Response> {
    for (;;) {
      const key = this.hooks.key();
      const response = await this.#fetch(path, ask, key);
      if (isGateway(response)) this.hooks.unreachable();
      else this.hooks.reached();
      if (response.ok) return response;
      if (response.status !== 401) throw await asError(response);
      await response.body?.cancel();
      await this.hooks.refused(key);
      ask.signal?.throwIfAborted();
    }
  }

  async #fetch(path: string, ask: Ask, key: string | null): Promise<Response> {
    // Whatever dialect the server's other clients speak, the page speaks the server's own.
    const headers: Record<string, string> = { "X-Holdfast-Dialect": "holdfast", ...ask.headers };
    if (key) headers["Authorization"] = `Bearer ${key}`;
    if (ask.body !== undefined) headers["Content-Type"] = "application/json";
    try {
      return await fetch(path, {
        method: ask.method ?? "GET",
        headers,
        body: ask.body === undefined ? null : JSON.stringify(ask.body),
        signal: ask.signal ?? null,
        keepalive: ask.keepalive ?? false,
        cache: "no-store",
      });
    } catch (error) {
      if (ask.signal?.aborted) throw error;
      this.hooks.unreachable();
      throw new UnreachableError(error);
    }
  }
}

/** Somebody in between answered, as the server did not. */
export function isGateway(response: Response): boolean {
  const says = response.headers.get("Content-Type") ?? "";
  return [502, 503, 504].includes(response.status) && !says.includes("json");
}

async function asError(response: Response): Promise<ApiError> {
  let message = `The server answered ${response.status} ${response.statusText}`.trim() + ".";
  let code: string | null = null;
  try {
    const body = (await response.json()) as { error?: { message?: string; code?: string | null } };
    message = body.error?.message ?? message;
    code = body.error?.code ?? null;
  } catch {
    // Not the server's own envelope: a proxy in between answered. The status says what there is to say.
  }
  const wait = Number(response.headers.get("Retry-After"));
  return new ApiError(response.status, message, code, Number.isFinite(wait) && wait > 0 ? wait : null);
}

/** A sentence for a person, whatever was thrown. */
export function sentence(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}
