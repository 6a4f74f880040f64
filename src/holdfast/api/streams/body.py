"""The rest of an answer whose headers are made: where a stream's bytes go, whatever kind of connection is behind it.

Three kinds: lent by our own HTTP server (`serving.lending`), any ASGI server's, and a WebSocket (both in
`api.streams.buffered`). Knows no format and no run.
"""

from typing import Final, Protocol

LENT_BODY: Final = "holdfast.body"
"""Where a server that can lend its connection puts a `LentBody` into the ASGI scope."""


class BodyOwner(Protocol):
    """A stream that writes a body."""

    def lost(self) -> None:
        """The client has gone. Twice is once."""
        ...


class ResponseBody(Protocol):
    """A body that one stream writes, from its first byte to its last. A `ByteSink`."""

    @property
    def is_ready(self) -> bool:
        """Does the client keep up? Else what is pushed waits for it."""
        ...

    def start(self, owner: BodyOwner, first: bytes) -> bool:
        """Begin, with the first of it.

        Returns:
            False: the client has gone already, and the owner will not hear of it.
        """
        ...

    def push(self, data: bytes, /) -> bool:
        """Send a part that is not empty; is it still ready for more?"""
        ...

    def end(self, data: bytes) -> None:
        """Send the last of it."""
        ...

    def abort(self) -> None:
        """End the connection in the middle of the answer, so that nobody takes it for whole."""
        ...

    async def drain(self) -> None:
        """Wait until it is ready, or the client has gone."""
        ...


class LentBody(ResponseBody, Protocol):
    """A connection that nobody else writes to: the request's own task may end before the answer does."""

    def buffer_headers(self) -> None:
        """Let the headers wait for the beginning of the body: one packet instead of several."""
        ...

    def flush_headers(self) -> None:
        """There will be no stream: the headers, if there are any, wait no longer."""
        ...
