// @vitest-environment jsdom
import type { ServerResponse } from "node:http";
import { beforeEach, describe, expect, it, vi } from "vitest";
import { sessions } from "../src/state/sessions.svelte";
import { later, listener, listenInEachTest } from "./listener";

listenInEachTest();
beforeEach(() => Object.assign(sessions, { list: [], search: "", more: false, loaded: false }));

const page = (ids: string, next: string | null = null) =>
  JSON.stringify({ data: [...ids].map((id) => ({ id, title: id })), has_more: next !== null, next });
const answer = (ids: string, next: string | null = null) => (response: ServerResponse) => void response.end(page(ids, next));
const shown = () => sessions.list.map(({ id }) => id).join("");

describe("the list of sessions (T3.d)", () => {
  it("goes on where the page before ended, and shows a session that has moved meanwhile once", async () => {
    listener.answers = [answer("ab", "after-b"), answer("bcd", "after-d"), answer("e")];
    await sessions.refresh();
    await sessions.loadMore();
    expect([shown(), sessions.more]).toEqual(["abcd", true]);
    await sessions.loadMore();
    expect([shown(), sessions.more]).toEqual(["abcde", false]);
    expect(listener.asked.map(({ path }) => path)).toEqual([
      "/v1/sessions?limit=50",
      "/v1/sessions?before=after-b&limit=50",
      "/v1/sessions?before=after-d&limit=50",
    ]);
  });

  it("is what was asked for last, however late an earlier answer comes", async () => {
    const old = later(page("abc"));
    listener.answers = [old.answer, answer("b")];
    const asked = sessions.refresh();
    await old.arrived();
    sessions.search = "b";
    await sessions.refresh();
    expect(shown()).toBe("b");
    old.give();
    await asked;
    expect(shown()).toBe("b");
    expect(listener.asked.at(-1)!.path).toBe("/v1/sessions?search=b&limit=50");
  });

  it("does not go on with a list that was read anew meanwhile, nor twice from one place", async () => {
    const more = later(page("cd", "after-d"));
    listener.answers = [answer("ab", "after-b"), more.answer, answer("x", "after-x")];
    await sessions.refresh();
    const asked = sessions.loadMore();
    await more.arrived();
    await sessions.refresh();
    more.give();
    await asked;
    expect([shown(), sessions.more]).toEqual(["x", true]);
    listener.answers = [answer("y"), answer("y")];
    await Promise.all([sessions.loadMore(), sessions.loadMore()]);
    expect([shown(), sessions.more]).toEqual(["xy", false]);
  });

  it("asks once when somebody types, and for all that is shown when it is read again", async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    listener.answers = [answer("a")];
    for (const words of ["t", "ti", "tide "]) sessions.find(words);
    await vi.advanceTimersByTimeAsync(250);
    vi.useRealTimers();
    await vi.waitFor(() => expect(shown()).toBe("a"));
    expect(listener.asked.map(({ path }) => path)).toEqual(["/v1/sessions?search=tide&limit=50"]);
    sessions.list = Array.from({ length: 120 }, (_, n) => ({ id: String(n) })) as typeof sessions.list;
    await sessions.refresh();
    expect(listener.asked.at(-1)!.path).toBe("/v1/sessions?search=tide&limit=120");
  });
});
