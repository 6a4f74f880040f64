/** The conversation on the screen: what was said, the run that goes on, and what can be done to it (T3). */
import { makeKey } from "../lib/api";
import { endingLine } from "../lib/endings";
import { answerText, EMPTY, type RunView } from "../lib/fold";
import { pause } from "../lib/follow";
import { exchangesOf, partsOf, type PastExchange } from "../lib/history";
import { ApiError, isAbort, sentence, UnreachableError } from "../lib/http";
import { settingsOf, withSettings, type Settings } from "../lib/settings";
import type { Part, Run, Session } from "../lib/wire";
import { announcer } from "./announcer.svelte";
import { LiveRun } from "./live.svelte";
import { models } from "./models.svelte";
import { route } from "./route.svelte";
import { api } from "./server.svelte";
import { sessions } from "./sessions.svelte";

/** One question and its answer. */
export class Exchange extends LiveRun {
  /** Empty until the server has taken it. */
  run = $state("");
  lastMessage = $state<number | null>(null);

  constructor(
    readonly key: string,
    readonly asked: Part[],
    view: RunView = EMPTY,
  ) {
    super(view);
    this.run = view.run;
  }

  static past(past: PastExchange): Exchange {
    const exchange = new Exchange(makeKey(), past.asked, past.view);
    exchange.lastMessage = past.lastMessage;
    return exchange;
  }
}

export interface Refusal {
  message: string;
  /** Milliseconds since the epoch; null when the server did not say. */
  retryAt: number | null;
  content: Part[];
}

/** Endings are read from the log for this many of the newest runs that are not complete: it knows of dropped calls. */
const REREAD = 8;

class Chat {
  id = $state<string | null>(null);
  session = $state.raw<Session | null>(null);
  exchanges = $state.raw<Exchange[]>([]);
  live = $state.raw<Exchange | null>(null);
  stopping = $state(false);
  loading = $state(false);
  problem = $state("");
  refusal = $state.raw<Refusal | null>(null);
  model = $state("");
  instructions = $state("");
  #reading = new AbortController();
  #opened = Promise.resolve();

  /** Shows a session, or an empty page for a new one. Whatever was running goes on without us. */
  async open(id: string | null): Promise<void> {
    if (id !== null && id === this.id) return;
    this.close();
    const signal = this.#reading.signal;
    Object.assign(this, { id, session: null, exchanges: [], problem: "", refusal: null, instructions: "" });
    this.model = models.chosen;
    if (id === null) return;
    await (this.#opened = this.#load(id, signal));
  }

  /** The server is back: what could not be read before is read now. */
  async reopen(): Promise<void> {
    const id = this.id;
    if (!this.problem || id === null) return;
    this.close();
    await this.open(id);
  }

  /** Leaves the session; its run goes on. */
  close(): void {
    this.#reading.abort();
    this.#reading = new AbortController();
    Object.assign(this, { id: null, live: null, stopping: false, loading: false });
  }

  async #load(id: string, signal: AbortSignal): Promise<void> {
    this.loading = true;
    try {
      await this.#read(id, signal);
    } catch (error) {
      if (!signal.aborted) this.problem = sentence(error);
    } finally {
      if (!signal.aborted) this.loading = false;
    }
  }

  async #read(id: string, signal: AbortSignal): Promise<void> {
    const [session, messages, runs] = await Promise.all([
      api.session(id, signal),
      api.messages(id, signal),
      api.runs({ session_id: id, limit: 100 }, signal),
    ]);
    signal.throwIfAborted();
    this.session = session;
    const settings = settingsOf(session);
    this.model = settings?.model ?? models.chosen;
    this.instructions = settings?.instructions ?? "";
    const known = new Map(runs.data.map((run) => [run.id, run]));
    const active = session.active_run;
    const past = exchangesOf(messages, known).filter((exchange) => exchange.run !== active);
    this.exchanges = past.map((exchange) => Exchange.past(exchange));
    void this.#reread(known, signal);
    if (active) await this.#attach(active, signal);
  }

  /** Saved messages do not say everything about an answer that is not whole; its log does. */
  async #reread(runs: Map<string, Run>, signal: AbortSignal): Promise<void> {
    const partial = this.exchanges.filter((exchange) => {
      const outcome = exchange.view.outcome?.outcome;
      return outcome !== undefined && outcome !== "completed" && runs.has(exchange.run);
    });
    for (const exchange of partial.slice(-REREAD)) {
      const again = new LiveRun();
      try {
        await again.follow(exchange.run, signal);
      } catch (error) {
        if (signal.aborted) return;
        console.info(`The log of ${exchange.run} cannot be read; its saved messages are shown.`, error);
        continue;
      }
      exchange.view = again.view;
    }
  }

  async #attach(run: string, signal: AbortSignal): Promise<void> {
    const { input = [] } = await api.run(run, signal);
    signal.throwIfAborted();
    // The list of sessions and this one may both have told of it meanwhile.
    if (this.exchanges.some((exchange) => exchange.run === run)) return;
    const asked = input.flatMap((message) => (message.role === "user" ? partsOf(message) : []));
    const exchange = new Exchange(run, asked, { ...EMPTY, run });
    this.exchanges = [...this.exchanges, exchange];
    void this.#follow(exchange, signal);
  }

  /** A run of this session that was begun elsewhere: in another window, or by a program. */
  async join(run: string): Promise<void> {
    if (this.live || this.loading || this.exchanges.some((exchange) => exchange.run === run)) return;
    const signal = this.#reading.signal;
    try {
      await this.#attach(run, signal);
    } catch (error) {
      if (!signal.aborted) console.info(`${run} cannot be followed.`, error);
    }
  }

  /** The list has it under another name: it was renamed, here or elsewhere. */
  renamed(title: string): void {
    if (title && this.session && this.session.title !== title) this.session = { ...this.session, title };
  }

  /** What somebody writes: a question, or a word to the run that goes on. A chat that is being opened is waited for. */
  async say(content: Part[]): Promise<void> {
    const signal = this.#reading.signal;
    if (this.loading) {
      await this.#opened;
      if (signal.aborted) return tellUnsent(content);
      if (this.problem) return void (this.refusal = { message: this.problem, retryAt: null, content });
    }
    await (this.live?.run ? this.#steer(content) : this.#send(content));
  }

  /** Asks; the answer goes on whether or not anybody watches. */
  async #send(content: Part[]): Promise<void> {
    const exchange = new Exchange(makeKey(), content);
    const signal = this.#reading.signal;
    this.refusal = null;
    this.exchanges = [...this.exchanges, exchange];
    this.live = exchange;
    try {
      const settings = { model: this.model, instructions: this.instructions };
      const session = this.id ?? (await this.#createSession(settings, signal));
      const started = await this.#start({ content, session, ...settings }, exchange.key, signal);
      exchange.run = started.run_id;
      signal.throwIfAborted();
      this.id = started.session_id;
      if (route.view === "chat") route.rename("chat", started.session_id);
      announcer.say("The answer is on its way.");
      if (this.stopping) void this.#stop(exchange);
      void this.#refresh(signal);
      await this.#follow(exchange, signal);
    } catch (error) {
      if (!signal.aborted) this.#refuse(exchange, error);
      else if (exchange.run) void sessions.refreshQuietly();
      else tellUnsent(content);
    }
  }

  /**
   * A lost connection is no answer: ask again under the same key until there is one. What has been sent is sent,
   * also for somebody who looks at another chat meanwhile.
   */
  async #start(run: Parameters<typeof api.startRun>[0], key: string, signal: AbortSignal) {
    for (let wait = 0.5; ; wait = Math.min(wait * 2, 8)) {
      try {
        return await api.startRun(run, key, "continue");
      } catch (error) {
        if (!(error instanceof UnreachableError) || this.stopping) throw error;
        await pause(wait, signal);
      }
    }
  }

  /** Only a session that exists can remember its model and its instructions. */
  async #createSession(settings: Settings, signal: AbortSignal): Promise<string | null> {
    if (!settings.instructions && !settings.model) return null;
    const session = await api.createSession({ metadata: withSettings({}, settings) });
    if (!signal.aborted) this.session = session;
    return session.id;
  }

  #refuse(exchange: Exchange, error: unknown): void {
    this.exchanges = this.exchanges.filter((other) => other !== exchange);
    this.live = null;
    this.stopping = false;
    const wait = error instanceof ApiError ? error.retrySeconds : null;
    const retryAt = wait === null ? null : Date.now() + wait * 1000;
    this.refusal = { message: sentence(error), retryAt, content: exchange.asked };
    announcer.say(`Not sent. ${this.refusal.message}`);
  }

  async #follow(exchange: Exchange, signal: AbortSignal): Promise<void> {
    this.live = exchange;
    try {
      await exchange.follow(exchange.run, signal);
    } catch (error) {
      if (signal.aborted || isAbort(error)) return;
      this.problem = `The answer cannot be followed: ${sentence(error)}`;
    }
    if (this.live === exchange) Object.assign(this, { live: null, stopping: false });
    const outcome = exchange.view.outcome;
    if (outcome) announcer.say(endingLine(outcome) || "The answer is complete.");
    await this.#refresh(signal);
  }

  /** Its title and message ids, and whether another run has begun: here the second of two, or in another window. */
  async #refresh(signal: AbortSignal): Promise<void> {
    void sessions.refreshQuietly();
    const id = this.id;
    if (id === null || signal.aborted) return;
    try {
      const [session, messages] = await Promise.all([api.session(id, signal), api.messages(id, signal)]);
      signal.throwIfAborted();
      this.session = session;
      for (const { id: message, run_id: run } of messages) {
        const exchange = this.exchanges.find((other) => other.run === run);
        if (exchange && message !== undefined) exchange.lastMessage = message;
      }
      const next = session.active_run;
      if (next && !this.exchanges.some((exchange) => exchange.run === next)) await this.#attach(next, signal);
    } catch (error) {
      if (!signal.aborted) console.info("The session could not be read again.", error);
    }
  }

  /** Reaches the model before its next turn; sent as a question of its own when the run has just ended. */
  async #steer(content: Part[]): Promise<void> {
    const exchange = this.live;
    if (!exchange?.run) return;
    try {
      await api.steer(exchange.run, content);
      announcer.show("Sent. The model reads it before its next step.");
    } catch (error) {
      if (error instanceof ApiError && error.status === 409) return this.#send(content);
      this.refusal = { message: sentence(error), retryAt: null, content };
    }
  }

  /** Valid at any moment, also before the server has named the run. */
  async stop(): Promise<void> {
    if (!this.live || this.stopping) return;
    this.stopping = true;
    announcer.say("Stopping.");
    if (this.live.run) await this.#stop(this.live);
  }

  async #stop(exchange: Exchange): Promise<void> {
    try {
      const { stopped } = await api.stop(exchange.run);
      if (!stopped) announcer.show("It had already ended."); // else the answer says what was kept
    } catch (error) {
      this.stopping = false;
      announcer.show(`It could not be stopped: ${sentence(error)}`);
    }
  }

  async approve(run: string, call: string, approved: boolean): Promise<void> {
    try {
      await api.approve(run, call, approved);
      announcer.say(approved ? "Approved." : "Denied.");
    } catch (error) {
      announcer.show(sentence(error));
    }
  }

  /** Remembered with the session, so that it is the same after a reload. */
  async keepSettings(model: string, instructions: string): Promise<void> {
    this.model = model;
    this.instructions = instructions;
    models.choose(model);
    if (!this.session) return;
    const metadata = withSettings(this.session.metadata, { model, instructions });
    try {
      this.session = await api.updateSession(this.session.id, { metadata });
    } catch (error) {
      announcer.show(`The settings of this chat could not be saved: ${sentence(error)}`);
    }
  }

  get title(): string {
    return this.session?.title || (this.exchanges[0] ? textOf(this.exchanges[0].asked).slice(0, 60) : "New chat");
  }
}

function tellUnsent(content: Part[]): void {
  announcer.show(`Not sent, as you left the chat before the server could be reached: "${textOf(content).slice(0, 60)}"`);
}

export function textOf(parts: Part[]): string {
  return parts.map((part) => (part.type === "text" ? part.text : "")).join("\n");
}

/** The answer as it would be copied. */
export function copyText(exchange: Exchange): string {
  return answerText(exchange.view);
}

export const chat = new Chat();
