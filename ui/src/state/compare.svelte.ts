/** One prompt to several models side by side; every pane is a run of its own that ends with its pane (T4). */
import { makeKey } from "../lib/api";
import { isAbort, sentence } from "../lib/http";
import { settingsOf, withSettings } from "../lib/settings";
import type { Part } from "../lib/wire";
import { announcer } from "./announcer.svelte";
import { LiveRun } from "./live.svelte";
import { models } from "./models.svelte";
import { route } from "./route.svelte";
import { api } from "./server.svelte";
import { sessions } from "./sessions.svelte";
import { textOf } from "./chat.svelte";

export const FEWEST = 2;
export const MOST = 4;
const STOP_MILLISECONDS = 1000;
const VERDICT_MILLISECONDS = 5000;

/** One question in one pane, and its answer. */
export class Turn extends LiveRun {
  readonly key = makeKey();
  constructor(readonly asked: Part[]) {
    super();
  }
}

export class Pane {
  readonly key = makeKey();
  model = $state("");
  session = $state<string | null>(null);
  turns = $state.raw<Turn[]>([]);
  going = $state(false);
  problem = $state("");
  named = Promise.resolve();
  #metadata: Record<string, unknown> = {};
  #instructions = "";
  #reading: AbortController | null = null;

  constructor(model: string) {
    this.model = model;
  }

  /** Resolves when the answer has ended, one way or another. */
  async ask(content: Part[], base: string | null): Promise<void> {
    const reading = (this.#reading = new AbortController());
    const turn = new Turn(content);
    this.turns = [...this.turns, turn];
    Object.assign(this, { going: true, problem: "" });
    try {
      if (this.session === null && base !== null) await this.#copy(base);
      reading.signal.throwIfAborted();
      const run = { content, session: this.session, model: this.model, instructions: this.#instructions };
      const response = await api.attachRun(run, reading.signal);
      if (!(await turn.read(response, reading.signal))) await this.#verdict(turn, reading.signal);
    } catch (error) {
      if (reading.signal.aborted || isAbort(error) || turn.view.run) await this.#verdict(turn, reading.signal);
      else this.problem = sentence(error);
    } finally {
      this.session ??= turn.view.session || null;
      this.going = false;
    }
  }

  async #copy(base: string): Promise<void> {
    const session = await api.forkSession(base, {});
    this.session = session.id;
    this.#metadata = session.metadata;
    this.#instructions = settingsOf(session)?.instructions ?? "";
  }

  /** The session is a chat like others from now on, with a name and with the model that answered here. */
  async name(title: string): Promise<void> {
    if (!this.session) return;
    const metadata = withSettings(this.#metadata, { model: this.model, instructions: this.#instructions });
    try {
      await api.updateSession(this.session, { title, metadata });
    } catch (error) {
      console.info(`The session ${this.session} could not be named.`, error);
    }
  }

  /** The run that goes on now; empty until the server has named it. */
  get #run(): string {
    return this.turns.at(-1)?.view.run ?? "";
  }

  /** The stream broke before the end was told. The log knows how it ended; without it we only know that it did. */
  async #verdict(turn: Turn, leaving: AbortSignal): Promise<void> {
    const lost = { outcome: "cancelled", reason: "client_disconnect" } as const;
    const again = new LiveRun(turn.view);
    try {
      // Whoever leaves to end a run must not look at it: a reader keeps it going.
      if (turn.view.run && !leaving.aborted) await again.follow(turn.view.run, AbortSignal.timeout(VERDICT_MILLISECONDS));
      turn.view = again.view.outcome ? again.view : { ...again.view, outcome: lost };
    } catch (error) {
      console.info(`How ${turn.view.run} ended could not be read.`, error);
      turn.view = { ...turn.view, outcome: lost };
    }
  }

  /** Ends the run at once and keeps what came. Closing the connection does the same, should the request not get through. */
  async stop(): Promise<void> {
    if (!this.going) return;
    const reading = this.#reading;
    if (!this.#run) return reading?.abort();
    const late = setTimeout(() => reading?.abort(), STOP_MILLISECONDS);
    try {
      await api.stop(this.#run);
      clearTimeout(late);
    } catch (error) {
      clearTimeout(late);
      reading?.abort();
      announcer.show(`Stopped by closing the connection: ${sentence(error)}`);
    }
  }

  /** The pane goes away, and its run with it. */
  close(): void {
    this.#reading?.abort();
  }

  async approve(call: string, approved: boolean): Promise<void> {
    try {
      await api.approve(this.#run, call, approved);
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

  /** Empty panes, one per model as far as there are models. */
  begin(base: string | null): void {
    this.close();
    this.base = base;
    this.panes = [];
    for (let n = 0; n < FEWEST; n++) this.add();
  }

  add(): void {
    if (this.panes.length >= MOST || this.begun) return;
    const taken = new Set(this.panes.map((pane) => pane.model));
    const model = models.list.slice(1).find(({ id }) => !taken.has(id))?.id ?? models.fallback;
    this.panes = [...this.panes, new Pane(model)];
  }

  remove(pane: Pane): void {
    pane.close();
    this.panes = this.panes.filter((other) => other !== pane);
  }

  async ask(content: Part[]): Promise<void> {
    const words = textOf(content).slice(0, 60);
    await Promise.all(
      this.panes.map(async (pane) => {
        const first = pane.turns.length === 0;
        await pane.ask(content, this.base);
        if (first) await (pane.named = pane.name(`${pane.model.split("/").at(-1)}: ${words}`));
      }),
    );
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

  close(): void {
    for (const pane of this.panes) pane.close();
    this.panes = [];
  }
}

export const compare = new Compare();
