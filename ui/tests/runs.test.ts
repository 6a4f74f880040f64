// @vitest-environment jsdom
import type { ServerResponse } from "node:http";
import { beforeEach, describe, expect, it, vi } from "vitest";
import { runs } from "../src/state/runs.svelte";
import { later, listener, listenInEachTest } from "./listener";

listenInEachTest();
beforeEach(() => Object.assign(runs, { list: [], more: false, loaded: false, problem: "", status: "", model: "", session: "" }));

/** A page of the list: these runs, newest first, and whether there are more. */
const page = (ids: number[], hasMore = false) => JSON.stringify({ data: ids.map((id) => ({ id: name(id) })), has_more: hasMore });
const name = (id: number) => `run_${String(id).padStart(3, "0")}`;
const answer = (ids: number[], hasMore = false) => (response: ServerResponse) => void response.end(page(ids, hasMore));
const shown = () => runs.list.map(({ id }) => Number(id.slice(4)));
const below = (first: number, count: number) => Array.from({ length: count }, (_, n) => first - n);

/** Time for an answer that was given to be read by whoever still wants it. */
const settled = () => new Promise((done) => setTimeout(done, 50));

describe("the list of runs (T5.a)", () => {
  it("keeps what was loaded beyond the newest page when that is read again, and what there is more", async () => {
    listener.answers = [answer(below(100, 50), true), answer(below(50, 10)), answer(below(101, 50), true)];
    await runs.refresh();
    expect(runs.more).toBe(true);
    await runs.loadMore();
    expect(shown()).toEqual(below(100, 60));
    expect(runs.more).toBe(false);
    await runs.refresh();
    expect(shown()).toEqual(below(101, 61));
    expect(runs.more, "all of them are there").toBe(false);
    expect(listener.asked.map(({ path }) => path)).toEqual([
      "/v1/runs?limit=50",
      `/v1/runs?limit=50&before=${name(51)}`,
      "/v1/runs?limit=50",
    ]);
  });

  it("forgets what is gone", async () => {
    listener.answers = [answer([4, 3, 2, 1]), answer([4, 2, 1]), answer([4, 2])];
    for (const left of [[4, 3, 2, 1], [4, 2, 1], [4, 2]]) {
      await runs.refresh();
      expect(shown()).toEqual(left);
    }
  });

  it("shows nothing of one filter under another, however late it comes", async () => {
    const old = later(page([3, 2, 1]));
    listener.answers = [answer([3, 2, 1]), old.answer, answer([2])];
    await runs.refresh();
    const asked = runs.refresh();
    await old.arrived();
    runs.filter({ status: "failed" });
    expect([shown(), runs.loaded]).toEqual([[], false]);
    await vi.waitFor(() => expect(shown()).toEqual([2]));
    old.give();
    await asked;
    await settled();
    expect(shown()).toEqual([2]);
    expect(runs.problem).toBe("");
    expect(listener.asked.at(-1)!.path).toBe("/v1/runs?limit=50&status=failed");
  });

  it("adds no older runs of one filter to those of another", async () => {
    const older = later(page([1]));
    listener.answers = [answer([3, 2], true), older.answer, answer([2], true)];
    await runs.refresh();
    const asked = runs.loadMore();
    await older.arrived();
    runs.filter({ status: "failed" });
    await vi.waitFor(() => expect(shown()).toEqual([2]));
    older.give();
    await asked;
    expect(shown()).toEqual([2]);
    expect(runs.more).toBe(true);
  });

  it("shows every run once, however often more are asked for", async () => {
    listener.answers = [answer([4, 3], true), answer([2, 1]), answer([2, 1])];
    await runs.refresh();
    await Promise.all([runs.loadMore(), runs.loadMore()]);
    expect(shown()).toEqual([4, 3, 2, 1]);
  });

  it("stays as it was when the server says no, says so, and no longer when it says yes", async () => {
    const no = (response: ServerResponse) => void response.writeHead(500).end(JSON.stringify({ error: { message: "Not now." } }));
    listener.answers = [answer([2, 1], true), no, no, answer([2, 1], true)];
    await runs.refresh();
    await runs.refresh();
    expect([shown(), runs.problem]).toEqual([[2, 1], "Not now."]);
    await runs.loadMore();
    expect([shown(), runs.problem, runs.more]).toEqual([[2, 1], "Not now.", true]);
    await runs.refresh();
    expect([shown(), runs.problem]).toEqual([[2, 1], ""]);
  });
});
