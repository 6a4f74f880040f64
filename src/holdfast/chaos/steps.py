"""What is done to answer one request, step by step: what to send, when to wait, and how to break off.

Every fault of the table is acted out here, and none of it needs a socket: `provider` above plays the steps on one.
Below: `wire`, which has the words.
"""

import enum
import itertools
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import msgspec

from holdfast.chaos.faults import STATUSES
from holdfast.chaos.recorded import RecordedRequest
from holdfast.chaos.reply import Reply, tool_call
from holdfast.chaos.wire.format import FrameKind, ReplyFrame
from holdfast.chaos.wire.formats import FORMATS, render_frames, render_plain
from holdfast.config import WireProtocol


class ReplyAct(enum.Enum):
    """What a connection does besides sending bytes and waiting."""

    KEEP = "keep"
    CLOSE = "close"
    RESET = "reset"
    HALF_CLOSE = "half_close"
    HANG = "hang"
    HOLD = "hold"


ReplyStep = bytes | float | ReplyAct
"""Bytes to send, seconds to wait, or something to do."""

_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_LAST_CHUNK: Final = b"0\r\n\r\n"
_LOST: Final = "Network connection lost."
_FINAL: Final = "The model crashed while it was answering."
_WRITE_FILE: Final = tool_call("write_file", path="notes.txt", content="All that glitters is not gold. " * 4)


def make_response(status: int, body: bytes, headers: str = "") -> bytes:
    """A whole response, with a body of JSON."""
    head = (
        f"HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    )
    return head.encode() + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def steps_of(reply: Reply, request: RecordedRequest, protocol: WireProtocol) -> Iterator[ReplyStep]:
    """All that is sent to answer one request."""
    fault = reply.fault
    if reply.headers_delay_seconds:
        yield reply.headers_delay_seconds
    if reply.hold_after == -1:
        yield ReplyAct.HOLD
    match fault.name:
        case "stall_before_headers":
            yield ReplyAct.HANG
        case "reset_before_headers":
            yield ReplyAct.RESET
        case "not_http":
            yield b"SSH-2.0-scripted\r\n\r\n"
            yield ReplyAct.CLOSE
        case "redirect":
            yield make_response(307, b"", "Location: http://elsewhere.invalid/v1/messages?key=1\r\n")
        case "status":
            yield _refusal(fault.number, fault.retry_after, protocol)
        case "no_streaming" if request.streams:
            message = "Streaming is not supported for this model."
            yield make_response(400, msgspec.json.encode(FORMATS[protocol].error(400, message)))
        case _ if request.counts:
            yield make_response(200, msgspec.json.encode({"input_tokens": reply.count}))
        case _ if request.streams and fault.name != "only_plain":
            yield from _stream_steps(reply, request, protocol)
        case _:
            yield from _plain_steps(reply, request.model, protocol)


def _refusal(status: int, retry_after: str | None, protocol: WireProtocol) -> bytes:
    message = "The script has no more replies." if status == 418 else STATUSES.get(status, "The request failed.")
    wait = ("1" if status == 429 else "") if retry_after is None else retry_after
    body = msgspec.json.encode(FORMATS[protocol].error(status, message))
    return make_response(status, body, f"Retry-After: {wait}\r\n" if wait else "")


def _stream_steps(reply: Reply, request: RecordedRequest, protocol: WireProtocol) -> Iterator[ReplyStep]:
    fault = reply.fault
    if fault.name in ("cut_tool_call", "stall_tool_call") and not reply.calls:
        reply = msgspec.structs.replace(reply, calls=(_WRITE_FILE,))
    options = request.body.get("stream_options")
    usage = isinstance(options, dict) and options.get("include_usage") is True
    delay = fault.number / 1000 if fault.name == "slow" else reply.delay_seconds
    if not delay and fault.name == "none" and reply.hold_after is None:
        yield _whole_body(protocol, reply, request.model, usage)
        return
    frames = render_frames(protocol, reply, request.model, usage)
    before: tuple[ReplyFrame, ...] = frames
    after: tuple[ReplyFrame, ...] = ()
    act: ReplyAct = ReplyAct.KEEP
    extra = b""
    match fault.name:
        case "die_after":
            before, act = _upto(frames, "text", fault.number), ReplyAct.CLOSE
        case "reset":
            before, act = _upto(frames, "text", fault.number), ReplyAct.RESET
        case "half_close":
            before, act = _upto(frames, "text", fault.number), ReplyAct.HALF_CLOSE
        case "stall" | "stall_with_comments":
            before, act = _upto(frames, "text", fault.number), ReplyAct.HANG
        case "stall_after_headers":
            before, act = (), ReplyAct.HANG
        case "eof":
            before = _upto(frames, "text", fault.number)
        case "cut_frame":
            before, act = _upto(frames, "text", fault.number), ReplyAct.CLOSE
            following = frames[len(before)][1]
            extra = following[: len(following) // 2]
        case "cut_tool_call":
            before, act = _upto(frames, "arguments", fault.number), ReplyAct.CLOSE
        case "stall_tool_call":
            before, act = _upto(frames, "arguments", fault.number), ReplyAct.HANG
        case "no_terminator":
            before = _upto(frames, "finish", 1)
        case "hang_after_finish":
            before, act = _upto(frames, "finish", 1), ReplyAct.HANG
        case "error_event":
            before, extra = _upto(frames, "text", fault.number), FORMATS[protocol].error_event(_FINAL)
        case "limit_event":
            before, extra = _upto(frames, "text", fault.number), FORMATS[protocol].limit_event(STATUSES[429])
        case "lost_event":
            before, extra = _upto(frames, "text", fault.number), FORMATS[protocol].error_event(_LOST)
        case "garbage":
            before, extra = _upto(frames, "text", fault.number), b"data: {this is not JSON\n\n"
            after = frames[len(before) :]
        case _:
            pass
    yield _STREAM_HEAD
    yield from _paced(before, delay, reply.hold_after)
    if extra:
        yield _chunk(extra)
    yield from _paced(after, delay, None)
    if fault.name in ("stall_with_comments", "stall_after_headers"):
        yield from itertools.cycle((0.02, _chunk(b": keepalive\n\n")))
    if act is ReplyAct.KEEP:
        yield _LAST_CHUNK
    yield act


def _upto(frames: tuple[ReplyFrame, ...], kind: FrameKind, count: int) -> tuple[ReplyFrame, ...]:
    """The frames up to and including the count-th of a kind; with 0, those before the first of them.

    A stream that has fewer is cut before its finish reason, so that a fault never turns into a whole answer.
    """
    seen = 0
    for place, (each, _) in enumerate(frames):
        if each == kind:
            seen += 1
            if seen > count:
                return frames[:place]
            if seen == count:
                return frames[: place + 1]
        elif each == "finish":
            return frames[:place]
    return frames


def _paced(frames: tuple[ReplyFrame, ...], delay: float, hold_after: int | None) -> Iterator[ReplyStep]:
    texts = 0
    if hold_after == 0:
        yield ReplyAct.HOLD
    for place, (kind, data) in enumerate(frames):
        if delay and place:
            yield delay
        yield _chunk(data)
        texts += kind == "text"
        if kind == "text" and texts == hold_after:
            yield ReplyAct.HOLD


@lru_cache(maxsize=512)
def _whole_body(protocol: WireProtocol, reply: Reply, model: str, usage: bool) -> bytes:
    frames = render_frames(protocol, reply, model, usage)
    return _STREAM_HEAD + b"".join(_chunk(data) for _, data in frames) + _LAST_CHUNK


def _plain_steps(reply: Reply, model: str, protocol: WireProtocol) -> Iterator[ReplyStep]:
    body = render_plain(protocol, reply, model)
    whole = make_response(200, body)
    half = len(whole) - len(body) // 2
    if reply.hold_after is not None and reply.hold_after >= 0:
        yield ReplyAct.HOLD
    match reply.fault.name:
        case "die_after" | "cut_frame" | "cut_tool_call":
            yield whole[:half]
            yield ReplyAct.CLOSE
        case "reset":
            yield whole[:half]
            yield ReplyAct.RESET
        case "half_close":
            yield whole[:half]
            yield ReplyAct.HALF_CLOSE
        case "stall" | "stall_with_comments" | "stall_tool_call" | "stall_after_headers":
            yield whole[:half]
            yield ReplyAct.HANG
        case "eof":
            yield make_response(200, body[: len(body) // 2])
        case "garbage":
            yield make_response(200, b"<html>This is not JSON.</html>")
        case "error_event":
            yield make_response(200, msgspec.json.encode(FORMATS[protocol].error(500, _FINAL)))
        case "limit_event":
            yield make_response(200, msgspec.json.encode(FORMATS[protocol].error(429, STATUSES[429])))
        case "lost_event":
            event = FORMATS[protocol].error_event(_LOST)
            yield make_response(200, re.sub(rb"^data: |^event: .*\ndata: ", b"", event))
        case "slow":
            yield reply.fault.number / 1000
            yield whole
        case _:
            yield whole
