/** The team's keys and what they used, for an admin (S12, S13). */
import type { NewKey } from "../lib/api";
import { sentence } from "../lib/http";
import type { Key, UsageRow } from "../lib/wire";
import { api } from "./server.svelte";

export const DAYS = 7;

/** What one key used. */
export interface Used {
  key: string;
  requests: number;
  input: number;
  output: number;
  /** Of the models whose price is known; null: of none. */
  cost: number | null;
  /** Some of it has no price. */
  partly: boolean;
}

class Keys {
  list = $state.raw<Key[]>([]);
  used = $state.raw<Used[]>([]);
  loaded = $state(false);
  problem = $state("");
  #asked = 0;

  async refresh(): Promise<void> {
    const asked = ++this.#asked;
    try {
      const [list, rows] = await Promise.all([api.keys(), api.usage(firstDay(Date.now()))]);
      if (asked !== this.#asked) return; // a later question has been asked
      Object.assign(this, { list, used: byKey(rows), loaded: true, problem: "" });
    } catch (error) {
      if (asked === this.#asked) this.problem = sentence(error);
    }
  }

  /** The new key itself, which the server does not tell again. */
  async make(wanted: NewKey): Promise<string> {
    const { key } = await api.createKey(wanted);
    await this.refresh();
    return key;
  }

  async revoke(name: string): Promise<void> {
    await api.revokeKey(name);
    await this.refresh();
  }
}

/** The first of the last days, today among them, as the server counts days (UTC). */
export function firstDay(now: number): string {
  return new Date(now - (DAYS - 1) * 86_400_000).toISOString().slice(0, 10);
}

/** One line for each key, whoever used most first. */
export function byKey(rows: UsageRow[]): Used[] {
  const found = new Map<string, Used>();
  for (const row of rows) {
    const used = found.get(row.key) ?? { key: row.key, requests: 0, input: 0, output: 0, cost: null, partly: false };
    found.set(row.key, {
      key: row.key,
      requests: used.requests + row.requests,
      input: used.input + row.input_tokens,
      output: used.output + row.output_tokens,
      cost: row.cost === undefined ? used.cost : (used.cost ?? 0) + row.cost,
      partly: used.partly || row.cost === undefined,
    });
  }
  return [...found.values()].sort((one, other) => other.input + other.output - one.input - one.output || other.requests - one.requests);
}

export const keys = new Keys();
