"""How a scripted reply looks in each provider's words: frames of a stream, a plain body, an error.

Written by hand from the providers' documents and not with our own codecs, so that the one can test the other.
Below `provider`; knows no sockets.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, Literal, Protocol, assert_never

import msgspec

from holdfast.chaos.faults import NO_FAULT, Fault
from holdfast.config import WireProtocol
from holdfast.messages import Finish, Usage

FrameKind = Literal["open", "reasoning", "text", "call", "arguments", "close", "finish", "end"]
"""`finish` carries the finish reason, `end` is what comes after it; faults count the others."""
Frame = tuple[FrameKind, bytes]


class ScriptedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that a reply makes."""

    name: str
    arguments: str = "{}"
    """As the model writes them; a stream sends them in pieces of about a third."""
    id: str = ""
    """Empty: `call_0`, `call_1` …"""


def tool_call(name: str, **arguments: Any) -> ScriptedCall:
    """A call with its arguments as JSON."""
    return ScriptedCall(name=name, arguments=msgspec.json.encode(arguments).decode())


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider says to one request."""

    text: str | tuple[str, ...] = ""
    """A string is sent word by word, a tuple piece by piece."""
    reasoning: str | tuple[str, ...] = ""
    calls: tuple[ScriptedCall, ...] = ()
    text_after: str | tuple[str, ...] = ""
    """Text that comes after the tool calls have begun (U4)."""
    interleave: bool = False
    """The arguments of several calls come in turns (U2)."""
    seal: str = ""
    """What the provider wants back (U3): a thinking signature, encrypted reasoning, a thought signature on a call."""
    finish: Finish | None = None
    """None: `tool_calls` when there are calls, else `stop`."""
    usage: Usage = Usage(input_tokens=11, output_tokens=7)
    model: str = ""
    """The model the provider reports; empty: the one that was asked for."""
    delay_seconds: float = 0.0
    """Before each frame after the first. Zero: the whole body is written at once."""
    headers_delay_seconds: float = 0.0
    hold_after: int | None = None
    """Pause after so many chunks of text until the request is released; -1: before the headers."""
    fault: Fault = NO_FAULT

    @property
    def whole_text(self) -> str:
        """The text, joined."""
        return "".join(pieces_of(self.text)) + "".join(pieces_of(self.text_after))

    @property
    def whole_reasoning(self) -> str:
        """The reasoning, joined."""
        return "".join(pieces_of(self.reasoning))

    @property
    def ended(self) -> Finish:
        """The finish reason that is sent."""
        match self.fault.name:
            case "truncated":
                return "length"
            case "content_filter" | "refusal":
                return self.fault.name
            case _:
                return self.finish or ("tool_calls" if self.calls else "stop")


_WORD = re.compile(r"\s*\S+\s*?(?=\s|$)|\s+")


def pieces_of(text: str | tuple[str, ...]) -> tuple[str, ...]:
    """A text as the pieces it is sent in."""
    return text if isinstance(text, tuple) else tuple(_WORD.findall(text))


def _thirds(text: str) -> tuple[str, ...]:
    step = max(1, -(-len(text) // 3))
    return tuple(text[start : start + step] for start in range(0, len(text), step)) or ("",)


def _call_id(call: ScriptedCall, index: int) -> str:
    return call.id or f"call_{index}"


def _turns(reply: Reply) -> Iterator[tuple[int, str]]:
    """The arguments of all calls, piece by piece, in the order they are sent."""
    cut = [_thirds(call.arguments) for call in reply.calls]
    if not reply.interleave:
        yield from ((index, piece) for index, pieces in enumerate(cut) for piece in pieces)
        return
    for turn in range(max(map(len, cut), default=0)):
        yield from ((index, pieces[turn]) for index, pieces in enumerate(cut) if turn < len(pieces))


def _data(payload: Any) -> bytes:
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


def _event(payload: dict[str, Any]) -> bytes:
    return f"event: {payload['type']}\n".encode() + _data(payload)


class Wire(Protocol):
    """One provider's words."""

    def frames(self, reply: Reply, model: str, usage: bool) -> Iterator[Frame]:
        """The body of a streamed answer; `usage`: the client asked for a usage chunk."""
        ...

    def plain(self, reply: Reply, model: str) -> dict[str, Any]:
        """The body of a plain answer."""
        ...

    def error(self, status: int, message: str) -> dict[str, Any]:
        """The body of an answer that is not 2xx."""
        ...

    def error_event(self, message: str) -> bytes:
        """An error inside a stream, without a status."""
        ...


class ChatWire:
    """OpenAI Chat Completions."""

    _finishes: Final[dict[Finish, str]] = {"refusal": "stop"}

    def frames(self, reply: Reply, model: str, usage: bool) -> Iterator[Frame]:
        """Chunks, then `[DONE]`."""
        base = {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": model}

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            return _data({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

        said = "refusal" if reply.ended == "refusal" else "content"
        yield "open", chunk({"role": "assistant", "content": ""})
        for piece in pieces_of(reply.reasoning):
            yield "reasoning", chunk({"reasoning_content": piece})
        for piece in pieces_of(reply.text):
            yield "text", chunk({said: piece})
        begun: set[int] = set()
        for index, piece in _turns(reply):
            if index not in begun:
                begun.add(index)
                yield "call", chunk({"tool_calls": [{**self._call(reply, index, ""), "index": index}]})
            yield "arguments", chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        for piece in pieces_of(reply.text_after):
            yield "text", chunk({said: piece})
        yield "finish", chunk({}, self._finishes.get(reply.ended, reply.ended))
        if usage:
            yield "end", _data({**base, "choices": [], "usage": self._usage(reply.usage)})
        yield "end", b"data: [DONE]\n\n"

    def _call(self, reply: Reply, index: int, arguments: str) -> dict[str, Any]:
        call = reply.calls[index]
        shown: dict[str, Any] = {
            "id": _call_id(call, index),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        }
        if reply.seal and index == 0:
            shown["extra_content"] = {"google": {"thought_signature": reply.seal}}
        return shown

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        }

    def plain(self, reply: Reply, model: str) -> dict[str, Any]:
        """A `chat.completion`."""
        refused = reply.ended == "refusal"
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if refused else reply.whole_text or None,
            "refusal": reply.whole_text if refused else None,
        }
        if reply.reasoning:
            message["reasoning_content"] = reply.whole_reasoning
        if reply.calls:
            message["tool_calls"] = [self._call(reply, index, call.arguments) for index, call in enumerate(reply.calls)]
        finish = self._finishes.get(reply.ended, reply.ended)
        return {
            "id": "chatcmpl-scripted",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
            "usage": self._usage(reply.usage),
        }

    def error(self, status: int, message: str) -> dict[str, Any]:
        """OpenAI's envelope."""
        return {
            "error": {"message": message, "type": _openai_type(status), "param": None, "code": f"scripted_{status}"}
        }

    def error_event(self, message: str) -> bytes:
        """A frame with an `error` object."""
        return _data({"error": {"message": message, "type": "server_error"}})


class ResponsesWire:
    """OpenAI Responses."""

    def frames(self, reply: Reply, model: str, usage: bool) -> Iterator[Frame]:
        """Events, numbered; the last is `response.completed` or `response.incomplete`."""
        number = -1

        def event(kind: str, **fields: Any) -> bytes:
            nonlocal number
            number += 1
            return _event({"type": kind, "sequence_number": number, **fields})

        response = {**self.plain(reply, model), "status": "in_progress", "output": [], "usage": None}
        response["incomplete_details"] = None
        yield "open", event("response.created", response=response)
        yield "open", event("response.in_progress", response=response)
        items = self._output(reply)
        shown: list[dict[str, Any]] = []
        for place, item in enumerate(items):
            where = {"output_index": place, "item_id": item["id"]}
            match item["type"]:
                case "reasoning":
                    yield "open", event("response.output_item.added", output_index=place, item={**item, "summary": []})
                    part = {"summary_index": 0, **where}
                    empty = {"type": "summary_text", "text": ""}
                    yield "open", event("response.reasoning_summary_part.added", part=empty, **part)
                    for piece in pieces_of(reply.reasoning):
                        yield "reasoning", event("response.reasoning_summary_text.delta", delta=piece, **part)
                    text = reply.whole_reasoning
                    yield "close", event("response.reasoning_summary_text.done", text=text, **part)
                    yield "close", event("response.reasoning_summary_part.done", part=item["summary"][0], **part)
                    yield "close", event("response.output_item.done", output_index=place, item=item)
                case "message":
                    yield from self._message_frames(event, reply, item, where)
                case _:
                    shown.append(item)
                    if len(shown) == len(reply.calls):
                        yield from self._call_frames(event, reply, items)
        last = self.plain(reply, model)
        yield "finish", event(f"response.{last['status']}", response=last)

    def _message_frames(self, event: Any, reply: Reply, item: dict[str, Any], where: dict[str, Any]) -> Iterator[Frame]:
        yield (
            "open",
            event("response.output_item.added", output_index=where["output_index"], item={**item, "content": []}),
        )
        content = item["content"][0]
        said, key = ("refusal", "refusal") if content["type"] == "refusal" else ("output_text", "text")
        part = {"content_index": 0, **where}
        more: dict[str, Any] = {"logprobs": []} if said == "output_text" else {}
        yield "open", event("response.content_part.added", part={**content, key: ""}, **part)
        for piece in pieces_of(reply.text_after if item["id"] == "msg_after" else reply.text):
            yield "text", event(f"response.{said}.delta", delta=piece, **more, **part)
        yield "close", event(f"response.{said}.done", **{key: content[key]}, **more, **part)
        yield "close", event("response.content_part.done", part=content, **part)
        yield "close", event("response.output_item.done", output_index=where["output_index"], item=item)

    def _call_frames(self, event: Any, reply: Reply, items: list[dict[str, Any]]) -> Iterator[Frame]:
        calls = [(place, item) for place, item in enumerate(items) if item["type"] == "function_call"]
        begun: set[int] = set()
        for index, piece in _turns(reply):
            place, item = calls[index]
            if index not in begun:
                begun.add(index)
                opened = {**item, "arguments": "", "status": "in_progress"}
                yield "call", event("response.output_item.added", output_index=place, item=opened)
            delta = "response.function_call_arguments.delta"
            yield "arguments", event(delta, output_index=place, item_id=item["id"], delta=piece)
        for place, item in calls:
            whole = {"output_index": place, "item_id": item["id"], "name": item["name"], "arguments": item["arguments"]}
            yield "close", event("response.function_call_arguments.done", **whole)
            yield "close", event("response.output_item.done", output_index=place, item=item)

    def _output(self, reply: Reply) -> list[dict[str, Any]]:
        output: list[dict[str, Any]] = []
        if reply.reasoning:
            summary = [{"type": "summary_text", "text": reply.whole_reasoning}]
            reasoning = {"id": "rs_0", "type": "reasoning", "summary": summary}
            output.append({**reasoning, "encrypted_content": reply.seal} if reply.seal else reasoning)
        if reply.text:
            output.append(self._message("msg_0", reply, reply.text))
        for index, call in enumerate(reply.calls):
            output.append(
                {
                    "id": f"fc_{index}",
                    "type": "function_call",
                    "status": "completed",
                    "call_id": _call_id(call, index),
                    "name": call.name,
                    "arguments": call.arguments,
                }
            )
        if reply.text_after:
            output.append(self._message("msg_after", reply, reply.text_after))
        return output

    def _message(self, name: str, reply: Reply, said: str | tuple[str, ...]) -> dict[str, Any]:
        text = "".join(pieces_of(said))
        content: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        if reply.ended == "refusal":
            content = {"type": "refusal", "refusal": text}
        return {"id": name, "type": "message", "role": "assistant", "status": "completed", "content": [content]}

    def plain(self, reply: Reply, model: str) -> dict[str, Any]:
        """A `response`."""
        reasons: dict[Finish, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
        reason = reasons.get(reply.ended)
        usage = reply.usage
        return {
            "id": "resp_scripted",
            "object": "response",
            "created_at": 1_700_000_000,
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "error": None,
            "model": model,
            "output": self._output(reply),
            "usage": {
                "input_tokens": usage.input_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens},
                "output_tokens": usage.output_tokens,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
                "total_tokens": usage.total_tokens,
            },
        }

    def error(self, status: int, message: str) -> dict[str, Any]:
        """OpenAI's envelope."""
        return ChatWire().error(status, message)

    def error_event(self, message: str) -> bytes:
        """An `error` event."""
        return _event({"type": "error", "error": {"message": message, "type": "server_error", "code": None}})


class AnthropicWire:
    """Anthropic Messages."""

    _finishes: Final[dict[Finish, str]] = {
        "stop": "end_turn",
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "content_filter": "refusal",
        "refusal": "refusal",
    }

    def frames(self, reply: Reply, model: str, usage: bool) -> Iterator[Frame]:
        """Events from `message_start` to `message_stop`."""

        def event(kind: str, **fields: Any) -> bytes:
            return _event({"type": kind, **fields})

        def delta(block: int, kind: str, **fields: Any) -> bytes:
            return event("content_block_delta", index=block, delta={"type": kind, **fields})

        def opened(block: int, content: dict[str, Any]) -> bytes:
            return event("content_block_start", index=block, content_block=content)

        counts = {**self._usage(reply.usage), "output_tokens": 1}
        message = {**self.plain(reply, model), "content": [], "stop_reason": None, "usage": counts}
        yield "open", event("message_start", message=message)
        yield "open", event("ping")
        block = 0
        if reply.reasoning:
            yield "open", opened(block, {"type": "thinking", "thinking": "", "signature": ""})
            for piece in pieces_of(reply.reasoning):
                yield "reasoning", delta(block, "thinking_delta", thinking=piece)
            if reply.seal:
                yield "close", delta(block, "signature_delta", signature=reply.seal)
            yield "close", event("content_block_stop", index=block)
            block += 1
        for text in (reply.text, None, reply.text_after):
            if text is None:
                first = block
                block += len(reply.calls)
                begun: set[int] = set()
                for index, piece in _turns(reply):
                    if index not in begun:
                        begun.add(index)
                        call = reply.calls[index]
                        use = {"type": "tool_use", "id": _call_id(call, index), "name": call.name, "input": {}}
                        yield "call", opened(first + index, use)
                    yield "arguments", delta(first + index, "input_json_delta", partial_json=piece)
                for index in range(len(reply.calls)):
                    yield "close", event("content_block_stop", index=first + index)
            elif text:
                yield "open", opened(block, {"type": "text", "text": ""})
                for piece in pieces_of(text):
                    yield "text", delta(block, "text_delta", text=piece)
                yield "close", event("content_block_stop", index=block)
                block += 1
        ended = {"stop_reason": self._finishes[reply.ended], "stop_sequence": None}
        yield "finish", event("message_delta", delta=ended, usage={"output_tokens": reply.usage.output_tokens})
        yield "end", event("message_stop")

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return {
            "input_tokens": usage.input_tokens - usage.cached_tokens,
            "cache_read_input_tokens": usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": usage.output_tokens,
        }

    def plain(self, reply: Reply, model: str) -> dict[str, Any]:
        """A `message`."""
        content: list[dict[str, Any]] = []
        if reply.reasoning:
            content.append({"type": "thinking", "thinking": reply.whole_reasoning, "signature": reply.seal})
        if reply.text:
            content.append({"type": "text", "text": "".join(pieces_of(reply.text))})
        for index, call in enumerate(reply.calls):
            arguments = msgspec.Raw(call.arguments.encode())
            content.append({"type": "tool_use", "id": _call_id(call, index), "name": call.name, "input": arguments})
        if reply.text_after:
            content.append({"type": "text", "text": "".join(pieces_of(reply.text_after))})
        return {
            "id": "msg_scripted",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": content,
            "stop_reason": self._finishes[reply.ended],
            "stop_sequence": None,
            "usage": self._usage(reply.usage),
        }

    def error(self, status: int, message: str) -> dict[str, Any]:
        """Anthropic's envelope."""
        return {"type": "error", "error": {"type": _anthropic_type(status), "message": message}}

    def error_event(self, message: str) -> bytes:
        """An `error` event; the type is one that stands for no status."""
        return _event({"type": "error", "error": {"type": "scripted_error", "message": message}})


def _openai_type(status: int) -> str:
    types = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return types.get(status, "server_error" if status >= 500 else "invalid_request_error")


def _anthropic_type(status: int) -> str:
    types = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
        529: "overloaded_error",
    }
    return types.get(status, "api_error" if status >= 500 else "invalid_request_error")


def wire_of(protocol: WireProtocol) -> Wire:
    """The words of a protocol."""
    match protocol:
        case "chat_completions":
            return ChatWire()
        case "responses":
            return ResponsesWire()
        case "anthropic_messages":
            return AnthropicWire()
        case _:
            assert_never(protocol)


@lru_cache(maxsize=512)
def render_frames(protocol: WireProtocol, reply: Reply, model: str, usage: bool) -> tuple[Frame, ...]:
    """The frames of a streamed reply, rendered once: a load test asks for the same reply many times."""
    return tuple(wire_of(protocol).frames(reply, reply.model or model, usage))


@lru_cache(maxsize=512)
def render_plain(protocol: WireProtocol, reply: Reply, model: str) -> bytes:
    """The body of a plain reply, rendered once."""
    return msgspec.json.encode(wire_of(protocol).plain(reply, reply.model or model))
