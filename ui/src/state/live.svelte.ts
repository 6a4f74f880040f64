/** One run that is read as it goes: its events folded into a view once per frame. Chat, compare and replay hold one. */
import { EMPTY, fold, type RunView } from "../lib/fold";
import { follow, FrameBatch } from "../lib/follow";
import type { Numbered } from "../lib/wire";
import { announcer } from "./announcer.svelte";
import { api } from "./server.svelte";

export class LiveRun {
  view = $state.raw<RunView>(EMPTY);
  /** Since when the page has no connection to it, in Unix seconds. What becomes of the run meanwhile is not known here. */
  lostAt = $state<number | null>(null);
  #batch = new FrameBatch((events) => this.receive(events));

  constructor(view: RunView = EMPTY) {
    this.view = view;
  }

  get going(): boolean {
    return this.view.outcome === null;
  }

  /** Resolves when the run has ended. */
  async follow(run: string, signal: AbortSignal): Promise<void> {
    await follow(
      (after, aborted) => api.events(run, after, aborted),
      this.view.last,
      {
        events: (events) => this.#batch.add(events),
        connected: (yes) => (this.lostAt = yes ? null : (this.lostAt ?? Date.now() / 1000)),
      },
      signal,
    );
    this.#batch.flush();
  }

  protected receive(events: Numbered[]): void {
    this.view = fold(this.view, events);
    for (const { event } of events) {
      if (event.type === "approval.asked") announcer.say(`The agent asks whether it may use ${event.name}.`);
      else if (event.type === "tool_call.dropped") announcer.say(`${event.name} was cut off and not carried out.`);
    }
  }
}
