"""What a wire protocol must be able to do. Codecs do no I/O: bytes in, values out (U).

Implementations: chat_completions, responses, anthropic. `http` drives them. Sits on the vocabulary.
"""

from collections.abc import Sequence
from typing import Protocol

from holdfast.errors import UpstreamError
from holdfast.events import Delta
from holdfast.upstream.port import ModelCall


class Decoder(Protocol):
    """One streamed body. Where its bytes are cut makes no difference to the deltas."""

    failure: UpstreamError | None
    """Set when the stream said that it failed; the deltas before it have been returned and stand."""
    finished: bool
    """The finish reason has arrived: whatever happens to the connection now, the answer is whole (U16)."""
    done: bool
    """The terminator has arrived: nothing more is worth reading."""
    frames: int
    """How many frames that are not comments have come: the stall clock looks at this (U14)."""

    def feed(self, data: bytes) -> list[Delta]:
        """What these bytes add. Never raises; a frame that is not JSON is passed over (U16)."""
        ...

    def end(self) -> list[Delta]:
        """The body has ended, cleanly or not: `Answered` if a finish reason had arrived.

        Raises:
            TransportLostError: it had not; a clean end of file is not success (U16).
        """
        ...


class Codec(Protocol):
    """One protocol: `chat_completions`, `responses` or `anthropic_messages`."""

    path: str
    """Appended to the provider's base URL."""

    def headers(self, api_key: str) -> dict[str, str]:
        """How the protocol carries its key."""
        ...

    def encode_request(self, call: ModelCall, *, stream: bool) -> bytes:
        """The body to post."""
        ...

    def make_decoder(self, call: ModelCall) -> Decoder:
        """For the answer to one streamed call."""
        ...

    def parse_answer(self, body: bytes, call: ModelCall) -> Sequence[Delta]:
        """A plain answer as deltas, `Answered` last (U10).

        Raises:
            UpstreamError: it is an error, or no answer of this protocol.
        """
        ...

    def parse_error(self, status: int, body: bytes, retry_after: str | None) -> UpstreamError:
        """An answer that is not 2xx, with the provider's own message and status (U9, U10)."""
        ...
