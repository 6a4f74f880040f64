// @vitest-environment jsdom
import type { ServerResponse } from "node:http";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { answerText } from "../src/lib/fold";
import { REACHED } from "../src/lib/follow";
import type { Part } from "../src/lib/wire";
import { announcer } from "../src/state/announcer.svelte";
import { chat } from "../src/state/chat.svelte";
import { models } from "../src/state/models.svelte";
import { route } from "../src/state/route.svelte";
import { frames, json, later, listener, listenInEachTest, lost, stream } from "./listener";

listenInEachTest();

const words = (text: string): Part[] => [{ type: "text", text }];
const STARTED = { type: "run.started", run: "run_1", session: "s1", model: "m" };
const ENDED = { type: "run.ended", outcome: { outcome: "completed" } };
const SAID = [STARTED, { type: "turn.started", turn: 0, model: "m" }, { type: "text.added", text: "Yes." }];
const session = (change = {}) => ({ id: "s1", title: "One", active_run: null, metadata: {}, ...change });
const run = (id: string, change = {}) => ({ id, session_id: "s1", status: "completed", outcome: "completed", ...change });
const said = (id: number, run_id: string, role: string, content: string, change = {}) => ({ id, run_id, role, content, ...change });
const list = (data: unknown[]) => json({ data });

/** What was asked of one resource, the oldest first. */
const asked = (which: string) => listener.asked.filter(({ method, path }) => `${method} ${path.split("?")[0]}` === which);
const paths = () => listener.asked.map(({ method, path }) => `${method} ${path}`);
const shown = () => chat.exchanges.map(({ run, asked, view }) => [run, (asked[0] as { text: string }).text, answerText(view)]);
const body = (which: string, n = 0) => JSON.parse(asked(which)[n]!.body) as unknown;

/** A server with one session, `s1`, that is empty and whose runs are called run_1, unless a test says otherwise. */
beforeEach(() => {
  localStorage.clear();
  location.hash = "#/chat";
  Object.assign(models, { list: [], chosen: "" });
  Object.assign(announcer, { text: "", shown: "" });
  Object.assign(listener.routes, {
    "GET /v1/sessions": list([]),
    "GET /v1/sessions/s1": json(session()),
    "GET /v1/sessions/s1/messages": list([]),
    "GET /v1/runs": list([]),
    "POST /v1/runs": json({ run_id: "run_1", session_id: "s1" }),
    "GET /v1/runs/run_1/events": (response: ServerResponse) => void response.end(frames([...SAID, ENDED])),
  });
});
afterEach(async () => {
  await chat.open(null);
});

describe("a chat that is opened (T3.d)", () => {
  it("shows what was said, with its own model and instructions, and reads the logs of what is not whole alone", async () => {
    const rerun = (n: number) => [{ ...STARTED, run: `cut_${n}` }, { type: "text.added", text: `log ${n}` }, { type: "run.ended", outcome: { outcome: "incomplete", reason: "stream_interrupted" } }];
    const cuts = Array.from({ length: 10 }, (_, n) => n);
    for (const n of cuts) listener.routes[`GET /v1/runs/cut_${n}/events`] = (response) => void response.end(frames(rerun(n)));
    listener.routes["GET /v1/runs/cut_5/events"] = json({ error: { message: "Gone." } }, 404);
    listener.routes["GET /v1/sessions/s1"] = json(session({ metadata: { page: { model: "p/own", instructions: "Be brief." } } }));
    listener.routes["GET /v1/runs"] = list([
      ...cuts.map((n) => run(`cut_${n}`, { outcome: "incomplete", reason: "stream_interrupted" })),
      run("run_1"),
    ]);
    listener.routes["GET /v1/sessions/s1/messages"] = list([
      ...cuts.flatMap((n) => [said(2 * n, `cut_${n}`, "user", `Q${n}`), said(2 * n + 1, `cut_${n}`, "assistant", `kept ${n}`)]),
      said(20, "run_1", "user", "Last?"),
      said(21, "run_1", "assistant", "Whole."),
    ]);
    await chat.open("s1");
    expect([chat.loading, chat.problem, chat.model, chat.instructions, chat.title]).toEqual([false, "", "p/own", "Be brief.", "One"]);
    expect(asked("GET /v1/runs").map(({ path }) => path)).toEqual(["/v1/runs?limit=100&session_id=s1"]);
    await vi.waitFor(() => expect(answerText(chat.exchanges[9]!.view)).toBe("log 9"));
    expect(shown()).toEqual([
      ...cuts.map((n) => [`cut_${n}`, `Q${n}`, n < 2 || n === 5 ? `kept ${n}` : `log ${n}`]),
      ["run_1", "Last?", "Whole."],
    ]);
    expect(chat.exchanges.map(({ lastMessage }) => lastMessage)).toEqual([1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21]);
    expect(paths().filter((path) => path.endsWith("/events"))).toEqual(cuts.slice(2).map((n) => `GET /v1/runs/cut_${n}/events`));
  });

  it("follows the run that goes on, and shows it once", async () => {
    const going = stream(SAID);
    listener.routes["GET /v1/sessions/s1"] = json(session({ active_run: "run_1" }));
    listener.routes["GET /v1/sessions/s1/messages"] = list([said(1, "run_1", "user", "Now?")]);
    listener.routes["GET /v1/runs"] = list([run("run_1", { status: "running", outcome: null })]);
    listener.routes["GET /v1/runs/run_1"] = json({ id: "run_1", input: [{ role: "system", content: "No." }, { role: "user", content: "Now?" }] });
    listener.routes["GET /v1/runs/run_1/events"] = going.answer;
    await chat.open("s1");
    await vi.waitFor(() => expect(shown()).toEqual([["run_1", "Now?", "Yes."]]));
    expect(chat.live).toBe(chat.exchanges[0]);
    listener.routes["GET /v1/sessions/s1"] = json(session({ title: "Named" }));
    listener.routes["GET /v1/sessions/s1/messages"] = list([said(1, "run_1", "user", "Now?"), said(2, "run_1", "assistant", "Yes.")]);
    const lists = asked("GET /v1/sessions").length;
    going.end(ENDED);
    await vi.waitFor(() => expect([chat.live, chat.title, chat.exchanges[0]!.lastMessage]).toEqual([null, "Named", 2]));
    expect(announcer.text).toBe("The answer is complete.");
    expect(asked("GET /v1/sessions").length, "the list knows of its new name").toBe(lists + 1);
  });

  it("begins with the model that was chosen where it has none of its own, and with no instructions of another", async () => {
    models.chosen = "p/chosen";
    chat.instructions = "Of another chat.";
    await chat.open("s1");
    expect([chat.model, chat.instructions]).toEqual(["p/chosen", ""]);
    Object.assign(chat, { model: "p/other", instructions: "Mine.", problem: "Old.", refusal: { message: "", retryAt: null, content: [] } });
    await chat.open("s1");
    expect(chat.model, "it is open already").toBe("p/other");
    await chat.open(null);
    expect([chat.id, chat.session, chat.exchanges, chat.model, chat.instructions, chat.problem, chat.refusal]).toEqual([null, null, [], "p/chosen", "", "", null]);
    expect(chat.title).toBe("New chat");
  });

  it("is not overtaken by the answer to an earlier one", async () => {
    const slow = later(JSON.stringify(session({ id: "s2", title: "Two" })));
    Object.assign(listener.routes, { "GET /v1/sessions/s2": slow.answer, "GET /v1/sessions/s2/messages": list([]) });
    const first = chat.open("s2");
    await slow.arrived();
    await chat.open("s1");
    slow.give();
    await first;
    expect([chat.id, chat.title, chat.loading, chat.problem]).toEqual(["s1", "One", false, ""]);
  });

  it("says what is wrong, and is read again when the server is back, but only then", async () => {
    listener.routes["GET /v1/sessions/s1"] = json({ error: { message: "Not now." } }, 500);
    await chat.open("s1");
    expect([chat.problem, chat.loading, chat.session]).toEqual(["Not now.", false, null]);
    listener.routes["GET /v1/sessions/s1"] = json(session());
    await chat.reopen();
    expect([chat.id, chat.problem, chat.title]).toEqual(["s1", "", "One"]);
    const before = listener.asked.length;
    await chat.reopen();
    expect(listener.asked.length).toBe(before);
  });
});

describe("a question (T3)", () => {
  it("in a new chat goes to the server with a key, gives the chat its name, and its answer is followed to the end", async () => {
    listener.routes["GET /v1/sessions/s1/messages"] = list([said(7, "run_1", "user", "Well?"), said(8, "run_1", "assistant", "Yes."), said(9, "elsewhere", "user", "?")]);
    await chat.open(null);
    await chat.say(words("Well?"));
    expect(body("POST /v1/runs")).toEqual({ input: [{ role: "user", content: "Well?" }], on_disconnect: "continue" });
    expect(asked("POST /v1/runs")[0]!.headers["idempotency-key"]).toBe(chat.exchanges[0]!.key);
    expect([chat.id, route.id, location.hash]).toEqual(["s1", "s1", "#/chat/s1"]);
    expect(shown()).toEqual([["run_1", "Well?", "Yes."]]);
    expect([chat.live, chat.stopping, chat.problem, chat.refusal, chat.exchanges[0]!.lastMessage]).toEqual([null, false, "", null, 8]);
    expect(asked("POST /v1/sessions")).toEqual([]);
    await chat.say(words("And?"));
    expect(body("POST /v1/runs", 1)).toEqual({ input: [{ role: "user", content: "And?" }], session_id: "s1", on_disconnect: "continue" });
    expect(new Set(asked("POST /v1/runs").map(({ headers }) => headers["idempotency-key"])).size).toBe(2);
  });

  it("with a model or instructions of its own is asked in a session that remembers them", async () => {
    listener.routes["POST /v1/sessions"] = json(session({ id: "s9", title: "Nine" }));
    for (const [model, instructions] of [["p/m", ""], ["", "Be brief."]] as const) {
      await chat.open(null);
      Object.assign(chat, { model, instructions });
      listener.asked = [];
      await chat.say(words("Well?"));
      expect(body("POST /v1/sessions")).toEqual({ metadata: { page: { model, instructions } } });
      expect(body("POST /v1/runs")).toEqual({
        input: [{ role: "user", content: "Well?" }],
        session_id: "s9",
        ...(model ? { model } : {}),
        ...(instructions ? { instructions } : {}),
        on_disconnect: "continue",
      });
    }
  });

  it("that was not heard is asked again under the same key, and leaves the address of somebody elsewhere alone", async () => {
    await chat.open(null);
    listener.routes["POST /v1/runs"] = lost;
    const done = chat.say(words("Well?"));
    await vi.waitFor(() => expect(asked("POST /v1/runs").length).toBe(1));
    expect([chat.live, chat.refusal]).toEqual([chat.exchanges[0], null]);
    listener.routes["POST /v1/runs"] = json({ run_id: "run_1", session_id: "s1" });
    location.hash = "#/runs";
    await vi.waitFor(() => expect(route.view).toBe("runs"));
    await vi.waitFor(() => (dispatchEvent(new Event(REACHED)), expect(asked("POST /v1/runs").length).toBe(2)));
    await done;
    expect(new Set(asked("POST /v1/runs").map(({ headers }) => headers["idempotency-key"])).size).toBe(1);
    expect([shown(), location.hash]).toEqual([[["run_1", "Well?", "Yes."]], "#/runs"]);
  });

  it("can be stopped before the server has named its run, which is then ended", async () => {
    const slow = later(JSON.stringify({ run_id: "run_1", session_id: "s1" }));
    listener.routes["POST /v1/runs"] = slow.answer;
    const done = chat.say(words("Well?"));
    await slow.arrived();
    await chat.stop();
    expect([chat.stopping, asked("POST /v1/runs/run_1/stop").length], "there is nothing to stop yet").toEqual([true, 0]);
    slow.give();
    await done;
    expect(asked("POST /v1/runs/run_1/stop").length).toBe(1);
  });

  it("leaves the chat alone that was opened before its own was made", async () => {
    models.chosen = "p/chosen";
    await chat.open(null);
    chat.model = models.chosen;
    const slow = later(JSON.stringify(session({ id: "s9", title: "Nine" })));
    listener.routes["POST /v1/sessions"] = slow.answer;
    const done = chat.say(words("Well?"));
    await slow.arrived();
    await chat.open("s1");
    slow.give();
    await done;
    expect([chat.id, chat.session?.id, chat.title, chat.exchanges]).toEqual(["s1", "s1", "One", []]);
    expect(body("POST /v1/runs")).toMatchObject({ session_id: "s9" });
  });

  it("that was not heard is not asked again once it is stopped", async () => {
    const slow: ServerResponse[] = [];
    listener.routes["POST /v1/runs"] = (response) => void slow.push(response);
    const done = chat.say(words("Well?"));
    await vi.waitFor(() => expect(slow.length).toBe(1));
    await chat.stop();
    lost(slow[0]!);
    await done;
    expect([asked("POST /v1/runs").length, chat.live, chat.stopping, chat.exchanges]).toEqual([1, null, false, []]);
    expect(chat.refusal?.content).toEqual(words("Well?"));
  });

  it("that is refused is taken back with the reason and the time to try again, until the next one", async () => {
    await chat.open("s1");
    for (const [headers, wait] of [[{ "Retry-After": "30" }, 30_000], [{}, null]] as const) {
      listener.routes["POST /v1/runs"] = json({ error: { message: "Too many." } }, 429, headers);
      const now = Date.now();
      await chat.say(words("Well?"));
      const { retryAt, ...refusal } = chat.refusal!;
      expect(refusal).toEqual({ message: "Too many.", content: words("Well?") });
      if (wait === null) expect(retryAt).toBeNull();
      else expect(Math.abs(retryAt! - now - wait)).toBeLessThan(5000);
      expect([chat.exchanges, chat.live, chat.stopping, announcer.text]).toEqual([[], null, false, "Not sent. Too many."]);
    }
    listener.routes["POST /v1/runs"] = json({ run_id: "run_1", session_id: "s1" });
    await chat.say(words("Well?"));
    expect([chat.refusal, shown()]).toEqual([null, [["run_1", "Well?", "Yes."]]]);
  });

  it("waits for a chat that is being opened; one that cannot be opened keeps it", async () => {
    const slow = later(JSON.stringify(session({ metadata: { page: { model: "p/own" } } })));
    listener.routes["GET /v1/sessions/s1"] = slow.answer;
    void chat.open("s1");
    await slow.arrived();
    const done = chat.say(words("Well?"));
    listener.routes["GET /v1/sessions/s1"] = json(session());
    slow.give();
    await done;
    expect(body("POST /v1/runs")).toEqual({ input: [{ role: "user", content: "Well?" }], session_id: "s1", model: "p/own", on_disconnect: "continue" });
    await chat.open(null);
    listener.routes["GET /v1/sessions/s1"] = json({ error: { message: "Not now." } }, 500);
    void chat.open("s1");
    await chat.say(words("And?"));
    expect([chat.refusal, asked("POST /v1/runs").length]).toEqual([{ message: "Not now.", retryAt: null, content: words("And?") }, 1]);
  });

  it("that was not sent before its chat was left is told; one that was goes on, and is seen in the list", async () => {
    const slow = later(JSON.stringify(session()));
    listener.routes["GET /v1/sessions/s1"] = slow.answer;
    void chat.open("s1");
    await slow.arrived();
    const unsent = chat.say(words("Too late?"));
    await chat.open(null);
    slow.give();
    await unsent;
    expect(announcer.shown).toBe('Not sent, as you left the chat before the server could be reached: "Too late?"');
    expect([chat.exchanges, chat.refusal, asked("POST /v1/runs")]).toEqual([[], null, []]);
    announcer.shown = "";
    const taken = later(JSON.stringify({ run_id: "run_1", session_id: "s1" }));
    listener.routes["POST /v1/runs"] = taken.answer;
    const sent = chat.say(words("In time?"));
    await taken.arrived();
    await chat.open(null);
    const lists = asked("GET /v1/sessions").length;
    taken.give();
    await sent;
    await vi.waitFor(() => expect(asked("GET /v1/sessions").length).toBe(lists + 1));
    expect([announcer.shown, chat.id, chat.exchanges, chat.refusal, location.hash]).toEqual(["", null, [], null, "#/chat"]);
  });
});

describe("an answer that goes on (T3.c)", () => {
  let going: ReturnType<typeof stream>;
  let done: Promise<void>;
  beforeEach(async () => {
    going = stream(SAID);
    listener.routes["GET /v1/runs/run_1/events"] = going.answer;
    await chat.open("s1");
    done = chat.say(words("Well?"));
    await vi.waitFor(() => expect(shown()).toEqual([["run_1", "Well?", "Yes."]]));
  });
  afterEach(async () => {
    await chat.open(null);
    await done;
  });

  it("is told what is said meanwhile; once it has ended that is a question of its own", async () => {
    await chat.say(words("Shorter."));
    expect(body("POST /v1/runs/run_1/messages")).toEqual({ content: "Shorter." });
    expect([announcer.shown, chat.exchanges.length, chat.refusal]).toEqual(["Sent. The model reads it before its next step.", 1, null]);
    listener.routes["POST /v1/runs/run_1/messages"] = json({ error: { message: "Too much was said." } }, 429);
    await chat.say(words("Even shorter."));
    expect([chat.refusal, chat.exchanges.length]).toEqual([{ message: "Too much was said.", retryAt: null, content: words("Even shorter.") }, 1]);
    listener.routes["POST /v1/runs/run_1/messages"] = json({ error: { message: "It has ended." } }, 409);
    listener.routes["POST /v1/runs"] = json({ run_id: "run_2", session_id: "s1" });
    listener.routes["GET /v1/runs/run_2/events"] = (response) => void response.end(frames([{ ...STARTED, run: "run_2" }, ENDED]));
    await chat.say(words("So?"));
    expect(body("POST /v1/runs", 1)).toEqual({ input: [{ role: "user", content: "So?" }], session_id: "s1", on_disconnect: "continue" });
    expect([chat.exchanges.map(({ run }) => run), chat.refusal]).toEqual([["run_1", "run_2"], null]);
  });

  it("that ends late is not taken for the one that goes on", async () => {
    const next = stream([{ ...STARTED, run: "run_2" }]);
    listener.routes["POST /v1/runs/run_1/messages"] = json({ error: { message: "It has ended." } }, 409);
    listener.routes["POST /v1/runs"] = json({ run_id: "run_2", session_id: "s1" });
    listener.routes["GET /v1/runs/run_2/events"] = next.answer;
    const second = chat.say(words("So?"));
    await next.arrived();
    await vi.waitFor(() => expect(chat.live).toBe(chat.exchanges[1]));
    chat.stopping = true;
    going.end(ENDED);
    await done;
    expect([chat.live, chat.stopping]).toEqual([chat.exchanges[1], true]);
    next.end(ENDED);
    await second;
    expect([chat.live, chat.stopping]).toEqual([null, false]);
  });

  it("is stopped once, says so when it had ended, and can be stopped again when that failed", async () => {
    const stop = "POST /v1/runs/run_1/stop";
    listener.routes[stop] = json({ error: { message: "Not now." } }, 500);
    await chat.stop();
    expect([chat.stopping, announcer.shown]).toEqual([false, "It could not be stopped: Not now."]);
    listener.routes[stop] = json({ stopped: true });
    announcer.shown = "";
    const both = Promise.all([chat.stop(), chat.stop()]);
    expect([chat.stopping, announcer.text]).toEqual([true, "Stopping."]);
    await both;
    expect([asked(stop).length, chat.stopping, announcer.shown]).toEqual([2, true, ""]);
    going.end({ type: "run.ended", outcome: { outcome: "cancelled", reason: "user" } });
    await done;
    expect([chat.live, chat.stopping, announcer.text]).toEqual([null, false, "Stopped on request."]);
    await chat.stop();
    expect([asked(stop).length, chat.stopping], "nothing goes on").toEqual([2, false]);
  });

  it("that had ended when it was stopped is told so", async () => {
    listener.routes["POST /v1/runs/run_1/stop"] = json({ stopped: false });
    await chat.stop();
    expect(announcer.shown).toBe("It had already ended.");
  });

  it("asks, and is answered", async () => {
    await chat.approve("run_1", "c1", true);
    await chat.approve("run_1", "c2", false);
    expect([body("POST /v1/runs/run_1/approval"), body("POST /v1/runs/run_1/approval", 1)]).toEqual([
      { approved: true, call_id: "c1" },
      { approved: false, call_id: "c2" },
    ]);
    expect(announcer.text).toBe("Denied.");
    listener.routes["POST /v1/runs/run_1/approval"] = json({ error: { message: "Nothing waits." } }, 409);
    await chat.approve("run_1", "c1", true);
    expect(announcer.shown).toBe("Nothing waits.");
  });

  it("is not disturbed by another run of its session; when it has ended that is followed", async () => {
    await chat.join("run_2");
    expect(asked("GET /v1/runs/run_2")).toEqual([]);
    const next = stream([{ ...STARTED, run: "run_2" }]);
    listener.routes["GET /v1/sessions/s1"] = json(session({ active_run: "run_2" }));
    listener.routes["GET /v1/runs/run_2"] = json({ id: "run_2", input: [{ role: "user", content: "Elsewhere?" }] });
    listener.routes["GET /v1/runs/run_2/events"] = next.answer;
    going.end(ENDED);
    await done;
    await vi.waitFor(() => expect(shown()).toEqual([["run_1", "Well?", "Yes."], ["run_2", "Elsewhere?", ""]]));
    expect(chat.live).toBe(chat.exchanges[1]);
    listener.routes["GET /v1/sessions/s1"] = json(session());
    await next.arrived();
    next.end(ENDED);
    await vi.waitFor(() => expect(chat.live).toBeNull());
    await chat.join("run_2");
    expect(asked("GET /v1/runs/run_2").length, "it is known").toBe(1);
    listener.routes["GET /v1/runs/run_3"] = json({ id: "run_3" });
    listener.routes["GET /v1/runs/run_3/events"] = (response) => void response.end(frames([{ ...STARTED, run: "run_3" }, ENDED]));
    await chat.join("run_3");
    await vi.waitFor(() => expect([chat.exchanges.map(({ run }) => run), chat.live]).toEqual([["run_1", "run_2", "run_3"], null]));
  });

  it("is shown once, however many have told of it", async () => {
    going.end(ENDED);
    await done;
    listener.routes["GET /v1/runs/run_3"] = json({ id: "run_3" });
    listener.routes["GET /v1/runs/run_3/events"] = (response) => void response.end(frames([{ ...STARTED, run: "run_3" }, ENDED]));
    await Promise.all([chat.join("run_3"), chat.join("run_3")]);
    expect(chat.exchanges.map(({ run }) => run)).toEqual(["run_1", "run_3"]);
  });

  it("that cannot be followed says why, and is no longer waited for", async () => {
    going.end();
    listener.routes["GET /v1/runs/run_1/events"] = json({ error: { message: "No such run." } }, 404);
    await done;
    expect([chat.problem, chat.live, shown()]).toEqual(["The answer cannot be followed: No such run.", null, [["run_1", "Well?", "Yes."]]]);
  });
});

describe("a chat (T3)", () => {
  it("keeps its settings with its session, beside what else is there, and the model for new chats as well", async () => {
    listener.routes["GET /v1/sessions/s1"] = json(session({ metadata: { other: 1, page: { model: "p/old" } } }));
    await chat.open("s1");
    const metadata = { other: 1, page: { model: "p/new", instructions: "Be brief." } };
    listener.routes["PATCH /v1/sessions/s1"] = json(session({ title: "Patched", metadata }));
    await chat.keepSettings("p/new", "Be brief.");
    expect(body("PATCH /v1/sessions/s1")).toEqual({ metadata });
    expect([chat.model, chat.instructions, chat.title, models.chosen, localStorage.getItem("holdfast.model")]).toEqual(["p/new", "Be brief.", "Patched", "p/new", "p/new"]);
    listener.routes["PATCH /v1/sessions/s1"] = json({ error: { message: "Not now." } }, 500);
    await chat.keepSettings("p/newer", "");
    expect([chat.model, announcer.shown]).toEqual(["p/newer", "The settings of this chat could not be saved: Not now."]);
    await chat.open(null);
    await chat.keepSettings("p/m", "Mine.");
    expect([asked("PATCH /v1/sessions/s1").length, chat.model, chat.instructions, models.chosen]).toEqual([2, "p/m", "Mine.", "p/m"]);
  });

  it("is called by its title, else by how its first question begins", async () => {
    await chat.open("s1");
    chat.renamed("");
    expect(chat.title).toBe("One");
    chat.renamed("Renamed");
    expect([chat.title, chat.session!.id]).toEqual(["Renamed", "s1"]);
    listener.routes["GET /v1/sessions/s1"] = json(session({ title: "" }));
    await chat.open(null);
    await chat.say(words("x".repeat(70)));
    expect(chat.title).toBe("x".repeat(60));
  });
});
