"""The wire protocols by their names in the configuration. The one place that knows every codec."""

from typing import Final

from holdfast.config import WireProtocol
from holdfast.upstream.protocols.anthropic.decode import AnthropicCodec
from holdfast.upstream.protocols.chat_completions.decode import ChatCompletionsCodec
from holdfast.upstream.protocols.chat_completions.encode import ChatQuirks
from holdfast.upstream.protocols.codec import Codec
from holdfast.upstream.protocols.responses.decode import ResponsesCodec

CODECS: Final[dict[WireProtocol, Codec]] = {
    "chat_completions": ChatCompletionsCodec(),
    "responses": ResponsesCodec(),
    "anthropic_messages": AnthropicCodec(),
}


def make_codec(protocol: WireProtocol, quirks: ChatQuirks | None = None) -> Codec:
    """A protocol's codec; the quirks are those of a provider of Chat Completions, and mean nothing to the others."""
    return ChatCompletionsCodec(quirks) if quirks and protocol == "chat_completions" else CODECS[protocol]
