"""The port to a transport: what `http` needs of whatever carries a request to a provider and its response back.

`http1` implements it. Another one (HTTP/2) is another module beside it, and nothing above
changes. A transport knows no protocol, no provider's name and no error of the tree; it tells what became of a
connection:

TransportError
  NotConnectedError    there is no connection; the cause says why
  NoResponseError      the connection ended before a response began
  ResponseCutError     the connection ended in the middle of a response
  NotHttpError         what came cannot be read as HTTP; says why

Sits on the vocabulary.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from holdfast.sinks import ByteSink


class TransportError(Exception):
    """Base of the errors below."""


class NotConnectedError(TransportError):
    """There is no connection; the cause says why."""


class NoResponseError(TransportError):
    """The connection ended before a response began."""


class ResponseCutError(TransportError):
    """The connection ended in the middle of a response."""


class NotHttpError(TransportError):
    """What came cannot be read as HTTP; says why."""


class TransportResponse(Protocol):
    """What a provider sends to one request. Whoever has it ends it: with `release` if all is well, else with `cut`."""

    @property
    def status(self) -> int:
        """The final one: "Continue" and the like are not told."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """By their names in lower case."""
        ...

    @property
    def is_over(self) -> bool:
        """The body has ended as it should."""
        ...

    async def read(self) -> bytes:
        """All that has come since the last read; waits for something. Empty: the body has ended as it should.

        Raises:
            ResponseCutError, NotHttpError: it has not; everything that came before was returned first.
            Exception: what `fail` was called with.
        """
        ...

    async def stream_to(self, sink: ByteSink) -> bool:
        """Push the body, all that a read brought, in the very step in which it comes: no task is woken for it.

        Returns:
            The body has ended as it should; False: the sink wants no more of it, or not before it is drained. Then
            the rest is kept, and the provider made to wait if it is much; call again to go on.

        Raises:
            ResponseCutError, NotHttpError: it has not ended so; everything that came before was pushed first.
            Exception: what `fail` was called with, or what the sink has raised.
        """
        ...

    def release(self) -> None:
        """Nothing more is wanted: the connection is kept for the next request if it can be. Does not wait."""
        ...

    def cut(self) -> None:
        """End the connection there and then: a polite goodbye would wait for a provider that may have stalled."""
        ...

    def fail(self, error: Exception) -> None:
        """Let the reader have this error, after what had come, and cut."""
        ...


Post = Callable[[bytes], Awaitable[TransportResponse]]
"""Posts a body, and waits until its response has begun. Cancelled, it leaves no connection behind (U17).

Raises:
    TimeoutError: no connection in time.
    NotConnectedError, NoResponseError, NotHttpError: it failed.
"""


class Transport(Protocol):
    """All connections to one provider: as many as are asked for."""

    def prepare(self, path: str, headers: Mapping[str, str]) -> Post:
        """Make ready to post to a path under the base URL, once for many requests.

        The headers hold nothing that would not fit in one. The host and what frames the body are the transport's own
        business, but a `Host` among them stands in its place.
        """
        ...

    def close(self) -> None:
        """Cut every connection."""
        ...
