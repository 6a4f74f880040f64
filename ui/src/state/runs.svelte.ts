/** The list of runs, kept fresh while it is looked at (T5). */
import { isAbort, sentence } from "../lib/http";
import type { Run } from "../lib/wire";
import { api } from "./server.svelte";

const REFRESH_SECONDS = 2;
const PAGE = 50;

class Runs {
  list = $state.raw<Run[]>([]);
  more = $state(false);
  loaded = $state(false);
  problem = $state("");
  status = $state("");
  model = $state("");
  session = $state("");
  #asking: AbortController | null = null;
  /** How often a filter has changed: what was asked for before is no answer any more. */
  #question = 0;

  get #filter() {
    return { status: this.status, model: this.model, session_id: this.session.trim() };
  }

  /** The newest page again; what was loaded beyond it stays. */
  async refresh(): Promise<void> {
    this.#asking?.abort();
    const asking = (this.#asking = new AbortController());
    try {
      const page = await api.runs({ ...this.#filter, limit: PAGE }, asking.signal);
      const oldest = page.data.at(-1);
      const beyond = page.has_more && oldest ? this.list.filter((run) => run.id < oldest.id) : [];
      this.list = [...page.data, ...beyond];
      if (!beyond.length) this.more = page.has_more ?? false;
      this.problem = "";
      this.loaded = true;
    } catch (error) {
      if (!isAbort(error)) this.problem = sentence(error);
    }
  }

  async loadMore(): Promise<void> {
    const before = this.list.at(-1)?.id;
    const question = this.#question;
    if (!before) return;
    try {
      const page = await api.runs({ ...this.#filter, before, limit: PAGE });
      if (question !== this.#question || before !== this.list.at(-1)?.id) return; // the list goes on elsewhere
      this.list = [...this.list, ...page.data];
      this.more = page.has_more ?? false;
    } catch (error) {
      this.problem = sentence(error);
    }
  }

  /** A filter has changed: what was there is no answer to it. */
  filter(change: Partial<Pick<Runs, "status" | "model" | "session">>): void {
    Object.assign(this, change, { list: [], loaded: false });
    this.#question++;
    void this.refresh();
  }

  /** Returns how to stop. */
  watch(): () => void {
    const refresh = () => document.visibilityState === "visible" && void this.refresh();
    refresh();
    const timer = setInterval(refresh, REFRESH_SECONDS * 1000);
    return () => {
      clearInterval(timer);
      this.#asking?.abort();
    };
  }
}

export const runs = new Runs();
