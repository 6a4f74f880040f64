// @vitest-environment jsdom
import type { ServerResponse } from "node:http";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { answerText } from "../src/lib/fold";
import type { Part } from "../src/lib/wire";
import { announcer } from "../src/state/announcer.svelte";
import { compare, type Pane } from "../src/state/compare.svelte";
import { models } from "../src/state/models.svelte";
import { frames, json, later, listener, listenInEachTest, lost, stream } from "./listener";

listenInEachTest();

const words = (text: string): Part[] => [{ type: "text", text }];
const log = (run: string, text: string) => [
  { type: "run.started", run, session: "s", model: "m" },
  { type: "turn.started", turn: 0, model: "m" },
  { type: "text.added", text },
];
const ENDED = { type: "run.ended", outcome: { outcome: "completed" } };
const whole = (run: string, text: string) => (response: ServerResponse) => void response.end(frames([...log(run, text), ENDED]));
const asked = (which: string) => listener.asked.filter(({ method, path }) => `${method} ${path.split("?")[0]}` === which);
/** By model: two panes are on their way at once. */
const bodies = (which: string) =>
  asked(which)
    .map(({ body }) => JSON.parse(body) as { model?: string })
    .sort((a, b) => (a.model ?? "").localeCompare(b.model ?? ""));
const answers = (pane: Pane) => pane.turns.map(({ view }) => answerText(view));
const kept = (name = "holdfast.compare") => JSON.parse(sessionStorage.getItem(name)!) as unknown;
const named = (...ids: string[]) => ids.map((id) => ({ id }));

/** The first model's runs are run_1, run_3, …, its session is s1, or the one it names; those of the second are the others. */
let runs: Record<string, number> = {};
function start(response: ServerResponse): void {
  const { model, session_id } = JSON.parse(listener.asked.at(-1)!.body) as { model: string; session_id?: string };
  const first = model === "p/b" ? 2 : 1;
  const run = (runs[model] = model in runs ? runs[model]! + 2 : first);
  json({ run_id: `run_${run}`, session_id: session_id ?? `s${first}` })(response);
}

beforeEach(() => {
  runs = {};
  sessionStorage.clear();
  location.hash = "#/compare";
  Object.assign(announcer, { text: "", shown: "" });
  Object.assign(models, { list: named("holdfast", "p/a", "p/b"), chosen: "" });
  Object.assign(listener.routes, {
    "GET /v1/sessions": json({ data: [] }),
    "POST /v1/runs": start,
    "GET /v1/runs/run_1/events": whole("run_1", "One."),
    "GET /v1/runs/run_2/events": whole("run_2", "Two."),
  });
});
afterEach(() => compare.close());

describe("panes side by side (T4)", () => {
  it("are two at first, one for each model before any twice, and four at most", () => {
    compare.open(null);
    expect(compare.panes.map(({ model }) => model)).toEqual(["p/a", "p/b"]);
    for (let n = 0; n < 4; n++) compare.add();
    expect(compare.panes.map(({ model }) => model)).toEqual(["p/a", "p/b", "holdfast", "holdfast"]);
    compare.remove(compare.panes[0]!);
    compare.choose(compare.panes[1]!, "p/x");
    const left = ["p/b", "p/x", "holdfast"];
    expect([compare.panes.map(({ model }) => model), kept()]).toEqual([left, left.map((model) => ({ model, session: null, instructions: "", runs: [] }))]);
    compare.begin();
    expect(compare.panes.length, "there are some").toBe(3);
    compare.startOver();
    expect(compare.panes.map(({ model }) => model)).toEqual(["p/a", "p/b"]);
  });

  it("wait for the models, and are made when those have come", () => {
    models.list = [];
    compare.open(null);
    compare.begin();
    expect(compare.panes).toEqual([]);
    models.list = named("holdfast") as never;
    compare.begin();
    expect(compare.panes.map(({ model }) => model)).toEqual(["holdfast", "holdfast"]);
  });

  it("ask the same at once, each its own model in its own session, and are named by what was asked first", async () => {
    compare.open(null);
    const long = "x".repeat(70);
    const ended = compare.ask(words(long));
    expect([compare.going, compare.begun, compare.panes.map(({ going }) => going)]).toEqual([true, true, [true, true]]);
    await ended;
    const asks = ["p/a", "p/b"].map((model) => ({ input: [{ role: "user", content: long }], model, on_disconnect: 3 }));
    expect(bodies("POST /v1/runs")).toEqual(asks);
    const keys = asked("POST /v1/runs").map(({ headers }) => headers["idempotency-key"]);
    expect(keys.sort()).toEqual(compare.panes.map(({ turns }) => turns[0]!.key).sort());
    expect(compare.panes.map(answers)).toEqual([["One."], ["Two."]]);
    expect([compare.going, announcer.text, asked("GET /v1/sessions").length]).toEqual([false, "All answers have ended.", 1]);
    await Promise.all(compare.panes.map((pane) => pane.named));
    expect([bodies("PATCH /v1/sessions/s1"), bodies("PATCH /v1/sessions/s2")]).toEqual([
      [{ title: `a: ${"x".repeat(60)}`, metadata: { page: { model: "p/a", instructions: "" } } }],
      [{ title: `b: ${"x".repeat(60)}`, metadata: { page: { model: "p/b", instructions: "" } } }],
    ]);
    expect(kept()).toEqual([
      { model: "p/a", session: "s1", instructions: "", runs: ["run_1"] },
      { model: "p/b", session: "s2", instructions: "", runs: ["run_2"] },
    ]);
    compare.add();
    expect(compare.panes.length, "a pane that comes later would have missed something").toBe(2);
    Object.assign(listener.routes, { "GET /v1/runs/run_3/events": whole("run_3", "Three."), "GET /v1/runs/run_4/events": whole("run_4", "Four.") });
    listener.asked = [];
    await compare.ask(words("And?"));
    expect(bodies("POST /v1/runs")).toEqual([
      { input: [{ role: "user", content: "And?" }], session_id: "s1", model: "p/a", on_disconnect: 3 },
      { input: [{ role: "user", content: "And?" }], session_id: "s2", model: "p/b", on_disconnect: 3 },
    ]);
    expect([compare.panes.map(answers), bodies("PATCH /v1/sessions/s1")]).toEqual([[["One.", "Three."], ["Two.", "Four."]], []]);
  });

  it("of a conversation each begin with a copy of it, its instructions and what else it remembers", async () => {
    let copies = 0;
    listener.routes["POST /v1/sessions/s0/fork"] = (response) =>
      json({ id: `c${++copies}`, metadata: { other: 1, page: { model: "p/old", instructions: "Be brief." } } })(response);
    compare.open("s0");
    await compare.ask(words("And?"));
    expect(bodies("POST /v1/sessions/s0/fork")).toEqual([{}, {}]);
    const [c1, c2] = compare.panes.map(({ session }) => session);
    expect([c1, c2].sort()).toEqual(["c1", "c2"]);
    expect(bodies("POST /v1/runs")).toEqual(
      [[c1, "p/a"], [c2, "p/b"]].map(([session_id, model]) => ({ input: [{ role: "user", content: "And?" }], session_id, model, instructions: "Be brief.", on_disconnect: 3 })),
    );
    await compare.panes[0]!.named;
    expect(bodies(`PATCH /v1/sessions/${c1}`)).toEqual([{ title: "a: And?", metadata: { other: 1, page: { model: "p/a", instructions: "Be brief." } } }]);
    expect(kept("holdfast.compare/s0")).toEqual([
      { model: "p/a", session: c1, instructions: "Be brief.", runs: ["run_1"] },
      { model: "p/b", session: c2, instructions: "Be brief.", runs: ["run_2"] },
    ]);
    expect(sessionStorage.getItem("holdfast.compare")).toBeNull();
    Object.assign(listener.routes, { "GET /v1/runs/run_3/events": whole("run_3", "3"), "GET /v1/runs/run_4/events": whole("run_4", "4") });
    await compare.ask(words("Again?"));
    expect(copies, "once").toBe(2);
  });

  it("are what they were after a reload, the newest answer first, and an unheard question is asked for again", async () => {
    sessionStorage.setItem("holdfast.compare", JSON.stringify([{ model: "p/z", session: "s1", instructions: "Mine.", runs: ["run_1", "run_2"] }]));
    const going = stream(log("run_2", "Tw"));
    Object.assign(listener.routes, {
      "GET /v1/runs/run_1": json({ id: "run_1", input: [{ role: "user", content: "First?" }] }),
      "GET /v1/runs/run_2": lost,
      "GET /v1/runs/run_2/events": going.answer,
    });
    compare.open(null);
    const [pane] = compare.panes;
    expect([compare.panes.length, pane!.model, pane!.session, pane!.going]).toEqual([1, "p/z", "s1", true]);
    await vi.waitFor(() => expect(answers(pane!)).toEqual(["", "Tw"]));
    listener.routes["GET /v1/runs/run_2"] = json({ id: "run_2", input: [{ role: "system", content: "No." }, { role: "user", content: "Second?" }] });
    await vi.waitFor(() => expect(pane!.turns.map(({ asked }) => asked)).toEqual([[], words("Second?")]), 3000);
    expect(asked("GET /v1/runs/run_1/events")).toEqual([]);
    going.end({ type: "text.added", text: "o." }, ENDED);
    await vi.waitFor(() => expect(answers(pane!)).toEqual(["One.", "Two."]));
    await vi.waitFor(() => expect([pane!.going, pane!.turns[0]!.asked]).toEqual([false, words("First?")]));
    await compare.ask(words("Third?"));
    expect(bodies("POST /v1/runs")).toEqual([{ input: [{ role: "user", content: "Third?" }], session_id: "s1", model: "p/z", instructions: "Mine.", on_disconnect: 3 }]);
  });

  it("say of an earlier answer that cannot be read that it cannot, and show the others", async () => {
    sessionStorage.setItem("holdfast.compare", JSON.stringify([{ model: "p/z", session: "s1", instructions: "", runs: ["run_1", "gone"] }]));
    Object.assign(listener.routes, {
      "GET /v1/runs/gone/events": json({ error: { message: "No such run." } }, 404),
      "GET /v1/runs/run_1": json({ id: "run_1" }),
    });
    compare.open(null);
    await vi.waitFor(() => expect(answers(compare.panes[0]!)).toEqual(["One.", ""]));
    expect([compare.panes[0]!.problem, compare.panes[0]!.going]).toEqual(["An earlier answer cannot be read: No such run.", false]);
  });
});

describe("a pane (T4.b)", () => {
  let going: ReturnType<typeof stream>;
  let pane: Pane;
  beforeEach(() => {
    going = stream(log("run_1", "On"));
    listener.routes["GET /v1/runs/run_1/events"] = going.answer;
    listener.routes["POST /v1/runs/run_1/stop"] = json({ stopped: true });
    models.list = named("p/a") as never;
    compare.open(null);
    compare.remove(compare.panes[1]!);
    pane = compare.panes[0]!;
  });
  const STOPPED = { type: "run.ended", outcome: { outcome: "cancelled", reason: "user" } };

  it("is stopped once, and keeps what had come", async () => {
    const ended = compare.ask(words("Well?"));
    await vi.waitFor(() => expect(answers(pane)).toEqual(["On"]));
    await Promise.all([compare.stop(), compare.stop()]);
    expect([asked("POST /v1/runs/run_1/stop").length, pane.stopping, pane.going]).toEqual([1, true, true]);
    going.end(STOPPED);
    await ended;
    expect([pane.turns[0]!.view.outcome, pane.going, pane.problem]).toEqual([{ outcome: "cancelled", reason: "user" }, false, ""]);
    await compare.stop();
    expect(asked("POST /v1/runs/run_1/stop").length, "nothing goes on").toBe(1);
    listener.routes["GET /v1/runs/run_3/events"] = whole("run_3", "Two.");
    await compare.ask(words("And?"));
    expect([pane.stopping, answers(pane)]).toEqual([false, ["On", "Two."]]);
  });

  it("that is stopped before its run has a name stops it as soon as it has one", async () => {
    const taken = later(JSON.stringify({ run_id: "run_1", session_id: "s1" }));
    listener.routes["POST /v1/runs"] = taken.answer;
    const ended = compare.ask(words("Well?"));
    await taken.arrived();
    await compare.stop();
    expect(asked("POST /v1/runs/run_1/stop")).toEqual([]);
    taken.give();
    await vi.waitFor(() => expect(asked("POST /v1/runs/run_1/stop").length).toBe(1));
    await going.arrived();
    going.end(STOPPED);
    await ended;
  });

  it("that is stopped, or closed, while the conversation is being copied asks nothing", async () => {
    for (const leave of [() => void compare.stop(), () => compare.remove(compare.panes[0]!)]) {
      compare.close();
      compare.open("s0");
      const copied = later(JSON.stringify({ id: "c1", metadata: {} }));
      listener.routes["POST /v1/sessions/s0/fork"] = copied.answer;
      compare.remove(compare.panes[1]!);
      const [only] = compare.panes;
      const ended = compare.ask(words("Well?"));
      await copied.arrived();
      leave();
      copied.give();
      await ended;
      expect([asked("POST /v1/runs"), only!.turns, only!.going, only!.problem]).toEqual([[], [], false, ""]);
      sessionStorage.clear();
    }
  });

  it("whose stop failed says so and can be stopped again", async () => {
    listener.routes["POST /v1/runs/run_1/stop"] = json({ error: { message: "Not now." } }, 500);
    const ended = compare.ask(words("Well?"));
    await vi.waitFor(() => expect(answers(pane)).toEqual(["On"]));
    await compare.stop();
    expect([pane.stopping, announcer.shown]).toEqual([false, "It could not be stopped: Not now."]);
    listener.routes["POST /v1/runs/run_1/stop"] = json({ stopped: true });
    await compare.stop();
    expect(asked("POST /v1/runs/run_1/stop").length).toBe(2);
    going.end(STOPPED);
    await ended;
  });

  it("whose stop does not get through makes room for it, and reads on after it", async () => {
    const stopped = later(JSON.stringify({ stopped: true }));
    listener.routes["POST /v1/runs/run_1/stop"] = stopped.answer;
    const ended = compare.ask(words("Well?"));
    await vi.waitFor(() => expect(answers(pane)).toEqual(["On"]));
    let left = false;
    going.closed(() => (left = true));
    const stopping = compare.stop();
    await stopped.arrived();
    expect(left, "at once it is in nobody's way").toBe(false);
    await vi.waitFor(() => expect(left).toBe(true), 3000);
    listener.routes["GET /v1/runs/run_1/events"] = (response) => void response.end(frames([{ type: "text.added", text: "e" }, STOPPED], 3));
    stopped.give();
    await Promise.all([stopping, ended]);
    expect([answers(pane), asked("GET /v1/runs/run_1/events").map(({ path }) => path), pane.problem]).toEqual([
      ["One"],
      ["/v1/runs/run_1/events", "/v1/runs/run_1/events?after=2"],
      "",
    ]);
  });

  it("that is closed ends its run, at once or as soon as it has a name, and says nothing more", async () => {
    const ended = compare.ask(words("Well?"));
    await vi.waitFor(() => expect(answers(pane)).toEqual(["On"]));
    compare.remove(pane);
    await ended;
    await vi.waitFor(() => expect(asked("POST /v1/runs/run_1/stop").length).toBe(1));
    expect([compare.panes, pane.problem, kept()]).toEqual([[], "", []]);
    compare.begin();
    compare.remove(compare.panes[1]!);
    const taken = later(JSON.stringify({ run_id: "run_1", session_id: "s1" }));
    listener.routes["POST /v1/runs"] = taken.answer;
    const unnamed = compare.ask(words("Well?"));
    await taken.arrived();
    compare.close();
    taken.give();
    await unnamed;
    await vi.waitFor(() => expect(asked("POST /v1/runs/run_1/stop").length).toBe(2));
    expect([asked("GET /v1/runs/run_1/events").length, compare.panes]).toEqual([1, []]);
  });

  it("whose answer has ended stops nothing when it is closed", async () => {
    listener.routes["GET /v1/runs/run_1/events"] = whole("run_1", "One.");
    await compare.ask(words("Well?"));
    compare.remove(pane);
    await new Promise((done) => setTimeout(done, 50));
    expect(asked("POST /v1/runs/run_1/stop")).toEqual([]);
  });

  it("that is refused says why until it is asked again, approves by name, and is picked under its name", async () => {
    listener.routes["POST /v1/runs"] = json({ error: { message: "Too many." } }, 429);
    await compare.ask(words("Well?"));
    expect([pane.problem, pane.going, pane.session]).toEqual(["Too many.", false, null]);
    await compare.pick(pane);
    expect(location.hash, "there is nothing to pick").toBe("#/compare");
    listener.routes["POST /v1/runs"] = start;
    listener.routes["GET /v1/runs/run_1/events"] = whole("run_1", "One.");
    await compare.ask(words("Well?"));
    expect(pane.problem).toBe("");
    await pane.approve("c1", false);
    expect(bodies("POST /v1/runs/run_1/approval")).toEqual([{ approved: false, call_id: "c1" }]);
    listener.routes["POST /v1/runs/run_1/approval"] = json({ error: { message: "Nothing waits." } }, 409);
    await pane.approve("c1", true);
    expect(announcer.shown).toBe("Nothing waits.");
    await compare.pick(pane);
    expect(location.hash).toBe("#/chat/s1");
    location.hash = "#/compare";
    const slow = later("{}");
    listener.routes["PATCH /v1/sessions/s1"] = slow.answer;
    listener.routes["GET /v1/runs/run_3/events"] = whole("run_3", "Two.");
    compare.startOver();
    await compare.panes[0]!.ask(words("Again?"), null);
    const picked = compare.pick(compare.panes[0]!);
    await slow.arrived();
    await Promise.resolve();
    expect(location.hash, "it has no name yet").toBe("#/compare");
    slow.give();
    await picked;
    expect(location.hash).toBe("#/chat/s1");
  });
});
