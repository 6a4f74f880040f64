"""What a wire protocol must be able to do. Codecs do no I/O: bytes in, values out (U).

The three concrete ones stand beside their table in `codecs`; each has a folder with `encode`, what is sent, and
`decode`, what the bytes that come mean. `http` drives them. Sits on `stream_decoder` and `failures`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from holdfast.errors import ProtocolError, UpstreamError
from holdfast.events import Delta
from holdfast.upstream.failures import failure_of_response
from holdfast.upstream.port import ModelCall, Options
from holdfast.upstream.protocols.stream_decoder import StreamDecoder


class TokenCount(msgspec.Struct, frozen=True):
    """How long a call is."""

    input_tokens: int


class Codec(ABC):
    """One protocol: `chat_completions`, `responses` or `anthropic_messages`."""

    path: ClassVar[str]
    """Appended to the provider's base URL."""
    count_path: ClassVar[str | None] = None
    """Where a call's tokens are counted before it is made (M1); None: the protocol has no such thing."""
    decoder: ClassVar[type[StreamDecoder]]
    """Made for the answer to one call."""
    lenient_decoder: ClassVar[type[StreamDecoder] | None] = None
    """For a body that the first could not make sense of (U11); None: the protocol has one form."""

    lacks: frozenset[str] = frozenset()
    """Options that it has no field for."""

    def headers(self, api_key: str) -> dict[str, str]:
        """How the protocol carries its key: as a bearer token; not at all for local servers that want none."""
        return {"Authorization": f"Bearer {api_key}"} if api_key else {}

    @abstractmethod
    def encode_request(self, call: ModelCall, *, stream: bool) -> bytes:
        """The body to post."""

    def encode_count(self, call: ModelCall) -> bytes:
        """The body to post to `count_path`; only for a protocol that has one."""
        raise NotImplementedError

    def parse_count(self, body: bytes) -> int:
        """How many tokens a call has.

        Raises:
            ProtocolError: that is not said.
        """
        try:
            return msgspec.json.decode(body, type=TokenCount).input_tokens
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError("The provider's answer is no count of tokens.") from error

    def left_out(self, model: str, options: Options) -> tuple[str, ...]:
        """What is asked for and does not reach a model."""
        asked = {name: getattr(options, name) for name in sorted(self.lacks)}
        # A penalty of 0 asks for nothing; a seed of 0 does.
        return tuple(name for name, value in asked.items() if value or (name == "seed" and value is not None))

    def parse_answer(self, body: bytes, call: ModelCall) -> Sequence[Delta]:
        """A plain answer as deltas, `Answered` last (U10).

        Raises:
            UpstreamError: it is an error, or no answer of this protocol.
        """
        return self.decoder(call).take_plain(body)

    def parse_error(self, status: int, body: bytes, retry_after: str | None) -> UpstreamError:
        """A response that is not 2xx, with the provider's own message and status (U9, U10)."""
        return failure_of_response(status, body, retry_after)
