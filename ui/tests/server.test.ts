// @vitest-environment jsdom
import type { ServerResponse } from "node:http";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { REACHED } from "../src/lib/follow";
import { api, connection, key } from "../src/state/server.svelte";
import { listener, listenInEachTest } from "./listener";

listenInEachTest();

const no = (response: ServerResponse) => void response.writeHead(401).end("{}");

describe("the key (S4.a)", () => {
  beforeEach(() => {
    sessionStorage.clear();
    Object.assign(key, { value: null, asking: false, wrong: false });
  });

  it("is asked for once, however many requests are refused, and each of them is sent again with it", async () => {
    listener.answers = [no, no];
    const asked = Promise.all([api.models(), api.sessions("")]);
    await vi.waitFor(() => expect([key.asking, key.wrong, listener.asked.length]).toEqual([true, false, 2]));
    key.give("k1");
    await asked;
    expect(key.asking).toBe(false);
    expect(listener.asked.map(({ headers }) => headers.authorization)).toEqual([undefined, undefined, "Bearer k1", "Bearer k1"]);
    expect(sessionStorage.getItem("holdfast.key")).toBe("k1");
  });

  it("that was given meanwhile is tried before anybody is asked again", async () => {
    let refuse: ServerResponse | undefined;
    listener.answers = [(response) => void (refuse = response)];
    const asked = api.models();
    await vi.waitFor(() => expect(refuse).toBeDefined());
    key.give("k1");
    no(refuse!);
    await asked;
    expect([key.asking, key.wrong]).toEqual([false, false]);
    expect(listener.asked.map(({ headers }) => headers.authorization)).toEqual([undefined, "Bearer k1"]);
  });

  it("that is refused itself is called wrong, and asked for anew", async () => {
    key.give("k1");
    listener.answers = [no];
    const asked = api.models();
    await vi.waitFor(() => expect([key.asking, key.wrong]).toEqual([true, true]));
    key.give("k2");
    await asked;
    expect(listener.asked.at(-1)!.headers.authorization).toBe("Bearer k2");
  });
});

describe("a server that goes and comes back (R7.a)", () => {
  let heard = 0;
  const hear = () => void heard++;
  beforeEach(() => {
    heard = 0;
    addEventListener(REACHED, hear);
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "Date"] });
  });
  afterEach(() => {
    removeEventListener(REACHED, hear);
    connection.reached();
    vi.useRealTimers();
  });

  const away = (response: ServerResponse) => void response.writeHead(502, { "Content-Type": "text/html" }).end("<html>");
  const waitsSeconds = () => (connection.retryAt - Date.now()) / 1000;
  /** In real time: the clock of the page stands still meanwhile. */
  async function until(isSo: () => boolean) {
    while (!isSo()) await new Promise((done) => setImmediate(done));
  }

  it("is asked for its health, less and less often, until something of its own answers", async () => {
    const began = Date.now();
    listener.answers = Array.from({ length: 5 }, () => away);
    connection.unreachable();
    expect(connection.lostAt).toBe(began);
    for (const [asked, seconds] of [1, 2, 4, 8, 10].entries()) {
      expect(waitsSeconds()).toBe(seconds);
      connection.unreachable(); // who else finds out changes nothing
      vi.advanceTimersByTime(seconds * 1000);
      await until(() => waitsSeconds() > 0);
      expect(listener.asked).toHaveLength(asked + 1);
    }
    expect([connection.lostAt, heard]).toEqual([began, 0]);
    vi.advanceTimersByTime(10_000);
    await until(() => !connection.lost);
    expect(heard).toBe(1);
    expect(new Set(listener.asked.map(({ path }) => path))).toEqual(new Set(["/health"]));
    connection.unreachable();
    expect(waitsSeconds(), "as at first").toBe(1);
  });

  it("is back when any answer comes, and is asked for no more", () => {
    connection.unreachable();
    connection.reached();
    connection.reached();
    expect([connection.lost, heard]).toEqual([false, 1]);
    expect(vi.getTimerCount()).toBe(0);
  });
});
