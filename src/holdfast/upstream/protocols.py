"""The wire protocols by their names in the configuration. The one place that knows every codec."""

from typing import Final

from holdfast.config import Protocol
from holdfast.upstream.chat_completions import ChatCompletionsCodec
from holdfast.upstream.codec import Codec

CODECS: Final[dict[Protocol, Codec]] = {
    "chat_completions": ChatCompletionsCodec(),
}
