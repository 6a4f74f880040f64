/** A key's limits and expiry in words (S12). */
import { bytes, count, number } from "./words";
import type { Key, KeyLimits } from "./wire";

/** In the order in which they are asked for, with the smallest step. */
export const LIMITS: [keyof KeyLimits, string, number | "any"][] = [
  ["requests_per_minute", "Requests a minute", 1],
  ["concurrent_runs", "Runs at once", 1],
  ["tokens_per_day", "Tokens a day", 1],
  ["cost_per_day", "Cost a day", "any"],
  ["stored_bytes", "Bytes stored", 1],
];

/** As it is asked for: a day begins at midnight UTC. */
export function expiryWords(at: number | null): string {
  if (at === null) return "Never";
  const [day, time] = new Date(at * 1000).toISOString().split("T") as [string, string];
  return time.startsWith("00:00") ? day : `${day} ${time.slice(0, 5)} UTC`;
}

export function limitWords(key: Key): string {
  return [
    key.models && (key.models.join(", ") || "no models"),
    key.requests_per_minute && `${count(key.requests_per_minute, "request")} a minute`,
    key.concurrent_runs && `${count(key.concurrent_runs, "run")} at once`,
    key.tokens_per_day && `${count(key.tokens_per_day, "token")} a day`,
    key.cost_per_day && `cost ${number(key.cost_per_day)} a day`,
    key.stored_bytes && `${bytes(key.stored_bytes)} stored`,
  ]
    .filter(Boolean)
    .join("; ");
}
