/** One run opened from the list: its whole log, and the view as of any event of it (T5). */
import { EMPTY, fold, type RunView } from "../lib/fold";
import { follow, FrameBatch } from "../lib/follow";
import { isAbort, sentence } from "../lib/http";
import { timeline } from "../lib/timeline";
import type { Numbered, Run } from "../lib/wire";
import { announcer } from "./announcer.svelte";
import { api } from "./server.svelte";

/** A view is kept every so many events, so that going back does not begin at 0. They share what did not change. */
const EVERY = 250;
const LONGEST_GAP_SECONDS = 1;
const SAME_MOMENT_SECONDS = 0.004;

export class Replay {
  run = $state.raw<Run | null>(null);
  events = $state.raw<Numbered[]>([]);
  /** How many events are shown; null: all there are, as they come. */
  shown = $state<number | null>(null);
  playing = $state(false);
  lostAt = $state<number | null>(null);
  problem = $state("");
  timeline = $derived(timeline(this.events));
  view = $derived.by(() => this.#viewAt(this.shown ?? this.events.length));
  /** As of the last event there is, whatever is shown. */
  latest = $derived.by(() => (this.shown === null ? this.view : this.#viewAt(this.events.length)));
  #kept: RunView[] = [EMPTY];
  #reading = new AbortController();
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly id: string) {}

  async open(): Promise<void> {
    const signal = this.#reading.signal;
    try {
      this.run = await api.run(this.id, signal);
      const batch = new FrameBatch((events) => (this.events = [...this.events, ...events]));
      await follow(
        (after, aborted) => api.events(this.id, after, aborted),
        -1,
        {
          events: (events) => batch.add(events),
          connected: (yes) => (this.lostAt = yes ? null : (this.lostAt ?? Date.now() / 1000)),
        },
        signal,
      );
      batch.flush();
      this.run = await api.run(this.id, signal);
    } catch (error) {
      if (!signal.aborted && !isAbort(error)) this.problem = sentence(error);
    }
  }

  close(): void {
    this.#reading.abort();
    clearTimeout(this.#timer);
  }

  seek(shown: number): void {
    this.shown = shown >= this.events.length ? null : Math.max(0, shown);
  }

  /** As it went, but long waits are cut short. */
  play(): void {
    this.playing = !this.playing;
    clearTimeout(this.#timer);
    if (!this.playing) return;
    if (this.shown === null) this.shown = 0;
    this.#step();
  }

  /** Shows the next event, with all that came in the same moment. */
  #step(): void {
    let at = this.shown;
    if (!this.playing || at === null) return void (this.playing = false);
    let gap = 0;
    while (at < this.events.length && gap < SAME_MOMENT_SECONDS) {
      const now = this.events[at]!.event.at;
      gap = Math.max(0, (this.events[++at]?.event.at ?? now) - now);
    }
    this.seek(at);
    if (at >= this.events.length) return void (this.playing = false);
    this.#timer = setTimeout(() => this.#step(), Math.min(gap, LONGEST_GAP_SECONDS) * 1000);
  }

  #viewAt(count: number): RunView {
    const last = Math.min(Math.floor(count / EVERY), Math.floor(this.events.length / EVERY));
    for (let n = this.#kept.length; n <= last; n++) {
      this.#kept.push(fold(this.#kept[n - 1]!, this.events.slice((n - 1) * EVERY, n * EVERY)));
    }
    return fold(this.#kept[last]!, this.events.slice(last * EVERY, count));
  }

  async stop(): Promise<void> {
    try {
      const { stopped } = await api.stop(this.id);
      if (!stopped) announcer.show("It had already ended."); // else the answer says what was kept
    } catch (error) {
      announcer.show(`It could not be stopped: ${sentence(error)}`);
    }
  }

  async approve(call: string, approved: boolean): Promise<void> {
    try {
      await api.approve(this.id, call, approved);
    } catch (error) {
      announcer.show(sentence(error));
    }
  }
}
