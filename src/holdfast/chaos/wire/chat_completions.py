"""A scripted reply as OpenAI Chat Completions. Implements `format.ReplyFormat`."""

from collections.abc import Iterator
from typing import Any, Final

from holdfast.chaos.reply import Reply, pieces_of
from holdfast.chaos.wire.format import ReplyFrame, argument_pieces, call_id_of, encode_data, openai_error
from holdfast.messages import Finish, Usage


class ChatCompletionsFormat:
    """OpenAI Chat Completions."""

    _finishes: Final[dict[Finish, str]] = {"refusal": "stop"}

    def frames(self, reply: Reply, model: str, usage: bool) -> Iterator[ReplyFrame]:
        """Chunks, then `[DONE]`."""
        base = {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": model}

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            return encode_data({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

        said = "refusal" if reply.ended == "refusal" else "content"
        yield "open", chunk({"role": "assistant", "content": ""})
        for piece in pieces_of(reply.reasoning):
            yield "reasoning", chunk({"reasoning_content": piece})
        for piece in pieces_of(reply.text):
            yield "text", chunk({said: piece})
        begun: set[int] = set()
        for index, piece in argument_pieces(reply):
            if index not in begun:
                begun.add(index)
                yield "call", chunk({"tool_calls": [{**self._call(reply, index, ""), "index": index}]})
            yield "arguments", chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        for piece in pieces_of(reply.text_after):
            yield "text", chunk({said: piece})
        yield "finish", chunk({}, self._finishes.get(reply.ended, reply.ended))
        if usage:
            yield "end", encode_data({**base, "choices": [], "usage": self._usage(reply.usage)})
        yield "end", b"data: [DONE]\n\n"

    def _call(self, reply: Reply, index: int, arguments: str) -> dict[str, Any]:
        call = reply.calls[index]
        shown: dict[str, Any] = {
            "id": call_id_of(call, index),
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
        return openai_error(status, message)

    def error_event(self, message: str) -> bytes:
        """A frame with an `error` object."""
        return encode_data({"error": {"message": message, "type": "server_error"}})

    def limit_event(self, message: str) -> bytes:
        """As a router writes it: by the number."""
        return encode_data({"error": {"message": message, "code": 429}})
