/** One prompt to several models side by side; every pane is a run of its own that ends with its pane (T4). */
import { makeKey } from "../lib/api";
import { EMPTY } from "../lib/fold";
import { pause } from "../lib/follow";
import { partsOf } from "../lib/history";
import { sentence, UnreachableError } from "../lib/http";
import { settingsOf, withSettings } from "../lib/settings";
import type { Part } from "../lib/wire";
import { announcer } from "./announcer.svelte";
import { textOf } from "./chat.svelte";
import { LiveRun } from "./live.svelte";
import { models } from "./models.svelte";
import { route } from "./route.svelte";
import { api } from "./server.svelte";
import { sessions } from "./sessions.svelte";

export const FEWEST = 2;
export const MOST = 4;
/** How long a run waits for its reader: long enough for a reload, so that a closed tab still ends it. */
const GRACE_SECONDS = 3;
const STOP_MILLISECONDS = 1000;
const KEPT = "holdfast.compare";

/** One question in one pane, and its answer. */
export class Turn extends LiveRun {
  readonly key = makeKey();
  asked = $state.raw<Part[]>([]);
  /** Empty until the server has named it. */
  run = "";
}

/** What of a pane outlives a reload: the rest is in the log. */
interface KeptPane {
  model: string;
  session: string | null;
  instructions: string;
  runs: string[];
}

export class Pane {
  readonly key = makeKey();
  model = $state("");
  session = $state<string | null>(null);
  turns = $state.raw<Turn[]>([]);
  going = $state(false);
  stopping = $state(false);
  problem = $state("");
  named = Promise.resolve();
  #metadata: Record<string, unknown> = {};
  #instructions = "";
  #reading = new AbortController();
  #stopped = Promise.resolve();
  /** Aborted when the pane is closed. */
  #life = new AbortController();

  constructor(model: string) {
    this.model = model;
  }

  /** As it was before a reload: its runs are read again from their logs, and one that still goes on is read on. */
  static restore(kept: KeptPane): Pane {
    const pane = new Pane(kept.model);
    pane.session = kept.session;
    pane.#instructions = kept.instructions;
    pane.turns = kept.runs.map((run) => Object.assign(new Turn({ ...EMPTY, run }), { run }));
    void pane.#reread();
    return pane;
  }

  get #closed(): boolean {
    return this.#life.signal.aborted;
  }

  get kept(): KeptPane {
    const runs = this.turns.map((turn) => turn.run).filter(Boolean);
    return { model: this.model, session: this.session, instructions: this.#instructions, runs };
  }

  /** Resolves when the answer has ended, one way or another. */
  async ask(content: Part[], base: string | null): Promise<void> {
    const turn = Object.assign(new Turn(), { asked: content });
    const first = this.turns.length === 0;
    this.turns = [...this.turns, turn];
    Object.assign(this, { going: true, stopping: false, problem: "" });
    try {
      if (this.session === null && base !== null) await this.#copy(base);
      if (this.#closed || this.stopping) return void this.#withdraw(turn);
      const asked = { content, session: this.session, model: this.model, instructions: this.#instructions };
      const started = await api.startRun(asked, turn.key, GRACE_SECONDS);
      turn.run = started.run_id;
      this.session = started.session_id;
      if (this.#closed) return await this.#stop(turn.run);
      compare.keep();
      if (this.stopping) this.#stopped = this.#stop(turn.run);
      if (first) this.named = this.#name(`${this.model.split("/").at(-1)}: ${textOf(content).slice(0, 60)}`);
      await this.#read(turn);
    } catch (error) {
      if (!this.#closed) this.problem = sentence(error);
    } finally {
      this.going = false;
    }
  }

  async #copy(base: string): Promise<void> {
    const session = await api.forkSession(base, {});
    this.session = session.id;
    this.#metadata = session.metadata;
    this.#instructions = settingsOf(session)?.instructions ?? "";
  }

  /** Stopped before it was asked. */
  #withdraw(turn: Turn): void {
    this.turns = this.turns.filter((other) => other !== turn);
  }

  /** To the end of its log. A stream that was given up to make room for the stop is read on after it. */
  async #read(turn: Turn): Promise<void> {
    for (;;) {
      const { signal } = this.#reading;
      try {
        return await turn.follow(turn.run, signal);
      } catch (error) {
        if (!signal.aborted || this.#closed) throw error;
        await this.#stopped;
        this.#reading = new AbortController();
      }
    }
  }

  /** The newest first, as it may still be going and does not wait long for its reader. */
  async #reread(): Promise<void> {
    const last = this.turns.at(-1);
    this.going = last !== undefined;
    for (const turn of [...this.turns].reverse()) {
      try {
        await Promise.all([this.#read(turn), this.#readQuestion(turn)]);
      } catch (error) {
        if (this.#closed) return;
        this.problem = `An earlier answer cannot be read: ${sentence(error)}`;
      } finally {
        if (turn === last) this.going = false;
      }
    }
  }

  async #readQuestion(turn: Turn): Promise<void> {
    for (let wait = 0.5; ; wait = Math.min(wait * 2, 8)) {
      try {
        const { input = [] } = await api.run(turn.run, this.#life.signal);
        turn.asked = input.flatMap((message) => (message.role === "user" ? partsOf(message) : []));
        return;
      } catch (error) {
        if (!(error instanceof UnreachableError)) throw error;
        await pause(wait, this.#life.signal);
      }
    }
  }

  /** The session is a chat like others from now on, with a name and with the model that answered here. */
  async #name(title: string): Promise<void> {
    const metadata = withSettings(this.#metadata, { model: this.model, instructions: this.#instructions });
    try {
      await api.updateSession(this.session!, { title, metadata });
    } catch (error) {
      console.info(`The session ${this.session} could not be named.`, error);
    }
  }

  /** Ends the run at once and keeps what came; also before the server has named it. */
  async stop(): Promise<void> {
    if (!this.going || this.stopping) return;
    this.stopping = true;
    const run = this.turns.at(-1)?.run;
    if (!run) return;
    // A browser opens few connections to one server: should the stop not get through, its stream makes room for it.
    const late = setTimeout(() => this.#reading.abort(), STOP_MILLISECONDS);
    await (this.#stopped = this.#stop(run));
    clearTimeout(late);
  }

  async #stop(run: string): Promise<void> {
    try {
      await api.stop(run);
    } catch (error) {
      this.stopping = false;
      announcer.show(`It could not be stopped: ${sentence(error)}`);
    }
  }

  /** The pane goes away, and its run with it. */
  close(): void {
    this.#life.abort();
    this.#reading.abort();
    const run = this.turns.at(-1)?.run;
    if (this.going && run) void this.#stop(run);
  }

  async approve(call: string, approved: boolean): Promise<void> {
    try {
      await api.approve(this.turns.at(-1)!.run, call, approved);
    } catch (error) {
      announcer.show(sentence(error));
    }
  }
}

class Compare {
  panes = $state.raw<Pane[]>([]);
  /** The session whose conversation every pane begins with. */
  base = $state<string | null>(null);

  get going(): boolean {
    return this.panes.some((pane) => pane.going);
  }

  get begun(): boolean {
    return this.panes.some((pane) => pane.turns.length > 0);
  }

  /** As it was left in this tab, else empty. */
  open(base: string | null): void {
    this.base = base;
    this.panes = readKept(base).map((pane) => Pane.restore(pane));
    if (!this.panes.length) this.#fill();
  }

  /** The models have come: panes that wait for them can be made. */
  begin(): void {
    if (!this.panes.length) this.#fill();
  }

  startOver(): void {
    this.close();
    this.#fill();
  }

  /** Empty panes, one per model as far as there are models. */
  #fill(): void {
    if (!models.list.length) return;
    for (let n = 0; n < FEWEST; n++) this.add();
  }

  add(): void {
    if (this.panes.length >= MOST || this.begun) return;
    const taken = new Set(this.panes.map((pane) => pane.model));
    const model = models.list.slice(1).find(({ id }) => !taken.has(id))?.id ?? models.fallback;
    this.panes = [...this.panes, new Pane(model)];
    this.keep();
  }

  remove(pane: Pane): void {
    pane.close();
    this.panes = this.panes.filter((other) => other !== pane);
    this.keep();
  }

  choose(pane: Pane, model: string): void {
    pane.model = model;
    this.keep();
  }

  async ask(content: Part[]): Promise<void> {
    await Promise.all(this.panes.map((pane) => pane.ask(content, this.base)));
    announcer.say("All answers have ended.");
    await sessions.refreshQuietly();
  }

  async stop(): Promise<void> {
    await Promise.all(this.panes.map((pane) => pane.stop()));
  }

  /** Goes on with one answer as the chat. */
  async pick(pane: Pane): Promise<void> {
    await pane.named;
    if (pane.session) route.go("chat", pane.session);
  }

  /** Remembered by this tab alone: which panes there are, and which runs are theirs. */
  keep(): void {
    sessionStorage.setItem(keptName(this.base), JSON.stringify(this.panes.map((pane) => pane.kept)));
  }

  close(): void {
    for (const pane of this.panes) pane.close();
    this.panes = [];
  }
}

function keptName(base: string | null): string {
  return base === null ? KEPT : `${KEPT}/${base}`;
}

function readKept(base: string | null): KeptPane[] {
  return JSON.parse(sessionStorage.getItem(keptName(base)) ?? "[]") as KeptPane[];
}

export const compare = new Compare();
