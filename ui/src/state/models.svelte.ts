/** The models the server offers. The first is the agent with its default model. */
import type { Model } from "../lib/wire";
import { api } from "./server.svelte";

const CHOSEN = "holdfast.model";

class Models {
  list = $state.raw<Model[]>([]);
  /** What new chats begin with; empty: the server's default. */
  chosen = $state(localStorage.getItem(CHOSEN) ?? "");

  async load(): Promise<void> {
    this.list = (await api.models()).data;
    if (!this.list.some((model) => model.id === this.chosen)) this.chosen = "";
  }

  choose(id: string): void {
    this.chosen = id;
    localStorage.setItem(CHOSEN, id);
  }

  get fallback(): string {
    return this.list[0]?.id ?? "";
  }
}

export const models = new Models();
