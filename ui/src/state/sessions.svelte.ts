/** The list of sessions beside the chat. */
import type { Session } from "../lib/wire";
import { api } from "./server.svelte";

const REFRESH_SECONDS = 15;
const SEARCH_MILLISECONDS = 200;

class Sessions {
  list = $state.raw<Session[]>([]);
  search = $state("");
  more = $state(false);
  loaded = $state(false);
  #asked = 0;
  /** Where the list goes on: stays the same place, whatever is used meanwhile. */
  #next = "";
  #timer: ReturnType<typeof setTimeout> | undefined;

  async refresh(): Promise<void> {
    const asked = ++this.#asked;
    const page = await api.sessions(this.search.trim(), "", Math.max(50, this.list.length));
    if (asked !== this.#asked) return; // a later question has been asked
    this.list = page.data;
    this.#next = page.next ?? "";
    this.more = page.has_more ?? false;
    this.loaded = true;
  }

  async loadMore(): Promise<void> {
    const place = this.#next;
    const page = await api.sessions(this.search.trim(), place);
    if (place !== this.#next) return; // the list was read anew, and goes on elsewhere
    const known = new Set(this.list.map((session) => session.id));
    this.list = [...this.list, ...page.data.filter((session) => !known.has(session.id))];
    this.#next = page.next ?? "";
    this.more = page.has_more ?? false;
  }

  /** Called at each key; asks once the typing pauses. */
  find(words: string): void {
    this.search = words;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.refreshQuietly(), SEARCH_MILLISECONDS);
  }

  async rename(id: string, title: string): Promise<void> {
    const renamed = await api.updateSession(id, { title });
    this.list = this.list.map((session) => (session.id === id ? { ...session, title: renamed.title } : session));
    await this.refresh();
  }

  async remove(id: string): Promise<void> {
    await api.deleteSession(id);
    this.list = this.list.filter((session) => session.id !== id);
  }

  async fork(id: string, at?: number): Promise<Session> {
    const session = await api.forkSession(id, at === undefined ? {} : { at });
    await this.refresh();
    return session;
  }

  /** In the background: the banner says when the server is away, and the list stays as it was. */
  async refreshQuietly(): Promise<void> {
    try {
      await this.refresh();
    } catch (error) {
      console.info("The list of sessions could not be refreshed.", error);
    }
  }

  /** Keeps the list fresh while the page is looked at. Returns how to stop. */
  watch(): () => void {
    const refresh = () => document.visibilityState === "visible" && void this.refreshQuietly();
    const timer = setInterval(refresh, REFRESH_SECONDS * 1000);
    document.addEventListener("visibilitychange", refresh);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", refresh);
    };
  }
}

export const sessions = new Sessions();
