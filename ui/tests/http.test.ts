import type { ServerResponse } from "node:http";
import { beforeEach, describe, expect, it } from "vitest";
import { Api } from "../src/lib/api";
import { ApiError, Http, UnreachableError } from "../src/lib/http";
import { listener, listenInEachTest } from "./listener";

listenInEachTest();
beforeEach(() => {
  told = [];
  key = null;
  leaving = null;
});

let key: string | null = null;
let told: string[] = [];
/** Whoever gives up while a key is asked for. */
let leaving: AbortController | null = null;
const http = new Http({
  key: () => key,
  refused: (old) => {
    told.push(`refused ${old}`);
    leaving?.abort();
    key = "new-key";
    return Promise.resolve();
  },
  reached: () => void told.push("reached"),
  unreachable: () => void told.push("unreachable"),
});
const refuse = (status: number, body: string, headers: Record<string, string> = {}) => (response: ServerResponse) =>
  void response.writeHead(status, headers).end(body);

describe("asking the server", () => {
  it("brings the key along, and asks again with another one when it is refused (S4.a)", async () => {
    key = "old-key";
    listener.answers = [refuse(401, "{}"), (response) => response.end('{"fine": true}')];
    expect(await http.json("/v1/models", { method: "POST", body: { a: 1 } })).toEqual({ fine: true });
    expect(listener.asked.map(({ headers }) => headers.authorization)).toEqual(["Bearer old-key", "Bearer new-key"]);
    expect(listener.asked.map(({ method, body }) => [method, body])).toEqual([["POST", '{"a":1}'], ["POST", '{"a":1}']]);
    expect(listener.asked[0]!.headers["content-type"]).toBe("application/json");
    expect(told).toEqual(["reached", "refused old-key", "reached"]);
  });

  it("sends no key when there is none", async () => {
    await http.json("/v1/models");
    expect(listener.asked[0]!.headers.authorization).toBeUndefined();
  });

  it("does not ask again once it was given up while a key was asked for", async () => {
    leaving = new AbortController();
    listener.answers = [refuse(401, "{}")];
    await expect(http.json("/v1/models", { signal: leaving.signal })).rejects.toThrow(/abort/i);
    expect(listener.asked).toHaveLength(1);
    expect(told).not.toContain("unreachable"); // giving up says nothing of the server
  });

  it("throws what the server says: its words, its code, and when to try again", async () => {
    const body = JSON.stringify({ error: { message: "Too many runs.", code: "limit_reached" } });
    listener.answers = [refuse(429, body, { "Retry-After": "7" })];
    const error = (await http.json("/v1/runs").catch((thrown: unknown) => thrown)) as ApiError;
    expect(error).toBeInstanceOf(ApiError);
    expect([error.status, error.message, error.code, error.retrySeconds]).toEqual([429, "Too many runs.", "limit_reached", 7]);
  });

  it("makes do with the status when a proxy answers in its own words", async () => {
    listener.answers = [refuse(502, "<html>Bad gateway</html>", { "Retry-After": "soon" })];
    const error = (await http.json("/v1/runs").catch((thrown: unknown) => thrown)) as ApiError;
    expect([error.status, error.code, error.retrySeconds]).toEqual([502, null, null]);
    expect(error.message).toContain("502");
    expect(told).toEqual(["unreachable"]); // the server itself has said nothing
  });

  it("has reached a server that says itself that it cannot (503)", async () => {
    listener.answers = [refuse(503, '{"error": {"message": "Shutting down."}}', { "Content-Type": "application/json" })];
    await expect(http.json("/v1/runs")).rejects.toThrow("Shutting down.");
    expect(told).toEqual(["reached"]);
  });

  it("says when there was no answer at all", async () => {
    listener.answers = [(response) => void response.destroy()];
    await expect(http.json("/v1/runs")).rejects.toThrow(UnreachableError);
    expect(told).toEqual(["unreachable"]);
  });
});

describe("the server's resources", () => {
  const api = new Api(http);

  it("resume after the event that was seen, the first included (R7.a)", async () => {
    const { signal } = new AbortController();
    for (const after of [-1, 0, 7]) await api.events("run_1", after, signal);
    expect(listener.asked.map(({ path }) => path)).toEqual([
      "/v1/runs/run_1/events",
      "/v1/runs/run_1/events?after=0",
      "/v1/runs/run_1/events?after=7",
    ]);
  });

  it("are changed by their own names (T5.c, T5.d)", async () => {
    await api.stop("run_1");
    await api.approve("run_1", "c1", false);
    await api.steer("run_1", [{ type: "text", text: "shorter" }]);
    await api.forkSession("a/b", { at: 3 });
    await api.updateSession("s", { title: "t" });
    await api.deleteSession("s");
    expect(listener.asked.map(({ method, path, body }) => [method, path, body])).toEqual([
      ["POST", "/v1/runs/run_1/stop", ""],
      ["POST", "/v1/runs/run_1/approval", '{"approved":false,"call_id":"c1"}'],
      ["POST", "/v1/runs/run_1/messages", '{"content":"shorter"}'],
      ["POST", "/v1/sessions/a%2Fb/fork", '{"at":3}'],
      ["PATCH", "/v1/sessions/s", '{"title":"t"}'],
      ["DELETE", "/v1/sessions/s", ""],
    ]);
  });

  it("are listed as they are filtered, and what is not set is not asked for", async () => {
    await api.runs({ status: "running", model: "" });
    await api.sessions("", "1.5:s");
    expect(listener.asked.map(({ path }) => path)).toEqual(["/v1/runs?limit=50&status=running", "/v1/sessions?before=1.5%3As&limit=50"]);
  });
});
