import { expect, it } from "vitest";
import { SseDecoder } from "../src/lib/sse";

const recorded = new TextEncoder().encode(
  ': attached\nid: 0\nevent: run.started\ndata: {"a": "é…😀"}\n\n: keepalive\nid: 1\r\ndata: one\r\ndata: two\r\n\r\ndata: bare\n\nid: 9\ndata: unfinished',
);
const frames = [
  { id: "0", event: "run.started", data: '{"a": "é…😀"}' },
  { id: "1", event: "", data: "one\ntwo" },
  { id: "", event: "", data: "bare" },
];

it("gives the same frames wherever the bytes are cut", () => {
  for (let cut = 0; cut <= recorded.length; cut++) {
    const decoder = new SseDecoder();
    expect([...decoder.feed(recorded.slice(0, cut)), ...decoder.feed(recorded.slice(cut))]).toEqual(frames);
  }
});

it("gives the same frames byte by byte", () => {
  const decoder = new SseDecoder();
  expect([...recorded].flatMap((byte) => decoder.feed(Uint8Array.of(byte)))).toEqual(frames);
});
