"""A scripted reply as Anthropic Messages. Implements `format.ReplyFormat`."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from holdfast.chaos.reply import Reply, pieces_of
from holdfast.chaos.wire.format import ReplyFrame, argument_pieces, call_id_of, encode_event
from holdfast.messages import Finish, Usage


class AnthropicFormat:
    """Anthropic Messages."""

    _finishes: Final[dict[Finish, str]] = {
        "stop": "end_turn",
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "content_filter": "refusal",
        "refusal": "refusal",
    }

    def frames(self, reply: Reply, model: str, usage: bool) -> Iterator[ReplyFrame]:
        """Events from `message_start` to `message_stop`."""

        def event(kind: str, **fields: Any) -> bytes:
            return encode_event({"type": kind, **fields})

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
                for index, piece in argument_pieces(reply):
                    if index not in begun:
                        begun.add(index)
                        call = reply.calls[index]
                        use = {"type": "tool_use", "id": call_id_of(call, index), "name": call.name, "input": {}}
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
        spent = {"output_tokens": reply.usage.output_tokens}
        yield "finish", event("message_delta", delta=self._ending(reply), usage=spent)
        yield "end", event("message_stop")

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return {
            "input_tokens": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
            "cache_read_input_tokens": usage.cached_tokens,
            "cache_creation_input_tokens": usage.cache_write_tokens,
            "output_tokens": usage.output_tokens,
        }

    def _ending(self, reply: Reply) -> dict[str, Any]:
        if reply.stopped_by:
            return {"stop_reason": "stop_sequence", "stop_sequence": reply.stopped_by}
        return {"stop_reason": self._finishes[reply.ended], "stop_sequence": None}

    def plain(self, reply: Reply, model: str) -> dict[str, Any]:
        """A `message`."""
        content: list[dict[str, Any]] = []
        if reply.reasoning:
            content.append({"type": "thinking", "thinking": reply.whole_reasoning, "signature": reply.seal})
        if reply.text:
            content.append({"type": "text", "text": "".join(pieces_of(reply.text))})
        for index, call in enumerate(reply.calls):
            arguments = msgspec.Raw(call.arguments.encode())
            content.append({"type": "tool_use", "id": call_id_of(call, index), "name": call.name, "input": arguments})
        if reply.text_after:
            content.append({"type": "text", "text": "".join(pieces_of(reply.text_after))})
        return {
            "id": "msg_scripted",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": content,
            **self._ending(reply),
            "usage": self._usage(reply.usage),
        }

    def error(self, status: int, message: str) -> dict[str, Any]:
        """Anthropic's envelope."""
        return {"type": "error", "error": {"type": _anthropic_type(status), "message": message}}

    def error_event(self, message: str) -> bytes:
        """An `error` event; the type is one that stands for no status."""
        return encode_event({"type": "error", "error": {"type": "scripted_error", "message": message}})

    def limit_event(self, message: str) -> bytes:
        """An `error` event, by its type."""
        return encode_event({"type": "error", "error": {"type": "rate_limit_error", "message": message}})


def _anthropic_type(status: int) -> str:
    types = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
        529: "overloaded_error",
    }
    return types.get(status, "api_error" if status >= 500 else "invalid_request_error")
