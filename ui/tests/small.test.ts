// @vitest-environment jsdom
/** The page's small states: what is announced, which models there are, where one is, how it looks, a run's connection. */
import type { ServerResponse } from "node:http";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { announcer } from "../src/state/announcer.svelte";
import { LiveRun } from "../src/state/live.svelte";
import { models } from "../src/state/models.svelte";
import { Replay } from "../src/state/replay.svelte";
import { address, route } from "../src/state/route.svelte";
import { sessions } from "../src/state/sessions.svelte";
import { theme } from "../src/state/theme.svelte";
import { frames, json, listener, listenInEachTest } from "./listener";

listenInEachTest();
beforeEach(() => localStorage.clear());

describe("what is announced (T3)", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  it("is seen for a moment, the last of two for all of its own, and heard until something else is", () => {
    announcer.show("One.");
    vi.advanceTimersByTime(5000);
    announcer.show("Two.");
    vi.advanceTimersByTime(5999);
    expect([announcer.shown, announcer.text]).toEqual(["Two.", "Two."]);
    vi.advanceTimersByTime(1);
    expect([announcer.shown, announcer.text]).toEqual(["", "Two."]);
    announcer.say("Three.");
    expect([announcer.shown, announcer.text]).toEqual(["", "Three."]);
  });
});

describe("the models (T3)", () => {
  it("are those of the server, and one that was chosen and is gone is no longer", async () => {
    models.choose("p/a");
    expect([models.chosen, localStorage.getItem("holdfast.model")]).toEqual(["p/a", "p/a"]);
    listener.answers = [json({ data: [{ id: "holdfast" }, { id: "p/a" }] }), json({ data: [{ id: "holdfast" }] }), json({ data: [] })];
    await models.load();
    expect([models.chosen, models.fallback, models.list.length]).toEqual(["p/a", "holdfast", 2]);
    await models.load();
    expect(models.chosen).toBe("");
    await models.load();
    expect(models.fallback).toBe("");
  });
});

describe("where one is (T3.d)", () => {
  it("is in the address, whatever its name has in it", async () => {
    for (const [view, id] of [["chat", "a/b c%"], ["runs", "run_1"], ["compare", null], ["chat", null]] as const) {
      route.go(view, id);
      await vi.waitFor(() => expect([route.view, route.id]).toEqual([view, id]));
      expect(location.hash).toBe(address(view, id));
    }
    location.hash = "#/elsewhere/%E0%A4%A";
    await vi.waitFor(() => expect([route.view, route.id]).toEqual(["chat", "%E0%A4%A"]));
  });

  it("gets its name, unless somebody is on the way to another place", async () => {
    route.go("chat");
    await vi.waitFor(() => expect([route.view, route.id]).toEqual(["chat", null]));
    const places = history.length;
    route.rename("chat", "s1");
    expect([route.id, location.hash, history.length]).toEqual(["s1", "#/chat/s1", places]);
    location.hash = "#/runs"; // its event comes later
    route.rename("chat", "s2");
    expect(location.hash).toBe("#/runs");
  });
});

describe("how it looks (T3)", () => {
  const dark = (matches: boolean) => vi.stubGlobal("matchMedia", () => ({ matches }));
  const looks = () => [theme.choice, localStorage.getItem("holdfast.theme"), document.documentElement.dataset["theme"]];

  it("is the system's until somebody chooses the other, and again when they say so", () => {
    theme.set("system");
    dark(true);
    theme.toggle();
    expect(looks()).toEqual(["light", "light", "light"]);
    theme.toggle();
    expect(looks()).toEqual(["dark", "dark", "dark"]);
    theme.set("system");
    expect(looks()).toEqual(["system", null, undefined]);
    dark(false);
    theme.toggle();
    expect(looks()).toEqual(["dark", "dark", "dark"]);
    theme.toggle();
    expect(looks()).toEqual(["light", "light", "light"]);
  });
});

describe("a run that is read as it goes (R7, T3)", () => {
  it("knows since when it has no connection, in seconds, and asks for what it has not seen", async () => {
    const started = { type: "run.started", run: "run_1", session: "s", model: "m" };
    const asked = { type: "approval.asked", call_id: "c1", name: "terminal", arguments: "{}", seconds: 9 };
    const dropped = { type: "tool_call.dropped", call_id: "c2", name: "write_file", bytes_received: 1, executed: "no" };
    let second: ServerResponse | undefined;
    listener.answers = [
      (response) => void response.end(frames([started, asked])),
      (response) => void (second = response),
    ];
    const live = new LiveRun();
    const read = live.follow("run_1", new AbortController().signal);
    await vi.waitFor(() => expect(live.lostAt).not.toBeNull());
    expect(Math.abs(live.lostAt! - Date.now() / 1000)).toBeLessThan(5);
    expect([live.view.last, live.going, announcer.text]).toEqual([1, true, "The agent asks whether it may use terminal."]);
    await vi.waitFor(() => expect(second).toBeDefined());
    second!.end(frames([dropped, { type: "run.ended", outcome: { outcome: "completed" } }], 2));
    await read;
    expect([live.lostAt, live.going, live.view.last, announcer.text]).toEqual([null, false, 3, "write_file was cut off and not carried out."]);
    expect(listener.asked.map(({ path }) => path)).toEqual(["/v1/runs/run_1/events", "/v1/runs/run_1/events?after=1"]);
  });
});

describe("a run that is looked at (T5.c, T5.d)", () => {
  it("can be stopped and answered, and says what came of it", async () => {
    const replay = new Replay("run_1");
    announcer.shown = "";
    listener.answers = [json({ stopped: true }), json({ stopped: false }), json({ error: { message: "No." } }, 500), json({})];
    await replay.stop();
    expect(announcer.shown).toBe("");
    await replay.stop();
    expect(announcer.shown).toBe("It had already ended.");
    await replay.stop();
    expect(announcer.shown).toBe("It could not be stopped: No.");
    await replay.approve("c1", false);
    expect(listener.asked.map(({ method, path, body }) => [method, path, body])).toEqual([
      ...Array.from({ length: 3 }, () => ["POST", "/v1/runs/run_1/stop", ""]),
      ["POST", "/v1/runs/run_1/approval", JSON.stringify({ approved: false, call_id: "c1" })],
    ]);
    listener.answers = [json({ error: { message: "Nothing waits." } }, 409)];
    await replay.approve("c1", true);
    expect(announcer.shown).toBe("Nothing waits.");
  });
});

describe("the list of sessions (T3.d)", () => {
  it("has a new name at once, loses what is removed, and knows what was copied, from where it was", async () => {
    const list = (...titles: string[]) => json({ data: titles.map((title, id) => ({ id: `s${id}`, title })), has_more: false });
    Object.assign(listener.routes, { "GET /v1/sessions": list("a", "b"), "PATCH /v1/sessions/s1": json({ id: "s1", title: "B." }) });
    await sessions.refresh();
    listener.routes["GET /v1/sessions"] = (response) => void response.writeHead(500).end();
    await expect(sessions.rename("s1", "B")).rejects.toThrow();
    expect(sessions.list.map(({ title }) => title), "as the server has it").toEqual(["a", "B."]);
    await sessions.remove("s0");
    expect(sessions.list.map(({ id }) => id)).toEqual(["s1"]);
    Object.assign(listener.routes, { "GET /v1/sessions": list("a", "B.", "copy"), "POST /v1/sessions/s1/fork": json({ id: "s2" }) });
    expect([(await sessions.fork("s1", 0)).id, (await sessions.fork("s1")).id, sessions.list.length]).toEqual(["s2", "s2", 3]);
    const forks = listener.asked.filter(({ path }) => path.endsWith("/fork"));
    expect(forks.map(({ body }) => JSON.parse(body) as unknown)).toEqual([{ at: 0 }, {}]);
  });
});
