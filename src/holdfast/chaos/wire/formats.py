"""The formats by the protocols' names, and replies rendered in them. `steps` sits above."""

from functools import lru_cache
from typing import Final

import msgspec

from holdfast.chaos.reply import Reply
from holdfast.chaos.wire.anthropic import AnthropicFormat
from holdfast.chaos.wire.chat_completions import ChatCompletionsFormat
from holdfast.chaos.wire.format import ReplyFormat, ReplyFrame
from holdfast.chaos.wire.responses import ResponsesFormat
from holdfast.config import WireProtocol

FORMATS: Final[dict[WireProtocol, ReplyFormat]] = {
    "chat_completions": ChatCompletionsFormat(),
    "responses": ResponsesFormat(),
    "anthropic_messages": AnthropicFormat(),
}


@lru_cache(maxsize=512)
def render_frames(protocol: WireProtocol, reply: Reply, model: str, usage: bool) -> tuple[ReplyFrame, ...]:
    """The frames of a streamed reply, rendered once: a load test asks for the same reply many times."""
    return tuple(FORMATS[protocol].frames(reply, reply.model or model, usage))


@lru_cache(maxsize=512)
def render_plain(protocol: WireProtocol, reply: Reply, model: str) -> bytes:
    """The body of a plain reply, rendered once."""
    return msgspec.json.encode(FORMATS[protocol].plain(reply, reply.model or model))
