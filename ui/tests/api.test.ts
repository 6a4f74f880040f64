import { beforeEach, describe, expect, it } from "vitest";
import { Api } from "../src/lib/api";
import { Http } from "../src/lib/http";
import { listener, listenInEachTest } from "./listener";

listenInEachTest();
beforeEach(() => {
  const made = JSON.stringify({ run_id: "run_1", session_id: "s" });
  listener.answers = [(response) => response.end(made), (response) => response.end(made)];
});

const nothing = () => undefined;
const api = new Api(
  new Http({ key: () => null, refused: () => Promise.resolve(), reached: nothing, unreachable: nothing }),
);
const run = { content: [{ type: "text" as const, text: "Hello" }], session: "s", model: "m" };

describe("how a run is begun", () => {
  it("in a chat it goes on whoever leaves, and its key makes it safe to ask again (T3.f)", async () => {
    await api.startRun(run, "key-1", "continue");
    expect(listener.asked[0]!.path).toBe("/v1/runs");
    expect(listener.asked[0]!.headers["idempotency-key"]).toBe("key-1");
    expect(JSON.parse(listener.asked[0]!.body)).toEqual({
      input: [{ role: "user", content: "Hello" }],
      session_id: "s",
      model: "m",
      on_disconnect: "continue",
    });
  });

  it("in a pane it ends with its last reader, after the time that a reload takes (T4.b)", async () => {
    await api.startRun(run, "key-1", 3);
    expect(JSON.parse(listener.asked[0]!.body)).toMatchObject({ on_disconnect: 3 });
  });
});
