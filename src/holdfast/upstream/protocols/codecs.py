"""The wire protocols by their names in the configuration. The one place that knows every codec.

A codec only says which parts belong together: `encode` and `decode` of its folder do the work. `providers` sits above.
"""

from typing import Final

from holdfast.config import WireProtocol
from holdfast.upstream.port import ModelCall, Options
from holdfast.upstream.protocols.anthropic.decode import AnthropicDecoder
from holdfast.upstream.protocols.anthropic.encode import (
    API_VERSION,
    encode_anthropic_request,
    encode_count_request,
    find_left_out,
)
from holdfast.upstream.protocols.chat_completions.decode import ChatCompletionsDecoder
from holdfast.upstream.protocols.chat_completions.encode import ChatQuirks, encode_chat_request
from holdfast.upstream.protocols.codec import Codec
from holdfast.upstream.protocols.responses.decode import LenientResponsesDecoder, ResponsesDecoder
from holdfast.upstream.protocols.responses.encode import encode_responses_request

SAMPLING: Final = frozenset({"frequency_penalty", "logit_bias", "presence_penalty", "seed", "verbosity"})
"""Options that only Chat Completions has all of."""
TOP_K: Final = frozenset({"top_k"})
"""What only Anthropic has. Some that imitate OpenAI have it too, but OpenAI refuses what it does not know."""


class ChatCompletionsCodec(Codec):
    """OpenAI Chat Completions, as one provider speaks it."""

    path = "/chat/completions"
    decoder = ChatCompletionsDecoder

    def __init__(self, quirks: ChatQuirks | None = None) -> None:
        self.quirks = quirks or ChatQuirks()
        self.lacks = self.quirks.unsupported & SAMPLING | TOP_K

    def encode_request(self, call: ModelCall, *, stream: bool) -> bytes:
        """The body to post."""
        return encode_chat_request(call, self.quirks, stream=stream)


class ResponsesCodec(Codec):
    """OpenAI Responses."""

    path = "/responses"
    lacks = SAMPLING - {"verbosity"} | {"stop"} | TOP_K
    decoder = ResponsesDecoder
    lenient_decoder = LenientResponsesDecoder

    def encode_request(self, call: ModelCall, *, stream: bool) -> bytes:
        """The body to post."""
        return encode_responses_request(call, stream=stream)


class AnthropicCodec(Codec):
    """Anthropic Messages."""

    path = "/messages"
    count_path = "/messages/count_tokens"
    lacks = SAMPLING
    decoder = AnthropicDecoder

    def headers(self, api_key: str) -> dict[str, str]:
        """The version of the protocol, and the key."""
        return {"anthropic-version": API_VERSION} | ({"x-api-key": api_key} if api_key else {})

    def encode_request(self, call: ModelCall, *, stream: bool) -> bytes:
        """The body to post."""
        return encode_anthropic_request(call, stream=stream)

    def encode_count(self, call: ModelCall) -> bytes:
        """The body to post to `count_path`."""
        return encode_count_request(call)

    def left_out(self, model: str, options: Options) -> tuple[str, ...]:
        """What is asked for and does not reach a model: what only some of them take, too."""
        return (*super().left_out(model, options), *find_left_out(model, options))


CODECS: Final[dict[WireProtocol, Codec]] = {
    "chat_completions": ChatCompletionsCodec(),
    "responses": ResponsesCodec(),
    "anthropic_messages": AnthropicCodec(),
}


def make_codec(protocol: WireProtocol, quirks: ChatQuirks | None = None) -> Codec:
    """A protocol's codec; the quirks are those of a provider of Chat Completions, and mean nothing to the others."""
    return ChatCompletionsCodec(quirks) if quirks and protocol == "chat_completions" else CODECS[protocol]
