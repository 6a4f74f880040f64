import { describe, expect, it } from "vitest";
import { ending, endingLine } from "../src/lib/endings";
import type { Outcome, OutcomeName } from "../src/lib/wire";

const REASONS: Record<Exclude<OutcomeName, "completed">, string[]> = {
  incomplete: ["max_output_tokens", "content_filter", "max_turns", "max_tool_calls", "stream_interrupted", "server_restart"],
  failed: ["upstream_error", "upstream_disconnected", "internal"],
  cancelled: ["user", "client_disconnect", "timeout", "shutdown", "replaced"],
  requires_action: ["client_tools", "approval"],
};
const outcomes: Outcome[] = Object.entries(REASONS).flatMap(([outcome, reasons]) =>
  reasons.map((reason) => ({ outcome: outcome as OutcomeName, reason })),
);
const refused = (status: number | undefined, more: Partial<Outcome> = {}): Outcome => ({
  outcome: "failed", reason: "upstream_error", message: "The provider's words.", ...(status ? { status } : {}), ...more,
});
const told = (outcome: Outcome, kept = 12) => ending(outcome, kept)!;
const said = (outcome: Outcome, kept = 12) => {
  const { title, why, kept: rest, advice } = told(outcome, kept);
  return [`${title}.`, why, rest, advice].filter(Boolean).join(" ");
};

describe("an ending", () => {
  it("is passed over in silence only when the run completed", () => {
    expect(ending({ outcome: "completed" }, 12)).toBeNull();
    expect(endingLine({ outcome: "completed" })).toBe("");
    const newer = [{ outcome: "incomplete", reason: "something new" }, { outcome: "evaporated" as OutcomeName }] as Outcome[];
    for (const outcome of [...outcomes, ...newer]) {
      for (const kept of [0, 12]) expect(said(outcome, kept)).not.toMatch(/\bcompleted\b|\bdone\b\.$|undefined/i);
      expect(endingLine(outcome)).toBeTruthy();
    }
  });

  it("has a sentence of its own for each reason", () => {
    const lines = outcomes.map(endingLine);
    expect(new Set(lines).size).toBe(lines.length);
  });

  it("speaks of a lost connection or of the model only where that is why", () => {
    const lost = outcomes.filter((outcome) => /connection|broke|lost|reached$|be reached/i.test(said(outcome)));
    expect(lost.map(({ reason }) => reason)).toEqual(["stream_interrupted", "upstream_disconnected"]);
    for (const status of [400, 401, 403, 404, 429, 500, 529]) expect(said(refused(status))).not.toMatch(/connection|broke|lost/i);
  });

  it("says what is kept, and each thing once", () => {
    expect(said({ outcome: "incomplete", reason: "stream_interrupted" })).toContain("What had arrived is kept: 12 characters.");
    expect(said({ outcome: "cancelled", reason: "user" }, 0)).toBe("Stopped on request. No text had arrived yet.");
    expect(said({ outcome: "cancelled", reason: "user", message: "The run was stopped on request." })).toBe(
      "Stopped on request. What had arrived is kept: 12 characters.",
    );
  });

  it("is told in the server's own words where they say more than the reason", () => {
    const outcome: Outcome = { outcome: "incomplete", reason: "content_filter", message: "The model refused to answer" };
    expect(endingLine(outcome)).toBe("Not finished. The model refused to answer.");
  });
});

describe("a provider's no", () => {
  const advice: [Outcome, RegExp, RegExp][] = [
    [refused(401), /^Refused by the provider/, /API key/],
    [refused(402), /^Refused by the provider/, /credit/],
    [refused(403), /^Refused by the provider/, /may use the model/],
    [refused(404), /^Refused by the provider/, /model's name/],
    [refused(413), /^Refused by the provider/, /too long/],
    [refused(400, { code: "context_length_exceeded" }), /^Refused by the provider/, /too long/],
    [refused(429), /^Rate limited by the provider/, /Try again in a moment/],
    [refused(429, { code: "insufficient_quota" }), /^Refused by the provider/, /credit/],
    [refused(500), /^The provider reported an error/, /in a moment/],
    [refused(undefined, { error_type: "rate_limit_error" }), /^Rate limited by the provider/, /Try again in a moment/],
    [refused(undefined, { error_type: "authentication_error" }), /^Refused by the provider/, /API key/],
    [refused(undefined), /^The provider reported an error/, /^$/],
  ];

  it.each(advice)("is told with its words and what to do: %o", (outcome, title, what) => {
    expect(told(outcome, 0).title.endsWith(` (status ${outcome.status})`)).toBe(outcome.status !== undefined);
    expect(told(outcome, 0)).toMatchObject({ why: "The provider's words.", kept: "", remedy: "retry", tone: "error" });
    expect(told(outcome, 0).title).toMatch(title);
    expect(told(outcome, 0).advice).toMatch(what);
  });

  it("says when to try again, if the provider did", () => {
    expect(told(refused(429, { retry_after_seconds: 20 })).retrySeconds).toBe(20);
    expect(told(refused(429)).retrySeconds).toBeNull();
  });
});

describe("what would help", () => {
  it("is to go on from what there is, or to ask again where there is nothing to go on from", () => {
    const remedy = (outcome: Outcome, kept: number) => ending(outcome, kept)?.remedy;
    expect(remedy({ outcome: "incomplete", reason: "max_output_tokens" }, 12)).toBe("continue");
    expect(remedy({ outcome: "incomplete", reason: "max_output_tokens" }, 0)).toBe("retry");
    expect(remedy({ outcome: "incomplete", reason: "content_filter" }, 12)).toBe("retry");
    expect(remedy({ outcome: "failed", reason: "upstream_error" }, 12)).toBe("retry");
    expect(remedy({ outcome: "cancelled", reason: "user" }, 12)).toBe("continue");
    expect(remedy({ outcome: "cancelled", reason: "user" }, 0)).toBe("retry");
    expect(remedy({ outcome: "requires_action", reason: "client_tools" }, 0)).toBeNull();
  });
});

describe("what is kept (T3.b)", () => {
  it("is told where there is something, or where something was to be expected", () => {
    const kept = (outcome: Outcome, characters: number) => ending(outcome, characters)!.kept;
    expect([
      kept({ outcome: "cancelled", reason: "user" }, 0),
      kept({ outcome: "failed", reason: "internal" }, 0),
      kept({ outcome: "requires_action", reason: "client_tools" }, 0),
      kept({ outcome: "requires_action", reason: "client_tools" }, 1),
      kept({ outcome: "failed", reason: "internal" }, 1200),
    ]).toEqual(["No text had arrived yet.", "", "", "What had arrived is kept: 1 character.", "What had arrived is kept: 1,200 characters."]);
  });
});
