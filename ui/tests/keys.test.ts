// @vitest-environment jsdom
import { beforeEach, describe, expect, it } from "vitest";
import { expiryWords, limitWords } from "../src/lib/limits";
import type { Key, UsageRow } from "../src/lib/wire";
import { byKey, firstDay, keys } from "../src/state/keys.svelte";
import { me } from "../src/state/me.svelte";
import { key } from "../src/state/server.svelte";
import { json, later, listener, listenInEachTest } from "./listener";

listenInEachTest();
beforeEach(() => {
  Object.assign(keys, { list: [], used: [], loaded: false, problem: "" });
  Object.assign(key, { value: null, asking: false, wrong: false });
});

const ALICE: Key = {
  name: "alice",
  role: "user",
  models: null,
  created_at: 1,
  expires_at: null,
  requests_per_minute: null,
  concurrent_runs: null,
  tokens_per_day: null,
  cost_per_day: null,
  stored_bytes: null,
  declared: false,
};
const row = (name: string, fields: Partial<UsageRow> = {}): UsageRow => ({
  day: "2027-01-31",
  key: name,
  agent: "holdfast",
  model: "a/b",
  requests: 1,
  input_tokens: 10,
  cached_tokens: 0,
  output_tokens: 2,
  ...fields,
});

describe("whose key it is (S12.e)", () => {
  it("is nobody's where none is asked for, whatever the server says", async () => {
    listener.routes["GET /v1/me"] = json({ name: "admin", role: "admin" });
    await me.load();
    expect([me.key, me.isAdmin, me.readsOnly]).toEqual([null, false, false]);
  });

  it.each([
    ["user", false, false],
    ["viewer", false, true],
    ["admin", true, false],
  ])("says what a %s may", async (role, isAdmin, readsOnly) => {
    key.give("k");
    listener.routes["GET /v1/me"] = json({ name: "alice", role });
    await me.load();
    expect([me.key, me.isAdmin, me.readsOnly]).toEqual([{ name: "alice", role }, isAdmin, readsOnly]);
  });

  it("stays as it was when the server does not say", async () => {
    key.give("k");
    listener.routes["GET /v1/me"] = json({ name: "alice", role: "viewer" });
    await me.load();
    listener.routes["GET /v1/me"] = json({ error: { message: "Not now." } }, 500);
    await me.load();
    expect(me.readsOnly).toBe(true);
  });
});

describe("the keys of a team (S12.b, S13.b)", () => {
  it("are read with what each used, and again after one is made or revoked", async () => {
    listener.routes = {
      "GET /v1/keys": json({ data: [ALICE] }),
      "GET /v1/usage": json({ data: [row("alice")] }),
      "POST /v1/keys": json({ ...ALICE, key: "hf_new" }, 201),
    };
    expect(await keys.make({ name: "alice", role: "user", requests_per_minute: 60 })).toBe("hf_new");
    expect(JSON.parse(listener.asked[0]!.body)).toEqual({ name: "alice", role: "user", requests_per_minute: 60 });
    expect([keys.list, keys.used, keys.loaded]).toEqual([[ALICE], byKey([row("alice")]), true]);
    listener.routes["GET /v1/keys"] = json({ data: [] });
    await keys.revoke("alice");
    expect(keys.list).toEqual([]);
    expect(listener.asked.map(({ method, path }) => `${method} ${path.split("?")[0]}`).sort()).toEqual([
      "DELETE /v1/keys/alice",
      "GET /v1/keys",
      "GET /v1/keys",
      "GET /v1/usage",
      "GET /v1/usage",
      "POST /v1/keys",
    ]);
  });

  it("are what was asked for last, and a no is said and leaves them", async () => {
    const old = later(JSON.stringify({ data: [ALICE] }));
    listener.routes = { "GET /v1/keys": old.answer, "GET /v1/usage": json({ data: [] }) };
    const asked = keys.refresh();
    await old.arrived();
    const bob = { ...ALICE, name: "bob" };
    listener.routes["GET /v1/keys"] = json({ data: [bob] });
    await keys.refresh();
    old.give();
    await asked;
    expect(keys.list).toEqual([bob]);
    listener.routes["GET /v1/keys"] = json({ error: { message: "Only an admin may." } }, 403);
    await keys.refresh();
    expect([keys.list, keys.problem]).toEqual([[bob], "Only an admin may."]);
  });

  it("have their use added up, with a cost only where a price is known", () => {
    const rows = [row("alice", { cost: 0.5 }), row("bob"), row("alice", { model: "c/d", requests: 2, cost: 0.25 })];
    const alice = { key: "alice", requests: 3, input: 20, output: 4, cost: 0.75, partly: false };
    expect(byKey(rows)).toEqual([alice, { key: "bob", requests: 1, input: 10, output: 2, cost: null, partly: true }]);
    expect(byKey([...rows, row("alice")])[0]).toEqual({ key: "alice", requests: 4, input: 30, output: 6, cost: 0.75, partly: true });
  });

  it("have the days of the server, and their limits and expiry in words", () => {
    const expiries = [null, Date.UTC(2027, 0, 31) / 1000, Date.UTC(2027, 0, 31, 12, 5) / 1000];
    expect(expiries.map(expiryWords)).toEqual(["Never", "2027-01-31", "2027-01-31 12:05 UTC"]);
    expect(firstDay(Date.UTC(2027, 1, 3, 23, 59))).toBe("2027-01-28");
    expect(limitWords(ALICE)).toBe("");
    const limited = { ...ALICE, models: ["a/*", "b"], requests_per_minute: 1, concurrent_runs: 2, tokens_per_day: 2_000_000, cost_per_day: 0.5, stored_bytes: 2048 };
    expect(limitWords(limited)).toBe("a/*, b; 1 request a minute; 2 runs at once; 2,000,000 tokens a day; cost 0.5 a day; 2.0 kB stored");
  });
});
