/** Whose key this tab has, and what it may do (S12). The server decides; the page only leaves out what it would refuse. */
import type { Key } from "../lib/wire";
import { api, key } from "./server.svelte";

class Me {
  #key = $state.raw<Pick<Key, "name" | "role"> | null>(null);

  /** Null where the server asks for no key, and until it has said. */
  get key(): Pick<Key, "name" | "role"> | null {
    return key.value === null ? null : this.#key;
  }

  /** A viewer's: nothing is asked, stopped, approved or changed with it. */
  get readsOnly(): boolean {
    return this.key?.role === "viewer";
  }

  get isAdmin(): boolean {
    return this.key?.role === "admin";
  }

  async load(): Promise<void> {
    try {
      this.#key = await api.me();
    } catch (error) {
      console.info("The server did not say whose key this is.", error); // asked again when it is back
    }
  }
}

export const me = new Me();
